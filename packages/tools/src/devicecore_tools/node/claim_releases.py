"""Releases the claims of removed pods.

Law: a failed release is retried after 10 seconds, or when the set of drivers has changed. A driver that hangs does not
delay the release of another driver's claims.
"""

import logging
import math
import queue
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, field

from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import PodUid
from devicecore.domain.text import foreign_text
from devicecore_tools.node.lanes import Lanes

if TYPE_CHECKING:
    from devicecore.domain.dra.model import DriverName
    from devicecore.dra_manager import DraManager

_MANY = 32  # concurrent releases; more are combined, because each release rewrites the whole file
_LOOK = 1.0  # seconds between checks for releases that have ended
_RETRY = 10.0  # seconds between two attempts to release a pod's claims, as in a kubelet

_log = logging.getLogger(__name__)


@define(eq=False)
class _Leaving:
    """A removed pod whose claims have not been released yet."""

    name: str
    is_queued: bool = False
    retry_at: float = 0.0
    problem: str = ""
    is_alone: bool = False  # whether a combined release left this pod out


@define(eq=False)
class ClaimReleases:
    """Releases claims in threads. Only one thread may call its methods."""

    _manager: "Callable[[], DraManager | None]"  # returns None if the manager has not started
    _threads: Lanes  # a lane for each set of drivers
    _wake: Callable[[], None]  # called from other threads when `advance` has something to do
    _clock: Callable[[], float]  # monotonic seconds
    _leaving: dict[PodUid, _Leaving] = field(factory=dict, init=False)
    _left: "queue.SimpleQueue[tuple[PodUid, str]]" = field(factory=queue.SimpleQueue, init=False)
    _served: object = None  # the drivers at the last check
    _together: dict[PodUid, None] = field(factory=dict, init=False)  # pods released by one call
    _problems: Mapping[PodUid | None, str] | None = field(default=None, init=False)  # problems of the finished call
    _look_at: float = field(default=math.inf, init=False)
    version: object = field(factory=object)
    """A value that is replaced when `problems` may have changed."""

    def __contains__(self, pod: PodUid) -> bool:
        """Return whether claims of a removed pod with this UID have not been released yet."""
        return pod in self._leaving

    @property
    def problems(self) -> Mapping[PodUid, str]:
        """Why each pod's claims have not been released yet, or an empty string if no attempt has failed."""
        return {uid: leaving.problem for uid, leaving in self._leaving.items()}

    def waits_for(self) -> Iterable[str]:
        """Yield the releases that have not been completed yet."""
        for leaving in self._leaving.values():
            why = f": {leaving.problem}" if leaving.problem else ""
            yield f"the release of the claims held by pod {leaving.name}{why}"

    @property
    def next_due(self) -> float:
        """When a release is next due (monotonic seconds)."""
        return min([one.retry_at for one in self._leaving.values() if not one.is_queued] + [self._look_at])

    def add(self, pod: PodUid, name: str) -> None:
        """Record a removed pod. `advance` starts the release of the pod's claims."""
        self._leaving.setdefault(pod, _Leaving(name)).retry_at = 0.0
        self.version = object()

    def advance(self) -> None:
        """Collect the results of releases, and start the releases that are due."""
        manager, now = self._manager(), self._clock()
        self._take_together(manager, now)
        while not self._left.empty():
            uid, problem = self._left.get()
            self.version = object()
            leaving = self._leaving[uid]
            leaving.is_queued = False
            if not problem:
                del self._leaving[uid]
                continue
            if problem != leaving.problem:
                _log.error("the claims of pod %s have not been released yet: %s", leaving.name, problem)
            leaving.problem, leaving.retry_at = problem, now + _RETRY
        drivers = manager and manager.drivers
        served = drivers and (drivers.instances, drivers.connected)
        has_changed, self._served = served != self._served, served
        due = {
            uid: leaving
            for uid, leaving in self._leaving.items()
            if not leaving.is_queued and (has_changed or leaving.retry_at <= now)
        }
        if due:
            self._begin(due, manager, now)

    def _begin(self, due: Mapping[PodUid, _Leaving], manager: "DraManager | None", now: float) -> None:
        """Start the releases of these pods: combined if one write suffices for many of them, otherwise one by one."""
        drivers: dict[PodUid, frozenset[DriverName]] = {}
        # pods whose problem is known are released alone; otherwise, the problem would be logged again
        alone = {uid for uid, leaving in due.items() if leaving.is_alone or leaving.problem}
        if manager:
            for claim in manager.claims.claims.values():
                pods = due.keys() & claim.pods if claim.drivers else ()
                if len(pods) <= _MANY:
                    alone.update(pods)
                for uid in pods:
                    drivers[uid] = drivers.get(uid, frozenset()).union(claim.drivers)
        together = dict.fromkeys(uid for uid in due if uid not in alone)
        if len(together) > _MANY and not self._together:
            self._together, self._problems, self._look_at = together, None, now + _LOOK
            self._threads.submit(next(iter(together)), partial(self._release_many, tuple(together)))
        for uid, leaving in due.items():
            leaving.is_queued = True
            if uid not in self._together:
                self._threads.submit(drivers.get(uid) or uid, partial(self._release, uid))

    def _take_together(self, manager: "DraManager | None", now: float) -> None:
        """Collect the results for the pods of a combined release.

        A driver that hangs delays the whole call.
        """
        problems = self._problems  # read before `manager.claims`, which the call may still change
        if not self._together or (problems is None and now < self._look_at):
            return
        using = manager.claims.pods if manager else frozenset()
        left: dict[PodUid, None] = {}
        for uid in self._together:
            if uid not in using:
                self._left.put((uid, ""))
            elif problems is None:
                left[uid] = None
            elif uid in problems:
                self._left.put((uid, problems[uid]))
            else:  # not released, because another call or the source of pods still uses the pod
                self._leaving[uid].is_queued, self._leaving[uid].is_alone = False, True
        self._together, self._look_at = left, now + _LOOK if left else math.inf

    def _release_many(self, pods: Iterable[PodUid]) -> None:
        """Release the claims of many pods in one call, together with the claims of all other removed pods."""
        problems: Mapping[PodUid | None, str] = {}
        try:
            if (manager := self._manager()) is not None:
                problems = {uid: _sentence(error) for uid, error in manager.reconcile().items()}
        except DeviceCoreError as error:
            problems = dict.fromkeys(pods, _sentence(error))
        except Exception as error:
            problems = dict.fromkeys(pods, type(error).__name__)
            raise
        finally:
            self._problems = problems
            self._wake()

    def _release(self, uid: PodUid) -> None:
        problem = ""
        try:
            if (manager := self._manager()) is not None:
                manager.unprepare(uid)
        except DeviceCoreError as error:
            problem = _sentence(error)
        except Exception as error:
            problem = type(error).__name__
            raise
        finally:
            self._left.put((uid, problem))
            self._wake()


def _sentence(error: DeviceCoreError) -> str:
    return foreign_text(str(error)) or type(error).__name__
