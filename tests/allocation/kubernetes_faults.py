"""The faults of Kubernetes' allocator, so that an answer of it that differs from ours is recognised by its cause.

Law: with all faults, `FaultySearch` finds the devices that Kubernetes 1.36 finds. The faults that an answer needs are
its cause.
"""

from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from itertools import combinations

from devicecore.domain.allocation.errors import UndecidedError
from devicecore.domain.allocation.model import (
    Attribute,
    Constraint,
    DeviceKey,
    DeviceRequest,
    PoolDevice,
    Rule,
)
from devicecore.domain.allocation.pools import Pool
from devicecore.domain.allocation.reasons import CapacityExceeded, ConstraintBroken, Reason
from devicecore.domain.allocation.search import Candidate, Search, Situation, Taken


class KubernetesFault(Enum):
    """A fault of Kubernetes 1.36.2. The value is the name of the cause in docs/claims.md."""

    REJECT = "k/k#140436:reject"
    CAPACITY_REJECT = "k/k#140436:capacity-reject"
    UNDO_SHARED = "k/k#140436:undo-shared"
    POOL_NAMES = "k/k#140435"
    DISTINCT = "k/k#140438"
    SHARE_IDS = "k/k#140433"
    ADMIN_COUNTERS = "k/k#140729"
    ADMIN_BLOCKS = "admin-blocks-normal"
    ADMIN_CONSUMES = "admin-consumes-capacity"
    ALL_ERROR = "all-constraint-error"
    ALL_SKIPS = "all-skips-full-shared"


ALL_FAULTS = frozenset(KubernetesFault)

_UNLIMITED = 2**100


class FaultySearch(Search):
    """A search that has some of the faults."""

    def __init__(self, situation: Situation, faults: frozenset[KubernetesFault] = ALL_FAULTS) -> None:
        super().__init__(situation)
        self._faults = faults
        self._asked = KubernetesFault.ADMIN_BLOCKS  # what `_counts` is asked for
        self._charged: set[Candidate] = set()
        self._leaked: list[Candidate] = []
        self._in_use_for_ever: set[DeviceKey] = set()
        self._first_of_name: dict[str, Pool] = {}
        self._values: dict[tuple[int, int], dict[str, Attribute]] = defaultdict(dict)

    def reason_against(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        """Return the first reason; the counters of a device that is rejected late stay consumed."""
        self._charged.clear()
        reason = super().reason_against(claim, request, candidate)
        if reason is not None and candidate in self._charged:
            late = KubernetesFault.CAPACITY_REJECT if isinstance(reason, CapacityExceeded) else KubernetesFault.REJECT
            if late in self._faults:
                self._leaked.append(candidate)
        return reason

    def _take(self, claim: int, request: DeviceRequest, candidate: Candidate) -> bool:
        taken = super()._take(claim, request, candidate)
        if taken and self._is_shared(candidate.device) and not candidate.device.capacity:
            self._in_use_for_ever.add(candidate.key)
        if taken:
            for index, constraint in self._distinct(claim, request):
                value = candidate.device.attribute(constraint.attribute)
                assert value is not None
                self._values[claim, index][request.names[0]] = value
        return taken

    def _give_back(self) -> Taken:
        taken = super()._give_back()
        self._asked = KubernetesFault.ADMIN_COUNTERS
        device = taken.candidate.device
        if (
            KubernetesFault.UNDO_SHARED in self._faults
            and device.counters
            and self._is_shared(device)
            and self._counts(taken.request)
            and not any(one.key == taken.key for one in self.taken)
            and not any(one.consumed for one in self._held.get(taken.key, ()))
        ):
            self._leaked.append(taken.candidate)
        for index, _ in self._distinct(taken.claim, taken.request):
            self._values[taken.claim, index].pop(taken.request.names[0], None)
        return taken

    def _exclude(self, problem: str) -> None:
        if KubernetesFault.ALL_ERROR in self._faults:
            raise UndecidedError(problem)
        super()._exclude(problem)

    def _is_meant(self, request: DeviceRequest, candidate: Candidate) -> bool:
        asks = request.capacity or KubernetesFault.ALL_SKIPS in self._faults
        return not asks or self._over_capacity(request, candidate) is None

    # --- admin access -------------------------------------------------------------------------------------------------

    def _counts(self, request: DeviceRequest) -> bool:
        return not request.admin_access or self._asked in self._faults

    def _in_use(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        self._asked = KubernetesFault.ADMIN_BLOCKS
        return super()._in_use(claim, request, candidate)

    def _over_capacity(self, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        self._asked = KubernetesFault.ADMIN_CONSUMES
        return super()._over_capacity(request, candidate)

    # --- counters -----------------------------------------------------------------------------------------------------

    def _counters_exhausted(self, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        self._asked = KubernetesFault.ADMIN_COUNTERS
        reason = super()._counters_exhausted(request, candidate)
        if reason is None and candidate.device.counters and self._counts(request):
            self._charged |= set() if self._counters_are_paid(candidate) else {candidate}
        return reason

    def _counters_are_paid(self, candidate: Candidate) -> bool:
        if candidate.key in self._in_use_for_ever:
            return True
        held = self._held.get(candidate.key, ())
        if KubernetesFault.SHARE_IDS in self._faults and held and not any(one.consumed for one in held):
            return any(one.key == candidate.key for one in self.taken)
        return super()._counters_are_paid(candidate)

    def _available(self, pool: Pool) -> dict[tuple[str, str], int]:
        if KubernetesFault.POOL_NAMES in self._faults:
            known = super()._available(self._first_of_name.setdefault(pool.key[1], pool))
        else:
            known = super()._available(pool)
        free: dict[tuple[str, str], int] = defaultdict(lambda: _UNLIMITED, known)
        for leaked in self._leaked:
            if self._is_same_pool(leaked.pool, pool):
                for name, amounts in leaked.device.counters:
                    for counter, amount in amounts.items():
                        free[name, counter] -= amount.nanos
        return free

    def _paying(self, pool: Pool) -> Iterator[PoolDevice]:
        if KubernetesFault.POOL_NAMES not in self._faults:
            yield from super()._paying(pool)
            return
        for one in {id(taken.candidate.pool): taken.candidate.pool for taken in self.taken}.values():
            if self._is_same_pool(one, pool):
                yield from super()._paying(one)

    def _is_same_pool(self, one: Pool, other: Pool) -> bool:
        return one is other or (KubernetesFault.POOL_NAMES in self._faults and one.key[1] == other.key[1])

    # --- distinctAttribute --------------------------------------------------------------------------------------------

    def _distinct(self, claim: int, request: DeviceRequest) -> list[tuple[int, Constraint]]:
        constraints = enumerate(self.claims[claim].constraints)
        return [pair for pair in constraints if pair[1].rule is Rule.DISTINCT and pair[1].applies_to(request)]

    def _constraint_broken(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        if KubernetesFault.DISTINCT not in self._faults:
            return super()._constraint_broken(claim, request, candidate)
        # Kubernetes remembers one value for each request, and forgets it when any device of the request goes.
        for number, constraint in enumerate(self.claims[claim].constraints):
            if not constraint.applies_to(request):
                continue
            value = candidate.device.attribute(constraint.attribute)
            others = [one for one in self.taken if one.claim == claim and constraint.applies_to(one.request)]
            if constraint.rule is Rule.DISTINCT:
                values = self._values[claim, number].values() if others else ()
                is_broken = value is None or any(value.elements & other.elements for other in values)
            else:
                is_broken = not self._agree(constraint, [*(one.candidate.device for one in others), candidate.device])
            if is_broken:
                for index, _ in self._distinct(claim, request):
                    if index < number:
                        self._values[claim, index].pop(request.names[0], None)
                return ConstraintBroken(constraint, candidate.device, ())
        return None


def outcome(situation: Situation, faults: frozenset[KubernetesFault]) -> tuple[tuple[int, str, DeviceKey], ...] | None:
    """Return what a search with these faults finds: claim, request and device. Return None if it finds nothing."""
    search = FaultySearch(situation, faults)
    try:
        found = search.run()
    except UndecidedError:
        return None
    return tuple((one.claim, one.request.result_name, one.key) for one in search.taken) if found else None


def causes(
    situation: Situation, answer: tuple[tuple[int, str, DeviceKey], ...] | None
) -> tuple[frozenset[KubernetesFault], ...]:
    """Return the smallest sets of faults with which a search finds `answer`, empty if there is none."""
    for size in range(len(KubernetesFault) + 1):
        sets = (frozenset(faults) for faults in combinations(KubernetesFault, size))
        if found := tuple(faults for faults in sets if outcome(situation, faults) == answer):
            return found
        if size == _MOST_FAULTS:
            break
    return ()


_MOST_FAULTS = 3
