"""Proposes small changes after which claims may get devices: edits, releases, omitted parts and tolerations.

Law: a proposed change is only a candidate. `devicecore_tools.doctor.pod.claim_trial` tries candidates while there is
time, and shows only candidates that help.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import cached_property
from itertools import combinations, product, zip_longest
from typing import NamedTuple

from attrs import evolve, field, frozen

from devicecore.domain.allocation import (
    DeviceClass,
    DeviceKey,
    Held,
    Matches,
    PoolDevice,
    SelectorError,
    UnallocatedClaim,
)
from devicecore.domain.allocation.model import MAX_RESULTS, Constraint, DeviceRequest, DeviceToleration, Taint
from devicecore.domain.allocation.reasons import (
    CapacityExceeded,
    CounterExhausted,
    DeviceVerdict,
    InUse,
    NotSelected,
    NotTolerated,
)
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.budget import Budget
from devicecore_tools.doctor.pod.expression_edits import conjuncts, optional, repaired, with_other_values
from devicecore_tools.doctor.pod.extended_claim import ExtendedRequest, ExtendedResourceClaim

_PCIE_ROOT, _NUMA_NODE = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
_MAX_AMOUNTS = 6  # how many values of a capacity are tried
_MAX_PARTED = 2_000  # maximum length of an expression whose parts may be dropped
_MAX_ATTRIBUTES = 6  # how many other attributes are tried in a constraint


class Rank(IntEnum):
    """The order in which changes are shown: changes that fix a mistake come first, changes that hide one come last.

    Parts of a request are dropped only if nothing else helps.
    """

    REPAIR = 0
    AMOUNT = 1
    WATCH = 2  # tolerates a taint in a claim with admin access, which only monitors devices
    RELEASE = 3
    VALUE = 4
    LESS = 5
    WITHOUT = 6
    TOLERATE = 7
    DROP = 8


_MENDING = frozenset({Rank.REPAIR, Rank.AMOUNT, Rank.VALUE, Rank.LESS})
_MAX_OF_PAIR = 3  # how many changes of each request are combined with changes of another request
_MAX_PAIRED = 8  # how many requests are changed in pairs


class Change(NamedTuple):
    """A change that may help: its description, and the changed claims and classes.

    If several changes have the same `kind`, the first change that helps is enough.

    Attributes:
        holder: the owner of the devices that are released.
        pods: the pods for which the owner holds these devices.
        device_class: the new class of a request.
        classes: the changed classes, by name.
        is_pair: whether the change consists of two changes. A pair is pointless if one of its changes helps on its
            own.
    """

    sentence: str
    claims: Sequence[UnallocatedClaim]
    rank: Rank
    kind: str = ""
    holder: str = ""
    pods: tuple[str, ...] = ()
    device_class: str = ""
    classes: Mapping[str, DeviceClass] = {}
    is_pair: bool = False

    def __str__(self) -> str:
        return foreign_text(self.sentence)


@frozen
class Refused:
    """The facts about a node that refuses claims.

    Attributes:
        verdicts: the verdict on each device for each request.
        devices: all devices of the node's pools.
        held_by: the devices that each claim holds, by the claim's name.
        holders: each claim in `held_by` with its pods, by the claim's name.
        classes: all DeviceClasses, by name.
        matches: evaluates an expression for a device.
        budget: the budget for finding changes.
        described: the requests for which the cluster has matching devices, by claim and name.
    """

    verdicts: Sequence[DeviceVerdict]
    devices: Mapping[DeviceKey, PoolDevice]
    held_by: Mapping[str, Sequence[DeviceKey]]
    holders: Mapping[str, Held]
    classes: Mapping[str, DeviceClass]
    matches: Matches
    budget: Budget = field(factory=Budget)
    described: frozenset[tuple[str, str]] = frozenset()
    _parted: dict[tuple[str, DeviceRequest], tuple[list[PoolDevice], list[PoolDevice]]] = field(
        init=False, factory=dict, eq=False, repr=False
    )
    """The devices that a request's class selects, and all other devices, cached by claim and request."""

    def candidates(self, claims: Sequence[UnallocatedClaim]) -> Iterator[Change]:
        """Yield changes. Releases and other changes alternate, so that some of each kind are tried if there are many.

        If a capacity or a counter is exhausted, every claim that holds devices is a candidate for a release. Raises
        QuestionGivenUpError when the budget is spent.
        """
        reasons = [one.reason for one in self.verdicts]
        holders = {str(one.held): one.held for one in reasons if isinstance(one, InUse)}
        if any(isinstance(one, CapacityExceeded | CounterExhausted) for one in reasons):
            holders |= self.holders
        releases = (
            Change(_released(name, held), claims, Rank.RELEASE, holder=name, pods=held.pods)
            for name, held in holders.items()
        )
        others = (
            change._replace(claims=[*claims[:number], *change.claims, *claims[number + 1 :]])
            for number, claim in enumerate(claims)
            for change in self._changes_of(claim)
        )
        for pair in zip_longest(releases, others):
            yield from filter(None, pair)
        yield from self._pairs_of(claims)

    def outside_class(self, claim: UnallocatedClaim, request: DeviceRequest) -> list[PoolDevice]:
        """Return the devices that match a request but not its class, if no device of its class matches."""
        if not request.selectors or request.device_class not in self.classes:
            return []
        of_class, others = self._devices_by_class(claim, request)
        if any(self._describes(request, one) for one in of_class):
            return []
        return [one for one in others if self._describes(request, one)]

    def _describes(self, request: DeviceRequest, device: PoolDevice) -> bool:
        with suppress(SelectorError):
            return all(one is not None and self.matches(one, device) for one in request.selectors)
        return False

    def _devices_of(self, claim: UnallocatedClaim, request: DeviceRequest) -> list[PoolDevice]:
        """Return the devices that the class of a request selects."""
        return self._devices_by_class(claim, request)[0]

    def _devices_by_class(
        self, claim: UnallocatedClaim, request: DeviceRequest
    ) -> tuple[list[PoolDevice], list[PoolDevice]]:
        """Return the devices that a request's class selects, and the devices that it does not select."""
        key = claim.name, request
        if key not in self._parted:
            self._parted[key] = self._find_devices(claim, request)
        return self._parted[key]

    def _find_devices(
        self, claim: UnallocatedClaim, request: DeviceRequest
    ) -> tuple[list[PoolDevice], list[PoolDevice]]:
        self.budget.ask()
        about = self._about(claim, request)
        of_class: list[PoolDevice] = []
        others: list[PoolDevice] = []
        for one in about:
            if one.device in self.devices:
                is_other = isinstance(one.reason, NotSelected) and one.reason.is_by_class
                (others if is_other else of_class).append(self.devices[one.device])
        for device in () if about else self.devices.values():
            (of_class if self._is_of_class(request, device) else others).append(device)
        return of_class, others

    def _is_of_class(self, request: DeviceRequest, device: PoolDevice) -> bool:
        known = self.classes.get(request.device_class)
        with suppress(SelectorError):
            return known is not None and all(one and self.matches(one, device) for one in known.selectors)
        return False

    def _changes_of(self, claim: UnallocatedClaim) -> Iterator[Change]:
        """Yield changes that affect only this claim."""
        yield from self._repairs_of(claim)
        yield from self._edits_of_classes(claim)
        taints = dict.fromkeys(one.reason.taint for one in self.verdicts if isinstance(one.reason, NotTolerated))
        if not isinstance(claim, ExtendedResourceClaim):  # a pod's limit cannot have tolerations
            for taint in taints:
                yield _tolerating(claim, taint)
        for constraint in claim.constraints:
            rest = tuple(one for one in claim.constraints if one is not constraint)
            rule = constraint.rule.value if constraint.rule else "constraint"
            about = f" for {', '.join(sorted(constraint.requests))}" if constraint.requests else ""
            for name in self._attributes_like(constraint):
                others = tuple(evolve(one, attribute=name) if one is constraint else one for one in claim.constraints)
                coarser = " (coarser: devices of one NUMA node may be on different PCIe roots)"
                is_coarser = (name, constraint.attribute) == (_NUMA_NODE, _PCIE_ROOT)
                sentence = (
                    f"claim {claim.name} has {rule} {name} instead of {constraint.attribute}{coarser * is_coarser}"
                )
                yield Change(sentence, [evolve(claim, constraints=others)], Rank.REPAIR, f"{claim.name} {rule}{about}")
            sentence = f"claim {claim.name} has no {rule} {constraint.attribute}{about}"
            yield Change(sentence, [evolve(claim, constraints=rest)], Rank.WITHOUT)
        for request in claim.alternatives:
            about = _about(claim, request)
            for sentence, changed, rank, kind in self._changes_of_request(claim, request):
                named = changed.device_class if changed.device_class != request.device_class else ""
                claims = [_with_request(claim, request, changed)]
                yield Change(f"{about} {sentence}", claims, rank, kind and f"{about} {kind}", device_class=named)
        if isinstance(claim, ExtendedResourceClaim):
            yield from _limits_of(claim)

    def _changes_of_request(self, claim: UnallocatedClaim, request: DeviceRequest) -> Iterator["_ChangedRequest"]:
        self.budget.ask()
        amounts = {name: of for (named, name), of in self._amounts(claim).items() if named == request.result_name}
        devices = self._devices_of(claim, request)
        if not isinstance(request, ExtendedRequest):  # a limit's class follows from its resource
            yield from self._classes_of(claim, request)
        yield from _less_of(request, amounts, self._fitting(claim, request), _defaults(request, devices))
        is_known = (claim.name, request.result_name) in self.described
        yield from _selectors_of(request, devices or list(self.devices.values()), is_known=is_known)

    def _pairs_of(self, claims: Sequence[UnallocatedClaim]) -> Iterator[Change]:
        """Yield pairs of changes to two requests, if the changes preserve the meaning of both requests."""
        requests = [(number, request) for number, claim in enumerate(claims) for request in claim.alternatives]
        if len(requests) == 1:
            return
        few = {
            one: sorted(
                (of for of in self._changes_of_request(claims[one[0]], one[1]) if of[2] in _MENDING),
                key=lambda of: of[2],
            )[:_MAX_OF_PAIR]
            for one in requests[:_MAX_PAIRED]
        }
        for (one, first), (other, second) in combinations(few.items(), 2):
            for mine, yours in product(first, second):
                changed = list(claims)
                for (number, request), of in ((one, mine), (other, yours)):
                    changed[number] = _with_request(changed[number], request, of[1])
                parts = (
                    f"{_about(claims[number], request)} {of[0]}"
                    for (number, request), of in ((one, mine), (other, yours))
                )
                yield Change(", and ".join(parts), changed, max(mine[2], yours[2]), is_pair=True)

    def _repairs_of(self, claim: UnallocatedClaim) -> Iterator[Change]:
        """Yield the claim with all wrong expressions corrected. Nothing is yielded if at most one is wrong.

        Corrected expressions use names and types that devices have.
        """
        changed, edits = claim, []
        for request in claim.alternatives:
            devices = self._devices_of(claim, request) or list(self.devices.values())
            self.budget.ask()
            selectors = list(request.selectors)
            for index, expression in enumerate(selectors):
                if edit := repaired(expression or "", devices):
                    selectors[index] = edit.expression
                    edits.append(edit)
            changed = _with_request(changed, request, evolve(request, selectors=tuple(selectors)))
        if len(edits) > 1:
            texts = dict.fromkeys(str(one) for one in edits)
            yield Change(f"claim {claim.name} uses {', and '.join(texts)}", [changed], Rank.REPAIR)

    def _attributes_like(self, constraint: Constraint) -> list[str]:
        """Return the attributes that may have been meant: attributes with the same name or in Kubernetes' domain."""
        identifier = constraint.attribute.rpartition("/")[2]
        known = {
            f"{'' if '/' in name else f'{device.key.driver}/'}{name}"
            for device in self.devices.values()
            for name in device.attributes
        }
        alike = [
            one for one in known if one.rpartition("/")[2] == identifier or one.startswith("resource.kubernetes.io/")
        ]
        return sorted(
            (one for one in alike if one != constraint.attribute), key=lambda one: (not one.endswith(identifier), one)
        )[:_MAX_ATTRIBUTES]

    def _edits_of_classes(self, claim: UnallocatedClaim) -> Iterator[Change]:
        """Yield corrections for classes that select no device: expressions get names and types that devices have."""
        for name in dict.fromkeys(one.device_class for one in claim.alternatives):
            known = self.classes.get(name)
            requests = [one for one in claim.alternatives if one.device_class == name]
            if known is None or any(self._devices_of(claim, one) for one in requests):
                continue
            for index, expression in enumerate(known.selectors):
                devices = list(self.devices.values())
                for edit in (repaired(expression or "", devices), optional(expression or "", devices)):
                    if edit is not None:
                        selectors = (*known.selectors[:index], edit.expression, *known.selectors[index + 1 :])
                        classes = {name: evolve(known, selectors=selectors)}
                        sentence, kind = f"DeviceClass {name} writes {edit}", f"class {name} {index}"
                        yield Change(sentence, [claim], Rank.REPAIR, kind, classes=classes)

    def _classes_of(self, claim: UnallocatedClaim, request: DeviceRequest) -> Iterator["_ChangedRequest"]:
        """Yield the request with each other class, if its expressions match only devices outside its class."""
        if self.outside_class(claim, request):
            for name in sorted(self.classes.keys() - {request.device_class}):
                yield f"names deviceClassName: {name}", evolve(request, device_class=name), Rank.REPAIR, ""

    def _fitting(self, claim: UnallocatedClaim, request: DeviceRequest) -> int:
        """Return how many devices fit a request, according to the verdicts."""
        return sum(one.reason is None for one in self._about(claim, request))

    def _about(self, claim: UnallocatedClaim, request: DeviceRequest) -> Sequence[DeviceVerdict]:
        return self._by_request.get((claim.name, request.result_name), ())

    @cached_property
    def _by_request(self) -> Mapping[tuple[str, str], Sequence[DeviceVerdict]]:
        found: dict[tuple[str, str], list[DeviceVerdict]] = {}
        for one in self.verdicts:
            found.setdefault((one.claim, one.request), []).append(one)
        return found

    def _amounts(self, claim: UnallocatedClaim) -> dict[tuple[str, str], list[Quantity]]:
        """Return the amounts that devices could provide instead, by request and capacity name, largest first."""
        found: dict[tuple[str, str], dict[int, Quantity]] = {}
        for one in self.verdicts:
            reason, device = one.reason, self.devices.get(one.device)
            if isinstance(reason, CapacityExceeded) and one.claim == claim.name and device is not None:
                of = found.setdefault((one.request, reason.name), {})
                of |= {amount.nanos: amount for amount in _valid_amounts(reason, device)}
        return {key: [of[nanos] for nanos in sorted(of, reverse=True)][:_MAX_AMOUNTS] for key, of in found.items()}


def _valid_amounts(reason: CapacityExceeded, device: PoolDevice) -> Iterator[Quantity]:
    """Yield the allowed values, or the largest allowed amount, of a capacity that a device can still provide."""
    capacity = device.capacity.get(reason.name)
    most = min(reason.needed.nanos, reason.free.nanos) if reason.free is not None else 0
    if capacity is None or most <= 0:
        return
    policy = capacity.policy
    if policy is not None and policy.values:
        yield from (one for one in policy.values if 0 < one.nanos <= most)
    elif policy is not None and policy.minimum is not None:
        if policy.maximum is not None:
            most = min(most, policy.maximum.nanos)
        step = policy.step.nanos if policy.step is not None else 0
        steps = (most - policy.minimum.nanos) // step if step else 0
        nanos = policy.minimum.nanos + steps * step if step else most
        if policy.minimum.nanos <= nanos <= most:
            yield Quantity(nanos, capacity.value.binary)
    else:
        yield Quantity(most, capacity.value.binary)


def _defaults(request: DeviceRequest, devices: Sequence[PoolDevice]) -> str:
    """Return, in words, how much of each of its capacities a request gets if it does not name an amount."""
    parts = []
    for name in request.capacity or {}:
        found = [capacity for one in devices for own, capacity in one.capacity.items() if _is_same(own, name, one)]
        given = [str(one.policy.default if one.policy and one.policy.default else one.value) for one in found]
        is_default = any(one.policy and one.policy.default for one in found)
        if given:
            parts.append(f"{'the default' if is_default else 'all'} {given[0]} of {name}")
    return f" (then it gets {' and '.join(parts)})" if parts else ""


def _is_same(own: str, name: str, device: PoolDevice) -> bool:
    return name in (own, f"{device.key.driver}/{own}")


def _released(name: str, held: Held) -> str:
    if held.pods or not held.claim:
        return f"{name} is released"
    namespace, _, short = held.claim.rpartition("/")
    return f"{name}, which no pod uses, is deleted: kubectl delete resourceclaim {short} --namespace {namespace}"


_ChangedRequest = tuple[str, DeviceRequest, Rank, str]
"""A change to a request: its description, the changed request, and the rank and kind of the change."""


def _about(claim: UnallocatedClaim, request: DeviceRequest) -> str:
    if isinstance(claim, ExtendedResourceClaim) and isinstance(request, ExtendedRequest):
        of = f" of container {request.container}" * (len(claim.sizes(request.resource)) > 1)
        return f"the limit of {request.resource}{of}"
    return f"request {request.result_name} of claim {claim.name}"


def _limits_of(claim: ExtendedResourceClaim) -> Iterator[Change]:
    """Yield the claim with lower limits for several containers, which may share devices."""
    groups = [(resource,) for resource in claim.classes]
    for resources in [*groups, *([tuple(claim.classes)] if len(groups) > 1 else [])]:
        sizes = {(name, one): size for one in resources for name, size in claim.sizes(one).items()}
        if len(sizes) > 1:
            for most in range(min(max(sizes.values(), default=0) - 1, MAX_RESULTS), 0, -1):
                limits = {of: min(size, most) for of, size in sizes.items()}
                named = " and ".join(resources)
                sentence = f"no limit of {named} exceeds {counted(most, 'device')}"
                yield Change(sentence, [claim.with_limits(limits)], Rank.LESS, f"{claim.name} each limit of {named}")


def _tolerating(claim: UnallocatedClaim, taint: Taint) -> Change:
    toleration = DeviceToleration(taint.key, "Exists", "", taint.effect)
    requests = tuple(
        tuple(evolve(one, tolerations=(*one.tolerations, toleration)) for one in ways) for ways in claim.requests
    )
    rank = Rank.WATCH if any(one.admin_access for one in claim.alternatives) else Rank.TOLERATE
    value = f', operator: Equal, value: "{taint.value}"' if taint.value else ", operator: Exists"
    written = f"[{{key: {taint.key}{value}, effect: {taint.effect}}}]"
    sentence = f"claim {claim.name} tolerates the taint {taint}: tolerations: {written} in its requests"
    return Change(sentence, [evolve(claim, requests=requests)], rank)


def _with_request(claim: UnallocatedClaim, request: DeviceRequest, changed: DeviceRequest) -> UnallocatedClaim:
    if isinstance(claim, ExtendedResourceClaim) and isinstance(changed, ExtendedRequest):
        return claim.with_limits({(changed.container, changed.resource): changed.limit})
    requests = tuple(tuple(changed if one is request else one for one in ways) for ways in claim.requests)
    return evolve(claim, requests=requests)


def _less_of(
    request: DeviceRequest, amounts: Mapping[str, Sequence[Quantity]], fitting: int, defaults: str
) -> Iterator[_ChangedRequest]:
    """Yield smaller versions of a request.

    Args:
        request: the request to make smaller.
        amounts: for each insufficient capacity, the amounts that devices could provide, largest first.
        fitting: the number of devices that fit the request.
        defaults: a description of the capacities that the request gets without asking for them.
    """
    # A count can be any 64-bit number, but no claim gets more than `MAX_RESULTS` devices.
    most = min(fitting if request.wants_all else request.count - 1, MAX_RESULTS)
    for fewer in range(most, 0, -1):
        changed = evolve(request, mode="ExactCount", count=fewer)
        size = fewer
        if isinstance(changed, ExtendedRequest):
            size = changed.limit - request.count + fewer
            changed = evolve(changed, limit=size)
        written = f" instead of all: allocationMode: ExactCount, count: {fewer}" * request.wants_all
        yield f"is for {counted(size, 'device')}{written}", changed, Rank.LESS, "count"
    for name, of in amounts.items():
        for amount in of:
            capacity = {**(request.capacity or {}), name: amount}
            yield f"asks for {amount} of {name}", evolve(request, capacity=capacity), Rank.AMOUNT, "capacity"
    if request.capacity:
        yield f"asks for no capacity{defaults}", evolve(request, capacity=None), Rank.WITHOUT, "capacity"


def _selectors_of(
    request: DeviceRequest, devices: Sequence[PoolDevice], *, is_known: bool
) -> Iterator[_ChangedRequest]:
    """Yield versions of a request with one expression corrected, given a different value, or (partly) removed.

    `is_known` says whether the cluster has devices that match the request.
    """
    for index, expression in enumerate(request.selectors):
        before, after, kind = request.selectors[:index], request.selectors[index + 1 :], f"expression {index}"
        mended = repaired(expression or "", devices)
        text = mended.expression if mended else expression or ""
        edits = [(one, Rank.REPAIR) for one in (mended, optional(expression or "", devices)) if one is not None]
        if not is_known:
            edits += [(one.after(mended, expression or ""), Rank.VALUE) for one in with_other_values(text, devices)]
        for edit, rank in edits:
            yield f"uses {edit}", evolve(request, selectors=(*before, edit.expression, *after)), rank, kind
        parts = conjuncts(expression or "") if len(expression or "") <= _MAX_PARTED else []
        for number, part in enumerate(parts if len(parts) > 1 else ()):
            rest = " && ".join(one for place, one in enumerate(parts) if place != number)
            shown = " ".join(part.split())
            yield f"does not require {shown}", evolve(request, selectors=(*before, rest, *after)), Rank.DROP, kind
        shown = " ".join((expression or "").split())
        yield f"does not require {shown}", evolve(request, selectors=(*before, *after)), Rank.DROP, kind
