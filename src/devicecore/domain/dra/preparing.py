"""Preparing the claims of a pod: which drivers to call, and what to save before and after (kubelet-dra.md 4).

Laws: a pod is added to a claim, and the claim is saved, before any driver is called for the claim. The drivers of a
prepared claim are not called again when another pod uses the claim. An answer replaces the driver's earlier answer, so
no device is listed twice.

The manager takes these steps: it calls `check_claim` for each entry of the pod, calls `enter` and saves. As long as
`advance` returns a question, the manager passes the question through `begin_to_ask`, calls the driver, and saves the
result of `store_answer`. After an error, the manager calls `give_up`.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

from attrs import evolve, frozen

from devicecore.domain.dra.answer_size import check_size, size_in_file
from devicecore.domain.dra.answers import PREPARE, PrepareResult, check_prepared
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase, skipped_calls
from devicecore.domain.dra.errors import (
    DraError,
    DriverNotRegisteredError,
    NotAllocatedError,
    NotOwnerError,
    NotReservedError,
    OldClaimError,
)
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, DriverName, ResourceClaim
from devicecore.domain.json_size import near_limit
from devicecore.domain.model import Pod, PodClaim, PodUid


@frozen
class AskDriver:
    """A question to one driver about one or more claims."""

    driver: DriverName
    claims: tuple[ClaimRef, ...]

    @property
    def keys(self) -> tuple[ClaimKey, ...]:
        """The keys of the claims that the question is about."""
        return tuple(claim.key for claim in self.claims)


@frozen
class Changed:
    """The result of a step: the new cache, the error if the step failed, and the next question, if any.

    If a step fails in part, the cache contains the part that succeeded. `warning` is a sentence for the log.
    """

    cache: ClaimCache
    error: DraError | None = None
    ask: AskDriver | None = None
    warning: str = ""


def check_claim(pod: Pod, entry: PodClaim, claim: ResourceClaim, registered: Container[DriverName]) -> None:
    """Check that a pod may use the claim of one of its entries, and that all drivers to be called are registered.

    Raises:
        NotOwnerError: the entry has a template, and the claim was not created for this pod.
        NotReservedError: the claim is not reserved for this pod.
        NotAllocatedError: the claim is not allocated.
        DriverNotRegisteredError: a driver of the allocation is not registered, and one of its devices needs the call.
    """
    if entry.claim is None and claim.owner != pod.uid:
        raise NotOwnerError(pod.namespace, claim.key.name, pod.name)
    if pod.uid not in claim.reserved_for:
        raise NotReservedError(pod.name, pod.uid, claim.key.name, claim.uid)
    if claim.allocation is None:
        raise NotAllocatedError(claim.key.name)
    skipped = skipped_calls(claim.allocation)
    for result in claim.allocation:
        if result.driver not in registered and PREPARE not in skipped.get(result.driver, ()):
            raise DriverNotRegisteredError(result.driver)


def enter(cache: ClaimCache, pod: PodUid, claims: Iterable[ResourceClaim]) -> Changed:
    """Add a pod to checked claims. A claim that is already in the cache keeps its drivers and devices.

    If a claim in the cache has a different UID, the result contains an `OldClaimError`; the pod is still added to the
    claims before that one, as in a kubelet.
    """
    changed: dict[ClaimKey, ClaimInfo] = {}
    for claim in claims:
        known = changed.get(claim.key) or cache.claims.get(claim.key)
        if known is None:
            drivers = dict.fromkeys(sorted({result.driver for result in claim.allocation or ()}))
            known = ClaimInfo(claim.key, claim.uid, drivers=drivers, skips=skipped_calls(claim.allocation or ()))
        elif known.uid != claim.uid:
            return Changed(cache.put(*changed.values()), OldClaimError(claim.key.name, known.uid))
        if pod not in known.pods:
            changed[claim.key] = evolve(known, pods=known.pods | {pod})
    return Changed(cache.put(*changed.values()))


def _next_to_prepare(cache: ClaimCache, keys: Sequence[ClaimKey]) -> AskDriver | None:
    """Return the next question to ask before these claims may be used, or None.

    Drivers are called in the order of their names.
    """
    claims = cache.present(keys)
    missing = {driver for claim in claims for driver in claim.drivers if claim.must_ask(driver)}
    if not missing:
        return None
    driver = min(missing)
    return AskDriver(driver, tuple(claim.ref for claim in claims if claim.must_ask(driver)))


def begin_to_ask(cache: ClaimCache, ask: AskDriver) -> Changed:
    """Count a call to a driver.

    The returned question omits claims for which the driver no longer has to be called.
    """
    claims = [claim for claim in cache.present(claim.key for claim in ask.claims) if claim.must_ask(ask.driver)]
    left = AskDriver(ask.driver, tuple(claim.ref for claim in claims)) if claims else None
    return Changed(cache.put(*(evolve(claim, calls=claim.calls + 1) for claim in claims)), ask=left)


def store_answer(cache: ClaimCache, ask: AskDriver, answer: Mapping[ClaimUid, PrepareResult]) -> Changed:
    """Keep the usable part of an answer (see `check_prepared`), up to the first claim whose part is too large."""
    checked = check_prepared(ask.claims, answer)
    driver, error, changed = ask.driver, checked.error, []
    before = total = cache.size_of(driver)
    for claim in cache.present(checked.devices):
        devices = checked.devices[claim.key] or None
        size, last = size_in_file(devices), size_in_file(claim.drivers.get(driver))
        if too_large := check_size(driver, claim.key.name, size, last, total):
            error = too_large
            break
        total += size - last
        drivers = {**claim.drivers, driver: devices}
        changed.append(evolve(claim, drivers=drivers, answered=claim.answered | {driver}))
    warning = near_limit(f"answers from DRA driver {driver}", before, total, "dra_manager_state")
    return Changed(cache.put(*changed), error, warning=warning)


def advance(cache: ClaimCache, keys: Sequence[ClaimKey]) -> Changed:
    """Continue an attempt: return the next question, or mark the claims as prepared if all drivers have answered."""
    ask = _next_to_prepare(cache, keys)
    if ask:
        return Changed(cache, ask=ask)
    unfinished = (claim for claim in cache.present(keys) if claim.phase is not ClaimPhase.PREPARED)
    return Changed(cache.put(*(evolve(claim, phase=ClaimPhase.PREPARED, answered=frozenset()) for claim in unfinished)))


def give_up(cache: ClaimCache, keys: Sequence[ClaimKey]) -> Changed:
    """End an attempt that failed. The next preparation calls all drivers again, as a kubelet does."""
    unfinished = (claim for claim in cache.present(keys) if claim.answered)
    return Changed(cache.put(*(evolve(claim, answered=frozenset()) for claim in unfinished)))
