"""State files that a kubelet refuses, and machines that are read from sysfs or described."""

from pathlib import Path

import pytest
from attrs import evolve
from devicecore_numa.adapters.described import DescribedMachine
from devicecore_numa.adapters.sysfs import SysfsMachine
from devicecore_numa.domain.configuration import Policies
from devicecore_numa.domain.cpu_policy import CpuOptions, CpuState, StaticCpuPolicy
from devicecore_numa.domain.errors import CorruptStateError, InvalidStateError, NumaConfigError
from devicecore_numa.domain.machine import Core, CpuLayout
from devicecore_numa.domain.memory_policy import Block, MemoryState, NodeMemory
from devicecore_numa.domain.requests import PodRequest
from devicecore_numa.domain.start_checks import Known, started_memory
from devicecore_numa.domain.state_files import decode_cpus, decode_memory, encode_cpus, encode_memory
from devicecore_numa.managers import CpuManager

from devicecore.adapters.memory import MemoryStore
from devicecore.domain.documents import Value
from devicecore.domain.topology import Policy

_GI = 2**30
FILE = encode_cpus("static", CpuState(0b1111_0001, {"pod": {"main": 0b1110}}))
OLDER = encode_cpus("static", CpuState(0b1111_0001, {"pod": {"main": 0b1110}}), has_data=False)


def manager(blob: bytes | None) -> CpuManager:
    layout = CpuLayout.of(DescribedMachine(cores_per_numa_node=8).machine())
    policy = StaticCpuPolicy.of(layout, CpuOptions(), count=1, reserved=0, topology=Policy.NONE)
    return CpuManager(policy, MemoryStore(blob), lambda _: PodRequest("pod"))


@pytest.mark.parametrize(
    ("blob", "problem"),
    [
        (FILE.replace(b"1-3", b"1-2"), "dataChecksum"),
        (OLDER.replace(b"1-3", b"1-2"), "checksum does not match"),
        (b"", "expected JSON"),
        (b"[]", "expected an object in the file"),
        (b"{" * 100_000, "expected JSON"),
        (b'{"policyName":"\\ud800","checksum":1}', "expected JSON in the file"),
        (b'{"data":"\\ud800"}', "expected JSON in the file"),
        (b'{"data":"{\\"policyName\\":\\"\\\\ud800\\"}"}', "expected JSON in data"),
        (b'{"defaultCpuSet":"3-1"}', "could not parse defaultCpuSet"),
        (b'{"defaultCpuSet":7}', "expected a string in defaultCpuSet"),
        (b'{"entries":{"a":[]}}', "expected an object in entries"),
    ],
)
def test_a_damaged_file_is_refused_in_a_sentence(blob: bytes, problem: str) -> None:
    with pytest.raises(CorruptStateError) as caught:
        decode_cpus(blob)
    assert problem in str(caught.value)


def test_a_pod_may_have_null_instead_of_containers() -> None:
    assert decode_cpus(b'{"entries":{"a":null}}').state.assignments == {"a": {}}
    assert decode_memory(b'{"entries":{"a":null,"b":{"c":null}}}').state.assignments == {"a": {}, "b": {"c": ()}}


@pytest.mark.parametrize(
    "blob",
    [
        b'{"machineState":{"x":{}}}',
        b'{"machineState":{"0":{"cells":["a"]}}}',
        b'{"machineState":{"0":{"memoryMap":{"memory":{"free":-1}}}}}',
        b'{"entries":{"a":{"b":[1]}}}',
    ],
)
def test_a_damaged_memory_file_is_refused(blob: bytes) -> None:
    with pytest.raises(CorruptStateError):
        decode_memory(blob)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (CpuState(0b1111_1110), 'not all reserved cpus: "0" are present in defaultCpuSet: "1-7"'),
        (CpuState(0b1_1111_1111), 'current set of available CPUs "0-7" doesn\'t match with CPUs in state "0-8"'),
        (CpuState(0b1111_1111, {"p": {"c": 2}}), 'pod: p, container: c cpuset: "1" overlaps with default cpuset "0-7"'),
        (CpuState(0, {"p": {"c": 2}}), "default cpuset cannot be empty"),
    ],
)
def test_a_state_that_does_not_fit_the_machine_prevents_the_start(state: CpuState, problem: str) -> None:
    with pytest.raises(InvalidStateError) as caught:
        manager(encode_cpus("static", state)).start()
    assert str(caught.value) == problem


def test_a_file_from_another_policy_prevents_the_start() -> None:
    with pytest.raises(
        InvalidStateError, match='configured policy "static" differs from state checkpoint policy "none"'
    ):
        manager(encode_cpus("none", CpuState())).start()


def test_a_start_without_a_file_writes_one() -> None:
    started = manager(None)
    started.start()
    assert started.state == CpuState(0b1111_1111)


def test_an_option_that_needs_a_feature_gate_is_refused_without_it() -> None:
    with pytest.raises(NumaConfigError, match="Alpha-level Options not enabled"):
        CpuOptions.parse({"align-by-socket": "true"})
    assert CpuOptions.parse({"align-by-socket": "true"}, alpha=True).align_by_socket


def test_the_machine_in_sysfs_has_its_cores_caches_memory_and_pages(tmp_path: Path) -> None:
    texts = {
        "node/node0/cpulist": "0-3",
        "node/node0/meminfo": "Node 0 MemTotal: 1024 kB",
        "node/node0/distance": "10 20",
    }
    texts |= {"node/node0/hugepages/hugepages-2048kB/nr_hugepages": "3", "cpu/online": "0-2"}
    for cpu in range(4):
        texts[f"cpu/cpu{cpu}/topology/core_id"] = str(cpu // 2)
        texts[f"cpu/cpu{cpu}/topology/physical_package_id"] = "0"
        texts[f"cpu/cpu{cpu}/cache/index3/level"] = "3"
        texts[f"cpu/cpu{cpu}/cache/index3/id"] = "7"
    for name, text in texts.items():
        path = tmp_path / "devices/system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (cell,) = SysfsMachine(tmp_path).machine().cells
    assert [core.threads for core in cell.cores] == [(0, 1), (2,)]
    assert {core.cache for core in cell.cores} == {7}
    assert (cell.memory, dict(cell.huge_pages), cell.distances) == (1024 * 1024, {2048: 3}, (10, 20))
    (tmp_path / "devices/system/node/node0/cpulist").write_text("?")
    with pytest.raises(NumaConfigError, match="cpulist: expected a list of CPUs"):
        SysfsMachine(tmp_path).machine()


def test_a_machine_whose_files_are_missing_has_one_core_for_each_cpu_and_no_memory(tmp_path: Path) -> None:
    node = tmp_path / "devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_text("0-1\n")
    (node / "meminfo").write_text("Node 0 MemFree: 1024 kB\n")
    (cell,) = SysfsMachine(tmp_path).machine().cells
    assert cell.cores == (Core((0,)), Core((1,)))
    assert (cell.memory, dict(cell.huge_pages), cell.distances) == (0, {}, ())


def test_a_file_that_a_kubelet_may_start_with_is_not_refused() -> None:
    """A kubelet iterates over a map, so if a NUMA node is in two groups, the kubelet's verdict depends on chance."""
    machine = DescribedMachine(sockets=2, cores_per_numa_node=2).machine()
    configuration = {
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
    }
    policies = Policies.read(Value(configuration, "a configuration"), machine)
    assert policies.memory is not None
    tables = [{"memory": node.tables["memory"].taken(_GI)} for _, node in sorted(policies.memory.empty().items())]
    nodes = {0: NodeMemory(1, tables[0], (0, 1)), 1: NodeMemory(2, tables[1], (1,))}
    held = {"z-first": Block((0, 1), "memory", _GI), "a-last": Block((1,), "memory", _GI)}
    state = MemoryState(nodes, {uid: {"app": (block,)} for uid, block in held.items()})
    with pytest.raises(InvalidStateError):
        policies.memory.start(state)
    file = encode_memory("Static", state)
    assert started_memory(file, Known("Static", policies, machine)) == state
    first = {**nodes, 0: evolve(nodes[0], assignments=2)}
    with pytest.raises(InvalidStateError):
        started_memory(encode_memory("Static", evolve(state, nodes=first)), Known("Static", policies, machine))
