"""The search for devices that satisfy all requests of a pod.

Laws: the search keeps only a list of the devices it has taken, so backtracking leaves nothing behind. Requests are
satisfied in order, each with the first alternative and the first devices that allow the remaining requests to be
satisfied. Alternatives and devices are tried in a scheduler's order. The search ends after a bounded number of steps.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

from attrs import field, frozen

from devicecore.domain.allocation.alignment import Shortage, shortages
from devicecore.domain.allocation.capacity import by_own_names, capacity_missing, consumption
from devicecore.domain.allocation.errors import (
    EvaluationsGivenUpError,
    ExpressionError,
    SearchGivenUpError,
    SelectorError,
    UndecidedError,
)
from devicecore.domain.allocation.faults import Release
from devicecore.domain.allocation.model import (
    MAX_RESULTS,
    Attribute,
    Constraint,
    DeviceClass,
    DeviceKey,
    DeviceRequest,
    Features,
    Held,
    Matches,
    PoolDevice,
    PoolSlice,
    Rule,
    TargetNode,
    UnallocatedClaim,
    Use,
)
from devicecore.domain.allocation.pools import Pool, Slices
from devicecore.domain.allocation.reasons import (
    ALWAYS,
    ConstraintBroken,
    CounterExhausted,
    GateOff,
    InUse,
    NotSelected,
    NotTolerated,
    OnOtherNode,
    Reason,
    TakenBefore,
)
from devicecore.domain.quantity import Quantity

MAX_STEPS = 200_000
"""The number of devices that a search tries before it gives up. Kubernetes gives up after ten seconds."""

MAX_PAIRS = 500_000
"""The number of pairs of a request and a device that a search examines before it gives up.

A pair takes about 200 bytes.
"""

Charge = Callable[[int], None]
"""Counts this many kept reasons against a question's budget. Raises QuestionGivenUpError if the question has exceeded
its budget.
"""

REPELLING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


def free_of_charge(_reasons: int) -> None:
    """Do not limit the question."""


@frozen(eq=False)
class Candidate:
    """A device that may be allocated, with the pool and the slice that contain it."""

    device: PoolDevice
    pool: Pool
    slice: PoolSlice

    @property
    def key(self) -> DeviceKey:
        """The key of the device."""
        return self.device.key


@frozen(eq=False)
class Taken:
    """A device that the search has taken for a request."""

    claim: int
    request: DeviceRequest = field(repr=lambda one: one.result_name)
    candidate: Candidate = field(repr=lambda one: str(one.key))  # the repr of a whole candidate would include its pool
    consumed: Mapping[str, Quantity] = {}

    @property
    def key(self) -> DeviceKey:
        """The key of the device."""
        return self.candidate.key


class _Place(NamedTuple):
    """The position of the search: the request, the alternative, how many devices are taken, and the next device."""

    claim: int = 0
    request: int = 0
    alternative: int | None = None
    taken: int = 0
    start: int = 0


@frozen
class Situation:
    """The input of a search."""

    claims: Sequence[UnallocatedClaim]
    node: TargetNode
    slices: Slices
    held: Mapping[DeviceKey, Sequence[Held]]
    classes: Mapping[str, DeviceClass]
    matches: Matches
    features: Features = Features()
    max_steps: int = MAX_STEPS
    release: Release = Release.V1_37
    charge: Charge = free_of_charge

    @cached_property
    def pools(self) -> Sequence[Pool]:
        """The pools of the node according to the rules."""
        return self.slices.pools(self.node, self.features)


class Search:
    """A search for devices on one node. Call only one of `run`, `allows` and `goes_on`, and only once."""

    _skips: ClassVar[bool] = True
    """Whether devices that cannot help are left out."""

    def __init__(self, situation: Situation, pools: Sequence[Pool] | None = None) -> None:
        self.claims: Sequence[UnallocatedClaim] = situation.claims
        self.node: TargetNode = situation.node
        self.pools: Sequence[Pool] = situation.pools if pools is None else pools
        self.classes: Mapping[str, DeviceClass] = situation.classes
        self.features: Features = situation.features
        self.taken: list[Taken] = []
        self.reasons: dict[tuple[DeviceRequest, PoolDevice], Reason] = {}
        self.limit: int = situation.max_steps
        self._held = situation.held
        self._matches = situation.matches
        self.charge: Charge = situation.charge
        self._steps = 0
        self._selected: dict[tuple[DeviceRequest, PoolDevice], Reason | None] = {}
        self._attributes: dict[tuple[str, PoolDevice], Attribute | None] = {}
        self._free_counters: dict[tuple[str, str], dict[Use, int]] = {}
        self._kinds: dict[PoolDevice, Hashable] = {}
        self._all: dict[DeviceRequest, list[Candidate]] = {}
        self._candidates = [
            Candidate(device, pool, one) for pool in self.pools if not pool.problem for one, device in pool.devices
        ]

    def run(self) -> bool:
        """Search, and return whether all requests are satisfied. If so, `taken` contains the devices in order.

        Raises UndecidedError if no devices could satisfy the claims, an expression cannot be evaluated, or the search
        took too many steps.
        """
        self._prepare()
        if self._skips and any(self._shortages()) and self._all_have_values():
            return False
        return not self.claims or self._find(_Place())

    def _find(self, start: _Place) -> bool:
        path = [self._ways(start)]
        while path:
            place = next(path[-1], None)
            if place is None:
                path.pop()
            elif place.claim == len(self.claims):
                return True
            else:
                path.append(self._ways(place))
        return False

    def allows(self, taken: Iterable[Taken]) -> bool:
        """Return whether these devices satisfy the requests for which another search has taken them.

        Raises UndecidedError as `run` does.
        """
        self._prepare()
        return self._takes(taken) and all(
            sum(one.request is request for one in self.taken) == self.wanted(request)
            for request in {one.request: None for one in self.taken}
        )

    def goes_on(self, taken: Iterable[Taken], claim: int, request: int, alternative: int) -> bool:
        """Return whether an alternative, and all requests after it, can be satisfied in addition to `taken`.

        Raises UndecidedError as `run` does.
        """
        self._prepare()
        way = self.claims[claim].requests[request][alternative]
        has_room = self._takes(taken) and self._has_room(_Place(claim, request), way)
        return has_room and self._find(_Place(claim, request, alternative))

    def _takes(self, taken: Iterable[Taken]) -> bool:
        # Another search may have read the pools differently.
        own = {one.device: one for one in self._candidates}
        found = ((one, own.get(one.candidate.device)) for one in taken)
        return all(mine is not None and self._take(one.claim, one.request, mine) for one, mine in found)

    def wanted(self, request: DeviceRequest) -> int:
        """Return how many devices a request needs."""
        return len(self._all.get(request, ())) if request.wants_all else request.count

    # --- before the search ----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Check the claims, and find the devices for each request that asks for all devices."""
        for number, claim in enumerate(self.claims):
            for request in claim.alternatives:
                self._check(claim, request)
                if request.wants_all:
                    self._all[request] = self._all_devices(number, request)
            message = f"claim {claim.name}"
            if (least := self._least(number, 0)) > MAX_RESULTS:
                message += f": number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}"
                raise UndecidedError(message)
            for index, constraint in enumerate(claim.constraints):
                if constraint.rule is None:
                    message += f", constraint #{index}: empty constraint (unsupported constraint type?)"
                    raise UndecidedError(message)

    def _check(self, claim: UnallocatedClaim, request: DeviceRequest) -> None:
        where = f"claim {claim.name}, request {request.name}"
        problem = ""
        if request.parent and not self.features.prioritized_list:
            where = f"claim {claim.name}, request {request.parent}"
            problem = "has subrequests, but the DRAPrioritizedList feature is disabled"
        elif request.capacity is not None and not self.features.consumable_capacity:
            problem = "has capacity requests, but the DRAConsumableCapacity feature is disabled"
        elif None in request.selectors:
            index = request.selectors.index(None)
            message = f"{where}, selector #{index}: CEL expression empty (unsupported selector type?)"
            raise ExpressionError(message)
        elif request.admin_access is not None and not self.features.admin_access:
            problem = "admin access is requested, but the feature is disabled"
        elif not request.device_class:
            problem = "missing device class name (unsupported request type?)"
        elif request.device_class not in self.classes:
            problem = f"could not retrieve device class {request.device_class}: not found"
        elif request.mode not in {"ExactCount", "All"}:
            problem = f"unsupported count mode {request.mode}"
        if problem:
            message = f"{where}: {problem}"
            raise UndecidedError(message)

    def _all_devices(self, claim: int, request: DeviceRequest) -> list[Candidate]:
        for pool in self.pools:
            if pool.blocks_all:
                state = "being updated" if pool.is_incomplete else "invalid"
                problem = f"asks for all devices, but resource pool {pool} is currently {state}: {pool.problem}"
                message = f"claim {self.claims[claim].name}, request {request.name}: {problem}"
                raise UndecidedError(message)
        return [
            one
            for one in self._candidates
            if self.unselected(claim, request, one) is None and self._is_meant(request, one)
        ]

    def _is_meant(self, request: DeviceRequest, candidate: Candidate) -> bool:
        """Return whether a request for all devices includes a device: its capacity must cover every requested amount.

        A device that has the capacity but cannot provide it, because too little is left or its policy forbids the
        share, is included.
        """
        has, asked = candidate.device.capacity, self._asked(request, candidate.device)
        return all(name in has and has[name].value.nanos >= amount.nanos for name, amount in asked.items())

    def _least(self, claim: int, first: int) -> int:
        """Return the minimum number of devices that the requests from `first` on need."""
        return sum(min(self.wanted(one) for one in ways) for ways in self.claims[claim].requests[first:])

    # --- the search -----------------------------------------------------------------------------------------------

    def _ways(self, place: _Place) -> Iterator[_Place]:
        """Take each possible next step, yield where the search continues, and then undo the step."""
        requests = self.claims[place.claim].requests
        if place.request == len(requests):
            yield _Place(place.claim + 1)
        elif place.alternative is None:
            for index, request in enumerate(requests[place.request]):
                if self._has_room(place, request):
                    yield _Place(place.claim, place.request, index)
        else:
            yield from self._ways_to_take(place, requests[place.request][place.alternative])

    def _ways_to_take(self, place: _Place, request: DeviceRequest) -> Iterator[_Place]:
        wanted = self.wanted(request)
        if place.taken == wanted:
            yield _Place(place.claim, place.request + 1)
            return
        if not (place.taken or self._may_suffice(place.claim, request, wanted)):
            return
        start, devices = place.start, self._devices_to_try(place, request, wanted)
        failed: set[Hashable] = set()
        for index, candidate in enumerate(devices):
            if failed and self._kind(candidate) in failed:
                continue
            self._step()
            if self._take(place.claim, request, candidate):
                yield _Place(place.claim, place.request, place.alternative, place.taken + 1, start + index + 1)
                self._give_back()
                if self._skips:
                    failed.add(self._kind(candidate))

    def _devices_to_try(self, place: _Place, request: DeviceRequest, wanted: int) -> Sequence[Candidate]:
        if request.wants_all:
            return self._all[request][place.taken : place.taken + 1]
        # The first device is searched for everywhere, so that each expression is evaluated as in Kubernetes. The search
        # for the others ends where too few devices are left.
        end = len(self._candidates) - (wanted - place.taken) + 1 if place.taken and self._skips else None
        return self._candidates[place.start : end]

    # --- what need not be tried -----------------------------------------------------------------------------------

    def _kind(self, candidate: Candidate) -> Hashable:
        """Return a value that interchangeable devices share: if one of these does not help, neither do the others."""
        device = candidate.device
        if device not in self._kinds:
            self._kinds[device] = self._find_kind(candidate)
        return self._kinds[device]

    def _find_kind(self, candidate: Candidate) -> Hashable:
        device = candidate.device
        fits: list[bool] = []
        values: list[Attribute | None] = []
        if self._is_shared(device) or any(one.admin_access for claim in self.claims for one in claim.alternatives):
            return device  # the device may be allocated more than once
        try:
            for number, claim in enumerate(self.claims):
                fits += [
                    bool(
                        self.unselected(number, request, candidate)
                        or self._over_capacity(request, candidate)
                        or self._repelled(request, candidate)
                    )
                    for request in claim.alternatives
                ]
                values += [self._attribute(constraint.attribute, device) for constraint in claim.constraints]
        except UndecidedError:
            return device
        return tuple(fits), tuple(values), device.counters and (candidate.pool.key, tuple(device.uses.items()))

    def _shortages(self) -> Iterator[Shortage]:
        """Yield constraints that no choice of devices can satisfy.

        A claim is left out if it has fewer than two constraints, or if one of its expressions cannot be evaluated.
        """
        for number, claim in enumerate(self.claims):
            if len(claim.constraints) < 2:  # the search itself soon finds that one constraint cannot hold
                continue

            def usable(request: DeviceRequest, number: int = number) -> Sequence[PoolDevice]:
                found = (one for one in self._candidates if self.reason_against(number, request, one) is None)
                return [one.device for one in found]

            try:
                yield from shortages(claim, usable)
            except UndecidedError:
                continue  # a scheduler may find devices before it evaluates that expression

    def _all_have_values(self) -> bool:
        """Return whether all selectors can be evaluated. Otherwise, a scheduler may fail before it sees a shortage."""
        try:
            for number, claim in enumerate(self.claims):
                for request in claim.alternatives:
                    for one in self._candidates:
                        self.unselected(number, request, one)
        except UndecidedError:
            return False
        return True

    def _may_suffice(self, claim: int, request: DeviceRequest, wanted: int) -> bool:
        """Return False if too few devices fit a request: in all, under one of the constraints, or because of counters.

        This check also finds the reasons against each device.
        """
        if wanted == 1 or request.wants_all or not self._skips:
            return True
        before = len(self.taken)
        for candidate in self._candidates:
            self._step()
            if self._take(claim, request, candidate) and len(self.taken) == before + wanted:
                break
        found = len(self.taken) - before
        del self.taken[before:]
        if found == wanted:
            return True
        fit = [
            one
            for one in self._candidates
            if not isinstance(self.reasons.get((request, one.device)), ALWAYS)
            and self.reason_against(claim, request, one) is None
        ]
        return (
            len(fit) >= wanted
            and all(
                self._most_beside_each_other(constraint, fit) >= wanted
                for constraint in self.claims[claim].constraints
                if constraint.applies_to(request)
            )
            and (not self._consumes_counters(request) or self._counters_may_suffice(fit, wanted))
        )

    def _most_beside_each_other(self, constraint: Constraint, candidates: Sequence[Candidate]) -> int:
        """Return the maximum number of these devices that a constraint allows."""
        found = [self._attribute(constraint.attribute, one.device) for one in candidates]
        values = Counter(element for one in found if one is not None for element in one.elements)
        if constraint.rule is Rule.MATCH:
            return max(values.values(), default=0)
        return len(values) + sum(one is not None and not one.elements for one in found)

    def _counters_may_suffice(self, candidates: Sequence[Candidate], wanted: int) -> bool:
        """Return whether the counters suffice for the devices that need the least of each counter."""
        for pool in {one.pool.key: one.pool for one in candidates if one.device.counters}.values():
            paying = [one.device.uses for one in candidates if one.pool is pool and not self._counters_are_paid(one)]
            least = wanted - (len(candidates) - len(paying))  # devices that consume the pool's counters
            for use, free in self._free(pool).items():
                needed = sorted(uses[use].nanos if use in uses else 0 for uses in paying)
                if sum(needed[: max(least, 0)]) > max(free, 0):
                    return False
        return True

    def _give_back(self) -> Taken:
        return self.taken.pop()

    def _has_room(self, place: _Place, request: DeviceRequest) -> bool:
        """Return whether the claim stays within its limit on devices if it gets an alternative.

        An alternative for all devices must have at least one device.
        """
        wanted = self.wanted(request)
        before = sum(one.claim == place.claim for one in self.taken)
        return wanted > 0 and before + wanted + self._least(place.claim, place.request + 1) <= MAX_RESULTS

    def _take(self, claim: int, request: DeviceRequest, candidate: Candidate) -> bool:
        reason = self.reason_against(claim, request, candidate)
        if reason is not None:
            self.reasons.setdefault((request, candidate.device), reason)
            return False
        shares = candidate.device.is_shared and self.features.consumable_capacity
        consumed = consumption(self._asked(request, candidate.device), candidate.device) if shares else {}
        self.taken.append(Taken(claim, request, candidate, consumed))
        return True

    def _step(self) -> None:
        self.charge(0)
        self._steps += 1
        if self._steps > self.limit:
            raise SearchGivenUpError.after(self.limit)

    # --- the rules ------------------------------------------------------------------------------------------------

    def reason_against(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        """Return the first reason against taking a device in addition to those already taken, or None."""
        return (
            self._in_use(claim, request, candidate)
            or self.unselected(claim, request, candidate)
            or (None if request.wants_all else self._over_capacity(request, candidate))
            or self._counters_exhausted(request, candidate)
            or self._repelled(request, candidate)
            or self._constraint_broken(claim, request, candidate)
            or (self._over_capacity(request, candidate) if request.wants_all else None)
        )

    def _in_use(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        """Return a reason if the whole device is held already, or None.

        With admin access, only the request's own claim matters. A device that is no longer shareable but still has
        shares is unavailable until the shares are released.
        """
        key, is_shared = candidate.key, self._is_shared(candidate.device)
        if not request.admin_access:
            for held in self._held.get(key, ()):
                if not held.is_share or (not is_shared and self._shares_block()):
                    return InUse(held)
        for taken in self.taken:
            blocks = taken.claim == claim or (self._blocks(taken.request) and not request.admin_access)
            if taken.key == key and not is_shared and blocks:
                return TakenBefore(self.claims[taken.claim].name, taken.request.result_name)
        return None

    def unselected(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        """Return why the device does not match the request, regardless of what else is allocated, or None."""
        key = request, candidate.device
        if key not in self._selected:
            self.charge(0)
            if len(self._selected) == MAX_PAIRS:
                raise SearchGivenUpError.after_pairs(MAX_PAIRS)
            self._selected[key] = self._find_unselected(claim, request, candidate)
        return self._selected[key]

    def _find_unselected(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        device = candidate.device
        if device.conditions and not self.features.binding_conditions:
            return GateOff("DRADeviceBindingConditions")
        device_class = self.classes[request.device_class]
        for source, name, selectors, is_by_class in (
            (f"class {device_class.name}", f"class {device_class.name}", device_class.selectors, True),
            (f"request {request.result_name}", f"claim {self.claims[claim].name}", request.selectors, False),
        ):
            for index, expression in enumerate(selectors):
                try:
                    if expression is not None and self._matches(expression, device):
                        continue
                except EvaluationsGivenUpError as error:
                    message = f"{name}: selector #{index} on device {device.key}: {error.problem}"
                    raise SearchGivenUpError(message) from None
                except SelectorError as error:
                    where = f" on device {device.key}" if error.at_run_time else ""
                    message = f"{name}: selector #{index}{where}: {error}"
                    raise ExpressionError(message, device.key if error.at_run_time else None) from None
                return NotSelected(source, expression or "", device, is_by_class)
        # Kubernetes' `isSelectable` evaluates the selectors first: an error on another node's device also counts here.
        if not candidate.slice.place_of(device).accepts(self.node):
            return OnOtherNode(self.node.name)
        return None

    def _over_capacity(self, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        return self._lacks_capacity(request, candidate, consumes=self._consumes_capacity(request))

    def _lacks_capacity(self, request: DeviceRequest, candidate: Candidate, *, consumes: bool) -> Reason | None:
        if not self.features.consumable_capacity or not (candidate.device.capacity or request.capacity):
            return None
        used: dict[str, int] = defaultdict(int)
        if consumes:
            for consumed in self._shares(candidate.key):
                for name, amount in self._by_name(consumed, candidate.device).items():
                    used[name] += amount.nanos
        return capacity_missing(self._asked(request, candidate.device), candidate.device, used)

    def _asked(self, request: DeviceRequest, device: PoolDevice) -> Mapping[str, Quantity]:
        return self._by_name(request.capacity or {}, device)

    def _by_name(self, amounts: Mapping[str, Quantity], device: PoolDevice) -> Mapping[str, Quantity]:
        return by_own_names(amounts, device)

    def _shares(self, key: DeviceKey) -> Iterator[Mapping[str, Quantity]]:
        """Yield how much each share of a device consumes."""
        yield from (held.consumed for held in self._held.get(key, ()))
        yield from (
            taken.consumed for taken in self.taken if taken.key == key and self._consumes_capacity(taken.request)
        )

    def _counters_exhausted(self, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        device = candidate.device
        if not device.counters:
            return None
        if not self.features.partitionable_devices:
            return GateOff("DRAPartitionableDevices")
        if not self._consumes_counters(request) or self._counters_are_paid(candidate):
            return None
        free = self._free(candidate.pool)
        for use, amount in device.uses.items():
            if amount.nanos > free[use]:
                return CounterExhausted("/".join(use), amount, Quantity(free[use], amount.binary))
        return None

    def _counters_are_paid(self, candidate: Candidate) -> bool:
        """Return whether a share of the device is in use, in which case the device's counters are consumed already."""
        return self._is_shared(candidate.device) and (
            self._is_paid_for(candidate.key)
            or any(one.key == candidate.key and self._consumes_counters(one.request) for one in self.taken)
        )

    def _free(self, pool: Pool) -> dict[Use, int]:
        """Return how much of each counter of a pool is free, in billionths."""
        free = self._available(pool)
        for device in self._paying(pool):
            for use, amount in device.uses.items():
                free[use] -= amount.nanos
        return free

    def _available(self, pool: Pool) -> dict[Use, int]:
        """Return how much of each counter of a pool is free before the search, in billionths."""
        if pool.key not in self._free_counters:
            free = {
                (name, counter): amount.nanos for name, one in pool.counters.items() for counter, amount in one.items()
            }
            for device in [*(device for _, device in pool.devices), *pool.elsewhere]:
                if self._held.get(device.key):
                    for use, amount in device.uses.items():
                        free[use] -= amount.nanos
            self._free_counters[pool.key] = free
        return dict(self._free_counters[pool.key])

    def _paying(self, pool: Pool) -> Iterator[PoolDevice]:
        """Yield the devices of a pool for which the search consumes counters.

        Of the shares of a device, only the first consumes counters.
        """
        shared: set[DeviceKey] = set()
        for one in self.taken:
            if one.candidate.pool is pool and self._consumes_counters(one.request):
                if one.key in shared or (self._is_shared(one.candidate.device) and self._is_paid_for(one.key)):
                    continue
                if self._is_shared(one.candidate.device):
                    shared.add(one.key)
                yield one.candidate.device

    def _is_paid_for(self, key: DeviceKey) -> bool:
        """Return whether an earlier share already consumes the counters of a shared device."""
        return any(one.is_share for one in self._held.get(key, ()))

    def _repelled(self, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        if self.features.device_taints:
            for taint in candidate.device.taints:
                if taint.effect in REPELLING_EFFECTS and not any(one.tolerates(taint) for one in request.tolerations):
                    return NotTolerated(taint)
        return None

    def _constraint_broken(self, claim: int, request: DeviceRequest, candidate: Candidate) -> Reason | None:
        for constraint in self.claims[claim].constraints:
            if constraint.applies_to(request):
                others = self._beside(claim, constraint)
                if not self._agree(constraint, [*others, candidate.device]):
                    return ConstraintBroken(constraint, candidate.device, tuple(others))
        return None

    def _beside(self, claim: int, constraint: Constraint) -> list[PoolDevice]:
        """Return the devices that the claim already has and that the constraint applies to."""
        return [one.candidate.device for one in self.taken if one.claim == claim and constraint.applies_to(one.request)]

    def _agree(self, constraint: Constraint, devices: Sequence[PoolDevice]) -> bool:
        """Return whether a constraint allows these devices together."""
        found = [self._attribute(constraint.attribute, device) for device in devices]
        sets = [one.elements for one in found if one is not None]
        if len(sets) < len(found):
            return False
        if constraint.rule is Rule.MATCH:
            return bool(frozenset.intersection(*sets))
        return sum(map(len, sets)) == len(frozenset.union(*sets))

    def _attribute(self, name: str, device: PoolDevice) -> Attribute | None:
        """Return an attribute of a device, or None if constraints cannot use it. The result is cached."""
        key = name, device
        if key not in self._attributes:
            found = device.attribute(name)
            is_usable = found is not None and (self.features.list_attributes or not found.is_list)
            self._attributes[key] = found if is_usable else None
        return self._attributes[key]

    # A request with admin access takes nothing from other requests.

    def _blocks(self, request: DeviceRequest) -> bool:
        return not request.admin_access

    def _shares_block(self) -> bool:
        return True

    def _consumes_capacity(self, request: DeviceRequest) -> bool:
        return not request.admin_access

    def _consumes_counters(self, request: DeviceRequest) -> bool:
        return not request.admin_access

    def _is_shared(self, device: PoolDevice) -> bool:
        return device.is_shared and self.features.consumable_capacity
