"""Which NUMA nodes a container's devices should come from.

Law: a hint says what could be allocated from a set of NUMA nodes, never what will be. No hint at all (None) and no
possible hint (an empty tuple) mean opposite things, and stay apart everywhere here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import reduce
from itertools import chain, combinations, islice, product
from operator import and_, or_

from attrs import frozen

from devicecore.domain.capacity import pod_request
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.inventory import DeviceReport, Inventory
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import Container, NumaNode, Pod, ResourceName
from devicecore.domain.selection import reusable_devices

MOST_MASKS = 10_000
"""How many sets of NUMA nodes are looked at for one resource: all there are on a machine with up to 13 nodes."""


@frozen(repr=False)
class NumaMask:
    """A set of NUMA nodes as a bit mask: iterates in the order of the nodes."""

    bits: int

    @classmethod
    def of(cls, nodes: Iterable[NumaNode]) -> "NumaMask":
        """The mask of `nodes`; those below 0 name no node and are left out."""
        return cls(sum({1 << node for node in nodes if node >= 0}))

    def __iter__(self) -> Iterator[NumaNode]:
        return (NumaNode(node) for node in range(self.bits.bit_length()) if self.bits >> node & 1)

    def __contains__(self, node: object) -> bool:
        return isinstance(node, int) and node >= 0 and bool(self.bits >> node & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __and__(self, other: "NumaMask") -> "NumaMask":
        return NumaMask(self.bits & other.bits)

    def is_narrower_than(self, other: "NumaMask") -> bool:
        """Whether it has fewer nodes or, of the same number, the smaller value (kubelet: `IsNarrowerThan`)."""
        return (len(self), self.bits) < (len(other), other.bits)

    def __repr__(self) -> str:
        return f"NumaMask({', '.join(map(str, self))})"


@frozen
class TopologyHint:
    """That a request could be met from the nodes of `mask` (None: from anywhere), and whether no smaller mask could."""

    mask: NumaMask | None
    preferred: bool


Hints = Mapping[str, Sequence[TopologyHint] | None]
"""What one hint provider says of each resource: None has no preference, an empty sequence cannot be met."""


class Policy(Enum):
    """The kubelet's topology-manager policies."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(Enum):
    """Whether hints are merged for each container, or once for the whole pod."""

    CONTAINER = "container"
    POD = "pod"


@frozen
class Topology:
    """The machine's NUMA nodes, in its order, and how the node's configuration wants them used."""

    numa_nodes: tuple[NumaNode, ...] = (NumaNode(0),)
    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER


def container_hints(
    pod: Pod, container: Container, inventory: Inventory, ledger: Ledger, numa_nodes: Sequence[NumaNode]
) -> dict[str, tuple[TopologyHint, ...] | None]:
    """Hints for each device resource a container asks for (kubelet: `GetTopologyHints`, reference 6.1)."""
    key = pod.key(container)
    hints: dict[str, tuple[TopologyHint, ...] | None] = {}
    for resource, size in _device_requests(container.limits, inventory, ledger):
        allocation = ledger.allocation(key, resource)
        held = allocation.devices if allocation else DeviceSet()
        reusable = reusable_devices(pod, key, resource, ledger)
        hints[resource] = _hints(inventory, ledger, resource, size, held=held, reusable=reusable, numa_nodes=numa_nodes)
    return hints


def pod_hints(
    pod: Pod, inventory: Inventory, ledger: Ledger, numa_nodes: Sequence[NumaNode]
) -> dict[str, tuple[TopologyHint, ...] | None]:
    """Hints for each device resource a pod asks for as a whole (kubelet: `GetPodTopologyHints`, reference 6.1)."""
    hints: dict[str, tuple[TopologyHint, ...] | None] = {}
    for resource, size in _device_requests(pod_request(pod), inventory, ledger):
        held = DeviceSet()
        for allocation in ledger.allocations.get(pod.uid, ()):
            if allocation.resource == resource:
                held |= allocation.devices
        hints[resource] = _hints(
            inventory, ledger, resource, size, held=held, reusable=DeviceSet(), numa_nodes=numa_nodes
        )
    return hints


def _device_requests(
    limits: Mapping[str, int], inventory: Inventory, ledger: Ledger
) -> Iterator[tuple[ResourceName, int]]:
    for resource, size in sorted(limits.items()):
        name = ResourceName(resource)
        if inventory.registered(name) is not None or name in ledger.resources:
            yield name, size


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
    report = inventory.registered(resource)
    if report is None or not report.has_topology:
        return None
    if held:
        return generate_hints(report, held, DeviceSet(), size, numa_nodes) if len(held) == size else ()
    available = report.healthy - ledger.in_use(resource)
    if len(available | reusable) < size:
        return ()
    return generate_hints(report, available, reusable, size, numa_nodes)


def generate_hints(
    report: DeviceReport, available: DeviceSet, reusable: DeviceSet, size: int, numa_nodes: Sequence[NumaNode]
) -> tuple[TopologyHint, ...]:
    """Hints for `size` devices, smallest masks first (kubelet: `generateDeviceTopologyHints`, reference 6.2).

    Only nodes that carry devices of the resource are combined. Where that leaves more than `MOST_MASKS` masks, see
    `_masks` for those that are looked at.
    """
    nodes = [node for node in report.by_node if node in numa_nodes] or list(numa_nodes)
    known = {node: report.by_node.get(node, DeviceSet(report.index)) for node in nodes}
    listed = (report.devices[device] for device in reusable if device in report.devices)
    anchored = [device.id for device in listed if device.topology is not None]
    needed = size - len(anchored)
    least = _fewest_nodes(known, size)
    found: list[NumaMask] = []
    for combined in _masks(known, available, size):
        touched = reduce(or_, (known[node] for node in combined))
        if len(combined) < least and len(touched) >= size:
            least = len(combined)
        if len(available & touched) >= needed and all(device in touched for device in anchored):
            found.append(NumaMask.of(combined))
    return tuple(TopologyHint(mask, len(mask) == least) for mask in found)


def _masks(known: Mapping[NumaNode, DeviceSet], available: DeviceSet, size: int) -> Iterator[tuple[NumaNode, ...]]:
    """The sets of nodes to look at, smallest first.

    All there are, up to `MOST_MASKS`. Beyond that: sizes that cannot hold the request are passed over, nodes with more
    available devices come first within a size, and when the bound is reached only the set of all nodes is added.
    """
    nodes = list(known)
    sizes = range(1, len(nodes) + 1)
    if 1 << len(nodes) <= MOST_MASKS:
        yield from chain.from_iterable(combinations(nodes, count) for count in sizes)
        return
    nodes.sort(key=lambda node: -len(available & known[node]))
    most = sorted((len(devices) for devices in known.values()), reverse=True)
    possible = (count for count in sizes[:-1] if sum(most[:count]) >= size)
    yield from islice(chain.from_iterable(combinations(nodes, count) for count in possible), MOST_MASKS)
    yield tuple(nodes)


def _fewest_nodes(known: Mapping[NumaNode, DeviceSet], size: int) -> int:
    """How many nodes hold `size` devices, taking those with most devices first; all nodes if none do."""
    touched = DeviceSet()
    for count, devices in enumerate(sorted(known.values(), key=len, reverse=True), start=1):
        touched |= devices
        if len(touched) >= size:
            return count
    return len(known)


def merge(topology: Topology, providers: Iterable[Hints]) -> tuple[TopologyHint, bool]:
    """Settle on one hint, and whether it is good enough to admit (kubelet: topology manager, reference 6.3).

    With the policy `none` the hint has no mask.
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
    """What a provider says of one resource, always as at least one hint."""
    return hints or (TopologyHint(None, preferred=hints is None),)


def _best(everywhere: NumaMask, wishes: Sequence[Sequence[TopologyHint]]) -> TopologyHint:
    narrowest = [min((len(hint.mask) for hint in wish if hint.mask), default=0) for wish in wishes]
    fitting = max(narrowest, default=0)
    best: TopologyHint | None = None
    for members in product(*wishes):
        masks = [hint.mask for hint in members if hint.mask is not None]
        preferred = all(hint.preferred for hint in members) and all(mask == masks[0] for mask in masks)
        merged = TopologyHint(reduce(and_, masks, everywhere), preferred)
        if merged.mask and (best is None or _rank(merged, fitting) < _rank(best, fitting)):
            best = merged
    return best or TopologyHint(everywhere, preferred=False)


def _rank(hint: TopologyHint, fitting: int) -> tuple[int, ...]:
    """Sort key of merged hints: the smallest is the best.

    Preferred before not preferred; of the preferred the narrowest. Of the others those of exactly the `fitting` number
    of nodes, then the widest below it, then the narrowest above it. The smaller mask value decides between equals.
    """
    mask = hint.mask or NumaMask(0)
    if hint.preferred:
        return 0, len(mask), mask.bits
    above = len(mask) > fitting
    return 1, above, len(mask) if above else fitting - len(mask), mask.bits
