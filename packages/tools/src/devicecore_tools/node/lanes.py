"""Threads for admissions, which wait for plugins, and for claims, which wait for drivers.

Law: a lane whose work hangs delays no other lane. The work of one lane is begun in its order.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable

from attrs import Factory, define

MAX_THREADS = 1024
"""Threads at work at once. A further lane waits until one is free. Lanes of 64 plugins or drivers that hang have fewer,
however many pods wait for them.
"""

THREADS_OF_LONG = 16
"""Threads of a lane in which much waits. While one admission is saved, others wait, and are saved with one write."""

_LONG = 100  # pieces of work that wait in a lane before more threads help

Work = Callable[[], None]

_log = logging.getLogger(__name__)


@define(eq=False)
class _Queue:
    """The waiting work of one lane, and the number of threads that do it."""

    work: deque[Work] = Factory(deque)
    threads: int = 0


class Lanes:
    """Queues of work, with threads while there is any. Threads are daemons: they never delay the end of the process.

    Args:
        of_lane: threads of a lane at most, while no more than 100 pieces of work wait in it.
    """

    def __init__(self, of_lane: int = 1) -> None:
        self._of_lane = of_lane
        self._lock = threading.Lock()
        self._queues: dict[Hashable, _Queue] = {}
        self._ready: deque[Hashable] = deque()
        self._threads = 0
        self._closed = False

    def submit(self, lane: Hashable, work: Work) -> None:
        """Do `work` in a thread, after all earlier work of `lane` has begun."""
        with self._lock:
            if self._closed:
                return
            queue = self._queues.setdefault(lane, _Queue())
            queue.work.append(work)
            if queue.threads >= (THREADS_OF_LONG if len(queue.work) > _LONG else self._of_lane):
                return
            queue.threads += 1
            self._ready.append(lane)
            if self._threads < MAX_THREADS:
                self._start_thread()

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="devicecore-admission", daemon=True).start()
        except RuntimeError:  # the system has no thread left: those that run will do the work
            if not self._threads:
                raise
        else:
            self._threads += 1

    def close(self) -> None:
        """Drop the work that has not begun, and do not wait for the rest."""
        with self._lock:
            self._closed = True
            for queue in self._queues.values():
                queue.work.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._ready:
                    self._threads -= 1
                    return
                lane = self._ready.popleft()
            self._do_all(lane)

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
