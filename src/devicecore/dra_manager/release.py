"""Releases the claims of a pod that has ended.

Law: a claim stays in the store, together with its pod, until every driver of the claim has released it. If another pod
starts to use the claim before that, the claim stays, and its drivers are asked to prepare the claim again.
"""

import logging
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial

from attrs import define

from devicecore.domain.dra.answers import check_unprepared
from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.errors import DraStoppedError, DriverCallError, TurnTimeoutError
from devicecore.domain.dra.model import ClaimKey
from devicecore.domain.dra.preparing import AskDriver, Changed
from devicecore.domain.dra.releasing import (
    Released,
    after_answer,
    leave,
    leave_shared,
    mark_uncertain,
    next_to_release,
    remove,
    restore_phases,
)
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import PodUid
from devicecore.domain.text import counted, foreign_text
from devicecore.dra_manager.driver_list import DriverList
from devicecore.dra_manager.preparation import TURN_PATIENCE
from devicecore.dra_manager.saved_claims import SavedClaims
from devicecore.ports.drivers import DriverTransport
from devicecore.runtime.lanes import JobLanes, Needs
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run
from devicecore.runtime.turns import Turns

_log = logging.getLogger(__name__)

# at most this many pods with the same drivers are saved with one write; the pods keep their turns until that write
_AT_ONCE = 32


@define(eq=False, repr=False)
class Release:
    """Releases claims, and has no state of its own."""

    _claims: SavedClaims
    _turns: Turns[Hashable]
    _drivers: DriverList
    _transport: DriverTransport

    def release(self, pod: PodUid) -> None:
        """Release the claims that a pod uses. The caller must hold the pod's turn.

        Raises DeviceCoreError with the kubelet's message, but without the prefix of that message.
        """
        run = self._claims.run()
        left = self._release_once(run, pod, self._claims.cache.of_pod(pod))
        while left:  # during the calls, another pod had a claim prepared again, and then stopped using it
            left = self._release_once(run, pod, left)

    def _release_once(self, run: Run, pod: PodUid, keys: Sequence[ClaimKey]) -> Sequence[ClaimKey]:
        """Release these claims. Return the claims that the pod still uses."""
        last, released = self._ask_all(run, pod, keys)
        return self._claims.save(run, "state", lambda cache: remove(cache, pod, last, released)).cache.of_pod(pod)

    def release_all(self, run: Run, pods: Collection[PodUid]) -> dict[PodUid | None, DeviceCoreError]:
        """Release the claims of these pods, and the claims that no pod uses. Return the errors by pod.

        The claims of pods that need different drivers are released at the same time, so a driver that hangs delays only
        the pods that need it. Pods whose claims are currently being prepared or released are left out. Several pods are
        saved with one write. The key None stands for the claims that no pod uses.
        """
        failed: dict[PodUid | None, DeviceCoreError] = {}
        turn = self._turns.begin_now(pods, OpenCall())
        try:
            gone = frozenset(pods) & frozenset(turn.keys)
            cache = self._claims.cache
            if leave_shared(cache, gone).cache is not cache:
                cache = self._claims.save(run, "state", lambda cache: leave_shared(cache, gone)).cache
        except DeviceCoreError as error:
            _log.error("releasing the claims of %s failed and will be retried: %s", counted(len(pods), "pod"), error)
            return dict.fromkeys(pods, error)
        finally:
            self._turns.end(turn)
        keys = cache.by_pod(gone)
        jobs: dict[Needs, list[PodUid | None]] = {}
        for pod in sorted(keys, key=lambda pod: pod or ""):
            drivers = {driver for claim in cache.present(keys[pod]) for driver in claim.drivers}
            jobs.setdefault(frozenset(drivers), []).append(pod)
        JobLanes(jobs, partial(self._release_some, run, keys, failed), at_once=_AT_ONCE).run()
        return {pod: failed[pod] for pod in keys if pod in failed}

    def _release_some(
        self,
        run: Run,
        keys: Mapping[PodUid | None, Sequence[ClaimKey]],
        failed: dict[PodUid | None, DeviceCoreError],
        pods: Sequence[PodUid | None],
    ) -> None:
        """Release the claims of some pods, and save all releases that succeed with one write.

        Add errors to `failed`.
        """
        turn = self._turns.begin_now(pods, OpenCall())
        left = {pod: keys[pod] for pod in pods if pod in turn.keys}
        released: dict[PodUid | None, tuple[tuple[ClaimKey, ...], Released]] = {}
        try:
            while left:  # repeat if another pod has used a claim in the meantime, as in `release`
                released = {}
                for pod, of_pod in left.items():
                    try:
                        released[pod] = self._ask_all(run, pod, of_pod)
                    except DeviceCoreError as error:
                        self._note_failure(failed, pod, error)
                cache = self._claims.save(run, "state", partial(_without, released)).cache
                left = {pod: last for pod, (last, _) in released.items() if leave(cache, pod, last).last}
        except DeviceCoreError as error:
            for pod in released:
                self._note_failure(failed, pod, error)
        finally:
            self._turns.end(turn)

    @staticmethod
    def _note_failure(failed: dict[PodUid | None, DeviceCoreError], pod: PodUid | None, error: DeviceCoreError) -> None:
        failed[pod] = error
        if not isinstance(error, DraStoppedError):
            _log.error("releasing the claims of pod %s failed and will be retried: %s", pod, foreign_text(str(error)))

    def _ask_all(self, run: Run, pod: PodUid | None, keys: Sequence[ClaimKey]) -> tuple[tuple[ClaimKey, ...], Released]:
        """Ask drivers to release the claims that no other pod uses. Return these claims, and what was released."""
        cache = self._claims.cache
        leaving = leave(cache, pod, keys)
        if leaving.cache is not cache:
            leaving = self._claims.save(run, "state", lambda cache: leave(cache, pod, keys))
        released: Released = {}
        while ask := next_to_release(self._claims.cache, pod, leaving.last, released):
            released = self._ask(run, pod, ask, released)
        return leaving.last, released

    def _ask(self, run: Run, pod: PodUid | None, ask: AskDriver, released: Released) -> Released:
        """Ask a driver to release its claims, except those that another pod has started to use in the meantime.

        Return `released` extended by the claims that the driver has released.
        """
        turn = self._turns.begin(ask.keys, OpenCall(), TURN_PATIENCE, "unprepare")
        if turn is None:
            raise TurnTimeoutError(TURN_PATIENCE)
        try:
            instance = self._drivers.choose(ask.driver)
            marked = self._claims.note(run, lambda cache: mark_uncertain(cache, pod, ask))
            left = marked.ask
            if left is None:
                return released
            try:
                answer = self._transport.unprepare(instance, left.claims)
            except DriverCallError as error:
                if not error.unanswered:
                    self._claims.note(run, lambda cache: restore_phases(cache, marked.before, left.keys))
                raise
            checked = check_unprepared(left.claims, answer)
            cache = self._claims.note(run, lambda cache: restore_phases(cache, marked.before, checked.kept)).cache
        finally:
            self._turns.end(turn)
        if checked.error:
            raise checked.error
        return after_answer(cache, released, ask.driver, checked.released)


def _without(released: Mapping[PodUid | None, tuple[tuple[ClaimKey, ...], Released]], cache: ClaimCache) -> Changed:
    """Return the cache without the released claims of each pod."""
    changed = Changed(cache)
    for pod, (keys, of_pod) in released.items():
        changed = remove(changed.cache, pod, keys, of_pod)
    return changed
