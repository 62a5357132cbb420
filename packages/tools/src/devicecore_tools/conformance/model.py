"""Checks, their results and reports, for any kind of subject.

Law: every check says what it does, what it expects and why. A check's result says in one sentence what happened.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Generic, TypeVar

from attrs import field, frozen

Subject = TypeVar("Subject")
"""The subject of the checks, such as a running device plugin, with the methods that the checks need."""


MAX_ACTUAL = 3000
"""The maximum length of `Result.actual`, which may contain the subject's output."""


class Severity(Enum):
    """What a check's failure means."""

    MUST = "must"
    """Kubernetes cannot work with the subject, or containers get each other's devices. Such a failure fails the run."""
    SHOULD = "should"
    """The subject works, but not after every event that happens on real nodes."""
    INFO = "info"
    """The failure does not break anything, but its cause is worth knowing."""


class Verdict(Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The check does not apply: the subject or the user says that the subject does not have the feature."""
    UNDECIDED = "undecided"
    """The check applies but was not decided: because of the run or the machine, or because another check failed."""


class Failure(Exception):  # noqa: N818 - it is a result of a check, not an error of this program
    """Raised by a check that failed. The text says what happened instead of the expected behavior."""

    @property
    def is_late(self) -> bool:
        """Whether something took too long, which may be the fault of a busy machine."""
        return False


class TookTooLong(Failure):
    """Raised by a check that failed because something took too long."""

    @property
    def is_late(self) -> bool:
        """Always true."""
        return True


class Abort(Failure):
    """Raised by a check whose failure makes all later checks impossible."""


class Skip(Exception):  # noqa: N818 - it is a result of a check, not an error of this program
    """Raised by a check that cannot be run and therefore remains undecided. The text says why."""


class DoesNotApply(Skip):
    """Raised by a check for an optional feature that the subject does not have. The text says why."""


class DevicesInUse(Skip):
    """Raised by a check that needs a device while other checks hold all devices."""


class NotYet(Skip):
    """Raised by a check that is waiting for something that may still happen.

    The check runs again at the end. The text says what is missing.
    """


class Undecided(Skip):
    """Raised by a check that the run could not decide. The text says why."""


class OutOfTime(Undecided):
    """Raised by a check that cannot be run because the run is out of time."""


def impossible(error: Exception) -> Skip:
    """Return the exception that skips a check because an error prevented it."""
    return Skip(f"the check could not be run: {error}")


def time_is_over(budget: float) -> OutOfTime:
    """Return the exception that skips a check once the run has used up its `budget` of seconds."""
    return OutOfTime(f"the run's {budget:.0f} seconds are over; run the check alone (--only) or with a larger --budget")


def applies_always(_: object) -> None:
    """Do nothing: the `needs` of a check that applies to every subject."""


@frozen
class Check(Generic[Subject]):
    """One expectation for the subject.

    Attributes:
        name: words joined by hyphens, unique in its suite.
        severity: what a failure means.
        done: a sentence about what the check does.
        expected: what should happen.
        clause: the rule from which the expectation follows, with its source.
        look: runs the check; returns a sentence about what happened, or raises `Failure`, `Abort` or `Skip`.
        group: the check's topic, in a word or two; empty in a suite without groups.
        is_core: whether the check runs by default; other checks run only in a full run.
        found: known faults in real software that the check finds, such as `owner/repository#12`.
        needs: raises `Skip` if the check does not apply to the subject, without waiting for anything.
    """

    name: str
    severity: Severity
    done: str
    expected: str
    clause: str
    look: Callable[[Subject], str]
    group: str = ""
    is_core: bool = True
    found: tuple[str, ...] = ()
    needs: Callable[[Subject], object] = applies_always


def check(
    severity: Severity, *, expected: str, clause: str, needs: Callable[[Subject], object] = applies_always
) -> Callable[[Callable[[Subject], str]], Check[Subject]]:
    """Return a decorator that turns a function into a `Check`.

    The function's name is the check's name, and its docstring is `done`.
    """

    def make(look: Callable[[Subject], str]) -> Check[Subject]:
        name = look.__name__.replace("_", "-")
        return Check(name, severity, look.__doc__ or name, expected, clause, look, needs=needs)

    return make


@frozen
class Exit:
    """An unexpected exit of the subject.

    Attributes:
        pid: the id of the process.
        how: one line about what happened, with the exit status or the signal.
        output: what the process printed: everything since the crash began, otherwise the last lines.
        is_crash: whether the process crashed: a signal, or a Go panic.
        during: the name of the check that was running, or an empty string if none was.
    """

    pid: int
    how: str
    output: str
    is_crash: bool
    during: str = ""

    def __str__(self) -> str:
        return self.how


@frozen
class Result:
    """The result of one check.

    Attributes:
        name: copied from the check, as are `severity`, `done`, `expected` and `clause`.
        verdict: how the check ended.
        actual: one printable line about what happened.
        seconds: the duration.
    """

    name: str
    severity: Severity
    verdict: Verdict
    done: str
    expected: str
    actual: str
    clause: str
    seconds: float

    @property
    def applies(self) -> bool:
        """Whether the subject has the feature that the check tests."""
        return self.verdict is not Verdict.SKIPPED

    @property
    def failed(self) -> bool:
        """Whether the check failed."""
        return self.verdict is Verdict.FAILED


@frozen(kw_only=True)
class Report:
    """The results of a run.

    Attributes:
        kind: what was checked: `device plugin` or `DRA driver`.
        subject: the checked plugin or driver, in a few words.
        release: the subject's version, if the caller knows it.
        command: the command that started the subject, with placeholders.
        tool: the version of devicecore.
        facts: more about the subject for programs, as JSON-compatible values.
        notes: sentences for the reader of the report.
        results: one result for every check, in order.
        not_made: why the remaining checks were not run, or an empty string if all were run.
        cannot_run: whether the subject could not be started at all, so the results say nothing about it.
        wrong_usage: whether one of the user's commands failed, so checks could not be run; a note names the command.
        seconds: the duration of the run.
        output: the end of what the subject printed.
        exits: the subject's exits that the run did not cause.
    """

    kind: str = "device plugin"
    subject: str
    release: str = ""
    command: str = ""
    tool: str = ""
    facts: Mapping[str, object] = field(factory=dict)
    notes: tuple[str, ...] = ()
    results: tuple[Result, ...]
    not_made: str = ""
    cannot_run: bool = False
    wrong_usage: bool = False
    seconds: float
    output: str = ""
    exits: tuple[Exit, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether at least one check was run, no "must" check failed or is undecided, and no user command failed."""
        not_passed = (*self.failures, *self.undecided)
        return (
            self.made_any
            and not self.wrong_usage
            and not any(result.severity is Severity.MUST for result in not_passed)
        )

    @property
    def made_any(self) -> bool:
        """Whether at least one check was run. Otherwise the report says nothing about its subject."""
        return any(result.verdict in {Verdict.PASSED, Verdict.FAILED} for result in self.results)

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results of the checks that failed."""
        return self._ended(Verdict.FAILED)

    @property
    def undecided(self) -> tuple[Result, ...]:
        """The results of the checks that apply but were not decided."""
        return self._ended(Verdict.UNDECIDED)

    @property
    def not_applicable(self) -> tuple[Result, ...]:
        """The results of the checks that do not apply to the subject."""
        return self._ended(Verdict.SKIPPED)

    def _ended(self, verdict: Verdict) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.verdict is verdict)

    def result(self, name: str) -> Result:
        """Return the result of the check with this name.

        Raises:
            KeyError: there is no such result.
        """
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(name)


_MAX_LISTED = 5


def some(texts: Sequence[str]) -> str:
    """Join these strings, but at most five of them: `a, b, c, d, e and 2 more`."""
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    return ", ".join(texts[:_MAX_LISTED]) + more


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Skip a check if this block, which prepares the check, fails. Another check reports that failure.

    Raises Skip, which says that the check needs `what`.
    """
    try:
        yield
    except Failure as failure:
        raise Skip(f"the check needs {what}: {failure}") from None


@contextmanager
def skipping(error: type[Exception]) -> Iterator[None]:
    """Skip a check if this block raises one of these errors: another check reports the error, or no one is to blame."""
    try:
        yield
    except error as raised:
        raise Skip(str(raised)) from None


@contextmanager
def in_context(context: str) -> Iterator[None]:
    """Prefix a failure in this block with a few words about its circumstances.

    Raises Failure if the block failed.
    """
    try:
        yield
    except Failure as failure:
        raise reworded(f"{context}: {failure}", failure) from None


def reworded(text: str, *failures: Failure) -> Failure:
    """Return a failure with a different text. The new failure counts as late if any of `failures` is late."""
    return TookTooLong(text) if any(one.is_late for one in failures) else Failure(text)


def require(condition: object, actual: str, *, late: bool = False) -> None:
    """Check a condition.

    Args:
        condition: what must be true.
        actual: says what happened instead.
        late: whether the condition may be false only because something took too long.

    Raises:
        Failure: the condition is not met.
    """
    if not condition:
        raise (TookTooLong if late else Failure)(actual)


def skip_if(condition: object, reason: str) -> None:
    """Skip a check if a condition is met. Raises Skip with the reason."""
    if condition:
        raise Skip(reason)


def does_not_apply_if(condition: object, reason: str) -> None:
    """Skip a check if the subject does not have an optional feature. Raises DoesNotApply with the reason."""
    if condition:
        raise DoesNotApply(reason)
