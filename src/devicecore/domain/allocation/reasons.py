"""Why a device is not allocated to a request.

Law: the text of a reason is one line that names what is in the way, with its value, and it is bounded.
"""

import re
from typing import ClassVar, NamedTuple

from attrs import frozen

from devicecore.domain.allocation.model import Constraint, DeviceKey, Held, PoolDevice, Taint
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text

_WORD = re.compile(r"[A-Za-z_]\w*")
_MAX_TEXT = 200
_MAX_VALUES = 4


@frozen
class PoolUnusable:
    """The pool gives no device."""

    summary: ClassVar[str] = "in unusable pools"

    pool: str
    problem: str

    def __str__(self) -> str:
        return foreign_text(f"pool {self.pool}: {self.problem}", _MAX_TEXT)


@frozen
class OnOtherNode:
    """The device is not available on the node."""

    summary: ClassVar[str] = "on other nodes"

    node: str

    def __str__(self) -> str:
        return f"is not available on node {foreign_text(self.node, _MAX_TEXT)}"


@frozen
class NotSelected:
    """An expression does not select the device. `source` is the class or the request that has it."""

    summary: ClassVar[str] = "not selected"

    source: str
    expression: str
    device: PoolDevice

    def __str__(self) -> str:
        shown = foreign_text(" ".join(self.expression.split()), _MAX_TEXT)
        values = "; ".join(mentioned(self.expression, self.device)[:_MAX_VALUES])
        return f"{self.source} wants {shown}{' but ' * bool(values)}{values}"


@frozen
class InUse:
    """The device is allocated already."""

    summary: ClassVar[str] = "in use"

    held: Held

    def __str__(self) -> str:
        return f"is held by {foreign_text(str(self.held), _MAX_TEXT)}"


@frozen
class TakenBefore:
    """Another request of the same pod gets the device."""

    summary: ClassVar[str] = "taken by other requests"

    claim: str
    request: str

    def __str__(self) -> str:
        return f"is taken by request {self.request} of claim {self.claim}"


@frozen
class NotTolerated:
    """The request does not tolerate a taint."""

    summary: ClassVar[str] = "tainted"

    taint: Taint

    def __str__(self) -> str:
        return f"has the taint {foreign_text(str(self.taint), _MAX_TEXT)}"


@frozen
class CounterExhausted:
    """Other devices of the pool leave too little of a counter."""

    summary: ClassVar[str] = "short of a counter"

    counter: str
    needed: Quantity
    free: Quantity

    def __str__(self) -> str:
        return f"needs {self.needed} of counter {self.counter}, and {self.free} is free"


@frozen
class CapacityExceeded:
    """The device has too little left of a capacity, or none. `allowed` is what a share may consume, if that matters."""

    summary: ClassVar[str] = "short of capacity"

    name: str
    needed: Quantity
    free: Quantity | None
    allowed: str = ""

    def __str__(self) -> str:
        if self.free is None:
            return f"has no capacity {self.name}"
        if self.allowed:
            return f"gives shares of {self.name} only of {self.allowed}, not of {self.needed}"
        return f"would have to give {self.needed} of {self.name}, and has {self.free}"


@frozen
class ConstraintBroken:
    """A constraint forbids the device beside the other devices of the claim."""

    summary: ClassVar[str] = "excluded by a constraint"

    constraint: Constraint
    device: PoolDevice
    others: tuple[str, ...]

    def __str__(self) -> str:
        name = self.constraint.attribute
        own = self.device.attribute(name)
        rule = f"breaks {self.constraint.rule.value if self.constraint.rule else 'an unknown constraint'} {name}"
        if own is None:
            return f"{rule}: it has no such attribute"
        return f"{rule}: it has {own}, the others {', '.join(self.others)}"


@frozen
class GateOff:
    """The device needs a feature that is switched off."""

    summary: ClassVar[str] = "behind a feature gate"

    gate: str

    def __str__(self) -> str:
        return f"needs the feature gate {self.gate}"


@frozen
class Undecided:
    """Whether the device is fit cannot be told."""

    summary: ClassVar[str] = "undecided"

    problem: str

    def __str__(self) -> str:
        return foreign_text(self.problem, _MAX_TEXT)


Reason = (
    Undecided
    | PoolUnusable
    | OnOtherNode
    | NotSelected
    | InUse
    | TakenBefore
    | NotTolerated
    | CounterExhausted
    | CapacityExceeded
    | ConstraintBroken
    | GateOff
)
"""Why a device is not allocated to a request."""


def mentioned(expression: str, device: PoolDevice) -> list[str]:
    """Return the values of the device that an expression names: `model is "A100"`."""
    words = set(_WORD.findall(expression))
    found = [f"the driver is {device.key.driver}"] if "driver" in words else []
    for name, attribute in sorted(device.attributes.items()):
        if name.rpartition("/")[2] in words:
            found.append(f"{name} is {attribute}")
    for name, capacity in sorted(device.capacity.items()):
        if name.rpartition("/")[2] in words:
            found.append(f"{name} is {capacity.value}")
    if "allowMultipleAllocations" in words:
        found.append("it is shared" if device.is_shared else "it is not shared")
    return [foreign_text(text, _MAX_TEXT) for text in found]


class DeviceVerdict(NamedTuple):
    """Why a device of the node does not help a request; without a reason it is fit, and something else is missing."""

    claim: str
    request: str
    device: DeviceKey
    reason: Reason | None

    def __str__(self) -> str:
        return f"{self.device}: {self.reason or 'fits alone'}"
