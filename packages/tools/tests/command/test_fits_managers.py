"""`devicecore fits` on a node whose kubelet has static policies for CPUs and memory."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from devicecore_numa.domain.state_files import decode_memory, encode_memory
from devicecore_tools.command.main import main
from devicecore_tools.numa import CPU_FILE, MEMORY_FILE, NumaError, PinnedNode
from tests.numa_node import CONFIGURATION, MACHINE, make_directory, pod

RUNNING = pod("a", "6", "4Gi"), 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with two NUMA nodes. Pod `a` has six of the eight CPUs of the first NUMA node."""
    (tmp_path / "kubelet").mkdir()
    return make_directory(tmp_path / "kubelet", RUNNING)


def asked(
    root: Path, given: dict[str, Any], capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any]]:
    """Run `fits`, and return its exit status and the node in its output."""
    file = root.parent / "pod.json"
    file.write_text(json.dumps(given))
    status = main(["fits", str(file), "--node", str(root), "--json", *options])
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    return status, node


def test_the_cpus_and_the_memory_that_a_pod_gets_are_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, node = asked(root, pod("b", "4", "2Gi"), capsys)
    assert (status, node["fits"]) == (0, True)
    assert node["pinned"] == [
        {"container": "app", "resource": "cpu", "what": "4-5,12-13"},
        {"container": "app", "resource": "memory", "what": "2Gi on NUMA node 1"},
    ]


@pytest.mark.parametrize(
    ("cpu", "memory", "reason"),
    [
        ("3", "1Gi", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"),
        ("10", "1Gi", "Resources cannot be allocated with Topology locality"),
        ("2", "9Gi", "[memorymanager] failed to find NUMA nodes to extend the current topology hint"),
    ],
)
def test_a_pod_is_refused_in_the_words_of_a_kubelet(
    root: Path, capsys: pytest.CaptureFixture[str], cpu: str, memory: str, reason: str
) -> None:
    status, node = asked(root, pod("b", cpu, memory), capsys)
    assert (status, node["reason"]) == (1, reason)


def test_ending_a_pod_that_has_the_cpus_is_proposed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = root.parent / "full"
    full.mkdir()
    make_directory(full, RUNNING, (pod("c", "6", "1Gi"), 1))
    _, node = asked(full, pod("b", "4", "2Gi"), capsys)
    assert [one["change"] for one in node["changes"]][:1] == ["pod uid-of-a ends"]


def test_a_pod_without_whole_cpus_is_refused_for_its_memory_alone(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(root, pod("b", "500m", "100Mi"), capsys)[1]["pinned"] == [
        {"container": "app", "resource": "memory", "what": "100Mi on NUMA node 0"}
    ]
    burstable = pod("b", "3", "9Gi")
    burstable["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    status, node = asked(root, burstable, capsys)
    assert (status, node["fits"], node["pinned"]) == (0, True, [])


def test_pods_that_have_ended_hold_no_cpus(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = {**RUNNING[0], "status": {"phase": "Succeeded"}}
    pods = root.parent / "pods.json"
    pods.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [ended]}))
    _, node = asked(root, pod("b", "4", "2Gi"), capsys, "--pods", str(pods))
    assert node["pinned"][0]["what"] == "1-2,9-10"
    pods.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": []}))  # the list may be incomplete
    _, node = asked(root, pod("b", "4", "2Gi"), capsys, "--pods", str(pods))
    assert node["pinned"][0]["what"] == "4-5,12-13"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("config.yaml", "the kubelet's configuration was not found"),
        ("machine.json", "does not say which CPUs and which memory the machine has"),
    ],
)
def test_what_a_pinned_node_does_is_unknown_if_a_source_is_missing(
    root: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    (root / name).unlink()
    status, node = asked(root, pod("b", "4", "2Gi"), capsys)
    assert (status, node["fits"]) == (3, None)
    assert reason in node["reason"]
    burstable = pod("b", "4", "2Gi")
    burstable["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    assert asked(root, burstable, capsys)[0] == 0


def test_a_state_file_with_which_no_kubelet_starts_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "config.yaml").write_text(json.dumps({**CONFIGURATION, "reservedSystemCPUs": "1,9"}))
    status, node = asked(root, pod("b", "4", "2Gi"), capsys)
    assert status == 3
    assert 'not all reserved cpus: "1,9" are present in defaultCpuSet' in node["reason"]


def test_a_kubelet_that_runs_may_have_a_state_with_which_it_would_not_start(root: Path) -> None:
    """A real kubelet had a NUMA node in two groups. Whether a kubelet starts in that state depends on chance."""
    blob = (root / MEMORY_FILE).read_bytes()
    state = decode_memory(blob).state
    first = state.nodes[0]
    mixed = encode_memory("Static", evolve(state, nodes={**state.nodes, 0: evolve(first, cells=(0, 1))}))
    tables = {name: evolve(table, total=table.total + 1) for name, table in first.tables.items()}
    larger = encode_memory("Static", evolve(state, nodes={**state.nodes, 0: evolve(first, tables=tables)}))

    def node(file: bytes, *, runs: bool) -> PinnedNode:
        files = {CPU_FILE: (root / CPU_FILE).read_bytes(), MEMORY_FILE: file}
        return PinnedNode.of(CONFIGURATION, MACHINE, files, RUNNING[0], runs=runs)

    assert node(mixed, runs=True).holders == node(blob, runs=False).holders
    for file, runs in ((mixed, False), (larger, True)):
        with pytest.raises(NumaError, match="the expected machine state is different from the real one"):
            node(file, runs=runs)


def test_without_the_distribution_a_pinned_node_is_unknown(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "devicecore_numa"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "devicecore_numa", None)
    status, node = asked(root, pod("b", "4", "2Gi"), capsys)
    assert (status, node["fits"]) == (3, None)
    assert "pip install devicecore-numa" in node["reason"]


def test_a_record_of_the_node_gives_the_same_answer(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, living = asked(root, pod("b", "4", "2Gi"), capsys)
    saved = root.parent / "record"
    main(["doctor", "--root", str(root), "--save", str(saved)])
    capsys.readouterr()
    status, node = asked(saved, pod("b", "4", "2Gi"), capsys)
    assert (status, node["pinned"]) == (0, living["pinned"])
