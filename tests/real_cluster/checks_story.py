"""Two real kubelets or devicecore nodes, two resources, and pods that fit on one node, on the other, or on neither."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Any

import pytest

from tests.real_cluster.control_plane import ControlPlane
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import ClusterNode, OurNode
from tests.real_cluster.programs import wait_for

Json = Any

GPU, RDMA = "example.com/gpu", "example.com/rdma"
ALL_GPUS = [f"gpu-{number}" for number in range(10)]


@pytest.fixture(params=[OurNode, RealKubelet], ids=["ours", "real"])
def nodes(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[tuple[ClusterNode, ClusterNode]]:
    kind: type[ClusterNode] = request.param
    with ExitStack() as last_to_first:
        names = [f"{request.param.__name__.lower()}-{number}" for number in (12, 16)]
        first, second = (last_to_first.enter_context(kind(plane, name)) for name in names)
        for name in names:
            last_to_first.callback(plane.admin.delete, "Node", name)
        yield first, second
        for pod in plane.admin.list("Pod"):
            plane.admin.delete("Pod", pod["metadata"]["name"], grace=0)


def _create(plane: ControlPlane, name: str, **sizes: int) -> None:
    amounts = {{"gpu": GPU, "rdma": RDMA}[resource]: str(count) for resource, count in sizes.items()}
    container: Json = {"name": "main", "image": "nginx", "ports": [{"containerPort": 80}]}
    container["resources"] = {"limits": amounts, "requests": amounts}
    plane.admin.create({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}})


def _running_on(plane: ControlPlane, name: str) -> str:
    return str(plane.admin.wait_for_phase(name, "Running")["spec"]["nodeName"])


def _checkpoint(node: ClusterNode) -> Json:
    return json.loads((node.device_plugins / "kubelet_internal_checkpoint").read_text("utf-8"))["Data"]


def _held(node: ClusterNode, plane: ControlPlane, name: str) -> dict[str, list[str]]:
    uid = plane.admin.get("Pod", name)["metadata"]["uid"]
    entries = [one for one in _checkpoint(node)["PodDeviceEntries"] if one["PodUID"] == uid]
    return {one["ResourceName"]: sorted(chain.from_iterable(one["DeviceIDs"].values())) for one in entries}


def test_pods_get_devices_where_there_are_enough(plane: ControlPlane, nodes: tuple[ClusterNode, ClusterNode]) -> None:
    empty, full = nodes
    for node in nodes:
        shown = plane.admin.get("Node", node.name)["status"]
        assert not {one for one in shown["capacity"] if one.startswith("example.com")}
    full.plugin(GPU, 10)
    shown = plane.admin.get("Node", full.name)["status"]
    assert (shown["capacity"][GPU], shown["allocatable"][GPU]) == ("10", "10")
    # A kubelet counts devices before it writes the checkpoint (genericDeviceUpdateCallback).
    wait_for("the checkpoint", (full.device_plugins / "kubelet_internal_checkpoint").exists)
    assert sorted(_checkpoint(full)["RegisteredDevices"][GPU]) == ALL_GPUS

    _create(plane, "test-gpu-8", gpu=8)
    assert _running_on(plane, "test-gpu-8") == full.name
    eight = _held(full, plane, "test-gpu-8")[GPU]
    assert len(eight) == 8

    _create(plane, "test-gpu-3", gpu=3)
    events = wait_for("an event from the scheduler", lambda: _failures(plane, "test-gpu-3"))
    assert f"2 Insufficient {GPU}" in events[0]["message"]
    assert plane.admin.get("Pod", "test-gpu-3")["status"]["phase"] == "Pending"

    empty.plugin(GPU, 10)
    assert _running_on(plane, "test-gpu-3") == empty.name

    full.plugin(RDMA, 10)
    _create(plane, "test-gpu2-rdma10", gpu=2, rdma=10)
    assert _running_on(plane, "test-gpu2-rdma10") == full.name
    held = _held(full, plane, "test-gpu2-rdma10")
    assert sorted(eight + held[GPU]) == ALL_GPUS
    assert len(held[RDMA]) == 10

    plane.admin.delete("Pod", "test-gpu-8", grace=1)
    wait_for("the pod to be gone", lambda: plane.admin.get("Pod", "test-gpu-8") is None)
    _create(plane, "again", gpu=8)
    assert _running_on(plane, "again") == full.name
    assert _held(full, plane, "again")[GPU] == eight


def _failures(plane: ControlPlane, name: str) -> list[Json]:
    found = plane.admin.list("Event", fieldSelector=f"involvedObject.name={name}")
    return [one for one in found if one["reason"] == "FailedScheduling"]
