"""The NUMA nodes from which a container's devices should come.

Law: a hint says what could be allocated from a set of NUMA nodes, never what will be. None means that there is no
preference, and an empty tuple that no set of NUMA nodes is possible; every function here keeps them apart.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache, reduce
from heapq import nsmallest
from itertools import chain, combinations, islice
from operator import or_

from attrs import field, frozen

from devicecore.domain.capacity import pod_request
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.inventory import DeviceReport, Inventory
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import Container, DeviceId, NumaNode, Pod, ResourceName
from devicecore.domain.selection import reusable_devices

MAX_MASKS = 10_000
"""Sets of NUMA nodes that are all examined for one resource: those of a machine with up to 13 NUMA nodes."""

MAX_BEST_MASKS = 1_000
"""Sets of NUMA nodes that are examined if there are more than `MAX_MASKS`."""

MAX_PAIRS = 255 * 255
"""Pairs of masks that are all examined when hints are merged that are not preferred: those of up to 8 NUMA nodes."""

MAX_PARTNERS = 100
"""Masks on each side whose pairs are examined if there are more than `MAX_PAIRS`."""

_NONE = DeviceSet()


@frozen(repr=False)
class NumaMask:
    """A set of NUMA nodes as a bit mask. Iteration is in the order of the numbers."""

    bits: int

    @classmethod
    def of(cls, nodes: Iterable[NumaNode]) -> "NumaMask":
        """The mask of `nodes`. Numbers below 0 stand for no NUMA node and are ignored."""
        return cls(sum({1 << node for node in nodes if node >= 0}))

    def __iter__(self) -> Iterator[NumaNode]:
        return (NumaNode(node) for node in range(self.bits.bit_length()) if self.bits >> node & 1)

    def __contains__(self, node: object) -> bool:
        return isinstance(node, int) and node >= 0 and bool(self.bits >> node & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __and__(self, other: "NumaMask") -> "NumaMask":
        return NumaMask(self.bits & other.bits)

    def __repr__(self) -> str:
        return f"NumaMask({', '.join(map(str, self))})"


@frozen
class TopologyHint:
    """The request could be met from the NUMA nodes of `mask` (None: from any). `preferred`: from no smaller set."""

    mask: NumaMask | None
    preferred: bool


_Candidates = tuple[tuple[tuple[NumaNode, ...], TopologyHint], ...]

Hints = Mapping[str, Sequence[TopologyHint] | None]
"""The hints of one provider by resource. None is no preference; an empty sequence cannot be met."""


class Policy(Enum):
    """The kubelet's topology-manager policies."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(Enum):
    """What hints are merged for: each container, or the pod as a whole."""

    CONTAINER = "container"
    POD = "pod"


def _numa_nodes(value: Iterable[int]) -> tuple[NumaNode, ...]:
    return tuple(map(NumaNode, value))


def _policy(value: Policy | str) -> Policy:
    return Policy(value)


def _scope(value: Scope | str) -> Scope:
    return Scope(value)


@frozen
class Topology:
    """The machine's NUMA nodes in their order, and the policy and scope of the kubelet's configuration.

    Policy and scope may be given as texts, such as `"best-effort"`.

    Raises:
        ValueError: there is no such policy or scope, or the NUMA nodes are not different numbers of at least 0.
    """

    numa_nodes: tuple[NumaNode, ...] = field(default=(NumaNode(0),), converter=_numa_nodes)
    policy: Policy = field(default=Policy.NONE, converter=_policy)
    scope: Scope = field(default=Scope.CONTAINER, converter=_scope)

    @numa_nodes.validator
    def _are_nodes(self, _: object, nodes: tuple[NumaNode, ...]) -> None:
        if not nodes or min(nodes) < 0 or len(set(nodes)) < len(nodes):
            problem = f"expected one or more different NUMA nodes, none below 0, got {list(nodes)}"
            raise ValueError(problem)


def container_hints(
    pod: Pod, container: Container, inventory: Inventory, ledger: Ledger, numa_nodes: Sequence[NumaNode]
) -> dict[str, tuple[TopologyHint, ...] | None]:
    """Hints for each device resource that a container requests (kubelet: `GetTopologyHints`, kubelet.md 6.1)."""
    key = pod.key(container)
    hints: dict[str, tuple[TopologyHint, ...] | None] = {}
    for resource, size in _device_requests(container.limits, inventory, ledger):
        allocation = ledger.allocation(key, resource)
        held = allocation.devices if allocation else _NONE
        reusable = reusable_devices(pod, key, resource, ledger)
        hints[resource] = _hints(inventory, ledger, resource, size, held=held, reusable=reusable, numa_nodes=numa_nodes)
    return hints


def pod_hints(
    pod: Pod, inventory: Inventory, ledger: Ledger, numa_nodes: Sequence[NumaNode]
) -> dict[str, tuple[TopologyHint, ...] | None]:
    """Hints for each device resource that a whole pod requests (kubelet: `GetPodTopologyHints`, kubelet.md 6.1)."""
    hints: dict[str, tuple[TopologyHint, ...] | None] = {}
    for resource, size in _device_requests(pod_request(pod), inventory, ledger):
        held = _NONE
        for allocation in ledger.of_pod(pod.uid):
            if allocation.resource == resource:
                held |= allocation.devices
        hints[resource] = _hints(inventory, ledger, resource, size, held=held, reusable=_NONE, numa_nodes=numa_nodes)
    return hints


def _device_requests(limits: Mapping[str, int], inventory: Inventory, ledger: Ledger) -> list[tuple[ResourceName, int]]:
    return [
        (ResourceName(name), size)
        for name, size in sorted(limits.items())
        if inventory.current_report(ResourceName(name)) is not None or name in ledger.resources
    ]


def _hints(
    inventory: Inventory,
    ledger: Ledger,
    resource: ResourceName,
    size: int,
    *,
    held: DeviceSet,
    reusable: DeviceSet,
    numa_nodes: Sequence[NumaNode],
) -> tuple[TopologyHint, ...] | None:
    report = inventory.last_report(resource)
    if report is None or not report.has_topology:
        return None
    if held:
        return generate_hints(report, held, _NONE, size, numa_nodes) if len(held) == size else ()
    available = report.healthy - ledger.in_use(resource)
    if reusable and len(available | reusable) < size:
        return ()
    return generate_hints(report, available, reusable, size, numa_nodes)


def generate_hints(
    report: DeviceReport, available: DeviceSet, reusable: DeviceSet, size: int, numa_nodes: Sequence[NumaNode]
) -> tuple[TopologyHint, ...]:
    """Hints for `size` devices, smallest masks first (kubelet: `generateDeviceTopologyHints`, kubelet.md 6.2).

    Only NUMA nodes with devices of the resource are combined. `_masks` says which sets are examined if there are more
    than `MAX_MASKS`.
    """
    anchored: Sequence[DeviceId] = ()
    if reusable:
        listed = (report.devices[device] for device in reusable if device in report.devices)
        anchored = [device.id for device in listed if device.topology is not None]
    sizes, machine = report.numa_node_sizes, tuple(numa_nodes)
    if anchored or sizes is None or report.by_numa_node.keys().isdisjoint(machine):
        nodes = tuple([node for node in report.by_numa_node if node in machine]) or machine
        return _hints_by_sets(report, available, anchored, size, nodes)
    free = {node: available.common(devices) for node, devices in report.by_numa_node.items()}
    if 1 << len(sizes) <= MAX_MASKS:
        candidates = _all_candidates(sizes, machine, size)
    else:
        on_machine = {node: count for node, count in sizes if node in machine}
        candidates = _candidates(_masks(tuple(on_machine), on_machine, free, size), on_machine.values(), size)
    return tuple([hint for nodes, hint in candidates if sum(map(free.__getitem__, nodes)) >= size])


@lru_cache(maxsize=16)
def _all_candidates(
    sizes: tuple[tuple[NumaNode, int], ...], numa_nodes: tuple[NumaNode, ...], size: int
) -> _Candidates:
    on_machine = {node: count for node, count in sizes if node in numa_nodes}
    return _candidates(_all_masks(tuple(on_machine)), on_machine.values(), size)


def _candidates(masks: Iterable["_Mask"], sizes: Collection[int], size: int) -> _Candidates:
    """Sets of NUMA nodes, each with its hint if enough devices are free there."""
    least = _fewest(sizes, size)
    return tuple([(mask.numa_nodes, mask.preferred if len(mask.numa_nodes) == least else mask.other) for mask in masks])


def _hints_by_sets(
    report: DeviceReport, available: DeviceSet, anchored: Sequence[DeviceId], size: int, nodes: tuple[NumaNode, ...]
) -> tuple[TopologyHint, ...]:
    """Hints for devices that are on several NUMA nodes at once, or if devices of the pod must be reused."""
    known = {node: report.by_numa_node.get(node, DeviceSet(report.index)) for node in nodes}
    sizes = {node: len(devices) for node, devices in known.items()}
    free = {node: available.common(devices) for node, devices in known.items()}
    least = _fewest_nodes(known, size)
    reused = report.index.select(anchored)
    found: list[_Mask] = []
    for mask in _masks(nodes, sizes, free, size):
        touched = reduce(or_, [known[node] for node in mask.numa_nodes])
        if len(mask.numa_nodes) < least and len(touched) >= size:
            least = len(mask.numa_nodes)
        if len(available & touched) >= size - len(anchored) and reused <= touched:
            found.append(mask)
    return tuple([mask.preferred if len(mask.numa_nodes) == least else mask.other for mask in found])


@frozen
class _Mask:
    """A set of NUMA nodes with its two possible hints."""

    numa_nodes: tuple[NumaNode, ...]
    preferred: TopologyHint
    other: TopologyHint

    @classmethod
    def of(cls, nodes: tuple[NumaNode, ...]) -> "_Mask":
        mask = NumaMask.of(nodes)
        return cls(nodes, TopologyHint(mask, preferred=True), TopologyHint(mask, preferred=False))


def _masks(
    nodes: tuple[NumaNode, ...], sizes: Mapping[NumaNode, int], free: Mapping[NumaNode, int], size: int
) -> Iterable[_Mask]:
    """The sets of NUMA nodes to examine, smallest first.

    If there are up to `MAX_MASKS`, these are all. Otherwise sets that are too small for the request are left out, sets
    of NUMA nodes with more free devices come first within a size, and after `MAX_BEST_MASKS` sets only that of all NUMA
    nodes follows.
    """
    if 1 << len(nodes) <= MAX_MASKS:
        return _all_masks(nodes)
    first = sorted(nodes, key=lambda node: -free[node])
    possible = range(_fewest(sizes.values(), size), len(nodes))
    combined = chain.from_iterable(combinations(first, count) for count in possible)
    return map(_Mask.of, chain(islice(combined, MAX_BEST_MASKS), [nodes]))


@lru_cache(maxsize=4)
def _all_masks(nodes: tuple[NumaNode, ...]) -> tuple[_Mask, ...]:
    sizes = range(1, len(nodes) + 1)
    return tuple(map(_Mask.of, chain.from_iterable(combinations(nodes, count) for count in sizes)))


def _fewest_nodes(known: Mapping[NumaNode, DeviceSet], size: int) -> int:
    """As `_fewest`, but a device may be on several NUMA nodes."""
    touched = DeviceSet()
    for count, devices in enumerate(sorted(known.values(), key=len, reverse=True), start=1):
        touched |= devices
        if len(touched) >= size:
            return count
    return len(known)


def _fewest(sizes: Collection[int], size: int) -> int:
    """The number of NUMA nodes that have `size` devices together, largest first; all of them if they have fewer."""
    held = 0
    for count, more in enumerate(sorted(sizes, reverse=True), start=1):
        held += more
        if held >= size:
            return count
    return len(sizes)


def merge(topology: Topology, providers: Iterable[Hints]) -> tuple[TopologyHint, bool]:
    """Choose one hint, and say whether the policy admits it (kubelet: topology manager, kubelet.md 6.3).

    If the policy is `none`, the hint has no mask.
    """
    if topology.policy is Policy.NONE:
        return TopologyHint(None, preferred=True), True
    everywhere = NumaMask.of(topology.numa_nodes)
    wishes = [_wish(wish) for hints in providers for wish in (list(hints.values()) or [None])]
    if topology.policy is Policy.SINGLE_NUMA_NODE:
        wishes = [
            [hint for hint in wish if hint.preferred and (not hint.mask or len(hint.mask) == 1)] for wish in wishes
        ]
    best = _best(everywhere, wishes)
    if topology.policy is Policy.SINGLE_NUMA_NODE and best.mask == everywhere:
        best = TopologyHint(None, best.preferred)
    return best, best.preferred or topology.policy is Policy.BEST_EFFORT


def _wish(hints: Sequence[TopologyHint] | None) -> Sequence[TopologyHint]:
    """The hints of a provider for one resource: always at least one."""
    return hints or (TopologyHint(None, preferred=hints is None),)


def _best(everywhere: NumaMask, wishes: Sequence[Sequence[TopologyHint]]) -> TopologyHint:
    """The best hint of all that are made of one hint of each wish, by intersecting their masks.

    Only a mask that all wishes prefer is preferred, so such masks are found first, without combining any.
    """
    alike = _preferred_by_all(everywhere, wishes)
    if alike:
        return min(alike, key=_rank_of_preferred)
    narrowest = [min((len(hint.mask) for hint in wish if hint.mask), default=0) for wish in wishes]
    fitting = max(narrowest, default=0)

    def rank(bits: int) -> tuple[int, ...]:
        return _rank_of_others(bits, fitting)

    common = {everywhere.bits}
    for wish in wishes:
        masks = {everywhere.bits if hint.mask is None else hint.mask.bits & everywhere.bits for hint in wish}
        if len(common) * len(masks) > MAX_PAIRS:
            common, masks = _best_of(common, rank), _best_of(masks, rank)
        common = {one & other for one in common for other in masks} - {0}
    return TopologyHint(NumaMask(min(common, key=rank)) if common else everywhere, preferred=False)


def _preferred_by_all(everywhere: NumaMask, wishes: Sequence[Sequence[TopologyHint]]) -> list[TopologyHint]:
    """The preferred hints that are in every wish. A wish that prefers any NUMA node has them all."""
    named = [{hint.mask for hint in wish if hint.preferred and hint.mask is not None} for wish in wishes]
    has_none = [any(hint.preferred and hint.mask is None for hint in wish) for wish in wishes]
    demanding = [masks for masks, none in zip(named, has_none, strict=True) if not none]
    # If no wish demands a mask, a mask that some wishes prefer is as good as none.
    alike = set.intersection(*demanding) if demanding else {everywhere}.union(*named)
    return [TopologyHint(mask & everywhere, preferred=True) for mask in alike if (mask & everywhere).bits]


def _best_of(masks: set[int], rank: Callable[[int], tuple[int, ...]]) -> set[int]:
    """The best masks, few enough that all pairs can be examined, and the widest, because it intersects most others."""
    return {*nsmallest(MAX_PARTNERS - 1, masks, key=rank), max(sorted(masks), key=int.bit_count, default=0)}


def _rank_of_preferred(hint: TopologyHint) -> tuple[int, int]:
    """Sort key: the narrowest mask is best; among equals, the smaller number."""
    mask = hint.mask or NumaMask(0)
    return len(mask), mask.bits


def _rank_of_others(bits: int, fitting: int) -> tuple[bool, int, int]:
    """Sort key of masks that are not preferred; the smallest key is best.

    First masks of exactly `fitting` NUMA nodes, then the widest below that, then the narrowest above it. Among equals,
    the smaller number is best.
    """
    width = bits.bit_count()
    above = width > fitting
    return above, width if above else -width, bits
