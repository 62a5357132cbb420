"""`why` judges each pod that waits for a node by all that a scheduler looks at, or names what it does not look at."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

Capsys = pytest.CaptureFixture[str]
Json = Any


def a_pod(name: str = "ask", limits: Json = None, labels: Json = None, **spec: Json) -> Json:
    """A pod with one container."""
    container = {"name": "app", "image": "x", "resources": {"limits": limits or {}}, "ports": spec.pop("ports", [])}
    metadata = {"name": name, "namespace": "ml", "uid": f"u-{name}", "labels": labels or {}}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def a_node(name: str, labels: Json = None, **allocatable: str) -> Json:
    """A node with 8 CPUs, unless `allocatable` says otherwise."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "10", **allocatable}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": amounts, "capacity": amounts}}


def asked(where: Path, pod: Json, *objects: Json) -> int:
    """Ask `why` about a pod in a cluster, of which all pods are known, and return its exit status."""
    (where / "objects.json").write_text(json.dumps({"kind": "List", "items": objects}), encoding="utf-8")
    (where / "pods.json").write_text(json.dumps({"kind": "PodList", "items": []}), encoding="utf-8")
    (where / "pod.json").write_text(json.dumps(pod), encoding="utf-8")
    files = ("--slices", str(where / "objects.json"), "--pods", str(where / "pods.json"))
    return main(["why", str(where / "pod.json"), *files])


@pytest.mark.parametrize(
    ("pod", "status", "says"),
    [
        (a_pod(), 0, "fits"),
        (a_pod(limits={"cpu": "8"}), 0, "fits"),
        (a_pod(limits={"cpu": "9"}), 1, "Insufficient cpu: the pod requests 9, and the node has 8"),
        (a_pod(limits={"memory": "64Gi"}), 1, "Insufficient memory"),
        (a_pod(nodeSelector={"zone": "b"}), 1, "didn't match Pod's node affinity/selector"),
        (a_pod(nodeSelector={"zone": "a"}), 0, "fits"),
        (a_pod(limits={"acme.io/card": "1"}), 1, "Insufficient acme.io/card"),
        (a_pod(schedulerName="volcano"), 3, "not looked at  the rules of its own scheduler, volcano"),
    ],
)
def test_a_pod_needs_no_claims_to_be_judged(pod: Json, status: int, says: str, tmp_path: Path, capsys: Capsys) -> None:
    assert asked(tmp_path, pod, a_node("n1", {"zone": "a"})) == status
    assert says in capsys.readouterr().out


def test_a_pod_of_which_no_node_was_read_is_not_judged(tmp_path: Path, capsys: Capsys) -> None:
    assert asked(tmp_path, a_pod()) == 3
    assert "no Node was read" in capsys.readouterr().out


def test_each_waiting_pod_of_a_file_is_judged(tmp_path: Path, capsys: Capsys) -> None:
    both = {"kind": "PodList", "items": [a_pod("small"), a_pod("large", {"cpu": "9"})]}
    assert asked(tmp_path, both, a_node("n1")) == 1
    said = capsys.readouterr().out
    assert "pod ml/small on n1: fits" in said
    assert "pod ml/large: gets no node" in said


def test_a_workload_is_judged_by_its_pods(tmp_path: Path, capsys: Capsys) -> None:
    template = {"spec": a_pod(limits={"cpu": "9"})["spec"]}
    deployment = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}}
    assert asked(tmp_path, deployment, a_node("n1")) == 1
    assert "a pod of Deployment default/web: gets no node" in capsys.readouterr().out


def test_pods_that_a_kubelet_has_refused_are_explained_by_their_messages(tmp_path: Path, capsys: Capsys) -> None:
    """A list of them may have waiting pods beside, which do not hide their messages."""
    message = (
        "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
        "acme.io/card, which is unexpected"
    )
    refused = {**a_pod("old", nodeName="n1"), "status": {"phase": "Failed", "message": message}}
    assert asked(tmp_path, {"kind": "PodList", "items": [a_pod(), refused]}, a_node("n1")) == 0
    assert "no healthy devices present" in capsys.readouterr().out
