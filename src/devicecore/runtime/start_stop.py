"""The starts and stops of a manager.

Law: at most one start is under way. A stop during a start makes the start fail, and waits only for its transport. A
start that fails leaves nothing running. No start or stop waits for itself: it raises an error.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from devicecore.domain.errors import CalledFromInsideError, DeviceCoreError
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run


class _Transport(Protocol):
    def stop(self) -> None: ...


class StartStop:
    """The last run of a manager, its transport, and the calls that its starts and stops must not come from.

    `begin` starts the parts for a run, and calls `start_transport`. `end` stops the parts, and marks the run as
    stopped, whether or not it has begun. `stopped` and `not_started` make errors.
    """

    def __init__(
        self,
        transport: _Transport,
        begin: Callable[[Run], None],
        end: Callable[[Run | None], None],
        stopped: Callable[[], DeviceCoreError],
        not_started: Callable[[], DeviceCoreError],
    ) -> None:
        self._transport = transport
        self._begin = begin
        self._end_parts = end
        self._stopped = stopped
        self._not_started = not_started
        self._starting = threading.Lock()  # held by a start, so that another one waits for it
        self._moving = threading.Lock()  # held while the transport is started or stopped
        self._owner: Run | None = None  # the run that the transport was started for
        self._moves: dict[int, tuple[OpenCall, str]] = {}  # starts and stops under way, by thread
        self._inside: dict[int, tuple[OpenCall, str]] = {}  # calls that a stop waits for, by thread
        self.run: Run | None = None
        """The last run, from the very beginning of its start; None before the first start."""

    def start(self) -> bool:
        """Start. Return whether this did anything: a second start waits for the first one and does nothing else.

        Raises:
            CalledFromInsideError: it is called from inside a start or a stop.
            ForkedError: this process is a fork of the one in which the manager was started.
        """
        method = "start"
        self.check_process()
        _check_outside(method, self._moves)
        thread = threading.get_ident()
        self._moves[thread] = OpenCall(), method
        try:
            with self._starting:
                if self.run is not None and not self.run.is_stopped:
                    return False
                run = self.run = Run()
                try:
                    self._begin(run)
                except BaseException:
                    run.is_restored.set()
                    self._end(run)
                    raise
                run.is_restored.set()
        finally:
            del self._moves[thread]
        return True

    def stop(self) -> None:
        """Stop. A second stop does nothing.

        Raises:
            CalledFromInsideError: it is called from inside a start, a stop, or a call that it would wait for.
            ForkedError: this process is a fork of the one in which the manager was started.
        """
        method = "stop"
        self.check_process()
        _check_outside(method, self._moves)
        _check_outside(method, self._inside)
        thread = threading.get_ident()
        self._moves[thread] = OpenCall(), method
        try:
            self._end(self.run)
        finally:
            del self._moves[thread]

    def start_transport(self, run: Run, start: Callable[[], None]) -> None:
        """Start the transport for `run`. A run that is not stopped completely yet loses it first.

        Raises:
            DeviceCoreError: `run` was stopped meanwhile.
        """
        with self._moving:
            if run.is_stopped:
                raise self._stopped()
            if self._owner is not None:
                self._transport.stop()
            self._owner = run
            start()

    def _end(self, run: Run | None) -> None:
        self._end_parts(run)
        with self._moving:
            if self._owner is run:  # else the next run has it
                self._transport.stop()
                self._owner = None

    @contextmanager
    def inside(self, what: str, call: OpenCall) -> Iterator[None]:
        """Note for the block that a stop waits for `call`, so it must not come from inside. `what` is for the error."""
        thread = call.thread
        outer = self._inside.get(thread)
        self._inside[thread] = call, what
        try:
            yield
        finally:
            if outer is None:
                self._inside.pop(thread, None)
            else:
                self._inside[thread] = outer

    def check_process(self) -> None:
        """Check that this process is the one in which the manager was started.

        Raises:
            ForkedError: it is a fork of that process.
        """
        if self.run is not None:
            self.run.check_process()

    def check_started(self) -> None:
        """Check that there was a start, in this process.

        Raises:
            DeviceCoreError: there never was a start.
            ForkedError: this process is a fork of the one in which the manager was started.
        """
        if self.run is None:
            raise self._not_started()
        self.run.check_process()

    def check_running(self) -> Run:
        """Return the run that is under way.

        Raises:
            DeviceCoreError: there never was a start, or it was stopped.
            ForkedError: this process is a fork of the one in which the manager was started.
        """
        self.check_started()
        if self.run is None or self.run.is_stopped:
            raise self._stopped()
        return self.run


def _check_outside(method: str, calls: Mapping[int, tuple[OpenCall, str]]) -> None:
    call, what = calls.get(threading.get_ident(), (None, ""))
    if call is not None and call.encloses_caller:
        raise CalledFromInsideError(method, what)
