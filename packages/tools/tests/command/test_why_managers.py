"""`devicecore why` on a pod that a node's CPU manager or memory manager refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main
from tests.numa_node import make_directory, pod

RUNNING = pod("a", "6", "4Gi"), 0
WHOLE_CORES = "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
MEMORY = (
    "Allocate failed due to [memorymanager] failed to find NUMA nodes to extend the current topology hint, "
    "which is unexpected"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with two NUMA nodes; pod `a` has six of the first NUMA node's eight CPUs."""
    (tmp_path / "kubelet").mkdir()
    return make_directory(tmp_path / "kubelet", RUNNING)


def refused(given: dict[str, Any], message: str) -> dict[str, Any]:
    """Return the pod as a kubelet leaves it after a refusal."""
    return {**given, "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}}


def asked(root: Path, given: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what `why` says about trying the pod on the node as it is now."""
    file = root.parent / "pod.json"
    file.write_text(json.dumps(given))
    assert main(["why", str(file), "--root", str(root), "--json", "--no-plugins"]) == 0
    trial: dict[str, Any] = json.loads(capsys.readouterr().out)["trial"]
    return trial


def test_the_refused_pod_is_tried_with_all_managers(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = asked(root, refused(pod("b", "3", "1Gi"), WHOLE_CORES), capsys)
    assert (trial["fits"], trial["refusal"]) == (False, WHOLE_CORES)
    trial = asked(root, refused(pod("b", "2", "9Gi"), MEMORY), capsys)
    assert trial["refusal"] == "[memorymanager] failed to find NUMA nodes to extend the current topology hint"


def test_the_cpus_that_the_pod_would_get_now_are_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = asked(root, refused(pod("b", "4", "2Gi"), "Resources cannot be allocated with Topology locality"), capsys)
    assert trial["fits"]
    assert [one["what"] for one in trial["pinned"]] == ["4-5,12-13", "2Gi on NUMA node 1"]


def test_a_node_whose_configuration_is_missing_is_unknown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "config.yaml").unlink()
    trial = asked(root, refused(pod("b", "4", "2Gi"), WHOLE_CORES), capsys)
    assert trial["fits"] is None
    assert "the kubelet's configuration was not found" in trial["refusal"]


def test_the_manifest_of_a_message_is_tried(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = root.parent / "pod.json"
    file.write_text(json.dumps(pod("b", "3", "1Gi")))
    assert main(["why", WHOLE_CORES, "--pod", str(file), "--root", str(root), "--no-plugins"]) == 0
    assert f"verdict {WHOLE_CORES}" in " ".join(capsys.readouterr().out.split())
