"""Nothing is allocated twice, the shared pool contains the rest, and a refusal or a restart changes nothing."""

from random import Random

from devicecore_numa.domain.cpu_policy import CpuState
from devicecore_numa.domain.cpus import cpu_list, parse_cpus
from devicecore_numa.domain.memory_policy import MemoryState
from devicecore_numa.domain.state_files import decode_cpus, decode_memory, encode_cpus, encode_memory
from hypothesis import given
from hypothesis import strategies as st
from tests.numa_laws import check_cpus, check_memory

from tests.oracle import numa
from tests.oracle.asking import Json

cases = st.integers(0, 2**32).map(lambda seed: numa.admissions(Random(seed)))  # noqa: S311 - cases are not secret


def states_after_each_step(case: Json) -> list[tuple[Json, numa.NumaReplay, CpuState, MemoryState]]:
    replay = numa.NumaReplay(case)
    if not replay.begin()["ok"]:
        return []
    found = []
    for step in case["steps"]:
        answer = replay.play(step)
        if not replay.running:
            break
        found.append((answer, replay, replay.cpus.state, replay.memory.state))
    replay.stop()
    return found


@given(cases)
def test_no_cpu_is_exclusive_to_two_pods_or_shared_as_well(case: Json) -> None:
    for _, replay, state, _ in states_after_each_step(case):
        check_cpus(replay.policy, state)


@given(cases)
def test_reserved_and_free_memory_are_together_what_can_be_allocated(case: Json) -> None:
    for _, _, _, state in states_after_each_step(case):
        check_memory(state)


def of_groups(state: MemoryState) -> dict[tuple[int, ...], dict[str, int]]:
    """Return the free bytes of each group of NUMA nodes.

    Kubernetes may return memory to other nodes of a group than those from which it took the memory.
    """
    return {
        tuple(sorted(node.cells)): {
            name: sum(state.nodes[one].tables[name].free for one in node.cells) for name in node.tables
        }
        for node in state.nodes.values()
    }


@given(cases)
def test_a_refused_pod_changes_nothing(case: Json) -> None:
    before: tuple[CpuState, MemoryState] | None = None
    for step, (answer, _, cpus, memory) in zip(case["steps"], states_after_each_step(case), strict=False):
        uid = step["object"]["metadata"]["uid"] if step["op"] == "admit" else ""
        if uid and not answer["ok"] and before and uid not in {*before[0].assignments, *before[1].assignments}:
            assert (cpus.shared, cpus.assignments) == (before[0].shared, before[0].assignments)
            assert memory.assignments == before[1].assignments
            assert of_groups(memory) == of_groups(before[1])
        before = cpus, memory


@given(cases)
def test_a_restart_changes_nothing(case: Json) -> None:
    for _, _, cpus, memory in states_after_each_step(case):
        again, blocks = (
            decode_cpus(encode_cpus("static", cpus)).state,
            decode_memory(encode_memory("Static", memory)).state,
        )
        assert (again.shared, again.assignments) == (cpus.shared, cpus.assignments)
        assert (blocks.nodes, blocks.assignments) == (memory.nodes, memory.assignments)
        before = decode_cpus(encode_cpus("static", cpus, has_data=False)).state  # as a 1.36 kubelet writes the file
        assert (before.shared, before.assignments) == (cpus.shared, cpus.assignments)
        older = decode_memory(encode_memory("Static", memory, has_data=False)).state
        assert (older.nodes, older.assignments) == (memory.nodes, memory.assignments)


@given(st.integers(0, 2**600))
def test_a_list_of_cpus_is_read_as_it_was_written(cpus: int) -> None:
    assert parse_cpus(cpu_list(cpus)) == cpus
