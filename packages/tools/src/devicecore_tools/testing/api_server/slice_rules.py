"""What an API server accepts as a ResourceSlice.

Law: `slice_causes` returns every reason for which kube-apiserver 1.36 refuses a slice, in field order. The function
changes nothing.
"""

from devicecore.domain.names import is_semantic_version
from devicecore_tools.testing.api_server.causes import MAX_ENTRIES, Field, is_whole, list_of, mapping_of, objects_in
from devicecore_tools.testing.api_server.status import Cause, Json

MAX_DEVICES = 128
"""The maximum number of devices in a slice."""

MAX_DEVICES_WITH_DETAILS = 64
"""The maximum number of devices in a slice if any of them has taints, consumes counters or has list attributes."""

_SCALARS = ("int", "bool", "string", "version")
_LISTS = ("ints", "bools", "strings", "versions")
_TYPES = (*_SCALARS, *_LISTS)
_NODES = ("nodeName", "nodeSelector", "allNodes")
_MAX_TEXT = 64


def slice_causes(new: Json, old: Json | None) -> list[Cause]:
    """Return what is wrong with a ResourceSlice."""
    spec = Field("", new)["spec"]
    spec["driver"].driver_name()
    spec["pool"]["name"].pool_name()
    spec["pool"]["resourceSliceCount"].at_least(1, "must be greater than zero")
    spec["pool"]["generation"].at_least(0, "must be greater than or equal to zero")
    _slice_nodes(spec)
    devices, counters = spec["devices"], spec["sharedCounters"]
    if list_of(devices.value) and list_of(counters.value):
        spec.invalid("only one of `devices` or `sharedCounters` is allowed", "{devices, sharedCounters}")
    devices.limit(MAX_DEVICES_WITH_DETAILS if any(map(_has_details, objects_in(devices.value))) else MAX_DEVICES)
    for device in devices:
        _device(device, per_device_nodes=bool(spec["perDeviceNodeSelection"].value))
    devices.unique("name")
    counters.limit(8)
    for counter in counters:
        counter["name"].label()
        _counters(counter["counters"])
    if old is not None:
        before = Field("", old)["spec"]
        spec["driver"].unchanged(before["driver"].value)
        spec["pool"]["name"].unchanged(before["pool"]["name"].value)
        spec["nodeName"].unchanged(before["nodeName"].value)
    return spec.causes


def _slice_nodes(spec: Field) -> None:
    fields = (*_NODES, "perDeviceNodeSelection")
    present = [name for name in fields if spec[name].value not in (None, "")]
    spec.exactly_one(present, fields)
    if "nodeName" in present:
        spec["nodeName"].subdomain()
    terms = spec["nodeSelector"]["nodeSelectorTerms"]
    if spec["nodeSelector"].value is not None and len(list_of(terms.value)) != 1:
        terms.invalid("must have exactly one node selector term")
    for name in ("allNodes", "perDeviceNodeSelection"):
        if spec[name].value is False:
            spec[name].invalid("must be either unset or set to true")


def _has_details(device: Json) -> bool:
    attributes = mapping_of(device.get("attributes")).values()
    has_lists = any(mapping_of(attribute).keys() & {*_LISTS} for attribute in attributes)
    return bool(device.get("taints") or device.get("consumesCounters") or has_lists)


def _device(device: Field, *, per_device_nodes: bool) -> None:
    device["name"].label()
    attributes, capacity = device["attributes"], device["capacity"]
    number = len(mapping_of(attributes.value)) + len(mapping_of(capacity.value))
    if number > MAX_ENTRIES:
        device.invalid("the total number of attributes and capacities must not exceed 32", number)
    for name, attribute in attributes.entries():
        attributes.qualified(name)
        _attribute(attribute)
    for name, amount in capacity.entries():
        capacity.qualified(name)
        _capacity(amount, shared=bool(device["allowMultipleAllocations"].value))
    device["consumesCounters"].limit(2)
    for consumed in device["consumesCounters"]:
        consumed["counterSet"].label()
        _counters(consumed["counters"])
    device["taints"].limit(16)
    for taint in device["taints"]:
        _taint(taint)
    _binding_conditions(device)
    chosen = [name for name in _NODES if device.value.get(name) not in (None, "")]
    if per_device_nodes:
        device.exactly_one(chosen, _NODES)
    for name in () if per_device_nodes else chosen:
        device[name].forbidden("may only be set if `perDeviceNodeSelection` is true")


def _attribute(attribute: Field) -> None:
    given = mapping_of(attribute.value)
    present = [name for name in _TYPES if given.get(name) is not None]
    attribute.exactly_one(present, _TYPES)
    if len(present) == 1:
        found = attribute[present[0]]
        values = list_of(found.value) if present[0] in _LISTS else [found.value]
        if not values:
            found.required("must not be empty")
        for value in values:
            _attribute_value(present[0].removesuffix("s"), Field(found.path, value, found.causes))


def _attribute_value(kind: str, field: Field) -> None:
    match kind, field.value:
        case ("int", int()) if is_whole(field.value):
            return
        case "bool", bool():
            return
        case "string", str(text):
            if len(text.encode(errors="replace")) > _MAX_TEXT:
                field.too_long(_MAX_TEXT)
        case "version", str(text):
            if len(text) > _MAX_TEXT:
                field.too_long(_MAX_TEXT)
            elif not is_semantic_version(text):
                field.invalid("must be a string compatible with semver.org spec 2.0.0")
        case _:
            field.invalid(f"must be of type {kind}")


def _capacity(amount: Field, *, shared: bool) -> None:
    if "value" not in mapping_of(amount.value):
        amount["value"].required()
        return
    amount["value"].quantity()
    policy = amount["requestPolicy"]
    if policy.value is None:
        return
    if not shared:
        policy.forbidden("allowMultipleAllocations must be true")
    values, within = policy["validValues"], policy["validRange"]
    if values.value and within.value:
        detail = "exactly one policy can be specified, cannot specify `validValues` and `validRange` at the same time"
        policy.forbidden(detail)
    if (values.value or within.value) and "default" not in mapping_of(policy.value):
        policy["default"].required()
    values.limit(10)


def _counters(counters: Field) -> None:
    if not mapping_of(counters.value):
        counters.required()
    counters.limit()
    for name, counter in counters.entries():
        Field(counters.path, name, counters.causes).label()
        counter["value"].quantity()


def _taint(taint: Field) -> None:
    if taint["key"].require():
        taint["key"].label_key()
    taint["value"].label_value()
    if taint["effect"].require():
        taint["effect"].one_of(("NoExecute", "NoSchedule", "None"))


def _binding_conditions(device: Field) -> None:
    wanted, failures = both = device["bindingConditions"], device["bindingFailureConditions"]
    for conditions in both:
        conditions.limit(4)
        conditions.unique()
    if bool(wanted.value) != bool(failures.value):
        missing = wanted if failures.value else failures
        missing.required("bindingConditions and bindingFailureConditions must be set together")
    for condition in list_of(wanted.value):
        if condition in list_of(failures.value):
            failures.invalid("bindingFailureConditions must not overlap with bindingConditions", condition)
