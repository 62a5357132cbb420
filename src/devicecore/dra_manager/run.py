"""A run of a DRA manager.

Law: a part of the manager changes only in the run that is under way, and in the process that started it. Calls and
events of another run are refused.
"""

import os

from devicecore.domain.errors import ForkedError


class DraRun:
    """One run of a DRA manager, from its start to its stop, in one process. Runs are compared by identity."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def check_process(self) -> None:
        """Check that this process is the one that started the run.

        Raises:
            ForkedError: it is a fork of that process. Threads and locks do not survive a fork, and the file of claims
                belongs to the first process.
        """
        if (process := os.getpid()) != self._process:
            raise ForkedError(self._process, process)
