"""Responses of HTTP servers that behave differently from the API server for tests."""

import math
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import httpcore2
import httpx2
import pytest
from devicecore_tools.testing.api_server import LocalApiServer

from devicecore.adapters.kube_api.access import Access, ApiRequest, ApiServer, RequestError
from devicecore.adapters.kube_api.http import Transport, WholeAnswer

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[Transport, list[int]]]:
    """Run a server that gives these answers in turn, and closes the connection after the last and after each `<END>`.

    Yield a client for the server, and a list with the number of answers on each connection.
    """
    left, had = list(answers), list[int]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while left:
                connection, _ = listener.accept()
                with connection:
                    had.append(0)
                    while left and connection.recv(65536):
                        answer = left.pop(0)
                        had[-1] += 1
                        for part in answer.removesuffix(b"<END>").split(b"<PART>"):
                            connection.sendall(part)
                        if answer.endswith(b"<END>"):
                            break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = httpx2.URL(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        transport = Transport(url, ssl.create_default_context(), 10.0, {})
        try:
            yield transport, had
        finally:
            transport.close()
        thread.join(10)


def asked(*answers: bytes) -> tuple[Sequence[WholeAnswer], list[int]]:
    """Return what a client gets for one request per answer, and the number of answers on each connection."""
    with answering(*answers) as (transport, had):
        return [transport.send("GET", b"x", {}, None) for _ in answers], had


@pytest.mark.parametrize(("parts", "connections"), [(0, [1, 1]), (1, [1, 1]), (3, [2])])
def test_a_stream_that_is_not_read_to_its_end_ends_its_connection(parts: int, connections: list[int]) -> None:
    chunks = OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
    with answering(chunks, OK + b"Content-Length: 1\r\n\r\n0") as (transport, had):
        with closing(transport.stream("GET", b"x", {})) as answer:
            read = [part for part, _ in zip(answer.parts, range(parts), strict=False)]
        assert read == [b"a", b"b"][:parts]
        assert transport.send("GET", b"x", {}, None).content == b"0"
    assert had == connections


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (OK + b"Content-Length: 2\r\n\r\n{}", b"{}"),
        (OK + b"content-length:0\r\n\r\n", b""),
        (OK + b"Content-Length: 2\r\n<PART>\r\n{<PART>}", b"{}"),
        (
            OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nAfter: x\r\n\r\n",
            b"abc0123456789",
        ),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\n1\r\n<PART>a<PART>\r\n0\r<PART>\n\r\n", b"a"),
        (OK + b"Content-Length: 40000\r\n\r\n" + b"x" * 40000, b"x" * 40000),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\n0", b"0"),
        (b"HTTP/1.1 204\r\n\r\n", b""),
    ],
)
def test_an_answer_is_read_to_its_end_and_its_connection_kept(answer: bytes, content: bytes) -> None:
    answers, had = asked(answer, answer)
    assert [one.content for one in answers] == [content, content]
    assert had == [2]


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}<END>",
        OK + b"\r\n{}<END>",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}<END>",
        OK + b"Content-Length: 2\r\n\r\n{}" + OK + b"Content-Length: 5\r\n\r\nother<END>",
    ],
)
def test_the_next_request_goes_over_a_new_connection(answer: bytes) -> None:
    """The server closes the connection, or sends an extra answer that the next request would otherwise get."""
    answers, had = asked(answer, answer)
    assert [one.content for one in answers] == [b"{}", b"{}"]
    assert had == [1, 1]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n<END>", "not HTTP"),
        (b"HTTP/2 200\r\n\r\n<END>", "not HTTP"),
        (b"<END>", "closed the connection"),
        (OK + b"Content-Length: 3\r\n\r\n{}<END>", "closed the connection"),
        (OK + b"Content-Length: -3\r\n\r\n{}<END>", "not a number"),
        (OK + b"Content-Length: 1\xb2\r\n\r\n{}<END>", "not a number"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nab<END>", "closed the connection"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n<END>", "chunk of the wrong size"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n<END>", "without a size"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n\r\n<END>", "without a size"),
        (OK + b"X: " + b"y" * 100_000 + b"<END>", "too long"),
    ],
)
def test_a_malformed_answer_is_an_error(answer: bytes, problem: str) -> None:
    with answering(answer) as (transport, _), pytest.raises(httpcore2.RemoteProtocolError, match=problem):
        transport.send("GET", b"x", {}, None)


def test_the_pause_that_a_server_asks_for_is_read() -> None:
    (answer,), _ = asked(b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\nContent-Length: 0\r\n\r\n")
    assert (answer.status, answer.retry_after) == (429, "7")


def test_a_number_that_is_not_finite_removes_no_field(tmp_path: Path) -> None:
    """If the number were written as null, the merge patch would remove the field."""
    with LocalApiServer() as api:
        api.create({"kind": "Node", "metadata": {"name": "n", "labels": {"a": "b"}}})
        server = ApiServer(Access(kubeconfig=api.kubeconfig(tmp_path / "config")), {})
        body = {"metadata": {"labels": {"a": math.nan}}}
        patch = ApiRequest("patch nodes", "PATCH", "api/v1/nodes/n", body=body, kind="application/merge-patch+json")
        with pytest.raises(RequestError):
            server.send(patch)
        server.disconnect()
        assert api.get("Node", "n")["metadata"]["labels"] == {"a": "b"}
