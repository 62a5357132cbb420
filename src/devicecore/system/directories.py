"""Directories that other users must not be able to put files into.

Law: all directories that this module creates or checks follow the same rule. Unless the user allows a shared directory,
the directory belongs to the current user or to root, neither its group nor others may write to it, and its path is not
a symbolic link. Another user who could write to the directory could offer a device plugin of any name, or replace a
state file. The socket for commands to a fleet may be in any directory, because only the fleet's user can connect to it.
"""

import logging
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from devicecore.domain.errors import DirectoryError
from devicecore.domain.text import foreign_text
from devicecore.system.files import open_into

logger: logging.Logger = logging.getLogger(__name__)

_ALLOW = "or allow it with --allow-shared-directory (in Python: allow_shared_directory=True)"


def make_directory(path: str | os.PathLike[str], mode: int = 0o750, *, allow_shared: bool = False) -> None:
    """Create the last component of `path` if it is missing, with exactly `mode` (the umask is ignored), and check it.

    Raises DirectoryError if the directory cannot be created, is not a directory, or does not follow the rule.
    """
    directory = Path(path)
    try:
        with suppress(FileExistsError):
            directory.mkdir(0o700)
            directory.chmod(mode)
    except FileNotFoundError as error:
        raise DirectoryError(str(path), f"there is no directory {directory.parent}: create it first") from error
    except OSError as error:
        raise DirectoryError(str(path), error.strerror or str(error)) from error
    check_directory(path, allow_shared=allow_shared)


def make_directories(path: str | os.PathLike[str], mode: int = 0o750) -> None:
    """Create each missing component of `path`, as `make_directory` does.

    `Path.mkdir(parents=True)` lets all users write into each new directory if the umask is 0.
    """
    parts = Path(path).absolute()
    missing = [one for one in (parts, *parts.parents) if not one.is_dir()]
    for one in reversed(missing):
        make_directory(one, mode)


class KeptDirectory:
    """A directory that is recreated if it is deleted while in use. Thread-safe.

    A renamed directory is not recreated, because a directory in its place would keep it from being renamed back. `mode`
    contains the permissions with which the directory is created, regardless of the umask. `allow_shared` says whether
    other users may write to the directory.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o750, *, allow_shared: bool = False) -> None:
        self._path = path
        self._mode = mode
        self._allow_shared = allow_shared
        self._lock = threading.Lock()
        self._opened: list[int] = []  # a descriptor of the directory; empty before `make`

    def make(self) -> None:
        """Create the directory if it is missing, check it, and remember until `close` which directory it is.

        Only the last component of its path may be missing.

        Raises DirectoryError if the directory cannot be created, is not a directory, or does not follow the rule.
        """
        with self._lock:
            make_directory(self._path, self._mode, allow_shared=self._allow_shared)
            self._remember()

    def look(self) -> None:
        """Check the directory again, and recreate it if it was deleted. After `close`, this method does nothing.

        Raises DirectoryError if the directory was renamed, cannot be created, or no longer follows the rule.
        """
        with self._lock:
            if not self._opened:
                return
            # A deleted directory no longer has a name, but a renamed directory does.
            if not os.path.lexists(self._path) and os.fstat(self._opened[0]).st_nlink == 0:
                make_directory(self._path, self._mode, allow_shared=self._allow_shared)
                logger.warning("%s was deleted, and has been recreated", foreign_text(str(self._path)))
            check_directory(self._path, allow_shared=self._allow_shared)
            self._remember()

    def close(self) -> None:
        """Forget the directory without deleting it. A second call does nothing."""
        with self._lock:
            opened, self._opened = self._opened, []
        for descriptor in opened:
            os.close(descriptor)

    def _remember(self) -> None:
        opened: list[int] = []
        try:
            if not self._opened or not os.path.samestat(os.fstat(self._opened[0]), Path(self._path).stat()):
                open_into(opened, self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                self._opened, opened = opened, self._opened  # in one step, so that no interrupt comes in between
        except OSError as error:
            raise DirectoryError(str(self._path), error.strerror or str(error)) from error
        finally:
            for descriptor in opened:
                os.close(descriptor)


def check_directory(path: str | os.PathLike[str], *, allow_shared: bool = False) -> None:
    """Refuse a directory to which other users may write.

    With `allow_shared`, accept any directory or link to a directory.

    Raises DirectoryError if the directory is missing, is not a directory, or does not follow the rule.
    """
    try:
        found = Path(path).stat() if allow_shared else Path(path).lstat()
    except OSError as error:
        raise DirectoryError(str(path), error.strerror or str(error)) from error
    problem = directory_problem(found, allow_shared=allow_shared)
    if problem is not None:
        raise DirectoryError(str(path), problem)


def directory_problem(found: os.stat_result, *, allow_shared: bool = False) -> str | None:
    """Return why a directory cannot be used, or None if it can.

    `found` is what `lstat` returned for the directory or, with `allow_shared`, what `stat` returned.
    """
    us = os.geteuid()
    if stat.S_ISLNK(found.st_mode):
        return f"it is a symbolic link: name the directory that it points to, {_ALLOW}"
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a directory"
    if allow_shared:
        return None
    if found.st_uid not in (us, 0):
        users = "root (user id 0)" if us == 0 else f"user id {us} or root"
        return f"it belongs to user id {found.st_uid}, expected {users}: choose a different directory, {_ALLOW}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):  # the sticky bit does not stop others from adding files
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        return (
            f"its mode is {mode}, so others may put files there: `chmod go-w` it, choose a different directory, "
            f"{_ALLOW}"
        )
    return None
