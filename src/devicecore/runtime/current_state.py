"""The current value of a part of a manager's state, and the run that it belongs to.

Law: the value is immutable and is replaced as a whole, so a reader needs no lock. While the lock is held, no port,
plugin or other code from outside the manager is called.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from devicecore.domain.checks import check_callable, check_seconds
from devicecore.domain.errors import DeviceCoreError, ManagerStoppedError
from devicecore.runtime.run import Run
from devicecore.runtime.wake_up import LOOK_AGAIN, WakeUp

Value = TypeVar("Value")
Result = TypeVar("Result")


class CurrentState(Generic[Value]):
    """The value, the run that it belongs to, and the callers that wait for the value to change.

    `stopped` creates the error for a call in a run that is over. The lock is implemented in C, so that an interrupt
    cannot leave it half acquired.
    """

    def __init__(self, value: Value, stopped: Callable[[], DeviceCoreError] = ManagerStoppedError) -> None:
        self._lock = threading.Lock()
        self._waiting: set[WakeUp] = set()
        self.stopped: Callable[[], DeviceCoreError] = stopped
        self.value: Value = value
        """The current value. Only the methods of this class replace the value."""
        self.run: Run | None = None
        """The current run, or None if there is none. Only `begin` and `end` set the run."""

    def begin(self, run: Run, value: Value) -> None:
        """Begin `run` with `value`. Raises DeviceCoreError if the run was stopped before it started."""
        with self._lock:
            if run.is_stopped:
                raise self.stopped()
            self.run, self.value = run, value
        self._wake()

    def end(self) -> None:
        """End the current run.

        Afterwards, a run that is marked as stopped cannot begin. The value can still be read.
        """
        with self._lock:
            self.run = None

    def current_run(self) -> Run:
        """Return the current run. Raises DeviceCoreError if no run is in progress."""
        if (run := self.run) is None:
            raise self.stopped()
        return run

    def replace(self, change: Callable[[Value], Value], *, run: Run | None = None) -> tuple[Value, Value]:
        """Replace the value with the result of `change`. Return the values before and after.

        If `change` raises an error, the value stays. Raises DeviceCoreError if `run` is given and is not the current
        run.
        """
        with self._lock:
            if run is not None and run is not self.run:
                raise self.stopped()
            before = self.value
            after = self.value = change(before)
        if self._waiting:
            self._wake()
        return before, after

    def take(self, change: Callable[[Value], tuple[Value, Result]], *, run: Run | None = None) -> Result:
        """Like `replace`, but `change` returns the next value and the result of this method."""
        with self._lock:
            if run is not None and run is not self.run:
                raise self.stopped()
            self.value, result = change(self.value)
        if self._waiting:
            self._wake()
        return result

    def exchange(self, before: Value, after: Value) -> bool:
        """Replace the value with `after` if the value is still `before`. Return whether the value was replaced."""
        with self._lock:
            if self.value is not before:
                return False
            self.value = after
        if self._waiting:
            self._wake()
        return True

    def wait_for(self, condition: Callable[[Value], object], timeout: float) -> Value:
        """Wait until `condition` is true for the value, and return that value.

        `condition` is called in the caller's thread, while the lock is not held.

        Raises:
            TimeoutError: the condition was not met within `timeout` seconds. The error contains the last value.
            TypeError: `condition` cannot be called with one argument, or `timeout` is not a number.
            ValueError: `timeout` is negative.
        """
        check_callable("wait_for: condition", condition, "the state")
        check_seconds("wait_for: timeout", timeout)
        until = time.monotonic() + timeout
        changed = WakeUp()
        try:
            # This line is inside the `try`, because an interrupt right after it would otherwise leave `changed` in the
            # set forever.
            self._waiting.add(changed)
            while not condition(value := self.value):
                while self.value is value:
                    left = until - time.monotonic()
                    if left <= 0:
                        message = f"condition not met within {timeout:g} s; the last state was {value!r}"
                        raise TimeoutError(message)
                    changed.wait(min(left, LOOK_AGAIN))
            return value
        finally:
            self._waiting.discard(changed)

    def _wake(self) -> None:
        for changed in tuple(self._waiting):
            changed.wake()
