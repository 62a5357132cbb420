"""Threads whose start does not wait forever.

Law: `Thread.start` returns once the thread runs, or raises RuntimeError within `LIMIT` seconds.
"""

import threading
from collections.abc import Callable

from devicecore.runtime.wake_up import LOOK_AGAIN, WakeUp

LIMIT: int = 30
"""How many seconds a thread may take to begin, not counting time during which the process is stopped."""


class _Begun(threading.Event):
    """The event that a thread sets when it begins, and for which only `Thread.start` waits.

    Python's own event uses a condition, whose lock stays locked if memory runs out at the wrong moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._wake_up = WakeUp()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._wake_up.wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the thread has begun. Raises RuntimeError after `LIMIT` seconds."""
        assert timeout is None  # noqa: S101 - for the base class
        for _ in range(LIMIT):  # one long wait would be over at once after SIGSTOP and SIGCONT
            if self._wake_up.wait(LOOK_AGAIN) or self._is_set:
                return True
        message = f"can't start new thread: it did not begin within {LIMIT} s, possibly for lack of memory"
        raise RuntimeError(message)


class Thread(threading.Thread):
    """A thread as in Python's `threading`, with a limit on the time that `start` waits for it to begin.

    A thread that runs out of memory before it begins ends silently, and the `start` of `threading.Thread` then waits
    forever (python/cpython#140746).
    """

    _started: (
        threading.Event
    )  # private to `threading.Thread`; if its `start` waits for something else, there is no limit

    def __init__(
        self, *, target: Callable[..., object], name: str, args: tuple[object, ...] = (), daemon: bool = False
    ) -> None:
        super().__init__(target=target, name=name, args=args, daemon=daemon)
        self._started = _Begun()
