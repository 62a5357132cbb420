"""`KubeApiSink` alongside a real kubelet: neither changes the other's fields."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from devicecore import NodeStatus, resource_name
from devicecore.adapters.kube_api import Access, KubeApiSink, PatchStrategy
from tests.real_cluster.control_plane import ControlPlane
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import GPU, is_ready
from tests.real_cluster.programs import wait_for
from tests.real_cluster.trouble import settle

Json = Any

OURS = "devicecore.io/thing"
_COPIES = 12.0  # seconds; a kubelet copies capacity to allocatable every ten seconds


@pytest.fixture
def kubelet(plane: ControlPlane) -> Iterator[RealKubelet]:
    with RealKubelet(plane, "beside") as node:
        yield node
    plane.admin.delete("Node", "beside")


def _counts(plane: ControlPlane, resource: str) -> tuple[str | None, str | None]:
    status = plane.admin.get("Node", "beside")["status"]
    return status["capacity"].get(resource), status["allocatable"].get(resource)


@pytest.mark.parametrize("strategy", list(PatchStrategy), ids=lambda one: one.value)
def test_what_the_sink_publishes_stays_alongside_a_real_kubelet(
    plane: ControlPlane, kubelet: RealKubelet, strategy: PatchStrategy
) -> None:
    kubelet.plugin(GPU, 3)
    access = Access(plane.kubeconfig())
    thing = resource_name(OURS)
    before = plane.admin.get("Node", "beside")["status"]
    with KubeApiSink("beside", access, strategy=strategy, beside_kubelet=True) as sink:
        sink.publish(NodeStatus({thing: 4}, {thing: 3}))
        sink.wait_until_published(30.0)
        settle(_COPIES)
        assert _counts(plane, OURS) == ("3", "3")
        assert _counts(plane, GPU) == ("3", "3")
        kubelet.kubelet.stop()
        kubelet.kubelet.start()  # when it starts, a kubelet sets third-party extended resources to zero
        wait_for("the Node to have the devices again", lambda: _counts(plane, OURS) == ("3", "3"), 60.0)
        sink.publish(NodeStatus({thing: 2}, {thing: 2}))
        sink.wait_until_published(30.0)
        assert _counts(plane, OURS) == ("2", "2")
    after = plane.admin.get("Node", "beside")
    assert is_ready(after)
    assert _without(before) == _without(after["status"])


def _without(status: Json) -> Json:
    """Return the status without fields that change on their own, and without the sink's and the plugin's resources."""
    kept = json.loads(json.dumps({key: value for key, value in status.items() if key not in ("conditions", "images")}))
    for part in ("capacity", "allocatable"):
        for name in (OURS, GPU):
            kept[part].pop(name, None)
    return kept
