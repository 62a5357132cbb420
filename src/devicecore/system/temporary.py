"""A temporary directory in which unix sockets can be bound.

Law: the path is short enough for a socket in it, and nobody but its owner can open the directory.
"""

import os
import tempfile
from pathlib import Path

_SHORT_ROOT = "/tmp"  # noqa: S108 - the directory itself is made by mkdtemp, for its owner alone
_MAX_ROOT_LENGTH = 40  # bytes; leaves more than 60 of the 107 bytes of a socket's path for names in the directory


def short_directory() -> "tempfile.TemporaryDirectory[str]":
    """Make a temporary directory with a short path, which is removed when its context ends.

    The path of a unix socket may have 107 bytes. If the path of the usual directory for temporary files is long, `/tmp`
    is used instead.
    """
    return tempfile.TemporaryDirectory(prefix="dc-", dir=_root())


def new_short_directory() -> Path:
    """Make a directory with a short path, which the caller removes."""
    return Path(tempfile.mkdtemp(prefix="dc-", dir=_root()))


def _root() -> str | None:
    fits = len(os.fsencode(tempfile.gettempdir())) <= _MAX_ROOT_LENGTH
    return None if fits else _SHORT_ROOT
