"""Starting and stopping, once for everything that runs.

Law: whatever interrupts a start or a stop, the next one first releases what is left, and no call waits for itself.

A class that runs derives from `ports.context.Runs` and keeps a `Lifecycle`. Its `start` and `stop` pass two functions.
`begin` takes what a run needs: threads, sockets, files, processes. `end` releases all that `begin` may have taken. A
`Lifecycle` calls `end` after each start that fails, so `end` has to cope with a `begin` that did not come far, and with
a former `end` that was interrupted.

Only one start or stop is under way at a time. The order of what they do is this:

1. A start takes its turn, becomes the current run, and calls `begin`.
2. It decides that the run is running, unless a stop has cancelled the run before. A cancelled start fails.
3. A stop cancels the current run, takes its turn, calls `end`, and only then forgets the run. So a run whose stop was
   interrupted stays the current one, not running, until another stop or start has called `end` for it.
"""

import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from devicecore.domain.errors import CalledFromInsideError, ForkedError, NotStartedError, StoppedWhileStartingError
from devicecore.runtime.open_call import OpenCall

P = ParamSpec("P")
T = TypeVar("T")


class _Run:
    """From the beginning of a start to the end of its stop. Runs are compared by identity."""

    def __init__(self, start: OpenCall) -> None:
        self.start = start
        self.process = os.getpid()
        self.is_running = False
        self.is_cancelled = False


class Lifecycle:
    """Starts and stops one object. Thread-safe.

    Args:
        name: what errors call the object, such as `the metrics server`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: _Run | None = None
        self._turn = threading.Lock()  # held while `begin` or `end` is called
        self._deciding = threading.Lock()  # held while a start ends or a stop cancels it
        self._calls: dict[int, tuple[str, OpenCall]] = {}  # starts, stops and callbacks under way, by thread

    @property
    def is_running(self) -> bool:
        """Whether it has been started, and not been stopped since."""
        run = self._run
        return run is not None and run.is_running

    def check_running(self) -> None:
        """Refuse a call that needs a run.

        Raises:
            NotStartedError: it does not run.
            ForkedError: this process is a fork of the one in which it was started.
        """
        self._check_process()
        if not self.is_running:
            raise NotStartedError(self._name)

    def start(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Call `begin`, unless it runs already. A start in another thread is awaited first.

        If `begin` fails or is interrupted, `end` is called.

        Raises:
            StoppedWhileStartingError: a stop was called meanwhile. Nothing is running.
            CalledFromInsideError: it is called from inside a start, a stop or a callback of the same object.
            ForkedError: this process is a fork of the one in which it was started.
        """
        self._check_process()
        self._check_outside("start")
        call, thread = OpenCall(), threading.get_ident()
        run = _Run(call)
        self._calls[thread] = "start", call
        try:
            with self._turn:
                if self._run is not None:
                    if self._run.is_running:
                        return
                    end()  # an interrupt has ended a start or a stop
                self._run = run
                begin()
                self._set_running(run)
        except BaseException:
            self._end(run, end)
            raise
        finally:
            del self._calls[thread]
            call.end()

    def stop(self, end: Callable[[], None], *, instead_of_waiting: Callable[[], None] | None = None) -> None:
        """Call `end`, unless nothing was started. A stop in another thread is awaited.

        Args:
            end: releases everything.
            instead_of_waiting: if another thread is about to start the object, this is called, and the stop does not
                wait for that thread. It has to release what the next owner needs; the start calls `end`.

        Raises:
            CalledFromInsideError: it is called from inside a start, a stop or a callback of the same object.
            ForkedError: this process is a fork of the one in which it was started.
        """
        self._check_process()
        self._check_outside("stop")
        run, thread = self._run, threading.get_ident()
        if run is None:
            return
        self._calls[thread] = "stop", OpenCall()
        try:
            with self._deciding:
                is_starting = not run.is_running and not run.start.has_ended
                run.is_cancelled = True
            if is_starting and instead_of_waiting is not None:
                instead_of_waiting()
            else:
                self._end(run, end)
        finally:
            del self._calls[thread]

    def call(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` returns, which belongs to somebody else and may try to start or stop the object.

        Args:
            name: what an error calls the function, such as `an observer`.
            function: a start or a stop inside it is an error, because it would wait for itself.
            args: of the function.
            kwargs: of the function.
        """
        thread = threading.get_ident()
        if self._enclosing(thread) is not None:
            return function(*args, **kwargs)
        self._calls[thread] = name, OpenCall()
        try:
            return function(*args, **kwargs)
        finally:
            del self._calls[thread]

    def _set_running(self, run: _Run) -> None:
        with self._deciding:
            if run.is_cancelled:
                raise StoppedWhileStartingError(self._name)
            run.is_running = True

    def _end(self, run: _Run, end: Callable[[], None]) -> None:
        with self._turn:
            if self._run is run:  # else another start or stop has ended it
                run.is_running = False
                end()
                self._run = None

    def _check_process(self) -> None:
        run = self._run
        if run is not None and run.process != (process := os.getpid()):
            raise ForkedError(run.process, process)

    def _check_outside(self, method: str) -> None:
        name = self._enclosing(threading.get_ident())
        if name is not None:
            raise CalledFromInsideError(method, name)

    def _enclosing(self, thread: int) -> str | None:
        """Return the name of the call that encloses the caller, or None."""
        name, call = self._calls.get(thread, (None, None))
        return name if call is not None and call.encloses_caller else None
