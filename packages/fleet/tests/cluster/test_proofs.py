"""One request can prove the pods of several nodes, and someone else's Node never proves a pod."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devicecore_fleet.cluster.process import Process
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.fleet.connection import ServerConnection, SharedConnection
from devicecore_fleet.fleet.reading import parse_fleet
from devicecore_fleet.fleet.slices import StoredSlices
from devicecore_fleet.fleet.virtual_node import NodeLink
from devicecore_tools.node.feed import PodReport
from devicecore_tools.node.outcome import Outcome, OutcomeKind
from devicecore_tools.testing.api_server import LocalApiServer
from devicecore_tools.testing.api_server.faults import Answer
from tests.cluster.jobs import Jobs

from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.dra import KubeApiClaims
from devicecore.adapters.kube_api.requests import NODES, PODS

Json = Any

FILE = "nodes:\n- {name: 'n-{number}', count: 5, plugins: [{resource: example.com/gpu, devices: 1}]}\n"


class Nodes:
    """Five registered nodes. The test decides when their requests are sent."""

    def __init__(self, server: LocalApiServer, requests: KubeApiRequests, access: Access) -> None:
        self.server = server
        self.requests = requests
        self.jobs = Jobs()
        shared = SharedConnection(
            self.jobs, KubeApiClaims(access), StoredSlices(lambda _: True), ("10.0.0.1",), process=Process("a")
        )
        self.nodes: dict[str, tuple[ServerConnection, NodeLink]] = {}
        for name, group in parse_fleet(FILE, "fleet.yaml").nodes():
            connection = ServerConnection(name, group, shared, lambda: None)
            self.nodes[name] = connection, connection.link()
            connection.tick()
            self.jobs.run(requests)
            connection.gate.listed([])

    def runs(self, *names: str) -> None:
        """Bind a pod to each of these nodes, and report that the pod runs there."""
        for name in names:
            connection, link = self.nodes[name]
            spec = {"nodeName": name, "containers": [{"name": "main", "image": "none"}]}
            pod = {"kind": "Pod", "metadata": {"generateName": f"{name}-"}, "spec": spec}
            connection.gate.seen("ADDED", self.server.create(pod))
            for found in link.feed.poll().added:
                link.reporter.report(found, PodReport(Outcome(OutcomeKind.RUNS), {}))

    def sent(self) -> list[str]:
        """Run the pending jobs, and return the requests that they sent."""
        return self.jobs.sent(self.requests, self.server)

    def phases(self) -> dict[str, str]:
        """Return, by node, the phase of the last pod in the list that is bound to the node."""
        pods = self.requests.list(PODS)
        return {one["spec"]["nodeName"]: one["status"].get("phase", "Pending") for one in pods}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with LocalApiServer() as server:
        access = Access(server.kubeconfig(tmp_path / "kubeconfig"))
        with KubeApiRequests(access) as requests:
            yield Nodes(server, requests, access)


def test_one_request_reads_the_nodes_of_many_pods(nodes: Nodes) -> None:
    nodes.runs(*nodes.nodes)
    assert nodes.sent() == ["list nodes", *["patch pods/status"] * 5]
    assert set(nodes.phases().values()) == {"Running"}


def test_few_nodes_are_read_one_by_one(nodes: Nodes) -> None:
    nodes.runs("n-0", "n-1")
    assert nodes.sent() == ["get nodes", "patch pods/status"] * 2


def test_a_pod_that_is_seen_after_a_read_needs_another(nodes: Nodes) -> None:
    nodes.runs(*nodes.nodes)
    nodes.sent()
    nodes.runs("n-0", "n-0", "n-1", "n-2")
    assert nodes.sent() == ["list nodes", *["patch pods/status"] * 4]


@pytest.mark.parametrize("name", ["n-0", "n-3"])
def test_pods_of_a_replaced_node_get_no_status(nodes: Nodes, name: str) -> None:
    """The replaced Node belongs to the node that sends the request, or to a different node."""
    nodes.server.delete("Node", name)
    nodes.server.create(
        {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
    )
    nodes.runs(*nodes.nodes)
    sent = nodes.sent()
    assert sent.count("patch pods/status") == 4
    assert "get nodes" in sent, "the node finds out that its Node was replaced"
    assert nodes.phases() == {one: "Pending" if one == name else "Running" for one in nodes.nodes}
    assert nodes.nodes[name][0].refusal


def test_a_node_without_the_label_is_read_by_its_name(nodes: Nodes) -> None:
    nodes.requests.patch(NODES, "n-3", {"metadata": {"labels": {"kubernetes.io/hostname": "other"}}})
    nodes.runs(*nodes.nodes)
    assert nodes.sent() == ["list nodes", *["patch pods/status"] * 3, "get nodes", *["patch pods/status"] * 2]


def test_a_failed_request_proves_nothing(nodes: Nodes) -> None:
    nodes.server.inject(Answer(503), resource="nodes", verb="list")
    nodes.runs(*nodes.nodes)
    with pytest.raises(RequestError, match="503"):
        nodes.sent()
    assert set(nodes.phases().values()) == {"Pending"}
    assert nodes.sent() == ["list nodes", *["patch pods/status"] * 4]
