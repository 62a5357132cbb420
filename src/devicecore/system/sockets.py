"""Unix sockets as files: which paths can be one, which one lies at a path, and whether anybody serves it.

Law: looking changes nothing.
"""

import os
import socket
import stat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from devicecore.domain.errors import DirectoryError, SocketPathTooLongError

LONGEST_SOCKET_PATH = 107
"""Bytes: sun_path has 108, and one is for the NUL."""


class SocketIdentity(NamedTuple):
    """Which file a path names. A socket that is deleted and bound anew may get its old inode number back."""

    device: int
    inode: int
    created_ns: int  # nothing changes a socket's mtime later; its ctime follows chmod, which plugins do after binding


def socket_identity(path: str) -> SocketIdentity | None:
    """Which socket lies at `path`; None if nothing does, or something else."""
    try:
        found = Path(path).lstat()
    except OSError:
        return None
    return SocketIdentity(found.st_dev, found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def check_socket_path(path: str) -> None:
    """Refuse a path that cannot be bound.

    Raises:
        SocketPathTooLongError: it has too many bytes.
    """
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise SocketPathTooLongError(path, LONGEST_SOCKET_PATH)


def check_not_in_the_way(path: str) -> None:
    """Refuse a path at which something lies that is no socket, such as a link to one.

    Raises:
        DirectoryError: it does.
    """
    if os.path.lexists(path) and socket_identity(path) is None:
        raise DirectoryError(str(Path(path).parent), f"{Path(path).name} is in the way and is not a socket")


def is_served(path: str) -> bool:
    """Whether anybody serves the socket at `path`, which gRPC would silently take over.

    Raises:
        OSError: that cannot be found out.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False  # nobody, or nobody any more
        except (BlockingIOError, TimeoutError):
            pass  # somebody has too much to do to answer
        return True


def target(path: str) -> str:
    """Spell a path for gRPC, which reads it as a URI."""
    return "unix:" + quote(os.fsencode(path))
