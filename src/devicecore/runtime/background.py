"""Background tasks, in a thread or on an event loop, that run until they are stopped.

Law: if a background task ends without having been stopped, its end is logged, and the task is started again after a
pause. Repeated failures double the pause, from `FIRST_PAUSE` up to `MAX_PAUSE`. A run that lasted longer than
`MAX_PAUSE` resets the pause.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from devicecore.runtime.thread import Thread

FIRST_PAUSE, MAX_PAUSE = 0.5, 60.0
"""The first and the longest pause before a task is restarted, in seconds."""

logger: logging.Logger = logging.getLogger(__name__)


def bounded_backoff(failures: int, first: float, longest: float) -> float:
    """Return the pause in seconds after a number of failures in a row.

    The pause is `first` after one failure. Each further failure doubles it, up to `longest`.
    """
    return min(first * 2.0 ** min(failures - 1, 64), longest)  # a larger exponent would overflow a float


class _Restarts:
    """Logs each unexpected end of one task, and says how long to wait before the next start."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures = 0
        self._started = 0.0

    def starting(self) -> None:
        self._started = time.monotonic()

    def ended(self, error: BaseException | None) -> float:
        lasted = time.monotonic() - self._started
        self._failures = 1 if lasted > MAX_PAUSE else self._failures + 1
        pause = bounded_backoff(self._failures, FIRST_PAUSE, MAX_PAUSE)
        logger.error("%s ended unexpectedly; restarting in %g s", self._name, pause, exc_info=error)
        return pause


async def supervise(name: str, run: Callable[[], Awaitable[None]]) -> NoReturn:
    """Keep `run` running until this coroutine is cancelled.

    Run this coroutine as a task: `create_task(supervise(...))`.

    `run` creates a new coroutine for each start. The log calls the task `name`.
    """
    restarts = _Restarts(name)
    while True:
        restarts.starting()
        error: BaseException | None = None
        try:
            await run()
        except (Exception, SystemExit) as raised:  # noqa: BLE001  # an exit would end the loop and all its tasks
            error = raised
        await asyncio.sleep(restarts.ended(error))


async def end(task: "asyncio.Task[NoReturn]") -> None:
    """Cancel a task and wait until it has ended. Cancel the task again if the cancellation was swallowed on the way.

    Before Python 3.12, `asyncio.wait_for` swallows a cancellation that comes just as it returns, and gRPC calls
    `wait_for` when a server is stopped.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)


class _Stopping(threading.Event):
    """An event whose lock cannot be left locked by an interrupt.

    Python's `Event.set` takes its lock through `Condition.__enter__`. That method is written in Python, so an interrupt
    inside it may leave the lock locked.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        with self._lock:
            self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._lock:
            return self._changed.wait_for(self.is_set, timeout)


class SupervisedThread:
    """A daemon thread that keeps `run` running until `stop`.

    `run` is called with an event. Once `stop` has set the event, `run` has to return soon. The log calls the task
    `name`.
    """

    def __init__(self, name: str, run: Callable[[threading.Event], None]) -> None:
        self._name = name
        self._run = run
        self._stopping = _Stopping()
        self._thread = Thread(target=self._keep_running, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread.

        This method can be called only once. Raises RuntimeError if the thread cannot be started.
        """
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Set the event, and wait at most `timeout` seconds for the thread to end. Return whether it has ended.

        Without `timeout`, the wait has no limit. A second call only waits. A call from the thread itself does not wait.
        """
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _keep_running(self) -> None:
        restarts = _Restarts(self._name)
        while not self._stopping.is_set():
            restarts.starting()
            error: BaseException | None = None
            try:
                self._run(self._stopping)
            except BaseException as raised:  # noqa: BLE001  # nothing else in this thread could handle it
                error = raised
            if not self._stopping.is_set():
                self._stopping.wait(restarts.ended(error))
