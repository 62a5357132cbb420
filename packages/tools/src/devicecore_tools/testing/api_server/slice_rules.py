"""What an API server accepts as a ResourceSlice.

Law: `slice_causes` yields every cause for which kube-apiserver 1.36 refuses a slice, in the order of the fields. It
changes nothing.
"""

import re
from collections.abc import Iterator

from devicecore.domain.names import is_qualified_name
from devicecore_tools.testing.api_server.causes import (
    MAX_ENTRIES,
    driver_name_causes,
    forbidden,
    immutable,
    invalid_value,
    is_whole,
    label_causes,
    limit_causes,
    list_of,
    mapping_of,
    objects_of,
    one_of_causes,
    pool_name_causes,
    qualified_name_causes,
    quantity_causes,
    required,
    subdomain_causes,
    too_long,
    too_many,
    unique_causes,
    unsupported,
)
from devicecore_tools.testing.api_server.status import Cause, Json

MAX_DEVICES = 128
"""Devices of a slice."""

MAX_DEVICES_WITH_DETAILS = 64
"""Devices of a slice in which a device has taints, consumes counters or has attributes that are lists."""

_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_LABEL_KEY_SENTENCE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_SCALARS = ("int", "bool", "string", "version")
_LISTS = ("ints", "bools", "strings", "versions")
_ONE_OF_NODES = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_MAX_TEXT = 64


def slice_causes(new: Json, old: Json | None) -> Iterator[Cause]:
    """What is wrong with a ResourceSlice."""
    spec = mapping_of(new.get("spec"))
    yield from driver_name_causes(spec.get("driver"), "spec.driver")
    yield from _pool_causes(mapping_of(spec.get("pool")))
    yield from _slice_nodes(spec)
    devices, counters = list_of(spec.get("devices")), list_of(spec.get("sharedCounters"))
    if devices and counters:
        yield invalid_value("spec", "{devices, sharedCounters}", "only one of `devices` or `sharedCounters` is allowed")
    limit = MAX_DEVICES_WITH_DETAILS if any(map(_has_details, devices)) else MAX_DEVICES
    yield from limit_causes(devices, "spec.devices", limit)
    for field, device in objects_of(devices, "spec.devices"):
        yield from _device(device, field, per_device_nodes=bool(spec.get("perDeviceNodeSelection")))
    names = [mapping_of(device).get("name") for device in devices]
    yield from unique_causes(names, lambda number: f"spec.devices[{number}].name")
    yield from limit_causes(counters, "spec.sharedCounters", 8)
    for field, counter in objects_of(counters, "spec.sharedCounters"):
        yield from label_causes(counter.get("name"), f"{field}.name")
        yield from _counters(counter.get("counters"), f"{field}.counters")
    if old is not None:
        before = mapping_of(old.get("spec"))
        pool, old_pool = mapping_of(spec.get("pool")).get("name"), mapping_of(before.get("pool")).get("name")
        for field, value, was in (
            ("spec.driver", spec.get("driver"), before.get("driver")),
            ("spec.pool.name", pool, old_pool),
            ("spec.nodeName", spec.get("nodeName"), before.get("nodeName")),
        ):
            if value != was:
                yield immutable(field, value)


def _pool_causes(pool: Json) -> Iterator[Cause]:
    yield from pool_name_causes(pool.get("name"), "spec.pool.name")
    generation, count = pool.get("generation", 0), pool.get("resourceSliceCount", 0)
    if not is_whole(count) or count <= 0:
        yield invalid_value("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if not is_whole(generation) or generation < 0:
        yield invalid_value("spec.pool.generation", generation, "must be greater than or equal to zero")


def _slice_nodes(spec: Json) -> Iterator[Cause]:
    fields = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    present = [field for field in fields if spec.get(field) not in (None, "")]
    if not present:
        yield required("spec", _ONE_OF_NODES)
    elif len(present) > 1:
        yield invalid_value("spec", "{" + ", ".join(present) + "}", f"{_ONE_OF_NODES}, but multiple fields are set")
    if "nodeName" in present:
        yield from subdomain_causes(spec["nodeName"], "spec.nodeName")
    yield from _node_selector(spec.get("nodeSelector"), "spec.nodeSelector")
    for field in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(field) is False:
            yield invalid_value(f"spec.{field}", value=False, detail="must be either unset or set to true")


def _node_selector(selector: object, field: str) -> Iterator[Cause]:
    if selector is not None and len(list_of(mapping_of(selector).get("nodeSelectorTerms"))) != 1:
        yield invalid_value(
            f"{field}.nodeSelectorTerms",
            mapping_of(selector).get("nodeSelectorTerms"),
            "must have exactly one node selector term",
        )


def _has_details(device: object) -> bool:
    device = mapping_of(device)
    attributes = mapping_of(device.get("attributes")).values()
    has_lists = any(mapping_of(attribute).keys() & {*_LISTS} for attribute in attributes)
    return bool(device.get("taints") or device.get("consumesCounters") or has_lists)


def _device(device: Json, field: str, *, per_device_nodes: bool) -> Iterator[Cause]:
    yield from label_causes(device.get("name"), f"{field}.name")
    attributes, capacity = mapping_of(device.get("attributes")), mapping_of(device.get("capacity"))
    if len(attributes) + len(capacity) > MAX_ENTRIES:
        detail = "the total number of attributes and capacities must not exceed 32"
        yield invalid_value(field, len(attributes) + len(capacity), detail)
    for name, attribute in attributes.items():
        yield from qualified_name_causes(name, f"{field}.attributes")
        yield from _attribute(mapping_of(attribute), f"{field}.attributes[{name}]")
    for name, amount in capacity.items():
        yield from qualified_name_causes(name, f"{field}.capacity")
        yield from _capacity(
            mapping_of(amount), f"{field}.capacity[{name}]", shared=bool(device.get("allowMultipleAllocations"))
        )
    yield from limit_causes(device.get("consumesCounters"), f"{field}.consumesCounters", 2)
    for path, consumed in objects_of(device.get("consumesCounters"), f"{field}.consumesCounters"):
        yield from label_causes(consumed.get("counterSet"), f"{path}.counterSet")
        yield from _counters(consumed.get("counters"), f"{path}.counters")
    yield from limit_causes(device.get("taints"), f"{field}.taints", 16)
    for path, taint in objects_of(device.get("taints"), f"{field}.taints"):
        yield from _taint(taint, path)
    yield from _binding_conditions(device, field)
    chosen = [name for name in ("nodeName", "nodeSelector", "allNodes") if device.get(name) not in (None, "")]
    if per_device_nodes:
        yield from one_of_causes(chosen, ("nodeName", "nodeSelector", "allNodes"), field)
    for name in () if per_device_nodes else chosen:
        yield forbidden(f"{field}.{name}", "may only be set if `perDeviceNodeSelection` is true")


def _attribute(attribute: Json, field: str) -> Iterator[Cause]:
    present = [name for name in (*_SCALARS, *_LISTS) if attribute.get(name) is not None]
    if len(present) != 1:
        yield from one_of_causes(present, (*_SCALARS, *_LISTS), field)
        return
    name, value = present[0], attribute[present[0]]
    values = list_of(value) if name in _LISTS else [value]
    if not values:
        yield required(f"{field}.{name}", "must not be empty")
    for one in values:
        yield from _attribute_value(name.removesuffix("s") if name in _LISTS else name, one, f"{field}.{name}")


def _attribute_value(kind: str, value: object, field: str) -> Iterator[Cause]:
    match kind, value:
        case ("int", int()) if is_whole(value):
            return
        case "bool", bool():
            return
        case "string", str():
            if len(value.encode(errors="replace")) > _MAX_TEXT:
                yield too_long(field, _MAX_TEXT)
        case "version", str():
            if len(value) > _MAX_TEXT:
                yield too_long(field, _MAX_TEXT)
            elif not _SEMVER.fullmatch(value):
                yield invalid_value(field, value, "must be a string compatible with semver.org spec 2.0.0")
        case _:
            yield invalid_value(field, value, f"must be of type {kind}")


def _capacity(amount: Json, field: str, *, shared: bool) -> Iterator[Cause]:
    if "value" not in amount:
        yield required(f"{field}.value")
        return
    yield from quantity_causes(amount["value"], f"{field}.value")
    policy = amount.get("requestPolicy")
    if policy is None:
        return
    if not shared:
        yield forbidden(f"{field}.requestPolicy", "allowMultipleAllocations must be true")
    values, within = mapping_of(policy).get("validValues"), mapping_of(policy).get("validRange")
    if values and within:
        yield forbidden(
            f"{field}.requestPolicy",
            "exactly one policy can be specified, cannot specify `validValues` and `validRange` at the same time",
        )
    if (values or within) and "default" not in policy:
        yield required(f"{field}.requestPolicy.default")
    yield from limit_causes(values, f"{field}.requestPolicy.validValues", 10)


def _counters(counters: object, field: str) -> Iterator[Cause]:
    if not mapping_of(counters):
        yield required(field)
    if len(mapping_of(counters)) > MAX_ENTRIES:
        yield too_many(field, len(mapping_of(counters)), MAX_ENTRIES)
    for name, counter in mapping_of(counters).items():
        yield from label_causes(name, field)
        yield from quantity_causes(mapping_of(counter).get("value"), f"{field}[{name}].value")


def _taint(taint: Json, field: str) -> Iterator[Cause]:
    key = str(taint.get("key") or "")
    if not key:
        yield required(f"{field}.key")
    elif not is_qualified_name(key):
        yield invalid_value(f"{field}.key", key, _LABEL_KEY_SENTENCE)
    if not taint.get("effect"):
        yield required(f"{field}.effect")
    elif taint["effect"] not in ("NoExecute", "NoSchedule", "None"):
        yield unsupported(f"{field}.effect", taint["effect"], ("NoExecute", "NoSchedule", "None"))


def _binding_conditions(device: Json, field: str) -> Iterator[Cause]:
    names = ("bindingConditions", "bindingFailureConditions")
    wanted, failures = (list_of(device.get(name)) for name in names)
    for name, conditions in zip(names, (wanted, failures), strict=True):
        yield from limit_causes(conditions, f"{field}.{name}", 4)
        yield from unique_causes(conditions, lambda number, name=name: f"{field}.{name}[{number}]")  # type: ignore[misc]  # mypy: a default for a captured loop variable
    if bool(wanted) != bool(failures):
        missing = names[0] if failures else names[1]
        yield required(f"{field}.{missing}", f"{names[0]} and {names[1]} must be set together")
    for condition in wanted:
        if condition in failures:
            yield invalid_value(f"{field}.{names[1]}", condition, f"{names[1]} must not overlap with {names[0]}")
