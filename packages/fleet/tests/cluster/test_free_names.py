"""A node of a large fleet is registered without reading what is known to be missing."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from devicecore_fleet.cluster.free_names import FreeNames
from devicecore_fleet.cluster.process import Process
from devicecore_fleet.cluster.registration import RegisteredNode
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words.leases import lease
from devicecore_fleet.cluster.words.nodes import NodeDescription
from devicecore_tools.testing.api_server import LocalApiServer
from devicecore_tools.testing.api_server.faults import Answer, RunFirst
from tests.cluster.jobs import Jobs

from devicecore import NodeStatus, ResourceName
from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.access import RequestError

NAMES = ("n-0", "n-1")
GPU = ResourceName("example.com/gpu")
LISTS = ["list nodes", "list leases"]
CREATED = ["create nodes", "create events", "create leases"]
READ = ["get nodes", "get leases"]


class Registrations:
    """Two nodes with names that may be free, and the requests that wait to be sent."""

    def __init__(self, server: LocalApiServer, requests: KubeApiRequests) -> None:
        self.server = server
        self.requests = requests
        self.jobs = Jobs()
        free = FreeNames(set(NAMES))
        self.nodes = [
            RegisteredNode(
                NodeDescription(name, {"cpu": "1"}),
                self.jobs,
                process=Process("a"),
                heartbeat=None,
                is_free=partial(free.take, name),
            )
            for name in NAMES
        ]

    def registered(self, number: int) -> list[str]:
        """Register a node that has devices, and return the requests that the registration needed."""
        self.nodes[number].publish(NodeStatus({GPU: 1}, {GPU: 1}))
        self.nodes[number].tick()
        return self.jobs.sent(self.requests, self.server)

    def create(self, *kinds: str) -> None:
        """Create a machine's Node, or another process's Lease, with the name of the first node."""
        if "Node" in kinds:
            self.server.create({"kind": "Node", "apiVersion": "v1", "metadata": {"name": NAMES[0]}})
        if "Lease" in kinds:
            self.server.create(lease(NAMES[0], "b", None, datetime.now(UTC)))


@pytest.fixture
def registrations(tmp_path: Path) -> Iterator[Registrations]:
    with LocalApiServer() as server, KubeApiRequests(Access(server.kubeconfig(tmp_path / "kubeconfig"))) as requests:
        yield Registrations(server, requests)


def test_two_lists_replace_the_reads_of_all_new_nodes(registrations: Registrations) -> None:
    assert registrations.registered(0) == [*LISTS, *CREATED]
    assert registrations.registered(1) == CREATED
    assert all(node.is_ours and node.problem is None for node in registrations.nodes)


def test_a_node_is_created_with_its_devices(registrations: Registrations) -> None:
    registrations.nodes[0].publish(NodeStatus())  # as a manager does before plugins have registered
    assert not registrations.jobs.waiting
    assert "patch nodes/status" not in registrations.registered(0)
    status = registrations.server.get("Node", NAMES[0])["status"]
    assert status["capacity"][GPU] == status["allocatable"][GPU] == "1"


@pytest.mark.parametrize("kind", ["Node", "Lease"])
def test_a_node_is_read_if_its_name_is_used(registrations: Registrations, kind: str) -> None:
    registrations.create(kind)
    assert registrations.registered(0)[:3] == [*LISTS, "get nodes"]
    assert not registrations.nodes[0].is_ours


def test_a_node_that_appears_after_the_lists_is_left_unchanged(registrations: Registrations) -> None:
    appears = RunFirst(lambda: registrations.create("Node"))
    registrations.server.inject(appears, verb="create", resource="nodes")
    with pytest.raises(RequestError, match="already exists"):
        registrations.registered(0)
    assert registrations.registered(0) == ["get nodes"]
    assert registrations.nodes[0].refusal is not None
    assert "annotations" not in registrations.server.get("Node", NAMES[0])["metadata"]


def test_a_lease_that_appears_after_the_lists_is_left_to_its_holder(registrations: Registrations) -> None:
    appears = RunFirst(lambda: registrations.create("Lease"))
    registrations.server.inject(appears, verb="create", resource="nodes")
    registrations.registered(0)
    assert registrations.nodes[0].refusal is not None
    (found,) = registrations.server.objects("Lease", "kube-node-lease")
    assert found["spec"]["holderIdentity"].endswith("/b")


def test_nodes_are_read_one_by_one_if_the_leases_may_not_be_listed(registrations: Registrations) -> None:
    registrations.server.inject(Answer(403), verb="list", resource="leases")
    assert registrations.registered(0) == [*LISTS, *READ, *CREATED]
    assert registrations.registered(1) == [*READ, *CREATED]


def test_the_lists_are_read_again_after_a_failure(registrations: Registrations) -> None:
    registrations.server.inject(Answer(500), verb="list", resource="nodes")
    with pytest.raises(RequestError, match="500"):
        registrations.registered(0)
    assert registrations.registered(0) == [*LISTS, *CREATED]
