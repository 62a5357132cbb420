"""A registered node whose Node someone else changes, deletes or replaces: when is the Node no longer ours?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devicecore_fleet.cluster.process import Process
from devicecore_fleet.cluster.registration import RegisteredNode
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words.nodes import NodeDescription
from devicecore_tools.testing.api_server import LocalApiServer
from devicecore_tools.testing.api_server.faults import Answer, RunFirst
from tests.cluster.jobs import Jobs

from devicecore import NodeStatus, ResourceName
from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.access import RequestError

Json = Any

NAME = "n-0"
IPS = ("10.0.0.1", "fd00::1")


class Registration:
    """A node, the server where it registers, and the requests that wait to be sent."""

    def __init__(self, server: LocalApiServer, requests: KubeApiRequests) -> None:
        self.server = server
        self.requests = requests
        self.jobs = Jobs()
        self.refusals: list[str | None] = []
        self.node = self.new_node()

    def new_node(self, *, adopts: bool = False) -> RegisteredNode:
        description = NodeDescription(NAME, {"cpu": "1"}, {"cpu": "1"}, host_ips=IPS, adopts=adopts)
        return RegisteredNode(description, self.jobs, changed=self.note_change, process=Process("a"), heartbeat=None)

    def note_change(self) -> None:
        """When the node reports a change, record why the node does not touch its Node, or None."""
        self.refusals.append(self.node.refusal)

    def sent(self) -> list[str]:
        """Run the pending jobs, and return the requests that they sent."""
        return self.jobs.sent(self.requests, self.server)

    def stored(self) -> Json:
        return self.server.get("Node", NAME)

    def replace(self) -> None:
        """Delete the Node, and create one that this process could have created."""
        found = self.stored()
        self.server.delete("Node", NAME)
        metadata = {key: found["metadata"][key] for key in ("name", "labels", "annotations")}
        self.server.create({"kind": "Node", "apiVersion": "v1", "metadata": metadata})

    def note(self, verb: str, resource: str) -> list[bool]:
        """Return a list that records whether the Node is ours when the next request of this kind arrives."""
        noted: list[bool] = []
        self.server.inject(RunFirst(lambda: noted.append(self.node.is_ours)), verb=verb, resource=resource)
        return noted


@pytest.fixture
def registration(tmp_path: Path) -> Iterator[Registration]:
    with LocalApiServer() as server, KubeApiRequests(Access(server.kubeconfig(tmp_path / "kubeconfig"))) as requests:
        found = Registration(server, requests)
        found.node.tick()
        found.sent()
        assert found.node.is_ours
        yield found


def _without_annotations(node: Json) -> None:
    del node["metadata"]["annotations"]


def test_our_node_is_deleted_even_if_somebody_has_removed_its_annotations(registration: Registration) -> None:
    registration.server.change("Node", NAME, _without_annotations)
    assert registration.node.delete(registration.requests) is None
    assert registration.server.objects("Node") == []


def test_a_node_that_was_replaced_is_not_ours_until_its_lease_has_been_read(registration: Registration) -> None:
    registration.replace()
    registration.node.publish(NodeStatus({ResourceName("example.com/gpu"): 1}))
    with pytest.raises(RequestError, match="uid"):
        registration.sent()
    noted = registration.note("get", "leases")
    registration.node.tick()
    registration.sent()
    assert noted == [False]
    assert registration.node.is_ours


def test_a_doubt_that_arises_while_the_node_is_read_lasts_until_the_next_read(registration: Registration) -> None:
    registration.node.doubt()
    registration.server.inject(RunFirst(registration.node.doubt), verb="get", resource="nodes")
    noted = registration.note("get", "nodes")
    assert registration.sent() == ["get nodes", "get nodes", "update leases"]
    assert noted == [False]
    assert registration.node.is_ours


def test_a_node_that_replaces_one_that_is_being_adopted_is_left_unchanged(registration: Registration) -> None:
    registration.server.change("Node", NAME, _without_annotations)
    registration.node = registration.new_node(adopts=True)
    registration.node.tick()
    registration.server.inject(RunFirst(lambda: _replace_by_machine(registration)), verb="patch", resource="nodes")
    with pytest.raises(RequestError, match="uid"):
        registration.sent()
    assert "annotations" not in registration.stored()["metadata"]


def _replace_by_machine(registration: Registration) -> None:
    registration.server.delete("Node", NAME)
    registration.server.create({"kind": "Node", "apiVersion": "v1", "metadata": {"name": NAME}})


def test_an_answer_that_is_older_than_what_the_watch_has_shown_is_not_taken(registration: Registration) -> None:
    old = registration.stored()
    registration.server.change("Node", NAME, lambda node: node["metadata"]["labels"].update(zone="a"))
    registration.node.seen(registration.stored())
    registration.server.inject(Answer(200, old), verb="get", resource="nodes")
    registration.node.doubt()
    registration.sent()
    assert registration.node.node["metadata"]["labels"]["zone"] == "a"


def test_a_node_that_a_request_did_not_find_is_not_ours(registration: Registration) -> None:
    registration.server.delete("Node", NAME)
    registration.node.publish(NodeStatus({ResourceName("example.com/gpu"): 1}))
    registration.sent()
    assert registration.node.is_gone
    assert not registration.node.is_ours


def test_a_refusal_is_a_change_that_is_said(registration: Registration) -> None:
    _replace_by_machine(registration)
    registration.node.seen(registration.stored())
    registration.sent()
    assert registration.refusals[-1] is not None
    assert registration.refusals[-1] == registration.node.refusal


@pytest.mark.parametrize("others", [["10.0.0.9"], ["fd00::9"], ["fd00::1", "10.0.0.1"], ["10.0.0.9", "fd00::1", "::1"]])
def test_addresses_of_one_type_are_corrected_together_and_those_of_other_types_stay(
    registration: Registration, others: list[str]
) -> None:
    dns = {"type": "ExternalDNS", "address": "n-0.example.com"}
    shown = [*({"type": "InternalIP", "address": one} for one in others), dns]
    registration.server.change("Node", NAME, lambda node: node["status"].update(addresses=shown))
    registration.node.seen(registration.stored())
    assert registration.sent() == ["patch nodes/status"]
    ours = [*({"type": "InternalIP", "address": one} for one in IPS), {"type": "Hostname", "address": NAME}]
    assert registration.stored()["status"]["addresses"] == [*ours, dns]
