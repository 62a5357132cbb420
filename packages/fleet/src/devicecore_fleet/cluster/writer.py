"""Writes to an API server: runs jobs for many keys in a few threads.

Laws: for each key, one job runs at a time, and only the newest job waits. A failed job is retried until it succeeds or
is replaced. If more jobs are due than the server can answer, each kind of job gets its share of the requests, so no job
has to wait for all jobs of another kind. Only a Lease that has waited for a long time takes precedence. If jobs wait
although the server answers, threads are added up to a limit. If the server does not answer, refuses the credentials or
asks for a pause, nothing is sent for a while. Only an answer to a request that was sent after the last such failure
ends the pause early.
"""

import heapq
import itertools
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Hashable
from http import HTTPStatus
from typing import Protocol

from attrs import define, field

from devicecore.adapters.kube_api import Backoff
from devicecore.adapters.kube_api.access import RequestError
from devicecore.runtime.background import SupervisedThread
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore_fleet.cluster.object_watch import GRANT_SECONDS
from devicecore_fleet.cluster.requests import KubeApiRequests

Job = Callable[[KubeApiRequests], float | None]
"""A job sends requests.

A job returns the number of seconds after which it wants to run again, or None if it is done.
"""

THREADS = 4
"""The number of threads, each with its own connection. 50 pods per second need one or two threads."""

SHARES = {"lease": 2.0, "node": 8.0, "pod": 4.0, "event": 0.5}
"""The relative share of the requests that each kind of job (the first part of its key) gets while more jobs are due
than the server can answer. The default is 1. Nodes get more, because everything else about a node waits for its Node.
Events get less, because the statuses show the same information.
"""

URGENT = ("lease", 15.0)
"""A kind of job, and how many seconds such a job waits before it takes precedence: a node whose Lease is not renewed
for 40 seconds counts as lost.
"""

_BACKOFF = Backoff(0.5, 10.0)
_OUTAGE = Backoff(0.5, 3.0)  # the Leases must be renewed within 10 s after an outage
_WINDOW = 10.0  # seconds over which requests are counted
_GROW = 2.0  # seconds for which a due job may wait before connections are added
_LATE = 10.0  # seconds for which a due job may wait before the reason is logged
_DENIED = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_DENIED_SECONDS = 60.0  # the wait after a second denial, because only a change to the object or to a policy helps
_SAY_AGAIN = 60.0  # seconds after which a further failure for the same reason is logged for the same kind of job
_LAST_SECONDS = 2.0  # seconds for the threads to end after their requests were canceled

_log = logging.getLogger(__name__)


class Writer(Protocol):
    """Takes jobs that send requests."""

    def put(self, key: Hashable, job: Job) -> None:
        """Run a job soon.

        The new job replaces any job with this key that has not started. Any thread may call this method.

        The first part of a key is the kind of the job: see `SHARES`.
        """


@define(eq=False)
class _Entry:
    key: Hashable
    job: Job
    due: float
    failures: int = 0
    is_running: bool = False
    is_replaced: bool = False  # set by `put` while the job runs
    problem: object = None
    forbidden_since: float = math.inf

    @property
    def kind(self) -> object:
        return self.key[0] if isinstance(self.key, tuple) else self.key


@define(eq=False)
class _Kind:
    """The waiting jobs of one kind by due time, and the used part of the kind's share."""

    share: float
    queue: list[tuple[float, int, _Entry]] = field(factory=list)
    had: float = 0.0


@define(eq=False)
class _Window:
    """What happened since the time `began`.

    `sent` is the number of requests sent before that time, and `ended` the number of jobs ended since.
    """

    began: float
    sent: int
    ended: int = 0
    latest: float = 0.0  # the longest wait of a job since it was due, in seconds


class ApiWriter(HasLifecycle, Writer):
    """Runs jobs in a few threads. Use it as a context manager.

    Args:
        requests: sends the requests. The writer starts and stops this object.
        threads: how many jobs initially run at once.
        most: how many jobs may run at once if jobs wait although the server answers; `threads` by default.
        backoff: how long to wait after a failure.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        requests: KubeApiRequests,
        *,
        threads: int = THREADS,
        most: int = 0,
        backoff: Backoff = _BACKOFF,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._backoff = backoff
        self._outage = min(backoff, _OUTAGE, key=lambda one: one.maximum)
        self._clock = clock
        self._count = threads
        self._most = max(threads, most)
        self._lock = threading.Lock()  # held while the jobs change, never during a request
        self._idle: list[threading.Condition] = []  # for the threads without a job, which other threads wake
        self._timed: threading.Condition | None = None  # for the one thread that waits until a job is due
        self._entries: dict[Hashable, _Entry] = {}
        self._kinds: dict[object, _Kind] = {}
        self._had = 0.0  # the share of the kind whose turn was last
        self._window = _Window(clock(), 0)
        self._said_slow = -math.inf
        self._well_since = -math.inf
        self._order = itertools.count()
        self._outages = 0
        self._not_before = 0.0
        self._failed_at = -math.inf
        self._problem: str | None = None
        self._said: dict[tuple[object, ...], float] = {}
        self._lifecycle = Lifecycle("the writer to the API server")
        self._threads: tuple[SupervisedThread, ...] = ()
        self._may_grow = False

    def _begin(self) -> None:
        self._requests.start()
        with self._lock:
            for entry in self._entries.values():
                if entry.is_running:  # the job was running when the last run ended
                    entry.is_running = False
                    self._push(entry)
        with self._lock:
            self._threads, self._may_grow = (), True
            self._add_threads(self._count)

    def _add_threads(self, count: int) -> None:
        new = [SupervisedThread(f"devicecore-writer-{len(self._threads) + one}", self._work) for one in range(count)]
        self._threads += tuple(new)
        self._count = len(self._threads)
        for thread in new:
            thread.start()

    def _end(self) -> None:
        with self._lock:
            self._may_grow = False
            for thread in self._threads:
                thread.stop(0.0)
            for idle in (*self._idle, *filter(None, [self._timed])):
                idle.notify()
            self._idle, self._timed = [], None  # the threads of the next start have their own conditions
        self._requests.stop()
        end = time.monotonic() + _LAST_SECONDS
        for thread in self._threads:  # not removed, in case this stop is interrupted and a second stop follows
            thread.stop(max(0.0, end - time.monotonic()))

    @property
    def problem(self) -> str | None:
        """Why the API server cannot be written to, or None if no problem is known."""
        return self._problem

    @property
    def waiting(self) -> int:
        """The number of unfinished jobs."""
        return len(self._entries)

    def put(self, key: Hashable, job: Job) -> None:
        """Run a job soon. The new job replaces any job with this key that has not started."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(key, job, self._clock())
                self._push(entry)
                return
            entry.job = job
            if entry.is_running:
                entry.is_replaced = True
            elif not entry.failures and entry.due > self._clock():  # the job waits because it asked to run again later
                entry.due = self._clock()
                self._push(entry)

    def _push(self, entry: _Entry) -> None:
        kind = self._kinds.get(entry.kind)
        if kind is None:
            kind = self._kinds[entry.kind] = _Kind(SHARES.get(str(entry.kind), 1.0))
        heapq.heappush(kind.queue, (entry.due, next(self._order), entry))
        if self._idle and entry.due <= self._clock():
            self._idle.pop().notify()
        elif self._timed is not None:
            self._timed.notify()  # the waiting thread must run the job or wait until it is due

    def _wait(self, mine: threading.Condition, seconds: float | None) -> None:
        """Wait until a job is due in `seconds`, or until a new job arrives.

        Only one thread waits for the due time, because otherwise all threads would wake up for one job.
        """
        if self._timed is not None:
            self._idle.append(mine)
            mine.wait()
            return
        self._timed = mine
        mine.wait(seconds)
        if self._timed is mine:  # otherwise, the writer was stopped, and perhaps restarted
            self._timed = None

    def _work(self, stopping: threading.Event) -> None:
        mine = threading.Condition(self._lock)
        while True:
            with self._lock:
                if stopping.is_set():  # checked under the lock, because a stop could notify just before the wait
                    return
                entry, seconds = self._next()
                if entry is None:
                    self._wait(mine, seconds)
                    continue
                if self._timed is None and self._idle:
                    self._idle.pop().notify()  # that thread waits for the next due time
                entry.is_running, entry.is_replaced = True, False
                job = entry.job
            again, error = _run(job, self._requests)
            if stopping.is_set():
                return
            with self._lock:
                self._ended(entry, again, error)

    def _next(self) -> tuple[_Entry | None, float | None]:
        """Return a due job, or else the seconds until a job is due (None if no job is waiting)."""
        now = self._clock()
        if now < self._not_before and self._entries:
            return None, self._not_before - now
        soonest, turn, is_urgent = math.inf, None, False
        for name, kind in self._kinds.items():
            queue = kind.queue
            while queue and (queue[0][2].due != queue[0][0] or queue[0][2].is_running):
                heapq.heappop(queue)  # the job was put again with a different due time
            if not queue:
                continue
            soonest = min(soonest, queue[0][0])
            if queue[0][0] > now:
                kind.had = max(kind.had, self._had)  # an unused share is not carried over
            elif name == URGENT[0] and now - queue[0][0] > URGENT[1]:
                turn, is_urgent = kind, True
            elif turn is None or (kind.had < turn.had and not is_urgent):
                turn = kind
        if turn is None:
            return None, soonest - now if soonest < math.inf else None
        self._had = turn.had
        turn.had += 1 / turn.share
        due, _, entry = heapq.heappop(turn.queue)
        if entry.kind != "event":
            self._window.latest = max(self._window.latest, now - max(due, self._well_since))
        return entry, None

    def _ended(self, entry: _Entry, again: float | None, error: Exception | None) -> None:
        """Process the result or the error with which a job has ended."""
        now = self._clock()
        entry.is_running = False
        self._window.ended += 1
        self._look_at_window(now)
        if self._requests.answered > self._failed_at:
            self._note_success()
        if error is None:
            entry.failures, entry.problem, entry.forbidden_since = 0, None, math.inf
            if entry.is_replaced:
                again = 0.0
            if again is None:
                del self._entries[entry.key]
                return
        else:
            if not (isinstance(error, RequestError) and error.is_outage):
                entry.failures += 1
            delay = self._backoff.delay(max(1, entry.failures), random.random())  # noqa: S311 - no secret
            again = max(delay, self._failed(entry, error, now))
        entry.due = now + again
        self._push(entry)

    def _failed(self, entry: _Entry, error: Exception, now: float) -> float:
        """Record why a job failed. Return the minimum number of seconds until the job runs again."""
        if not isinstance(error, RequestError):
            if entry.problem is not type(error):
                _log.error("a request for %s failed: a bug in devicecore: %r", entry.key, error, exc_info=error)
            entry.problem = type(error)
            return self._backoff.maximum
        if error.is_outage:
            self._failed_at = time.monotonic()
            if now >= self._not_before:
                self._outages += 1
                delay = self._outage.delay(self._outages, random.random())  # noqa: S311 - no secret
                self._not_before = now + max(delay, error.pause)
            if self._problem is None:
                _log.error("cannot write to the API server: %s; retrying until it succeeds", error)
            self._problem = str(error)
        else:
            kind = error.status, error.reason
            is_forbidden = error.status == HTTPStatus.FORBIDDEN
            entry.forbidden_since = min(entry.forbidden_since, now) if is_forbidden else math.inf
            is_granted_soon = is_forbidden and now - entry.forbidden_since < GRANT_SECONDS
            if entry.problem != kind and entry.failures > 1 and not is_granted_soon:
                self._say(entry.key, error, now)
                entry.problem = kind
            if error.status in _DENIED and entry.failures > 1:
                return max(error.pause, _DENIED_SECONDS * random.uniform(0.75, 1.25))  # noqa: S311 - no secret
        return error.pause

    def _say(self, key: Hashable, error: RequestError, now: float) -> None:
        """Log why a job fails.

        If several jobs of one kind lack the same permission, or fail for the same temporary reason, only one failure
        per minute is logged.
        """
        what, *_ = parts = key if isinstance(key, tuple) else (key,)
        if error.is_passing or error.status == HTTPStatus.FORBIDDEN:
            common = what, error.status, error.reason
            if now - self._said.get(common, -math.inf) < _SAY_AGAIN:
                return
            self._said[common] = now
        _log.error("%s: %s; retrying until it succeeds", " ".join(map(str, parts)), error)

    def _look_at_window(self, now: float) -> None:
        """Add connections if jobs wait. If jobs wait for a long time, log the server's rate and the required rate."""
        window, seconds = self._window, now - self._window.began
        if seconds < _WINDOW:
            return
        sent, self._window = self._requests.sent - window.sent, _Window(now, self._requests.sent)
        if window.latest < _GROW or self._problem is not None:
            return
        of_connections = self._count
        if self._may_grow and self._count < self._most:
            self._add_threads(min(self._count, self._most - self._count))  # double the number of connections
        if window.latest < _LATE or now - self._said_slow < _SAY_AGAIN:
            return
        self._said_slow = now
        of_job = sent / max(1, window.ended)
        _log.warning(
            "the API server answers %.3g requests per second (connections: %d), but %.3g are needed: requests wait "
            "for up to %.0f s",
            sent / seconds,
            of_connections,
            (window.ended + len(self._entries)) * of_job / seconds,  # at this rate, no job would wait
            window.latest,
        )

    def _note_success(self) -> None:
        if self._problem is not None:
            _log.warning("writing to the API server works again")
            self._well_since = self._clock()
        self._outages, self._not_before, self._problem = 0, 0.0, None


def _run(job: Job, requests: KubeApiRequests) -> tuple[float | None, Exception | None]:
    """Run a job. Return the job's result or its error."""
    try:
        return job(requests), None
    except Exception as error:  # noqa: BLE001 - no one would notice the end of this thread
        return None, error
