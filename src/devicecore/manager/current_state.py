"""What is known of the node now.

Law: the state is a value that is only ever replaced, so a reader takes the reference and has a consistent picture
without any lock. No port, no plugin and no function of a caller is called while the lock is held.
"""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from devicecore.domain.errors import ManagerStoppedError
from devicecore.domain.node_state import NodeState
from devicecore.manager.run import Run

_LOOK_AGAIN = 1.0  # seconds after which a waiting caller looks for itself, because an interrupt may cost it a wake-up


class CurrentState:
    """The state, the run it belongs to, and the callers that wait for another state.

    Every lock and queue here is written in C: an interrupt cannot leave one of them half acquired.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[SimpleQueue[None]] = set()
        self.value: NodeState = NodeState()
        """The state now. Only `begin` and `replace` write it."""
        self.run: Run | None = None
        """The run now, None outside of one. Only `begin` and `end` write it."""

    def begin(self, run: Run, value: NodeState) -> None:
        """Begin `run` with what was restored.

        Raises:
            ManagerStoppedError: the run was stopped before it began.
        """
        with self._lock:
            if run.is_stopped:
                raise ManagerStoppedError
            self.run, self.value = run, value
        self._wake()

    def end(self, *runs: Run | None) -> None:
        """End the run now, and `runs` that have not begun yet. The state stays to be read."""
        with self._lock:
            for run in (*runs, self.run):
                if run is not None:
                    run.is_stopped = True
            self.run = None

    def replace(
        self, change: Callable[[NodeState], NodeState], *, run: Run | None = None
    ) -> tuple[NodeState, NodeState]:
        """Replace the state by what `change` makes of it; what it was, and what it is. What `change` raises, leaves.

        Raises:
            ManagerStoppedError: `run` is given and is not the run now.
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
        """The first state seen of which `condition` holds. It is called in the caller's thread, without the lock.

        Raises:
            TimeoutError: it held of no state within `timeout` seconds.
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
