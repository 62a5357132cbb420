"""Files on a disk: the checkpoint, and the node's status as JSON.

Law: a file is replaced whole and durably or not at all, whatever fails and whenever the power goes.
"""

import errno
import itertools
import json
import os
import re
import select
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from attrs import frozen

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import SinkError, StoreError
from devicecore.domain.model import ResourceName

CHECKPOINT_NAME = "kubelet_internal_checkpoint"
"""What a kubelet calls its device manager's checkpoint."""


_WRITER_TO_COME = 1000  # milliseconds that a named pipe may be without anybody who writes

_instances = itertools.count(1)

_Identity = tuple[int, int, int, int]


class FileStore:
    """The checkpoint in one file, mode 0600. One store at a time may write it; a second is found out and refused."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = _DurableFile(self.path, 0o600)
        self._lock = threading.Lock()
        self._ours: tuple[bytes | None, ...] | None = None
        """What may be in the file if nobody else writes it; None if anything may."""
        self._reading = _Blaming(self.path, "read")
        self._writing = _Blaming(self.path, "write")
        self._setting_aside = _Blaming(self.path, "set aside")

    @classmethod
    def in_directory(cls, directory: str | os.PathLike[str]) -> "FileStore":
        """Find the checkpoint where a kubelet keeps it: in the plugin directory."""
        return cls(Path(directory) / CHECKPOINT_NAME)

    def load(self) -> bytes | None:
        """Read the file; None if there is none.

        Raises:
            StoreError: it cannot be read.
        """
        with self._lock, self._reading:
            blob = self._file.read()
            self._ours = (blob,)
            return blob

    def save(self, blob: bytes) -> None:
        """Replace the file; on return the disk has it.

        Raises:
            StoreError: it cannot be written, or somebody else has written it since; the old file is still there, or,
                should the disk fail again when it is put back, the new one.
        """
        with self._lock, self._writing:
            old = self._file.current()
            # Whoever writes over what another manager has saved gives that manager's devices away again.
            if self._ours is not None and old is not None and old not in self._ours:
                raise OSError(errno.EBUSY, "somebody else has written it since; only one manager at a time can use it")
            self._ours = (old, blob)  # a write that fails may leave either
            self._file.write(blob, old)
            self._ours = (blob,)

    def set_aside(self) -> str | None:
        """Rename the file to `<name>.corrupt-<when it was last written>`; the new path, None if there is no file.

        Raises:
            StoreError: it cannot be renamed, or is a directory.
        """
        with self._lock, self._setting_aside:
            if self.path.is_dir():  # somebody's own, most likely
                raise OSError(errno.EISDIR, "it is a directory; FileStore.in_directory keeps a checkpoint in one")
            aside = self._file.set_aside()
            self._ours = (None,)
            return aside


@frozen
class _Blaming:
    """What is done to a checkpoint: an OSError in it is a StoreError."""

    path: Path
    action: str

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise StoreError(self.path.name, self.action, f"{self.path}: {error.strerror or error}") from error


class JsonFileSink:
    """The node's status in a JSON file `{"capacity": {...}, "allocatable": {...}}`, which others may add to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = _DurableFile(self.path, 0o644)
        self._lock = threading.Lock()

    def publish(self, status: NodeStatus) -> None:
        """Merge `status` into the file. A removed resource stays with 0, as in a Node object (kubelet.md 8.2).

        Raises:
            SinkError: the file cannot be written, or holds something else; it is as it was.
        """
        removed = dict.fromkeys(status.removed, 0)
        try:
            with self._lock:
                old = self._file.read()  # whoever adds to it may do so in place, and at the same moment
                node = json.loads(old or b"{}")
                _merge(node, "capacity", {**removed, **status.capacity})
                _merge(node, "allocatable", {**removed, **status.allocatable})
                self._file.write(json.dumps(node, indent=2).encode() + b"\n", old)
        except OSError as error:
            raise SinkError(str(self.path), error.strerror or str(error)) from error
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise SinkError(str(self.path), f"it holds no node status: {error}") from error


def _merge(node: dict[str, object], key: str, counts: dict[ResourceName, int]) -> None:
    section = node.setdefault(key, {})
    if not isinstance(section, dict):
        problem = f"{key!r} is no object"
        raise TypeError(problem)
    section.update(counts)


@frozen
class _Seen:
    """What a file held when it was last read or written, and how it looked: device, inode, time of writing and size."""

    identity: _Identity | None
    blob: bytes


class _DurableFile:
    """One file, replaced by renaming; one thread at a time may do so. It lets the OS's errors through."""

    def __init__(self, path: Path, mode: int) -> None:
        self._path = path
        self._directory = str(path.parent)
        self._mode = mode
        # Nobody else's names, so that a second writer, who should not be, can spoil an attempt but never the file.
        # As text: a path object takes as long to become one as the disk takes for the call.
        self._new = str(path.with_name(f".{path.name}.{os.getpid()}-{next(_instances)}.new"))
        self._target = str(path)
        self._swept = False
        self._seen: _Seen | None = None

    def read(self) -> bytes | None:
        """What is in the file; None if there is none."""
        self._seen = None
        identity = self._identity()
        try:
            with open(self._target, "rb", opener=_without_waiting) as file:
                _refuse_what_has_no_end(file.fileno())
                blob = file.read()
        except FileNotFoundError:
            return None
        self._seen = _Seen(identity, blob)
        return blob

    def current(self) -> bytes | None:
        """As `read`, but without reading again what was last read or written here."""
        identity = self._identity()
        if identity is not None and self._seen is not None and identity == self._seen.identity:
            return self._seen.blob
        return self.read()

    def write(self, blob: bytes, old: bytes | None) -> None:
        """Replace the file, whose `current` content is `old`."""
        if not self._swept:
            self._sweep()
        self._seen = None
        identity = self._put(blob)
        self._sync(lambda: self._path.unlink() if old is None else self._put(old))
        self._seen = _Seen(identity, blob)

    def _put(self, blob: bytes) -> _Identity:
        """Replace the file, but not yet durably: after a power cut the old one may be back."""
        try:
            identity = _write_new(self._new, blob, self._mode)
            os.replace(self._new, self._target)  # noqa: PTH105 - see __init__
        except BaseException:
            try:
                os.unlink(self._new)  # noqa: PTH108 - see __init__
            except FileNotFoundError:
                pass
            except OSError:
                self._swept = False  # else it would be in the way of the next attempt
            raise
        return identity

    def set_aside(self) -> str | None:
        try:
            written = datetime.fromtimestamp(self._path.stat().st_mtime, UTC)
        except FileNotFoundError:
            return None
        name = f"{self._path.name}.corrupt-{written:%Y%m%dT%H%M%SZ}"
        names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
        aside = next(path for path in map(self._path.with_name, names) if not os.path.lexists(path))
        self._path.rename(aside)
        self._sync(lambda: aside.rename(self._path))
        return str(aside)

    def _sync(self, go_back: Callable[[], object]) -> None:
        """Make a rename durable, which fsync of the file does not, or `go_back`, as far as the disk lets us."""
        try:
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            with suppress(OSError):
                go_back()
            raise

    def _identity(self) -> _Identity | None:
        try:
            return _identity_of(os.stat(self._target))  # noqa: PTH116 - see __init__
        except FileNotFoundError:
            return None

    def _sweep(self) -> None:
        """Delete what a crash between two steps of `write` has left."""
        ours = re.compile(rf"\.{re.escape(self._path.name)}\.\d+-\d+\.new")
        for name in os.listdir(self._directory):  # noqa: PTH208 - one call of the OS, whatever Python's version
            if ours.fullmatch(name):
                self._path.with_name(name).unlink(missing_ok=True)
        self._swept = True


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; what waits for its writer, a named pipe, without waiting."""
    return os.open(path, flags | os.O_NONBLOCK)


def _refuse_what_has_no_end(descriptor: int) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode):
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        waiting.poll(_WRITER_TO_COME)
        os.set_blocking(descriptor, True)  # without a writer it has ended already
    elif not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is neither a file nor a pipe")  # such as /dev/zero


def _identity_of(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _write_new(path: str, blob: bytes, mode: int) -> _Identity:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        rest = memoryview(blob)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
        return _identity_of(os.fstat(descriptor))
    finally:
        os.close(descriptor)
