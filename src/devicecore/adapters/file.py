"""Files on a disk: the checkpoint, and the node's status as JSON.

Law: a file is replaced completely and durably or not at all, even if a call fails or the power is lost.
"""

import errno
import json
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import SinkError, StoreError
from devicecore.domain.json_size import MAX_BYTES, OBJECTS, STATE, size_problem
from devicecore.domain.model import ResourceName
from devicecore.system.arguments import checks_arguments
from devicecore.system.files import DurableFile

__all__ = ["CHECKPOINT_NAME", "FileStore", "JsonFileSink"]

CHECKPOINT_NAME = "kubelet_internal_checkpoint"
"""The kubelet's name for its device manager's checkpoint."""


MAX_CHECKPOINT_BYTES = 32 * 1024 * 1024
"""The maximum size of a checkpoint, in bytes. 50,000 allocated devices take 3 MiB.

The file is rewritten for each pod.
"""

_MANY_BYTES = STATE.max_values // 2  # a byte counts as at most two values


class FileStore:
    """The checkpoint in one file with mode 0600. A symbolic link is not followed.

    Only one store at a time may write the file. `save` raises an error if another process has written the file.

    Args:
        path: the path of the file.
        max_bytes: the maximum length of a saved checkpoint; a longer checkpoint is refused, and so is the pod whose
            admission it would save.
    """

    @checks_arguments()
    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_CHECKPOINT_BYTES) -> None:
        self.path: Path = Path(path)
        self._max_bytes = max_bytes
        self._file = DurableFile(self.path, 0o600, max_bytes=MAX_BYTES)
        self._lock = threading.Lock()
        self._ours: tuple[bytes | None, ...] | None = None
        """The possible contents of the file if no other process writes it, or None if the contents are unknown."""

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r})"

    @classmethod
    @checks_arguments()
    def in_directory(cls, directory: str | os.PathLike[str]) -> "FileStore":
        """Return a store for the checkpoint where a kubelet keeps it: in the plugin directory."""
        return cls(Path(directory) / CHECKPOINT_NAME)

    def load(self) -> bytes | None:
        """Read the file. Return None if the file does not exist.

        If the file's directory does not exist either, this method issues a RuntimeWarning, because `save` would fail.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._lock, _store_errors(self.path, "read"):
            blob = self._file.read()
            self._ours = (blob,)
        if blob is None:
            _warn_if_no_directory(self.path)
        return blob

    def save(self, blob: bytes) -> None:
        """Replace the file. When this method returns, the new content is on the disk.

        Raises:
            StoreError: `blob` is too large to be written or to be read again, the file cannot be written, or another
                process has written it since this store last read or wrote it. The old file is still there, unless the
                disk fails again while the old file is being restored. In that case, the new file is in place.
        """
        try:
            with self._lock:
                self._save(blob)
        except OSError as error:  # not `_store_errors`, because every admission runs this
            raise _store_error(self.path, "write", error) from error

    def _save(self, blob: bytes) -> None:
        if len(blob) > self._max_bytes:
            problem = f"the checkpoint is {len(blob)} bytes long, expected at most {self._max_bytes}"
            raise OSError(errno.EFBIG, f"{problem}: plugins or drivers have sent names or answers that are too long")
        if len(blob) > _MANY_BYTES and (problem := size_problem(blob)):
            raise OSError(errno.EFBIG, f"it could not be read again: {problem}")
        old = self._file.current()
        # If we overwrote what a different manager has saved, that manager's devices would be allocated again.
        if self._ours is not None and old is not None and old not in self._ours:
            problem = "another process has written it since; only one manager at a time can use it"
            raise OSError(errno.EBUSY, problem)
        self._ours = (old, blob)  # after a failed write, the file may have either the old or the new content
        self._file.write(blob, old)
        self._ours = (blob,)

    def set_aside(self) -> str | None:
        """Rename the file to `<name>.corrupt-<when it was written>`. Return the new path, or None if there is no file.

        Raises:
            StoreError: the file cannot be renamed, or is a directory.
        """
        with self._lock, _store_errors(self.path, "set aside"):
            if self.path.is_dir():  # most likely a directory that the user created
                raise OSError(errno.EISDIR, "it is a directory; for a file inside it, use FileStore.in_directory")
            aside = self._file.set_aside()
            self._ours = (None,)
            return aside


def _warn_if_no_directory(path: Path) -> None:
    """Warn if the directory of a file does not exist, because a manager only logs the error, or refuses a pod."""
    if not path.parent.exists():
        problem = f"there is no directory {path.parent}, so {path.name} cannot be written: create it"
        warnings.warn(problem, RuntimeWarning, stacklevel=3)


@contextmanager
def _store_errors(path: Path, action: str) -> Iterator[None]:
    """Turn an OSError into a StoreError."""
    try:
        yield
    except OSError as error:
        raise _store_error(path, action, error) from error


def _store_error(path: Path, action: str, error: OSError) -> StoreError:
    return StoreError(path.name, action, f"{path}: {error.strerror or error}")


class JsonFileSink:
    """The node's status in a JSON file `{"capacity": {...}, "allocatable": {...}}`, which other programs may extend."""

    @checks_arguments()
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self._file = DurableFile(self.path, 0o644, max_bytes=MAX_BYTES)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"JsonFileSink({str(self.path)!r})"

    def publish(self, status: NodeStatus) -> None:
        """Merge `status` into the file. A removed resource is kept at 0, as in a Node object (kubelet.md 8.2).

        Raises:
            SinkError: the file cannot be read or written, or its content is not a JSON object with counts. The file is
                left unchanged.
        """
        removed = dict.fromkeys(status.removed, 0)
        try:
            with self._lock:
                old = self._file.read()  # another program may be writing the file in place
                node = _object(old or b"{}")
                _merge(node, "capacity", {**removed, **status.capacity})
                _merge(node, "allocatable", {**removed, **status.allocatable})
                self._file.write(json.dumps(node, indent=2).encode() + b"\n", old)
        except OSError as error:
            _warn_if_no_directory(self.path)
            raise SinkError(str(self.path), error.strerror or str(error)) from error
        except (ValueError, TypeError, RecursionError) as error:
            problem = f"expected a JSON object with counts, got something else ({error}): correct or delete the file"
            raise SinkError(str(self.path), problem) from error


def _object(text: bytes) -> dict[str, object]:
    if problem := size_problem(text, OBJECTS):
        raise ValueError(problem)
    node = json.loads(text)
    if not isinstance(node, dict):
        problem = "it is not an object"
        raise TypeError(problem)
    return node


def _merge(node: dict[str, object], key: str, counts: dict[ResourceName, int]) -> None:
    section = node.setdefault(key, {})
    if not isinstance(section, dict):
        problem = f"{key!r} is not an object"
        raise TypeError(problem)
    section.update(counts)
