"""Distributing CPUs across NUMA nodes until none is free."""

from devicecore_numa.adapters.described import DescribedMachine
from devicecore_numa.domain.cpu_assignment import take_distributed, take_packed
from devicecore_numa.domain.cpus import parse_cpus
from devicecore_numa.domain.machine import Core, CpuLayout, Machine, NumaCell


def test_with_align_by_socket_the_emptier_node_provides_the_rest() -> None:
    layout = CpuLayout.of(DescribedMachine(sockets=2, cores_per_numa_node=4).machine())
    available = parse_cpus("0-1,4-7")
    assert take_distributed(layout, available, 6, 1, spreads=False, by_socket=True) == available


def test_numa_nodes_are_used_up_before_another_one_is_used() -> None:
    layout = CpuLayout.of(DescribedMachine(sockets=3, cores_per_numa_node=4).machine())
    available = parse_cpus("0-2,4-7,8-10")
    assert take_distributed(layout, available, 7, 1) == parse_cpus("0-2,4-7")


def test_a_numa_node_with_one_more_cpu_suffices_alone() -> None:
    layout = CpuLayout.of(Machine([NumaCell(0, map(Core, ((0,), (1,), (2,)))), NumaCell(1, map(Core, ((3,), (4,))))]))
    assert take_distributed(layout, layout.all, 3, 1) == parse_cpus("0-2")


def test_whole_cores_are_spread_over_as_many_numa_nodes_as_the_average_needs() -> None:
    def cell(number: int, cores: range) -> NumaCell:
        return NumaCell(number, [Core((2 * core, 2 * core + 1)) for core in cores])

    layout = CpuLayout.of(Machine([cell(0, range(5)), cell(1, range(5, 7))]))
    assert take_distributed(layout, layout.all, 10, 2) == parse_cpus("0-5,10-13")


def test_sockets_are_used_in_the_order_of_their_nodes_free_cpus() -> None:
    def cell(number: int) -> NumaCell:
        return NumaCell(number, [Core((cpu,), cpu // 4) for cpu in range(8 * number, 8 * number + 8)])

    layout = CpuLayout.of(Machine([cell(0), cell(1)]))
    assert take_packed(layout, parse_cpus("0-4,8-9,12-13"), 1) == parse_cpus("8")
