"""Waits until another thread or a signal handler announces that something may have changed.

Law: a wait ends when it is woken or when its time is up, no matter what signal handlers run in the meantime. Outside
`background`, all waits with a timeout in the runtime and the managers use this module.

Why it is built this way:

* `SimpleQueue.get` with a timeout may never end in CPython 3.11 and 3.12: if a signal handler returns after the timeout
  has passed, `get` continues to wait without a timeout. `Lock.acquire` checks for this case.
* `threading.Event` and `Condition` are written in Python, and an interrupt (Ctrl-C) inside them may leave their lock
  held forever. A lock is implemented in C, so an interrupt leaves the lock either free or taken, and both are valid
  states here: at worst, a wake-up is lost. So a waiting thread checks again after `LOOK_AGAIN` seconds.
"""

import threading

LOOK_AGAIN = 1.0
"""Seconds after which a waiting thread checks again, because an interrupt can make it miss its wake-up."""


class WakeUp:
    """Wakes one thread at a time.

    If no thread is waiting yet, the next wait ends at once. Several wake-ups before a wait count as one.
    """

    __slots__ = ("_asleep",)

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        """Wake a thread that is waiting, or else the next thread that waits. A signal handler may call this method."""
        try:
            self._asleep.release()
        except RuntimeError:  # the thread is already awake; checking that first would be a race
            return

    def wait(self, seconds: float) -> bool:
        """Wait until `wake` is called, or until `seconds` have passed. Return whether `wake` was called."""
        return self._asleep.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
