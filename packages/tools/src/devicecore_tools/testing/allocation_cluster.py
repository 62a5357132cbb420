"""A cluster's published devices and its allocated claims, read from API objects for `allocation_judge`.

Law: a pool consists of its highest-generation slices, whichever node they are for, unless a different view is
requested.
"""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, cached_property
from typing import Any

from attrs import frozen

from devicecore.domain.quantity import Quantity
from devicecore_tools.testing.allocation_rules import Rule

Json = Any  # API objects
Key = tuple[str, str, str]
"""A device's driver, pool and name."""

PoolKey = tuple[str, str]
"""A pool's driver and name."""


def billionths(text: str | int) -> int:
    """Return a quantity in billionths."""
    return Quantity.parse(str(text)).nanos


def key_of(one: Json) -> Key:
    """Return the key of the device in an allocation result or in an entry of a case's `allocated`."""
    return one["driver"], one["pool"], one["device"]


def path_of(key: Key) -> str:
    """Return a key as a string."""
    return "/".join(key)


def full_name(name: str, driver: str) -> str:
    """Return the name of an attribute or a capacity with its domain."""
    return name if "/" in name else f"{driver}/{name}"


@frozen
class Node:
    """A node as selectors see it."""

    name: str
    labels: Mapping[str, str]


def _compares(requirement: Json, value: str | None) -> bool:
    try:
        number, limit = int(value or ""), int(requirement["values"][0])
    except ValueError:
        return False
    return number > limit if requirement["operator"] == "Gt" else number < limit


_MEETS: Mapping[str, Callable[[Json, str | None], bool]] = {
    "In": lambda requirement, value: value in requirement["values"],
    "NotIn": lambda requirement, value: value not in requirement["values"],
    "Exists": lambda _, value: value is not None,
    "DoesNotExist": lambda _, value: value is None,
    "Gt": _compares,
    "Lt": _compares,
}


def _meets(requirement: Json, value: str | None) -> bool:
    return _MEETS[requirement["operator"]](requirement, value)


def selects(selector: Json, node: Node) -> bool:
    """Return whether one term of a node selector matches. A term without requirements matches nothing."""
    for term in selector.get("nodeSelectorTerms") or ():
        labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
        if (
            (labels or fields)
            and all(_meets(one, node.labels.get(one["key"])) for one in labels)
            and all(one["key"] == "metadata.name" and _meets(one, node.name) for one in fields)
        ):
            return True
    return False


def offers(place: Json, node: Node) -> bool:
    """Return whether a slice or a device is available on a node according to its own fields."""
    if place.get("nodeName"):
        return bool(place["nodeName"] == node.name)
    if place.get("nodeSelector") is not None:
        return selects(place["nodeSelector"], node)
    return bool(place.get("allNodes"))


def _concerns(spec: Json, node: Node) -> bool:
    """Return whether a slice, or one of its devices, is available on a node."""
    return offers(spec, node) or any(offers(one, node) for one in spec.get("devices") or ())


def requirements(selector: Json) -> Iterator[Json]:
    """Yield the label requirements of a node selector."""
    for term in selector.get("nodeSelectorTerms") or ():
        yield from term.get("matchExpressions") or ()


_SCALARS = ("int", "bool", "string", "version")


@frozen(eq=False)
class Device:
    """A published device, with the data from its slice."""

    key: Key
    spec: Json
    place: Json

    @property
    def is_shared(self) -> bool:
        """Whether several claims may share the device."""
        return bool(self.spec.get("allowMultipleAllocations"))

    @cached_property
    def capacity(self) -> Mapping[str, Json]:
        """The device's capacities, by fully qualified name."""
        return {full_name(name, self.key[0]): one for name, one in (self.spec.get("capacity") or {}).items()}

    @cached_property
    def amounts(self) -> Mapping[str, int]:
        """The total amount of each of the device's capacities."""
        return {name: billionths(one["value"]) for name, one in self.capacity.items()}

    @cached_property
    def counters(self) -> Counter[tuple[str, str]]:
        """The amount of each counter that the device consumes, by set and counter name."""
        return Counter(
            {
                (one["counterSet"], name): billionths(counter["value"])
                for one in self.spec.get("consumesCounters") or ()
                for name, counter in (one.get("counters") or {}).items()
            }
        )

    def values(self, attribute: str, *, with_lists: bool) -> frozenset[tuple[str, object]]:
        """Return an attribute's values and their types, or an empty result if the device lacks the attribute."""
        found = {full_name(name, self.key[0]): one for name, one in (self.spec.get("attributes") or {}).items()}
        value = found.get(attribute) or {}
        single = {(kind, value[kind]) for kind in _SCALARS if value.get(kind) is not None}
        several = {(kind, one) for kind in _SCALARS for one in value.get(f"{kind}s") or ()} if with_lists else set()
        return frozenset(single | several)

    def consumed(self, wanted: Mapping[str, int]) -> dict[str, int] | None:
        """Return how much of each capacity one share consumes, or None if a request policy does not allow it."""
        found = {name: _consumed(one, wanted.get(name)) for name, one in self.capacity.items()}
        return None if None in found.values() else {name: one for name, one in found.items() if one is not None}


def _consumed(capacity: Json, wanted: int | None) -> int | None:
    """Return how much of a capacity a share consumes after rounding by the policy, or None if the policy forbids it."""
    policy, value = capacity.get("requestPolicy") or {}, billionths(capacity["value"])
    if wanted is None:
        return value if policy.get("default") is None else billionths(policy["default"])
    if values := policy.get("validValues"):
        return min((one for one in map(billionths, values) if one >= wanted), default=None)
    if not (limits := policy.get("validRange")):
        return wanted
    least = billionths(limits.get("min") or 0)
    step, most = (None if limits.get(name) is None else billionths(limits[name]) for name in ("step", "max"))
    if wanted < least:
        wanted = least
    elif step:
        wanted = least - (least - wanted) // step * step  # rounded up to the next step
    return None if most is not None and wanted > most else wanted


class View(Enum):
    """Which slices of a pool are considered."""

    CLUSTER = "those of the highest generation, whichever node they are for; they must agree on their number"
    LENIENT = "those of the highest generation; only one of them needs to state the right number"
    NODE = "the highest-generation slices that concern the node; only one of them needs to state the right number"
    NODE_AND_COUNTERS = "the slices of NODE, plus those with counters"


@frozen(eq=False)
class Pool:
    """A pool's highest-generation slices.

    Attributes:
        slices: the `spec`s of the slices.
        node: the node for which claims are judged.
        numbers: the acceptable numbers of slices.
        is_lenient: whether it is enough that one slice states an acceptable number; otherwise, all must state the same.
    """

    slices: Sequence[Json]
    node: Node
    numbers: Sequence[int]
    is_lenient: bool

    @property
    def counts(self) -> set[int]:
        """The values that the pool's slices state as the number of slices."""
        return {one["pool"]["resourceSliceCount"] for one in self.slices}

    @property
    def has_wrong_count(self) -> bool:
        """Whether the pool's slices state different numbers of slices, or there are more slices than they state."""
        return len(self.counts) > 1 or len(self.slices) > max(self.counts)

    @cached_property
    def devices(self) -> Sequence[Device]:
        """All of the pool's devices, whichever nodes they are available on."""
        return [
            Device((one["driver"], one["pool"]["name"], device["name"]), device, place)
            for one in self.slices
            for device in one.get("devices") or ()
            for place in (device if one.get("perDeviceNodeSelection") else one,)
        ]

    @cached_property
    def local(self) -> Sequence[Device]:
        """The devices that are available on the node."""
        return [one for one in self.devices if offers(one.place, self.node)]

    @property
    def concerns_node(self) -> bool:
        """Whether one of the pool's slices or devices is available on the node."""
        return any(_concerns(one, self.node) for one in self.slices)

    @cached_property
    def counters(self) -> Counter[tuple[str, str]]:
        """The total amount of each of the pool's counters."""
        return Counter(
            {
                (one["name"], name): billionths(counter["value"])
                for spec in self.slices
                for one in spec.get("sharedCounters") or ()
                for name, counter in (one.get("counters") or {}).items()
            }
        )

    @cached_property
    def problem(self) -> Rule | None:
        """The rule that prevents the allocation of the pool's devices, or None."""
        is_complete = any(number in self.counts for number in self.numbers)
        if not is_complete or (len(self.counts) > 1 and not self.is_lenient):
            return Rule.COMPLETE
        names = [one.key for one in self.devices]
        if len(names) != len(set(names)):
            return Rule.DEVICE_NAME
        sets = [one["name"] for spec in self.slices for one in spec.get("sharedCounters") or ()]
        if len(sets) != len(set(sets)):
            return Rule.COUNTER_SETS
        referred = {one["counterSet"] for device in self.devices for one in device.spec.get("consumesCounters") or ()}
        if not referred <= set(sets) or any(name not in self.counters for one in self.devices for name in one.counters):
            return Rule.COUNTER_REFERENCE
        return None


def _pools_of(slices: Sequence[Json], node: Node, views: Mapping[PoolKey, View]) -> Mapping[PoolKey, Pool]:
    """Return the pools by driver and name."""
    specs: dict[PoolKey, list[Json]] = {}
    for one in slices:
        specs.setdefault((one["spec"]["driver"], one["spec"]["pool"]["name"]), []).append(one["spec"])
    pools = {}
    for key, some in specs.items():
        view = views.get(key, View.CLUSTER)
        seen = some if view in {View.CLUSTER, View.LENIENT} else [one for one in some if _concerns(one, node)]
        if not seen:
            continue
        newest = max(one["pool"]["generation"] for one in seen)
        everywhere = [one for one in some if one["pool"]["generation"] == newest]
        has_counters = view is View.NODE_AND_COUNTERS
        looked_at = [one for one in everywhere if one in seen or (has_counters and one.get("sharedCounters"))]
        pools[key] = Pool(looked_at, node, (len(looked_at), len(everywhere)), view is not View.CLUSTER)
    return pools


class Cluster:
    """The published devices, and what the cluster's claims already hold."""

    def __init__(self, case: Json, node: Node, views: Mapping[PoolKey, View]) -> None:
        self._with_lists = bool((case.get("features") or {}).get("ListTypeAttributes"))
        self.pools = _pools_of(case["slices"], node, views)
        self.devices = {one.key: one for pool in self.pools.values() for one in pool.devices}
        self.local = [one for pool in self.pools.values() for one in pool.local]
        allocated = case["allocated"]
        self.held = {key_of(one) for one in allocated.get("devices") or ()}
        self.with_shares = {key_of(one) for kind in ("shared", "capacity") for one in allocated.get(kind) or ()}
        self._consumed: Counter[tuple[Key, str]] = Counter()
        for one in allocated.get("capacity") or ():
            for name, amount in one["consumed"].items():
                self._consumed[key_of(one), full_name(name, one["driver"])] += billionths(amount)
        self.used_counters = cache(self._find_used_counters)
        self.kind_of = cache(self._find_kind)

    def pool_of(self, device: Device) -> Pool:
        """Return the pool of a device."""
        return self.pools[device.key[:2]]

    def is_held(self, key: Key) -> bool:
        """Return whether a claim in the cluster holds a device or a share of it."""
        return key in self.held or key in self.with_shares

    def values(self, device: Device, attribute: str) -> frozenset[tuple[str, object]]:
        """Return the values of a device's attribute."""
        return device.values(attribute, with_lists=self._with_lists)

    def consumed_by(self, shares: Iterable[Mapping[str, int]], key: Key) -> Counter[str]:
        """Return how much of each capacity of a device is consumed, including additional shares."""
        consumed = Counter({name: amount for (held, name), amount in self._consumed.items() if held == key})
        for one in shares:
            consumed.update(one)
        return consumed

    def _find_used_counters(self, pool: Pool) -> Counter[tuple[str, str]]:
        """Return how much of a pool's counters the cluster's claims use, whichever nodes their devices are on."""
        used: Counter[tuple[str, str]] = Counter()
        for one in pool.devices:
            if self.is_held(one.key):
                used.update(one.counters)
        return used

    def _find_kind(self, device: Device) -> Hashable:
        spec = {name: value for name, value in device.spec.items() if name != "name"}
        return (
            device.key[:2],
            id(device.place) if device.place is not device.spec else None,
            json.dumps(spec, sort_keys=True),
        )
