"""Files that are read up to a maximum size and replaced as a whole.

Law: a file is replaced completely or not at all, even if a call fails or the power is lost. Only `DurableFile.replace`
does not wait until the new content is on the disk.
"""

import errno
import itertools
import os
import re
import stat
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MAX_FILE_BYTES = 256 * 1024 * 1024
"""The default maximum number of bytes to read from a file."""

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # O_EXCL does not follow links
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY

_instances = itertools.count(1)

_Identity = tuple[int, int, int, int]
"""The device, inode, modification time and size of a file."""

_identity_of: Callable[[os.stat_result], _Identity] = attrgetter("st_dev", "st_ino", "st_mtime_ns", "st_size")


def open_into(opened: list[int], path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Open a file as `os.open` does, append its descriptor to `opened`, and return the descriptor. Raises OSError.

    An interrupt (Ctrl-C) may come between any two instructions of Python, including between a call to `os.open` and the
    assignment of its result. Nothing would ever close the descriptor then. With this function, the descriptor is in the
    list before Python continues, and the caller closes everything in the list in a `finally`.
    """
    opened.extend(itertools.starmap(os.open, ((path, flags, mode),)))
    return opened[-1]


def with_open(path: str | os.PathLike[str], flags: int, use: Callable[[int], T], mode: int = 0o600) -> T:
    """Open a file as `os.open` does, call `use` with the descriptor, close the file, and return the result of `use`.

    Raises OSError.
    """
    opened: list[int] = []
    try:
        return use(open_into(opened, path, flags, mode))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def read_file(path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES, *, follow_links: bool = False) -> bytes:
    """Read a regular file of at most `max_bytes` bytes. This function never waits: pipes and devices are refused.

    Only with `follow_links` may `path` be a symbolic link. Links among the directories of `path` are always followed.
    Raises OSError with a sentence as its `strerror`, and FileNotFoundError if the file does not exist.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        return with_open(path, flags, partial(_content, path, max_bytes))
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links and os.path.islink(path):  # noqa: PTH114 - `path` may be a str
            raise OSError(errno.ELOOP, "it is a symbolic link, expected a regular file", str(path)) from None
        raise


def _content(path: str | os.PathLike[str], max_bytes: int, descriptor: int) -> bytes:
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, expected a regular file", str(path))
    with open(descriptor, "rb", closefd=False) as file:
        blob = file.read(max_bytes + 1)
    if len(blob) > max_bytes:
        problem = f"it is {max(found.st_size, len(blob))} bytes long, expected at most {max_bytes}"
        raise OSError(errno.EFBIG, problem, str(path))
    return blob


_files: "weakref.WeakSet[DurableFile]" = weakref.WeakSet()


def _forked() -> None:
    for one in list(_files):
        one._name_new()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forked)


class DurableFile:
    """A file that is replaced by renaming a new file to its path.

    Only one thread at a time may use an instance. All methods raise OSError.

    Symbolic links are never followed: reading a link is an error, and writing replaces the link itself.

    Args:
        path: the path of the file.
        mode: the permissions of the file; the umask does not change them.
        max_bytes: the maximum number of bytes to read.
    """

    def __init__(self, path: Path, mode: int, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._directory = str(path.parent)
        self._mode = mode
        self._max_bytes = max_bytes
        # Each instance writes to a new file with a different name, so a second writer can make a write fail, but cannot
        # corrupt the file. The name is a string, not a path, because converting a path takes as long as the system
        # call.
        self._number, self._new = next(_instances), ""
        self._name_new()
        _files.add(self)
        self._target = str(path)
        self._swept = False
        self._seen: tuple[_Identity | None, bytes] | None = None  # the content that this object last read or wrote

    def _name_new(self) -> None:
        """Choose the name of the new file.

        A fork chooses a new name again, because it would otherwise overwrite the file that its parent is writing.
        """
        self._new = str(self._path.with_name(f".{self._path.name}.{os.getpid()}-{self._number}.new"))

    def read(self) -> bytes | None:
        """Return the file's content, or None if the file does not exist."""
        self._seen = None
        identity = self._identity()
        try:
            blob = read_file(self._target, self._max_bytes)
        except FileNotFoundError:
            return None
        self._seen = identity, blob
        return blob

    def current(self) -> bytes | None:
        """Return what `read` returns. Read the file only if it has changed since this object last read or wrote it."""
        identity = self._identity()
        if identity is not None and self._seen is not None and identity == self._seen[0]:
            return self._seen[1]
        return self.read()

    def write(self, blob: bytes, old: bytes | None) -> None:
        """Replace the file. When this method returns, the new content is on the disk.

        If the disk cannot make the change durable, this method puts `old` back, or deletes the file if `old` is None.
        """
        if not self._swept:
            self._sweep()
        self._seen = None
        identity = self._put(blob)
        self._sync(lambda: self._path.unlink() if old is None else self._put(old))
        self._seen = identity, blob

    def replace(self, blob: bytes) -> None:
        """Replace the file without waiting for the disk.

        After a power failure, the file may have its old content again.
        """
        if not self._swept:
            self._sweep()
        self._seen = None
        self._seen = self._put(blob, durable=False), blob

    def delete(self) -> None:
        """Delete the file and any temporary files that a crash left behind. A missing file is not an error.

        When this method returns, all these files are gone from the disk.
        """
        self._seen = None
        try:
            self._sweep()
            self._path.unlink(missing_ok=True)
            self._sync(lambda: None)
        except FileNotFoundError:
            return  # the directory is gone

    def set_aside(self) -> str | None:
        """Rename the file to `<name>.corrupt-<when it was written>`.

        Return the new path, or None if the file does not exist.
        """
        try:
            written = _written_at(self._path.lstat().st_mtime)
        except FileNotFoundError:
            return None
        name = f"{self._path.name}.corrupt-{written}"
        names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
        aside = next(path for path in map(self._path.with_name, names) if not os.path.lexists(path))
        self._path.rename(aside)
        self._sync(lambda: aside.rename(self._path))
        return str(aside)

    def _put(self, blob: bytes, *, durable: bool = True) -> _Identity:
        """Replace the file. The renaming itself is not durable yet."""
        try:
            identity = _write_new(self._new, blob, self._mode, durable=durable)
            os.replace(self._new, self._target)  # noqa: PTH105 - see __init__
        except BaseException:
            try:
                os.unlink(self._new)  # noqa: PTH108 - see __init__
            except FileNotFoundError:
                pass
            except OSError:
                self._swept = False  # the next attempt must first delete the new file
            raise
        return identity

    def _sync(self, go_back: Callable[[], object]) -> None:
        """Make a rename durable, which an fsync of the file itself does not do. If the disk refuses, call `go_back`."""
        try:
            with_open(self._directory, _DIRECTORY, os.fsync)
        except OSError:
            with suppress(OSError):
                go_back()
            raise

    def _identity(self) -> _Identity | None:
        try:
            return _identity_of(os.lstat(self._target))
        except FileNotFoundError:
            return None

    def _sweep(self) -> None:
        """Delete the temporary files that a crash in the middle of `write` left behind."""
        ours = re.compile(rf"\.{re.escape(self._path.name)}\.\d+-\d+\.new")
        for name in os.listdir(self._directory):  # noqa: PTH208 - a single system call in every version of Python
            if ours.fullmatch(name):
                self._path.with_name(name).unlink(missing_ok=True)
        self._swept = True


def _written_at(mtime: float) -> str:
    """Return a time in a form for file names: as a date, or in seconds if the time is outside the years 1 to 9999."""
    try:
        return f"{datetime.fromtimestamp(mtime, UTC):%Y%m%dT%H%M%SZ}"
    except (ValueError, OverflowError, OSError):  # a file system with 64-bit times may return any number
        return f"{mtime:.0f}"


def _write_new(path: str, blob: bytes, mode: int, *, durable: bool) -> _Identity:
    opened: list[int] = []
    try:
        descriptor = open_into(opened, path, _NEW_FILE, mode)
        rest = blob
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
        found = os.fstat(descriptor)
        if stat.S_IMODE(found.st_mode) != mode:  # the umask has removed some bits of the mode
            os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        return _identity_of(found)
    finally:
        for descriptor in opened:
            os.close(descriptor)
