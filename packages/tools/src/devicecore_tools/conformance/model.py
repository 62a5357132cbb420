"""Checks, their results, and reports, independent of what is checked.

Law: every check says what it does, what it expects and why. Its result says in one sentence what happened.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Generic, TypeVar

from attrs import field, frozen

Subject = TypeVar("Subject")
"""What is checked, such as a running device plugin. It has the methods that its checks need."""


MAX_ACTUAL = 3000
"""Characters of `Result.actual`, which may contain output of the subject."""


class Severity(Enum):
    """What a failure of a check means."""

    MUST = "must"
    """Kubernetes cannot work with it, or containers get each other's devices. A run with such a failure has failed."""
    SHOULD = "should"
    """It works, but not after every event that happens on real nodes."""
    INFO = "info"
    """A failure breaks nothing, but its reason is worth knowing."""


class Verdict(Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It does not apply: the subject, or the user, says that it does not have what the check is about."""
    UNDECIDED = "undecided"
    """It applies and was not made: for a reason of the run, or because of what another check has found."""


class Failure(Exception):  # noqa: N818 - it is a result of a check, not an error of this program
    """Raised by a check that failed. The text says what happened instead of what was expected."""

    @property
    def is_late(self) -> bool:
        """Whether something took too long, for which a busy machine may be to blame."""
        return False


class TookTooLong(Failure):
    """Raised by a check that failed because something took too long."""

    @property
    def is_late(self) -> bool:
        """It is."""
        return True


class Abort(Failure):
    """Raised by a check that failed in a way that makes all later checks impossible."""


class Skip(Exception):  # noqa: N818 - it is a result of a check, not an error of this program
    """Raised by a check that cannot be made, so that it is not decided. The text says why."""


class DoesNotApply(Skip):
    """Raised by a check of something optional that the subject does not have. The text says what."""


class DevicesInUse(Skip):
    """Raised by a check that needs a device while other checks have all of them."""


class NotYet(Skip):
    """Raised by a check of something that may still come, so that it is made again at the end. The text says what."""


class Undecided(Skip):
    """Raised by a check that the run could not decide. The text says why."""


class OutOfTime(Undecided):
    """Raised by a check that cannot be made, because the time of the run is over."""


def impossible(error: Exception) -> Skip:
    """Return what skips a check that could not be made because of an error."""
    return Skip(f"the check could not be made: {error}")


def time_is_over(budget: float) -> OutOfTime:
    """Return what skips a check when a run has lasted for `budget` seconds."""
    return OutOfTime(f"the {budget:.0f} seconds of the run are over; --only makes the check alone, --budget gives more")


def applies_always(_: object) -> None:
    """Do nothing. It is the `needs` of a check that applies to every subject."""


@frozen
class Check(Generic[Subject]):
    """One expectation.

    Attributes:
        name: words joined by hyphens, unique in its suite.
        severity: what a failure means.
        done: a sentence about what the check does.
        expected: what should happen.
        clause: the rule from which that follows, with its source.
        look: makes the check; returns a sentence about what happened, or raises `Failure`, `Abort` or `Skip`.
        group: what it is about, in a word or two; empty in a suite without groups.
        is_core: whether it is made by default; the others are made in a full run.
        found: known faults of real software that the check finds, such as `owner/repository#12`.
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
    """Return a decorator that makes a `Check` of a function: its name is the check's name, its docstring is `done`."""

    def make(look: Callable[[Subject], str]) -> Check[Subject]:
        name = look.__name__.replace("_", "-")
        return Check(name, severity, look.__doc__ or name, expected, clause, look, needs=needs)

    return make


@frozen
class Exit:
    """An unexpected exit of the subject.

    Attributes:
        pid: the id of the process.
        how: what happened in one line, with the exit status or the signal.
        output: what the process printed then: from the beginning of a crash on, otherwise the last lines.
        is_crash: whether it crashed: a signal, or a panic of a program in Go.
        during: the name of the check during which it came. The text is empty if none was under way.
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
        name: as that of the check; so are `severity`, `done`, `expected` and `clause`.
        verdict: how it ended.
        actual: what happened, in one printable line.
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
        """Whether the subject has what the check is about."""
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
        subject: which one, in a few words.
        release: its version, if the caller knows it.
        command: what has started it, with placeholders.
        tool: the version of devicecore.
        facts: more about it, for programs: values that JSON can hold.
        notes: sentences for the reader of the report.
        results: of every check, in order.
        not_made: why the checks after a failed one could not be made. The text is empty if all were made.
        cannot_run: whether the subject could not be run at all, so that the results say nothing about it.
        wrong_usage: whether a command of the user failed, so that checks could not be made; a note names it.
        seconds: the duration of the run.
        output: the end of what the subject printed.
        exits: each time that the subject ended by itself.
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
        """Whether a check was made, and every must-check was decided and did not fail."""
        not_passed = (*self.failures, *self.undecided)
        return (
            self.made_any
            and not self.wrong_usage
            and not any(result.severity is Severity.MUST for result in not_passed)
        )

    @property
    def made_any(self) -> bool:
        """Whether at least one check was made. Otherwise the report says nothing about its subject."""
        return any(result.verdict in {Verdict.PASSED, Verdict.FAILED} for result in self.results)

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results of the checks that failed."""
        return self._ended(Verdict.FAILED)

    @property
    def undecided(self) -> tuple[Result, ...]:
        """The results of the checks that apply and were not made."""
        return self._ended(Verdict.UNDECIDED)

    @property
    def not_applicable(self) -> tuple[Result, ...]:
        """The results of the checks of what the subject does not have."""
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
    """Return at most five of these texts as one: `a, b, c, d, e and 2 more`."""
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    return ", ".join(texts[:_MAX_LISTED]) + more


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Skip a check if this block fails, which prepares the check, because another check reports that.

    Raises Skip, which says that the check needs `what`.
    """
    try:
        yield
    except Failure as failure:
        raise Skip(f"it needs {what}: {failure}") from None


@contextmanager
def skipping(error: type[Exception]) -> Iterator[None]:
    """Skip a check if this block raises such an error: another check reports it, or it is nobody's fault."""
    try:
        yield
    except error as raised:
        raise Skip(str(raised)) from None


@contextmanager
def in_context(context: str) -> Iterator[None]:
    """Let a failure of this block begin with a few words about what came before.

    Raises Failure if the block has failed.
    """
    try:
        yield
    except Failure as failure:
        raise reworded(f"{context}: {failure}", failure) from None


def reworded(text: str, *failures: Failure) -> Failure:
    """Return a failure with another text. It is late if one of these is."""
    return TookTooLong(text) if any(one.is_late for one in failures) else Failure(text)


def require(condition: object, actual: str, *, late: bool = False) -> None:
    """Check a condition.

    Args:
        condition: what has to be true.
        actual: says what happened instead.
        late: whether it may be false only because something took too long.

    Raises:
        Failure: the condition is not met.
    """
    if not condition:
        raise (TookTooLong if late else Failure)(actual)


def skip_if(condition: object, reason: str) -> None:
    """Skip a check if a condition is met. Raises Skip with the reason then."""
    if condition:
        raise Skip(reason)


def does_not_apply_if(condition: object, reason: str) -> None:
    """Skip a check of something optional if the subject does not have it. Raises DoesNotApply with the reason then."""
    if condition:
        raise DoesNotApply(reason)
