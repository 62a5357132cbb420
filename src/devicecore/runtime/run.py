"""A run: the time from the beginning of an object's start to the end of its stop.

Law: nothing that belongs to a run is used in a different run or a different process.
"""

import os

from devicecore.domain.errors import ForkedError
from devicecore.runtime.wake_up import LOOK_AGAIN, WakeUp

# The id of this process. Every call checks the id, and asking the kernel for it would make each call 4 microseconds
# slower. A fork that bypasses Python goes unnoticed, but the interpreter would not work in such a process anyway.
_process = [os.getpid()]


def _forked() -> None:
    _process[0] = os.getpid()


os.register_at_fork(after_in_child=_forked)


def process_id() -> int:
    """Return the id of this process. In a fork, the id differs from the parent's."""
    return _process[0]


class Latch:
    """A one-time event that threads can wait for."""

    def __init__(self) -> None:
        self._is_set = False
        self._wake_up = WakeUp()

    def set(self) -> None:
        """Set the latch: release all threads that wait for it now or later."""
        self._is_set = True
        self._wake_up.wake()

    def wait(self) -> None:
        """Wait until the latch is set."""
        while not self._is_set:
            self._wake_up.wait(LOOK_AGAIN)
        self._wake_up.wake()  # release the next waiting thread


class Run:
    """The time from the beginning of a start to the end of the stop that follows. Runs are compared by identity.

    Only `Lifecycle` writes `is_started`, `is_stopped` and `is_over`, in this order. `is_restored` is set by a manager
    when the checkpoint is restored or the run has ended. Events wait for `is_restored` before they change the state.
    """

    def __init__(self) -> None:
        self.is_started = False
        self.is_stopped = False
        self.is_over = False
        self.is_restored: Latch = Latch()
        self._process = _process[0]

    def check_process(self) -> None:
        """Raise ForkedError if this process is a fork of the one that started the run, unless the run is over.

        Threads and locks do not survive a fork, and the manager's directory belongs to the process that started the
        run.
        """
        if self._process != _process[0] and not self.is_over:
            raise ForkedError(self._process, _process[0])
