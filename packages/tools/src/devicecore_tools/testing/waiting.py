"""Lets tests wait until a test kubelet sees something.

Law: every wait ends within its timeout, and its error says what was expected and what the kubelet saw.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from attrs import frozen

from devicecore.domain.checks import check_seconds
from devicecore.domain.errors import DeviceCoreError
from devicecore_tools.testing.process import PluginProcess

T = TypeVar("T")

DEFAULT_TIMEOUT = 30.0
"""The default timeout of a wait, in seconds."""

_LOG_LINES = 5
_LOOK_AGAIN = 0.05  # seconds; needed because a driver's write to an API server is not an event


@frozen
class WaitTimeoutError(DeviceCoreError, TimeoutError):
    """The condition that a test waited for was not met in time. `timeout` is in seconds."""

    expected: str
    timeout: float
    seen: str
    _text = "expected {expected} within {timeout:g} s; the kubelet saw: {seen}"


class Waiting(ABC):
    """The base class of test kubelets, which wait and describe what they see.

    `timeout` is in seconds, for every wait without a timeout of its own.
    """

    def __init__(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        check_seconds(f"{type(self).__name__}: timeout", timeout)
        self.timeout = timeout
        self._changed = threading.Condition()
        self._processes: list[PluginProcess] = []
        self._log = _LastWarnings()

    @abstractmethod
    def describe(self) -> str:
        """Describe the kubelet's current view."""

    def wait_until(
        self, expected: str, look: Callable[[], T | None], *, timeout: float | None = None, allow_exits: bool = False
    ) -> T:
        """Wait until `look` returns a truthy value, and return that value.

        `look` is called after every event, and every 0.05 seconds.

        Args:
            expected: what the test waits for, in words for the error message, such as "a second list".
            look: a function that returns a truthy value if the condition is met.
            timeout: in seconds; by default the kubelet's.
            allow_exits: whether to keep waiting if a plugin or driver process exits on its own.

        Raises:
            WaitTimeoutError: the condition was not met in time.
            ExitedEarlyError: a plugin or driver process exited in the meantime.
            TypeError: `timeout` is not a number.
            ValueError: `timeout` is negative.
        """
        __tracebackhide__ = True
        limit = self.timeout if timeout is None else timeout
        check_seconds("timeout", limit)
        deadline = time.monotonic() + limit
        while True:
            with self._changed:
                seen = look()
                if seen:
                    return seen
                if not allow_exits:
                    for process in self._processes:
                        if failure := process.failure:
                            raise failure
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeoutError(expected, limit, self.describe())
                self._changed.wait(min(left, _LOOK_AGAIN))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _last_output(self) -> Iterator[str]:
        """Yield the latest warnings, and the latest output of the processes."""
        if warnings := self._log.lines():
            yield "last warnings: " + " | ".join(warnings)
        for process in self._processes:
            if process.status is None or process.failure:
                yield f"last output of process {process.pid}: {process.last_output or 'nothing'}"


class _LastWarnings(logging.Handler):
    """Keeps the library's latest warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[str] = deque(maxlen=_LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record.getMessage())

    def lines(self) -> tuple[str, ...]:
        return tuple(self._kept)
