"""Save the checkpoint.

Law: the allocations of a pod are in the store before its admission returns, and no older state is saved after a newer
one. After the end of a run nothing is saved, because the store may belong to the next owner.

An admission saves in its own thread. If several wait, the first one saves the changes of all with one write. An
eviction saves in its own thread too, unless a save is under way. Other changes (events, time) are saved by a thread of
the saver, so a store that hangs delays only the calls that need it.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from weakref import WeakMethod

from attrs import define

from devicecore.domain.checkpoint import CheckpointWriter, ExtraFields
from devicecore.domain.errors import CalledFromInsideError, DeviceCoreError, ManagerStoppedError
from devicecore.domain.node_state import NodeState
from devicecore.manager.current_state import CurrentState
from devicecore.manager.open_call import OpenCall
from devicecore.manager.run import Run
from devicecore.manager.saver_thread import SaverThread
from devicecore.ports.store import CheckpointStore

_log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds for which a call waits until what it requested is saved."""

Change = Callable[[NodeState], NodeState]


@define(eq=False)
class _Commit:
    """A change that an admission wants to have saved; when it is done, the state with it, or why it failed."""

    run: Run
    change: Change
    state: NodeState | None = None
    error: Exception | None = None


class Saver:
    """Owns the store, the writer and the state saved last. The lock is held while the store is called.

    The state lock may be taken while this lock is held, but never this lock while the state lock is held.
    """

    in_background = True
    """If False, requests are saved in the thread that makes them, so that a test with one thread is repeatable."""

    def __init__(self, store: CheckpointStore, state: CurrentState) -> None:
        self._store = store
        self._state = state
        self._writer = CheckpointWriter()
        self._lock = threading.Lock()
        self._call: OpenCall | None = None  # to the store
        self._called_at = 0.0
        self._saved: NodeState | None = None
        self._waiting: list[_Commit] = []  # for the lock; replaced by the one who takes them
        self._thread: SaverThread | None = None  # of the run now
        self.is_behind: bool = False
        """Whether the state has changes that are not saved yet."""

    def begin(self, run: Run, value: NodeState, extra: ExtraFields) -> None:
        """Begin `run` with the restored state. `extra` goes into every file.

        Raises:
            ManagerStoppedError: the run was stopped before it began.
        """
        with self._lock:
            self._state.begin(run, value)
            self._saved, self.is_behind = None, False
            self._writer.extra = extra
            if self.in_background:
                self._thread = SaverThread(WeakMethod(self._save_now))

    def end(self, *runs: Run | None) -> None:
        """Wait for the save that is under way, save what is not saved yet, then end the current run and `runs`.

        Raises:
            CalledFromInsideError: the store calls this while it saves.
        """
        self._check_call("stop")
        with self._lock:
            if self.is_behind and self._state.run is not None:
                self._save_or_log()
            self._state.end(*runs)
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()

    def load(self) -> bytes | None:
        """The content of the store.

        Raises:
            StoreError: it cannot be read.
        """
        return self._store.load()

    def set_aside(self, run: Run) -> str | None:
        """Ask the store to set its content aside; the new place.

        Raises:
            StoreError: it cannot be moved.
            ManagerStoppedError: `run` was stopped, so the store may be another manager's.
        """
        with self._lock:
            if run.is_stopped:
                raise ManagerStoppedError
            return self._store.set_aside()

    def commit(self, run: Run, change: Change) -> NodeState:
        """Save the result of `change`, then make it the current state; the state after that.

        `change` is applied to newer states again, and possibly to a state that has it already. All commits that wait
        while the store is busy are saved with one write.

        Raises:
            StoreError: it cannot be saved. The state is as before.
            ManagerStoppedError: `run` is not the current run.
            CalledFromInsideError: the store calls this while it saves.
        """
        if self._call is not None:
            self._check_call("admit")
        own = _Commit(run, change)
        self._waiting.append(own)
        with self._lock:
            if own.state is None and own.error is None:  # no other call has done it
                self._commit_waiting(own)
        if own.state is None:
            assert own.error is not None, "a commit that is done has one of both"  # noqa: S101 - for mypy
            raise own.error
        return own.state

    def _commit_waiting(self, own: _Commit) -> None:
        """Do `own` and all commits of its run that wait; the caller holds the lock.

        A call that is interrupted here leaves the others undone. So each call does its own commit unless it is done.
        """
        waiting, self._waiting = self._waiting, []
        if self._state.run is not own.run:
            raise ManagerStoppedError
        group = [own]
        if len(waiting) > 1:
            group += [commit for commit in waiting if commit.run is own.run and commit is not own]
        error = self._commit_together(group)
        if error is None:
            return
        if len(group) == 1:
            own.error = error
            return
        for commit in group:  # each alone, because no pod may be refused because of another one
            commit.error = self._commit_together([commit])

    def _commit_together(self, group: Sequence[_Commit]) -> Exception | None:
        """Save the changes of `group` with one write; the error if that fails."""

        def changed(state: NodeState) -> NodeState:
            for commit in group:
                state = commit.change(state)
            return state

        try:
            before = self._state.value
            after = changed(before)
            self.is_behind = True  # until the state is what was saved: an interrupt may come in between
            self._save(after)
            _, now = self._state.replace(lambda value: after if value is before else changed(value))
            self.is_behind = now is not after
        except Exception as error:  # noqa: BLE001 - the calls that wait raise it
            return error
        for commit in group:
            commit.state = now
        return None

    def save(self) -> None:
        """Save the current state in the caller's thread. While another thread saves, do what `request` does.

        A failed save is logged, and the next save includes its changes.
        """
        if self._lock.locked():  # not `_call`, because that thread may be about to call the store
            self.request()
            return
        self.is_behind = True
        self._save_now()

    def request(self, *, wait: bool = True) -> None:
        """Ask the saver's thread to save the current state.

        This returns when the save has succeeded or failed, or when the store has been busy with one save for `PATIENCE`
        seconds. With `wait=False`, or inside that save, it returns at once. A failed save is logged, and the next save
        includes its changes.
        """
        self.is_behind = True
        if self._state.run is None:
            return
        if not self.in_background:
            self._save_now()
            return
        if (thread := self._thread) is None:
            return
        call = self._call
        busy = time.monotonic() - self._called_at if call is not None else 0.0
        if call is not None and call.encloses_caller:
            wait = False
        if not thread.request(max(0.0, PATIENCE - busy) if wait else None):
            _log.warning("the store has been busy for %g s: the newest state is saved when it has finished", PATIENCE)

    def _save_now(self) -> None:
        """Save the current state, if a run has it."""
        with self._lock:
            if self._state.run is not None:
                self._save_or_log()

    def _save_or_log(self) -> None:
        value = self._state.value
        try:
            self._save(value)
        except DeviceCoreError as error:
            _log.error("%s", error)
        except Exception:  # noqa: BLE001 - a mistake of the store; there is no caller to raise it to
            _log.exception("saving the checkpoint failed")
        else:
            # Not before the save, because an interrupt may end it. A newer state has its own request.
            self.is_behind = self._state.value is not value

    def _save(self, value: NodeState) -> None:
        """Make `value` durable; the caller holds the lock."""
        if value is self._saved:
            return
        self._saved = None  # a save that fails may leave the old or the new state in the store
        file = self._writer.file(value)
        self._called_at = time.monotonic()
        self._call = OpenCall()
        try:
            self._store.save(file)
        finally:
            self._call = None
        self._saved = value

    def _check_call(self, method: str) -> None:
        if self._call is not None and self._call.encloses_caller:
            raise CalledFromInsideError(method, "CheckpointStore.save")
