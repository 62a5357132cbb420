"""CPUs that are distributed across NUMA nodes, down to the last free one."""

from devicecore_numa.adapters.described import DescribedMachine
from devicecore_numa.domain.cpu_assignment import take_distributed
from devicecore_numa.domain.cpus import parse_cpus
from devicecore_numa.domain.machine import CpuLayout


def test_with_align_by_socket_a_node_that_is_emptier_gives_the_rest() -> None:
    layout = CpuLayout.of(DescribedMachine(sockets=2, cores_per_numa_node=4).machine())
    available = parse_cpus("0-1,4-7")
    assert take_distributed(layout, available, 6, 1, spreads=False, by_socket=True) == available


def test_numa_nodes_that_give_all_they_have_are_used_before_one_more() -> None:
    layout = CpuLayout.of(DescribedMachine(sockets=3, cores_per_numa_node=4).machine())
    available = parse_cpus("0-2,4-7,8-10")
    assert take_distributed(layout, available, 7, 1) == parse_cpus("0-2,4-7")
