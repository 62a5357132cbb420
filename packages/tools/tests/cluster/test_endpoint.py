"""The server at the address of a Node: what kube-apiserver asks a kubelet is refused, and clients have bounds."""

import json
import socket
import ssl
from contextlib import ExitStack, suppress
from http.client import HTTPSConnection

import pytest
from devicecore_tools.node.cluster import endpoint
from devicecore_tools.node.cluster.endpoint import Endpoint, RefusalServer, listen
from devicecore_tools.node.cluster.words.nodes import NodeDescription

HERE, SECONDS = "127.0.0.1", 20.0
STREAM = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
LIKE_API_SERVER = ssl.create_default_context()
LIKE_API_SERVER.check_hostname, LIKE_API_SERVER.verify_mode = False, ssl.CERT_NONE


def ask(port: int, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    connection = HTTPSConnection(HERE, port, timeout=SECONDS, context=LIKE_API_SERVER)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("exec", "so nothing can be executed in it"),
        ("attach", "so there is nothing to attach to"),
        ("portForward", "so no port is open"),
    ],
)
def test_streams_are_refused_with_a_status_and_logs_with_a_sentence(kind: str, why: str) -> None:
    said = "pod default/p is on a node that devicecore simulates: no container runs"
    with RefusalServer(HERE) as server:
        answer = ask(server.port, "GET", "/containerLogs/default/p/c?follow=true")
        assert answer == (400, f"{said}, so there are no logs")
        code, body = ask(server.port, "POST", f"/{kind}/default/p/c?command=sh", STREAM)
        status = json.loads(body)
        assert (code, status["code"], status["reason"]) == (400, 400, "BadRequest")
        assert status["message"] == f"{said}, {why}"
        code, body = ask(server.port, "GET", "/metrics/%1b[2J")
        assert (code, body) == (404, "devicecore simulates the nodes at this address, and has no /metrics/\\x1b[2J")


def test_clients_that_stall_or_send_too_much_delay_others_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(endpoint, "PATIENCE", 1.0)
    with RefusalServer(HERE) as server, ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HERE, server.port), SECONDS)) for _ in range(4)]
        assert ask(server.port, "GET", "/pods")[0] == 404
        assert [one.recv(1) for one in silent] == [b""] * 4
        plain = stack.enter_context(socket.create_connection((HERE, server.port), SECONDS))
        bare = stack.enter_context(socket.create_connection((HERE, server.port), SECONDS))
        large = stack.enter_context(LIKE_API_SERVER.wrap_socket(bare))
        for one in (plain, large):
            one.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * endpoint.MAX_HEAD)
            with suppress(OSError):  # it may be reset, because what it sent was not read
                assert one.recv(1) == b""


def test_a_node_shows_where_the_server_is_or_the_log_why_there_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        found = listen(HERE, 0, stack)
        virtual = found.described(NodeDescription("n", {}))
        assert virtual.addresses == (("InternalIP", HERE), ("Hostname", HERE))
        assert virtual.port == found.port > 0
        machine = found.described(NodeDescription("n", {}), is_machine=True)
        assert machine.addresses == (("InternalIP", HERE), ("Hostname", "n"))
        assert not caplog.text
        assert listen(HERE, found.port, stack) == Endpoint(HERE)
        assert "Address already in use" in caplog.text
        monkeypatch.setattr(endpoint, "_FAR", ())
        nowhere = listen(None, 0, stack)
        assert "no address of this machine is known" in caplog.text
    assert nowhere.described(NodeDescription("n", {})) == NodeDescription("n", {}, addresses=(("Hostname", "n"),))
