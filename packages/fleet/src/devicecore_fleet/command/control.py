"""Commands to a running fleet over a unix socket.

Law: only the fleet's user may connect, and a request is at most `MAX_REQUEST` bytes long. A client that stalls delays
other clients by at most `PATIENCE` seconds for its request, and by as much again for the response.
"""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from devicecore.domain.errors import SetUpError
from devicecore.domain.text import foreign_text
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.system.sockets import OwnedSocket, is_served

PATIENCE = 5.0
"""The maximum number of seconds for a client to send its request, and also to read the answer."""

MAX_REQUEST = 4_096
"""The maximum size of a request, in bytes."""

_MAX_ANSWER = 64 * 1024
_MAX_WORDS = 8
_PAUSE = 0.5  # seconds to wait after a failed accept, for example when no file descriptor is free

_log = logging.getLogger(__name__)

Order = Callable[[str, Sequence[str]], tuple[Sequence[str], int]]
"""Executes a command on nodes. Returns sentences to print, and the number of nodes that executed the command."""


@frozen
class FleetSocketError(SetUpError):
    """A fleet's socket cannot be used."""

    problem: str
    _text = "{problem}"


class FleetSocket(HasLifecycle):
    """Takes commands at a path, one at a time. `start` raises `SetUpError` if the path cannot be used."""

    def __init__(self, path: Path, order: Order) -> None:
        self._path = path.absolute()
        self._order = order
        self._owned = OwnedSocket(str(self._path), 0o600)
        self._listening: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._lifecycle = Lifecycle("the fleet's socket")

    def _begin(self) -> None:
        try:
            if is_served(str(self._path)):
                problem = f"another fleet is already running at {self._path}: stop it, or choose another --control"
                raise FleetSocketError(problem)
            self._listening = listening = socket.socket(socket.AF_UNIX)
            with self._owned.binding() as private:
                listening.bind(private)
                listening.listen()
        except OSError as error:
            problem = f"cannot listen on {foreign_text(str(self._path))}: {error.strerror or error}"
            raise FleetSocketError(problem) from error
        self._thread = threading.Thread(target=self._serve, args=(listening,), name="devicecore-control", daemon=True)
        self._thread.start()

    def _end(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        self._owned.remove()

    def _serve(self, listening: socket.socket) -> None:
        while self._listening is listening:
            try:
                connection, _ = listening.accept()
            except OSError as error:
                if self._listening is listening:  # otherwise, a stop has closed the socket
                    _log.error("the fleet's socket cannot accept a command now: %s", error)
                    time.sleep(_PAUSE)
                continue
            with connection, suppress(OSError):
                answer = self._answer(_line(connection, MAX_REQUEST, PATIENCE))
                connection.settimeout(PATIENCE)
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: bytes) -> dict[str, object]:
        try:
            asked = json.loads(request)
            nodes, words = str(asked["nodes"]), [str(word) for word in asked["words"]][:_MAX_WORDS]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"sentences": ["expected a line of JSON with `nodes` and `words`"], "obeyed": 0}
        sentences, obeyed = self._order(nodes, words)
        return {"sentences": list(sentences), "obeyed": obeyed}


def send_command(path: Path, nodes: str, words: Sequence[str]) -> tuple[list[str], int]:
    """Send a command to the fleet that listens at a path.

    Return the fleet's sentences and the number of nodes that executed the command.

    Raises FleetSocketError if no fleet listens there, or the fleet does not answer.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(4 * PATIENCE)
        try:
            connection.connect(str(path))
            connection.sendall(json.dumps({"nodes": nodes, "words": list(words)}).encode() + b"\n")
            answer = json.loads(_line(connection, _MAX_ANSWER, 4 * PATIENCE))
            return [foreign_text(str(one)) for one in answer["sentences"]], int(answer["obeyed"])
        except OSError as error:
            is_other = path.exists() and not path.is_socket()
            cause = "it is not a socket" if is_other else error.strerror or error
            problem = f"no fleet answers at {foreign_text(str(path))}: {cause}"
            raise FleetSocketError(problem) from error
        except (ValueError, KeyError, TypeError) as error:
            raise FleetSocketError(f"the process that listens at {foreign_text(str(path))} is not a fleet") from error


def _line(connection: socket.socket, limit: int, seconds: float) -> bytes:
    """Receive a line of at most `limit` bytes.

    The whole line must arrive within `seconds`, even if it arrives in small parts.
    """
    data, end = b"", time.monotonic() + seconds
    while not data.endswith(b"\n") and len(data) < limit:
        connection.settimeout(max(1e-3, end - time.monotonic()))
        part = connection.recv(limit - len(data))
        if not part:
            break
        data += part
    return data
