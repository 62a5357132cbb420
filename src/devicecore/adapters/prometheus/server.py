"""The HTTP server that answers scrapes.

Law: the number of connections and the duration of each are limited.
"""

import errno
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from attrs import frozen
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from devicecore.domain.errors import SetUpError
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.runtime.thread import Thread

__all__ = ["CannotListenError", "MetricsServer"]

MAX_CONNECTIONS = 16
"""The maximum number of connections to the metrics server at once. Any further connection is closed unanswered."""

MAX_CONNECTION_SECONDS = 10.0
"""Seconds after which the metrics server ends a connection. A scrape takes a few milliseconds."""

END_SECONDS = 1.0
"""The number of seconds for which a stop of the metrics server waits for scrapes in progress."""

_INTERVAL = 1.0  # seconds between two checks for connections that take too long
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


@frozen
class CannotListenError(SetUpError):
    """The metrics server cannot listen on an address and port."""

    host: str
    port: int
    cause: str
    _text = "cannot serve metrics on {host}:{port}: {cause}"


class _Handler(WSGIRequestHandler):
    timeout = MAX_CONNECTION_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the standard library
        """Do not log scrapes."""


class _Listener(ThreadingWSGIServer):
    """Answers a limited number of connections at once, each for a limited time."""

    # how many connections may wait to be accepted; a client retries any further connection only after a second
    request_queue_size = 128

    def __init__(self, family: int, address: tuple[str, int]) -> None:
        self.address_family = family
        self._connections: dict[socket.socket, float] = {}  # with the time of acceptance, in monotonic seconds
        self._lock = threading.Condition()  # held while the connections change
        super().__init__(address, _Handler, bind_and_activate=False)

    def listen(self) -> None:
        """Bind the address. Raises OSError if it cannot be bound, and OverflowError if the port number is invalid."""
        self.server_bind()
        self.server_activate()

    def end_connections(self) -> None:
        """End all connections. A scrape whose collector does not return within `END_SECONDS` is abandoned."""
        with self._lock:
            self._shut_down(accepted_before=math.inf)
            self._lock.wait_for(lambda: not self._connections, END_SECONDS)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                time.sleep(_INTERVAL)  # the connection is still waiting, so trying again at once would be a busy loop
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401, ARG002 - as in the base class
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                return False
            self._connections[request] = time.monotonic()
            return True

    def service_actions(self) -> None:
        """End connections that take too long, at least once in each interval."""
        with self._lock:
            self._shut_down(accepted_before=time.monotonic() - MAX_CONNECTION_SECONDS)

    def _shut_down(self, accepted_before: float) -> None:
        for connection, accepted in self._connections.items():
            if accepted < accepted_before:
                with suppress(OSError):  # the client has closed the connection
                    connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as in the base class
        super().shutdown_request(request)
        with self._lock:
            self._connections.pop(request, None)
            self._lock.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - as in the base class
        """Do not print a traceback for a client that closes its connection early."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a scrape failed")


class MetricsServer(HasLifecycle):
    """Answers scrapes from its start to its stop. Starting raises OSError if the address cannot be bound.

    Args:
        registry: the registry that a scrape reads.
        host: a name or an address of this machine.
        port: the port, or 0 for a free one, which is kept from the first start on.
        problem: a function that returns why the process is not healthy, or an empty string, for the answer to
            `/healthz`.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int, problem: Callable[[], str] = str) -> None:
        self._metrics = make_wsgi_app(registry)
        self._problem = problem
        self._host = host
        self._port = port
        self._lifecycle = Lifecycle("the metrics server")
        self._listener: _Listener | None = None
        self._thread: Thread | None = None

    @property
    def port(self) -> int:
        """The port on which the server listens, or last listened."""
        return self._port

    @property
    def url(self) -> str:
        """The URL at which the server answers.

        Raises:
            NotStartedError: the server is not running, so it has no address.
        """
        self._lifecycle.check_running()
        assert self._listener is not None, "the server is running"  # noqa: S101 - for mypy
        host = self._listener.server_address[0]
        is_v6 = self._listener.address_family == socket.AF_INET6
        return f"http://[{host!s}]:{self.port}/metrics" if is_v6 else f"http://{host!s}:{self.port}/metrics"

    def _begin(self) -> None:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        self._listener = _Listener(family, (str(address[0]), self._port))
        self._listener.listen()
        self._port = self._listener.server_port
        answer: Any = self._answer  # mypy cannot match the type of the method with the parameters of `call`
        self._listener.set_app(partial(self._lifecycle.call, "a scrape", answer))
        self._thread = Thread(
            target=self._listener.serve_forever, args=(_INTERVAL,), name="devicecore-metrics", daemon=True
        )
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:  # noqa: ANN401 - as make_wsgi_app
        """Answer a request (PEP 3333): `/healthz` with 200 or 503 and a sentence, any other path with the metrics."""
        if environ.get("PATH_INFO") != "/healthz":
            return self._metrics(environ, start_response)
        problem = self._problem()
        status = "503 Service Unavailable" if problem else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [(problem or "ok").encode()]

    def _end(self) -> None:
        if self._listener is None:
            return
        if self._thread is not None and self._thread.is_alive():
            with suppress(OSError):
                # wakes the thread, which would otherwise sleep for the full interval
                self._listener.socket.shutdown(socket.SHUT_RDWR)
            self._listener.shutdown()
            self._thread.join()
        self._listener.server_close()
        self._listener.end_connections()
