"""Which files of a directory are written in place, seen by inotify.

Law: a write into a file that already has its final name is noticed, even if it takes no time.
"""

import ctypes
import os
import struct
from pathlib import Path

from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle

_MODIFY = 0x2  # inotify(7)
_EVENT = struct.Struct("iIII")
_BUFFER = 64 * 1024  # bytes


class WatchedDirectory(HasLifecycle):
    """The files in a directory into which something is written while this runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = -1
        self._lifecycle = Lifecycle("the watch of a directory")

    def _begin(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0 or libc.inotify_add_watch(self._descriptor, os.fsencode(self._directory), _MODIFY) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self._directory))

    def _end(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def modified(self) -> set[str]:
        """Return the names of the files into which something was written since the last call."""
        self._lifecycle.check_running()
        names: set[str] = set()
        try:
            while data := os.read(self._descriptor, _BUFFER):
                start = 0
                while start < len(data):
                    _, _, _, length = _EVENT.unpack_from(data, start)
                    start += _EVENT.size + length
                    names.add(os.fsdecode(data[start - length : start].rstrip(b"\0")))
        except BlockingIOError:  # there are no more events
            pass
        return names
