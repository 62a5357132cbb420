"""Named locks that the threads of several processes share through one file.

Law: threads of one process get a lock in the order in which they requested it. A lock is free as soon as the process
that holds it has ended, no matter how.
"""

import fcntl
import hashlib
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devicecore.domain.errors import LockedError
from devicecore.system.files import open_into

_POLL = 0.02  # seconds between two attempts, because no system call waits for a lock with a deadline


class NamedLocks:
    """Named locks. The file is created if it is missing, and stays empty. The file's directory must exist.

    Each name locks one byte of the file, through a separate file descriptor. So a lock also excludes other threads of
    this process, and the system frees it when the process ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._condition = threading.Condition()  # held while the queues change, never while a lock is awaited
        self._queues: dict[str, deque[object]] = {}

    @contextmanager
    def held(self, name: str, timeout: float) -> Iterator[None]:
        """Hold the lock `name` until the end of the block.

        This method waits at most `timeout` seconds for other processes, but without a limit for other threads of this
        process. Raises LockedError after `timeout` seconds, and OSError if the file cannot be created or locked.
        """
        ticket = object()
        with self._condition:
            queue = self._queues.setdefault(name, deque())
            queue.append(ticket)
        try:
            with self._condition:
                self._condition.wait_for(lambda: queue[0] is ticket)
            with self._locked(name, timeout):
                yield
        finally:
            with self._condition:
                queue.remove(ticket)
                if not queue:
                    del self._queues[name]
                self._condition.notify_all()

    @contextmanager
    def _locked(self, name: str, timeout: float) -> Iterator[None]:
        end = time.monotonic() + timeout
        opened: list[int] = []
        try:
            descriptor = open_into(opened, self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW)
            while not _try(descriptor, name):
                if time.monotonic() >= end:
                    raise LockedError(name, str(self._path))
                time.sleep(_POLL)
            yield
        finally:
            for descriptor in opened:
                os.close(descriptor)


def _try(descriptor: int, name: str) -> bool:
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except (BlockingIOError, PermissionError):
        return False
    return True
