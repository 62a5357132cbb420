"""Decides which published devices a check's claim gets, as a scheduler does, but in a different order.

Law: the least recently used device is allocated first, so that a device that a driver has not released affects few
checks. Devices that may be allocated several times come after the others: what a driver keeps of one claim does not
prevent it from preparing such a device for another claim. `devicecore.domain.allocation` decides everything else.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from attrs import define, evolve, field, frozen

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceKey,
    Features,
    Held,
    SelectorError,
    TargetNode,
    allocate,
    claim_of,
    class_of,
    slice_of,
)
from devicecore.domain.allocation.capacity import by_own_names, consumption
from devicecore.domain.allocation.model import (
    Attribute,
    Constraint,
    NodeRule,
    PoolDevice,
    PoolSlice,
    Rule,
    UnallocatedClaim,
)
from devicecore.domain.errors import DeviceCoreError, DocumentError
from devicecore.domain.quantity import Quantity
from devicecore_tools.expressions import Expressions
from devicecore_tools.testing.dra_pools import Slice, SliceDevice

Json = dict[str, Any]
CounterSet = tuple[str, Mapping[str, Quantity]]
Value = TypeVar("Value")

_NODE = TargetNode("node")
_POOL = "published"
_ENOUGH = 64  # devices; if they satisfy a claim, no others are considered
_MAX_VALUES = 8  # in one slice: fewer devices than allowed, and as many counter sets as allowed
_NUMBER = "checks.devicecore/device"
_FEATURES = Features(list_attributes=True)  # numaNode may be a list
_EXPRESSIONS = Expressions(_FEATURES)


@frozen
class AllocationError(DeviceCoreError):
    """The published devices cannot satisfy a claim."""

    problem: str
    _text = "{problem}"


class UndecidableError(AllocationError):
    """The allocation cannot be decided, because an object or an expression cannot be read."""


@define
class Allocator:
    """Allocates the devices of one driver.

    Attributes:
        driver: the driver's name.
        classes: returns the DeviceClass with the given name, or raises AllocationError.
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
        *,
        is_trial: bool = False,
    ) -> Json:
        """Return the `status.allocation` of a claim with this spec.

        All pools are merged, so that devices have one order.

        Args:
            spec: the claim's `spec`.
            devices: the devices that may be allocated.
            slices: the slices that contain the counters the devices consume.
            taken: the devices of currently allocated claims.
            is_trial: whether this is only a trial, in which case the devices do not count as used.

        Raises:
            AllocationError: there are too few devices.
            UndecidableError: an object or an expression cannot be read.
        """
        offered = self.oldest_first(devices)
        if len(offered) > _ENOUGH and not _asks_for_all(spec):
            used = {one.key for one in taken}
            some = [one for one in offered if one.key not in used][:_ENOUGH]
            with suppress(AllocationError):  # the claim may need devices that are not in `some`
                return self._allocate(spec, some, slices, taken, is_trial=is_trial)
        return self._allocate(spec, offered, slices, taken, is_trial=is_trial)

    def _allocate(
        self,
        spec: Mapping[str, Any],
        offered: Sequence[SliceDevice],
        slices: Sequence[Slice],
        taken: Sequence[SliceDevice],
        *,
        is_trial: bool,
    ) -> Json:
        keys = {one.key for one in offered}
        known = [*offered, *{one.key: one for one in taken if one.key not in keys}.values()]
        names = {one.key: f"d{number}" for number, one in enumerate(known)}
        try:
            claim = _claim(spec)
            wanted = {one.device_class for ways in claim.requests for one in ways}
            classes = [class_of({"metadata": {"name": name}, **self.classes(name)}) for name in sorted(wanted)]
            pool = self._pool([self._named(one, names[one.key]) for one in known], list(counter_sets(slices)))
        except DocumentError as error:
            raise UndecidableError(str(error)) from None
        request = claim.requests[0][0] if claim.requests else None
        by_name = {device.key.device: device for one in pool for device in one.devices}
        held = []
        for one in taken:
            device = by_name[names[one.key]]
            used = consumption(by_own_names(request.capacity or {}, device), device) if request else {}
            held.append(Held(device.key, is_share=one.key in keys and device.is_shared, consumed=used))
        answer = allocate([claim], _NODE, pool, held, classes, matches=_EXPRESSIONS, features=_FEATURES)
        if not isinstance(answer, DeviceAllocation):
            is_undecided = answer.is_unknown or answer.expression_error is not None
            raise (UndecidableError if is_undecided else AllocationError)(str(answer))
        allocation: Json = answer.results(iter(lambda: str(uuid.uuid4()), ""))[0]
        for result in allocation["devices"]["results"]:
            chosen = known[int(result["device"][1:])]
            result |= {"pool": chosen.pool, "device": chosen.name}
            if not is_trial:
                self._clock += 1
                self._used[chosen.key] = self._clock
        return allocation

    def _named(self, device: SliceDevice, name: str) -> PoolDevice:
        """Return a device under its name in the merged pool. Raises DocumentError if the device cannot be read."""
        read = device.value
        counters = tuple((f"{device.pool}/{of}", amounts) for of, amounts in read.counters)
        attributes = {**read.attributes, _NUMBER: Attribute("string", (name,))}
        return evolve(read, key=DeviceKey(self.driver, _POOL, name), attributes=attributes, counters=counters)

    def _pool(self, devices: list[PoolDevice], counters: list[CounterSet]) -> list[PoolSlice]:
        parts: list[Json] = [{"devices": tuple(part)} for part in _parts(devices)]
        parts += [{"counters": tuple(part)} for part in _parts(counters)]
        everywhere = NodeRule(all_nodes=True)
        return [
            PoolSlice(f"{number:04}", self.driver, _POOL, 1, len(parts), everywhere, **part)
            for number, part in enumerate(parts)
        ]

    def oldest_first(self, devices: Iterable[SliceDevice]) -> list[SliceDevice]:
        """Return devices in the order of their last allocation, starting with those never allocated.

        Devices that may be allocated several times come after the others, and those with binding conditions come last.
        """
        return sorted(devices, key=lambda one: (one.has_binding_conditions, one.is_shared, self._used.get(one.key, 0)))


def _asks_for_all(spec: Mapping[str, Any]) -> bool:
    """Return whether a request in a claim's spec is for all devices."""
    return '"All"' in json.dumps(spec)


def _claim(spec: Mapping[str, Any]) -> UnallocatedClaim:
    """Return a claim that gets each device at most once, because checks could not tell a device's shares apart."""
    claim = claim_of({"metadata": {"name": "claim"}, "spec": spec})
    return evolve(claim, constraints=(*claim.constraints, Constraint(Rule.DISTINCT, _NUMBER)))


def _parts(values: list[Value]) -> list[list[Value]]:
    """Split the values into lists that are short enough for a slice."""
    return [values[start : start + _MAX_VALUES] for start in range(0, len(values), _MAX_VALUES)]


def counter_sets(slices: Iterable[Slice]) -> Iterable[CounterSet]:
    """Yield the counter sets of slices under unique names. Raises DocumentError if a counter set cannot be read."""
    for one in slices:
        spec = {"driver": "driver", "pool": one["spec"]["pool"], "sharedCounters": one["spec"].get("sharedCounters")}
        read = slice_of({"metadata": {"name": "counters"}, "spec": spec})
        yield from ((f"{read.pool}/{of}", amounts) for of, amounts in read.counters)


def matches(expression: str, driver: str, device: SliceDevice) -> bool:
    """Return whether a CEL expression selects a device.

    Raises UndecidableError if the device cannot be read, or if the expression has no value for the device.
    """
    try:
        read = device.value
        return _EXPRESSIONS(expression, evolve(read, key=read.key._replace(driver=driver)))
    except (SelectorError, DocumentError) as error:
        raise UndecidableError(str(error)) from None
