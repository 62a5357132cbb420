"""Preparing the claims of a pod: what to ask of which driver, and what to save before and after (kubelet-dra.md 4).

Laws: a pod is in a claim, and that is saved, before any driver is asked for the claim. A driver that has answered for a
claim is not asked again by another pod. An answer replaces what the driver answered before, so that a device is there
once.

The order of effects is the manager's: `check_claim` for each entry of the pod, `enter` and save; then, as long as
`advance` has a question, ask what `begin_to_ask` leaves of it, and save what `store_answer` makes of the answer; after
an error, `give_up`.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

from attrs import evolve, frozen

from devicecore.domain.dra.answers import PrepareResult, check_prepared
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.errors import (
    DraError,
    DriverNotRegisteredError,
    NotAllocatedError,
    NotOwnerError,
    NotReservedError,
    OldClaimError,
)
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, DraPod, DriverName, PodClaim, ResourceClaim
from devicecore.domain.model import PodUid


@frozen
class AskDriver:
    """One question to one driver, about some claims."""

    driver: DriverName
    claims: tuple[ClaimRef, ...]

    @property
    def keys(self) -> frozenset[ClaimKey]:
        """The claims that it is about."""
        return frozenset(claim.key for claim in self.claims)


@frozen
class Changed:
    """The cache after a step; what went wrong in it, or what to ask next. What went well is in the cache."""

    cache: ClaimCache
    error: DraError | None = None
    ask: AskDriver | None = None


def check_claim(pod: DraPod, entry: PodClaim, claim: ResourceClaim, registered: Container[DriverName]) -> None:
    """Check that a pod may use a claim that an entry of it means, and that all drivers are there.

    Raises:
        NotOwnerError: the entry has a template, and the claim was not made for this pod.
        NotReservedError: the claim is not reserved for this pod.
        NotAllocatedError: the claim is not allocated.
        DriverNotRegisteredError: a driver of the allocation is not registered.
    """
    if entry.claim is None and claim.owner != pod.uid:
        raise NotOwnerError(pod.namespace, claim.key.name, pod.name)
    if pod.uid not in claim.reserved_for:
        raise NotReservedError(pod.name, pod.uid, claim.key.name, claim.uid)
    if claim.allocation is None:
        raise NotAllocatedError(claim.key.name)
    for result in claim.allocation:
        if result.driver not in registered:
            raise DriverNotRegisteredError(result.driver)


def enter(cache: ClaimCache, pod: PodUid, claims: Iterable[ResourceClaim]) -> Changed:
    """Enter a pod into checked claims. A claim that is here keeps its drivers and devices.

    The error is an `OldClaimError`; the claims before it are entered nevertheless, as in a kubelet.
    """
    changed: dict[ClaimKey, ClaimInfo] = {}
    for claim in claims:
        known = changed.get(claim.key) or cache.claims.get(claim.key)
        if known is None:
            drivers = dict.fromkeys(sorted({result.driver for result in claim.allocation or ()}))
            known = ClaimInfo(claim.key, claim.uid, frozenset(), drivers)
        elif known.uid != claim.uid:
            return Changed(cache.put(*changed.values()), OldClaimError(claim.key.name, known.uid))
        if pod not in known.pods:
            changed[claim.key] = evolve(known, pods=known.pods | {pod})
    return Changed(cache.put(*changed.values()))


def _next_to_prepare(cache: ClaimCache, keys: Sequence[ClaimKey]) -> AskDriver | None:
    """What to ask next so that these claims may be used, drivers in the order of their names; None if nothing."""
    claims = cache.present(keys)
    missing = {driver for claim in claims for driver in claim.drivers if claim.must_ask(driver)}
    if not missing:
        return None
    driver = min(missing)
    return AskDriver(driver, tuple(claim.ref for claim in claims if claim.must_ask(driver)))


def begin_to_ask(cache: ClaimCache, ask: AskDriver) -> Changed:
    """A driver is about to be asked: what is left of the question, after other pods may have asked it."""
    claims = [claim for claim in cache.present(claim.key for claim in ask.claims) if claim.must_ask(ask.driver)]
    left = AskDriver(ask.driver, tuple(claim.ref for claim in claims)) if claims else None
    return Changed(cache.put(*(evolve(claim, calls=claim.calls + 1) for claim in claims)), ask=left)


def store_answer(cache: ClaimCache, ask: AskDriver, answer: Mapping[ClaimUid, PrepareResult]) -> Changed:
    """Keep the devices of an answer, as far as it is good."""
    checked = check_prepared(ask.claims, answer)
    changed = [
        evolve(
            claim,
            drivers={**claim.drivers, ask.driver: checked.devices[claim.key] or None},
            answered=claim.answered | {ask.driver},
        )
        for claim in cache.present(checked.devices)
    ]
    return Changed(cache.put(*changed), checked.error)


def advance(cache: ClaimCache, keys: Sequence[ClaimKey]) -> Changed:
    """Go on with an attempt: what to ask next, or, if all drivers have answered, the claims as prepared."""
    ask = _next_to_prepare(cache, keys)
    if ask:
        return Changed(cache, ask=ask)
    unfinished = (claim for claim in cache.present(keys) if claim.phase is not ClaimPhase.PREPARED)
    return Changed(cache.put(*(evolve(claim, phase=ClaimPhase.PREPARED, answered=frozenset()) for claim in unfinished)))


def give_up(cache: ClaimCache, keys: Sequence[ClaimKey]) -> Changed:
    """An attempt has failed: the next one asks all drivers again, as a kubelet does."""
    unfinished = (claim for claim in cache.present(keys) if claim.answered)
    return Changed(cache.put(*(evolve(claim, answered=frozenset()) for claim in unfinished)))
