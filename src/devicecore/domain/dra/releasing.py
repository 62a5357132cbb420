"""Releasing the claims of a pod (kubelet-dra.md 6).

Laws: only a pod that uses a claim can leave it. Drivers are called to release a claim only when no other pod uses the
claim. A claim is forgotten only after all its drivers have released it, and only if no other pod has started to use it.

The manager takes these steps: it calls `leave` and saves. As long as `next_to_release` returns a question, the manager
calls `mark_uncertain`, calls the driver, and then calls `restore_phases` for the claims that the driver did not
release. At the end, the manager calls `remove` and saves.
"""

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from attrs import evolve, frozen

from devicecore.domain.dra.answers import UNPREPARE
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.model import ClaimKey, DriverName
from devicecore.domain.dra.preparing import AskDriver, Changed
from devicecore.domain.model import PodUid


@frozen
class Leaving:
    """The result of `leave`: the cache without the pod in shared claims, and the claims that only this pod uses."""

    cache: ClaimCache
    last: tuple[ClaimKey, ...] = ()


@frozen
class Releases:
    """The drivers that have released a claim in this attempt, and the value of the claim's `calls` at that time.

    If the claim has been prepared again since then, these drivers have to release it again.
    """

    calls: int
    drivers: frozenset[DriverName] = frozenset()


Released = Mapping[ClaimKey, Releases]
"""What was released in an attempt."""


def leave(cache: ClaimCache, pod: PodUid | None, keys: Sequence[ClaimKey]) -> Leaving:
    """Remove a pod from the claims that it shares with other pods. A claim that the pod does not use is not changed.

    If `pod` is None, the result names the claims that no pod uses.
    """
    claims = [claim for claim in cache.present(keys) if pod in claim.pods or not claim.pods]
    shared = [claim for claim in claims if not claim.is_left_to(pod)]
    last = tuple(claim.key for claim in claims if claim.is_left_to(pod))
    return Leaving(cache.put(*(_without(claim, pod) for claim in shared)), last)


def leave_shared(cache: ClaimCache, pods: AbstractSet[PodUid]) -> Changed:
    """Remove `pods` from the claims that they share with other pods or with each other.

    In a claim that only these pods use, the last of these pods by UID stays, because releasing the claim requires
    calling drivers.
    """
    changed = []
    for claim in cache.claims.values():
        if not claim.pods.isdisjoint(pods) and (len(claim.pods) > 1):
            staying = claim.pods - pods or frozenset({max(claim.pods)})
            changed.append(evolve(claim, pods=staying))
    return Changed(cache.put(*changed))


def next_to_release(
    cache: ClaimCache, pod: PodUid | None, keys: Sequence[ClaimKey], released: Released
) -> AskDriver | None:
    """Return the next question, or None if no question is left. Drivers are called in the order of their names."""
    claims = [claim for claim in cache.present(keys) if claim.is_left_to(pod)]
    missing = {driver for claim in claims for driver in _left(claim, released)}
    if not missing:
        return None
    driver = min(missing)
    return AskDriver(driver, tuple(claim.ref for claim in claims if driver in _left(claim, released)))


@frozen
class Uncertain:
    """The cache before and after claims became uncertain, and the question, or None if there is nothing left to ask."""

    before: ClaimCache
    cache: ClaimCache
    ask: AskDriver | None = None


def mark_uncertain(cache: ClaimCache, pod: PodUid | None, ask: AskDriver) -> Uncertain:
    """Mark claims as uncertain before a driver is called to release them: no other pod may rely on them.

    The returned question omits claims that another pod has started to use in the meantime.
    """
    claims = [claim for claim in cache.present(claim.key for claim in ask.claims) if claim.is_left_to(pod)]
    prepared = (claim for claim in claims if claim.phase is ClaimPhase.PREPARED)
    after = cache.put(*(evolve(claim, phase=ClaimPhase.UNCERTAIN) for claim in prepared))
    return Uncertain(cache, after, evolve(ask, claims=tuple(claim.ref for claim in claims)) if claims else None)


def restore_phases(cache: ClaimCache, before: ClaimCache, keys: Collection[ClaimKey]) -> Changed:
    """Restore the phases that these claims had `before`, because a driver did not release the claims."""
    claims = cache.present(keys)
    return Changed(cache.put(*(evolve(claim, phase=before.claims[claim.key].phase) for claim in claims)))


def remove(cache: ClaimCache, pod: PodUid | None, keys: Collection[ClaimKey], released: Released) -> Changed:
    """Forget the claims that all drivers have released.

    If another pod now uses one of the claims, only this pod is removed from that claim.
    """
    claims = cache.present(keys)
    gone = [claim.key for claim in claims if claim.is_left_to(pod) and not _left(claim, released)]
    others = [claim for claim in claims if not claim.is_left_to(pod)]
    return Changed(cache.put(*(_without(claim, pod) for claim in others)).without(gone))


def after_answer(cache: ClaimCache, released: Released, driver: DriverName, keys: Collection[ClaimKey]) -> Released:
    """Return the releases of an attempt, with `driver` among the drivers that have released these claims."""
    changed = {
        claim.key: Releases(claim.calls, frozenset(claim.drivers) - _left(claim, released) | {driver})
        for claim in cache.present(keys)
    }
    return {**released, **changed}


def _left(claim: ClaimInfo, released: Released) -> frozenset[DriverName]:
    """Return the drivers that have not released a claim yet."""
    known = released.get(claim.key)
    drivers = frozenset(driver for driver in claim.drivers if not claim.skips_call(driver, UNPREPARE))
    return drivers - known.drivers if known and known.calls == claim.calls else drivers


def _without(claim: ClaimInfo, pod: PodUid | None) -> ClaimInfo:
    return evolve(claim, pods=claim.pods - {pod})
