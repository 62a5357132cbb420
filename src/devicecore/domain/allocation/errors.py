"""Errors of allocation.

Law: an error says why nothing can be decided. That there are too few devices is a result, and no error.
"""

from attrs import frozen

from devicecore.domain.allocation.model import DeviceKey
from devicecore.domain.errors import DeviceCoreError


@frozen
class SelectorError(DeviceCoreError):
    """A CEL expression cannot be compiled, or its value for a device cannot be told."""

    problem: str
    at_run_time: bool = True

    def __str__(self) -> str:
        return f"CEL {'runtime' if self.at_run_time else 'compile'} error: {self.problem}"


class EvaluationsGivenUpError(SelectorError):
    """All evaluations of one question together have taken too long, so that nothing is known of this one."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the expressions of one question took more than {seconds:g} s, and were given up")


@frozen
class UndecidedError(DeviceCoreError):
    """The claims cannot be allocated on any node, or it cannot be decided."""

    problem: str
    _text = "{problem}"


@frozen
class ExpressionError(UndecidedError):
    """An expression cannot be evaluated. `device` is the one for which it has no value, None if it has for none."""

    device: DeviceKey | None = None


@frozen
class SearchGivenUpError(UndecidedError):
    """The search took too many steps, or its expressions too long."""

    @classmethod
    def after(cls, steps: int) -> "SearchGivenUpError":
        """Return the error of a search that took more than `steps` steps."""
        return cls(f"the search was given up after {steps:,} steps, because there are too many combinations")

    @classmethod
    def after_pairs(cls, pairs: int) -> "SearchGivenUpError":
        """Return the error of a search with more than `pairs` pairs of a request and a device."""
        return cls(f"the search was given up after {pairs:,} pairs of a request and a device")


class QuestionGivenUpError(SearchGivenUpError):
    """The question of which this search is a part has taken all that it may."""


class ExcludedError(UndecidedError):
    """A constraint forbids one of all devices. Kubernetes does not look for another alternative then."""

    def __init__(self, claim: str, request: str, device: str) -> None:
        problem = f"cannot add device {device} because a claim constraint would not be satisfied"
        super().__init__(f"claim {claim}, request {request}: {problem}")
