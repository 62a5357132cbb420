"""Save the checkpoint.

Law: the allocations of a pod are in the store before its admission returns, and no older state is saved after a newer
one. After the end of a run nothing is saved, because the store may belong to the next owner.

An admission saves in its own thread. Other changes (events, evictions, time) are saved by a thread of the saver, so a
store that hangs delays only admissions that need it.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from devicecore.domain.checkpoint import CheckpointWriter, ExtraFields
from devicecore.domain.errors import CalledFromInsideError, DeviceCoreError, ManagerStoppedError
from devicecore.domain.node_state import NodeState
from devicecore.manager.current_state import CurrentState
from devicecore.manager.open_call import OpenCall
from devicecore.manager.run import Run
from devicecore.ports.store import CheckpointStore

_log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds for which a call waits until what it requested is saved."""

_Done = SimpleQueue[None]
_Requests = SimpleQueue[_Done | None]


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
        self._background: tuple[_Requests, threading.Thread] | None = None  # of the run now; None ends the thread
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
                requests = _Requests()
                # `is_alive` is never called: an interrupt inside it makes it return False for ever.
                thread = threading.Thread(target=self._serve, args=(requests,), name="devicecore-saver", daemon=True)
                thread.start()
                self._background = requests, thread

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
            background, self._background = self._background, None
        if background is not None:
            requests, thread = background
            requests.put(None)
            thread.join()

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

    def commit(self, run: Run, change: Callable[[NodeState], NodeState]) -> NodeState:
        """Save the result of `change`, then make it the current state; the state after that.

        Raises:
            StoreError: it cannot be saved. The state is as before.
            ManagerStoppedError: `run` is not the current run.
            CalledFromInsideError: the store calls this while it saves.
        """
        self._check_call("admit")
        with self._lock:
            if self._state.run is not run:
                raise ManagerStoppedError
            before = self._state.value
            after = change(before)
            self.is_behind = True  # until the state is what was saved: an interrupt may come in between
            self._save(after)
            _, now = self._state.replace(lambda value: after if value is before else change(value))
            self.is_behind = now is not after
        return now

    def request(self, *, wait: bool = True) -> None:
        """Ask the saver's thread to save the current state.

        This returns when the save has succeeded or failed, or when the store has been busy with one save for `PATIENCE`
        seconds. With `wait=False` it returns at once. A failed save is logged, and the next save includes its changes.
        """
        self.is_behind = True
        if self._state.run is None:
            return
        if not self.in_background:
            with self._lock:
                self._save_or_log()
            return
        if (background := self._background) is None:
            return
        requests, thread = background
        done = _Done()
        requests.put(done)
        if thread is threading.current_thread() or not wait:
            return
        busy = time.monotonic() - self._called_at if self._call is not None else 0.0
        try:
            done.get(timeout=max(0.0, PATIENCE - busy))
        except Empty:
            _log.warning("the store has been busy for %g s: the newest state is saved when it has finished", PATIENCE)

    def _serve(self, requests: _Requests) -> None:
        """Serve requests until a request is None. An error does not end the thread."""
        is_last = False
        while not is_last:
            served: list[_Done] = []
            try:
                is_last = self._serve_some(requests, served)
            except BaseException:  # noqa: BLE001 - an interrupt from outside; without this thread nothing would be saved
                _log.exception("the thread that saves the checkpoint was interrupted and goes on")
            for done in served:
                done.put(None)

    def _serve_some(self, requests: _Requests, served: list[_Done]) -> bool:
        """Wait for a request, and save once for all requests that are waiting; whether None was among them."""
        taken = [requests.get()]
        with suppress(Empty):
            while True:
                taken.append(requests.get_nowait())
        served += [done for done in taken if done is not None]
        with self._lock:
            if self._state.run is not None:
                self._save_or_log()
        return None in taken

    def _save_or_log(self) -> None:
        self.is_behind = False  # before the state is read, because it may change during the save
        try:
            self._save(self._state.value)
        except DeviceCoreError as error:
            self.is_behind = True
            _log.error("%s", error)
        except Exception:  # noqa: BLE001 - a mistake of the store; there is no caller to raise it to
            self.is_behind = True
            _log.exception("saving the checkpoint failed")

    def _save(self, value: NodeState) -> None:
        """Make `value` durable; the caller holds the lock."""
        if value is self._saved:
            return
        self._saved = None  # a save that fails may leave the old or the new state in the store
        file = self._writer.file(value)
        self._called_at = time.monotonic()
        self._call = OpenCall.of_caller()
        try:
            self._store.save(file)
        finally:
            self._call = None
        self._saved = value

    def _check_call(self, method: str) -> None:
        if self._call is not None and self._call.encloses_caller:
            raise CalledFromInsideError(method, "CheckpointStore.save")
