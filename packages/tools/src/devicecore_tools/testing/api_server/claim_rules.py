"""What an API server accepts as the status of a ResourceClaim, which drivers write.

Law: a function yields every cause for which kube-apiserver 1.36 refuses a status, in the order of the fields. It
changes nothing. Of a spec only its types are checked, and that it does not change, because no driver writes one.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from devicecore_tools.testing.api_server.causes import (
    MAX_ENTRIES,
    driver_name_causes,
    duplicate,
    forbidden,
    immutable,
    invalid_value,
    is_same,
    label_causes,
    limit_causes,
    list_of,
    mapping_of,
    objects_of,
    pool_name_causes,
    required,
    too_long,
    unique_causes,
    unsupported,
)
from devicecore_tools.testing.api_server.status import Cause, Json

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_JSON = 10 * 1024  # bytes


def claim_causes(new: Json, old: Json | None) -> Iterator[Cause]:
    """What is wrong with a ResourceClaim or ResourceClaimTemplate that was changed."""
    if old is not None and not is_same(new.get("spec"), old.get("spec")):
        yield immutable("spec", new.get("spec"))


def _opaque(config: Json, field: str) -> Iterator[Cause]:
    if "opaque" not in config:
        yield required(f"{field}.opaque", "exactly one of `opaque` is required")
        return
    opaque = mapping_of(config["opaque"])
    yield from driver_name_causes(opaque.get("driver"), f"{field}.opaque.driver")
    parameters = opaque.get("parameters")
    if parameters is None:
        yield required(f"{field}.opaque.parameters")
    elif not isinstance(parameters, dict):
        yield invalid_value(f"{field}.opaque.parameters", "<value omitted>", "parameters must be a valid JSON object")
    elif len(json.dumps(parameters)) > _MAX_JSON:
        yield too_long(f"{field}.opaque.parameters", _MAX_JSON)


def claim_status_causes(new: Json, old: Json) -> Iterator[Cause]:
    """What is wrong with a ResourceClaim's status."""
    status, before = mapping_of(new.get("status")), mapping_of(old.get("status"))
    allocation, was = status.get("allocation"), before.get("allocation")
    if was is not None and allocation is not None and not is_same(allocation, was):
        yield immutable("status.allocation", "<value omitted>")
    yield from _reserved_for(status, before, is_ending="deletionTimestamp" in old["metadata"])
    results = list_of(mapping_of(mapping_of(allocation).get("devices")).get("results"))
    yield from limit_causes(results, "status.allocation.devices.results", MAX_ENTRIES)
    spec_names = set(_request_names(mapping_of(new.get("spec"))))
    for field, result in objects_of(results, "status.allocation.devices.results"):
        yield from _result(result, field, spec_names)
    config = list_of(mapping_of(mapping_of(allocation).get("devices")).get("config"))
    yield from limit_causes(config, "status.allocation.devices.config", 64)
    for field, entry in objects_of(config, "status.allocation.devices.config"):
        if entry.get("source") not in ("FromClass", "FromClaim"):
            yield unsupported(f"{field}.source", entry.get("source"), ("FromClaim", "FromClass"))
        yield from _opaque(entry, field)
    yield from _device_statuses(status, [device_key(mapping_of(result)) for result in results])


def _request_names(spec: Json) -> Iterator[str]:
    for _, request in objects_of(mapping_of(spec.get("devices")).get("requests"), ""):
        subrequests = [one.get("name") for _, one in objects_of(request.get("firstAvailable"), "")]
        yield from [f"{request.get('name')}/{name}" for name in subrequests] or [str(request.get("name"))]


def _reserved_for(status: Json, before: Json, *, is_ending: bool) -> Iterator[Cause]:
    consumers, old = list_of(status.get("reservedFor")), list_of(before.get("reservedFor"))
    field = "status.reservedFor"
    yield from limit_causes(consumers, field, 256)
    if consumers and status.get("allocation") is None:
        yield forbidden(field, "may not be specified when `allocated` is not set")
    if is_ending and any(consumer not in old for consumer in consumers):
        yield forbidden(
            field, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        )
    for path, consumer in objects_of(consumers, field):
        for name in ("resource", "name", "uid"):
            if not consumer.get(name):
                yield required(f"{path}.{name}")
    uids = [mapping_of(consumer).get("uid") for consumer in consumers]
    yield from unique_causes(uids, lambda number: f"{field}[{number}].uid")


def _result(result: Json, field: str, requests: Collection[str]) -> Iterator[Cause]:
    if result.get("request") not in requests:
        detail = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
        yield invalid_value(f"{field}.request", result.get("request"), detail)
    yield from driver_name_causes(result.get("driver"), f"{field}.driver")
    yield from pool_name_causes(result.get("pool"), f"{field}.pool")
    yield from label_causes(result.get("device"), f"{field}.device")
    share = result.get("shareID")
    if share is not None and not _UUID.fullmatch(str(share)):
        yield invalid_value(f"{field}.shareID", share, "must be a lowercase UUID in 8-4-4-4-12 format")


def device_key(value: Json) -> tuple[object, ...]:
    """What tells one allocated device from another: driver, pool, device and share."""
    return tuple(value.get(name) for name in ("driver", "pool", "device", "shareID"))


def _device_statuses(status: Json, allocated: Collection[tuple[object, ...]]) -> Iterator[Cause]:
    entries = list_of(status.get("devices"))
    keys = [device_key(mapping_of(entry)) for entry in entries]
    for key, count in Counter(keys).items():
        if count > 1:
            yield duplicate(
                f"status.devices[{len(keys) - 1 - keys[::-1].index(key)}]",
                dict(zip(("driver", "pool", "device"), key, strict=False)),
            )
    for field, entry in objects_of(entries, "status.devices"):
        if device_key(entry) not in allocated:
            shown = {name: entry.get(name) for name in ("driver", "pool", "device")}
            yield invalid_value(field, shown, "must be an allocated device in the claim")
        yield from limit_causes(entry.get("conditions"), f"{field}.conditions", 8)
        types = [mapping_of(condition).get("type") for condition in list_of(entry.get("conditions"))]
        yield from unique_causes(types, lambda number, field=field: f"{field}.conditions[{number}].type")  # type: ignore[misc]  # as above
        data = entry.get("data")
        if data is not None and not isinstance(data, dict):
            yield invalid_value(f"{field}.data", "<value omitted>", "parameters must be a valid JSON object")
        elif data is not None and len(json.dumps(data)) > _MAX_JSON:
            yield too_long(f"{field}.data", _MAX_JSON)
        network: Mapping[str, Any] = mapping_of(entry.get("networkData"))
        yield from limit_causes(network.get("ips"), f"{field}.networkData.ips", 16)
