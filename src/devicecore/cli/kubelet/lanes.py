"""Threads for admissions, which wait for plugins.

Law: work in one lane is done in its order, one piece at a time; a lane whose work hangs delays no other lane.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable

MAX_THREADS = 128
"""Lanes at work at once. One more waits until a lane is done; only so many stopped plugins can make that happen."""

Work = Callable[[], None]

_log = logging.getLogger(__name__)


class Lanes:
    """Queues of work, each with a thread while there is any. Threads are daemons: they never delay the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Hashable, deque[Work]] = {}
        self._ready: deque[Hashable] = deque()
        self._threads = 0
        self._closed = False

    def submit(self, lane: Hashable, work: Work) -> None:
        """Have `work` done after everything else in `lane`."""
        with self._lock:
            if self._closed:
                return
            if lane in self._queues:
                self._queues[lane].append(work)
                return
            self._queues[lane] = deque([work])
            self._ready.append(lane)
            if self._threads < MAX_THREADS:
                self._threads += 1
                threading.Thread(target=self._run, name="devicecore-admission", daemon=True).start()

    def close(self) -> None:
        """Drop everything that has not begun. Do not wait for what has."""
        with self._lock:
            self._closed = True
            self._ready.clear()
            for queue in self._queues.values():
                queue.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._ready:
                    self._threads -= 1
                    return
                lane = self._ready.popleft()
            self._empty(lane)

    def _empty(self, lane: Hashable) -> None:
        while True:
            with self._lock:
                queue = self._queues[lane]
                if not queue:
                    del self._queues[lane]
                    return
                work = queue.popleft()
            try:
                work()
            except Exception:  # noqa: BLE001 - the other work of the lane has to be done all the same
                _log.exception("work in the lane of %s failed", lane)
