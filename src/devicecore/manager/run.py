"""One run of a manager, from a start to its stop."""

import os
import threading

from devicecore.domain.errors import ForkedError


class Run:
    """What belongs to one run only. Runs are compared by identity.

    `is_stopped` is written by `CurrentState` only, under its lock. `is_restored` is set as soon as events may change
    the state, because what was saved is known by then, or never will be.
    """

    def __init__(self) -> None:
        self.is_stopped = False
        self.is_restored: threading.Event = threading.Event()
        self._process = os.getpid()

    def check_process(self) -> None:
        """Refuse to work in a forked process.

        Raises:
            ForkedError: this is not the process that started the run. Threads and locks do not survive a fork, and the
                directory belongs to the first process.
        """
        if (process := os.getpid()) != self._process:
            raise ForkedError(self._process, process)
