"""`devicecore doctor` on a node whose kubelet has static policies for CPUs and memory."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main
from tests.numa_node import CONFIGURATION, make_directory, pod

RUNNING = pod("a", "6", "4Gi"), 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with two NUMA nodes. Pod `a` has six of the eight CPUs of the first NUMA node."""
    (tmp_path / "kubelet").mkdir()
    return make_directory(tmp_path / "kubelet", RUNNING)


def reported(root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Return doctor's report as JSON."""
    main(["doctor", "--root", str(root), "--json", "--no-plugins", *options])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_who_holds_which_cpus_and_memory_is_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = root.parent / "pods.json"
    running = {**RUNNING[0], "status": {"phase": "Running"}}
    pods.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [running]}))
    held = {"owner": "default/a", "pod_uid": "uid-of-a", "container": "app", "state": "live"}
    assert reported(root, capsys, "--pods", str(pods))["pinned"] == [
        {"resource": "cpu", "what": "1-3,9-11", **held},
        {"resource": "memory", "what": "4Gi on NUMA node 0", **held},
    ]
    main(["doctor", "--root", str(root), "--no-plugins", "--pods", str(pods)])
    assert "cpu 1-3,9-11 default/a app live" in " ".join(capsys.readouterr().out.split())


def test_cpus_of_a_pod_that_has_ended_are_stale(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {one["state"] for one in reported(root, capsys)["pinned"]} == {"unknown"}
    pods = root.parent / "pods.json"
    ended = {**RUNNING[0], "status": {"phase": "Succeeded"}}
    pods.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [ended]}))
    pinned = reported(root, capsys, "--pods", str(pods))["pinned"]
    assert {(one["owner"], one["state"]) for one in pinned} == {("default/a", "stale")}


def test_a_record_leads_to_the_same_report(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pinned = reported(root, capsys)["pinned"]
    main(["doctor", "--root", str(root), "--save", str(root.parent / "record")])
    capsys.readouterr()
    assert reported(root.parent / "record", capsys)["pinned"] == pinned


def test_a_file_that_does_not_fit_the_configuration_is_a_finding(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "config.yaml").write_text(json.dumps({**CONFIGURATION, "reservedSystemCPUs": "1,9"}))
    (finding,) = reported(root, capsys)["findings"]
    assert 'not all reserved cpus: "1,9" are present in defaultCpuSet' in finding["sentence"]
