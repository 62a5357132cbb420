"""The hardware of a machine: NUMA nodes with cores and memory, as cAdvisor reports them to a kubelet.

Law: a CPU belongs to one core, and a core to one NUMA node, one socket and one uncore cache.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations
from types import MappingProxyType

from attrs import define, field, frozen

from devicecore.domain.model import NumaNode
from devicecore.domain.topology import NumaMask, TopologyHint
from devicecore_numa.domain.cpus import Cpus, cpu_set
from devicecore_numa.domain.errors import NumaConfigError

MAX_NUMA_NODES = 16
"""The maximum number of NUMA nodes.

There is a limit because all sets of nodes are examined. By default, a kubelet allows 8.
"""


def _numbers(value: Iterable[int]) -> tuple[int, ...]:
    return tuple(value)


@frozen
class Core:
    """A physical core.

    If `uncore_cache` is None (cAdvisor reports no cache), all cores of a socket count as sharing one uncore cache.
    """

    threads: tuple[int, ...] = field(converter=_numbers)
    socket: int = 0
    uncore_cache: int | None = None

    @property
    def id(self) -> int:
        """The number of the core's first CPU, which is unique on the machine (Kubernetes: `getUniqueCoreID`)."""
        return min(self.threads)

    @property
    def cache(self) -> int:
        """The number of the uncore cache that the core counts as using (Kubernetes: `getUncoreCacheID`)."""
        return self.socket if self.uncore_cache is None else self.uncore_cache


def _numa_node(value: int) -> NumaNode:
    return NumaNode(value)


def _cores(value: "Iterable[Core]") -> "tuple[Core, ...]":
    return tuple(value)


def _cells(value: "Iterable[NumaCell]") -> "tuple[NumaCell, ...]":
    return tuple(value)


def _frozen_pages(value: Mapping[int, int]) -> Mapping[int, int]:
    return MappingProxyType(dict(value))


@frozen
class NumaCell:
    """One NUMA node: `memory` in bytes, `huge_pages` as the number of pages by their size in KiB."""

    id: NumaNode = field(converter=_numa_node)
    cores: tuple[Core, ...] = field(default=(), converter=_cores)
    memory: int = 0
    huge_pages: Mapping[int, int] = field(factory=dict, converter=_frozen_pages)
    distances: tuple[int, ...] = field(default=(), converter=_numbers)


@frozen
class Machine:
    """The NUMA nodes in the order in which cAdvisor lists them.

    Raises NumaConfigError if there is no node, if two nodes have the same number, if a CPU is listed twice, or if a
    core has no CPU.
    """

    cells: tuple[NumaCell, ...] = field(converter=_cells)

    @cells.validator
    def _are_different(self, _: object, cells: tuple[NumaCell, ...]) -> None:
        if len({cell.id for cell in cells}) < len(cells) or not cells:
            raise NumaConfigError("expected one or more NUMA nodes with different numbers")
        cpus = [cpu for cell in cells for core in cell.cores for cpu in core.threads]
        if len(set(cpus)) < len(cpus) or not all(core.threads for cell in cells for core in cell.cores):
            raise NumaConfigError("expected each CPU to be on one core, and each core to have a CPU")

    @property
    def numa_nodes(self) -> tuple[NumaNode, ...]:
        """The numbers of the NUMA nodes."""
        return tuple(cell.id for cell in self.cells)


@frozen
class NumaSet:
    """A set of NUMA nodes that have CPUs: the CPUs, the number of sockets, and the set's two possible hints."""

    cpus: Cpus
    size: int
    sockets: int
    mask: NumaMask
    preferred: TopologyHint
    other: TopologyHint


@define(eq=False)
class CpuLayout:
    """The CPUs of a machine by NUMA node, socket, uncore cache and core (Kubernetes: `CPUTopology`)."""

    by_numa: dict[int, Cpus] = field(factory=dict)
    by_socket: dict[int, Cpus] = field(factory=dict)
    by_cache: dict[int, Cpus] = field(factory=dict)
    by_core: dict[int, Cpus] = field(factory=dict)
    count: int = 0

    @classmethod
    def of(cls, machine: Machine) -> "CpuLayout":
        """Return the layout of `machine`.

        Raises:
            NumaConfigError: the machine has no CPU.
        """
        layout = cls()
        for cell in machine.cells:
            for core in cell.cores:
                threads = cpu_set(core.threads)
                layout.count += len(core.threads)
                layout.by_core[core.id] = threads
                for groups, key in (
                    (layout.by_numa, cell.id),
                    (layout.by_socket, core.socket),
                    (layout.by_cache, core.cache),
                ):
                    groups[key] = groups.get(key, 0) | threads
        if not layout.count:
            raise NumaConfigError("could not detect number of cpus")
        return layout

    @cached_property
    def all(self) -> Cpus:
        """All CPUs of the machine."""
        return sum(self.by_core.values())

    @property
    def per_core(self) -> int:
        """The number of CPUs per core."""
        return self.count // len(self.by_core)

    @property
    def per_socket(self) -> int:
        """The number of CPUs per socket."""
        return self.count // len(self.by_socket)

    @property
    def per_cache(self) -> int:
        """The number of CPUs that share an uncore cache."""
        return self.count // len(self.by_cache)

    @property
    def numa_first(self) -> bool:
        """Whether a NUMA node contains at least as many CPUs as a socket."""
        return len(self.by_socket) >= len(self.by_numa)

    @cached_property
    def cores_of_socket(self) -> dict[int, tuple[tuple[int, Cpus], ...]]:
        """The cores of each socket, as pairs of id and CPUs in the order of the ids."""
        return _members(self.by_socket, self.by_core)

    @cached_property
    def cores_of_numa(self) -> dict[int, tuple[tuple[int, Cpus], ...]]:
        """The cores of each NUMA node, as pairs of id and CPUs in the order of the ids."""
        return _members(self.by_numa, self.by_core)

    @cached_property
    def numa_sets(self) -> tuple[NumaSet, ...]:
        """All sets of NUMA nodes with CPUs, smallest first (Kubernetes: `IterateBitMasks`)."""
        nodes = sorted(self.by_numa)[:MAX_NUMA_NODES]
        found = []
        for width in range(1, len(nodes) + 1):
            for chosen in combinations(nodes, width):
                cpus, mask = sum(self.by_numa[node] for node in chosen), NumaMask.of(map(NumaNode, chosen))
                sockets = sum(1 for socket in self.by_socket.values() if socket & cpus)
                preferred, other = TopologyHint(mask, preferred=True), TopologyHint(mask, preferred=False)
                found.append(NumaSet(cpus, cpus.bit_count(), sockets, mask, preferred, other))
        return tuple(found)

    def on_numa(self, numa_nodes: Iterable[int]) -> Cpus:
        """Return the CPUs of these NUMA nodes."""
        return sum(self.by_numa.get(node, 0) for node in set(numa_nodes))

    def sockets_of(self, cpus: Cpus) -> Iterator[Cpus]:
        """Return all CPUs of each socket that has one of `cpus`."""
        return (socket for socket in self.by_socket.values() if socket & cpus)


def _members(groups: Mapping[int, Cpus], cores: Mapping[int, Cpus]) -> dict[int, tuple[tuple[int, Cpus], ...]]:
    return {
        key: tuple((core, threads) for core, threads in sorted(cores.items()) if threads & group)
        for key, group in groups.items()
    }
