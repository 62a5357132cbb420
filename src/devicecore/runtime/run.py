"""One run of a manager, from a start to its stop.

Law: nothing of one run is used in another run or in another process.
"""

import os
import threading

from devicecore.domain.errors import ForkedError


class Run:
    """One run of a manager. Runs are compared by identity.

    Only `CurrentState` writes `is_stopped`, under its lock. `is_restored` is set when the checkpoint is restored or
    the start has failed. Events wait for it before they change the state.
    """

    def __init__(self) -> None:
        self.is_stopped = False
        self.is_restored: threading.Event = threading.Event()
        self._process = os.getpid()

    def check_process(self) -> None:
        """Check that this process is the one that started the run, unless the run is over.

        Raises:
            ForkedError: this is not the process that started the run. Threads and locks do not survive a fork, and the
                directory belongs to the first process.
        """
        if not self.is_stopped and (process := os.getpid()) != self._process:
            raise ForkedError(self._process, process)
