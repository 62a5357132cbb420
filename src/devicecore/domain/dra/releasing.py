"""Releasing the claims of a pod (kubelet-dra.md 6).

Laws: only a pod that uses a claim leaves it. Drivers are asked to release a claim only when no other pod uses it, and
the claim is forgotten only after all of them have, if still no other pod uses it.

The order of effects is the manager's: `leave` and save; then, as long as `next_to_release` has a question, note
`doubt`, ask it, and note what `settle` makes of the answer; last `remove` and save.
"""

from collections.abc import Collection, Mapping, Sequence

from attrs import evolve, frozen

from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.model import ClaimKey, DriverName
from devicecore.domain.dra.preparing import AskDriver
from devicecore.domain.model import PodUid


@frozen
class Leaving:
    """The cache without the pod in the claims that others use, and the claims that are left to this pod."""

    cache: ClaimCache
    last: tuple[ClaimKey, ...] = ()


Released = Mapping[ClaimKey, frozenset[DriverName]]
"""Which drivers have released which claims in this attempt."""


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


def doubt(cache: ClaimCache, keys: Collection[ClaimKey]) -> ClaimCache:
    """A driver is about to be asked to release these claims: from now on nobody can rely on them."""
    prepared = (claim for claim in cache.present(keys) if claim.phase is ClaimPhase.PREPARED)
    return cache.put(*(evolve(claim, phase=ClaimPhase.UNCERTAIN) for claim in prepared))


def settle(cache: ClaimCache, before: ClaimCache, keys: Collection[ClaimKey]) -> ClaimCache:
    """A driver has answered that it did not release these claims: they are what they were `before`."""
    return cache.put(
        *(
            evolve(claim, phase=before.claims[claim.key].phase)
            for claim in cache.present(keys)
            if claim.key in before.claims
        )
    )


def remove(cache: ClaimCache, pod: PodUid | None, keys: Collection[ClaimKey], released: Released) -> ClaimCache:
    """Forget the claims that all drivers have released. If another pod has entered meanwhile, only this pod leaves."""
    claims = cache.present(keys)
    gone = [claim.key for claim in claims if claim.is_left_to(pod) and not _left(claim, released)]
    others = [claim for claim in claims if not claim.is_left_to(pod)]
    return cache.put(*(_without(claim, pod) for claim in others)).without(gone)


def _left(claim: ClaimInfo, released: Released) -> frozenset[DriverName]:
    return frozenset(claim.drivers) - released.get(claim.key, frozenset())


def _without(claim: ClaimInfo, pod: PodUid | None) -> ClaimInfo:
    return evolve(claim, pods=claim.pods - {pod})
