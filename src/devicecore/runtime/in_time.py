"""Waits for work that may never end, but only for a limited time.

gRPC ends a call only when its last write to the socket has ended, even if the call's deadline has passed or the call
was cancelled. If a server reads nothing, for example because its process is suspended, and the socket buffer is full
(200 KiB), that write does not end. Then neither the call nor the closing of its channel ends until the server reads
again or exits.

Law: `in_time` returns or raises an error within the given seconds, no matter what the work does.
"""

from _thread import start_new_thread
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from devicecore.runtime.thread import Thread
from devicecore.runtime.wake_up import WakeUp

Result = TypeVar("Result")
Job = Callable[[], None]
"""Work that never raises."""

NOTICED = 1.0
"""How many seconds gRPC may take to notice that a call's deadline has passed or a channel was closed."""


def _in_new_thread(job: Job) -> None:
    Thread(target=job, name="devicecore-in-time", daemon=True).start()


def in_time(work: Callable[[], Result], seconds: float, begin: Callable[[Job], None] = _in_new_thread) -> Result:
    """Do the work in another thread and return the result. Work that takes longer does not keep the process alive.

    `begin` starts the work in another thread. Raises TimeoutError if the work takes longer than `seconds`.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    done = WakeUp()

    def job() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
        done.wake()

    begin(job)
    if not done.wait(seconds):
        raise TimeoutError
    if results:
        return results[0]
    raise errors.pop()  # the error refers to the frame of `job`, so `errors` must not keep it


class NoThreadError(Exception):
    """No thread is available for the work."""


class WaitingThreads:
    """A pool of threads. A thread is started whenever no thread is idle, because some work never ends.

    Law: an interrupted `begin` holds nothing that other calls need. So `begin` uses only a list, a queue and a way of
    starting threads that are implemented in C. `begin` does not use `threading.Thread`, because an interrupt in its
    `start` may leave a lock locked.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._waiting: list[None] = []  # one entry for each idle thread that has no work assigned
        self._ended: list[None] = []  # one entry for each thread that has ended
        self._one_has_ended = WakeUp()
        self._is_ending = False

    def begin(self, job: Job) -> None:
        """Run `job` in a thread. Raises NoThreadError if no thread can be started, or after `end`."""
        try:
            self._waiting.pop()
        except IndexError:
            try:
                start_new_thread(self._work, ())
            except RuntimeError:
                raise NoThreadError from None
        self._jobs.put(job)
        if self._is_ending:
            raise NoThreadError

    def end(self) -> None:
        """End the threads, and wait until the idle threads have ended. Work in progress continues."""
        self._is_ending = True
        waiting = len(self._waiting)
        self._jobs.put(None)
        while len(self._ended) < waiting and self._one_has_ended.wait(NOTICED):
            pass

    def _work(self) -> None:
        while not self._is_ending and (job := self._jobs.get()) is not None:
            job()
            del job  # an idle thread must not keep a reference to the job, which refers to a call's answer
            self._waiting.append(None)
        self._jobs.put(None)  # the other threads have to get None, too
        self._ended.append(None)
        self._one_has_ended.wake()
