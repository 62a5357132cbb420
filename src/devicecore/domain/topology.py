"""The NUMA nodes from which a container's devices should come.

Law: a hint says what could be allocated from a set of NUMA nodes, never what will be. None means that there is no
preference, and an empty tuple that no set of NUMA nodes is possible; every function here distinguishes the two.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache, reduce
from heapq import nsmallest
from itertools import chain, combinations, islice
from operator import or_

from attrs import field, frozen

from devicecore.domain.capacity import pod_request
from devicecore.domain.checks import expected, items, one_of, tuple_of
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.inventory import DeviceReport, Inventory
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import Container, DeviceId, NumaNode, Pod, ResourceName
from devicecore.domain.selection import reusable_devices
from devicecore.domain.text import foreign_text

MAX_MASKS = 10_000
"""Up to this number of sets of NUMA nodes, every set is examined.

With at most 13 NUMA nodes, there are fewer sets than this.
"""

MAX_BEST_MASKS = 1_000
"""If there are more sets of NUMA nodes than `MAX_MASKS`, only this many sets and the set of all nodes are examined."""

MAX_PAIRS = 255 * 255
"""Up to this number of pairs of masks, a merge examines every pair.

With at most 8 NUMA nodes, there are at most this many pairs.
"""

MAX_PARTNERS = 100
"""If there are more pairs than `MAX_PAIRS`, a merge pairs only this many masks from each side."""

MAX_ALLOWABLE_NUMA_NODES = 8
"""The minimum and default of the kubelet's option `max-allowable-numa-nodes`."""

_NONE = DeviceSet()


@frozen(repr=False)
class NumaMask:
    """A set of NUMA nodes as a bit mask. Iteration yields the numbers of the NUMA nodes in ascending order."""

    bits: int

    @classmethod
    def of(cls, numa_nodes: Iterable[NumaNode]) -> "NumaMask":
        """Return the mask of `numa_nodes`. Negative numbers mean no NUMA node and are ignored."""
        return cls(sum({1 << numa_node for numa_node in numa_nodes if numa_node >= 0}))

    def __iter__(self) -> Iterator[NumaNode]:
        return (NumaNode(numa_node) for numa_node in range(self.bits.bit_length()) if self.bits >> numa_node & 1)

    def __contains__(self, numa_node: object) -> bool:
        return isinstance(numa_node, int) and numa_node >= 0 and bool(self.bits >> numa_node & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __and__(self, other: "NumaMask") -> "NumaMask":
        return NumaMask(self.bits & other.bits)

    def __repr__(self) -> str:
        return f"NumaMask({', '.join(map(str, self))})"


@frozen
class TopologyHint:
    """A hint that a request could be met from the NUMA nodes of `mask`, or from any NUMA nodes if `mask` is None.

    `preferred` means that no smaller set of NUMA nodes could meet the request.
    """

    mask: NumaMask | None
    preferred: bool


_Candidates = tuple[tuple[tuple[NumaNode, ...], TopologyHint], ...]

Hints = Mapping[str, Sequence[TopologyHint] | None]
"""The hints of one provider by resource.

None means no preference; an empty sequence means that no set of NUMA nodes is possible.
"""


class Policy(Enum):
    """The kubelet's topology-manager policies."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(Enum):
    """The unit for which hints are merged: each container, or the pod as a whole."""

    CONTAINER = "container"
    POD = "pod"


_TRUE = frozenset(("1", "t", "T", "true", "TRUE", "True"))
_FALSE = frozenset(("0", "f", "F", "false", "FALSE", "False"))
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


@frozen
class PolicyOptions:
    """The options of the topology manager's policy: `topologyManagerPolicyOptions` in a kubelet's configuration."""

    prefer_closest_numa_nodes: bool = False
    max_allowable_numa_nodes: int | None = None

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "PolicyOptions":
        """Return the options with these names and values (kubelet: `NewPolicyOptions`).

        Raises:
            ValueError: an option is unknown, or a kubelet would not accept its value.
        """
        closest, most = False, None
        for name, value in texts.items():
            if name == "prefer-closest-numa-nodes" and value in _TRUE | _FALSE:
                closest = value in _TRUE
            elif name == "max-allowable-numa-nodes" and _WHOLE.fullmatch(value):
                most = _at_least_the_default(int(value))
            else:
                known = {"prefer-closest-numa-nodes": "true or false", "max-allowable-numa-nodes": "a whole number"}
                wanted = known.get(name, f"one of the options {', '.join(known)}")
                raise ValueError(expected(foreign_text(name, 100), wanted, value if name in known else name))
        return cls(closest, most)


def _at_least_the_default(most: int) -> int:
    if most < MAX_ALLOWABLE_NUMA_NODES:
        problem = f"expected max-allowable-numa-nodes of at least {MAX_ALLOWABLE_NUMA_NODES}, got {most}"
        raise ValueError(problem)
    return most


def _numa_nodes(value: Iterable[int]) -> tuple[NumaNode, ...]:
    return tuple(map(NumaNode, tuple_of(value, int, "Topology.numa_nodes")))


def _policy(value: Policy | str) -> Policy:
    return one_of(value, Policy, "Topology.policy")


def _scope(value: Scope | str) -> Scope:
    return one_of(value, Scope, "Topology.scope")


def _distances(value: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    rows = items(value, "Topology.distances")
    return tuple([tuple_of(row, int, "Topology.distances") for row in rows])


@frozen
class Topology:
    """The machine's NUMA nodes in order, and the kubelet's topology manager settings.

    Policy and scope may be given as strings, such as `"best-effort"`. With `distances`, closer NUMA nodes are
    preferred, as with the kubelet's option `prefer-closest-numa-nodes`. The distances between NUMA nodes form a matrix,
    row by row, in the order of `numa_nodes`. `max_numa_nodes` is the option `max-allowable-numa-nodes`; without this
    option, there is no limit.

    Raises:
        TypeError: the NUMA nodes are not an iterable of numbers, or the distances are not rows of numbers.
        ValueError: the policy or scope is unknown, the NUMA nodes are not distinct numbers of at least 0, the
            distances do not fit these NUMA nodes, `max_numa_nodes` is below 8, or there are more NUMA nodes than
            `max_numa_nodes` for a policy other than `none`.
    """

    numa_nodes: tuple[NumaNode, ...] = field(default=(NumaNode(0),), converter=_numa_nodes)
    policy: Policy = field(default=Policy.NONE, converter=_policy)
    scope: Scope = field(default=Scope.CONTAINER, converter=_scope)
    distances: tuple[tuple[int, ...], ...] = field(default=(), converter=_distances, kw_only=True)
    max_numa_nodes: int | None = field(default=None, kw_only=True)

    @numa_nodes.validator
    def _are_nodes(self, _: object, numa_nodes: tuple[NumaNode, ...]) -> None:
        if not numa_nodes or min(numa_nodes) < 0 or len(set(numa_nodes)) < len(numa_nodes):
            problem = f"expected one or more different NUMA nodes, none below 0, got {list(numa_nodes)}"
            raise ValueError(problem)

    @distances.validator
    def _are_of_the_nodes(self, _: object, distances: tuple[tuple[int, ...], ...]) -> None:
        count = len(self.numa_nodes)
        if distances and ({len(distances), *map(len, distances)} != {count} or min(map(min, distances)) < 0):
            problem = (
                f"expected {count} rows of {count} distances, one for each NUMA node and none below 0, "
                f"got {list(map(list, distances))!r:.200}"
            )
            raise ValueError(problem)

    @max_numa_nodes.validator
    def _allows_the_nodes(self, _: object, most: int | None) -> None:
        if most is None or _at_least_the_default(most) >= len(self.numa_nodes):
            return
        if self.policy is not Policy.NONE:  # NewManager checks the number of NUMA nodes only for these policies
            problem = f"expected at most {most} NUMA nodes (max-allowable-numa-nodes), got {len(self.numa_nodes)}"
            raise ValueError(problem)


def device_hints(
    pod: Pod, container: Container | None, inventory: Inventory, ledger: Ledger, numa_nodes: Sequence[NumaNode]
) -> dict[str, tuple[TopologyHint, ...] | None]:
    """Return hints for each device resource that `container` requests.

    If `container` is None, the hints are for what the whole pod requests.

    Kubelet: `GetTopologyHints` and `GetPodTopologyHints` (kubelet.md 6.1).
    """
    limits = pod_request(pod) if container is None else container.limits
    return {
        name: _hints(pod, container, ResourceName(name), size, inventory, ledger=ledger, numa_nodes=numa_nodes)
        for name, size in sorted(limits.items())
        if inventory.current_report(ResourceName(name)) is not None or name in ledger.resources
    }


def _hints(
    pod: Pod,
    container: Container | None,
    resource: ResourceName,
    size: int,
    inventory: Inventory,
    *,
    ledger: Ledger,
    numa_nodes: Sequence[NumaNode],
) -> tuple[TopologyHint, ...] | None:
    report = inventory.last_report(resource)
    if report is None or not report.has_topology:
        return None
    held = ledger.of_container(pod.key(container)) if container else ledger.of_pod(pod.uid)
    if own := reduce(or_, [one.devices for one in held if one.resource == resource], _NONE):
        return generate_hints(report, own, _NONE, size, numa_nodes) if len(own) == size else ()
    available = report.healthy - ledger.in_use(resource)
    reusable = reusable_devices(pod, pod.key(container), resource, ledger) if container else _NONE
    if reusable and len(available | reusable) < size:
        return ()
    return generate_hints(report, available, reusable, size, numa_nodes)


def generate_hints(
    report: DeviceReport, available: DeviceSet, reusable: DeviceSet, size: int, numa_nodes: Sequence[NumaNode]
) -> tuple[TopologyHint, ...]:
    """Return hints for `size` devices, smallest masks first (kubelet: `generateDeviceTopologyHints`, kubelet.md 6.2).

    Only NUMA nodes with devices of the resource are combined, or all NUMA nodes if none has such devices. `_masks` says
    which sets are examined if there are more than `MAX_MASKS`.
    """
    must_reuse: Sequence[DeviceId] = ()
    if reusable:
        listed = (report.devices[device] for device in reusable if device in report.devices)
        must_reuse = [device.id for device in listed if device.topology is not None]
    per_node, machine = report.numa_node_sizes, tuple(numa_nodes)
    # The fast path below requires that each device is on one NUMA node and that no device has to be reused.
    if must_reuse or per_node is None or report.by_numa_node.keys().isdisjoint(machine):
        with_devices = tuple([numa_node for numa_node in report.by_numa_node if numa_node in machine]) or machine
        return _hints_by_sets(report, available, must_reuse, size, with_devices)
    free = {numa_node: available.common(devices) for numa_node, devices in report.by_numa_node.items()}
    if 1 << len(per_node) <= MAX_MASKS:
        candidates = _all_candidates(per_node, machine, size)
    else:
        on_machine = {numa_node: count for numa_node, count in per_node if numa_node in machine}
        candidates = _candidates(_masks(tuple(on_machine), on_machine, free, size), on_machine.values(), size)
    return tuple([hint for combined, hint in candidates if sum(map(free.__getitem__, combined)) >= size])


@lru_cache(maxsize=16)
def _all_candidates(
    per_node: tuple[tuple[NumaNode, int], ...], numa_nodes: tuple[NumaNode, ...], size: int
) -> _Candidates:
    on_machine = {numa_node: count for numa_node, count in per_node if numa_node in numa_nodes}
    return _candidates(_all_masks(tuple(on_machine)), on_machine.values(), size)


def _candidates(masks: Iterable["_Mask"], per_node: Collection[int], size: int) -> _Candidates:
    """Return sets of NUMA nodes, each with the hint to give if enough devices are free there."""
    least = _fewest(per_node, size)
    return tuple([(mask.numa_nodes, mask.preferred if len(mask.numa_nodes) == least else mask.other) for mask in masks])


def _hints_by_sets(
    report: DeviceReport,
    available: DeviceSet,
    must_reuse: Sequence[DeviceId],
    size: int,
    numa_nodes: tuple[NumaNode, ...],
) -> tuple[TopologyHint, ...]:
    """Return the hints in the general case, in which devices may be on several NUMA nodes, or may have to be reused."""
    known = {numa_node: report.by_numa_node.get(numa_node, DeviceSet(report.index)) for numa_node in numa_nodes}
    per_node = {numa_node: len(devices) for numa_node, devices in known.items()}
    free = {numa_node: available.common(devices) for numa_node, devices in known.items()}
    least = len(numa_nodes)
    reused = report.index.select(must_reuse)
    found: list[_Mask] = []
    for mask in _masks(numa_nodes, per_node, free, size):
        touched = reduce(or_, [known[numa_node] for numa_node in mask.numa_nodes])
        if len(mask.numa_nodes) < least and len(touched) >= size:
            least = len(mask.numa_nodes)
        if len(available & touched) >= size - len(must_reuse) and reused <= touched:
            found.append(mask)
    return tuple([mask.preferred if len(mask.numa_nodes) == least else mask.other for mask in found])


@frozen
class _Mask:
    """A set of NUMA nodes with its two possible hints."""

    numa_nodes: tuple[NumaNode, ...]
    preferred: TopologyHint
    other: TopologyHint

    @classmethod
    def of(cls, numa_nodes: tuple[NumaNode, ...]) -> "_Mask":
        mask = NumaMask.of(numa_nodes)
        return cls(numa_nodes, TopologyHint(mask, preferred=True), TopologyHint(mask, preferred=False))


def _masks(
    numa_nodes: tuple[NumaNode, ...], per_node: Mapping[NumaNode, int], free: Mapping[NumaNode, int], size: int
) -> Iterable[_Mask]:
    """Return the sets of NUMA nodes to examine, smallest first.

    If there are at most `MAX_MASKS` sets, all are returned. Otherwise, sets that are too small for the request are left
    out. Among sets of the same width, those whose NUMA nodes have more free devices come first. After `MAX_BEST_MASKS`
    sets, only the set of all NUMA nodes follows.
    """
    if 1 << len(numa_nodes) <= MAX_MASKS:
        return _all_masks(numa_nodes)
    first = sorted(numa_nodes, key=lambda numa_node: -free[numa_node])
    possible = range(_fewest(per_node.values(), size), len(numa_nodes))
    combined = chain.from_iterable(combinations(first, width) for width in possible)
    return map(_Mask.of, chain(islice(combined, MAX_BEST_MASKS), [numa_nodes]))


@lru_cache(maxsize=4)
def _all_masks(numa_nodes: tuple[NumaNode, ...]) -> tuple[_Mask, ...]:
    widths = range(1, len(numa_nodes) + 1)
    return tuple(map(_Mask.of, chain.from_iterable(combinations(numa_nodes, width) for width in widths)))


def _fewest(per_node: Collection[int], size: int) -> int:
    """Return the smallest number of NUMA nodes that together have `size` devices.

    If all NUMA nodes together have fewer devices, return the number of NUMA nodes.
    """
    total = 0
    for count, more in enumerate(sorted(per_node, reverse=True), start=1):
        total += more
        if total >= size:
            return count
    return len(per_node)


def merge(topology: Topology, providers: Iterable[Hints]) -> tuple[TopologyHint, bool]:
    """Choose one hint, and say whether the policy admits the hint (kubelet: topology manager, kubelet.md 6.3).

    If the policy is `none`, the hint has no mask.
    """
    if topology.policy is Policy.NONE:
        return TopologyHint(None, preferred=True), True
    everywhere = NumaMask.of(topology.numa_nodes)
    hint_lists = [_at_least_one(hints) for provider in providers for hints in (list(provider.values()) or [None])]
    if topology.policy is Policy.SINGLE_NUMA_NODE:
        hint_lists = [
            [hint for hint in hints if hint.preferred and (not hint.mask or len(hint.mask) == 1)]
            for hints in hint_lists
        ]
    best = _best(everywhere, hint_lists, _distance_within(topology))
    if topology.policy is Policy.SINGLE_NUMA_NODE and best.mask == everywhere:
        best = TopologyHint(None, best.preferred)
    return best, best.preferred or topology.policy is Policy.BEST_EFFORT


def _at_least_one(hints: Sequence[TopologyHint] | None) -> Sequence[TopologyHint]:
    """Return a provider's hints for one resource, or a hint without a mask if there are none."""
    return hints or (TopologyHint(None, preferred=hints is None),)


_Distance = Callable[[int], int]
"""How far apart the NUMA nodes of a mask are. This measure is used only to compare masks of the same width."""


def _distance_within(topology: Topology) -> _Distance:
    """Return a function that computes the distance of a mask (kubelet: `CalculateAverageFor`).

    The distance is 0 unless closer NUMA nodes are preferred.
    """
    # NewHintMerger ignores the option if the policy allows only one NUMA node.
    if not topology.distances or topology.policy is Policy.SINGLE_NUMA_NODE:
        return lambda _: 0
    rows = {
        1 << here: {1 << there: distance for there, distance in zip(topology.numa_nodes, row, strict=True)}
        for here, row in zip(topology.numa_nodes, topology.distances, strict=True)
    }

    def distance(bits: int) -> int:
        return sum(one for here, row in rows.items() if here & bits for there, one in row.items() if there & bits)

    return distance


def _best(
    everywhere: NumaMask, hint_lists: Sequence[Sequence[TopologyHint]], distance_within: _Distance
) -> TopologyHint:
    """Return the best combination of one hint from each list.

    The mask of a combined hint is the intersection of the masks of its hints. A combined hint is preferred only if
    every list prefers its mask. Such masks are searched for first, because finding them does not require combining
    hints.
    """
    preferred = _preferred_by_all(everywhere, hint_lists)
    if preferred:
        return TopologyHint(min(preferred, key=lambda mask: _rank_of_preferred(mask, distance_within)), preferred=True)
    narrowest = [min((len(hint.mask) for hint in hints if hint.mask), default=0) for hints in hint_lists]
    best_width = max(narrowest, default=0)

    def rank(bits: int) -> tuple[int, ...]:
        return _rank_of_others(bits, best_width, distance_within)

    common = {everywhere.bits}
    for hints in hint_lists:
        masks = {everywhere.bits if hint.mask is None else hint.mask.bits & everywhere.bits for hint in hints}
        if len(common) * len(masks) > MAX_PAIRS:
            common, masks = _best_of(common, rank), _best_of(masks, rank)
        common = {one & other for one in common for other in masks} - {0}
    return TopologyHint(NumaMask(min(common, key=rank)) if common else everywhere, preferred=False)


def _preferred_by_all(everywhere: NumaMask, hint_lists: Sequence[Sequence[TopologyHint]]) -> list[NumaMask]:
    """Return the masks that every list prefers. A list prefers every mask if one of its preferred hints has no mask."""
    masks_of = [{hint.mask for hint in hints if hint.preferred and hint.mask is not None} for hints in hint_lists]
    prefer_any = [any(hint.preferred and hint.mask is None for hint in hints) for hints in hint_lists]
    restricted = [masks for masks, any_mask in zip(masks_of, prefer_any, strict=True) if not any_mask]
    # If every list prefers every mask, the candidates are all preferred masks, and the mask of all NUMA nodes.
    candidates = set.intersection(*restricted) if restricted else {everywhere}.union(*masks_of)
    return [mask & everywhere for mask in candidates if (mask & everywhere).bits]


def _best_of(masks: set[int], rank: Callable[[int], tuple[int, ...]]) -> set[int]:
    """Return the `MAX_PARTNERS` - 1 best masks, and the widest mask, because it intersects most other masks."""
    return {*nsmallest(MAX_PARTNERS - 1, masks, key=rank), max(sorted(masks), key=int.bit_count, default=0)}


def _rank_of_preferred(mask: NumaMask, distance_within: _Distance) -> tuple[int, int, int]:
    """Return the sort key for preferred masks: narrower masks first, then closer ones, then smaller numbers."""
    return len(mask), distance_within(mask.bits), mask.bits


def _rank_of_others(bits: int, best_width: int, distance_within: _Distance) -> tuple[bool, int, int, int]:
    """Return the sort key for masks that are not preferred.

    Masks of exactly `best_width` NUMA nodes come first, then narrower ones (the widest first), then wider ones (the
    narrowest first). Ties are broken in favor of the closer mask, then of the smaller number.
    """
    width = bits.bit_count()
    above = width > best_width
    return above, width if above else -width, distance_within(bits), bits
