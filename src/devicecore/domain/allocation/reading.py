"""Turns API objects of the group resource.k8s.io, and Nodes, into values.

The versions v1, v1beta2 and v1beta1 are supported. If an object has no version, its fields decide how it is read. Law:
any parsed JSON results in a value or in a `DocumentError` that names the field. Fields that the API server would
default get the same defaults.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache

from devicecore.domain.allocation.model import (
    Attribute,
    Capacity,
    Constraint,
    DeviceClass,
    DeviceKey,
    DeviceRequest,
    DeviceToleration,
    Held,
    NodeRule,
    PoolDevice,
    PoolSlice,
    RequestPolicy,
    Rule,
    Taint,
    TargetNode,
    Toleration,
    UnallocatedClaim,
)
from devicecore.domain.allocation.node_selectors import node_selector
from devicecore.domain.documents import Value, check_kind
from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.quantity import Quantity

MAX_SLICE_DEVICES = 128
MAX_REQUESTS = 32
MAX_ALTERNATIVES = 8
MAX_ATTRIBUTES = 64  # the API allows 32 attributes with 48 values in total
MAX_ATTRIBUTE_TEXT = 64

_ATTRIBUTE_KINDS = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_SCALARS: Mapping[str, type] = {"int": int, "bool": bool, "string": str, "version": str}


def node_of(manifest: object) -> TargetNode:
    """Read a Node from a parsed manifest.

    Raises:
        DocumentError: a field has the wrong type.
    """
    metadata = Value.of(manifest, "Node")["metadata"]
    return TargetNode(
        metadata["name"].text(), {key: value.text("") for key, value in metadata["labels"].mapping().items()}
    )


def taint_of(one: Value) -> Taint:
    """Return a taint of a device or of a Node. Raises DocumentError if a field has the wrong type."""
    return Taint(one["key"].text(""), one["value"].text(""), one["effect"].text(""))


def toleration_of(one: Value) -> Toleration:
    """Return a toleration of a request or of a pod. Raises DocumentError if a field has the wrong type."""
    key, operator = one["key"].text(""), one["operator"].text("") or "Equal"
    return Toleration(key, operator, one["value"].text(""), one["effect"].text(""))


def class_of(manifest: object) -> DeviceClass:
    """Read a DeviceClass from a parsed manifest.

    Raises:
        DocumentError: a field has the wrong type, or the class is too large.
    """
    one = Value.of(manifest, "DeviceClass")
    _check_kind(one, "DeviceClass")
    config = tuple(_object(entry) for entry in _bounded(one["spec"]["config"]))
    return DeviceClass(one["metadata"]["name"].text(), _selectors(one["spec"]["selectors"]), config)


def slice_of(manifest: object) -> PoolSlice:
    """Read a ResourceSlice from a parsed manifest.

    Raises:
        DocumentError: a field has the wrong type, or the slice is too large.
    """
    one = Value.of(manifest, "ResourceSlice")
    _check_kind(one, "ResourceSlice")
    spec = one["spec"]
    driver, pool = spec["driver"].text(), spec["pool"]
    pool_name, per_device = pool["name"].text(), spec["perDeviceNodeSelection"].boolean()
    return PoolSlice(
        one["metadata"]["name"].text(""),
        driver,
        pool_name,
        pool["generation"].integer(0),
        pool["resourceSliceCount"].integer(0),
        None if per_device else _place(spec),
        tuple(
            _device(device["name"].text(), _body(device), driver, pool_name, per_device=per_device)
            for device in _bounded(spec["devices"], MAX_SLICE_DEVICES)
        ),
        tuple((one["name"].text(), _amounts(one["counters"])) for one in _bounded(spec["sharedCounters"])),
        tuple(operation.text() for operation in _bounded(spec["skipNodeOperations"])),
    )


def claim_of(manifest: object) -> UnallocatedClaim:
    """Return the requests and constraints of a ResourceClaim.

    Raises:
        DocumentError: a field has the wrong type, or the claim is too large.
    """
    claim = Value.of(manifest, "ResourceClaim")
    version = _check_kind(claim, "ResourceClaim")
    devices = claim["spec"]["devices"]
    return UnallocatedClaim(
        _claim_name(claim),
        tuple(tuple(_alternatives(request, version)) for request in _bounded(devices["requests"])),
        tuple(map(_constraint, _bounded(devices["constraints"]))),
        tuple(_object(entry) for entry in _bounded(devices["config"])),
    )


def held_by(manifest: object) -> tuple[Held, ...]:
    """Return the devices that are allocated to a ResourceClaim.

    Devices with admin access are left out, because admin access does not take a device.

    Raises:
        DocumentError: a field has the wrong type.
    """
    claim = Value.of(manifest, "ResourceClaim")
    status = claim["status"]
    results = status["allocation"]["devices"]["results"].sequence()
    if not results:
        return ()
    pods = tuple(consumer["name"].text("") for consumer in status["reservedFor"].sequence())
    name = _claim_name(claim)
    return tuple(held for result in results if (held := _held(result, name, pods)) is not None)


def _held(result: Value, claim: str, pods: tuple[str, ...]) -> Held | None:
    """Return a device of a claim, or None if the claim has only admin access to it."""
    data = result.data
    if isinstance(data, dict) and data.keys() <= _FIELDS_OF_WHOLE_DEVICES:
        driver, pool, device = data.get("driver"), data.get("pool"), data.get("device")
        if driver and pool and device and type(driver) is type(pool) is type(device) is str:
            return Held(DeviceKey(driver, pool, device), claim, pods)
    if result["adminAccess"].boolean():
        return None
    return Held(
        DeviceKey(result["driver"].text(), result["pool"].text(), result["device"].text()),
        claim,
        pods,
        result["shareID"].data is not None,
        _quantities(result["consumedCapacity"]),
    )


_FIELDS_OF_WHOLE_DEVICES = frozenset({"request", "driver", "pool", "device"})
"""Nearly all results have only these fields. Such results are read faster, because a large cluster has a hundred
thousand claims.
"""


def _check_kind(one: Value, kind: str) -> str:
    """Return the API version of an object, or an empty string if the object has none.

    Raises DocumentError for objects of a different kind, and for other versions, such as v1alpha3.
    """
    check_kind(one, kind)
    version = one["apiVersion"]
    group, _, name = version.text("").rpartition("/")
    if group and name not in VERSIONS:
        known = ", ".join(f"{group}/{one}" for one in VERSIONS)
        advice = f"its fields differ, so write it as {group}/{VERSIONS[0]}"
        version.refuse(f"expected {known}, got {version.text()}: {advice}")
    return name if group else ""


VERSIONS = ("v1", "v1beta2", "v1beta1")
"""The supported versions of resource.k8s.io."""


def _claim_name(claim: Value) -> str:
    metadata = claim["metadata"]
    return "/".join(filter(None, (metadata["namespace"].text(""), metadata["name"].text(""))))


def _alternatives(request: Value, version: str) -> Iterator[DeviceRequest]:
    name = request["name"].text()
    if request["firstAvailable"].data:
        for alternative in _bounded(request["firstAvailable"], MAX_ALTERNATIVES):
            yield _request(alternative, alternative["name"].text(), name)
    else:
        # In v1beta1, the request itself has the fields of `exactly`.
        is_flat = request["exactly"].data is None and request["deviceClassName"].data is not None
        if is_flat and version not in ("", "v1beta1"):
            request["deviceClassName"].refuse(f"it is a field of v1beta1; in {version} it is in `exactly`")
        yield _request(request if is_flat else request["exactly"], name, "")


def _request(one: Value, name: str, parent: str) -> DeviceRequest:
    mode, count, admin = one["allocationMode"].text(""), one["count"].integer(0), one["adminAccess"]
    if one["deviceClassName"].data is None:
        _refuse_misspelled_class(one)
    if count < 0:
        one["count"].refuse(f"expected 1 or more, got {count}")
    return DeviceRequest(
        name,
        parent,
        one["deviceClassName"].text(""),
        _selectors(one["selectors"]),
        mode or "ExactCount",
        count or 1,
        None if admin.data is None else admin.boolean(),
        tuple(map(_toleration, _bounded(one["tolerations"]))),
        None if one["capacity"].data is None else _quantities(one["capacity"]["requests"]),
    )


def _refuse_misspelled_class(request: Value) -> None:
    """Refuse a request whose class is in a field that does not exist, such as `deviceClass`, as kubectl does."""
    for name in request.mapping():
        if name.lower().replace("_", "").startswith("deviceclass"):
            request[name].refuse("there is no such field; expected 'deviceClassName'")


def _toleration(one: Value) -> DeviceToleration:
    of = toleration_of(one)
    return DeviceToleration(of.key, of.operator, of.value, of.effect, _object(one))


def _constraint(one: Value) -> Constraint:
    requests = frozenset(name.text() for name in one["requests"].sequence())
    for rule in Rule:
        if attribute := one[rule.value].text(""):
            return Constraint(rule, attribute, requests)
    return Constraint(None, "", requests)


def _selectors(selectors: Value) -> tuple[str | None, ...]:
    return tuple(one["cel"]["expression"].text("") or None for one in _bounded(selectors))


def _body(device: Value) -> Value:
    """Return the object that contains a device's fields: in v1beta1, the device's field `basic`."""
    return device if device["basic"].data is None else device["basic"]


def _device(name: str, device: Value, driver: str, pool: str, *, per_device: bool) -> PoolDevice:
    key, attributes = DeviceKey(driver, pool, name), _attributes(device["attributes"])
    capacity = {name: _capacity(one) for name, one in _bounded_pairs(device["capacity"])}
    if isinstance(device.data, dict) and device.data.keys() <= _FIELDS_OF_MOST and not per_device:
        return PoolDevice(key, attributes, capacity)
    return PoolDevice(
        key,
        attributes,
        capacity,
        tuple(taint_of(taint) for taint in _bounded(device["taints"])),
        tuple(
            (one["counterSet"].text(), _amounts(one["counters"]))
            for one in (_bounded(device["consumesCounters"]) if device["consumesCounters"].data else ())
        ),
        device["allowMultipleAllocations"].boolean(),
        _place(device) if per_device else None,
        device["bindsToNode"].boolean(),
        tuple(condition.text() for condition in device["bindingConditions"].sequence()),
        tuple(condition.text() for condition in device["bindingFailureConditions"].sequence()),
    )


_FIELDS_OF_MOST = frozenset({"name", "attributes", "capacity"})
"""Nearly all devices have only these fields. Such devices are read faster, because a large cluster has a hundred
thousand of them.
"""


def _capacity(one: Value) -> Capacity:
    data = one.data
    if isinstance(data, dict) and len(data) == 1 and isinstance(text := data.get("value"), str):
        with suppress(InvalidQuantityError):
            return _plain_capacity(text)
    return Capacity(one["value"].amount(), _policy(one))


@lru_cache(maxsize=1024)  # cached, because the devices of a cluster have the same few values
def _plain_capacity(text: str) -> Capacity:
    return Capacity(Quantity.parse(text))


@lru_cache(maxsize=4096)  # as above
def _plain_attribute(kind: str, value: str | int) -> Attribute:
    return Attribute(kind, (value,))


def _attributes(found: Value) -> dict[str, Attribute]:
    if not isinstance(found.data, dict) or len(found.data) > MAX_ATTRIBUTES:
        return {name: _attribute(value) for name, value in _bounded_pairs(found)}
    read: dict[str, Attribute] = {}
    for name, data in found.data.items():
        if isinstance(data, dict) and len(data) == 1:  # the usual case: a cluster has a million attributes
            ((kind, value),) = data.items()
            if isinstance(value, str | int) and _SCALARS.get(kind) is type(value):
                is_short = not isinstance(value, str) or len(value) <= MAX_ATTRIBUTE_TEXT
                read[name] = _plain_attribute(kind, value) if is_short else Attribute(kind, (value,))
                continue
        read[name] = _attribute(Value(data, found, name))
    return read


def _attribute(one: Value) -> Attribute:
    for kind in _ATTRIBUTE_KINDS:
        value = one[kind]
        if value.data is None:
            continue
        elements = tuple(value.sequence()) if kind.endswith("s") else (value,)
        if kind.startswith("int"):
            return Attribute(kind, tuple(element.integer(0) for element in elements))
        if kind.startswith("bool"):
            return Attribute(kind, tuple(element.boolean() for element in elements))
        return Attribute(kind, tuple(element.text("") for element in elements))
    return Attribute("")


def _policy(capacity: Value) -> RequestPolicy | None:
    policy = capacity["requestPolicy"]
    if policy.data is None:
        return None
    limits = policy["validRange"]
    return RequestPolicy(
        _optional_quantity(policy["default"]),
        tuple(value.amount() for value in _bounded(policy["validValues"])),
        *(_optional_quantity(limits[name]) for name in ("min", "max", "step")),
    )


def _place(one: Value) -> NodeRule:
    node, everywhere, selector = one["nodeName"].text(""), one["allNodes"].boolean(), one["nodeSelector"]
    if selector.data is None:
        return NodeRule(node, everywhere)
    return NodeRule(node, everywhere, _object(selector), node_selector(selector))


def _amounts(counters: Value) -> Mapping[str, Quantity]:
    return {name: counter["value"].amount() for name, counter in _bounded_pairs(counters)}


def _quantities(amounts: Value) -> Mapping[str, Quantity]:
    return {name: amount.amount() for name, amount in _bounded_pairs(amounts)}


def _optional_quantity(one: Value) -> Quantity | None:
    return None if one.data is None else one.amount()


def _object(one: Value) -> Mapping[str, object]:
    return {name: item.data for name, item in one.mapping().items()}


def _bounded(one: Value, limit: int = MAX_REQUESTS) -> Iterable[Value]:
    _check_length(one, limit)
    return one.sequence()


def _bounded_pairs(one: Value) -> Iterable[tuple[str, Value]]:
    _check_length(one, MAX_ATTRIBUTES)
    return one.mapping().items()


def _check_length(one: Value, limit: int) -> None:
    if isinstance(one.data, list | dict) and len(one.data) > limit:
        one.refuse(f"expected at most {limit} elements, got {len(one.data):,}")
