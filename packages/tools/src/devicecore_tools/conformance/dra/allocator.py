"""A small allocator: which published devices a claim gets.

Laws: a device is in one claim at a time, unless it may be allocated several times; then its capacity is not exceeded.
Nor are counters that devices share. The device whose last use is the longest ago is taken first, so that a device that
a driver has not released disturbs few checks.
It knows counts, `All`, alternatives, taints, and CEL expressions that compare the driver or an attribute with a value;
an allocation that needs more is refused as `UndecidableError`.
"""

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.quantity import whole_quantity
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.testing.dra_pools import Slice, SliceDevice

Json = dict[str, Any]

_COMPARISON = re.compile(
    r"device\.(?P<driver>driver)|device\.attributes\[\s*(?P<q>[\"'])(?P<domain>[^\"']+)(?P=q)\s*\]\.(?P<name>\w+)"
)
_LITERAL = re.compile(r"\"[^\"\\]*\"|'[^'\\]*'|-?\d+|true|false")
_KINDS = {"string": str, "version": str, "int": int, "bool": bool}
_REPELLING = ("NoSchedule", "NoExecute")


@frozen
class AllocationError(DeviceCoreError):
    """The published devices cannot fulfil a claim."""

    problem: str

    def __str__(self) -> str:
        return self.problem


class UndecidableError(AllocationError):
    """Whether they can needs more of CEL than this allocator knows."""


@define
class Allocator:
    """Allocates the devices of one driver.

    Attributes:
        driver: its name.
        classes: returns a DeviceClass by name, or raises.
    """

    driver: str
    classes: Callable[[str], Json]
    _used: dict[tuple[str, str], int] = field(factory=dict)
    _clock: int = 0

    def allocate(
        self,
        spec: Mapping[str, Any],
        devices: Sequence[SliceDevice],
        slices: Sequence[Slice],
        taken: Sequence[SliceDevice],
    ) -> Json:
        """Return the `status.allocation` of a claim with this spec.

        Args:
            spec: the claim's `spec`.
            devices: what may be allocated.
            slices: where the counters stand that the devices consume.
            taken: the devices of claims that are allocated now.

        Raises:
            AllocationError: there are too few devices.
            UndecidableError: only CEL can tell.
        """
        body = spec.get("devices") or {}
        if body.get("constraints"):
            message = "the claim has constraints, which the allocator of the checks does not know"
            raise UndecidableError(message)
        chosen: list[tuple[str, SliceDevice, Mapping[str, Any]]] = []
        classes: list[tuple[str, Json]] = []
        for request in body.get("requests") or ():
            in_claim = {one.key for _, one, _ in chosen}
            left = [one for one in devices if one.key not in in_claim]
            name, wanted, found = self._fulfil(request, left, slices, [*taken, *(one for _, one, _ in chosen)])
            chosen += [(name, one, wanted) for one in found]
            classes.append((name, self.classes(str(wanted.get("deviceClassName")))))
        for _, device, _ in chosen:
            self._clock += 1
            self._used[device.key] = self._clock
        config = [
            {"source": "FromClass", "requests": [name], **entry}
            for name, one in classes
            for entry in one.get("spec", {}).get("config") or ()
        ]
        config += [{"source": "FromClaim", **entry} for entry in body.get("config") or ()]
        results = [self.result(name, device, wanted) for name, device, wanted in chosen]
        return {"devices": {"results": results} | ({"config": config} if config else {})}

    def oldest_first(self, devices: Iterable[SliceDevice]) -> list[SliceDevice]:
        """Return devices in the order of their last allocation, those that never were allocated first."""
        return sorted(devices, key=lambda one: self._used.get(one.key, 0))

    def result(self, request: str, device: SliceDevice, wanted: Mapping[str, Any] = {}) -> Json:
        """Return an entry of `status.allocation.devices.results`."""
        result: Json = {"request": request, "driver": self.driver, "pool": device.pool, "device": device.name}
        if device.body.get("allowMultipleAllocations"):
            result["shareID"] = str(uuid.uuid4())
            if consumed := consumed_capacity(device, wanted):
                result["consumedCapacity"] = consumed
        return result

    def _fulfil(
        self,
        request: Mapping[str, Any],
        devices: Sequence[SliceDevice],
        slices: Sequence[Slice],
        taken: Sequence[SliceDevice],
    ) -> tuple[str, Mapping[str, Any], list[SliceDevice]]:
        """Return the name in the result, the request or alternative that is fulfilled, and its devices."""
        name = str(request.get("name"))
        if "exactly" in request:
            return name, request["exactly"], self._exactly(request["exactly"], devices, slices, taken)
        problem = "it asks for nothing"
        for alternative in request.get("firstAvailable") or ():
            try:
                found = self._exactly(alternative, devices, slices, taken)
            except UndecidableError:
                raise
            except AllocationError as error:
                problem = error.problem
            else:
                return f"{name}/{alternative['name']}", alternative, found
        message = f"no alternative of request {foreign_text(name)} can be allocated: {problem}"
        raise AllocationError(message)

    def _exactly(
        self,
        wanted: Mapping[str, Any],
        devices: Sequence[SliceDevice],
        slices: Sequence[Slice],
        taken: Sequence[SliceDevice],
    ) -> list[SliceDevice]:
        selectors = [
            *(self.classes(str(wanted.get("deviceClassName"))).get("spec", {}).get("selectors") or ()),
            *(wanted.get("selectors") or ()),
        ]
        expressions = [str((one.get("cel") or {}).get("expression")) for one in selectors]
        fitting = [one for one in devices if all(matches(text, self.driver, one) for text in expressions)]
        fitting = [one for one in fitting if not is_repelling(one, wanted.get("tolerations") or ())]
        uses = Counter(one.key for one in taken)
        free = [one for one in fitting if has_room(one, wanted, uses[one.key])]
        is_all = wanted.get("allocationMode") == "All"
        if is_all and len(free) < len(fitting):
            message = f"a request for all devices needs {len(fitting)}, and {len(fitting) - len(free)} are in use"
            raise AllocationError(message)
        count = len(fitting) if is_all else int(wanted.get("count") or 1)
        found: list[SliceDevice] = []
        for device in self.oldest_first(free):
            if len(found) < count and fits_counters([*taken, *found, device], slices):
                found.append(device)
        if len(found) < count or not found:
            message = f"it needs {counted(max(count, 1), 'device')}, and {len(found)} can be allocated"
            raise AllocationError(message)
        return found


def consumed_capacity(device: SliceDevice, wanted: Mapping[str, Any]) -> dict[str, str]:
    """Return what a claim consumes of a device that may be allocated several times: all, unless less is enough."""
    asked = (wanted.get("capacity") or {}).get("requests") or {}
    return {
        name: str(asked.get(name) or (value.get("requestPolicy") or {}).get("default") or value["value"])
        for name, value in (device.body.get("capacity") or {}).items()
    }


def has_room(device: SliceDevice, wanted: Mapping[str, Any], uses: int) -> bool:
    """Whether another claim can get the device beside those that have it, if each of them consumes as much.

    Raises:
        UndecidableError: an amount is no quantity.
    """
    if not device.body.get("allowMultipleAllocations"):
        return not uses
    capacity = device.body.get("capacity") or {}
    return all(
        (uses + 1) * _whole(amount) <= _whole(capacity[name]["value"])
        for name, amount in consumed_capacity(device, wanted).items()
    )


def is_repelling(device: SliceDevice, tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a scheduler allocates the device to no claim with these tolerations."""
    taints = [taint for taint in device.body.get("taints") or () if taint.get("effect") in _REPELLING]
    return any(not any(_tolerates(one, taint) for one in tolerations) for taint in taints)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and toleration.get("value", "") == taint.get("value", "")


def fits_counters(devices: Iterable[SliceDevice], slices: Iterable[Slice]) -> bool:
    """Whether the counters that devices consume suffice for all of them together.

    Raises:
        UndecidableError: an amount is no quantity.
    """
    left = {
        (str(one["spec"]["pool"]["name"]), shared["name"], name): _whole(value["value"])
        for one in slices
        for shared in one["spec"].get("sharedCounters") or ()
        for name, value in shared["counters"].items()
    }
    for device in devices:
        for consumed in device.body.get("consumesCounters") or ():
            for name, value in consumed["counters"].items():
                key = (device.pool, consumed["counterSet"], name)
                left[key] = left.get(key, 0) - _whole(value["value"])
    return all(value >= 0 for value in left.values())


def _whole(amount: object) -> int:
    try:
        return whole_quantity(str(amount))
    except DeviceCoreError as error:
        message = f"a counter or a capacity has an amount that the allocator of the checks cannot read: {error}"
        raise UndecidableError(message) from None


def matches(expression: str, driver: str, device: SliceDevice) -> bool:
    """Whether a CEL expression selects a device, if it consists of comparisons joined by `&&`.

    Raises:
        UndecidableError: it does not.
    """
    holds = [_holds(part.strip(), expression, driver, device) for part in _parts(expression)]  # each must be decidable
    return all(holds)


def _parts(expression: str) -> Iterator[str]:
    depth, start, quote = 0, 0, ""
    for index, letter in enumerate(expression):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif not depth and expression.startswith("&&", index):
            yield expression[start:index]
            start = index + 2
    yield expression[start:]


def _holds(part: str, expression: str, driver: str, device: SliceDevice) -> bool:
    while part.startswith("(") and part.endswith(")") and "(" not in part[1:-1]:
        part = part[1:-1].strip()
    if part == "true":
        return True
    pieces = re.split(r"\s*(==|!=)\s*", part, maxsplit=1)
    left, operator, right = pieces if len(pieces) == 3 else (part, "==", "true")  # noqa: PLR2004 - two sides and the operator
    found = _COMPARISON.fullmatch(left)
    if found is None or _LITERAL.fullmatch(right) is None:
        message = f"the allocator of the checks cannot evaluate the CEL expression {foreign_text(expression, 200)!r}"
        raise UndecidableError(message)
    actual = driver if found["driver"] else _attribute(device, found["domain"], found["name"], driver)
    return (actual == _value(right)) is (operator == "==") and actual is not None


def _value(literal: str) -> str | int | bool:
    if literal[0] in "\"'":
        return literal[1:-1]
    return literal == "true" if literal in {"true", "false"} else int(literal)


def _attribute(device: SliceDevice, domain: str, name: str, driver: str) -> Any:  # noqa: ANN401 - a JSON scalar
    attributes = device.body.get("attributes") or {}
    value = attributes.get(f"{domain}/{name}")
    if value is None and domain == driver:
        value = attributes.get(name)
    return next((value[kind] for kind in _KINDS if value is not None and kind in value), None)
