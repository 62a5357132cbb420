"""The current state of the node, and the run that it belongs to.

Law: the state is an immutable value that is replaced as a whole, so a reader needs no lock. No port, no plugin and no
function of a caller is called while the lock is held.
"""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from devicecore.domain.errors import ManagerStoppedError
from devicecore.domain.node_state import NodeState
from devicecore.manager.run import Run

# Seconds after which a waiting caller reads the state again, because an interrupt may lose its wake-up.
_LOOK_AGAIN = 1.0


class CurrentState:
    """The state, the run it belongs to, and the callers that wait for another state.

    Every lock and queue here is implemented in C, because an interrupt cannot leave such an object half acquired.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[SimpleQueue[None]] = set()
        self.value: NodeState = NodeState()
        """The current state. Only `begin` and `replace` write it."""
        self.run: Run | None = None
        """The current run, None if there is none. Only `begin` and `end` write it."""

    def begin(self, run: Run, value: NodeState) -> None:
        """Begin `run` with the restored state.

        Raises:
            ManagerStoppedError: the run was stopped before it began.
        """
        with self._lock:
            if run.is_stopped:
                raise ManagerStoppedError
            self.run, self.value = run, value
        self._wake()

    def end(self, *runs: Run | None) -> None:
        """End the current run, and `runs` that have not begun yet. The state can still be read."""
        with self._lock:
            for run in (*runs, self.run):
                if run is not None:
                    run.is_stopped = True
            self.run = None

    def replace(
        self, change: Callable[[NodeState], NodeState], *, run: Run | None = None
    ) -> tuple[NodeState, NodeState]:
        """Replace the state by the result of `change`; the state before and the state after.

        If `change` raises an error, the state stays and the caller gets the error.

        Raises:
            ManagerStoppedError: `run` is given and is not the current run.
        """
        with self._lock:
            if run is not None and run is not self.run:
                raise ManagerStoppedError
            before = self.value
            after = self.value = change(before)
        if self._waiting:
            self._wake()
        return before, after

    def wait_for(self, condition: Callable[[NodeState], object], timeout: float) -> NodeState:
        """The first state for which `condition` is met. It is called in the caller's thread, without the lock.

        Raises:
            TimeoutError: the condition was not met within `timeout` seconds.
        """
        until = time.monotonic() + timeout
        changed = SimpleQueue[None]()
        self._waiting.add(changed)
        try:
            while not condition(state := self.value):
                while self.value is state:
                    left = until - time.monotonic()
                    if left <= 0:
                        message = f"condition not met within {timeout:g} s"
                        raise TimeoutError(message)
                    try:
                        changed.get(timeout=min(left, _LOOK_AGAIN))
                    except Empty:
                        continue
            return state
        finally:
            self._waiting.discard(changed)

    def _wake(self) -> None:
        for changed in tuple(self._waiting):
            changed.put(None)
