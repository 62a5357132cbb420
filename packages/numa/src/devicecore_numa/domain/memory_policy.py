"""The static policy of the memory manager (Kubernetes: `memorymanager/policy_static.go`).

Law: memory is counted, not placed. A NUMA node belongs to one group of nodes at a time, and the reserved plus the free
memory of a node equals its allocatable memory. Each function returns a new state, or raises an error without changing
anything.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from types import MappingProxyType

from attrs import evolve, field, frozen

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.model import NumaNode
from devicecore.domain.quantity import Quantity
from devicecore.domain.topology import Hints, NumaMask, TopologyHint
from devicecore_numa.domain.errors import InvalidStateError, MemoryAdmissionError, NumaConfigError
from devicecore_numa.domain.machine import Machine
from devicecore_numa.domain.requests import HUGE_PAGES, MEMORY, ContainerRequest, PodRequest

_UINT64 = 2**64
_KI = 1024


def page_kib(size: str) -> int:
    """Return the size of a huge page in KiB, as given by a string such as `2Mi` or `hugepages-2Mi`.

    Raises NumaConfigError.
    """
    try:
        found = Quantity.parse(size.removeprefix(HUGE_PAGES))
    except InvalidQuantityError as error:
        raise NumaConfigError(f"expected a huge page size such as 2Mi: {error}") from None
    if found.nanos <= 0 or found.whole % _KI or not found.is_whole:
        raise NumaConfigError(f"expected a huge page size in whole KiB, got {found}")
    return found.whole // _KI


def huge_pages_name(kib: int) -> str:
    """Return the resource name for huge pages of this size."""
    return HUGE_PAGES + str(Quantity.of(kib * _KI, binary=True))


@frozen
class MemoryTable:
    """The bytes of one resource on one NUMA node."""

    total: int = 0
    system_reserved: int = 0
    allocatable: int = 0
    reserved: int = 0
    free: int = 0

    def taken(self, size: int) -> "MemoryTable":
        """Return this table with `size` more bytes reserved. A negative `size` releases bytes."""
        return evolve(self, reserved=self.reserved + size, free=self.free - size)


@frozen
class NodeMemory:
    """One NUMA node: its resources, the number of blocks on it, and the group of nodes that it belongs to."""

    assignments: int
    tables: Mapping[str, MemoryTable]
    cells: tuple[int, ...]


@frozen
class Block:
    """The memory of one resource that a container holds on a group of NUMA nodes."""

    numa_nodes: tuple[int, ...]
    type: str
    size: int


NodeMemories = Mapping[int, NodeMemory]
Blocks = Mapping[str, Mapping[str, tuple[Block, ...]]]
"""The blocks of each container, by the uid of its pod."""


@frozen
class MemoryState:
    """The memory of each NUMA node, and the blocks of each container.

    `reusable` contains the memory of one pod's finished init containers, by group of NUMA nodes and resource.
    `reusable` is not in the state file, because a kubelet forgets this memory when it restarts.
    """

    nodes: NodeMemories = MappingProxyType({})
    assignments: Blocks = MappingProxyType({})
    reusable: tuple[str, Mapping[tuple[tuple[int, ...], str], int]] = ("", MappingProxyType({}))

    def of_container(self, uid: str, container: str) -> tuple[Block, ...] | None:
        """Return the blocks of a container, or None if the container has none."""
        return self.assignments.get(uid, {}).get(container)

    def reusable_of(self, uid: str, group: tuple[int, ...], resource: str) -> int:
        """Return the bytes that a container of the pod may reuse."""
        return self.reusable[1].get((group, resource), 0) if self.reusable[0] == uid else 0


Request = Mapping[str, int]


ReservedMemory = Sequence[tuple[int, Mapping[str, Quantity]]]
"""The reservations for NUMA nodes in a kubelet's `reservedMemory`, in the order of that field."""


def bytes_by_node(reserved: ReservedMemory) -> dict[int, dict[str, int]]:
    """Return the bytes that are reserved on each NUMA node, by resource."""
    found: dict[int, dict[str, int]] = {}
    for node, limits in reserved:
        found.setdefault(node, {}).update({name: amount.whole for name, amount in limits.items()})
    return found


def _frozen_reserved(value: Mapping[int, Mapping[str, int]]) -> Mapping[int, Mapping[str, int]]:
    return MappingProxyType(dict(value))


@frozen
class StaticMemoryPolicy:
    """The machine, and the bytes that are reserved for the system by NUMA node and resource."""

    machine: Machine
    reserved: Mapping[int, Mapping[str, int]] = field(converter=_frozen_reserved)

    @classmethod
    def of(
        cls,
        machine: Machine,
        allocatable: Mapping[str, Quantity],
        reserved: ReservedMemory,
    ) -> "StaticMemoryPolicy":
        """Return the policy for a kubelet's configuration.

        `allocatable` contains the amounts that Node Allocatable reserves on the whole node (the sum of kube-reserved,
        system-reserved and the hard eviction threshold). `reserved` is the kubelet's `reservedMemory`.

        Raises:
            NumaConfigError: `allocatable` and `reserved` do not agree, a NUMA node does not exist, or no memory is
                reserved.
        """
        totals: dict[str, int] = {}
        for node, limits in reserved:
            if node not in machine.numa_nodes:
                raise NumaConfigError(
                    f"the reserved memory configuration references a NUMA node {node} "
                    "that does not exist on this machine"
                )
            for name, amount in limits.items():
                totals[name] = totals.get(name, 0) + amount.nanos
        common = {name for name in allocatable if name == MEMORY or name.startswith(HUGE_PAGES)} | totals.keys()
        for name in sorted(common):
            whole = allocatable.get(name, Quantity(0))
            if totals.get(name, 0) != whole.nanos:
                total = Quantity(totals.get(name, 0), binary=True)
                raise NumaConfigError(
                    f'the total amount "{total}" of type "{name}" is not equal to the value "{whole}" '
                    "determined by Node Allocatable feature"
                )
        by_node = bytes_by_node(reserved)
        if not sum(limits.get(MEMORY, 0) for limits in by_node.values()):
            raise NumaConfigError("[memorymanager] you should specify the system reserved memory")
        return cls(machine, by_node)

    def empty(self) -> dict[int, NodeMemory]:
        """Return the memory of the machine before anything is allocated (Kubernetes: `getDefaultMachineState`)."""
        nodes = {}
        for cell in self.machine.cells:
            tables, in_pages = {}, 0
            for kib, pages in cell.huge_pages.items():
                name = huge_pages_name(kib)
                total = pages * kib * _KI
                tables[name] = self._table(cell.id, name, total, total)
                in_pages += total
            tables[MEMORY] = self._table(cell.id, MEMORY, cell.memory, cell.memory - in_pages)
            nodes[int(cell.id)] = NodeMemory(0, tables, (cell.id,))
        return nodes

    @property
    def allocatable(self) -> tuple[Block, ...]:
        """The bytes that containers can have, by NUMA node and resource (Kubernetes: `GetAllocatableMemory`)."""
        return tuple(
            Block((number,), name, table.allocatable)
            for number, node in sorted(self.empty().items())
            for name, table in sorted(node.tables.items())
            if table.allocatable
        )

    def _table(self, node: int, name: str, total: int, usable: int) -> MemoryTable:
        reserved = self.reserved.get(node, {}).get(name, 0)
        allocatable = _sum([usable, -reserved])
        return MemoryTable(total, reserved, allocatable, 0, allocatable)

    def start(self, state: MemoryState) -> MemoryState:
        """Return the state that a kubelet starts with: `state`, or an initial state if it is empty (`validateState`).

        Raises:
            InvalidStateError: the state does not fit the machine or the reserved memory, or contradicts itself.
        """
        if not state.nodes:
            if state.assignments:
                raise InvalidStateError("[memorymanager] machine state can not be empty when it has memory assignments")
            return evolve(state, nodes=self.empty())
        if not _is_same(state.nodes, self._walked(_held(state))):
            raise InvalidStateError("[memorymanager] the expected machine state is different from the real one")
        return state

    def may_start(self, state: MemoryState) -> bool:
        """Return whether a kubelet may start with a state, even if `start` refuses the state.

        Once a NUMA node is in two groups, the verdict depends on the order in which the kubelet iterates over a map,
        because the last block on a node determines the node's group. This method tries an order in which the blocks of
        the groups in the state come last.
        """

        def is_of_its_group(held: tuple[str, str, Block]) -> bool:
            group = held[2].numa_nodes
            return all(node in state.nodes and sorted(state.nodes[node].cells) == sorted(group) for node in group)

        return self.may_have(state) and _is_same(state.nodes, self._walked(sorted(_held(state), key=is_of_its_group)))

    def _walked(self, held: Iterable[tuple[str, str, Block]]) -> NodeMemories:
        """Return the machine's memory with these blocks reserved. Raises InvalidStateError."""
        expected = self.empty()
        for uid, name, block in held:
            _check_block(expected, block, uid, name)
            _reserve(expected, block.numa_nodes, block.type, block.size)
        return expected

    def may_have(self, state: MemoryState) -> bool:
        """Return whether a running kubelet can have this state, even if no kubelet would start with the state.

        Once a NUMA node is in two groups, the outcome of a start depends on the order in which the kubelet iterates
        over pods.
        """
        empty = self.empty()
        return _sizes(state.nodes) == _sizes(empty) and all(
            node in empty and block.type in empty[node].tables
            for _, _, block in _held(state)
            for node in block.numa_nodes
        )

    def allocate(
        self, state: MemoryState, pod: PodRequest, container: ContainerRequest, hint: TopologyHint
    ) -> MemoryState:
        """Return the state in which `container` has its memory on the NUMA nodes in `hint`, or on more if necessary.

        Raises:
            MemoryAdmissionError: no group of NUMA nodes that the hint allows has enough memory, or Go does not
                represent a requested quantity as an integer.
        """
        if not pod.is_exclusive:
            return state
        request = _request(container)
        if not request:
            return state
        held = state.of_container(pod.uid, container.name)
        if held is not None:
            return _with_reuse(state, pod, container, held)
        group = self._group(state, pod, request, hint)
        nodes = dict(state.nodes)
        for resource, size in request.items():
            _reserve(nodes, group, resource, max(size - state.reusable_of(pod.uid, group, resource), 0))
        blocks = tuple(Block(group, resource, size) for resource, size in request.items())
        after = _with_reuse(evolve(state, nodes=nodes), pod, container, blocks)
        of_pod = {**state.assignments.get(pod.uid, {}), container.name: blocks}
        _shrink_reused(of_pod, pod, container, blocks)
        return evolve(after, assignments={**state.assignments, pod.uid: of_pod})

    def _group(self, state: MemoryState, pod: PodRequest, request: Request, hint: TopologyHint) -> tuple[int, ...]:
        best = hint
        if best.mask is None:
            possible = self._calculate(state, pod, request)
            if not possible:
                raise MemoryAdmissionError(
                    "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
                )
            best = _best(possible)
            if hint.preferred and not best.preferred:
                raise MemoryAdmissionError("failed to find the default preferred hint")
        if not _suffices(state.nodes, best.mask or (), request):
            wider = [one for one in self._calculate(state, pod, request) if set(best.mask or ()) <= set(one.mask or ())]
            if not wider:
                raise MemoryAdmissionError("failed to find NUMA nodes to extend the current topology hint")
            preferred, best = best.preferred, _best(wider)
            if preferred and not best.preferred:
                raise MemoryAdmissionError("failed to find the extended preferred hint")
        group = tuple(map(int, best.mask or ()))
        if len(group) > 1 and not all(_may_join(state.nodes[node], group) for node in group):
            raise MemoryAdmissionError("preferred hint violates NUMA node allocation")
        return group

    def hints(self, state: MemoryState, pod: PodRequest, container: ContainerRequest | None) -> Hints:
        """Return the hints for a container, or for the whole pod if `container` is None.

        The result is empty if there is no preference.
        """
        asked = pod.containers if container is None else (container,)
        if not pod.is_exclusive or any(not amount.is_int64 for one in asked for amount in one.memory.values()):
            return {}
        request = pod.memory if container is None else _request(container)
        if not request:
            return {}
        for one in asked:
            held = state.of_container(pod.uid, one.name)
            if held is not None:
                return _regenerated(held, request)
        found = self._calculate(state, pod, request)
        return dict.fromkeys(request, tuple(found)) if found else {}

    def _calculate(self, state: MemoryState, pod: PodRequest, request: Request) -> list[TopologyHint]:
        """Return a hint for each group of NUMA nodes with enough memory (Kubernetes: `calculateHints`)."""
        nodes = tuple(sorted(state.nodes))
        wanted, able = list[tuple[str, int, dict[int, int]]](), list[bool]()
        for name, size in request.items():
            tables = [_table(state.nodes[node], name) for node in nodes]
            wanted.append((name, size, {node: table.free for node, table in zip(nodes, tables, strict=True)}))
            suffices = [total >= size for total in _totals(tuple([table.allocatable for table in tables]))]
            able = [both and one for both, one in zip(able, suffices, strict=True)] if able else suffices
        used = {node for node in nodes if state.nodes[node].assignments}
        joined = {tuple(sorted(state.nodes[node].cells)) for node in used}
        groups, least, found = _groups(nodes), 0, list[TopologyHint]()
        for is_able, (group, preferred, other) in zip(able, groups, strict=True):
            if not is_able:
                continue
            least = least or len(group)
            if len(group) == 1:
                if len(state.nodes[group[0]].cells) > 1:
                    continue
            elif not used.isdisjoint(group) and not (
                group in joined and all(_may_join(state.nodes[node], group) for node in group)
            ):
                continue
            if all(
                _sum([*[free[node] for node in group], state.reusable_of(pod.uid, group, name)]) >= size
                for name, size, free in wanted
            ):
                found.append(preferred if len(group) == least else other)
        return found


@lru_cache(64)
def _groups(nodes: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], TopologyHint, TopologyHint], ...]:
    """Return all groups of NUMA nodes, smallest first, each with its two possible hints."""
    masks = [(group, NumaMask.of(map(NumaNode, group))) for group in _subsets(nodes)]
    return tuple(
        (group, TopologyHint(mask, preferred=True), TopologyHint(mask, preferred=False)) for group, mask in masks
    )


@lru_cache(64)
def _totals(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sums over the NUMA nodes of each group, in the order of `_groups`."""
    return tuple(map(_sum, _subsets(sizes)))


def _subsets(items: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for width in range(1, len(items) + 1):
        yield from combinations(items, width)


def _request(container: ContainerRequest) -> dict[str, int]:
    """Return a container's request. Raises MemoryAdmissionError if Go does not represent the quantity as an integer."""
    if any(not amount.is_int64 for amount in container.memory.values()):
        raise MemoryAdmissionError("failed to represent quantity as int64")
    return {name: amount.bytes for name, amount in container.memory.items()}


def _table(node: NodeMemory, resource: str) -> MemoryTable:
    return node.tables.get(resource, _NO_MEMORY)


_NO_MEMORY = MemoryTable()


def _sum(sizes: Sequence[int]) -> int:
    """Return the sum as Go's uint64: it wraps around if it is negative, that is, if more is reserved than there is."""
    return sum(sizes) % _UINT64


def _may_join(node: NodeMemory, group: tuple[int, ...]) -> bool:
    """Return whether a node may be part of a group of several nodes: it must be unused, or already in this group."""
    return not node.assignments or tuple(sorted(node.cells)) == group


def _suffices(nodes: NodeMemories, group: Iterable[int], request: Request) -> bool:
    on = [nodes[node] for node in group]
    return all(_sum([_table(node, name).free for node in on]) >= size for name, size in request.items())


def _best(hints: Sequence[TopologyHint]) -> TopologyHint:
    """Return the best hint: preferred hints come first, then narrower ones (Kubernetes: `findBestHint`)."""
    return min(hints, key=lambda hint: (not hint.preferred, len(hint.mask or ()), hint.mask.bits if hint.mask else 0))


def _reserve(nodes: dict[int, NodeMemory], group: tuple[int, ...], resource: str, size: int) -> None:
    """Reserve `size` bytes on a group's nodes, filling one node after another (Kubernetes: `updateMachineState`)."""
    for number in group:
        node = nodes[number]
        tables = node.tables
        if size and resource in tables:
            part = min(size, tables[resource].free)
            size -= part
            tables = {**tables, resource: tables[resource].taken(part)}
        nodes[number] = NodeMemory(node.assignments + 1, tables, group)


def _check_block(nodes: NodeMemories, block: Block, uid: str, container: str) -> None:
    of = f"[memorymanager] (pod: {uid}, container: {container}) the memory assignment uses"
    for node in block.numa_nodes:
        if node not in nodes:
            raise InvalidStateError(f"{of} the NUMA that does not exist")
        if block.type not in nodes[node].tables:
            raise InvalidStateError(f"{of} memory resource that does not exist")


def _is_same(found: NodeMemories, expected: NodeMemories) -> bool:
    """Return whether two states of a machine's memory agree.

    For a group of nodes, only the sums over its nodes must agree.
    """
    if found.keys() != expected.keys():
        return False
    for node, one in found.items():
        other = expected[node]
        if one.assignments != other.assignments or sorted(one.cells) != sorted(other.cells):
            return False
        if one.tables.keys() != other.tables.keys():
            return False
        for name, table in one.tables.items():
            same = other.tables[name]
            fixed = table.total, table.system_reserved, table.allocatable
            if fixed != (same.total, same.system_reserved, same.allocatable):
                return False
            if _sums(found, one.cells, name) != _sums(expected, one.cells, name):
                return False
    return True


def _held(state: MemoryState) -> list[tuple[str, str, Block]]:
    """Return all blocks in the order of their pods and containers, each with the pod's uid and the container's name."""
    return [
        (uid, name, block)
        for uid, containers in sorted(state.assignments.items())
        for name, blocks in sorted(containers.items())
        for block in blocks
    ]


def _sizes(nodes: NodeMemories) -> dict[int, dict[str, tuple[int, int, int]]]:
    """Return the sizes that no allocation changes, by NUMA node and resource."""
    return {
        node: {name: (table.total, table.system_reserved, table.allocatable) for name, table in one.tables.items()}
        for node, one in nodes.items()
    }


def _sums(nodes: NodeMemories, group: Iterable[int], name: str) -> tuple[int, int]:
    tables = [_table(nodes[node], name) for node in group if node in nodes]
    return sum(table.free for table in tables), sum(table.reserved for table in tables)


def _regenerated(blocks: Sequence[Block], request: Request) -> Hints:
    """Return hints for an existing allocation, or none if the request has changed (Kubernetes: `regenerateHints`)."""
    if len(blocks) != len(request) or any(request.get(block.type) != block.size for block in blocks):
        return {}
    hints: dict[str, tuple[TopologyHint, ...]] = dict.fromkeys(request, ())
    for block in blocks:
        mask = NumaMask.of(map(NumaNode, block.numa_nodes))
        hints[block.type] += (TopologyHint(mask, preferred=True),)
    return hints


def _with_reuse(
    state: MemoryState, pod: PodRequest, container: ContainerRequest, blocks: Sequence[Block]
) -> MemoryState:
    """Return the state after giving memory to a container. An init container's memory can be reused once it ends."""
    left = dict(state.reusable[1]) if state.reusable[0] == pod.uid else {}
    for block in blocks:
        key = block.numa_nodes, block.type
        if container.ends:
            left[key] = max(left.get(key, 0), block.size)
        elif key in left:
            left[key] = max(left[key] - block.size, 0)
    return evolve(state, reusable=(pod.uid, left))


def _shrink_reused(
    of_pod: dict[str, tuple[Block, ...]], pod: PodRequest, container: ContainerRequest, blocks: Sequence[Block]
) -> None:
    """Subtract what `container` reuses from the blocks of init containers (`updateInitContainersMemoryBlocks`)."""
    for block in blocks:
        size = block.size
        for init in pod.containers:
            if init.name == container.name or not init.is_init or not size:
                break
            if init.restartable or init.name not in of_pod:
                continue
            kept = []
            for one in of_pod[init.name]:
                reused = min(one.size, size) if (one.type, one.numa_nodes) == (block.type, block.numa_nodes) else 0
                size -= reused
                kept.append(evolve(one, size=one.size - reused))
            of_pod[init.name] = tuple(kept)


def release_memory(state: MemoryState, uid: str, container: str) -> MemoryState:
    """Return the state without a container, whose memory becomes free."""
    blocks = state.of_container(uid, container)
    if blocks is None:
        return state
    nodes = dict(state.nodes)
    for block in blocks:
        left = block.size
        for number in block.numa_nodes:
            node = nodes[number]
            tables = node.tables
            if left and block.type in tables:
                part = min(left, tables[block.type].reserved)
                left -= part
                tables = {**tables, block.type: tables[block.type].taken(-part)}
            count = node.assignments - 1
            nodes[number] = NodeMemory(count, tables, node.cells if count else (number,))
    of_pod = {name: kept for name, kept in state.assignments[uid].items() if name != container}
    assignments = {key: value for key, value in state.assignments.items() if key != uid}
    if of_pod:
        assignments[uid] = of_pod
    return evolve(state, nodes=nodes, assignments=assignments)


def release_ended(state: MemoryState, pod: PodRequest, starting: str) -> MemoryState:
    """Return the state without the init containers that finished before the container `starting` starts.

    In Kubernetes, the memory manager's `AddContainer` removes these containers.
    """
    for one in pod.containers:
        if one.name == starting or not one.is_init:
            break
        if one.ends:
            state = release_memory(state, pod.uid, one.name)
    return state
