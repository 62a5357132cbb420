"""A temporary directory in which unix sockets can be bound.

Laws: the path is short enough for a socket in it, and only the owner can open the directory. At the end, the directory
and its contents are removed.
"""

import errno
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

_SHORT_ROOT = "/tmp"  # noqa: S108 - mkdtemp creates the directory itself, only for its owner
_MAX_ROOT_LENGTH = 40  # bytes; leaves over 50 of a socket path's 107 bytes for names in the directory
_REMOVING = 60.0  # seconds to remove a tree in which another process creates new files


@contextmanager
def short_directory() -> Iterator[str]:
    """Create a temporary directory with a short path, which is removed when the context ends.

    The path of a unix socket may be at most 107 bytes long. If the usual directory for temporary files has a long path,
    `/tmp` is used instead.
    """
    path = new_short_directory()
    try:
        yield str(path)
    finally:
        remove_tree(path)


def new_short_directory() -> Path:
    """Create a directory with a short path, which the caller removes."""
    return Path(tempfile.mkdtemp(prefix="dc-", dir=short_root()))


def remove_tree(path: Path) -> None:
    """Remove a directory and its contents, or a file or link in its place. It is not an error if nothing exists.

    `shutil.rmtree` fails for a link, a thousand nested directories, or a directory without permissions. This function
    moves each level up before it removes the level's parent, so paths stay short and there is no recursion.

    Raises:
        OSError: something in the tree cannot be removed, or another process has kept creating files there for a minute.
    """
    deadline = time.monotonic() + _REMOVING
    new_names = (path / f".{uuid.uuid4()}-{number}" for number in count())
    while path.is_dir() and not path.is_symlink():
        try:
            for entry in _entries(path):
                if entry.is_dir(follow_symlinks=False):
                    for inner in _entries(entry.path):
                        if inner.is_dir(follow_symlinks=False):
                            Path(inner.path).chmod(0o700)  # a directory without write permission cannot be moved
                            Path(inner.path).rename(next(new_names))
                        else:
                            Path(inner.path).unlink(missing_ok=True)
                    Path(entry.path).rmdir()
                else:
                    Path(entry.path).unlink(missing_ok=True)
            path.rmdir()
        except OSError as error:  # another process has removed or created something in the meantime
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY) or time.monotonic() > deadline:
                raise
    path.unlink(missing_ok=True)


def _entries(path: str | Path) -> "list[os.DirEntry[str]]":
    Path(path).chmod(0o700)
    with os.scandir(path) as entries:
        return list(entries)


def short_root() -> str | None:
    """Return where to create temporary directories with short paths, or None if the default is short enough."""
    fits = len(os.fsencode(tempfile.gettempdir())) <= _MAX_ROOT_LENGTH
    return None if fits else _SHORT_ROOT
