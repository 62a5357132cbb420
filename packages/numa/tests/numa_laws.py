"""Laws that the states of both managers always obey."""

from functools import reduce
from operator import or_

from devicecore_numa.domain.cpu_policy import CpuState, StaticCpuPolicy
from devicecore_numa.domain.memory_policy import MemoryState


def check_cpus(policy: StaticCpuPolicy | None, state: CpuState) -> None:
    """Check that no CPU belongs to two pods, and that the shared pool contains all remaining CPUs."""
    if policy is None:
        return
    given_out = state.shared
    for containers in state.assignments.values():
        of_pod = reduce(or_, containers.values(), 0)
        assert not given_out & of_pod
        given_out |= of_pod
    assert given_out == (policy.allocatable if policy.options.strict_cpu_reservation else policy.layout.all)


def check_memory(state: MemoryState) -> None:
    """Check that reserved plus free memory equals the allocatable memory."""
    for node in state.nodes.values():
        for table in node.tables.values():
            assert table.reserved + table.free == table.allocatable
            assert min(table.reserved, table.free) >= 0
