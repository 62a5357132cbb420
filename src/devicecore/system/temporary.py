"""A temporary directory in which unix sockets can be bound."""

import os
import tempfile

_SHORT_ROOT = "/tmp"  # noqa: S108 - the directory itself is made by mkdtemp, for its owner alone
_MAX_ROOT_LENGTH = 40  # bytes; leaves more than 60 of the 107 bytes of a socket's path for names in the directory


def short_directory() -> "tempfile.TemporaryDirectory[str]":
    """Make a temporary directory with a short path, which is removed when its context ends.

    The path of a unix socket may have 107 bytes. If the path of the usual directory for temporary files
    is long, `/tmp` is used instead.
    """
    fits = len(os.fsencode(tempfile.gettempdir())) <= _MAX_ROOT_LENGTH
    return tempfile.TemporaryDirectory(prefix="dc-", dir=None if fits else _SHORT_ROOT)
