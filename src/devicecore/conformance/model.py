"""What a check is, and what comes of it.

Law: a check says what it does, what it expects and why, before it looks; what came is said in a sentence.
"""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from devicecore.conformance.subject import Subject


class Severity(Enum):
    """How much a failure means."""

    MUST = "must"
    """A kubelet cannot work with it, or containers get what is not theirs. A run with such a failure has failed."""
    SHOULD = "should"
    """It works, until something goes wrong that does go wrong on real nodes."""
    INFO = "info"
    """Good to know."""


class Verdict(Enum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Failure(Exception):  # noqa: N818 - it is a finding, not an error
    """Something else came than was expected; its text says what."""


class Skip(Exception):  # noqa: N818 - it is no error
    """There is nothing to check; its text says why."""


Look = Callable[["Subject"], str]
"""Looks at a plugin, and says what it saw; raises `Failure` or `Skip`."""


@frozen
class Check:
    """One thing that is expected of a plugin."""

    name: str
    severity: Severity
    done: str
    expected: str
    clause: str
    look: Look


def check(severity: Severity, *, expected: str, clause: str) -> Callable[[Look], Check]:
    """Make a check of a function: its name is the check's, its docstring says what is done.

    Args:
        severity: how much a failure means.
        expected: what should come.
        clause: the sentence of the API from which that follows.
    """

    def make(look: Look) -> Check:
        name = look.__name__.replace("_", "-")
        return Check(name, severity, look.__doc__ or name, expected, clause, look)

    return make


@frozen
class Result:
    """What came of one check. `seconds` is how long it took."""

    check: Check
    verdict: Verdict
    came: str
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether something else came than was expected."""
        return self.verdict is Verdict.FAILED


@frozen
class Report:
    """What came of all checks. `others` are resources that registered too, `output` is the end of what was printed."""

    resource: str
    others: tuple[str, ...]
    devices: int
    results: tuple[Result, ...]
    seconds: float
    output: str

    @property
    def passed(self) -> bool:
        """Whether no must-check failed."""
        return not any(result.failed and result.check.severity is Severity.MUST for result in self.results)

    def result(self, name: str) -> Result:
        """The result of the check called `name`.

        Raises:
            KeyError: it was not made.
        """
        for result in self.results:
            if result.check.name == name:
                return result
        raise KeyError(name)
