"""Objects over HTTP: connections, requests and responses.

Law: every request is answered with an object, a list, a stream of events, a Status, or text where kube-apiserver sends
text. A request that is not part of the API is refused with kube-apiserver's wording.
"""

import io
import json
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from attrs import evolve

from devicecore.domain.text import foreign_text
from devicecore_tools.testing.api_server import status
from devicecore_tools.testing.api_server.discovery import PROBES, discovery, is_discovery
from devicecore_tools.testing.api_server.faults import Answer, Chunks, Delay, Drop, Fault, Hang, Request, RunFirst
from devicecore_tools.testing.api_server.operations import JSON, Target, carry_out, parsed, target_of
from devicecore_tools.testing.api_server.served import ServedApi
from devicecore_tools.testing.api_server.status import ApiError
from devicecore_tools.testing.api_server.watch import Watch

MAX_BODY = 3 * 1024 * 1024
"""The maximum size of a request body in bytes, the same as kube-apiserver's."""

MAX_CONNECTIONS = 500
"""The maximum number of connections.

Each further connection replaces the one that has waited longest for a request, or is closed if none is waiting.
"""

IDLE_SECONDS = 300.0
"""How long a connection may be silent between two requests or within a request."""

MAX_LARGE = 16
"""How many lists and requests with large bodies are served at the same time.

Each such request may take a few hundred megabytes. The same number of additional large bodies may be received in the
meantime, so slow senders do not keep a list waiting.
"""

BODY_SECONDS = 5.0
"""How long the transfer of a body may take."""

SENDING_SECONDS = 30.0
"""How long a client may stop reading a list before its connection is closed."""

END_SECONDS = 1.0
"""How long `stop` waits for requests in progress."""

_LARGE = 64 * 1024  # bytes above which a body counts as large
_MAX_CHUNK_LINE = 100  # bytes
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_MANY = {"get": "list", "delete": "deletecollection"}


class HttpServer(ThreadingHTTPServer):
    """Listens on a free port of this machine. Each connection has its own thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, api: ServedApi, port: int, context: ssl.SSLContext | None) -> None:
        self.api = api
        self._connections: set[socket.socket] = set()
        self._idle: dict[socket.socket, None] = {}  # connections without a complete request, longest-waiting first
        self._lock = threading.Condition()  # held while `_connections` and `_idle` change
        self.large: threading.BoundedSemaphore = threading.BoundedSemaphore(MAX_LARGE)
        self.bodies: threading.BoundedSemaphore = threading.BoundedSemaphore(2 * MAX_LARGE)
        self._context = context
        super().__init__(("127.0.0.1", port), Handler, bind_and_activate=False)

    def listen(self) -> int:
        """Start listening, and return the port."""
        self.server_bind()
        self.server_activate()
        return int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        The TLS handshake runs in the connection's own thread, because it may fail or take a long time.
        """
        connection, address = super().get_request()
        connection.settimeout(IDLE_SECONDS)
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS and self._idle:
                longest = next(iter(self._idle))
                self._connections.discard(longest)
                self._end(longest)
            self._connections.add(connection)
            self._idle[connection] = None
        return connection, address

    def set_idle(self, connection: socket.socket, *, is_idle: bool) -> None:
        """Record whether a connection is waiting for a request."""
        with self._lock:
            self._idle.pop(connection, None)
            if is_idle and connection in self._connections:
                self._idle[connection] = None

    def _end(self, connection: socket.socket) -> None:
        self._idle.pop(connection, None)
        with suppress(OSError):  # the connection may already be closed
            connection.shutdown(socket.SHUT_RDWR)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401, ARG002 - as in the standard library
        """Return whether a new connection is within the limit. The base class closes a connection beyond it."""
        return len(self._connections) <= MAX_CONNECTIONS

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Forget a closed connection."""
        super().shutdown_request(request)
        if isinstance(request, socket.socket):
            with self._lock:
                self._connections.discard(request)
                self._idle.pop(request, None)
                self._lock.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - as in the standard library
        """Record a bug in the server. An OSError is not a bug: the connection was closed."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.api.bugs.append(error)

    def stop(self, thread: threading.Thread | None) -> None:
        """Stop listening in `thread` and close every connection. A request that does not finish is abandoned."""
        if thread is not None and thread.is_alive():
            self.shutdown()
            thread.join()
        self.server_close()
        with self._lock:
            for connection in self._connections:
                self._end(connection)
            self._lock.wait_for(lambda: not self._connections, END_SECONDS)


class Handler(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a response is sent as one packet
    disable_nagle_algorithm = True  # without this, each response is delayed by 44 ms
    server: HttpServer
    close_connection: bool
    rfile: io.BufferedReader

    def do_GET(self) -> None:
        """Serve a request of any method."""
        self._serve()

    do_POST = do_GET  # noqa: N815 - the names that http.server uses
    do_PUT = do_GET  # noqa: N815 - as above
    do_PATCH = do_GET  # noqa: N815 - as above
    do_DELETE = do_GET  # noqa: N815 - as above

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the standard library
        """Log nothing, because `LocalApiServer.requests` contains everything."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 - as in the standard library
        """Answer a request that `http.server` refuses. The answer is a Status instead of the default HTML page."""
        self.close_connection = True
        reason = HTTPStatus(code)
        problem = foreign_text(message or reason.phrase)
        self._send(
            code, ApiError(code, reason.phrase.title().replace(" ", ""), problem).status, {"Connection": "close"}
        )

    def _serve(self) -> None:
        try:
            with self.server.bodies if self._is_large() else nullcontext():
                self._answer()
        finally:
            self.server.set_idle(self.connection, is_idle=True)

    def _is_large(self) -> bool:
        try:
            return self._is_chunked() or self._length() > _LARGE
        except ApiError:  # the request is refused without reading its body
            return False

    def _answer(self) -> None:
        try:
            body = self._body()
            # Only a body that has been received takes a slot. Otherwise, sixteen clients that stopped sending would
            # block all lists.
            with self.server.large if self._is_large() else nullcontext():
                self._answer_to(body)
        except ApiError as error:
            extra = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
            self._send(error.code, f"{error.message}\n" if error.is_text else error.status, extra)

    def _answer_to(self, body: bytes) -> None:
        api = self.server.api
        request, target = self._read(body)
        self.server.set_idle(self.connection, is_idle=False)
        generation = api.watch_generation
        fault = api.next_fault(request)
        if self._replaced_by(fault):
            return
        match fault:
            case Delay(seconds):
                api.wait(seconds)
            case RunFirst(action):
                action()
            case _:
                pass
        if isinstance(fault, Drop):
            if fault.after and target is not None:
                carry_out(api.store, request, target)
            self.close_connection = True
            return
        api.authorize(request, target)
        self._serve_as_usual(request, target, generation)

    def _serve_as_usual(self, request: Request, target: Target | None, generation: int) -> None:
        api = self.server.api
        if request.path.strip("/") in PROBES:
            self._send(200, "ok", {})
        elif target is None:
            self._send(200, discovery(request.path, api.kinds), {})
        elif request.verb == "list":
            # A list request with a large body already holds a slot, and must not wait for a second slot.
            with nullcontext() if self._is_large() else self.server.large:
                answer = carry_out(api.store, request, target)
                self.connection.settimeout(SENDING_SECONDS)
                self._send(*answer, {})
                self.connection.settimeout(IDLE_SECONDS)
        elif request.verb == "watch":
            self._stream(_lines(Watch(api, target, request.query, generation)))
        else:
            with api.store.transaction():
                api.authorize_change(request, target)
                answer = carry_out(api.store, request, target)
            self._send(*answer, {})

    def _replaced_by(self, fault: Fault | None) -> bool:
        """Carry out `fault` if it replaces the response, and return whether it does."""
        match fault:
            case Answer(code, body, extra):
                self._send(code, body, extra)
            case Chunks(parts):
                self._stream(parts)
            case Hang():
                self.server.api.hang()
                self.close_connection = True
            case _:
                return False
        return True

    def _body(self) -> bytes:
        self._until = time.monotonic() + BODY_SECONDS
        try:
            return self._chunks() if self._is_chunked() else self._exactly(self._length())
        finally:
            self.connection.settimeout(IDLE_SECONDS)

    def _part(self, most: int) -> bytes:
        """Return the next bytes of a body, or empty bytes at its end.

        Raises TimeoutError if no bytes arrive in time.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
        return self.rfile.read1(most)

    def _line(self) -> bytes:
        """Return a line of a body. The line is read byte by byte, because each byte may arrive late."""
        line = b""
        while len(line) < _MAX_CHUNK_LINE and not line.endswith(b"\n") and (part := self._part(1)):
            line += part
        return line

    def _read(self, body: bytes) -> tuple[Request, Target | None]:
        try:
            url = urlsplit(self.path)
        except ValueError as error:
            raise status.bad_request(f"expected the path of a resource: {error}") from error
        if self.requestline.partition(" ")[2].startswith("//"):  # http.server reduces several leading slashes to one
            raise status.unknown_path()
        query = {key: values[-1] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        headers = {key.title(): value for key, value in self.headers.items()}
        request = Request(self.command, url.path, query, headers)
        accepted = headers.get("Accept", "*/*")
        if not any(part in accepted for part in ("json", "*/*", "application/*")):
            raise ApiError(406, "NotAcceptable", "only the following media types are accepted: application/json")
        try:
            target = None if is_discovery(url.path) else target_of(url.path, self.server.api.kinds)
        except ApiError:
            self.server.api.note(request)  # so that a test sees what the client requested
            raise
        if target is not None:
            verb = _VERBS[self.command]
            if target.name is None:
                verb = "watch" if query.get("watch") in ("1", "true") and verb == "get" else _MANY.get(verb, verb)
            request = evolve(request, verb=verb, resource=target.resource)
        return evolve(request, body=parsed(body, headers.get("Content-Type", JSON))), target

    def _exactly(self, length: int) -> bytes:
        body = bytearray()
        while len(body) < length and (part := self._part(length - len(body))):
            body += part
        if len(body) < length:  # half of a YAML document is often valid YAML, too
            self.close_connection = True
            raise status.bad_request(f"unexpected EOF: expected a body of {length} bytes, got {len(body)}")
        return bytes(body)

    def _is_chunked(self) -> bool:
        return self.headers.get("Transfer-Encoding", "").lower() == "chunked" and "Content-Length" not in self.headers

    def _chunks(self) -> bytes:
        """Return a body sent in chunks, as by `kubectl create --raw`. Trailers are refused."""
        is_last, self.close_connection = self.close_connection, True  # the end of a refused body is unknown
        body, size = bytearray(), -1
        while size:  # the last chunk is empty
            line = self._line().partition(b";")[0].strip()
            if not _CHUNK_SIZE.fullmatch(line):
                raise status.bad_request("expected the size of a chunk as a hexadecimal number")
            size = int(line, 16)
            if len(body) + size > MAX_BODY:
                raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")
            body += self._exactly(size)
            if self._line() not in {b"\r\n", b"\n"}:
                raise status.bad_request("expected the end of a chunk")
        self.close_connection = is_last
        return bytes(body)

    def _length(self) -> int:
        """Return the length of the body.

        If the length is unknown, the connection is closed, because the start of the next request cannot be found.
        """
        length = self.headers.get("Content-Length") or "0"
        is_number = length.isascii() and length.isdigit()
        if is_number and len(length) <= len(str(MAX_BODY)) and int(length) <= MAX_BODY:
            if "Transfer-Encoding" not in self.headers:
                return int(length)
            refusal = ApiError(411, "", "expected a Content-Length, got a Transfer-Encoding")
        elif is_number:
            refusal = ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")
        else:
            refusal = status.bad_request("expected a number of bytes as Content-Length")
        self.close_connection = True
        raise refusal

    def _send(self, code: int, answer: Any, extra: Mapping[str, str]) -> None:  # noqa: ANN401 - JSON or text
        text = isinstance(answer, str)
        body = answer.encode() if text else b"" if answer is None else json.dumps(answer).encode()
        self.send_response(code)
        for key, value in {"Content-Type": "text/plain" if text else JSON, **extra}.items():
            if value:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _stream(self, parts: Iterable[bytes]) -> None:
        """Send each part, such as one event's line, as a chunk."""
        self.send_response(200)
        self.send_header("Content-Type", JSON)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()  # a client may wait for the headers before anything happens
        try:
            for part in parts:
                self._chunk(part)
            self._chunk(b"")
        except OSError:
            self.close_connection = True  # the client is gone, or the watch was cut off

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _lines(watch: Watch) -> Iterator[bytes]:
    for event in watch.events():
        yield json.dumps(event).encode() + b"\n"
    if watch.is_cut:
        if watch.last_words:
            yield watch.last_words
        raise ConnectionAbortedError("an interrupted watch ends without its final chunk")
