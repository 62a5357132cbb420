"""Starting and stopping, implemented once for all objects that run.

Law: no matter what interrupts a start or a stop, the next start or stop first releases what was left over, and no call
waits for itself.

A class whose objects run derives from `HasLifecycle` and defines two methods. `_begin` acquires what a run needs:
threads, sockets, files, processes. `_end` releases everything that `_begin` may have acquired. `_end` is also called
after each failed start, so it has to cope with a `_begin` that did not get far, and with an earlier `_end` that was
interrupted. A class with a more complex start or stop derives from `ports.context.Runs`, and itself passes two such
functions to a `Lifecycle`.

At any time, at most one start is in progress, and at most one call of `begin` or `end`. A run goes through these steps:

1. A start makes its run the current run, takes its turn, and calls `begin`.
2. The object is running. If a stop came in the meantime, the start fails instead.
3. A stop marks the current run as stopped, takes its turn, and calls `end`. Only then is the run over. So a run whose
   stop was interrupted is neither over nor running until another stop or start has called `end` for it.

A stop does not wait for the work that a start does after its turn, such as reading from a disk that hangs. So `end` may
be called during that work, and the work must check `Run.is_stopped` while it holds the lock that `end` takes.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from devicecore.domain.errors import CalledFromInsideError, DeviceCoreError, NotStartedError, StoppedWhileStartingError
from devicecore.ports.context import Runs
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run

P = ParamSpec("P")
T = TypeVar("T")


def _nothing() -> None: ...


class Lifecycle:
    """Starts and stops one object. Thread-safe.

    Args:
        name: what errors call the object, such as `the metrics server`.
        not_started: creates the error for a call before the start, by default a `NotStartedError`.
        stopped: creates the error for a start during which a stop was called, by default a `StoppedWhileStartingError`.
    """

    def __init__(
        self,
        name: str,
        not_started: Callable[[], DeviceCoreError] | None = None,
        stopped: Callable[[], DeviceCoreError] | None = None,
    ) -> None:
        self._not_started = not_started or partial(NotStartedError, name)
        self._stopped = stopped or partial(StoppedWhileStartingError, name)
        self._run: Run | None = None  # the latest run, set as soon as its start begins
        self._starting = threading.Lock()  # held during a start, so that other starts wait
        self._turn = threading.Lock()  # held while `begin` or `end` is called
        self._calls: dict[int, tuple[str, OpenCall]] = {}  # starts, stops and callbacks in progress, by thread

    @property
    def is_running(self) -> bool:
        """Whether the object has been started and not stopped since."""
        run = self._run
        return run is not None and run.is_started and not run.is_stopped

    def check_process(self) -> None:
        """Raise ForkedError if this process is a fork of the one that started the object."""
        if self._run is not None:
            self._run.check_process()

    def check_started(self) -> Run:
        """Return the last run, which may be over. Raises DeviceCoreError if nothing was started, or after a fork."""
        if (run := self._run) is None:
            raise self._not_started()
        run.check_process()
        return run

    def check_running(self) -> None:
        """Refuse a call that needs a run. Raises DeviceCoreError if the object is not running, or after a fork."""
        self.check_process()
        if not self.is_running:
            raise self._not_started()

    def start(
        self,
        begin: Callable[[], None],
        end: Callable[[], None],
        *,
        after: Callable[[], None] = _nothing,
    ) -> bool:
        """Call `begin` and then `after`, unless the object is already running.

        If a start is in progress in another thread, this method first waits for it. If `begin` or `after` fails or is
        interrupted, `end` is called. Return whether `begin` and `after` were called. A stop waits for `begin`, but not
        for `after`.

        Raises:
            DeviceCoreError: a stop was called in the meantime, so nothing is running.
            CalledFromInsideError: the call comes from inside a start, a stop or a callback of the same object.
            ForkedError: this process is a fork of the one that started the object.
        """
        self._check_call("start")
        return self.call("start", self._start, begin, end, after)

    def stop(self, end: Callable[[], None]) -> None:
        """Call `end`, unless nothing was started or the run is already over.

        If a stop is in progress in another thread, this method waits for it.

        Raises:
            CalledFromInsideError: the call comes from inside a start, a stop or a callback of the same object.
            ForkedError: this process is a fork of the one that started the object.
        """
        self._check_call("stop")
        if self._run is not None:
            self.call("stop", self._end, self._run, end)

    def call(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call an outside `function`, which may try to start or stop the object, and return its result.

        A start or stop inside `function` raises an error that contains `name`, because that call would deadlock.
        """
        thread = threading.get_ident()
        if self._enclosing(thread) is not None:
            return function(*args, **kwargs)
        self._calls[thread] = name, OpenCall()
        try:
            return function(*args, **kwargs)
        finally:
            del self._calls[thread]

    def _start(self, begin: Callable[[], None], end: Callable[[], None], after: Callable[[], None]) -> bool:
        with self._starting:
            if self.is_running:
                return False
            if self._run is not None:
                self._end(self._run, end)  # an interrupt may have cut short the start or stop of the previous run
            run = self._run = Run()
            try:
                with self._turn:
                    self._check_not_stopped(run)
                    begin()
                self._check_not_stopped(run)
                after()
                self._check_not_stopped(run)
                run.is_started = True
            except BaseException:
                self._end(run, end)
                raise
        return True

    def _end(self, run: Run, end: Callable[[], None]) -> None:
        run.is_stopped = True
        with self._turn:
            if not run.is_over:  # otherwise, a different start or stop has ended the run
                end()
                run.is_over = True

    def _check_not_stopped(self, run: Run) -> None:
        if run.is_stopped:
            raise self._stopped()

    def _check_call(self, method: str) -> None:
        self.check_process()
        name = self._enclosing(threading.get_ident())
        if name is not None:
            raise CalledFromInsideError(method, name)

    def _enclosing(self, thread: int) -> str | None:
        """Return the name of the call in progress that encloses the caller, or None."""
        name, call = self._calls.get(thread, (None, None))
        return name if call is not None and call.encloses_caller else None


class HasLifecycle(Runs):
    """An object that runs from its `_begin` to its `_end`. A subclass sets `_lifecycle`."""

    _lifecycle: Lifecycle

    def start(self) -> None:
        """Start. A second call does nothing."""
        self._lifecycle.start(self._begin, self._end)

    def stop(self) -> None:
        """Stop, and release everything. A second call does nothing. Afterwards, the object may be started again."""
        self._lifecycle.stop(self._end)

    @abstractmethod
    def _begin(self) -> None:
        """Acquire what a run needs."""

    @abstractmethod
    def _end(self) -> None:
        """Release everything that `_begin` may have acquired."""
