"""A saved state: each change is first stored, and then takes effect.

Law: a committed change is in the store before anyone sees it and before its call returns. An older value is never saved
after a newer one. After the end of a run nothing is saved, because the store may belong to the next owner.

Why it is built this way:

* There are two locks. The state lock (`CurrentState`) is held briefly, while the value is replaced. The saving lock is
  held while the store is called. If a disk hangs, that call may never return. The saving lock may be held when the
  state lock is taken, but never the other way around. So a disk that hangs delays only calls that need the disk:
  readers take no lock, and events replace the value without the saving lock.
* A change is a function that takes a value and returns the next value and a result. A change is not simply the next
  value, because the value may be replaced while the store is called. In that case, the change is applied again, to the
  newer value. So a change may be applied twice, possibly to a value that already contains the change. The last result
  counts.
* Several commits may wait for the saving lock. The first commit that gets the lock saves all of them with one write. If
  that write fails, each commit is saved alone, so that no commit fails because of a different commit. A call that is
  interrupted while it does this leaves the other commits undone, so each call does its own commit unless that is
  already done. A commit whose call was interrupted is left out: its caller may have tried again since, and an old
  change must not follow a newer one.
* A value is saved first, and only then becomes the current one. Because an interrupt may come between the two steps,
  `is_behind` is true from before the save until the saved value is the current one. If `is_behind` stays true, the next
  commit, the next request or the end of the run saves the current value.
* A save that fails may leave the old or the new content in the store. So `_saved` is None until the next save succeeds.
* Changes outside a commit are saved by the caller (`save`), or by a thread that starts and ends with the run, unless
  several managers share a thread (`request`). A call waits for that thread for at most a second.
* The end of a run takes the saving lock. So the end waits for the save in progress, and later calls see that the run
  has stopped.
* While it saves, the store may call the manager back in the same thread. Such a call would wait for itself, so it gets
  an error.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import is_
from typing import Generic
from weakref import WeakMethod

from attrs import define

from devicecore.domain.errors import CalledFromInsideError, DeviceCoreError, StoreError
from devicecore.ports.store import CheckpointStore
from devicecore.runtime.current_state import CurrentState, Result, Value
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run
from devicecore.runtime.saver_thread import SaverThread

_log = logging.getLogger(__name__)

PATIENCE = 1.0
"""How many seconds a call waits for the save that it requested."""


def drop_frames(error: BaseException | None) -> None:
    """Remove the frames from a stored error and its causes, because they would keep the manager alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


@define(eq=False)
class _Commit(Generic[Value]):
    """A change that a call wants to save.

    When the call returns, `is_done` is true, or `error` is why the save failed.
    """

    run: Run
    change: Callable[[Value], tuple[Value, object]]
    call: OpenCall
    result: object = None
    is_done: bool = False
    error: Exception | None = None


class SavedState(Generic[Value]):
    """Owns the store and the last saved value. The lock is held while the store is called.

    `encode` returns the content of the store for a value. `alike` says whether two values have the same content, in
    which case nothing has to be saved. `uses_thread` is false if only commits are saved, not requests. `saver` is a
    thread that several states share; without `saver`, each run starts its own thread.
    """

    in_background = True
    """If False, requests are saved in the thread that makes them, so that a test with one thread is repeatable."""

    def __init__(
        self,
        store: CheckpointStore,
        state: CurrentState[Value],
        encode: Callable[[Value], bytes],
        alike: Callable[[Value, Value], bool] = is_,
        *,
        uses_thread: bool = True,
        saver: SaverThread | None = None,
    ) -> None:
        self._store = store
        self._store_name = type(store).__name__
        self._state = state
        self._encode = encode
        self._alike = alike
        self._uses_thread = uses_thread
        self._shared = saver
        self._save_weakly = WeakMethod(self._save_now)
        self._lock = threading.Lock()
        self._call: OpenCall | None = None  # the call to the store that is in progress
        self._called_at = 0.0
        self._saved: Value | None = None
        self._waiting: list[_Commit[Value]] = []  # commits that wait for the lock; whoever takes them replaces the list
        self._thread: SaverThread | None = None  # the thread that serves the requests of the current run
        self.is_behind: bool = False
        """Whether the state has changes that are not saved yet."""

    def begin(self, run: Run, value: Value) -> None:
        """Begin `run` with the restored value. Raises DeviceCoreError if the run was stopped before it started."""
        with self._lock:
            self._state.begin(run, value)
            self._saved, self.is_behind = None, False
            if self._uses_thread and self.in_background:
                self._thread = self._shared or SaverThread()

    def end(self) -> None:
        """Wait for the save in progress, save anything not saved yet, then end the current run.

        Raises CalledFromInsideError if the store calls this method while it saves.
        """
        self.check_call("stop")
        with self._lock:
            if self.is_behind and self._state.run is not None:
                self._save_logged()
            self._state.end()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not self._shared:
            thread.end()

    def load(self) -> bytes | None:
        """Return the content of the store. Raises StoreError if the content cannot be read."""
        try:
            return self._store.load()
        except OSError as error:  # a store may leave such errors to its caller
            raise StoreError(self._store_name, "read", str(error)) from error

    def set_aside(self, run: Run) -> str | None:
        """Ask the store to set its content aside. Return where the content was put.

        Raises StoreError if the content cannot be moved, and DeviceCoreError after a stop, because the store may then
        belong to another manager.
        """
        with self._lock:
            if run.is_stopped:
                raise self._state.stopped()
            try:
                return self._store.set_aside()
            except OSError as error:
                raise StoreError(self._store_name, "set aside", str(error)) from error

    def commit(self, run: Run, change: Callable[[Value], tuple[Value, Result]]) -> Result:
        """Save the value after `change`, and then make it the current value. Return the result of `change`.

        Raises:
            StoreError: the value cannot be saved. The state is unchanged.
            DeviceCoreError: `run` is not the current run, or the value cannot be encoded. The state is unchanged.
            CalledFromInsideError: the store calls this method while it saves.
        """
        if self._call is not None:
            self.check_call("a call that has to save")
        own = _Commit(run, change, OpenCall())
        self._waiting.append(own)
        with self._lock:
            if not own.is_done and own.error is None:  # no other call has done this commit
                waiting, self._waiting = self._waiting, []
                if self._state.run is not run:
                    raise self._state.stopped()
                if len(waiting) == 1:
                    own.error = self._commit_together((own,), own.call)
                else:
                    self._commit_waiting(own, waiting)
        own.call.end()
        if own.error is not None:
            raise own.error
        return own.result  # type: ignore[return-value]  # the result of `change`, whose type is known only here

    def _commit_waiting(self, own: _Commit[Value], waiting: Iterable[_Commit[Value]]) -> None:
        """Carry out `own` and all waiting commits of its run. The caller must hold the lock."""
        others = (commit for commit in waiting if commit.run is own.run and commit is not own)
        group = [own, *(commit for commit in others if not commit.call.has_ended)]
        if self._commit_together(group, own.call) is not None:
            for commit in group:  # each commit is saved separately, so that none fails because of a different one
                commit.error = self._commit_together((commit,), own.call)

    def _commit_together(self, group: Sequence[_Commit[Value]], call: OpenCall) -> Exception | None:
        """Save the changes of `group` with one write. Return the error if the write fails."""
        try:
            before = self._state.value
            value = _applied(group, before)
            self.is_behind = True
            self._write(value, call)
            if self._state.exchange(before, value):
                self.is_behind = False
            else:
                self._state.replace(partial(_applied, group))
        except Exception as error:  # noqa: BLE001 - the calls that wait raise it
            return error
        for commit in group:
            commit.is_done = True
        return None

    def save(self) -> None:
        """Save the current value in the caller's thread. If another thread is saving, do what `request` does.

        A failed save is logged, and the next save includes its changes.
        """
        if self._lock.locked():  # the thread that holds the lock may not have set `_call` yet
            self.request()
            return
        self.is_behind = True
        self._save_now()

    def request(self, *, wait: bool = True) -> None:
        """Ask the saver's thread to save the current value.

        This method returns when the save has succeeded or failed, or when the store has been busy with one save for
        `PATIENCE` seconds. With `wait=False`, or inside a save, the method returns at once. A failed save is logged,
        and the next save includes its changes.
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
        if not thread.request(self._save_weakly, max(0.0, PATIENCE - busy) if wait else None):
            _log.warning("the store has been busy for %g s: the newest state will be saved next", PATIENCE)

    def check_call(self, method: str) -> None:
        """Raise CalledFromInsideError if `method` is called from inside the store, where it would wait for itself."""
        if self._call is not None and self._call.encloses_caller:
            raise CalledFromInsideError(method, "CheckpointStore.save")

    def _save_now(self) -> None:
        """Save the current value, if it belongs to a run."""
        with self._lock:
            if self._state.run is not None:
                self._save_logged()

    def _save_logged(self) -> None:
        value = self._state.value
        try:
            self._write(value, OpenCall())
        except DeviceCoreError as error:
            _log.error("%s", error)
        except Exception:  # noqa: BLE001 - a bug in the store, and no caller to raise it to
            _log.exception("saving failed")
        else:
            # `is_behind` is cleared only after the save, because an interrupt may end the save. A newer value has its
            # own request.
            self.is_behind = self._state.value is not value

    def _write(self, value: Value, call: OpenCall) -> None:
        """Save `value` in the store. The caller must hold the lock; `call` is the caller's open call."""
        if self._saved is not None and self._alike(value, self._saved):
            return
        self._saved = None
        content = self._encode(value)
        self._called_at = time.monotonic()
        self._call = call
        try:
            self._store.save(content)
        except OSError as error:
            raise StoreError(self._store_name, "write", str(error)) from error
        finally:
            self._call = None
        self._saved = value


def _applied(group: Sequence[_Commit[Value]], value: Value) -> Value:
    """Return the value after the changes of `group`. Each commit keeps the result of its change."""
    for commit in group:
        value, commit.result = commit.change(value)
    return value
