"""Why a device is not allocated to a request.

Law: the text of a reason is one bounded line that names the obstacle and its value.
"""

import re
from typing import ClassVar, NamedTuple

from attrs import fields_dict, frozen

from devicecore.domain.allocation.model import Constraint, DeviceKey, Held, PoolDevice, Taint
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text

_WORD = re.compile(r"[A-Za-z_]\w*")
_MAX_TEXT = 200
_MAX_VALUES = 4


@frozen
class Reason:
    """Why a device is not allocated to a request. `_text` is the sentence, with the fields in braces."""

    summary: ClassVar[str]
    """The label for the count of devices with this reason."""
    _text: ClassVar[str]

    def __str__(self) -> str:
        fields = {name: foreign_text(str(getattr(self, name)), _MAX_TEXT) for name in fields_dict(type(self))}
        return foreign_text(self._text.format_map(fields), _MAX_TEXT)


@frozen
class PoolUnusable(Reason):
    """The pool provides no devices."""

    summary = "in unusable pools"
    pool: str
    problem: str
    _text = "pool {pool}: {problem}"


@frozen
class OnOtherNode(Reason):
    """The device is not available on the node."""

    summary = "on other nodes"
    node: str
    _text = "is not available on node {node}"


@frozen
class NotSelected(Reason):
    """An expression does not select the device. `source` describes the class or request with the expression."""

    summary = "not selected"
    source: str
    expression: str
    device: PoolDevice
    is_by_class: bool = False

    @property
    def values(self) -> list[str]:
        """The device's values that the expression names, such as `model is "A100"`."""
        return mentioned(self.expression, self.device)[:_MAX_VALUES]

    def __str__(self) -> str:
        shown = foreign_text(" ".join(self.expression.split()), _MAX_TEXT)
        values = "; ".join(self.values)
        return f"{self.source} wants {shown}{' but ' * bool(values)}{values}"


@frozen
class InUse(Reason):
    """The device is allocated already."""

    summary = "in use"
    held: Held
    _text = "is held by {held}"


@frozen
class TakenBefore(Reason):
    """A request of the same pod already gets the device."""

    summary = "taken by other requests"
    claim: str
    request: str
    _text = "is taken by request {request} of claim {claim}"


@frozen
class NotTolerated(Reason):
    """The request does not tolerate a taint."""

    summary = "tainted"
    taint: Taint
    _text = "has the taint {taint}"


@frozen
class CounterExhausted(Reason):
    """Too little of a counter is left for the device."""

    summary = "short of a counter"
    counter: str
    needed: Quantity
    free: Quantity
    _text = "needs {needed} of counter {counter}, but {free} is free"


@frozen
class CapacityExceeded(Reason):
    """The device has too little of a capacity left, or does not have the capacity at all.

    Attributes:
        name: the name of the capacity.
        needed: what a share would consume.
        free: the amount that is left, or None if the device has no such capacity.
        allowed: the amounts that a share may consume, or an empty string if the needed amount is allowed.
        asked: the requested amount, or None if the request names no amount and consumes the default or everything.
        total: the total amount that the device has.
    """

    summary = "short of capacity"
    name: str
    needed: Quantity
    free: Quantity | None
    allowed: str = ""
    asked: Quantity | None = None
    total: Quantity | None = None

    def __str__(self) -> str:
        if self.free is None:
            return f"has no capacity {self.name}"
        if self.allowed:
            return f"gives out {self.name} only in shares of {self.allowed}, not of {self.needed}"
        wants = f"the request asks for {self.needed} of {self.name}"
        if self.asked is None:
            wants = f"the request names no amount of {self.name}, which means {self.needed}"
        elif self.asked.nanos != self.needed.nanos:
            wants = f"the request asks for {self.asked} of {self.name}, which its policy rounds up to {self.needed}"
        is_whole = self.total is None or self.free.nanos == self.total.nanos
        return f"{wants}, but the device has {self.free}{'' if is_whole else f' left of {self.total}'}"


@frozen
class ConstraintBroken(Reason):
    """A constraint forbids combining the device with the claim's other devices."""

    summary = "excluded by a constraint"
    constraint: Constraint
    device: PoolDevice
    others: tuple[PoolDevice, ...]

    def __str__(self) -> str:
        name = self.constraint.attribute
        own = self.device.attribute(name)
        rule = f"breaks {self.constraint.rule.value if self.constraint.rule else 'an unknown constraint'} {name}"
        if own is None:
            return f"{rule}: it has no such attribute"
        return f"{rule}: it has {own}, and the others have {', '.join(str(one.attribute(name)) for one in self.others)}"


@frozen
class GateOff(Reason):
    """The device needs a feature that is turned off."""

    summary = "behind a feature gate"
    gate: str
    _text = "needs the feature gate {gate}"


@frozen
class Undecided(Reason):
    """It is unknown whether the device fits."""

    summary = "undecided"
    problem: str
    _text = "{problem}"


ALWAYS = GateOff | InUse | NotSelected | NotTolerated | OnOtherNode
"""Reasons that hold no matter what else is taken."""


def mentioned(expression: str, device: PoolDevice) -> list[str]:
    """Return the device's values that an expression names, such as `model is "A100"`."""
    words = set(_WORD.findall(expression))
    found = [f"the driver is {device.key.driver}"] if "driver" in words else []
    capacities = [(name, one.value) for name, one in sorted(device.capacity.items())]
    for name, value in (*sorted(device.attributes.items()), *capacities):
        if name.rpartition("/")[2] in words:
            found.append(f"{name} is {value}")
    if "allowMultipleAllocations" in words:
        found.append("it is shared" if device.is_shared else "it is not shared")
    return [foreign_text(text, _MAX_TEXT) for text in found]


class DeviceVerdict(NamedTuple):
    """Why a device on the node does not help a request.

    If `reason` is None, the device fits and something else is missing.
    """

    claim: str
    request: str
    device: DeviceKey
    reason: Reason | None

    def __str__(self) -> str:
        return f"{self.device}: {self.reason or 'fits alone'}"
