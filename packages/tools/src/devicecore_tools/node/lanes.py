"""Threads for admissions, which wait for plugins, and for claims, which wait for drivers.

Law: a lane whose work hangs does not delay other lanes. The work of one lane starts in order.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial

from attrs import Factory, define

MAX_THREADS = 1024
"""The maximum number of threads at work.

Further lanes wait until a thread is free. Even 64 hanging plugins or drivers occupy no more threads than this, because
each of their lanes has at most `THREADS_OF_LONG`.
"""

THREADS_OF_LONG = 16
"""The maximum number of threads for a lane in which much work is waiting.

While one admission is being saved, other admissions wait, and they are then saved together.
"""

_LONG = 100  # how much work must be waiting in a lane before more threads help

Work = Callable[[], None]

_log = logging.getLogger(__name__)


@define(eq=False)
class _Queue:
    """The waiting work of one lane, and the number of threads working on it."""

    work: deque[Work] = Factory(deque)
    threads: int = 0


class Workers:
    """Threads that exist only while there is work; several `Lanes` may share them.

    The threads are daemon threads, so they never delay the exit of the process.

    `limit` is the maximum number of threads. If `limit` is 0, the caller of `submit` does the work.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = MAX_THREADS if limit is None else limit
        self._lock = threading.Lock()
        self._ready: deque[Work] = deque()
        self._threads = 0

    def submit(self, work: Work) -> None:
        """Run `work` as soon as a thread is free. `work` must not raise."""
        if not self._limit:
            work()
            return
        with self._lock:
            self._ready.append(work)
            if self._threads < self._limit:
                self._start_thread()

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="devicecore-admission", daemon=True).start()
        except RuntimeError:  # the system can start no more threads, so the running threads will do the work
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._ready:
                    self._threads -= 1
                    return
                work = self._ready.popleft()
            work()


class Lanes:
    """Queues of work, whose threads may be shared with other `Lanes`.

    A lane has at most `of_lane` threads while no more than 100 pieces of work are waiting in it.
    """

    def __init__(self, of_lane: int = 1, workers: Workers | None = None) -> None:
        self._of_lane = of_lane
        self._workers = workers or Workers()
        self._lock = threading.Lock()
        self._queues: dict[Hashable, _Queue] = {}
        self._closed = False

    def submit(self, lane: Hashable, work: Work) -> None:
        """Run `work` in a thread, after all earlier work of `lane` has started."""
        with self._lock:
            if self._closed:
                return
            queue = self._queues.setdefault(lane, _Queue())
            queue.work.append(work)
            if queue.threads >= (THREADS_OF_LONG if len(queue.work) > _LONG else self._of_lane):
                return
            queue.threads += 1
        self._workers.submit(partial(self._do_all, lane))

    def close(self) -> None:
        """Drop the work that has not started, and do not wait for work in progress."""
        with self._lock:
            self._closed = True
            for queue in self._queues.values():
                queue.work.clear()

    def _do_all(self, lane: Hashable) -> None:
        while True:
            with self._lock:
                queue = self._queues[lane]
                if not queue.work:
                    queue.threads -= 1
                    if not queue.threads:
                        del self._queues[lane]
                    return
                work = queue.work.popleft()
            try:
                work()
            except Exception:  # noqa: BLE001 - a failure must not stop the other work of the lane
                _log.exception("work in the lane of %s failed", lane)
