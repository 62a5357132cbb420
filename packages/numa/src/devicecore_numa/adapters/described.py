"""A machine that is described by what each of its NUMA nodes has.

Law: a description is one machine, or an error.
"""

from attrs import frozen

from devicecore_numa.domain.errors import NumaConfigError
from devicecore_numa.domain.machine import Core, Machine, NumaCell

_LOCAL, _NEAR, _FAR = 10, 12, 20
_MOST = 65_536


@frozen(kw_only=True)
class DescribedMachine:
    """A machine whose sockets are alike. `memory` is bytes of each NUMA node, `huge_pages` pages of each by KiB.

    CPUs are numbered as Linux numbers those of most machines: first one thread of each core, then the other threads.
    """

    sockets: int = 1
    numa_nodes_per_socket: int = 1
    cores_per_numa_node: int = 4
    threads_per_core: int = 1
    cores_per_cache: int | None = None
    memory: int = 16 * 2**30
    huge_pages: tuple[tuple[int, int], ...] = ()

    def machine(self) -> Machine:
        """Return the machine. Raises NumaConfigError if a number is below 1, or there would be too many CPUs."""
        counts = (self.sockets, self.numa_nodes_per_socket, self.cores_per_numa_node, self.threads_per_core)
        per_cache = self.cores_per_cache
        nodes = self.sockets * self.numa_nodes_per_socket
        cores = nodes * self.cores_per_numa_node
        if min(counts) < 1 or (per_cache is not None and per_cache < 1) or cores * self.threads_per_core > _MOST:
            raise NumaConfigError(f"expected numbers of at least 1, and at most {_MOST} CPUs, got {self}")
        return Machine([self._cell(node, nodes, cores) for node in range(nodes)])

    def _cell(self, node: int, nodes: int, cores: int) -> NumaCell:
        socket, first = node // self.numa_nodes_per_socket, node * self.cores_per_numa_node
        own = [
            Core(
                range(core, cores * self.threads_per_core, cores),
                socket,
                None if self.cores_per_cache is None else core // self.cores_per_cache,
            )
            for core in range(first, first + self.cores_per_numa_node)
        ]
        distances = [
            _LOCAL if node == other else _NEAR if other // self.numa_nodes_per_socket == socket else _FAR
            for other in range(nodes)
        ]
        return NumaCell(node, own, self.memory, dict(self.huge_pages), distances)
