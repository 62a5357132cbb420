"""Verdicts on state files of a kubelet whose configuration or machine is only partly known."""

import pytest
from attrs import evolve
from devicecore_numa.adapters.described import DescribedMachine
from devicecore_numa.domain.cpu_policy import CpuState
from devicecore_numa.domain.errors import InvalidStateError
from devicecore_numa.domain.memory_policy import MemoryState, StaticMemoryPolicy
from devicecore_numa.domain.start_checks import Known, started_cpus, started_memory
from devicecore_numa.domain.state_files import encode_cpus, encode_memory

_GI = 2**30
MACHINE = DescribedMachine(memory=4 * _GI).machine()
CPUS = CpuState(0b1100, {"pod": {"app": 0b0011}})
MEMORY = MemoryState(StaticMemoryPolicy(MACHINE, {0: {"memory": _GI}}).empty())
RESERVED = {0: {"memory": _GI}}


@pytest.mark.parametrize(
    "known", [Known(), Known("static"), Known(machine=MACHINE)], ids=["nothing", "the-policy", "the-machine"]
)
def test_the_cpus_in_a_valid_file_are_returned(known: Known) -> None:
    assert started_cpus(encode_cpus("static", CPUS), known) == CPUS


@pytest.mark.parametrize(
    "known",
    [Known(), Known("Static"), Known(machine=MACHINE), Known(reserved=RESERVED)],
    ids=["nothing", "the-policy", "the-machine", "what-is-reserved"],
)
def test_the_memory_in_a_valid_file_is_returned(known: Known) -> None:
    assert started_memory(encode_memory("Static", MEMORY), known) == MEMORY


@pytest.mark.parametrize(
    ("policy", "state", "known", "problem"),
    [
        ("static", CPUS, Known("none"), 'configured policy "none" differs from state checkpoint policy "static"'),
        ("", CPUS, Known(), 'configured policy differs from state checkpoint policy ""'),
        ("static", evolve(CPUS, shared=0b1110), Known(), 'cpuset: "0-1" overlaps with default cpuset "1-3"'),
        ("static", evolve(CPUS, shared=0b11_1100), Known(machine=MACHINE), "does not have: 4-5"),
    ],
)
def test_a_cpu_file_that_no_kubelet_starts_with_is_refused(
    policy: str, state: CpuState, known: Known, problem: str
) -> None:
    with pytest.raises(InvalidStateError) as raised:
        started_cpus(encode_cpus(policy, state), known)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("known", "problem"),
    [
        (Known("None"), 'configured policy "None" differs from state checkpoint policy "Static"'),
        (Known(reserved={0: {"memory": 1}}), "NUMA node 0, memory: 1073741824 bytes are reserved"),
        (
            Known(machine=DescribedMachine(memory=8 * _GI).machine()),
            "NUMA node 0 has 4,294,967,296 bytes of memory, but the machine has 8,589,934,592",
        ),
    ],
)
def test_a_memory_file_that_no_kubelet_starts_with_is_refused(known: Known, problem: str) -> None:
    with pytest.raises(InvalidStateError) as raised:
        started_memory(encode_memory("Static", MEMORY), known)
    assert problem in str(raised.value)


def test_a_file_that_names_an_extra_numa_node_is_refused() -> None:
    two = DescribedMachine(sockets=2, memory=4 * _GI).machine()
    state = MemoryState(StaticMemoryPolicy(two, RESERVED).empty())
    with pytest.raises(InvalidStateError, match="it names NUMA node 1, which this machine does not have"):
        started_memory(encode_memory("Static", state), Known(machine=MACHINE))
