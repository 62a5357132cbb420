"""Releasing the claims of a pod (kubelet-dra.md 6).

Laws: only a pod that uses a claim leaves it. Drivers are asked to release a claim only when no other pod uses it, and
the claim is forgotten only after all of them have, if still no other pod uses it.

The order of effects is the manager's: `leave` and save; then, as long as `next_to_release` has a question, note what is
in `doubt`, ask, and note what `settle` makes of the answer; last `remove` and save.
"""

from collections.abc import Collection, Mapping, Sequence

from attrs import evolve, frozen

from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.model import ClaimKey, DriverName
from devicecore.domain.dra.preparing import AskDriver, Changed
from devicecore.domain.model import PodUid


@frozen
class Leaving:
    """The cache without the pod in the claims that others use, and the claims that are left to this pod."""

    cache: ClaimCache
    last: tuple[ClaimKey, ...] = ()


@frozen
class Releases:
    """Which drivers have released a claim in this attempt, and the `calls` of the claim when they did.

    If the claim has been prepared again since, they have to release it again.
    """

    calls: int
    drivers: frozenset[DriverName] = frozenset()


Released = Mapping[ClaimKey, Releases]
"""What was released in an attempt."""


def leave(cache: ClaimCache, pod: PodUid | None, keys: Sequence[ClaimKey]) -> Leaving:
    """Take a pod out of the claims that it uses with others. A claim that it does not use stays as it is.

    Without a pod, claims that no pod uses are left.
    """
    claims = [claim for claim in cache.present(keys) if pod in claim.pods or not claim.pods]
    shared = [claim for claim in claims if not claim.is_left_to(pod)]
    last = tuple(claim.key for claim in claims if claim.is_left_to(pod))
    return Leaving(cache.put(*(_without(claim, pod) for claim in shared)), last)


def next_to_release(
    cache: ClaimCache, pod: PodUid | None, keys: Sequence[ClaimKey], released: Released
) -> AskDriver | None:
    """What to ask next, drivers in the order of their names; None if nothing is left."""
    claims = [claim for claim in cache.present(keys) if claim.is_left_to(pod)]
    missing = {driver for claim in claims for driver in _left(claim, released)}
    if not missing:
        return None
    driver = min(missing)
    return AskDriver(driver, tuple(claim.ref for claim in claims if driver in _left(claim, released)))


@frozen
class Doubt:
    """The cache before and after claims came into doubt, and what to ask about them; None if nothing is left to ask."""

    before: ClaimCache
    cache: ClaimCache
    ask: AskDriver | None = None


def doubt(cache: ClaimCache, pod: PodUid | None, ask: AskDriver) -> Doubt:
    """A driver is about to be asked to release claims: from now on no other pod can rely on them.

    Claims that another pod has entered meanwhile are not asked for.
    """
    claims = [claim for claim in cache.present(claim.key for claim in ask.claims) if claim.is_left_to(pod)]
    prepared = (claim for claim in claims if claim.phase is ClaimPhase.PREPARED)
    after = cache.put(*(evolve(claim, phase=ClaimPhase.UNCERTAIN) for claim in prepared))
    return Doubt(cache, after, evolve(ask, claims=tuple(claim.ref for claim in claims)) if claims else None)


def settle(cache: ClaimCache, before: ClaimCache, keys: Collection[ClaimKey]) -> Changed:
    """A driver has answered that it did not release these claims: they are what they were `before`."""
    claims = cache.present(keys)
    return Changed(cache.put(*(evolve(claim, phase=before.claims[claim.key].phase) for claim in claims)))


def remove(cache: ClaimCache, pod: PodUid | None, keys: Collection[ClaimKey], released: Released) -> Changed:
    """Forget the claims that all drivers have released. If another pod has entered meanwhile, only this pod leaves."""
    claims = cache.present(keys)
    gone = [claim.key for claim in claims if claim.is_left_to(pod) and not _left(claim, released)]
    others = [claim for claim in claims if not claim.is_left_to(pod)]
    return Changed(cache.put(*(_without(claim, pod) for claim in others)).without(gone))


def after_answer(cache: ClaimCache, released: Released, driver: DriverName, keys: Collection[ClaimKey]) -> Released:
    """What is released after `driver` has released these claims."""
    changed = {
        claim.key: Releases(claim.calls, frozenset(claim.drivers) - _left(claim, released) | {driver})
        for claim in cache.present(keys)
    }
    return {**released, **changed}


def _left(claim: ClaimInfo, released: Released) -> frozenset[DriverName]:
    """The drivers that have still to release a claim."""
    known = released.get(claim.key)
    drivers = frozenset(claim.drivers)
    return drivers - known.drivers if known and known.calls == claim.calls else drivers


def _without(claim: ClaimInfo, pod: PodUid | None) -> ClaimInfo:
    return evolve(claim, pods=claim.pods - {pod})
