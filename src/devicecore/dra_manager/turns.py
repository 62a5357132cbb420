"""Which thread may call drivers for a claim now.

Law: at any time at most one thread has the turn of a key. A thread gets the turns of several keys together or gets none
of them, so there is no deadlock. A thread waits only for threads that have a turn that it needs.
"""

import threading
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager

from devicecore.domain.errors import CalledFromInsideError


class ClaimTurns:
    """Turns of keys: of the claims that drivers are called for, and of pods."""

    def __init__(self) -> None:
        self._ended = threading.Condition()
        self._taken: dict[Hashable, int] = {}  # the thread that has each turn

    @contextmanager
    def of(self, keys: Collection[Hashable], method: str) -> Iterator[None]:
        """Wait until all these turns are free, and take them for the block.

        Raises:
            CalledFromInsideError: this thread has one of them, so it would wait for itself.
        """
        thread = threading.get_ident()
        with self._ended:
            if any(self._taken.get(key) == thread for key in keys):
                raise CalledFromInsideError(method, "a call to a driver")
            self._ended.wait_for(lambda: self._taken.keys().isdisjoint(keys))
            self._taken.update(dict.fromkeys(keys, thread))
        try:
            yield
        finally:
            self._end(keys)

    @contextmanager
    def now(self, keys: Collection[Hashable]) -> Iterator[bool]:
        """Take these turns for the block if all are free; whether they were. This does not wait."""
        with self._ended:
            is_free = self._taken.keys().isdisjoint(keys)
            if is_free:
                self._taken.update(dict.fromkeys(keys, threading.get_ident()))
        try:
            yield is_free
        finally:
            if is_free:
                self._end(keys)

    def _end(self, keys: Collection[Hashable]) -> None:
        with self._ended:
            for key in keys:
                del self._taken[key]
            self._ended.notify_all()
