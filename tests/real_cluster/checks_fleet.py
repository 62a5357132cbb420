"""A fleet of 100 nodes in a real cluster: it registers, runs pods, and goes on after an outage of the API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.node import DEVICECORE, GPU, is_ready
from tests.real_cluster.programs import Program, wait_for

Json = Any

NODES, PODS = 100, 300
FLEET = f"""
nodes:
- name: fleet-{{number:03}}
  count: {NODES}
  plugins:
  - resource: {GPU}
    devices: 4
"""
RULES = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "create", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["list", "create", "update", "delete", "deletecollection"],
    },
)
"""What docs/cluster-node.md says that a fleet needs."""


@pytest.fixture
def fleet(plane: ControlPlane) -> Iterator[Program]:
    """A fleet that may do what the guide says, and nothing else."""
    file = plane.directory / "fleet.yaml"
    file.write_text(FLEET, encoding="utf-8")
    account = plane.service_account_kubeconfig("fleet", *RULES)
    (plane.directory / "fleet").mkdir()
    words = ("fleet", "run", str(file), f"--kubeconfig={account}", "--no-taint", f"--root={plane.directory / 'fleet'}")
    program = Program("fleet", [*DEVICECORE, *words], plane.directory)
    program.start()
    yield program
    program.stop()
    for pod in plane.admin.list("Pod", "default"):
        plane.admin.delete("Pod", pod["metadata"]["name"], grace=0)
    plane.admin.delete("Deployment", "train")
    for node in _nodes(plane):
        plane.admin.delete("Node", node["metadata"]["name"])


def _nodes(plane: ControlPlane) -> list[Json]:
    return [one for one in plane.admin.list("Node") if one["metadata"]["name"].startswith("fleet-")]


def _running(plane: ControlPlane) -> list[Json]:
    return [pod for pod in plane.admin.list("Pod", "default") if pod["status"]["phase"] == "Running"]


def _deploy(plane: ControlPlane, count: int) -> None:
    container = {"name": "main", "image": "i", "resources": {"limits": {GPU: "1"}}}
    labels = {"app": "train"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": pod}
    plane.admin.create({"kind": "Deployment", "metadata": {"name": "train"}, "spec": spec})


def test_a_hundred_nodes_run_pods_and_outlive_an_outage(plane: ControlPlane, fleet: Program) -> None:
    fleet.wait_for(f"{NODES} nodes to be ready", lambda: _ready(plane) == NODES, 120.0)
    say(f"{NODES} nodes are ready")
    _deploy(plane, PODS)
    fleet.wait_for(f"{PODS} pods to run", lambda: len(_running(plane)) == PODS, 180.0)
    say(f"{PODS} pods run")
    _every_device_has_one_owner(plane)

    plane.api_server.kill()
    plane.api_server.start()
    plane.wait_until_ready()
    say("the API server is back")
    for node in _nodes(plane)[:10]:  # as a controller does after an outage
        _mark_unknown(plane, node)
    fleet.wait_for("all nodes to be ready again", lambda: _ready(plane) == NODES, 90.0)
    plane.admin.patch("Deployment", "train", {"spec": {"replicas": PODS // 2}})
    fleet.wait_for("half of the pods to be gone", lambda: _count(plane) == PODS // 2, 180.0)
    plane.admin.patch("Deployment", "train", {"spec": {"replicas": NODES * 4}})
    fleet.wait_for("all devices to be in use", lambda: len(_running(plane)) == NODES * 4, 240.0)
    _every_device_has_one_owner(plane)
    assert "Traceback" not in fleet.log.read_text("utf-8")


def _ready(plane: ControlPlane) -> int:
    return len([one for one in _nodes(plane) if is_ready(one) and GPU in one["status"]["allocatable"]])


def _count(plane: ControlPlane) -> int:
    return len(plane.admin.list("Pod", "default"))


def _mark_unknown(plane: ControlPlane, node: Json) -> None:
    conditions = [
        {**one, "status": "Unknown", "reason": "NodeStatusUnknown"} if one["type"] == "Ready" else one
        for one in node["status"]["conditions"]
    ]
    plane.admin.patch("Node", node["metadata"]["name"], {"status": {"conditions": conditions}}, subresource="status")


def _every_device_has_one_owner(plane: ControlPlane) -> None:
    def all_shown() -> list[tuple[str, str]]:
        found = [(pod["spec"]["nodeName"], one) for pod in _running(plane) for one in _devices(pod)]
        return found if len(found) == len(_running(plane)) else []

    owned = wait_for("the devices of all pods to be shown", all_shown, 30.0)
    assert len(owned) == len(set(owned))


def _devices(pod: Json) -> list[str]:
    return [
        device["resourceID"]
        for container in pod["status"]["containerStatuses"]
        for health in container.get("allocatedResourcesStatus", [])
        for device in health["resources"]
    ]
