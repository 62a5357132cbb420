"""The reasons why a search found nothing.

Law: each request has one verdict for each device in the node's pools. If a device would not help even while nothing
else is taken, the verdict names a reason for that.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress

from devicecore.domain.allocation.errors import QuestionGivenUpError, UndecidedError
from devicecore.domain.allocation.model import DeviceRequest
from devicecore.domain.allocation.reasons import ALWAYS, DeviceVerdict, InUse, PoolUnusable, Reason, Undecided
from devicecore.domain.allocation.search import Candidate, Search
from devicecore.domain.text import counted


def verdicts(search: Search, *, alone: bool = False) -> tuple[DeviceVerdict, ...]:
    """Return a verdict for each request and each device in the node's pools: why the device does not help, or None.

    Args:
        search: a search that has ended. The devices that the search has taken are given back.
        alone: whether to consider only reasons that hold while nothing else is taken.

    Raises QuestionGivenUpError if there are more reasons than the question allows.
    """
    search.taken.clear()
    found = []
    for number, claim in enumerate(search.claims):
        for request in claim.alternatives:
            for pool in search.pools:
                for one, device in pool.devices:
                    search.charge(1)
                    reason = (
                        PoolUnusable(str(pool), pool.problem)
                        if pool.problem
                        else _reason(search, number, request, Candidate(device, pool, one), alone=alone)
                    )
                    found.append(DeviceVerdict(claim.name, request.result_name, device.key, reason))
    return tuple(found)


def _reason(search: Search, claim: int, request: DeviceRequest, candidate: Candidate, *, alone: bool) -> Reason | None:
    found = search.reasons.get((request, candidate.device))
    reason = found
    if not isinstance(found, ALWAYS):
        try:
            reason = search.reason_against(claim, request, candidate) or (None if alone else found)
        except QuestionGivenUpError:
            raise
        except UndecidedError as error:
            return Undecided(str(error))
    if isinstance(reason, InUse):  # irrelevant if the request would not accept the device anyway
        with suppress(UndecidedError):  # a scheduler does not evaluate expressions for devices in use
            return search.unselected(claim, request, candidate) or reason
    return reason


def problem_of(search: Search, found: Sequence[DeviceVerdict]) -> str:
    """Return a sentence about the first request that too few devices fit, or "" if enough devices fit each request."""
    by_request: dict[tuple[str, str], list[DeviceVerdict]] = defaultdict(list)
    for verdict in found:
        by_request[verdict.claim, verdict.request].append(verdict)
    for claim in search.claims:
        for alternatives in claim.requests:
            lacks = [_lack(search, by_request[claim.name, one.result_name], one) for one in alternatives]
            if all(lacks):
                return f"claim {claim.name}, {'; or '.join(lacks[:_MAX_ALTERNATIVES])}"
    return ""


def _lack(search: Search, about: Sequence[DeviceVerdict], request: DeviceRequest) -> str:
    fit = sum(one.reason is None for one in about)
    wanted = search.wanted(request)
    if wanted and fit >= wanted:
        return ""
    kinds = Counter(one.reason.summary for one in about if one.reason is not None)
    shown = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
    on_node = f"of {counted(len(about), 'device')} on the node, {shown}" if shown else "there are none on the node"
    if about and not shown:
        on_node = f"there {'is' if len(about) == 1 else 'are'} only {len(about):,} on the node"
    pools = [f"pool {pool}: {pool.problem}" for pool in search.pools if pool.problem][:_MAX_POOLS]
    if pools and not about:
        on_node = "nothing is known about the devices on the node"
    return "; ".join((f"request {request.result_name}: {fit:,} of {max(wanted, 1):,} devices fit", on_node, *pools))


_MAX_POOLS = 3
_MAX_ALTERNATIVES = 3
