"""Two threads that keep an API server in a desired state: one publishes, and the other watches for changes by others.

Law: after any failure, publishing is retried with the latest desired state, and `problem` says why it failed.
"""

import logging
import random
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Generic, TypeVar

from attrs import frozen

from devicecore.adapters.kube_api.access import ApiServer, RequestError
from devicecore.domain.checks import check_seconds
from devicecore.domain.errors import DeviceCoreError, NotStartedError
from devicecore.runtime.background import SupervisedThread, bounded_backoff
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.system.arguments import checks_fields

_log = logging.getLogger(__name__)

_LAST_SECONDS = 1.0  # seconds for a thread to end after its request was aborted

Error = TypeVar("Error", bound=DeviceCoreError)
Wish = TypeVar("Wish")
Seen = TypeVar("Seen")


@checks_fields
@frozen
class Backoff:
    """How long to wait between attempts: `first` seconds, then twice as long each time, up to `maximum`.

    Each pause is shortened at random, by up to half.
    """

    first: float = 0.5
    maximum: float = 30.0

    def delay(self, failures: int, luck: float) -> float:
        """Return the pause in seconds after this many failures in a row.

        `luck`, from 0 to 1, spreads out the attempts of different nodes.
        """
        return bounded_backoff(failures, self.first, self.maximum) * (0.5 + luck / 2)


class ApiPublisher(HasLifecycle, Generic[Error, Wish, Seen]):
    """Publishes the latest desired state, and publishes it again if someone changes the published state. Thread-safe.

    `stop` makes one last attempt to publish. `name` is what the log calls the published object, and `thread` names the
    threads. `new_servers` creates the connections of a run: one for watching, and the others for the publishing thread.
    `error_of` turns a cause into an error. `backoff` is how long to wait after a failure, and `resync` is the number of
    seconds after which everything is compared even if the watch shows no change.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        name: str,
        nothing: Wish,
        *,
        thread: str,
        new_servers: Callable[[], tuple[ApiServer, ...]],
        error_of: Callable[[str], Error],
        backoff: Backoff,
        resync: float,
    ) -> None:
        self._lifecycle = lifecycle
        self._name = name
        self._thread_name = thread
        self._new_servers = new_servers
        self._error_of = error_of
        self._backoff = backoff
        self._resync = resync
        # Held while the fields below change, never during a request. `with` is used on this lock, not on the condition:
        # conditions are implemented in Python, so an interrupt could leave the lock held.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._wanted = nothing
        self._published: Wish | None = nothing  # None if it is not known
        self._has_wanted = False  # whether anything has been published so far
        # the version from which to watch: empty to begin with the current objects, or None if it is not known
        self._version: str | None = None
        self._must_compare = False
        self._is_missing = False  # whether the object is missing; as soon as it appears, we try again
        self._closing = False
        self._problem: Error | None = None
        self._make_parts()

    def _make_parts(self) -> None:
        self._watched, *self._servers = self._new_servers()
        self._publisher = SupervisedThread(self._thread_name, self._publish)
        self._watcher = SupervisedThread(f"{self._thread_name}-watch", self._watch)

    def stop(self, timeout: float = 5.0) -> None:
        """Stop, after a last attempt if something is not published yet. A second stop does nothing.

        After `timeout` seconds, the current request is aborted and no other is started.
        """
        self._lifecycle.stop(partial(self._end, timeout))

    def _begin(self) -> None:
        self._make_parts()
        self._closing = False
        if self._has_wanted:
            self._published = self._version = None
        self._publisher.start()
        self._watcher.start()

    def _end(self, timeout: float = 0.0) -> None:  # after a failed start, there is nothing to wait for
        threads = self._publisher, self._watcher
        for thread in threads:
            thread.stop(0)  # before the threads can see `_closing`, so that their end is expected
        with self._lock:
            self._closing = True
            self._condition.notify_all()
        end = time.monotonic() + timeout
        self._watched.stop()
        self._publisher.stop(timeout)
        problem = self._problem
        for server in self._servers:
            server.stop()
        for thread in threads:
            thread.stop(max(_LAST_SECONDS, end - time.monotonic()))
        if not self.is_published:
            _log.error("stopped before everything was published: %s", problem or f"no answer from {self._name}")

    def _check_running(self) -> None:
        try:
            self._lifecycle.check_running()
        except NotStartedError as error:
            raise self._error_of(str(error)) from error

    def _want(self, wanted: Wish) -> None:
        """Make the thread publish this state instead of any earlier state. The caller must hold the lock."""
        self._wanted = wanted
        if not self._has_wanted:
            self._has_wanted, self._published = True, None
        self._condition.notify_all()

    @property
    def problem(self) -> Error | None:
        """Why the API server does not show what was published, or None if no problem is known."""
        return self._problem

    @property
    def is_published(self) -> bool:
        """Whether the API server shows everything that was published, as far as is known."""
        with self._lock:
            return self._published == self._wanted

    def wait_until_published(self, timeout: float) -> None:
        """Wait until the API server shows everything that was published.

        Raises:
            DeviceCoreError: the API server still does not show everything after `timeout` seconds. The error is
                `problem`, if a problem is known.
            TypeError: `timeout` is not a number.
        """
        check_seconds("wait_until_published: timeout", timeout)
        with self._lock:
            if not self._condition.wait_for(lambda: self.is_published, timeout):
                raise self._problem or self._error_of(f"no answer within {timeout:g} s")

    def _wait(self, seconds: float | None, until: Callable[[], bool]) -> None:
        with self._lock:
            self._condition.wait_for(lambda: self._closing or until(), seconds)

    # --- the thread that publishes ------------------------------------------------------------------------------------

    @abstractmethod
    def _reconcile(self) -> None:
        """Write until the API server shows the desired state, then call `_succeeded`.

        Raises RequestError if writing fails.
        """

    def _publish(self, _: threading.Event) -> None:
        servers, failures, pause = self._servers, 0, 0.0
        last: object = None
        while self._wait_for_work(failures, pause):
            is_last = self._closing
            try:
                self._reconcile()
            except Exception as error:  # noqa: BLE001 - no caller would notice the end of this thread
                a_bug = RequestError(f"a bug in devicecore: {error!r}", kind=type(error))
                problem = error if isinstance(error, RequestError) else a_bug
                failures += 1
                pause = max(self._backoff.delay(failures, random.random()), problem.pause)  # noqa: S311 - no secret
                if problem.kind != last and not self._closing:  # `stop` reports what was not published
                    why = self._error_of(problem.cause)
                    _log.error("%s; retrying until it succeeds", why, exc_info=None if problem is error else error)
                last = problem.kind
                self._failed(problem)
            else:
                failures, last = 0, None
            if is_last:
                break
        for server in servers:
            server.disconnect()

    def _wait_for_work(self, failures: int, pause: float) -> bool:
        """Wait for work. Return False if this is closed and everything is published."""
        with self._lock:
            if failures:  # new states cause no additional requests to a failing server
                self._wait(pause, lambda: self._is_missing and self._must_compare)
            else:
                resync = self._resync if self._has_wanted else None
                self._wait(resync, lambda: self._must_compare or not self.is_published)
            self._must_compare = False
            return not self._closing or not self.is_published

    def _failed(self, problem: RequestError) -> None:
        with self._lock:
            self._problem = self._error_of(problem.cause)
            self._condition.notify_all()

    def _succeeded(self, wanted: Wish, version: str) -> None:
        """Record that the API server shows `wanted`, as of the object's `version`."""
        with self._lock:
            if self._problem:
                _log.warning("%s is published again", self._name)
            self._published, self._version, self._problem, self._is_missing = wanted, version, None, False
            self._condition.notify_all()

    # --- the thread that watches --------------------------------------------------------------------------------------

    @abstractmethod
    def _events(self, version: str) -> Iterable[tuple[str, Seen]]:
        """Watch from a version until the server ends the watch. Raises RequestError if the watch fails."""

    @abstractmethod
    def _seen(self, kind: str, found: Seen) -> None:
        """Handle an event, and call `_compare` if another writer has changed something."""

    def _compare(self) -> None:
        """Make the publishing thread compare now."""
        with self._lock:
            self._must_compare = True
            self._condition.notify_all()

    def _lost_track(self) -> None:
        """Compare everything, and watch from the compared version, because changes in the meantime are unknown."""
        with self._lock:
            self._version = "" if self._is_missing else None
            self._compare()

    def _watch(self, stopping: threading.Event) -> None:
        watched, failures = self._watched, 0
        last: object = None
        while not stopping.is_set():
            self._wait(None, lambda: self._version is not None)
            try:
                for kind, found in self._events(self._version or ""):
                    self._seen(kind, found)
                    failures, last = 0, None
                failures, last = 0, None  # the server has ended the watch as usual
            except RequestError as problem:
                failures += 1
                # A single failure is not a problem, because servers forget old versions. Everything is compared, and
                # watched from the version compared.
                if failures > 1 and problem.kind not in (last, HTTPStatus.GONE) and not self._closing:
                    seconds = f"{self._backoff.maximum:g} s"
                    _log.warning("cannot watch %s, so it is compared every %s: %s", self._name, seconds, problem)
                    last = problem.kind
                self._lost_track()
            stopping.wait(self._backoff.delay(failures + 1, random.random()))  # noqa: S311 - no secret
        watched.disconnect()
