"""Finds out with inotify which files in a directory are written in place.

Law: a write to a file that already has its final name is noticed, however short it is.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_MODIFY = 0x2  # inotify(7)
_EVENT = struct.Struct("iIII")
_BUFFER = 64 * 1024  # bytes


@contextmanager
def written_in(directory: Path) -> Iterator[set[str]]:
    """Yield a set that contains, after this block, the names of the files that were written in place.

    Raises OSError if the directory cannot be watched.
    """
    names: set[str] = set()
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    with ExitStack() as stack:
        if descriptor >= 0:
            stack.callback(os.close, descriptor)
        if descriptor < 0 or libc.inotify_add_watch(descriptor, os.fsencode(directory), _MODIFY) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))
        yield names
        with suppress(BlockingIOError):  # there are no more events
            while data := os.read(descriptor, _BUFFER):
                while data:
                    end = _EVENT.size + _EVENT.unpack_from(data)[3]
                    names.add(os.fsdecode(data[_EVENT.size : end].rstrip(b"\0")))
                    data = data[end:]
