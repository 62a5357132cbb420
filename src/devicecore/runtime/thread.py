"""Threads whose start does not wait forever.

Law: `Thread.start` returns once the thread runs, or raises RuntimeError within `LIMIT` seconds.
"""

import threading
from collections.abc import Callable

LIMIT = 30
"""How many seconds a thread may take to begin, not counting time during which the process is stopped."""


class _Begun(threading.Event):
    """The event that a thread sets when it begins."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        for _ in range(LIMIT):  # one long wait would be over at once after SIGSTOP and SIGCONT
            if super().wait(1.0):
                return True
        message = f"can't start new thread: it did not begin within {LIMIT} s, possibly for lack of memory"
        raise RuntimeError(message)


class Thread(threading.Thread):
    """A thread as in Python's `threading`, with a limit on the time that `start` waits for it to begin.

    A thread that runs out of memory before it begins ends silently, and the `start` of `threading.Thread` then waits
    forever (python/cpython#140746).
    """

    _started: threading.Event  # exists in `threading.Thread` in all versions of Python; only `start` waits for it

    def __init__(
        self, *, target: Callable[..., object], name: str, args: tuple[object, ...] = (), daemon: bool = False
    ) -> None:
        super().__init__(target=target, name=name, args=args, daemon=daemon)
        self._started = _Begun()
