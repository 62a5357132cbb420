"""Unix sockets as files: which paths can be bound, which socket is at a path, and which process serves it.

Law: a socket file is replaced in one step, and is removed only by the process that bound it. That process recognizes
the file by its inode and modification time.
"""

import logging
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from devicecore.domain.errors import DirectoryError, SocketPathTooLongError
from devicecore.domain.text import foreign_text

logger: logging.Logger = logging.getLogger(__name__)

MAX_SOCKET_PATH = 107
"""The maximum length of a socket's path in bytes: sun_path has 108 bytes, one of which is for the NUL."""


class SocketIdentity(NamedTuple):
    """Identifies the file at a path.

    The inode number is not enough, because a new socket may get the number of a deleted one.
    """

    device: int
    inode: int
    created_ns: int  # the mtime, which nothing changes later; plugins change the ctime with chmod after binding


def socket_identity(path: str) -> SocketIdentity | None:
    """Return the identity of the socket at `path`, or None if there is no file or the file is not a socket."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):  # a ValueError is raised if the path contains a NUL
        return None
    return SocketIdentity(found.st_dev, found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def check_socket_path(path: str) -> None:
    """Refuse a path that cannot be bound or that gRPC cannot connect to.

    Raises SocketPathTooLongError if the path is too long, and DirectoryError if it contains a comma.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise SocketPathTooLongError(path, MAX_SOCKET_PATH)
    if "," in path:
        raise DirectoryError(str(Path(path).parent), "choose a path without a comma, at which gRPC divides addresses")


def check_not_in_the_way(path: str) -> None:
    """Raise DirectoryError if something other than a socket is at a path, even a link to a socket."""
    if os.path.lexists(path) and socket_identity(path) is None:
        raise DirectoryError(str(Path(path).parent), f"{Path(path).name} is in the way and is not a socket")


def is_served(path: str) -> bool:
    """Return whether a process serves the socket at `path`.

    The check is needed because gRPC replaces even a served socket.

    Raises OSError if this process may not connect to the socket, or if the path is too long.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False  # no socket, or the process that served it is gone
        except (BlockingIOError, TimeoutError):
            pass  # the process that serves it is too busy to answer
        return True


class SocketState(Enum):
    """What is now at the path of a socket that this process bound."""

    OURS = "the socket that we bound"
    MISSING = "nothing"
    FOREIGN = "a file that another process created"


class OwnedSocket:
    """The path of a socket that this process serves, and the identity of the file that it created there.

    A socket is bound in a private directory next to the path and then moved into place. The reason is that gRPC deletes
    the file at the path that it binds, both before it binds and after it stops, even if another process created that
    file. This way, gRPC deletes only the private name. Either the old socket or the new one is always at the path, and
    no client can connect before the socket's mode is set.

    Args:
        path: an absolute path of at most `MAX_SOCKET_PATH` bytes.
        mode: the permissions of the socket; the umask does not change them. Users who may write to the socket can
            connect to it.
    """

    def __init__(self, path: str, mode: int = 0o755) -> None:
        self.path = path
        self.identity: SocketIdentity | None = None
        """The file that we bound, or None before binding and after `remove`."""
        self._mode = mode
        self._logged: set[str] = set()
        self._looks_without = 0

    @contextmanager
    def binding(self) -> Iterator[str]:
        """Yield a private path for binding the socket.

        At the end of the block, the socket replaces any socket at `path`, including an older socket of ours.

        If the block raises an error, nothing is changed. Raises SocketPathTooLongError, DirectoryError if something
        other than a socket is in the way, and OSError.
        """
        check_socket_path(self.path)
        check_not_in_the_way(self.path)
        place = Path(tempfile.mkdtemp(prefix=".", dir=Path(self.path).parent))  # plugin watchers ignore dot files
        bound = place / "s"
        try:
            check_socket_path(str(bound))
            yield str(bound)
            identity = socket_identity(str(bound))
            bound.chmod(self._mode)
            try:
                # inotify reports a hard link as a created file, for which some plugins wait
                Path(self.path).hardlink_to(bound)
            except OSError:  # there is already a socket, or this file system has no hard links
                bound.rename(self.path)
            self.identity = identity
        finally:
            with suppress(FileNotFoundError):
                bound.unlink()
            with suppress(OSError):  # the parent directory may have been renamed
                place.rmdir()

    def state(self) -> SocketState:
        """Return whose file is now at `path`."""
        found = socket_identity(self.path)
        if found is not None and found == self.identity:
            return SocketState.OURS
        return SocketState.FOREIGN if os.path.lexists(self.path) else SocketState.MISSING

    def look(self) -> SocketState:
        """Return the `state`.

        If the socket is no longer ours, log that, but only once until the socket is ours again.
        """
        state = self.state()
        if state is SocketState.OURS:
            self._logged.clear()
        elif state is SocketState.FOREIGN:
            self.warn(
                "another process has put a file of its own there, which is left alone: this process cannot be reached"
            )
        else:
            self.warn("the socket was deleted: this process cannot be reached until the socket is served again")
        return state

    def is_gone(self) -> bool:
        """Check the socket, and return whether it has to be served again.

        The socket has to be served again if it was missing in this check and in the previous one. One check is not
        enough: the path briefly has no socket while a kubelet takes over the directory.
        """
        self._looks_without = self._looks_without + 1 if self.look() is SocketState.MISSING else 0
        return self._looks_without > 1

    def warn(self, problem: str) -> None:
        """Log a problem with this socket, but only once until `look` finds that the socket is ours again."""
        if problem not in self._logged:
            self._logged.add(problem)
            logger.warning("%s: %s", foreign_text(self.path), problem)

    def remove(self) -> None:
        """Delete the socket if it is still the one that we bound; if that fails, log the failure.

        A second call does nothing.
        """
        if self.identity is not None and self.state() is SocketState.OURS:
            try:
                Path(self.path).unlink(missing_ok=True)
            except OSError as error:
                self.warn(f"it cannot be deleted: {error.strerror}")
        self.identity = None
