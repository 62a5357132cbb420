"""What an API server accepts as the status of a ResourceClaim, which drivers write.

Law: a function returns every reason for which kube-apiserver 1.36 refuses a status, in field order. The function
changes nothing. A spec is checked only for its types and its immutability, because no driver writes one.
"""

import re
from collections.abc import Collection, Iterator

from devicecore_tools.testing.api_server.causes import Field, list_of, mapping_of, objects_in
from devicecore_tools.testing.api_server.status import Cause, Json

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def claim_causes(new: Json, old: Json | None) -> list[Cause]:
    """Return what is wrong with a changed ResourceClaim or ResourceClaimTemplate."""
    spec = Field("", new)["spec"]
    if old is not None:
        spec.unchanged(old.get("spec"))
    return spec.causes


def claim_status_causes(new: Json, old: Json) -> list[Cause]:
    """Return what is wrong with a ResourceClaim's status."""
    status, before = Field("", new)["status"], Field("", old)["status"]
    allocation, was = status["allocation"], before["allocation"].value
    if was is not None and allocation.value is not None:
        allocation.unchanged(was, "<value omitted>")
    _reserved_for(status, list_of(before["reservedFor"].value), is_ending="deletionTimestamp" in old["metadata"])
    results, config = allocation["devices"]["results"], allocation["devices"]["config"]
    results.limit()
    spec_names = set(_request_names(mapping_of(new.get("spec"))))
    for result in results:
        _result(result, spec_names)
    config.limit(64)
    for entry in config:
        entry["source"].one_of(("FromClaim", "FromClass"))
        opaque = entry["opaque"]
        if "opaque" not in entry.value:
            opaque.required("exactly one of `opaque` is required")
            continue
        opaque["driver"].driver_name()
        if opaque["parameters"].value is None:
            opaque["parameters"].required()
        else:
            opaque["parameters"].json_object()
    _device_statuses(status["devices"], [device_key(mapping_of(result)) for result in list_of(results.value)])
    return status.causes


def _request_names(spec: Json) -> Iterator[str]:
    for request in objects_in(mapping_of(spec.get("devices")).get("requests")):
        subrequests = [one.get("name") for one in objects_in(request.get("firstAvailable"))]
        yield from [f"{request.get('name')}/{name}" for name in subrequests] or [str(request.get("name"))]


def _reserved_for(status: Field, old: list[object], *, is_ending: bool) -> None:
    consumers = status["reservedFor"]
    consumers.limit(256)
    if consumers.value and status["allocation"].value is None:
        consumers.forbidden("may not be specified when `allocated` is not set")
    if is_ending and any(consumer not in old for consumer in list_of(consumers.value)):
        detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        consumers.forbidden(detail)
    for consumer in consumers:
        for name in ("resource", "name", "uid"):
            consumer[name].require()
    consumers.unique("uid")


def _result(result: Field, requests: Collection[str]) -> None:
    if result["request"].value not in requests:
        detail = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
        result["request"].invalid(detail)
    result["driver"].driver_name()
    result["pool"].pool_name()
    result["device"].label()
    share = result["shareID"]
    if share.value is not None and not _UUID.fullmatch(str(share.value)):
        share.invalid("must be a lowercase UUID in 8-4-4-4-12 format")


def device_key(value: Json) -> tuple[object, ...]:
    """Return the key that identifies an allocated device: driver, pool, device and share."""
    return tuple(value.get(name) for name in ("driver", "pool", "device", "shareID"))


def _device_statuses(entries: Field, allocated: Collection[tuple[object, ...]]) -> None:
    last = {device_key(entry.value): entry for entry in entries}
    keys = [device_key(entry.value) for entry in entries]
    shown = {key: dict(zip(("driver", "pool", "device"), key, strict=False)) for key in last}
    for key, entry in last.items():
        if keys.count(key) > 1:
            entry.duplicate(shown[key])
    for entry in entries:
        key = device_key(entry.value)
        if key not in allocated:
            entry.invalid("must be an allocated device in the claim", shown[key])
        entry["conditions"].limit(8)
        entry["conditions"].unique("type")
        if entry["data"].value is not None:
            entry["data"].json_object()
        entry["networkData"]["ips"].limit(16)
