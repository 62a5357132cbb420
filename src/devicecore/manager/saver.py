"""Save the checkpoint.

Law: what an admission answers is in the store before it is answered, and no older state is saved after a newer one.
After the end of a run nothing is saved, because the store may belong to the next owner.
"""

import logging
import threading
from collections.abc import Callable

from devicecore.domain.checkpoint import CheckpointWriter
from devicecore.domain.errors import CalledFromInsideError, ManagerStoppedError, StoreError
from devicecore.domain.node_state import NodeState
from devicecore.manager.current_state import CurrentState
from devicecore.manager.open_call import OpenCall
from devicecore.manager.run import Run
from devicecore.ports.store import CheckpointStore

_log = logging.getLogger(__name__)


class Saver:
    """Owns the store, the writer and what was saved last. The lock is held while the store is called.

    While it is held, the state may be replaced: saving before state is the one nesting of locks here.
    """

    def __init__(self, store: CheckpointStore, state: CurrentState) -> None:
        self._store = store
        self._state = state
        self._writer = CheckpointWriter()
        self._lock = threading.Lock()
        self._call: OpenCall | None = None  # to the store
        self._saved: NodeState | None = None
        self.is_behind = False
        """Whether something is to be saved that is not saved yet."""

    def begin(self, run: Run, value: NodeState) -> None:
        """Begin `run` with what was restored.

        Raises:
            ManagerStoppedError: the run was stopped before it began.
        """
        with self._lock:
            self._state.begin(run, value)
            self._saved, self.is_behind = None, False

    def end(self, *runs: Run | None) -> None:
        """Wait for the save that is under way, save what is not saved yet, then end the run now and `runs`.

        Raises:
            CalledFromInsideError: the store calls this while it saves.
        """
        self._check_call("stop")
        with self._lock:
            if self.is_behind and self._state.run is not None:
                self._save_or_log()
            self._state.end(*runs)

    def load(self) -> bytes | None:
        """What the store has.

        Raises:
            StoreError: it cannot be read.
        """
        return self._store.load()

    def set_aside(self, run: Run) -> str | None:
        """Have the store set aside what it has; where it is then.

        Raises:
            StoreError: it cannot be moved.
            ManagerStoppedError: `run` was stopped, so the store may be another manager's.
        """
        with self._lock:
            if run.is_stopped:
                raise ManagerStoppedError
            return self._store.set_aside()

    def commit(self, run: Run, change: Callable[[NodeState], NodeState]) -> NodeState:
        """Save what `change` makes of the state, then make it the state; the state after it.

        Raises:
            StoreError: it cannot be saved. The state is as before.
            ManagerStoppedError: `run` is not the run now.
            CalledFromInsideError: the store calls this while it saves.
        """
        self._check_call("admit")
        with self._lock:
            if self._state.run is not run:
                raise ManagerStoppedError
            before = self._state.value
            after = change(before)
            self.is_behind = True  # until it is the state: an interrupt may come in between
            self._save(after)
            _, now = self._state.replace(lambda value: after if value is before else change(value))
            self.is_behind = False
        return now

    def request(self) -> None:
        """Have the newest state saved. If it fails, that is logged, and the next save includes it."""
        self.is_behind = True
        with self._lock:
            if self._state.run is not None:
                self._save_or_log()

    def _save_or_log(self) -> None:
        try:
            self._save(self._state.value)
        except StoreError as error:
            _log.error("%s", error)
        else:
            self.is_behind = False

    def _save(self, value: NodeState) -> None:
        """Make `value` durable; the caller holds the lock."""
        if value is self._saved:
            return
        self._saved = None  # until the store says otherwise, nobody knows what it has
        file = self._writer.file(value)
        self._call = OpenCall.of_caller()
        try:
            self._store.save(file)
        finally:
            self._call = None
        self._saved = value

    def _check_call(self, method: str) -> None:
        if self._call is not None and self._call.is_around_us:
            raise CalledFromInsideError(method, "CheckpointStore.save")
