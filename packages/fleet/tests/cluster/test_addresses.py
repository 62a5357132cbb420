"""The address of a Node: no process listens there, so requests from kube-apiserver to a kubelet are refused."""

import socket
from datetime import UTC, datetime

import pytest
from devicecore_fleet.cluster import addresses
from devicecore_fleet.cluster.addresses import addresses_of
from devicecore_fleet.cluster.words.nodes import NodeDescription, node_object

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def test_a_node_shows_its_address_and_a_port_that_is_closed() -> None:
    status = node_object(NodeDescription("n", {}, host_ips=addresses_of("127.0.0.1")), NOW)["status"]
    shown = [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": "n"}]
    assert status["addresses"] == shown
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", status["daemonEndpoints"]["kubeletEndpoint"]["Port"]), 20.0)


def test_a_node_without_an_address_shows_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_FAR", ())
    status = node_object(NodeDescription("n", {}, host_ips=addresses_of(None)), NOW)["status"]
    assert status["addresses"] == [{"type": "Hostname", "address": "n"}]
