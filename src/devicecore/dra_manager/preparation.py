"""Prepares the claims of a pod.

Law: before a driver is called, the store records that the pod uses the claims; before `prepare` returns, the store
contains the devices of the claims. No lock is held while a driver or the API server is called. A pod waits for another
pod only while a driver is called for a claim that both use.
"""

import logging
from collections.abc import Hashable, Sequence
from contextlib import suppress

from attrs import define, field, frozen

from devicecore.domain.dra.answers import PREPARE, answer_warnings
from devicecore.domain.dra.errors import (
    ClaimFailedError,
    ClaimSourceError,
    DraStoppedError,
    FetchClaimError,
    TurnTimeoutError,
)
from devicecore.domain.dra.lookup import claim_key, claim_name, pod_claims
from devicecore.domain.dra.model import ClaimKey, DriverName, ResourceClaim
from devicecore.domain.dra.preparing import AskDriver, advance, begin_to_ask, check_claim, enter, give_up, store_answer
from devicecore.domain.model import Pod
from devicecore.domain.text import foreign_text
from devicecore.dra_manager.driver_list import DriverList
from devicecore.dra_manager.saved_claims import SavedClaims
from devicecore.ports.claims import ClaimSource
from devicecore.ports.drivers import DriverTransport
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run
from devicecore.runtime.turns import Turns

TURN_PATIENCE = 120.0
"""How many seconds `prepare` or `unprepare` waits for earlier calls for the same pod or claims.

A driver may take 45 s to answer each call.
"""

MAX_LOGGED = 10
"""The maximum number of warnings that are logged about one answer, which may contain 100,000 names."""

_log = logging.getLogger(__name__)


@frozen
class PreparedPod:
    """A pod's prepared claims, and a warning for everything that looks wrong in the drivers' answers."""

    claims: tuple[ClaimKey, ...] = ()
    warnings: tuple[str, ...] = ()


@define(eq=False, repr=False)
class Preparation:
    """Prepares claims, and has no state of its own."""

    _saved: SavedClaims
    _turns: Turns[Hashable]
    _drivers: DriverList
    _transport: DriverTransport
    _source: ClaimSource
    _fail_on_warnings: bool = field(kw_only=True)

    def prepare(self, pod: Pod) -> PreparedPod:
        """Prepare all claims of a pod, each once. The caller must hold the pod's turn.

        Raises DeviceCoreError with the kubelet's message, but without the prefix of that message.
        """
        run = self._saved.run()
        claims = self._checked(pod)
        entered = self._saved.save(run, "cache", lambda cache: enter(cache, pod.uid, claims.values()))
        if entered.error:
            raise entered.error
        warnings: list[str] = []
        keys = tuple(claims)
        try:
            while ask := self._saved.note(run, lambda cache: advance(cache, keys)).ask:
                warnings += self._ask(run, ask, claims)
        except BaseException:
            with suppress(DraStoppedError):
                self._saved.note(run, lambda cache: give_up(cache, keys))
            raise
        return PreparedPod(keys, tuple(warnings))

    def _checked(self, pod: Pod) -> dict[ClaimKey, ResourceClaim]:
        """Read a pod's current claims from their source and check them. Return the claims in the pod's order."""
        claims: dict[ClaimKey, ResourceClaim] = {}
        for entry in pod_claims(pod):
            name = claim_name(pod, entry)
            if name is None:
                continue
            key = claim_key(pod, name)
            if key not in claims:
                claims[key] = self._fetch(key)
            check_claim(pod, entry, claims[key], self._drivers.registry)
        return claims

    def _fetch(self, key: ClaimKey) -> ResourceClaim:
        try:
            return self._source.get(key)
        except ClaimSourceError as error:
            raise FetchClaimError(key.name, error.cause) from error

    def _ask(self, run: Run, ask: AskDriver, claims: dict[ClaimKey, ResourceClaim]) -> Sequence[str]:
        """Ask a driver to prepare the claims that have not been prepared for another pod in the meantime.

        Return warnings about the driver's answer.
        """
        turn = self._turns.begin(ask.keys, OpenCall(), TURN_PATIENCE, "prepare")
        if turn is None:
            raise TurnTimeoutError(TURN_PATIENCE)
        try:
            left = self._saved.note(run, lambda cache: begin_to_ask(cache, ask)).ask
            if left is None:
                return ()
            instance = self._drivers.choose(left.driver)
            answer = self._transport.prepare(instance, left.claims)
            warnings: list[str] = []
            # A refused answer, such as one with 99,000 names, is not examined any further.
            is_refused = store_answer(self._saved.cache, left, answer).error is not None
            for claim in () if is_refused else left.claims:
                allocation = claims[claim.key].allocation or ()
                result = answer.get(claim.uid)
                of_claim = answer_warnings(left.driver, allocation, result.devices) if result else ()
                if of_claim and self._fail_on_warnings:
                    raise ClaimFailedError(PREPARE, claim.key.name, "; ".join(of_claim))
                warnings += of_claim
            stored = self._saved.save(run, "state", lambda cache: store_answer(cache, left, answer))
        finally:
            self._turns.end(turn)
        _log_warnings(left.driver, [stored.warning] if stored.warning else [])
        _log_warnings(left.driver, warnings)
        if stored.error:
            raise stored.error
        return warnings


def _log_warnings(driver: DriverName, warnings: Sequence[str]) -> None:
    for warning in warnings[:MAX_LOGGED]:
        _log.warning("%s", foreign_text(warning))
    if len(warnings) > MAX_LOGGED:
        _log.warning("%d more warnings about answers from %s", len(warnings) - MAX_LOGGED, foreign_text(driver))
