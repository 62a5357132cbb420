"""Errors of allocation.

Law: an error says why nothing can be decided. A lack of devices is a result, not an error.
"""

from attrs import frozen

from devicecore.domain.allocation.model import DeviceKey
from devicecore.domain.errors import DeviceCoreError


@frozen
class SelectorError(DeviceCoreError):
    """A CEL expression cannot be compiled, or cannot be evaluated for a device."""

    problem: str
    at_run_time: bool = True

    def __str__(self) -> str:
        return f"CEL {'runtime' if self.at_run_time else 'compile'} error: {self.problem}"


class EvaluationsGivenUpError(SelectorError):
    """The evaluations for one question have taken too long in total, so this evaluation has no result."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"evaluating the expressions of one question took more than {seconds:g} s, and was abandoned")


@frozen
class UndecidedError(DeviceCoreError):
    """The claims cannot be allocated on any node, or nothing can be decided."""

    problem: str
    _text = "{problem}"


@frozen
class ExpressionError(UndecidedError):
    """An expression cannot be evaluated.

    `device` is the device for which the expression fails, or None if the expression fails for every device.
    """

    device: DeviceKey | None = None


@frozen
class SearchGivenUpError(UndecidedError):
    """The search took too many steps, or evaluating expressions took too long."""

    @classmethod
    def after(cls, steps: int) -> "SearchGivenUpError":
        """Return the error for a search that took more than `steps` steps."""
        return cls(f"the search was abandoned after {steps:,} steps, because there are too many combinations")

    @classmethod
    def after_pairs(cls, pairs: int) -> "SearchGivenUpError":
        """Return the error for a search that examined more than `pairs` pairs of a request and a device."""
        return cls(f"the search was abandoned after {pairs:,} pairs of a request and a device")


class QuestionGivenUpError(SearchGivenUpError):
    """The question that this search is part of has used up its budget."""


class ExcludedError(UndecidedError):
    """A constraint forbids one of the devices of a request that asks for all devices.

    Kubernetes then tries no other alternative.
    """

    def __init__(self, claim: str, request: str, device: str) -> None:
        problem = f"cannot add device {device} because a claim constraint would not be satisfied"
        super().__init__(f"claim {claim}, request {request}: {problem}")
