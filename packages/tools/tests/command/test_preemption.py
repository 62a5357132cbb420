"""A pod that needs the capacity of less important pods: `why` says which pods the scheduler preempts, and where."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

Capsys = pytest.CaptureFixture[str]
Json = Any
CARD = "acme.io/card"


def a_pod(name: str, priority: int, node: str = "", size: str = "1", **spec: Json) -> Json:
    """Return a pod that requests cards of a plugin, on a node if one is named."""
    container = {"name": "app", "resources": {"limits": {CARD: size}, "requests": {CARD: size}}}
    spec |= {"containers": [container], "priority": priority} | ({"nodeName": node} if node else {})
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ml", "uid": f"u-{name}"}, "spec": spec}


def a_node(name: str) -> Json:
    """Return a node with two cards."""
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {CARD: "2", "pods": "10"}}}


def asked(where: Path, pod: Json, *others: Json) -> int:
    """Run `why` on a pod in a two-node cluster, and return its exit status."""
    items = [a_node("n1"), a_node("n2"), *others, {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}]
    (where / "objects.json").write_text(json.dumps({"kind": "List", "items": items}), encoding="utf-8")
    (where / "pod.json").write_text(json.dumps(pod), encoding="utf-8")
    objects = str(where / "objects.json")
    return main(["why", str(where / "pod.json"), "--slices", objects, "--json"])


BUSY = (
    a_pod("low", 1, "n1"),
    a_pod("lower", 0, "n1"),
    a_pod("high", 100, "n2"),
    a_pod("middle", 5, "n2"),
)


def test_the_least_important_pods_of_one_node_are_preempted(tmp_path: Path, capsys: Capsys) -> None:
    status = asked(tmp_path, a_pod("ask", 10), *BUSY)
    document = json.loads(capsys.readouterr().out)
    assert (status, document["node"], document["preempted"]) == (0, "n1", ["ml/lower"])


def test_as_many_as_needed_are_preempted(tmp_path: Path, capsys: Capsys) -> None:
    status = asked(tmp_path, a_pod("ask", 10, size="2"), *BUSY)
    document = json.loads(capsys.readouterr().out)
    assert (status, document["node"], document["preempted"]) == (0, "n1", ["ml/low", "ml/lower"])


@pytest.mark.parametrize(
    "pod", [a_pod("ask", 0), a_pod("ask", 10, preemptionPolicy="Never"), a_pod("ask", 10, size="3")]
)
def test_no_pod_is_preempted_needlessly(pod: Json, tmp_path: Path, capsys: Capsys) -> None:
    """A pod preempts others only if it is more important, may preempt, and can run afterwards."""
    status = asked(tmp_path, pod, *BUSY)
    document = json.loads(capsys.readouterr().out)
    assert (status, document["preempted"]) == (1, [])
