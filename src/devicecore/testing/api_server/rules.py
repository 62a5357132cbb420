"""What an API server accepts as a ResourceSlice, ResourceClaim, ResourceClaimTemplate or DeviceClass.

Law: for each kind, a function yields every cause for which kube-apiserver 1.36 refuses an object, in the order of the
fields. It changes nothing. CEL expressions are not evaluated, only measured.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.quantity import whole_quantity
from devicecore.testing.api_server.status import Cause, Json

MAX_DEVICES = 128
"""Devices of a slice."""

MAX_DEVICES_WITH_DETAILS = 64
"""Devices of a slice in which a device has taints, consumes counters or has attributes that are lists."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_KEY_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LABEL_SENTENCE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_SENTENCE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_IDENTIFIER_SENTENCE = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_LABEL_KEY_SENTENCE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_SCALARS = ("int", "bool", "string", "version")
_LISTS = ("ints", "bools", "strings", "versions")
_ONE_OF_NODES = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_MAX_NAME = 253
_MAX_LABEL = 63
_MAX_TEXT = 64
_MAX_JSON = 10 * 1024  # bytes
_MAX_IDENTIFIER = 32
_MAX_ENTRIES = 32


def is_label(text: object) -> bool:
    """Whether it is an RFC 1123 label."""
    return isinstance(text, str) and _LABEL.fullmatch(text) is not None


def is_subdomain(text: object) -> bool:
    """Whether it is an RFC 1123 subdomain."""
    return isinstance(text, str) and len(text) <= _MAX_NAME and _SUBDOMAIN.fullmatch(text) is not None


# --- how causes read --------------------------------------------------------------------------------------------------


def required(field: str, detail: str = "") -> Cause:
    """A field is missing."""
    return Cause(field, "Required value", detail)


def invalid_value(field: str, value: object, detail: str) -> Cause:
    """A field has a value that it cannot have."""
    return Cause(field, f"Invalid value: {json.dumps(value)}", detail)


def too_many(field: str, count: int, limit: int) -> Cause:
    """A list is too long."""
    items = "item" if limit == 1 else "items"
    return Cause(field, f"Too many: {count}", f"must have at most {limit} {items}")


def too_long(field: str, limit: int) -> Cause:
    """A text is too long."""
    return Cause(field, "Too long", f"may not be more than {limit} bytes")


def duplicate(field: str, value: object) -> Cause:
    """A value that must be unique appears twice."""
    return Cause(field, f"Duplicate value: {json.dumps(value)}")


def forbidden(field: str, detail: str) -> Cause:
    """A field may not be set here."""
    return Cause(field, "Forbidden", detail)


def unsupported(field: str, value: object, supported: Iterable[str]) -> Cause:
    """A value is not one of the known ones."""
    return Cause(
        field, f"Unsupported value: {json.dumps(value)}", f"supported values: {', '.join(map(json.dumps, supported))}"
    )


def immutable(field: str, value: object) -> Cause:
    """A field may not change."""
    return invalid_value(field, value, "field is immutable")


# --- shared pieces ----------------------------------------------------------------------------------------------------


def _is_same(value: object, was: object) -> bool:
    """Whether two values are the same for clients in Go, which leave out fields that are empty."""
    return _without_empty(value) == _without_empty(was)


def _without_empty(value: object) -> object:
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {name: one if name == "parameters" else _without_empty(one) for name, one in value.items()}
    return {name: one for name, one in kept.items() if one not in (None, "", [], {})}


def _objects(value: object, field: str) -> Iterator[tuple[str, Json]]:
    """The items of a list of objects, each with its path."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            if isinstance(item, dict):
                yield f"{field}[{number}]", item


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def label_causes(value: object, field: str) -> Iterator[Cause]:
    """Why a value is no RFC 1123 label."""
    if not value:
        yield required(field)
    elif isinstance(value, str) and len(value) > _MAX_LABEL:
        yield invalid_value(field, value, f"must be no more than {_MAX_LABEL} bytes")
    elif not is_label(value):
        yield invalid_value(field, value, _LABEL_SENTENCE)


def subdomain_causes(value: object, field: str, limit: int = _MAX_NAME) -> Iterator[Cause]:
    """Why a value is no RFC 1123 subdomain of at most `limit` characters."""
    if not value:
        yield required(field)
    elif isinstance(value, str) and len(value) > limit:
        yield too_long(field, limit)
    elif not is_subdomain(value):
        yield invalid_value(field, value, _SUBDOMAIN_SENTENCE)


def _driver_name(value: object, field: str) -> Iterator[Cause]:
    yield from subdomain_causes(value.lower() if isinstance(value, str) else value, field, _MAX_LABEL)


def _pool_name(value: object, field: str) -> Iterator[Cause]:
    if not value:
        yield required(field)
    elif not isinstance(value, str) or len(value) > _MAX_NAME:
        yield too_long(field, _MAX_NAME)
    elif not all(map(is_subdomain, value.split("/"))):
        yield invalid_value(field, value, _SUBDOMAIN_SENTENCE)


def _qualified_name(text: str, field: str) -> Iterator[Cause]:
    domain, slash, name = text.rpartition("/")
    if slash and (len(domain) > _MAX_LABEL or not is_subdomain(domain)):
        yield invalid_value(field, domain, _SUBDOMAIN_SENTENCE)
    if not name:
        yield required(field, "the name must not be empty")
    elif len(name) > _MAX_IDENTIFIER:
        yield too_long(field, _MAX_IDENTIFIER)
    elif not _C_IDENTIFIER.fullmatch(name):
        yield invalid_value(
            field,
            name,
            _IDENTIFIER_SENTENCE,
        )


def _quantity(value: object, field: str) -> Iterator[Cause]:
    try:
        whole_quantity(str(value))
    except InvalidQuantityError:
        yield invalid_value(
            field, value, "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )


def _limit(values: object, field: str, limit: int) -> Iterator[Cause]:
    if len(_items(values)) > limit:
        yield too_many(field, len(_items(values)), limit)


def _unique(values: Iterable[object], field: Callable[[int], str]) -> Iterator[Cause]:
    seen: list[object] = []
    for number, value in enumerate(values):
        if value in seen:
            yield duplicate(field(number), value)
        seen.append(value)


def _one_of(present: Collection[str], allowed: Collection[str], field: str) -> Iterator[Cause]:
    names = ", ".join(f"`{name}`" for name in allowed)
    if not present:
        yield required(field, f"exactly one of {names} is required")
    elif len(present) > 1:
        fields = "{" + ", ".join(present) + "}"
        yield invalid_value(field, fields, f"exactly one of {names} is required, but multiple fields are set")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# --- ResourceSlice ----------------------------------------------------------------------------------------------------


def slice_causes(new: Json, old: Json | None) -> Iterator[Cause]:
    """What is wrong with a ResourceSlice."""
    spec = _mapping(new.get("spec"))
    yield from _driver_name(spec.get("driver"), "spec.driver")
    yield from _pool_causes(_mapping(spec.get("pool")))
    yield from _slice_nodes(spec)
    devices, counters = _items(spec.get("devices")), _items(spec.get("sharedCounters"))
    if devices and counters:
        yield invalid_value("spec", "{devices, sharedCounters}", "only one of `devices` or `sharedCounters` is allowed")
    limit = MAX_DEVICES_WITH_DETAILS if any(map(_has_details, devices)) else MAX_DEVICES
    yield from _limit(devices, "spec.devices", limit)
    for field, device in _objects(devices, "spec.devices"):
        yield from _device(device, field, per_device_nodes=bool(spec.get("perDeviceNodeSelection")))
    names = [_mapping(device).get("name") for device in devices]
    yield from _unique(names, lambda number: f"spec.devices[{number}].name")
    yield from _limit(counters, "spec.sharedCounters", 8)
    for field, counter in _objects(counters, "spec.sharedCounters"):
        yield from label_causes(counter.get("name"), f"{field}.name")
        yield from _counters(counter.get("counters"), f"{field}.counters")
    if old is not None:
        before = _mapping(old.get("spec"))
        pool, old_pool = _mapping(spec.get("pool")).get("name"), _mapping(before.get("pool")).get("name")
        for field, value, was in (
            ("spec.driver", spec.get("driver"), before.get("driver")),
            ("spec.pool.name", pool, old_pool),
            ("spec.nodeName", spec.get("nodeName"), before.get("nodeName")),
        ):
            if value != was:
                yield immutable(field, value)


def _pool_causes(pool: Json) -> Iterator[Cause]:
    yield from _pool_name(pool.get("name"), "spec.pool.name")
    generation, count = pool.get("generation", 0), pool.get("resourceSliceCount", 0)
    if not _whole(count) or count <= 0:
        yield invalid_value("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if not _whole(generation) or generation < 0:
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
    if selector is not None and len(_items(_mapping(selector).get("nodeSelectorTerms"))) != 1:
        yield invalid_value(
            f"{field}.nodeSelectorTerms",
            _mapping(selector).get("nodeSelectorTerms"),
            "must have exactly one node selector term",
        )


def _has_details(device: object) -> bool:
    device = _mapping(device)
    attributes = _mapping(device.get("attributes")).values()
    has_lists = any(_mapping(attribute).keys() & {*_LISTS} for attribute in attributes)
    return bool(device.get("taints") or device.get("consumesCounters") or has_lists)


def _device(device: Json, field: str, *, per_device_nodes: bool) -> Iterator[Cause]:
    yield from label_causes(device.get("name"), f"{field}.name")
    attributes, capacity = _mapping(device.get("attributes")), _mapping(device.get("capacity"))
    if len(attributes) + len(capacity) > _MAX_ENTRIES:
        detail = "the total number of attributes and capacities must not exceed 32"
        yield invalid_value(field, len(attributes) + len(capacity), detail)
    for name, attribute in attributes.items():
        yield from _qualified_name(name, f"{field}.attributes")
        yield from _attribute(_mapping(attribute), f"{field}.attributes[{name}]")
    for name, amount in capacity.items():
        yield from _qualified_name(name, f"{field}.capacity")
        yield from _capacity(
            _mapping(amount), f"{field}.capacity[{name}]", shared=bool(device.get("allowMultipleAllocations"))
        )
    yield from _limit(device.get("consumesCounters"), f"{field}.consumesCounters", 2)
    for path, consumed in _objects(device.get("consumesCounters"), f"{field}.consumesCounters"):
        yield from label_causes(consumed.get("counterSet"), f"{path}.counterSet")
        yield from _counters(consumed.get("counters"), f"{path}.counters")
    yield from _limit(device.get("taints"), f"{field}.taints", 16)
    for path, taint in _objects(device.get("taints"), f"{field}.taints"):
        yield from _taint(taint, path)
    yield from _binding_conditions(device, field)
    chosen = [name for name in ("nodeName", "nodeSelector", "allNodes") if device.get(name) not in (None, "")]
    if per_device_nodes:
        yield from _one_of(chosen, ("nodeName", "nodeSelector", "allNodes"), field)
    for name in () if per_device_nodes else chosen:
        yield forbidden(f"{field}.{name}", "may only be set if `perDeviceNodeSelection` is true")


def _attribute(attribute: Json, field: str) -> Iterator[Cause]:
    present = [name for name in (*_SCALARS, *_LISTS) if attribute.get(name) is not None]
    if len(present) != 1:
        yield from _one_of(present, (*_SCALARS, *_LISTS), field)
        return
    name, value = present[0], attribute[present[0]]
    values = _items(value) if name in _LISTS else [value]
    if not values:
        yield required(f"{field}.{name}", "must not be empty")
    for one in values:
        yield from _attribute_value(name.removesuffix("s") if name in _LISTS else name, one, f"{field}.{name}")


def _attribute_value(kind: str, value: object, field: str) -> Iterator[Cause]:
    match kind, value:
        case ("int", int()) if _whole(value):
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
    yield from _quantity(amount["value"], f"{field}.value")
    policy = amount.get("requestPolicy")
    if policy is None:
        return
    if not shared:
        yield forbidden(f"{field}.requestPolicy", "allowMultipleAllocations must be true")
    values, within = _mapping(policy).get("validValues"), _mapping(policy).get("validRange")
    if values and within:
        yield forbidden(
            f"{field}.requestPolicy",
            "exactly one policy can be specified, cannot specify `validValues` and `validRange` at the same time",
        )
    if (values or within) and "default" not in policy:
        yield required(f"{field}.requestPolicy.default")
    yield from _limit(values, f"{field}.requestPolicy.validValues", 10)


def _counters(counters: object, field: str) -> Iterator[Cause]:
    if not _mapping(counters):
        yield required(field)
    if len(_mapping(counters)) > _MAX_ENTRIES:
        yield too_many(field, len(_mapping(counters)), _MAX_ENTRIES)
    for name, counter in _mapping(counters).items():
        yield from label_causes(name, field)
        yield from _quantity(_mapping(counter).get("value"), f"{field}[{name}].value")


def _taint(taint: Json, field: str) -> Iterator[Cause]:
    key = str(taint.get("key") or "")
    prefix, slash, name = key.rpartition("/")
    if not key:
        yield required(f"{field}.key")
    elif (slash and not is_subdomain(prefix)) or not _LABEL_KEY_NAME.fullmatch(name):
        yield invalid_value(
            f"{field}.key",
            key,
            _LABEL_KEY_SENTENCE,
        )
    if not taint.get("effect"):
        yield required(f"{field}.effect")
    elif taint["effect"] not in ("NoExecute", "NoSchedule", "None"):
        yield unsupported(f"{field}.effect", taint["effect"], ("NoExecute", "NoSchedule", "None"))


def _binding_conditions(device: Json, field: str) -> Iterator[Cause]:
    names = ("bindingConditions", "bindingFailureConditions")
    wanted, failures = (_items(device.get(name)) for name in names)
    for name, conditions in zip(names, (wanted, failures), strict=True):
        yield from _limit(conditions, f"{field}.{name}", 4)
        yield from _unique(conditions, lambda number, name=name: f"{field}.{name}[{number}]")  # type: ignore[misc]  # mypy: a default for a captured loop variable
    if bool(wanted) != bool(failures):
        missing = names[0] if failures else names[1]
        yield required(f"{field}.{missing}", f"{names[0]} and {names[1]} must be set together")
    for condition in wanted:
        if condition in failures:
            yield invalid_value(f"{field}.{names[1]}", condition, f"{names[1]} must not overlap with {names[0]}")


# --- ResourceClaim ----------------------------------------------------------------------------------------------------


def claim_causes(new: Json, old: Json | None) -> Iterator[Cause]:
    """What is wrong with a ResourceClaim's spec."""
    yield from _claim_spec(_mapping(new.get("spec")), "spec")
    if old is not None and not _is_same(new.get("spec"), old.get("spec")):
        yield immutable("spec", new.get("spec"))


def template_causes(new: Json, old: Json | None) -> Iterator[Cause]:
    """What is wrong with a ResourceClaimTemplate."""
    yield from _claim_spec(_mapping(_mapping(new.get("spec")).get("spec")), "spec.spec")
    if old is not None and not _is_same(new.get("spec"), old.get("spec")):
        yield immutable("spec", new.get("spec"))


def class_causes(new: Json, _: Json | None) -> Iterator[Cause]:
    """What is wrong with a DeviceClass."""
    spec = _mapping(new.get("spec"))
    yield from _selectors(spec.get("selectors"), "spec.selectors")
    yield from _limit(spec.get("config"), "spec.config", _MAX_ENTRIES)
    for field, config in _objects(spec.get("config"), "spec.config"):
        yield from _opaque(config, field)


def _claim_spec(spec: Json, field: str) -> Iterator[Cause]:
    devices = _mapping(spec.get("devices"))
    names: list[object] = []
    for part in ("requests", "constraints", "config"):
        yield from _limit(devices.get(part), f"{field}.devices.{part}", _MAX_ENTRIES)
    for path, request in _objects(devices.get("requests"), f"{field}.devices.requests"):
        yield from _request(request, path)
        subrequests = [
            f"{request.get('name')}/{one.get('name')}" for _, one in _objects(request.get("firstAvailable"), "")
        ]
        names += [request.get("name"), *subrequests]
    requests = [_mapping(request).get("name") for request in _items(devices.get("requests"))]
    yield from _unique(requests, lambda number: f"{field}.devices.requests[{number}].name")
    for path, constraint in _objects(devices.get("constraints"), f"{field}.devices.constraints"):
        yield from _references(constraint, path, names)
        present = [name for name in ("matchAttribute", "distinctAttribute") if constraint.get(name)]
        yield from _one_of(present, ("matchAttribute", "distinctAttribute"), path)
        for name in present:
            if "/" not in constraint[name]:
                yield invalid_value(f"{path}.{name}", constraint[name], "must include a domain")
            yield from _qualified_name(constraint[name], f"{path}.{name}")
    for path, config in _objects(devices.get("config"), f"{field}.devices.config"):
        yield from _references(config, path, names)
        yield from _opaque(config, path)


def _references(value: Json, field: str, names: Collection[object]) -> Iterator[Cause]:
    for number, request in enumerate(_items(value.get("requests"))):
        if request not in names:
            detail = (
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
            )
            yield invalid_value(f"{field}.requests[{number}]", request, detail)


def _request(request: Json, field: str) -> Iterator[Cause]:
    yield from label_causes(request.get("name"), f"{field}.name")
    present = [name for name in ("exactly", "firstAvailable") if request.get(name) is not None]
    yield from _one_of(present, ("exactly", "firstAvailable"), field)
    if "exactly" in present:
        yield from _exact(_mapping(request["exactly"]), f"{field}.exactly")
    yield from _limit(request.get("firstAvailable"), f"{field}.firstAvailable", 8)
    for path, one in _objects(request.get("firstAvailable"), f"{field}.firstAvailable"):
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
    elif mode == "ExactCount" and count is not None and (not _whole(count) or count <= 0):
        yield invalid_value(f"{field}.count", count, "must be greater than zero")
    yield from _limit(exact.get("tolerations"), f"{field}.tolerations", 16)


def _selectors(selectors: object, field: str) -> Iterator[Cause]:
    yield from _limit(selectors, field, _MAX_ENTRIES)
    for path, selector in _objects(selectors, field):
        expression = _mapping(selector.get("cel")).get("expression")
        if not expression:
            yield required(f"{path}.cel.expression")
        elif len(str(expression).encode(errors="replace")) > _MAX_JSON:
            yield too_long(f"{path}.cel.expression", _MAX_JSON)


def _opaque(config: Json, field: str) -> Iterator[Cause]:
    if "opaque" not in config:
        yield required(f"{field}.opaque", "exactly one of `opaque` is required")
        return
    opaque = _mapping(config["opaque"])
    yield from _driver_name(opaque.get("driver"), f"{field}.opaque.driver")
    parameters = opaque.get("parameters")
    if parameters is None:
        yield required(f"{field}.opaque.parameters")
    elif not isinstance(parameters, dict):
        yield invalid_value(f"{field}.opaque.parameters", "<value omitted>", "parameters must be a valid JSON object")
    elif len(json.dumps(parameters)) > _MAX_JSON:
        yield too_long(f"{field}.opaque.parameters", _MAX_JSON)


def claim_status_causes(new: Json, old: Json) -> Iterator[Cause]:
    """What is wrong with a ResourceClaim's status."""
    status, before = _mapping(new.get("status")), _mapping(old.get("status"))
    allocation, was = status.get("allocation"), before.get("allocation")
    if was is not None and allocation is not None and not _is_same(allocation, was):
        yield immutable("status.allocation", "<value omitted>")
    yield from _reserved_for(status, before, is_ending="deletionTimestamp" in old["metadata"])
    results = _items(_mapping(_mapping(allocation).get("devices")).get("results"))
    yield from _limit(results, "status.allocation.devices.results", _MAX_ENTRIES)
    spec_names = set(_request_names(_mapping(new.get("spec"))))
    for field, result in _objects(results, "status.allocation.devices.results"):
        yield from _result(result, field, spec_names)
    config = _items(_mapping(_mapping(allocation).get("devices")).get("config"))
    yield from _limit(config, "status.allocation.devices.config", 64)
    for field, entry in _objects(config, "status.allocation.devices.config"):
        if entry.get("source") not in ("FromClass", "FromClaim"):
            yield unsupported(f"{field}.source", entry.get("source"), ("FromClaim", "FromClass"))
        yield from _opaque(entry, field)
    yield from _device_statuses(status, [device_key(_mapping(result)) for result in results])


def _request_names(spec: Json) -> Iterator[str]:
    for _, request in _objects(_mapping(spec.get("devices")).get("requests"), ""):
        subrequests = [one.get("name") for _, one in _objects(request.get("firstAvailable"), "")]
        yield from [f"{request.get('name')}/{name}" for name in subrequests] or [str(request.get("name"))]


def _reserved_for(status: Json, before: Json, *, is_ending: bool) -> Iterator[Cause]:
    consumers, old = _items(status.get("reservedFor")), _items(before.get("reservedFor"))
    field = "status.reservedFor"
    yield from _limit(consumers, field, 256)
    if consumers and status.get("allocation") is None:
        yield forbidden(field, "may not be specified when `allocated` is not set")
    if is_ending and any(consumer not in old for consumer in consumers):
        yield forbidden(
            field, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        )
    for path, consumer in _objects(consumers, field):
        for name in ("resource", "name", "uid"):
            if not consumer.get(name):
                yield required(f"{path}.{name}")
    uids = [_mapping(consumer).get("uid") for consumer in consumers]
    yield from _unique(uids, lambda number: f"{field}[{number}].uid")


def _result(result: Json, field: str, requests: Collection[str]) -> Iterator[Cause]:
    if result.get("request") not in requests:
        detail = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
        yield invalid_value(f"{field}.request", result.get("request"), detail)
    yield from _driver_name(result.get("driver"), f"{field}.driver")
    yield from _pool_name(result.get("pool"), f"{field}.pool")
    yield from label_causes(result.get("device"), f"{field}.device")
    share = result.get("shareID")
    if share is not None and not _UUID.fullmatch(str(share)):
        yield invalid_value(f"{field}.shareID", share, "must be a lowercase UUID in 8-4-4-4-12 format")


def device_key(value: Json) -> tuple[object, ...]:
    """What tells one allocated device from another: driver, pool, device and share."""
    return tuple(value.get(name) for name in ("driver", "pool", "device", "shareID"))


def _device_statuses(status: Json, allocated: Collection[tuple[object, ...]]) -> Iterator[Cause]:
    entries = _items(status.get("devices"))
    keys = [device_key(_mapping(entry)) for entry in entries]
    for key, count in Counter(keys).items():
        if count > 1:
            yield duplicate(
                f"status.devices[{len(keys) - 1 - keys[::-1].index(key)}]",
                dict(zip(("driver", "pool", "device"), key, strict=False)),
            )
    for field, entry in _objects(entries, "status.devices"):
        if device_key(entry) not in allocated:
            said = {name: entry.get(name) for name in ("driver", "pool", "device")}
            yield invalid_value(field, said, "must be an allocated device in the claim")
        yield from _limit(entry.get("conditions"), f"{field}.conditions", 8)
        types = [_mapping(condition).get("type") for condition in _items(entry.get("conditions"))]
        yield from _unique(types, lambda number, field=field: f"{field}.conditions[{number}].type")  # type: ignore[misc]  # as above
        data = entry.get("data")
        if data is not None and not isinstance(data, dict):
            yield invalid_value(f"{field}.data", "<value omitted>", "parameters must be a valid JSON object")
        elif data is not None and len(json.dumps(data)) > _MAX_JSON:
            yield too_long(f"{field}.data", _MAX_JSON)
        network: Mapping[str, Any] = _mapping(entry.get("networkData"))
        yield from _limit(network.get("ips"), f"{field}.networkData.ips", 16)


def no_causes(_new: Json, _old: Json | None) -> Iterator[Cause]:
    """No rules: pods, nodes and namespaces are taken as they are."""
    yield from ()
