"""NodeResourceTopology objects: how they describe the devices, and when they are written."""

from collections.abc import Hashable, Iterator
from typing import Any

import pytest
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.topology import KIND_RETRY, TopologyPublisher
from devicecore_fleet.cluster.words.topology import topology_object
from devicecore_fleet.cluster.writer import Job, Writer
from devicecore_tools.testing.api_server import LocalApiServer

from devicecore import Container, Device, DeviceId, DeviceManager, Health, NumaNode, Pod, PodUid, ResourceName
from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.topology import Topology
from devicecore.plugins.simulated import SimulatedPlugin

GPU = "example.com/gpu"
TOPOLOGY = Topology((0, 1), "single-numa-node", "pod")
GROUP = "topology.node.k8s.io"
DEFINITION = {
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"noderesourcetopologies.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Cluster",
        "names": {"kind": "NodeResourceTopology", "plural": "noderesourcetopologies"},
        "versions": [{"name": "v1alpha2", "served": True, "storage": True}],
    },
}


def devices(unhealthy: str = "") -> list[Device]:
    """Return two devices on each of two NUMA nodes, one device on both, and one on neither."""
    places = {"a0": (0,), "a1": (0,), "b0": (1,), "b1": (1,), "both": (0, 1), "free": ()}
    return [
        Device(DeviceId(id_), Health.UNHEALTHY if id_ == unhealthy else Health.HEALTHY, tuple(map(NumaNode, places)))
        for id_, places in places.items()
    ]


@pytest.fixture
def manager() -> Iterator[DeviceManager]:
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink(), topology=TOPOLOGY) as manager:
        plugin = SimulatedPlugin(GPU, devices("a1"))
        transport.connect(plugin)
        manager.wait_for(lambda state: state.inventory.current_report(plugin.resource), timeout=60)
        yield manager


class KeptJobs(Writer):
    """Keeps the newest job for each key, which the test then runs."""

    def __init__(self) -> None:
        self.jobs: dict[Hashable, Job] = {}

    def put(self, key: Hashable, job: Job) -> None:
        self.jobs[key] = job


def sizes(zone: dict[str, Any]) -> tuple[str, str, str]:
    (resource,) = zone["resources"]
    return resource["capacity"], resource["allocatable"], resource["available"]


def test_each_numa_node_has_its_devices(manager: DeviceManager) -> None:
    found = topology_object("n", manager.state, TOPOLOGY, uid="u")
    assert found["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert [one["value"] for one in found["attributes"]] == ["single-numa-node", "pod"]
    assert [(zone["name"], zone["type"]) for zone in found["zones"]] == [("node-0", "Node"), ("node-1", "Node")]
    assert [[cost["value"] for cost in zone["costs"]] for zone in found["zones"]] == [[10, 20], [20, 10]]
    assert [sizes(zone) for zone in found["zones"]] == [("3", "2", "2"), ("3", "3", "3")]
    assert manager.admit(Pod(PodUid("p"), containers=(Container("c", {GPU: 2}),)))
    held = manager.state.ledger.in_use(ResourceName(GPU))
    assert len(held) == 2
    free = [one for one in devices("a1") if one.health is Health.HEALTHY and one.id not in held]
    left = [str(sum(node in (one.numa_nodes or ()) for one in free)) for node in TOPOLOGY.numa_nodes]
    zones = topology_object("n", manager.state, TOPOLOGY)["zones"]
    assert [sizes(zone) for zone in zones] == [("3", "2", left[0]), ("3", "3", left[1])]


def test_the_object_is_written_once_for_each_change(manager: DeviceManager, tmp_path: Any) -> None:  # noqa: ANN401 - a path
    writer, uids = KeptJobs(), list[str | None]([None])
    jobs, publisher = writer.jobs, TopologyPublisher("n", TOPOLOGY, writer, lambda: uids[-1])
    with LocalApiServer() as server, KubeApiRequests(Access(server.kubeconfig(tmp_path / "config"))) as requests:
        publisher.publish(manager.state)
        (job,) = jobs.values()
        assert job(requests) == KIND_RETRY, "the kind is not installed"
        server.create(DEFINITION)
        assert job(requests) is None
        before = server.get("NodeResourceTopology", "n")
        assert sizes(before["zones"][0]) == ("3", "2", "2")
        jobs.clear()
        publisher.publish(manager.state)
        assert not jobs
        assert job(requests) is None
        assert server.get("NodeResourceTopology", "n") == before

        uids.append("u")  # the Node is registered now, so its UID is known
        publisher.publish(manager.state)
        (job,) = jobs.values()
        assert job(requests) is None
        assert [one["uid"] for one in server.get("NodeResourceTopology", "n")["metadata"]["ownerReferences"]] == ["u"]

        assert manager.admit(Pod(PodUid("p"), containers=(Container("c", {GPU: 1}),)))
        publisher.publish(manager.state)
        (job,) = jobs.values()
        server.forbidden.add("update noderesourcetopologies")
        with pytest.raises(RequestError, match="forbidden"):
            job(requests)
        server.forbidden.clear()
        assert job(requests) is None
        after = server.get("NodeResourceTopology", "n")
        assert after["zones"] == topology_object("n", manager.state, TOPOLOGY)["zones"] != before["zones"]

        other = TopologyPublisher("n", TOPOLOGY, writer, lambda: "another Node")
        server.change("NodeResourceTopology", "n", lambda one: one["metadata"].update(ownerReferences=[]))
        before = server.get("NodeResourceTopology", "n")
        other.publish(manager.state)
        (job,) = jobs.values()
        assert job(requests) == KIND_RETRY, "another program created it"
        assert server.get("NodeResourceTopology", "n") == before
