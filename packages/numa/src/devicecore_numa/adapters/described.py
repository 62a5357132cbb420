"""A machine described by the contents of its NUMA nodes, or in cAdvisor's form.

Laws: a description yields either exactly one machine or an error. `machine_in(machine_document(machine))` equals
`machine`.
"""

from attrs import frozen

from devicecore.domain.documents import Value
from devicecore_numa.domain.errors import NumaConfigError
from devicecore_numa.domain.machine import Core, CpuLayout, Machine, NumaCell
from devicecore_numa.domain.memory_policy import page_kib

_LOCAL, _NEAR, _FAR = 10, 12, 20
_MOST = 65_536
_UNCORE_LEVEL = 3


@frozen(kw_only=True)
class DescribedMachine:
    """A machine with identical sockets. `memory` is the number of bytes per NUMA node.

    `huge_pages` contains pairs of a page size in KiB and the number of such pages per NUMA node. CPUs are numbered as
    on most machines with Linux: first one thread of each core, then the other threads.
    """

    sockets: int = 1
    numa_nodes_per_socket: int = 1
    cores_per_numa_node: int = 4
    threads_per_core: int = 1
    cores_per_cache: int | None = None
    memory: int = 16 * 2**30
    huge_pages: tuple[tuple[int, int], ...] = ()
    distances: tuple[tuple[int, ...], ...] = ()

    def machine(self) -> Machine:
        """Return the machine.

        Raises NumaConfigError if a number of sockets, NUMA nodes, cores or threads is below 1, if there would be too
        many CPUs, or if `distances` does not have one row and one column for each NUMA node.
        """
        counts = (self.sockets, self.numa_nodes_per_socket, self.cores_per_numa_node, self.threads_per_core)
        per_cache = self.cores_per_cache
        nodes = self.sockets * self.numa_nodes_per_socket
        cores = nodes * self.cores_per_numa_node
        if min(counts) < 1 or (per_cache is not None and per_cache < 1) or cores * self.threads_per_core > _MOST:
            raise NumaConfigError(f"expected numbers of at least 1, and at most {_MOST} CPUs, got {self}")
        if self.distances and {len(self.distances), *map(len, self.distances)} != {nodes}:
            raise NumaConfigError(f"expected {nodes} rows of {nodes} distances, one for each NUMA node")
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
        distances = (self.distances and self.distances[node]) or [
            _LOCAL if node == other else _NEAR if other // self.numa_nodes_per_socket == socket else _FAR
            for other in range(nodes)
        ]
        return NumaCell(node, own, self.memory, dict(self.huge_pages), distances)


_FIELDS = {
    "sockets": "sockets",
    "numaNodesPerSocket": "numa_nodes_per_socket",
    "coresPerNumaNode": "cores_per_numa_node",
    "threadsPerCore": "threads_per_core",
    "coresPerUncoreCache": "cores_per_cache",
}
_OTHERS = {"memoryPerNumaNode", "hugePagesPerNumaNode", "distances"}


def machine_in(document: Value) -> Machine:
    """Return the machine that a document describes.

    The document contains either the arguments of `DescribedMachine` or cAdvisor's `topology`.

    Raises:
        DocumentError: a field is unknown, or has a value of the wrong kind.
        NumaConfigError: the document does not describe a machine.
    """
    if document["topology"].data is not None:
        return Machine([_cell_in(one) for one in document["topology"].sequence()])
    given = document.mapping()
    for name, value in given.items():
        if name not in _FIELDS and name not in _OTHERS:
            value.refuse(f"expected one of {', '.join((*_FIELDS, *sorted(_OTHERS)))}, or topology")
    counts = {attribute: given[name].integer() for name, attribute in _FIELDS.items() if name in given}
    pages = {page_kib(size): _whole(pages) for size, pages in document["hugePagesPerNumaNode"].mapping().items()}
    memory = document["memoryPerNumaNode"]
    return DescribedMachine(
        **counts,
        **({} if memory.data is None else {"memory": memory.quantity()}),
        huge_pages=tuple(sorted(pages.items())),
        distances=tuple(tuple(map(_whole, row.sequence())) for row in document["distances"].sequence()),
    ).machine()


def _whole(value: Value) -> int:
    number = value.integer()
    if not 0 <= number < 2**63:
        value.refuse(f"expected a number of at least 0, got {number}")
    return number


def _cell_in(node: Value) -> NumaCell:
    cores = [
        Core(
            map(_cpu, one["thread_ids"].sequence()),
            _whole(one["socket_id"]) if one["socket_id"].data is not None else 0,
            next((_whole(cache["id"]) for cache in one["uncore_caches"].sequence()), None),
        )
        for one in node["cores"].sequence()
    ]
    pages = {_whole(one["page_size"]): _whole(one["num_pages"]) for one in node["hugepages"].sequence()}
    memory = _whole(node["memory"]) if node["memory"].data is not None else 0
    return NumaCell(_whole(node["node_id"]), cores, memory, pages, map(_whole, node["distances"].sequence()))


def _cpu(value: Value) -> int:
    number = _whole(value)
    if number >= _MOST:
        value.refuse(f"expected a number below {_MOST}, got {number}")
    return number


def machine_document(machine: Machine) -> dict[str, object]:
    """Return a machine in cAdvisor's JSON form."""
    nodes = [
        {
            "node_id": int(cell.id),
            "memory": cell.memory,
            "hugepages": [{"page_size": kib, "num_pages": pages} for kib, pages in sorted(cell.huge_pages.items())],
            "distances": list(cell.distances),
            "cores": [
                {
                    "core_id": core.id,
                    "thread_ids": list(core.threads),
                    "socket_id": core.socket,
                    "uncore_caches": []
                    if core.uncore_cache is None
                    else [{"id": core.uncore_cache, "level": _UNCORE_LEVEL}],
                }
                for core in cell.cores
            ],
        }
        for cell in machine.cells
    ]
    layout = CpuLayout.of(machine)
    return {"num_cores": layout.count, "num_sockets": len(layout.by_socket), "topology": nodes}
