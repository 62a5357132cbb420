"""Releases of the claims of pods that have gone.

Law: a release that fails is tried again after 10 seconds, or when other drivers are there. A driver that hangs delays
no release of another driver's claims.
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

_MANY = 32  # releases at once; more are done together, because each write is that of the whole file
_RETRY = 10.0  # seconds between two attempts to release the claims of a pod, as in a kubelet

_log = logging.getLogger(__name__)


@define(eq=False)
class _Leaving:
    """A pod that has gone and whose claims are not released yet."""

    name: str
    is_queued: bool = False
    retry_at: float = 0.0
    problem: str = ""


@define(eq=False)
class ClaimReleases:
    """Releases claims in threads. One thread uses it."""

    _manager: "Callable[[], DraManager | None]"  # returns None if it has not started
    _threads: Lanes  # a lane for each set of drivers
    _wake: Callable[[], None]  # called from other threads when there is something to do for `advance`
    _clock: Callable[[], float]  # monotonic seconds
    _leaving: dict[PodUid, _Leaving] = field(factory=dict, init=False)
    _left: "queue.SimpleQueue[tuple[PodUid, str]]" = field(factory=queue.SimpleQueue, init=False)
    _served: object = None  # which drivers there were at the last look
    version: object = field(factory=object)
    """Replaced when `problems` may have changed."""

    def __contains__(self, pod: PodUid) -> bool:
        """Whether the claims of a pod of this UID that has gone are not released yet."""
        return pod in self._leaving

    @property
    def problems(self) -> Mapping[PodUid, str]:
        """Why the claims of a pod are not released yet; empty if no attempt has failed."""
        return {uid: leaving.problem for uid, leaving in self._leaving.items()}

    def waits_for(self) -> Iterable[str]:
        """The releases that are not done yet."""
        for leaving in self._leaving.values():
            why = f": {leaving.problem}" if leaving.problem else ""
            yield f"the release of the claims of pod {leaving.name}{why}"

    @property
    def next_due(self) -> float:
        """When a release is to be tried again (monotonic seconds)."""
        return min((one.retry_at for one in self._leaving.values() if not one.is_queued), default=math.inf)

    def add(self, pod: PodUid, name: str) -> None:
        """Note a pod that has gone. `advance` begins its release."""
        self._leaving.setdefault(pod, _Leaving(name)).retry_at = 0.0
        self.version = object()

    def advance(self) -> None:
        """Take the results of releases, and begin those that are due."""
        while not self._left.empty():
            uid, problem = self._left.get()
            self.version = object()
            leaving = self._leaving[uid]
            leaving.is_queued = False
            if not problem:
                del self._leaving[uid]
                continue
            if problem != leaving.problem:
                _log.error("the claims of pod %s are not released yet: %s", leaving.name, problem)
            leaving.problem, leaving.retry_at = problem, self._clock() + _RETRY
        manager = self._manager()
        drivers = manager and manager.drivers
        served = drivers and (drivers.instances, drivers.connected)
        has_changed, self._served = served != self._served, served
        now = self._clock()
        due = {
            uid: leaving
            for uid, leaving in self._leaving.items()
            if not leaving.is_queued and (has_changed or leaving.retry_at <= now)
        }
        new = [uid for uid, leaving in due.items() if not leaving.problem]  # the manager would log the others again
        if len(new) > _MANY:
            self._threads.submit(new[0], partial(self._release_many, new))
        for uid, leaving in due.items():
            leaving.is_queued = True
            if leaving.problem or len(new) <= _MANY:
                self._threads.submit(self._drivers_of(uid) or uid, partial(self._release, uid))

    def _drivers_of(self, pod: PodUid) -> "frozenset[DriverName]":
        """The drivers of the claims that a pod is in."""
        manager = self._manager()
        claims = manager.claims.claims.values() if manager else ()
        return frozenset(driver for claim in claims if pod in claim.pods for driver in claim.drivers)

    def _release_many(self, pods: Iterable[PodUid]) -> None:
        """Release the claims of many pods together, and one by one what another call, or the source of pods, keeps."""
        left: dict[PodUid, None] = {}
        problems: Mapping[PodUid | None, DeviceCoreError] = {}
        try:
            if (manager := self._manager()) is not None:
                problems = manager.reconcile()
                using = manager.claims.pods
                left = dict.fromkeys(uid for uid in pods if uid not in problems and uid in using)
        except DeviceCoreError as error:
            problems = dict.fromkeys(pods, error)
        for uid in pods:
            if uid in problems:
                self._left.put((uid, foreign_text(str(problems[uid])) or type(problems[uid]).__name__))
            elif uid not in left:
                self._left.put((uid, ""))
        self._wake()
        for uid in left:
            self._release(uid)

    def _release(self, uid: PodUid) -> None:
        problem = ""
        try:
            if (manager := self._manager()) is not None:
                manager.unprepare(uid)
        except DeviceCoreError as error:
            problem = foreign_text(str(error)) or type(error).__name__
        except Exception as error:
            problem = type(error).__name__
            raise
        finally:
            self._left.put((uid, problem))
            self._wake()
