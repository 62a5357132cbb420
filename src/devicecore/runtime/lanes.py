"""Runs many jobs in few threads, so that a hanging job delays only jobs that need the same resource.

Law: two jobs that need the same resource never run at the same time. There are at most `THREADS` threads, including the
caller's. Jobs that need the same resources run in order. If no thread can be started, the caller runs all jobs.
"""

import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from devicecore.runtime.thread import Thread

Job = TypeVar("Job")

THREADS = 16
"""The maximum number of threads. If this many jobs hang at once, the other jobs have to wait."""

Needs = frozenset[Hashable]


class JobLanes(Generic[Job]):
    """The remaining jobs, grouped by the resources that they need.

    `work` is called with up to `at_once` jobs that need the same resources.
    """

    def __init__(
        self, jobs: Mapping[Needs, Collection[Job]], work: Callable[[Sequence[Job]], None], *, at_once: int
    ) -> None:
        self._left = {needs: list(of_needs) for needs, of_needs in jobs.items()}
        self._work = work
        self._at_once = at_once
        self._lock = threading.Lock()  # held while choosing the next jobs
        self._busy: set[Hashable] = set()
        self._helpers: list[Thread] = []
        self._helping = 0
        self._errors: list[BaseException] = []

    def run(self) -> None:
        """Run all jobs. If the call is interrupted, running jobs continue, and no other jobs are started.

        Raises:
            BaseException: the first error that `work` raised. The other jobs still run.
        """
        try:
            while self._left:  # repeat, in case an interrupt has ended a helper early
                self._serve()
                while self._helpers:
                    self._helpers.pop().join()
        finally:
            self._left.clear()
        for error in self._errors:
            raise error

    def _serve(self) -> None:
        while (chosen := self._next()) is not None:
            needs, jobs = chosen
            try:
                self._work(jobs)
            except Exception as error:  # noqa: BLE001 - `run` raises it, after the other jobs
                self._errors.append(error)
            finally:
                with self._lock:
                    self._busy -= needs

    def _next(self) -> tuple[Needs, list[Job]] | None:
        """Return the next jobs that need no resource that a running job needs.

        If there are no such jobs, return None, so that `_serve` ends.

        A thread also finds the jobs that need the resources that it has just released, so no job is left over.
        """
        with self._lock:
            free = [needs for needs in self._left if self._busy.isdisjoint(needs)]
            if not free:
                return None
            needs = free[0]
            jobs = self._left.pop(needs)
            if len(jobs) > self._at_once:
                self._left[needs] = jobs[self._at_once :]  # the rest goes to the end of the queue
            self._busy |= needs
            is_help_needed = self._helping < THREADS - 1 and any(needs.isdisjoint(other) for other in free[1:])
            self._helping += is_help_needed
        if is_help_needed:
            self._start_helper()
        return needs, jobs[: self._at_once]

    def _start_helper(self) -> None:
        helper = Thread(target=self._help, name="devicecore-lane", daemon=True)
        try:
            helper.start()
        except (RuntimeError, MemoryError):  # no thread or memory is left, so the running threads do the work
            with self._lock:
                self._helping -= 1
        else:
            self._helpers.append(helper)

    def _help(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - an interrupt from outside; `run` raises it
            self._errors.append(error)
        finally:
            with self._lock:
                self._helping -= 1
