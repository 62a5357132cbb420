"""Reports on claims: why devices are rejected, grouped by reason, and which shortages make constraints unsatisfiable.

Law: each line only states a trial's verdicts. Devices that are rejected for the same reason share a line, with their
number and an example. A constraint's shortage is computed for the attribute value that comes closest.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import frozen

from devicecore.domain.allocation import DeviceKey, NoAllocation, PoolDevice, TargetNode, UnallocatedClaim
from devicecore.domain.allocation.alignment import Shortage, shortages
from devicecore.domain.allocation.model import DeviceRequest, Rule
from devicecore.domain.allocation.reasons import (
    CapacityExceeded,
    ConstraintBroken,
    CounterExhausted,
    DeviceVerdict,
    InUse,
    NotSelected,
    PoolUnusable,
    Reason,
    TakenBefore,
)
from devicecore.domain.text import counted, foreign_text, listed
from devicecore_tools.doctor.pod.expression_edits import misplaced, optional, repaired, unlike_types

_MAX_SHOWN = 3  # the maximum number of names in one line
_MAX_ASKED = 20  # the maximum number of devices per line whose holders are looked up
_MAX_EXPRESSION = 120


@frozen
class ReasonLine:
    """A line about the devices with the same verdict.

    Attributes:
        count: the number of devices.
        text: the verdict in words.
        example: one of the devices.
        is_of_others: whether the devices belong to other drivers or classes.
    """

    count: int
    text: str
    example: str = ""
    is_of_others: bool = False

    def __str__(self) -> str:
        return f"{counted(self.count, 'device')}: {self.text}"


def reason_lines(
    verdicts: Iterable[DeviceVerdict], fits: str, holders: Callable[[DeviceVerdict], Sequence[str]]
) -> list[ReasonLine]:
    """Return the lines about one request's devices.

    Devices that fit, or that no expression rejects, come first. Devices that the class does not select come last, with
    all other drivers' devices on one line.

    Args:
        verdicts: the verdict on each device.
        fits: the text for devices that fit.
        holders: a function that returns who uses the capacity or counter that a device lacks.
    """
    about = list(verdicts)
    own = {one.device.driver for one in about if not _is_of_class(one.reason)}
    groups: dict[str, list[DeviceVerdict]] = defaultdict(list)
    for one in about:
        groups[_kind(one.reason) if one.device.driver in own or not own else _FOREIGN].append(one)

    def rank(item: tuple[str, list[DeviceVerdict]]) -> tuple[int, int]:
        kind, group = item
        reason = group[0].reason
        is_last = kind == _FOREIGN or _is_of_class(reason)
        return (3 + (kind == _FOREIGN) if is_last else 2 if isinstance(reason, NotSelected) else 1, -len(group))

    lines = []
    for kind, group in sorted(groups.items(), key=rank):
        if kind == _FOREIGN:
            text = f"of other drivers: {_listed(one.device.driver for one in group)}"
        elif own and _is_of_class(group[0].reason):
            text = f"not of {getattr(group[0].reason, 'source', 'the class')}"
        else:
            text = _lacking_counters(group, holders) or (
                _text([one.reason for one in group], fits) + _held_by(group, holders)
            )
        is_of_others = kind == _FOREIGN or (bool(own) and _is_of_class(group[0].reason))
        lines.append(ReasonLine(len(group), text, str(group[0].device), is_of_others))
    return lines


_FOREIGN = "of other drivers"


def _is_of_class(reason: Reason | None) -> bool:
    return isinstance(reason, NotSelected) and reason.is_by_class


def _kind(reason: Reason | None) -> str:
    """Return the key of a reason. Reasons with the same key share a line."""
    if isinstance(reason, NotSelected):
        return f"selected {reason.source} {reason.expression}"
    if isinstance(reason, ConstraintBroken):
        return f"constraint {reason.constraint.attribute}"
    if isinstance(reason, PoolUnusable):
        return f"pool {reason.pool}"
    if isinstance(reason, CapacityExceeded):
        return f"capacity {reason.name} {reason.free is None} {bool(reason.allowed)}"
    if isinstance(reason, InUse | TakenBefore | CounterExhausted):
        return type(reason).__name__
    return str(reason)


def _lacking_counters(group: Sequence[DeviceVerdict], holders: Callable[[DeviceVerdict], Sequence[str]]) -> str:
    """Return which counter each of a few devices lacks and who uses it, or "" for one device or for many devices."""
    parts = [
        f"{one.device.device} lacks {one.reason.counter} (used by {_listed(holders(one)) or 'others'})"
        for one in group
        if isinstance(one.reason, CounterExhausted)
    ]
    return "; ".join(parts) if 1 < len(parts) <= _MAX_SHOWN else ""


def _held_by(group: Sequence[DeviceVerdict], holders: Callable[[DeviceVerdict], Sequence[str]]) -> str:
    """Return the holders of the capacity that the first device lacks, or of the counters that devices lack."""
    if isinstance(group[0].reason, CapacityExceeded):
        names = holders(group[0])
        return f"; {_listed(names)}" if names else ""
    names = [name for one in group[:_MAX_ASKED] for name in holders(one)]
    return f"; used by {_listed(names)}" if names else ""


def _text(reasons: Sequence[Reason | None], fits: str) -> str:
    first = reasons[0]
    if first is None:
        return fits
    if isinstance(first, InUse):
        return f"in use by {_listed(str(one.held) for one in reasons if isinstance(one, InUse))}"
    if isinstance(first, NotSelected):
        shown = foreign_text(" ".join(first.expression.split()), _MAX_EXPRESSION)
        found = [value for one in reasons if isinstance(one, NotSelected) for value in one.values]
        values = f"{', but ' * bool(found)}{_values_shown(found)}"
        return f"{first.source} requires {shown}{values}{_without_quotes(first)}"
    if isinstance(first, ConstraintBroken):
        broken = [one for one in reasons if isinstance(one, ConstraintBroken)]
        own = [one.device.attribute(first.constraint.attribute) for one in broken]
        if len(own) > 1 and None not in own:
            others = ", ".join(str(one.attribute(first.constraint.attribute)) for one in first.others)
            rule = first.constraint.rule.value if first.constraint.rule else "constraint"
            return (
                f"breaks {rule} {first.constraint.attribute}: these devices have {_listed(map(str, own))}, the others "
                f"have {others}"
            )
    if isinstance(first, CounterExhausted):
        short = Counter(one.counter for one in reasons if isinstance(one, CounterExhausted))
        free = f": needs {first.needed}, but {first.free} is free" if len(reasons) == 1 else ""
        return f"too little is free in {_listed(short.elements(), 'counter')}{free}"
    return str(first)


def _without_quotes(reason: NotSelected) -> str:
    """Return the fix for an expression that compares a number or boolean with a string: the two are never equal."""
    for name, one in reason.device.attributes.items():
        identifier = re.escape(name.rpartition("/")[2])
        quoted = rf"""\b{identifier}\b["'\]]*\s*==\s*(["']){re.escape(str(one))}\1"""
        if one.kind in ("int", "bool") and re.search(quoted, reason.expression):
            return f"; it is {'a number' if one.kind == 'int' else 'not a string'}: write {one} without quotes"
    return ""


def _values_shown(found: Sequence[str]) -> str:
    """Return values such as `model is "A100"`, grouped by name."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for one in found:
        name, verb, value = one.partition(" is ")
        by_name[f"{name}{verb}"].append(value)
    return "; ".join(f"{name}{_listed(values)}" for name, values in list(by_name.items())[:_MAX_SHOWN])


def _listed(names: Iterable[str], noun: str = "") -> str:
    """Return some names, most frequent first, and the number of further names."""
    found = [name for name, _ in Counter(names).most_common()]
    shown = listed(found, _MAX_SHOWN)
    return f"{noun}{'s' * (len(found) > 1)} {shown}" if noun else shown


# --- constraints ------------------------------------------------------------------------------------------------------


def constraint_lines(
    claims: Sequence[UnallocatedClaim], answer: NoAllocation, devices: Mapping[DeviceKey, PoolDevice]
) -> Iterator[str]:
    """Yield the shortages behind unsatisfiable constraints.

    A `matchAttribute` constraint is reported only if each request has enough devices on its own.
    """
    fit: dict[tuple[str, str], list[PoolDevice]] = defaultdict(list)
    for one in answer.verdicts:
        if (one.reason is None or isinstance(one.reason, ConstraintBroken | TakenBefore)) and one.device in devices:
            fit[one.claim, one.request].append(devices[one.device])
    for claim in claims:
        named = f" of claim {claim.name}" if len(claims) > 1 else ""

        def usable(request: DeviceRequest, claim: UnallocatedClaim = claim) -> Sequence[PoolDevice]:
            return fit[claim.name, request.result_name]

        for shortage in shortages(claim, usable):
            if all(len(usable(request)) >= request.count for request, _ in shortage.roles):
                yield f"matchAttribute{named}: {_lacking(shortage)}"
        for constraint in claim.constraints:
            if constraint.rule is Rule.DISTINCT:
                requests = [one for ways in claim.requests for one in ways[:1] if constraint.applies_to(one)]
                wanted = sum(one.count for one in requests if not one.wants_all)
                found = (one.attribute(constraint.attribute) for request in requests for one in usable(request))
                values = {str(value) for one in found if one is not None for value in one.values}
                if len(values) < wanted:
                    there = (
                        f"only {_shown(values)} {'exists' if len(values) == 1 else 'exist'}"
                        if values
                        else "none has it"
                    )
                    yield f"distinctAttribute{named}: needs {wanted} different {constraint.attribute}, and {there}"


def _lacking(shortage: Shortage) -> str:
    name, nearest = shortage.attribute, shortage.nearest
    if not nearest:
        return f"no device that fits has the attribute {name}"
    values = {value for _, have in shortage.roles for value in have}
    enough = sum(shortage.supply.values())
    needs = " and ".join(f"{request.count} for {request.result_name}" for request, _ in shortage.roles)
    if enough:
        alike = " or similar" if shortage.wanted > 1 else ""
        return (
            f"the claim needs {shortage.wanted} values of {name} with {needs}{alike}, "
            f"but only {counted(enough, 'value')} {'has' if enough == 1 else 'have'} enough devices"
        )
    if len(shortage.roles) > 1:
        if not set.intersection(*(set(have) for _, have in shortage.roles)):
            parts = [f"{_shown(have)} for {request.result_name}" for request, have in shortage.roles]
            return f"no value of {name} is common to all requests: {', '.join(parts)}"
        parts = [
            f"{have.get(nearest, 0)} of {request.count} for {request.result_name}" for request, have in shortage.roles
        ]
        return f"no value of {name} has devices for all requests; none has more than {nearest}: {', '.join(parts)}"
    request, have = shortage.roles[0]
    numbers = sorted(Counter(have.values()).items(), reverse=True)
    spread = ", ".join(
        f"{counted(times, 'value')} {'has' if times == 1 else 'have'} {number}" for number, times in numbers
    )
    return f"no value of {name} has {request.count} devices for {request.result_name}: {spread} ({_shown(values)})"


def _shown(values: Iterable[str]) -> str:
    return foreign_text(_listed(sorted(values)), _MAX_EXPRESSION)


# --- expressions ------------------------------------------------------------------------------------------------------

_NO_KEY = re.compile(r"""(?:no such key|Key not found in map) ?: ["']?([\w.-]+)""")
_UNDECLARED = re.compile(r"undeclared reference to '(?:device\.)?(\w+)'")
_DOMAIN = re.compile(r"""device\.(attributes|capacity)\[\s*["']([^"']+)["']\s*\]\.(\w+)""")


@frozen
class Expression:
    """An expression and its owner, such as `DeviceClass gpu`."""

    owner: str
    text: str


def expression_advice(
    problem: str,
    expressions: Sequence[Expression],
    device: PoolDevice | None,
    devices: Sequence[PoolDevice],
    *,
    is_mended: bool,
    then: str,
) -> Iterator[tuple[str, str]]:
    """Yield rows with the error in an expression that a scheduler cannot evaluate, and with a replacement.

    Args:
        problem: the error.
        expressions: the expressions that may have caused the error.
        device: the device for which the expression has no value, if known.
        devices: all known devices.
        is_mended: whether another row already proposes a tested edit.
        then: the consequence of giving an expression a value for devices without an attribute.
    """
    missing = _NO_KEY.search(problem)
    if missing and device is not None:
        yield from _about_missing(missing[1], device, expressions, devices, is_mended=is_mended, then=then)
        return
    yield from (("because", text) for one in expressions for text in misplaced(one.text, devices))
    told = [] if device is None else [text for one in expressions for text in unlike_types(one.text, device)]
    yield from (("do", text) for text in told)
    if is_mended:
        return
    edits = [(one.owner, edit) for one in expressions if (edit := repaired(one.text, devices)) is not None]
    if edits:
        yield from dict.fromkeys(("do", f"{owner}: write {edit}") for owner, edit in edits)
    elif unknown := _UNDECLARED.search(problem):
        yield from (("do", text) for text in _advice_of_unknown(unknown[1], devices))
    elif not told and ("_==_" in problem or "no matching overload" in problem.lower()):
        yield "do", 'compare a value with another of the same type: quantity("1Gi"), semver("1.2.3"), "text", 1 or true'


def _about_missing(
    name: str,
    device: PoolDevice,
    expressions: Sequence[Expression],
    devices: Sequence[PoolDevice],
    *,
    is_mended: bool,
    then: str,
) -> Iterator[tuple[str, str]]:
    """Yield `expression_advice`'s rows about a name that an expression reads but a device lacks."""
    uses = [match for one in expressions for match in _DOMAIN.finditer(one.text) if name == match[3]]
    kind, domain = uses[0].groups()[:2] if uses else ("attributes", "")
    of = f"{name} in domain {domain}" if domain else f"{name}, which the expression reads"
    with_it = [one for one in devices if any(_is_meant(domain, name, found) for found in _names(one))]
    there = f"; {_listed(str(one.key) for one in with_it)} {'has' if len(with_it) == 1 else 'have'} it"
    yield "because", f"device {device.key} has no {of}{there if with_it else _has(device, kind, name)}"
    yield from (("because", text) for one in expressions for text in misplaced(one.text, devices))
    if is_mended:
        return
    if edits := [(one.owner, edit) for one in expressions if (edit := repaired(one.text, devices)) is not None]:
        yield from dict.fromkeys(("do", f"{owner}: write {edit}") for owner, edit in edits)
        return
    if not with_it:
        yield "do", f"write a name that devices have, because no device has {of}"
        return
    if any(one.owner.startswith("DeviceClass") and name in one.text for one in expressions):
        yield "do", f"have {device.key.driver} also publish it for {device.key}, because a DeviceClass reads {name}"
    for one in expressions:
        if name in one.text and (edit := optional(one.text, devices)) is not None:
            skipped = f"devices without {name} are then skipped without an error{then}"
            yield "do", f"{one.owner}: write {edit}: {skipped}"


def _is_meant(domain: str, name: str, found: tuple[str, str]) -> bool:
    """Return whether `name` in `domain` means `found`, a value's domain and name. An empty `domain` matches any."""
    return found[1] == name and domain in ("", found[0])


def _advice_of_unknown(name: str, devices: Sequence[PoolDevice]) -> Iterator[str]:
    where = sorted({domain for one in devices for domain, identifier in _names(one) if identifier == name})
    if where:
        yield f'write device.attributes["{where[0]}"].{name}'
    elif name != "device":
        yield 'write device.driver, device.attributes["DOMAIN"].NAME or device.capacity["DOMAIN"].NAME'


def _has(device: PoolDevice, kind: str, missing: str) -> str:
    """Return the names of the device's attributes or capacities as the end of a message, or an empty string."""
    names = sorted(device.attributes if kind == "attributes" else device.capacity)
    shown = [f"{device.key.driver}/{name}" if name == missing else name for name in names]
    return f"; it has {_listed(shown)}" if names else ""


def _names(device: PoolDevice) -> Iterator[tuple[str, str]]:
    for name in (*device.attributes, *device.capacity):
        domain, _, identifier = name.rpartition("/")
        yield domain or device.key.driver, identifier


# --- nodes ------------------------------------------------------------------------------------------------------------

_TYPES = {
    "node.kubernetes.io/instance-type": "instance type",
    "beta.kubernetes.io/instance-type": "instance type",
    "nvidia.com/gpu.product": "GPU product",
}


def type_of(node: TargetNode) -> str:
    """Return the machine type from a Node's labels, such as `instance type p5`, or an empty string."""
    return next((f"{what} {node.labels[label]}" for label, what in _TYPES.items() if node.labels.get(label)), "")


def shape_of(node: TargetNode, verdicts: Iterable[DeviceVerdict]) -> str:
    """Return a description of nodes of one kind: the machine type, or otherwise the devices by driver."""
    devices = Counter(driver for driver, _, _ in {one.device for one in verdicts})
    listed = ", ".join(f"{counted(count, 'device')} of {driver}" for driver, count in sorted(devices.items()))
    return type_of(node) or listed or "no device"
