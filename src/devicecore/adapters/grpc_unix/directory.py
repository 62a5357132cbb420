"""The directory where a kubelet and its plugins find each other's sockets.

Law: the directory has one owner at a time. Plugins are reached only at sockets that follow the kubelet's rules. Nothing
in the directory is ever deleted except sockets, links to sockets, and the lock file.
"""

import fcntl
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from devicecore.adapters.grpc_unix.limits import MAX_NAME
from devicecore.domain.errors import DirectoryError, DirectoryInUseError, InvalidEndpointError
from devicecore.domain.text import foreign_text
from devicecore.system.directories import KeptDirectory
from devicecore.system.files import open_into
from devicecore.system.sockets import (
    MAX_SOCKET_PATH,
    check_not_in_the_way,
    check_socket_path,
    is_served,
    socket_identity,
)

LOCK_NAME = ".devicecore.lock"

logger: logging.Logger = logging.getLogger(__name__)


class SocketDirectory:
    """The plugin directory, from the kubelet's side."""

    def __init__(self, path: Path, socket_name: str, *, allow_shared: bool = False, wipe: bool = True) -> None:
        self.path = path
        self._directory = KeptDirectory(path, allow_shared=allow_shared)
        self._wipe = wipe
        self.socket: str = str(path / socket_name)
        self._lock_path = path / LOCK_NAME
        self._locks: list[int] = []  # the open lock file, or empty if we do not own the directory

    def claim(self) -> None:
        """Create the directory if it is missing, become its only owner, and clean it (kubelet.md 2.3).

        Raises DirectoryError if the directory cannot be created, locked or cleaned, or if other users may write to it,
        DirectoryInUseError if it has an owner, and SocketPathTooLongError if the path of the kubelet's socket is too
        long.
        """
        check_socket_path(self.socket)
        try:
            self._directory.make()
            self._take_lock()
            self._clean()
        except BaseException as error:
            self.release()
            if isinstance(error, OSError):
                raise DirectoryError(str(self.path), error.strerror or str(error)) from error
            raise

    def hold(self) -> None:
        """Recreate the directory if it was deleted, check it, and lock it again if its lock file is not the locked one.

        Raises DirectoryError or DirectoryInUseError.
        """
        self._directory.look()
        if self._locks and not self._is_locked(self._locks[0]):
            try:
                self._take_lock()
            except OSError as error:
                raise DirectoryError(str(self.path), error.strerror or str(error)) from error

    def release(self) -> None:
        """Release the directory, so that others can claim it. A second call does nothing."""
        try:
            with suppress(OSError):
                if self._locks and self._is_locked(self._locks[0]):
                    self._lock_path.unlink()
        finally:
            locks, self._locks = self._locks, []
            for lock in locks:
                os.close(lock)
            self._directory.close()

    def endpoint(self, name: str) -> str:
        """Return the path of the plugin's socket called `name`.

        Raises InvalidEndpointError if `name` would lead out of the directory or cannot be printed, or if the file is
        not a plugin's socket.
        """
        check_endpoint_name(name, Path(self.socket).name)
        path = str(self.path / name)
        self.check_endpoint(path, name)
        return path

    def check_endpoint(self, path: str, name: str) -> None:
        """Refuse an absolute path that cannot be a plugin's socket. A path at which there is no file is accepted.

        Raises InvalidEndpointError if the path is too long, is the kubelet's own socket, is a symbolic link, or is not
        a socket. `name` is what the error calls the socket.
        """
        if problem := self._endpoint_problem(path):
            raise InvalidEndpointError(foreign_text(name, MAX_NAME), problem)

    def _endpoint_problem(self, path: str) -> str | None:
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            return f"its path is longer than {MAX_SOCKET_PATH} bytes"
        try:
            found = os.lstat(path)
        except OSError:
            return None  # dialing the path will show whether there is a socket
        if stat.S_ISLNK(found.st_mode):
            return "it is a symbolic link"
        if not stat.S_ISSOCK(found.st_mode):
            return "it is not a socket"
        if path == self.socket or socket_identity(path) == socket_identity(self.socket):
            return "it is the kubelet's own socket"
        return None

    def _take_lock(self) -> None:
        """Lock the lock file, and close a previously locked one."""
        while True:
            opened: list[int] = []
            try:
                lock = open_into(opened, self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous owner may have deleted the file after we opened it.
                if self._is_locked(lock):
                    # This is one step, because an interrupt could otherwise leave a lock that nothing releases.
                    self._locks, opened = opened, self._locks
                    return
            except BlockingIOError:
                raise DirectoryInUseError(str(self.path)) from None
            finally:
                for lock in opened:
                    os.close(lock)

    def _is_locked(self, lock: int) -> bool:
        """Return whether the open file `lock` is the lock file in the directory."""
        try:
            return os.path.samestat(os.fstat(lock), self._lock_path.lstat())
        except FileNotFoundError:
            return False

    def _clean(self) -> None:
        if is_served(self.socket):  # a real kubelet does not take our lock, but answers at its socket
            raise DirectoryInUseError(str(self.path))
        problems = []
        # All entries are examined before any is deleted: once a socket is deleted, a link to it no longer leads to a
        # socket.
        entries = self.path.iterdir() if self._wipe else [Path(self.socket)]
        for entry in [entry for entry in entries if _leads_to_a_socket(entry)]:
            try:
                entry.unlink()
            except FileNotFoundError:
                pass  # the socket's plugin has deleted it
            except OSError as error:
                problems.append(f"{foreign_text(entry.name)}: {error.strerror}")
        if problems:
            raise DirectoryError(str(self.path), "; ".join(problems))
        check_not_in_the_way(self.socket)


def check_endpoint_name(name: str, kubelet_socket: str | None) -> None:
    """Refuse a name that a plugin's socket cannot have. `kubelet_socket` is the name of the kubelet's socket, or None.

    Raises InvalidEndpointError if the name would lead out of the directory, is that of the kubelet's socket, or cannot
    be printed.
    """
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        problem = "it is not the name of a file in the plugin directory"
    elif name == kubelet_socket:
        problem = "it is the kubelet's own socket"
    elif not name.isprintable():
        problem = "it contains characters that cannot be printed"  # refused because names appear in logs
    else:
        return
    raise InvalidEndpointError(foreign_text(name, MAX_NAME), problem)


def _leads_to_a_socket(entry: Path) -> bool:
    try:
        return stat.S_ISSOCK(entry.stat().st_mode)  # follows links, as the kubelet does: the link will be deleted
    except OSError as error:
        logger.info("%s is left in place: %s", foreign_text(str(entry)), error.strerror)
        return False
