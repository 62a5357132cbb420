"""Chooses CPUs for a container (Kubernetes: `cpu_assignment.go`).

Law: the result is a subset of the free CPUs with exactly the requested size, and the same input gives the same result.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import floor, inf, sqrt

from attrs import define, field

from devicecore_numa.domain.cpus import Cpus, cpu_ids, cpu_set
from devicecore_numa.domain.errors import CpuAdmissionError, EndlessSearchError
from devicecore_numa.domain.machine import CpuLayout


@define(eq=False)
class _Search:
    """The free CPUs, the taken CPUs, and how many CPUs are still missing (Kubernetes: `cpuAccumulator`)."""

    layout: CpuLayout
    free: Cpus
    missing: int
    spreads: bool
    taken: Cpus = field(default=0)

    def take(self, cpus: Cpus) -> None:
        self.taken |= cpus
        self.free &= ~cpus
        self.missing -= cpus.bit_count()

    def take_full(self, order: Iterable[int], groups: Mapping[int, Cpus], size: int | None = None) -> None:
        """Take each completely free group that is not larger than the number of missing CPUs.

        Which groups are completely free is determined before any group is taken. `size` is the number of CPUs that
        Kubernetes assumes for every group.
        """
        whole = [key for key in order if (self.free & groups[key]).bit_count() == (size or groups[key].bit_count())]
        for key in whole:
            if self.missing >= groups[key].bit_count():
                self.take(groups[key])

    def by_free(self, keys: Iterable[int], groups: Mapping[int, Cpus], within: Cpus = -1) -> list[int]:
        """Return the groups that have a free CPU in `within`, sorted by their number of free CPUs."""
        free = self.free
        found = [((free & groups[key]).bit_count(), key) for key in keys if free & groups[key] & within]
        return [key for _, key in sorted(found)]

    def numa_nodes(self) -> list[int]:
        by_numa = self.layout.by_numa
        if self.layout.numa_first:
            return self.by_free(by_numa, by_numa)
        by_socket = self.layout.by_socket
        sockets = self.by_free(by_socket, by_socket)
        return [node for socket in sockets for node in self.by_free(by_numa, by_numa, by_socket[socket])]

    def sockets(self) -> list[int]:
        by_socket, by_numa = self.layout.by_socket, self.layout.by_numa
        if not self.layout.numa_first:
            return self.by_free(by_socket, by_socket)
        return [socket for node in self.numa_nodes() for socket in self.by_free(by_socket, by_socket, by_numa[node])]

    def caches(self) -> list[int]:
        by_cache, by_numa = self.layout.by_cache, self.layout.by_numa
        return [cache for node in self.numa_nodes() for cache in self.by_free(by_cache, by_cache, by_numa[node])]

    def cores(self) -> list[int]:
        numa_first = self.layout.numa_first
        above = self.sockets() if numa_first else self.numa_nodes()
        members = self.layout.cores_of_socket if numa_first else self.layout.cores_of_numa
        free, order = self.free, list[int]()
        for group in above:
            found = [((free & threads).bit_count(), core) for core, threads in members[group] if free & threads]
            order += [core for _, core in sorted(found)]
        return order

    def single_cpus(self) -> Iterator[int]:
        if self.spreads:
            for socket in self.sockets():
                yield from cpu_ids(self.free & self.layout.by_socket[socket])
        else:
            for core in self.cores():
                yield from cpu_ids(self.free & self.layout.by_core[core])

    def take_by_cache(self) -> None:
        """Take CPUs that share uncore caches where possible (Kubernetes: `takeUncoreCache`)."""
        for cache in self.caches():
            if self.missing >= self.layout.per_cache:
                self.take_full(self.caches(), self.layout.by_cache)
            if self.missing < 1:
                return
            self._take_part_of_cache(cache)
            if self.missing < 1:
                return

    def _take_part_of_cache(self, cache: int) -> None:
        per_core, by_core = self.layout.per_core, self.layout.by_core
        group = self.free & self.layout.by_cache[cache]
        cores = [core for core in sorted(by_core) if by_core[core] & group][: -(-self.missing // per_core)]
        found = list(cpu_ids(self.free & sum(by_core[core] for core in cores)))
        if self.missing % 2 and per_core > 1 and len(found) > self.missing:
            found.pop()
        if len(found) == self.missing:
            self.take(cpu_set(found))


def take_packed(
    layout: CpuLayout, available: Cpus, count: int, *, spreads: bool = False, by_cache: bool = False
) -> Cpus:
    """Return `count` CPUs from `available`, packed greedily onto few NUMA nodes, sockets and cores.

    Kubernetes: `takeByTopologyNUMAPacked`. With `spreads`, no preference is given to whole cores. With `by_cache`, CPUs
    that share an uncore cache are preferred.

    Raises:
        CpuAdmissionError: too few CPUs are free.
    """
    search = _started(layout, available, count, spreads=spreads)
    if count < 1:
        return search.taken
    nodes = (search.numa_nodes, layout.by_numa, None)
    sockets = (search.sockets, layout.by_socket, layout.per_socket)
    levels = (nodes, sockets) if layout.numa_first else (sockets, nodes)
    for order, groups, size in levels:
        search.take_full(order(), groups, size)
        if search.missing < 1:
            return search.taken
    if by_cache:
        search.take_by_cache()
    if not spreads and search.missing > 0:
        search.take_full(search.cores(), layout.by_core, layout.per_core)
    if search.missing > 0:
        for cpu in list(search.single_cpus()):
            search.take(1 << cpu)
            if search.missing < 1:
                break
    if search.missing > 0:
        raise CpuAdmissionError("failed to allocate cpus")
    return search.taken


def _started(layout: CpuLayout, available: Cpus, count: int, *, spreads: bool) -> _Search:
    search = _Search(layout, available & layout.all, count, spreads)
    if count > search.free.bit_count():
        size = available.bit_count()
        raise CpuAdmissionError(f"not enough cpus available to satisfy request: requested={count}, available={size}")
    return search


def take_distributed(
    layout: CpuLayout, available: Cpus, count: int, group: int, *, spreads: bool = False, by_socket: bool = False
) -> Cpus:
    """Return `count` CPUs from `available`, distributed evenly across the NUMA nodes that are used.

    Kubernetes: `takeByTopologyNUMADistributed`. CPUs are distributed in groups of `group` CPUs. `by_socket` prefers
    NUMA nodes in the same socket. If an even distribution is impossible, the CPUs are packed.

    Raises:
        CpuAdmissionError: too few CPUs are free, or Kubernetes' search fails.
        EndlessSearchError: Kubernetes' search would not end.
    """
    if count % group:
        return take_packed(layout, available, count, spreads=spreads)
    search = _started(layout, available, count, spreads=spreads)
    if count < 1:
        return search.taken
    nodes = search.numa_nodes()
    free = {node: (search.free & layout.by_numa[node]).bit_count() for node in nodes}
    groups_per_node = (((layout.count - 1) // group + 1) - 1) // len(layout.by_numa) + 1
    groups = (count - 1) // group + 1
    for width in range((groups - 1) // groups_per_node + 1, min(groups, len(free)) + 1):
        chosen = _best_nodes(layout, nodes, free, width, count, group, by_socket=by_socket)
        if chosen is not None:
            return _from_nodes(search, *chosen, count, group)
    return take_packed(layout, available, count, spreads=spreads)


_Nodes = Callable[[], Sequence[int]]


def _best_nodes(
    layout: CpuLayout,
    nodes: Sequence[int],
    free: Mapping[int, int],
    width: int,
    count: int,
    group: int,
    *,
    by_socket: bool,
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the best `width` NUMA nodes, and which of them provide the remainder, or None if no nodes suffice."""
    best, best_nodes, best_rest = inf, None, None
    best_is_in_socket = False
    for combo in _combinations(nodes, width):
        if best == 0 and (not by_socket or best_is_in_socket):
            break
        found = _balance(nodes, list(combo()), free, count, group, by_socket=by_socket)
        if found is None:
            continue
        balance, rest = found
        is_in_socket = by_socket and _socket_count(layout, combo()) <= 1
        is_better = is_in_socket if is_in_socket != best_is_in_socket else balance < best
        if is_better:
            best, best_nodes, best_rest, best_is_in_socket = balance, combo, rest, is_in_socket
    # Both combinations are read only now, because Kubernetes keeps slices that its search later overwrites, as
    # `_combinations` explains.
    return None if best_nodes is None else (list(best_nodes()), list(best_rest()) if best_rest else [])


def _socket_count(layout: CpuLayout, nodes: Iterable[int]) -> int:
    return sum(1 for _ in layout.sockets_of(layout.on_numa(nodes)))


def _balance(
    nodes: Sequence[int], combo: Sequence[int], free: Mapping[int, int], count: int, group: int, *, by_socket: bool
) -> tuple[float, _Nodes | None] | None:
    """Return how uneven the nodes' free CPUs are after `combo` has provided the CPUs, and the nodes for the remainder.

    Return None if `combo` cannot provide the CPUs.
    """
    # A NUMA node with CPUs of two sockets is listed twice, and Kubernetes then counts some of its CPUs twice.
    if sum(free[node] for node in set(combo)) < count or sum(free[node] // group for node in combo) * group < count:
        return None
    share = count // len(combo) // group * group
    if by_socket:
        share = min(share, *(free[node] // group * group for node in combo))
    if any(free[node] < share for node in combo):
        return None
    left = {node: free[node] - share * combo.count(node) for node in nodes}
    remainder = count - share * len(combo)
    if not remainder:
        return _deviation(left.values()), None
    best: float = inf
    best_rest: _Nodes | None = None
    able = [node for node in combo if left[node] >= group]
    for width in range(len(able), 0, -1):
        for subset in _combinations(able, width):
            after = _after_remainder(left, subset(), remainder, group, count)
            if after is not None and (balance := _deviation(after.values())) < best:
                best, best_rest = balance, subset
    return best, best_rest


def _after_remainder(
    left: Mapping[int, int], subset: Sequence[int], remainder: int, group: int, count: int
) -> dict[int, int] | None:
    if sum(left[node] for node in subset) < remainder:
        return None
    after = dict(left)
    while remainder > 0:
        before = remainder
        for node in subset:
            if remainder == 0:
                break
            if after[node] >= group:
                after[node] -= group
                remainder -= group
        if remainder == before:
            raise EndlessSearchError(count)
    return after


def _from_nodes(search: _Search, nodes: Sequence[int], rest: Sequence[int], count: int, group: int) -> Cpus:
    by_numa = search.layout.by_numa

    def free(node: int) -> Cpus:
        return search.free & by_numa[node]

    share = count // len(nodes) // group * group
    share = min(share, *(free(node).bit_count() // group * group for node in nodes))
    for node in nodes:
        search.take(_packed_or_none(search, free(node), share))
    remainder = count - share * len(nodes)
    while remainder > 0:
        before = remainder
        for node in rest:
            if remainder == 0:
                break
            if free(node).bit_count() >= group:
                search.take(_packed_or_none(search, free(node), group))
                remainder -= group
        if remainder == before:
            raise EndlessSearchError(count)
    if search.missing:
        many = "not enough" if search.missing > 0 else "too many"
        raise CpuAdmissionError(f"accounting error, {many} CPUs allocated, remaining: {search.missing}")
    return search.taken


def _packed_or_none(search: _Search, available: Cpus, count: int) -> Cpus:
    try:
        return take_packed(search.layout, available, count, spreads=search.spreads)
    except CpuAdmissionError:  # Kubernetes also ignores the error
        return 0


def _combinations(items: Sequence[int], width: int) -> Iterator[_Nodes]:
    """Yield the combinations of `items` as functions that return their current content (Go: `iterateCombinations`).

    In Go, combinations with a common prefix share a slice as long as its capacity suffices, so a later combination may
    overwrite an earlier one. Kubernetes keeps the slice of the best combination, but with four or more NUMA nodes, that
    slice often contains a different combination at the end of the search. `_append` reproduces the capacity of Go's
    slices.
    """

    def longer(start: int, memory: list[int], length: int) -> Iterator[_Nodes]:
        if length == width:
            yield lambda: memory[:length]
            return
        for position in range(start, len(items) - (width - length) + 1):
            yield from longer(position + 1, _append(memory, length, items[position]), length + 1)

    return longer(0, [], 0)


def _append(memory: list[int], length: int, value: int) -> list[int]:
    if length == len(memory):
        memory = memory[:length] + [0] * max(length, 1)
    memory[length] = value
    return memory


def _deviation(values: Iterable[int]) -> float:
    """Return the standard deviation, rounded to thousandths like the mean, as in Kubernetes."""
    numbers = list(values)
    mean = floor(sum(numbers) / len(numbers) * 1000 + 0.5) / 1000
    total = 0.0
    for number in numbers:
        total += (number - mean) * (number - mean)
    return floor(sqrt(total / len(numbers)) * 1000 + 0.5) / 1000
