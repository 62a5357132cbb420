"""Release the claims of a pod that has ended.

Law: the store has the claim, with the pod, until every driver of the claim has released it. If another pod enters the
claim meanwhile, the claim stays, and its drivers are asked to prepare it again.
"""

import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from devicecore.domain.dra.answers import check_unprepared
from devicecore.domain.dra.errors import DraStoppedError, DriverCallError
from devicecore.domain.dra.model import ClaimKey, DriverName
from devicecore.domain.dra.preparing import AskDriver
from devicecore.domain.dra.releasing import (
    Released,
    after_answer,
    leave,
    mark_uncertain,
    next_to_release,
    remove,
    restore_phases,
)
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import PodUid
from devicecore.domain.text import foreign_text
from devicecore.dra_manager.driver_list import DriverList
from devicecore.dra_manager.run import DraRun
from devicecore.dra_manager.saved_claims import SavedClaims
from devicecore.dra_manager.turns import ClaimTurns
from devicecore.ports.drivers import DriverTransport

_log = logging.getLogger(__name__)

Group = frozenset[DriverName]
"""The drivers that a pod's claims need. Pods that need the same ones are released one after another."""


class Release:
    """Releases claims. It has no state of its own."""

    def __init__(self, claims: SavedClaims, turns: ClaimTurns, drivers: DriverList, transport: DriverTransport) -> None:
        self._claims = claims
        self._turns = turns
        self._drivers = drivers
        self._transport = transport

    def release(self, pod: PodUid | None, keys: Sequence[ClaimKey]) -> None:
        """Release these claims of a pod, as far as it uses them. The caller has the pod's turn.

        Raises:
            DeviceCoreError: a claim is not released, in the kubelet's sentence without its prefix.
        """
        run = self._claims.run()
        last = self._claims.save(run, "state", lambda cache: leave(cache, pod, keys)).last
        released: Released = {}
        while ask := next_to_release(self._claims.cache, pod, last, released):
            released = self._ask(run, pod, ask, released)
        self._claims.save(run, "state", lambda cache: remove(cache, pod, last, released))

    def release_all(self, pods: Collection[PodUid | None]) -> dict[PodUid | None, DeviceCoreError]:
        """Release the claims of these pods; the errors by pod. None stands for claims that no pod uses.

        Pods that need different drivers are released at the same time, so a driver that hangs delays only pods that
        need it. Pods that are being prepared or released now are left out.
        """
        groups: dict[Group, list[PodUid | None]] = {}
        for pod in pods:
            drivers = {driver for claim in self._claims.cache.present(self._keys(pod)) for driver in claim.drivers}
            groups.setdefault(frozenset(drivers), []).append(pod)
        if not groups:
            return {}
        with ThreadPoolExecutor(len(groups), "release") as pool:
            results = [pool.submit(self._release_in_turn, group) for group in groups.values()]
        return {pod: error for result in results for pod, error in result.result().items()}

    def _keys(self, pod: PodUid | None) -> tuple[ClaimKey, ...]:
        cache = self._claims.cache
        return cache.unused() if pod is None else cache.of_pod(pod)

    def _release_in_turn(self, pods: Sequence[PodUid | None]) -> dict[PodUid | None, DeviceCoreError]:
        failed: dict[PodUid | None, DeviceCoreError] = {}
        for pod in pods:
            with self._turns.now([pod]) as is_free:
                try:
                    if is_free:
                        self.release(pod, self._keys(pod))
                except DraStoppedError as error:
                    return {**failed, pod: error}
                except DeviceCoreError as error:
                    failed[pod] = error
                    _log.error("releasing the claims of pod %s failed, will retry: %s", pod, foreign_text(str(error)))
        return failed

    def _ask(self, run: DraRun, pod: PodUid | None, ask: AskDriver, released: Released) -> Released:
        """Ask a driver to release the claims that no other pod has entered meanwhile; the releases after that."""
        with self._turns.of(ask.keys, "unprepare"):
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
        if checked.error:
            raise checked.error
        return after_answer(cache, released, ask.driver, checked.released)
