"""A fleet node whose requests the test sends: what is sent while someone replaces its Node."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from devicecore_fleet.cluster.process import Process
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words.leases import holder, lease
from devicecore_fleet.cluster.words.nodes import node_object
from devicecore_fleet.fleet.connection import ServerConnection, SharedConnection, describe
from devicecore_fleet.fleet.reading import parse_fleet
from devicecore_fleet.fleet.slices import StoredSlices
from devicecore_tools.node.feed import PodReport
from devicecore_tools.node.outcome import Outcome, OutcomeKind
from devicecore_tools.testing.api_server import LocalApiServer
from devicecore_tools.testing.api_server.faults import Answer, Drop, RunFirst
from tests.cluster.jobs import Jobs

from devicecore import NodeStatus, ResourceName
from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.dra import KubeApiClaims

Json = Any

NAME = "n-0"
FILE = f"nodes:\n- {{name: {NAME}, plugins: [{{resource: example.com/gpu, devices: 1}}]}}\n"


class Connected:
    """A registered node with a connection, whose requests the test sends."""

    def __init__(self, server: LocalApiServer, requests: KubeApiRequests, access: Access) -> None:
        self.server = server
        self.requests = requests
        self.jobs = Jobs()
        ((_, self.group),) = parse_fleet(FILE, "fleet.yaml").nodes()
        claims, slices = KubeApiClaims(access), StoredSlices(lambda _: True)
        self.shared = SharedConnection(self.jobs, claims, slices, ("10.0.0.1",), process=Process("a"))
        self.connection = ServerConnection(NAME, self.group, self.shared, lambda: None)
        self.link = self.connection.link()
        self.connection.tick()
        self.jobs.run(requests)
        self.connection.gate.listed([])

    def replaced(self, process: str = "") -> None:
        """Delete the Node and its Lease, and create a machine's Node, or another process's Node and Lease."""
        self.server.delete("Node", NAME)
        self.server.delete("Lease", NAME, "kube-node-lease")
        if not process:
            self.server.create({"kind": "Node", "apiVersion": "v1", "metadata": {"name": NAME}})
            return
        now = datetime.now(UTC)
        made = self.server.create(node_object(describe(NAME, self.group, 0, (), taints=True), now))
        self.server.create(lease(NAME, process, made["metadata"]["uid"], now))

    def bound(self, name: str) -> Json:
        """Return a new pod that is bound to the node."""
        spec = {"nodeName": NAME, "containers": [{"name": "main", "image": "none"}]}
        return self.server.create({"kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def takes(self, pod: Json) -> None:
        """Show the node a pod, and report that the pod runs."""
        self.connection.gate.seen("ADDED", pod)
        self.runs()

    def runs(self) -> None:
        """Report, for each pod that the node has newly seen, that the pod runs."""
        for found in self.link.feed.poll().added:
            self.link.reporter.report(found, PodReport(Outcome(OutcomeKind.RUNS), {}))

    def sent(self) -> list[str]:
        """Run the pending jobs, and return the requests that they sent."""
        return self.jobs.sent(self.requests, self.server)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Connected]:
    with LocalApiServer() as server:
        access = Access(server.kubeconfig(tmp_path / "kubeconfig"))
        with KubeApiRequests(access) as requests:
            yield Connected(server, requests, access)


def test_after_a_partition_the_node_is_read_before_anything_else_is_sent(node: Connected) -> None:
    node.connection.cut(is_cut=True)
    node.replaced()
    node.takes(node.bound("database"))
    node.connection.tick()
    assert node.sent() == []
    node.connection.cut(is_cut=False)
    node.runs()
    assert node.link.feed.active_pods() == frozenset(), "the node does not see the pod yet"
    assert node.sent() == ["get nodes"]
    assert node.connection.refusal
    node.takes(node.bound("more"))
    node.connection.tick()
    assert node.sent() == []


def test_a_lease_is_not_renewed_while_the_node_is_in_doubt(node: Connected) -> None:
    node.connection.tick()
    node.replaced()
    node.connection.seen(None)
    assert node.sent() == ["get nodes"]
    assert node.connection.refusal


def test_someone_elses_node_that_the_watch_shows_is_not_ours(node: Connected) -> None:
    node.replaced()
    node.connection.seen(node.server.get("Node", NAME))
    assert node.sent() == ["get nodes"]
    assert node.connection.refusal


def test_nothing_is_sent_about_a_pod_bound_to_someone_elses_node(node: Connected) -> None:
    """The node does not know yet that its Node was replaced."""
    node.replaced()
    node.takes(node.bound("theirs"))
    assert {*node.sent()} == {"get nodes"}
    assert node.connection.refusal, "a refused node does not renew the Lease of the other Node"


def test_a_status_is_not_written_into_someone_elses_node(node: Connected) -> None:
    node.replaced()
    before = node.server.get("Node", NAME)
    node.link.sink.publish(NodeStatus({ResourceName("example.com/gpu"): 2}, {}))
    with pytest.raises(RequestError, match="uid"):
        node.sent()
    assert node.server.get("Node", NAME) == before
    node.link.sink.publish(NodeStatus())
    assert node.sent() == ["get nodes"]
    assert node.connection.refusal


def test_a_node_that_cannot_be_read_after_a_partition_is_read_again(node: Connected) -> None:
    node.connection.cut(is_cut=True)
    node.server.inject(Answer(500), verb="get", resource="nodes")
    node.connection.cut(is_cut=False)
    with pytest.raises(RequestError, match="500"):
        node.sent()
    node.takes(node.bound("pod"))
    assert node.sent() == []
    node.connection.tick()
    node.sent()
    node.runs()
    assert "patch pods/status" in node.sent()


def test_a_node_of_another_process_is_not_mistaken_for_the_deleted_one(node: Connected) -> None:
    """Both Nodes have a fleet's labels, and only the Lease says whose Node each one is."""
    node.replaced("b")
    node.connection.seen(None)
    node.takes(node.bound("theirs"))
    node.connection.tick()
    assert node.sent() == ["get nodes", "get leases"]
    node.link.sink.publish(NodeStatus())
    assert node.sent() == ["get nodes", "get leases"], "the Node is read again, and nothing is changed"
    (found,) = node.server.objects("Lease", "kube-node-lease")
    assert found["spec"]["holderIdentity"] == holder(NAME, "b")


def test_a_node_without_a_lease_gets_one_when_it_is_known_to_be_there(node: Connected) -> None:
    node.server.delete("Lease", NAME, "kube-node-lease")
    node.connection.tick()
    assert node.sent() == ["update leases", "get leases", "get nodes", "create leases"]


def test_requests_of_a_run_before_are_not_sent_when_the_node_is_up_again(node: Connected) -> None:
    node.takes(node.bound("pod"))
    assert [key[0] for key in node.jobs.waiting if isinstance(key, tuple)] == ["pod"]
    node.connection.cut(is_cut=True)
    node.link = node.connection.link()
    node.connection.cut(is_cut=False)
    node.connection.tick()
    assert "patch pods/status" not in node.sent()


def new_node(node: Connected, group: Json = None) -> ServerConnection:
    """Return the connection of a different node with the same name."""
    made = ServerConnection(NAME, group or node.group, node.shared, lambda: None)
    made.link()
    made.tick()
    return made


def nodes(node: Connected) -> list[str]:
    return [one["metadata"]["name"] for one in node.server.objects("Node")]


@pytest.mark.parametrize(("verb", "resource"), [("create", "nodes"), ("create", "events"), ("update", "leases")])
def test_a_node_that_is_removed_while_it_is_registered_is_deleted(node: Connected, verb: str, resource: str) -> None:
    """The node is removed just before the server executes one of the requests of the registration."""
    node.connection.remove()
    node.sent()
    made = new_node(node)
    node.server.inject(RunFirst(made.remove), verb=verb, resource=resource)
    node.sent()
    assert nodes(node) == []


def test_a_node_whose_registration_had_no_answer_is_deleted(node: Connected) -> None:
    node.connection.remove()
    node.sent()
    made = new_node(node)
    node.server.inject(Drop(after=True), verb="create", resource="nodes")
    with pytest.raises(RequestError):
        node.sent()
    assert nodes(node) == [NAME]
    made.remove()
    node.sent()
    assert nodes(node) == []


def test_a_node_that_is_removed_before_it_is_registered_again_is_deleted(node: Connected) -> None:
    node.link = node.connection.link()
    node.connection.remove()
    node.sent()
    assert nodes(node) == []
    assert not node.shared.removals


def test_a_node_that_is_added_while_its_name_is_removed_gets_a_node_of_its_own(node: Connected) -> None:
    before = node.server.get("Node", NAME)["metadata"]["uid"]
    node.connection.remove()
    new_node(node)
    node.sent()
    assert node.server.get("Node", NAME)["metadata"]["uid"] != before


def test_a_node_that_is_added_and_removed_again_and_again_leaves_nothing(node: Connected) -> None:
    node.connection.remove()
    for _ in range(3):
        new_node(node).remove()
    node.sent()
    assert nodes(node) == []
    assert not node.shared.removals


@pytest.mark.parametrize("process", ["", "b"])
def test_the_node_of_somebody_else_stays_when_ours_is_removed(node: Connected, process: str) -> None:
    node.replaced(process)
    if process:
        now = datetime.now(UTC)
        node.server.change(
            "Lease", NAME, lambda one: one["spec"].update(renewTime=f"{now:%FT%T.%fZ}"), "kube-node-lease"
        )
    node.connection.remove()
    assert not any(one.startswith("delete") for one in node.sent())
    assert nodes(node) == [NAME]


def test_labels_that_change_twice_before_the_node_is_registered_are_the_last(node: Connected) -> None:
    for zone in ("a", "b"):
        node.connection.change(evolve(node.group, labels={"zone": zone, f"only-{zone}": ""}))
        node.link = node.connection.link()
        node.connection.tick()
    node.connection.change(evolve(node.group, labels={"zone": "c"}))
    node.connection.change(evolve(node.group, labels={"zone": "d"}))
    node.link = node.connection.link()
    node.connection.tick()
    node.sent()
    labels = node.server.get("Node", NAME)["metadata"]["labels"]
    assert {key: text for key, text in labels.items() if key in ("zone", "only-a", "only-b")} == {"zone": "d"}


def test_a_node_that_is_down_does_not_send_its_new_labels(node: Connected) -> None:
    node.connection.cut(is_cut=True)
    node.connection.change(evolve(node.group, labels={"zone": "a"}))
    assert node.sent() == []
    node.link = node.connection.link()
    node.connection.cut(is_cut=False)
    node.connection.tick()
    node.sent()
    assert node.server.get("Node", NAME)["metadata"]["labels"]["zone"] == "a"


def test_a_list_without_a_pod_ends_that_pod_and_no_other(node: Connected) -> None:
    kept, gone = node.bound("kept"), node.bound("gone")
    for pod in (kept, gone):
        node.takes(pod)
    node.connection.gate.listed([kept])
    assert node.link.feed.poll().removed
    assert node.link.feed.active_pods() == {kept["metadata"]["uid"]}
