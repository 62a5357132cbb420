"""The search of a Kubernetes release, reproduced with the release's faults, so that it finds the same devices.

Law: with the faults of a release, `KubernetesSearch` finds the devices that the release's scheduler finds, correct or
not. The faults that an answer depends on are its causes. docs/claims.md shows the smallest case of each fault.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from attrs import evolve, frozen

from devicecore.domain.allocation.errors import ExcludedError, SearchGivenUpError, UndecidedError
from devicecore.domain.allocation.faults import ALL_FAULTS, Cause, KubernetesFault
from devicecore.domain.allocation.model import Attribute, Constraint, DeviceKey, DeviceRequest, PoolDevice, Rule, Use
from devicecore.domain.allocation.pools import Pool
from devicecore.domain.allocation.reasons import CapacityExceeded, ConstraintBroken, CounterExhausted, Reason
from devicecore.domain.allocation.search import Candidate, Search, Situation, Taken
from devicecore.domain.quantity import Quantity

_UNLIMITED = 2**100


class KubernetesSearch(Search):
    """A search with some of the faults.

    With the fault `ALL_ERROR`, `run` raises `ExcludedError` if a request is for all devices, and a constraint forbids
    one of them.
    """

    _skips = False  # each device that is tried may leave something behind

    def __init__(self, situation: Situation, faults: frozenset[KubernetesFault] = ALL_FAULTS) -> None:
        super().__init__(situation, _pools(situation, faults))
        self._faults = faults
        self._charged: set[Candidate] = set()
        self._leaked: dict[object, dict[Use, int]] = defaultdict(lambda: defaultdict(int))
        self._in_use_for_ever: set[DeviceKey] = set()
        self._paid_for_ever: set[DeviceKey] = set()
        self._first_of_name: dict[str, Pool] = {}
        self._values: dict[tuple[int, int], dict[str, Attribute]] = defaultdict(dict)
        self._never_given_back: list[Taken] = []

    def reason_against(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        """Return the first reason against a device.

        With some of the faults, a device that is rejected late keeps its counters. With `ALL_ERROR`, the method raises
        ExcludedError if a request for all devices includes the device and a constraint forbids it.
        """
        self._charged.clear()
        reason = super().reason_against(claim, request, candidate)
        # `allocateDevice` with `must` returns an error, which ends the search on all nodes. Another alternative of the
        # request might have been possible.
        if request.wants_all and isinstance(reason, ConstraintBroken) and KubernetesFault.ALL_ERROR in self._faults:
            raise ExcludedError(self.claims[claim].name, request.name, str(candidate.key))
        # `allocateDevice` compares capacity last. Up to 1.36.2, it then returned without undoing its earlier changes:
        # the device stayed in the constraints, and its counters stayed consumed.
        is_late = request.wants_all and isinstance(reason, CapacityExceeded)
        if is_late and KubernetesFault.CAPACITY_REJECT in self._faults:
            self._never_given_back.append(Taken(claim, request, candidate))
            self._remember_values(claim, request, candidate.device)
        # The same holds for taints and constraints, which `allocateDevice` checks after `checkAvailableCounters` has
        # consumed the counters. Since 1.36.3, `rollbackDevice` releases these counters.
        if reason is not None and candidate in self._charged:
            late = KubernetesFault.CAPACITY_REJECT if is_late else KubernetesFault.REJECT
            if late in self._faults:
                self._leak(candidate)
        return reason

    def _take(self, claim: int, request: DeviceRequest, candidate: Candidate) -> bool:
        taken = super()._take(claim, request, candidate)
        # A share without capacity leaves an empty entry in `allocatingCapacity`. Up to 1.36.2, this entry survived the
        # undo, so `deviceCapacityInUse` stayed true, and the counters of the device were never checked again.
        leaks = KubernetesFault.UNDO_SHARED in self._faults
        if taken and leaks and self._is_shared(candidate.device) and not candidate.device.capacity:
            self._in_use_for_ever.add(candidate.key)
        if taken:
            self._remember_values(claim, request, candidate.device)
        return taken

    def _give_back(self) -> Taken:
        taken = super()._give_back()
        device = taken.candidate.device
        # Up to 1.36.2, undoing a share did not call `deallocateCountersForDevice`, even if no other share of the device
        # was left to pay for its counters.
        if (
            KubernetesFault.UNDO_SHARED in self._faults
            and device.counters
            and self._is_shared(device)
            and self._consumes_counters(taken.request)
            and taken.key not in self._paid_for_ever
            and not any(one.key == taken.key for one in self.taken)
            and not any(one.consumed for one in self._held.get(taken.key, ()))
        ):
            self._leak(taken.candidate)
            if not device.capacity:
                self._paid_for_ever.add(taken.key)
        for index, _ in self._distinct(taken.claim, taken.request):
            self._values[taken.claim, index].pop(taken.request.names[0], None)
        return taken

    def _is_meant(self, request: DeviceRequest, candidate: Candidate) -> bool:
        # `validateDeviceRequest` lists all devices. 1.36 left out devices whose capacity is used up (`isSelectable`
        # called `CmpRequestOverCapacity`), and 1.37 still leaves out devices whose policy forbids the amount.
        if KubernetesFault.ALL_SKIPS in self._faults:
            return self._over_capacity(request, candidate) is None
        if KubernetesFault.ALL_SKIPS_POLICY in self._faults:
            return self._lacks_capacity(request, candidate, consumes=False) is None
        return super()._is_meant(request, candidate)

    def _by_name(self, amounts: Mapping[str, Quantity], device: PoolDevice) -> Mapping[str, Quantity]:
        # `requestsContainNonExistCapacity` compares names as they are written. The API allows DRIVER/NAME in place of
        # NAME.
        return amounts if KubernetesFault.CAPACITY_NAMES in self._faults else super()._by_name(amounts, device)

    # --- admin access -------------------------------------------------------------------------------------------------

    # `allocateDevice` checks `adminAccess` only where it reads `deviceInUse`. It writes `allocatingDevices`,
    # `allocatingCapacity` and `consumedCounters` for every request, so admin access blocks others.

    def _blocks(self, request: DeviceRequest) -> bool:
        return not request.admin_access or KubernetesFault.ADMIN_BLOCKS in self._faults

    def _shares_block(self) -> bool:
        # `deviceInUse` does not check `AllocatedSharedDeviceIDs`, so a device with shares looks free once it is no
        # longer shareable.
        return KubernetesFault.SHARES_IGNORED not in self._faults

    def _consumes_capacity(self, request: DeviceRequest) -> bool:
        return not request.admin_access or KubernetesFault.ADMIN_CONSUMES in self._faults

    def _consumes_counters(self, request: DeviceRequest) -> bool:
        return not request.admin_access or KubernetesFault.ADMIN_COUNTERS in self._faults

    # --- counters -----------------------------------------------------------------------------------------------------

    def _counters_exhausted(self, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        reason = super()._counters_exhausted(request, candidate)
        if reason is not None or not candidate.device.counters or not self._consumes_counters(request):
            return reason
        if self._counters_are_paid(candidate):
            return None
        # `checkAvailableCounters` compares every counter in the pool, not only the device's: a counter below 0 rules
        # out every device that uses any counter.
        if KubernetesFault.OVER_COMMITTED in self._faults:
            for use, free in self._free(candidate.pool).items():
                if free < 0:
                    return CounterExhausted("/".join(use), Quantity(0), Quantity(free))
        self._charged.add(candidate)
        return None

    def _counters_are_paid(self, candidate: Candidate) -> bool:
        return candidate.key in self._in_use_for_ever or super()._counters_are_paid(candidate)

    def _is_paid_for(self, key: DeviceKey) -> bool:
        # In 1.36, `deviceCapacityInUse` checked only `AggregatedCapacity`, which has no entry for shares without
        # capacity.
        if KubernetesFault.SHARE_IDS in self._faults:
            return any(one.consumed for one in self._held.get(key, ()))
        return super()._is_paid_for(key)

    def _available(self, pool: Pool) -> dict[Use, int]:
        # `availableCounters` in 1.36 used the pool's name as its key, without the driver: the first pool with that name
        # decided for all of them.
        if KubernetesFault.POOL_NAMES in self._faults:
            known = super()._available(self._first_of_name.setdefault(pool.key[1], pool))
        else:
            known = super()._available(pool)
        free: dict[Use, int] = defaultdict(lambda: _UNLIMITED, known)
        for use, amount in self._leaked[self._ledger(pool)].items():
            free[use] -= amount
        return free

    def _leak(self, candidate: Candidate) -> None:
        for use, amount in candidate.device.uses.items():
            self._leaked[self._ledger(candidate.pool)][use] += amount.nanos

    def _paying(self, pool: Pool) -> Iterator[PoolDevice]:
        pools = {id(taken.candidate.pool): taken.candidate.pool for taken in self.taken}.values()
        for one in pools:
            if self._ledger(one) == self._ledger(pool):
                yield from (device for device in super()._paying(one) if device.key not in self._paid_for_ever)

    def _ledger(self, pool: Pool) -> object:
        """Return a value that is the same for pools whose counters are counted together."""
        return pool.key[1] if KubernetesFault.POOL_NAMES in self._faults else pool.key

    # --- constraints --------------------------------------------------------------------------------------------------

    def _remember_values(self, claim: int, request: DeviceRequest, device: PoolDevice) -> None:
        for index, constraint in self._distinct(claim, request):
            if (value := device.attribute(constraint.attribute)) is not None:
                self._values[claim, index][request.names[0]] = value

    def _distinct(self, claim: int, request: DeviceRequest) -> list[tuple[int, Constraint]]:
        constraints = enumerate(self.claims[claim].constraints)
        return [pair for pair in constraints if pair[1].rule is Rule.DISTINCT and pair[1].applies_to(request)]

    def _beside(self, claim: int, constraint: Constraint) -> list[PoolDevice]:
        stuck = [one for one in self._never_given_back if one.claim == claim and constraint.applies_to(one.request)]
        return [*(one.candidate.device for one in stuck), *super()._beside(claim, constraint)]

    def _constraint_broken(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        if KubernetesFault.DISTINCT not in self._faults:
            return super()._constraint_broken(claim, request, candidate)
        # `distinctAttributeConstraint` in 1.36 kept its values in a map by request: `add` overwrote the value of the
        # request's previous device, and `remove` dropped the value although other devices of the request were left.
        for number, constraint in enumerate(self.claims[claim].constraints):
            if not constraint.applies_to(request):
                continue
            value = self._attribute(constraint.attribute, candidate.device)
            others = self._beside(claim, constraint)
            if constraint.rule is Rule.DISTINCT:
                values = self._values[claim, number].values() if others else ()
                is_broken = value is None or any(value.elements & other.elements for other in values)
            else:
                is_broken = not self._agree(constraint, [*others, candidate.device])
            if is_broken:
                # `allocateDevice` undoes the constraints before the one that failed, which also drops their values.
                for index, _ in self._distinct(claim, request):
                    if index < number:
                        self._values[claim, index].pop(request.names[0], None)
                return ConstraintBroken(constraint, candidate.device, ())
        return None


@frozen
class KubernetesAnswer:
    """The answer of a release's scheduler.

    Attributes:
        taken: the devices that the scheduler finds, in order, or None if it finds none.
        is_right: whether the rules allow these devices.
        is_known: whether the scheduler's search ends within a bounded number of steps.
        error: the scheduler's error if a request asks for all devices and a constraint forbids one of them.
        is_undecided: whether the search ends with an error other than `error`.
    """

    taken: tuple[Taken, ...] | None = None
    is_right: bool = True
    is_known: bool = True
    error: str = ""
    is_undecided: bool = False


def answer_of_kubernetes(situation: Situation, faults: frozenset[KubernetesFault] | None = None) -> KubernetesAnswer:
    """Return the answer of the release's scheduler, or of a scheduler that has `faults`.

    An answer is also wrong if a fault makes the scheduler miss an earlier alternative that is possible.
    """
    search = KubernetesSearch(situation, situation.release.faults if faults is None else faults)
    try:
        if not search.run():
            return KubernetesAnswer()
    except ExcludedError as error:
        return KubernetesAnswer(error=str(error))
    except SearchGivenUpError:
        return KubernetesAnswer(is_known=False)
    except UndecidedError:
        return KubernetesAnswer(is_undecided=True)
    taken = tuple(search.taken)
    try:
        is_allowed = Search(situation).allows(taken)
    except UndecidedError as error:
        return KubernetesAnswer(taken, is_right=False, is_known=not isinstance(error, SearchGivenUpError))
    return KubernetesAnswer(taken, is_right=is_allowed and not _leaves_out_alternative(situation, taken))


def _leaves_out_alternative(situation: Situation, taken: Sequence[Taken]) -> bool:
    """Return whether a request could get an earlier alternative, given the devices of the preceding requests."""
    chosen = {one.request for one in taken}
    before: list[Taken] = []
    for claim, one in enumerate(situation.claims):
        for place, ways in enumerate(one.requests):
            earlier = next((number for number, request in enumerate(ways) if request in chosen), len(ways))
            if any(_could_go_on(situation, before, claim, place, number) for number in range(earlier)):
                return True
            before += [have for have in taken if have.request in ways]
    return False


def _could_go_on(situation: Situation, before: Sequence[Taken], claim: int, place: int, number: int) -> bool:
    try:
        return Search(situation).goes_on(before, claim, place, number)
    except UndecidedError:
        return False  # unknown


def causes_between(situation: Situation, *, is_possible: bool) -> tuple[Cause, ...]:
    """Return each fault without which Kubernetes would be right, or, if there is none, the first such pair of faults.

    If no pair explains the answer either, the result is one empty cause.

    Args:
        situation: what is requested and what is available.
        is_possible: whether the rules allow an allocation.
    """
    # Without a limit, a hostile situation could be searched over a hundred times: once for each fault and each pair.
    short = evolve(situation, max_steps=min(situation.max_steps, _MAX_STEPS))
    known = sorted(situation.release.faults, key=list(KubernetesFault).index)

    def is_right_without(*faults: KubernetesFault) -> bool:
        answer = answer_of_kubernetes(short, situation.release.faults.difference(faults))
        return answer.is_known and answer.is_right and (answer.taken is not None) == is_possible

    if alone := tuple((fault,) for fault in known if is_right_without(fault)):
        return alone
    return (next((pair for pair in combinations(known, 2) if is_right_without(*pair)), ()),)


_MAX_STEPS = 10_000


def may_differ(situation: Situation) -> bool:
    """Return whether a fault may change the answer. For most claims, Kubernetes' search does not differ from ours."""
    devices = [device for pool in situation.pools for _, device in pool.devices]
    shares = any(device.is_shared for device in devices)
    return (
        any(pool.counters for pool in situation.pools)
        or _has_other_names(situation, devices)
        or any(one.is_share for device in devices for one in situation.held.get(device.key, ()))
        or any(
            any(constraint.rule is Rule.DISTINCT for constraint in claim.constraints)
            or any(one.admin_access or (one.wants_all and (claim.constraints or shares)) for one in claim.alternatives)
            for claim in situation.claims
        )
        or _pools(situation, situation.release.faults) != situation.pools
    )


def _pools(situation: Situation, faults: frozenset[KubernetesFault]) -> Sequence[Pool]:
    """Return the node's pools as a scheduler with these faults reads them."""
    if KubernetesFault.FOREIGN_COUNTERS not in faults:
        return situation.pools
    return situation.slices.pools(situation.node, situation.features, faults)


def _has_other_names(situation: Situation, devices: Sequence[PoolDevice]) -> bool:
    """Return whether a request or an allocation may spell the name of a capacity differently from the device."""
    names = {name for claim in situation.claims for one in claim.alternatives for name in one.capacity or ()}
    held = ((device, one) for device in devices for one in situation.held.get(device.key, ()))
    return (
        any("/" in name for name in names)
        or any("/" in name for device in devices for name in device.capacity)
        or any(name not in device.capacity for device, one in held for name in one.consumed)
    )
