"""HTTP to an API server, within limits.

Law: A request ends at its deadline, no matter how slowly the server sends, and no response is larger than allowed. All
pages of a list together also have a deadline and a maximum size, because the server could keep sending pages.
"""

import math
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from typing import Any

import httpcore2  # httpx2's lower layer, where a deadline can apply to a whole response
import httpx2
from attrs import define, frozen

MAX_ANSWER = 8 * 1024 * 1024
"""The maximum size of an answer, in bytes.

A Node takes about 30 KiB, and an API server stores objects of at most 1.5 MiB.
"""

MAX_WATCH = 64 * 1024 * 1024
"""The number of bytes that are read from one watch before it is restarted."""

MAX_VALUES = 4_000_000
"""The maximum number of commas and opening brackets in all pages of a list, which bounds the number of values."""

_PAGES = 4  # the total size of a list, in pages of maximum size
_SLOWEST = 2  # the total time, as a multiple of the timeout for one page

_PRECISION = 0.1  # seconds by which the time for a read or a write may be off
_PART = 16 * 1024  # bytes per read: the maximum of a TLS record
_MAX_HEAD = 64 * 1024  # bytes of a status line with its headers, or of the line before a chunk
_FIRST_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n]*)?")
_NUMBER, _CHUNK = re.compile(rb"[0-9]{1,15}"), re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")

_SocketOption = Any  # as in httpcore2

_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_SOCKET_OPTIONS: list[_SocketOption] = [  # so that a watch ends within half a minute if its connection is silently lost
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _KEEPALIVE.items() if hasattr(socket, name)),
]


class AnswerTooLargeError(Exception):
    """The server sent more than the limit."""


class Budget:
    """The seconds, bytes and values left for one request, and for all requests since `begin_all`."""

    def __init__(self) -> None:
        self._deadline = self._deadline_of_all = 0.0
        self._limit = self._bytes = self._bytes_of_all = self._values_of_all = 0

    def begin_all(self, seconds: float, limit: int) -> None:
        """Begin requests that together may take this many seconds and have answers of up to `limit` bytes."""
        self._deadline_of_all = time.monotonic() + seconds
        self._bytes_of_all, self._values_of_all = limit, MAX_VALUES

    def begin(self, seconds: float, limit: int) -> None:
        """Begin a request that may take this many seconds and have an answer of up to `limit` bytes."""
        self._deadline = min(time.monotonic() + seconds, self._deadline_of_all)
        self._bytes = self._limit = limit

    def seconds_left(self) -> float:
        """Return the seconds that are left. Raises ReadTimeout if no time is left."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout
        return left

    def count(self, received: bytes) -> bytes:
        """Charge `received` to the budget and return it. Raises AnswerTooLargeError if the budget is exceeded."""
        self._bytes -= len(received)
        self._bytes_of_all -= len(received)
        self._values_of_all -= sum(map(received.count, (b",", b"[", b"{")))
        if self._bytes < 0:
            message = f"the answer is longer than {self._limit} bytes"
            raise AnswerTooLargeError(message)
        if self._bytes_of_all < 0 or self._values_of_all < 0:
            message = f"the answer has more than {MAX_VALUES:,} values, or its pages are too long in total"
            raise AnswerTooLargeError(message)
        return received


class _Stream(httpcore2.NetworkStream):
    """A connection whose reads and writes use up a budget. `copy` duplicates the connection's socket, for `cut`."""

    def __init__(self, stream: httpcore2.NetworkStream, budget: Budget, copy: socket.socket) -> None:
        self._stream = stream
        self._budget = budget
        self._copy = copy

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the budget decides
        return self._budget.count(self._stream.read(max_bytes, self._budget.seconds_left()))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - the budget decides
        self._stream.write(buffer, self._budget.seconds_left())

    def close(self) -> None:
        self._stream.close()
        self._copy.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - the budget decides
    ) -> httpcore2.NetworkStream:
        try:
            secure = self._stream.start_tls(ssl_context, server_hostname, self._budget.seconds_left())
        except BaseException:
            self.close()
            raise
        return _Stream(secure, self._budget, self._copy)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as in the base class
        return self._stream.get_extra_info(info)


class _Connection:
    """A connection without a proxy, whose reads and writes use up a budget.

    The class does the same as `_Stream` with fewer system calls, because after each system call, other threads may run
    first.
    """

    def __init__(self, stream: httpcore2.NetworkStream, budget: Budget) -> None:
        self._stream = stream
        self._budget = budget
        self._socket: socket.socket = stream.get_extra_info("socket")
        self._timeout = -math.inf

    def _set_timeout(self) -> None:
        """Limit the next call to the time that the budget allows, give or take `_PRECISION`."""
        left = self._budget.seconds_left()
        if abs(left - self._timeout) > _PRECISION:
            self._socket.settimeout(left)
            self._timeout = left

    def read(self) -> bytes:
        """Return what has been received, or nothing at the end of the connection."""
        self._set_timeout()
        try:
            part = self._socket.recv(_PART)
        except TimeoutError as error:
            raise httpcore2.ReadTimeout(error) from error
        except OSError as error:
            raise httpcore2.ReadError(error) from error
        return self._budget.count(part)

    def write(self, content: bytes) -> None:
        """Send all of `content`."""
        rest = memoryview(content)
        try:
            while rest:
                self._set_timeout()
                rest = rest[self._socket.send(rest) :]
        except TimeoutError as error:
            raise httpcore2.WriteTimeout(error) from error
        except OSError as error:
            raise httpcore2.WriteError(error) from error

    @property
    def is_over(self) -> bool:
        """Whether the server has closed the connection, or has sent something that nobody asked for."""
        return bool(self._stream.get_extra_info("is_readable"))

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()


class _Backend(httpcore2.SyncBackend):
    """Opens connections with a budget, and can cut them from another thread."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._copies: list[socket.socket] = []
        self._is_cut = False

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the budget decides
        local_address: str | None = None,
        socket_options: Iterable[_SocketOption] | None = None,
    ) -> httpcore2.NetworkStream:
        stream = super().connect_tcp(host, port, self._budget.seconds_left(), local_address, socket_options)
        copy = stream.get_extra_info("socket").dup()  # to shut down the connection even after TLS has taken it over
        self._copies = [*(one for one in self._copies if one.fileno() >= 0), copy]
        connection = _Stream(stream, self._budget, copy)
        if self._is_cut:
            connection.close()
            raise httpcore2.ConnectError
        return connection

    def leave(self) -> None:
        """Close this process's copies of all connections, which its parent still uses."""
        for copy in self._copies:
            copy.close()

    def cut(self) -> None:
        """End all connections, including those being established."""
        self._is_cut = True
        for copy in self._copies:
            with suppress(OSError):  # the socket is already closed
                copy.shutdown(socket.SHUT_RDWR)


@frozen
class WholeAnswer:
    """A server's complete response. `retry_after` is the value of the header Retry-After, or empty if there is none."""

    status: int
    content: bytes
    retry_after: str = ""


@define(eq=False)
class Answer:
    """A server's answer, whose content is read part by part. The object must be closed.

    Attributes:
        status: the HTTP status.
        retry_after: as in `WholeAnswer`.
        parts: the content.
        close: ends the answer, and with it the connection if the content was not read to its end.
    """

    status: int
    retry_after: str
    parts: Iterator[bytes]
    close: Callable[[], None]

    def read(self) -> WholeAnswer:
        """Read the content, and close the answer."""
        with closing(self):
            return WholeAnswer(self.status, b"".join(self.parts), self.retry_after)


class _Received:
    """The bytes of an HTTP answer, read from a connection. Anything but HTTP raises RemoteProtocolError."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._rest = bytearray()  # received, but not yet part of a result
        self._is_kept = self._is_read = False

    @property
    def is_kept(self) -> bool:
        """Whether the connection can be used again: everything was read, and the server keeps it open."""
        return self._is_kept and self._is_read and not self._rest  # the rest would be taken for the next answer

    def head(self) -> tuple[int, dict[bytes, bytes]]:
        """Return the status and the headers of the answer."""
        status = 100
        while 100 <= status < 200:  # an answer with a 1xx status is followed by another answer
            first, *lines = self._until(b"\r\n\r\n").split(b"\r\n")
            if not (parsed := _FIRST_LINE.fullmatch(first)):
                message = "the answer is not HTTP"
                raise httpcore2.RemoteProtocolError(message)
            version, status = parsed[1], int(parsed[2])
        pairs = (line.partition(b":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        self._is_kept = version == b"1" and b"close" not in headers.get(b"connection", b"").lower()
        return status, headers

    def parts(self, status: int, headers: Mapping[bytes, bytes]) -> Iterator[bytes]:
        """Yield the content of an answer with this head."""
        length = headers.get(b"content-length")
        if status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            pass
        elif b"transfer-encoding" in headers:
            yield from self._chunks()
        elif length is None:
            self._is_kept = False
            yield bytes(self._rest)
            self._rest.clear()
            while part := self._connection.read():
                yield part
        elif _NUMBER.fullmatch(length):
            yield self._exactly(int(length))
        else:
            message = "the length of the answer is not a number"
            raise httpcore2.RemoteProtocolError(message)
        self._is_read = True

    def _chunks(self) -> Iterator[bytes]:
        while True:
            if not (size := _CHUNK.fullmatch(self._until(b"\r\n"))):
                message = "the answer has a chunk without a size"
                raise httpcore2.RemoteProtocolError(message)
            chunk = self._exactly(int(size[1], 16))
            if not chunk:
                while self._until(b"\r\n"):
                    pass  # headers after the content
                return
            yield chunk
            if self._exactly(2) != b"\r\n":
                message = "the answer has a chunk of the wrong size"
                raise httpcore2.RemoteProtocolError(message)

    def _until(self, end: bytes) -> bytes:
        """Return everything before `end`, and remove it and `end` from what was received."""
        while (at := self._rest.find(end)) < 0:
            if len(self._rest) > _MAX_HEAD:
                message = "the answer's headers are too long"
                raise httpcore2.RemoteProtocolError(message)
            self._rest += self._part()
        found = bytes(self._rest[:at])
        del self._rest[: at + len(end)]
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._rest += self._part()
        found = bytes(self._rest[:size])
        del self._rest[:size]
        return found

    def _part(self) -> bytes:
        if part := self._connection.read():
            return part
        message = "the server closed the connection before the end of its answer"
        raise httpcore2.RemoteProtocolError(message)


class Transport:
    """Sends requests to one server. Only one thread at a time may use this object; any thread may call `cut`.

    Args:
        server: the URL of the server. The paths of requests are added to the path in this URL.
        context: the TLS settings.
        timeout: seconds for a request and its whole answer.
        headers: added to every request.
        server_name: the name that the server's certificate must have, if it is not the name in the URL.
        proxy: the URL of an HTTP proxy.
        limit: the maximum size of an answer, in bytes.

    Attributes:
        address: the server's scheme, host and port, without a user name or password, for error messages.
    """

    def __init__(
        self,
        server: httpx2.URL,
        context: ssl.SSLContext,
        timeout: float,
        headers: Mapping[str, str],
        *,
        server_name: str | None = None,
        proxy: str | None = None,
        limit: int = MAX_ANSWER,
    ) -> None:
        self.address: str = f"{server.scheme}://{server.netloc.decode()}"
        self._server = server
        self._budget = Budget()
        self._backend = _Backend(self._budget)
        self._timeout = timeout
        self._limit = limit
        # We do not request compressed responses, because a small one can expand into a very large one.
        headers = {**headers, "Accept-Encoding": "identity"}
        if bad := [name for name, value in headers.items() if not value.isprintable()]:
            message = f"the value of the header {bad[0]} contains characters that cannot be sent"
            raise httpcore2.LocalProtocolError(message)
        sent = ((name.encode("ascii"), value.encode("ascii")) for name, value in headers.items())
        self._headers = [(b"Host", server.netloc), *sent]
        self._lines = b"".join(b"%s: %s\r\n" % header for header in self._headers)
        context.set_alpn_protocols(["http/1.1"])
        self._context = context
        self._has_proxy = proxy is not None
        self._server_name = server_name
        self._connection: _Connection | None = None  # kept between two requests
        self._extensions = {"sni_hostname": server_name} if server_name else {}
        self._pool = httpcore2.ConnectionPool(
            ssl_context=context,
            proxy=_proxy(proxy) if proxy else None,
            network_backend=self._backend,
            max_connections=1,
            socket_options=_SOCKET_OPTIONS,
        )

        self.begin_all()

    def begin_all(self) -> None:
        """Begin requests that share limits, such as those for the pages of a list."""
        self._budget.begin_all(_SLOWEST * self._timeout, _PAGES * self._limit)

    def send(self, method: str, path: bytes, headers: Mapping[bytes, bytes], content: bytes | None) -> WholeAnswer:
        """Send a request and return the whole answer.

        `path` includes the parameters. `headers` are for this request alone; without a body, `content` is None.
        """
        return self.stream(method, path, headers, content).read()

    def stream(self, method: str, path: bytes, headers: Mapping[bytes, bytes], content: bytes | None = None) -> Answer:
        """Send a request and return the answer, whose content is not read yet.

        The deadline also applies to reading the content.
        """
        if content is not None:
            headers = {**headers, b"Content-Length": b"%d" % len(content)}
        self._budget.begin(self._timeout, self._limit)
        if self._has_proxy:
            return self._through_proxy(method, path, headers, content)
        lines = b"".join(b"%s: %s\r\n" % header for header in headers.items())
        first = b"%s %s%s HTTP/1.1\r\n" % (method.encode("ascii"), self._server.raw_path, path)
        connection = self._connected()
        received = _Received(connection)
        try:
            connection.write(b"".join((first, self._lines, lines, b"\r\n", content or b"")))
            status, found = received.head()
        except BaseException:
            self._disconnect()
            raise
        after = found.get(b"retry-after", b"").decode("latin-1")
        return Answer(status, after, received.parts(status, found), partial(self._end, received))

    def _end(self, received: _Received) -> None:
        if not received.is_kept:
            self._disconnect()

    def _through_proxy(self, method: str, path: bytes, headers: Mapping[bytes, bytes], content: bytes | None) -> Answer:
        base = self._server
        target = base.raw_path + path
        url = httpcore2.URL(scheme=base.raw_scheme, host=base.raw_host, port=base.port, target=target)
        both = [*self._headers, *headers.items()]
        request = httpcore2.Request(method, url, headers=both, content=content, extensions=self._extensions)
        answer = self._pool.handle_request(request)
        after = (value for name, value in answer.headers if name.lower() == b"retry-after")
        return Answer(answer.status, next(after, b"").decode("latin-1"), answer.iter_stream(), answer.close)

    def _connected(self) -> _Connection:
        if self._connection is not None and self._connection.is_over:
            self._disconnect()
        if self._connection is None:
            host = self._server.raw_host.decode("ascii")
            secure = self._server.raw_scheme == b"https"
            port = self._server.port or (443 if secure else 80)
            stream = self._backend.connect_tcp(host, port, socket_options=_SOCKET_OPTIONS)
            stream = stream.start_tls(self._context, self._server_name or host) if secure else stream
            self._connection = _Connection(stream, self._budget)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def cut(self) -> None:
        """End the request in progress. Any thread may call this."""
        self._backend.cut()

    def leave(self) -> None:
        """In a fork, close the copies of the parent's connections.

        The method takes no lock, because a lock that was held during the fork is never released.
        """
        self._disconnect()
        self._backend.leave()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()
        self._disconnect()


def _proxy(url: str) -> httpcore2.Proxy:
    parsed = httpx2.URL(url)
    target = httpcore2.URL(scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=b"/")
    credentials = (parsed.username, parsed.password) if parsed.username else None
    return httpcore2.Proxy(target, auth=credentials)
