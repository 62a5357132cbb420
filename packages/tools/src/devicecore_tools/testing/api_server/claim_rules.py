"""What an API server accepts as a ResourceClaim, ResourceClaimTemplate or DeviceClass.

Law: for each kind, a function yields every cause for which kube-apiserver 1.36 refuses an object, in the order of the
fields. It changes nothing. CEL expressions are not evaluated, only measured.
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
    is_whole,
    label_causes,
    limit_causes,
    list_of,
    mapping_of,
    objects_of,
    one_of_causes,
    pool_name_causes,
    qualified_name_causes,
    required,
    subdomain_causes,
    too_long,
    unique_causes,
    unsupported,
)
from devicecore_tools.testing.api_server.status import Cause, Json

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_JSON = 10 * 1024  # bytes


def claim_causes(new: Json, old: Json | None) -> Iterator[Cause]:
    """What is wrong with a ResourceClaim's spec."""
    yield from _claim_spec(mapping_of(new.get("spec")), "spec")
    if old is not None and not is_same(new.get("spec"), old.get("spec")):
        yield immutable("spec", new.get("spec"))


def template_causes(new: Json, old: Json | None) -> Iterator[Cause]:
    """What is wrong with a ResourceClaimTemplate."""
    yield from _claim_spec(mapping_of(mapping_of(new.get("spec")).get("spec")), "spec.spec")
    if old is not None and not is_same(new.get("spec"), old.get("spec")):
        yield immutable("spec", new.get("spec"))


def class_causes(new: Json, _: Json | None) -> Iterator[Cause]:
    """What is wrong with a DeviceClass."""
    spec = mapping_of(new.get("spec"))
    yield from _selectors(spec.get("selectors"), "spec.selectors")
    yield from limit_causes(spec.get("config"), "spec.config", MAX_ENTRIES)
    for field, config in objects_of(spec.get("config"), "spec.config"):
        yield from _opaque(config, field)


def _claim_spec(spec: Json, field: str) -> Iterator[Cause]:
    devices = mapping_of(spec.get("devices"))
    names: list[object] = []
    for part in ("requests", "constraints", "config"):
        yield from limit_causes(devices.get(part), f"{field}.devices.{part}", MAX_ENTRIES)
    for path, request in objects_of(devices.get("requests"), f"{field}.devices.requests"):
        yield from _request(request, path)
        subrequests = [
            f"{request.get('name')}/{one.get('name')}" for _, one in objects_of(request.get("firstAvailable"), "")
        ]
        names += [request.get("name"), *subrequests]
    requests = [mapping_of(request).get("name") for request in list_of(devices.get("requests"))]
    yield from unique_causes(requests, lambda number: f"{field}.devices.requests[{number}].name")
    for path, constraint in objects_of(devices.get("constraints"), f"{field}.devices.constraints"):
        yield from _references(constraint, path, names)
        present = [name for name in ("matchAttribute", "distinctAttribute") if constraint.get(name)]
        yield from one_of_causes(present, ("matchAttribute", "distinctAttribute"), path)
        for name in present:
            if "/" not in constraint[name]:
                yield invalid_value(f"{path}.{name}", constraint[name], "must include a domain")
            yield from qualified_name_causes(constraint[name], f"{path}.{name}")
    for path, config in objects_of(devices.get("config"), f"{field}.devices.config"):
        yield from _references(config, path, names)
        yield from _opaque(config, path)


def _references(value: Json, field: str, names: Collection[object]) -> Iterator[Cause]:
    for number, request in enumerate(list_of(value.get("requests"))):
        if request not in names:
            detail = (
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
            )
            yield invalid_value(f"{field}.requests[{number}]", request, detail)


def _request(request: Json, field: str) -> Iterator[Cause]:
    yield from label_causes(request.get("name"), f"{field}.name")
    present = [name for name in ("exactly", "firstAvailable") if request.get(name) is not None]
    yield from one_of_causes(present, ("exactly", "firstAvailable"), field)
    if "exactly" in present:
        yield from _exact(mapping_of(request["exactly"]), f"{field}.exactly")
    yield from limit_causes(request.get("firstAvailable"), f"{field}.firstAvailable", 8)
    for path, one in objects_of(request.get("firstAvailable"), f"{field}.firstAvailable"):
        yield from label_causes(one.get("name"), f"{path}.name")
        yield from _exact(one, path)
        if one.get("adminAccess"):
            yield forbidden(f"{path}.adminAccess", "subrequests cannot ask for admin access")


def _exact(exact: Json, field: str) -> Iterator[Cause]:
    yield from subdomain_causes(exact.get("deviceClassName"), f"{field}.deviceClassName")
    yield from _selectors(exact.get("selectors"), f"{field}.selectors")
    mode, count = exact.get("allocationMode", "ExactCount"), exact.get("count")
    if mode not in ("ExactCount", "All"):
        yield unsupported(f"{field}.allocationMode", mode, ("All", "ExactCount"))
    elif mode == "All" and count:
        yield invalid_value(f"{field}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount" and count is not None and (not is_whole(count) or count <= 0):
        yield invalid_value(f"{field}.count", count, "must be greater than zero")
    yield from limit_causes(exact.get("tolerations"), f"{field}.tolerations", 16)


def _selectors(selectors: object, field: str) -> Iterator[Cause]:
    yield from limit_causes(selectors, field, MAX_ENTRIES)
    for path, selector in objects_of(selectors, field):
        expression = mapping_of(selector.get("cel")).get("expression")
        if not expression:
            yield required(f"{path}.cel.expression")
        elif len(str(expression).encode(errors="replace")) > _MAX_JSON:
            yield too_long(f"{path}.cel.expression", _MAX_JSON)


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
