"""Runs checks one after another.

Law: every check has a result, and a check that aborts the run is named as the reason why no check after it was run.
"""

import os
import time
from collections.abc import Callable, Iterable

from devicecore.domain.text import foreign_text
from devicecore_tools.conformance.model import (
    MAX_ACTUAL,
    Abort,
    Check,
    DoesNotApply,
    Failure,
    NotYet,
    Result,
    Skip,
    Subject,
    Verdict,
    impossible,
)
from devicecore_tools.conformance.processes import Waits
from devicecore_tools.testing.process import PluginProcessError

INTERRUPTED = "the run was interrupted"
"""Why checks were not run after a signal."""

_Waits = Callable[[], Waits]  # measures how long the subject has waited so far

_BUSY = 6.0  # processes that want to run, per processor
_HELD_UP = 0.1  # the share of a check's time for which the subject waited for a CPU
_DISK = 0.5  # the share of a check's time for which the subject may have waited for a disk
_SHORT = 1.0  # seconds; a shorter check may be late because of what preceded it

# Errors that prevent a check from running, such as those for a directory that the subject has deleted.
_IMPOSSIBLE = (OSError, PluginProcessError)


def run_checks(
    checks: Iterable[Check[Subject]],
    subject: Subject,
    *,
    on_result: Callable[[Result], None] = lambda _: None,
    excuses_load: bool = False,
    waits: _Waits = Waits,
    later: list[Check[Subject]] | None = None,
    not_made: str = "",
) -> tuple[tuple[Result, ...], str]:
    """Run the checks in order.

    Args:
        checks: the checks to run.
        subject: what the checks test.
        on_result: called with each result, except those of checks that were never started.
        later: collects the checks that raised `NotYet`, which then have no result; if None, they are undecided.
        not_made: why no check is run, or an empty string if the checks are run.
        excuses_load: whether a check that failed for lack of time on a busy machine counts as undecided.
        waits: measures how long the subject itself has waited. A subject that did not have to wait is not excused.

    Returns:
        The results of all checks, and why the last ones were not run, or an empty string.
    """
    results: list[Result] = []
    for check in checks:
        if not_made:
            results.append(result_of(check, Verdict.UNDECIDED, not_made))
            continue
        began = time.monotonic()
        verdict, actual, not_made = _made(check, subject, waits if excuses_load else None)
        if verdict is None and later is not None:
            later.append(check)
            continue
        results.append(result_of(check, verdict or Verdict.UNDECIDED, actual, time.monotonic() - began))
        on_result(results[-1])
    return tuple(results), not_made


def _made(check: Check[Subject], subject: Subject, waits: _Waits | None) -> tuple[Verdict | None, str, str]:
    """Run a check.

    Return the verdict (None if the check may run later), what happened, and why no other check is run.
    """
    verdict: Verdict | None = Verdict.UNDECIDED
    not_made = ""
    began, before = time.monotonic(), waits() if waits else Waits()
    try:
        check.needs(subject)
        verdict, actual = Verdict.PASSED, check.look(subject)
    except NotYet as skip:
        verdict, actual = None, str(skip)
    except Skip as skip:
        verdict, actual = Verdict.SKIPPED if isinstance(skip, DoesNotApply) else Verdict.UNDECIDED, str(skip)
    except Failure as failure:
        verdict, actual = Verdict.FAILED, str(failure)
        load, seconds = load_of_a_processor(), time.monotonic() - began
        if isinstance(failure, Abort):
            not_made = f"not run, because {check.name} failed"
        elif waits and failure.is_late and load > _BUSY and _was_held_up(before, waits(), seconds):
            verdict = Verdict.UNDECIDED
            actual += f"; this proves little, because the machine has {load:.0f} times as much work as it can do"
    except _IMPOSSIBLE as error:
        actual = str(impossible(error))
    except SystemExit:  # a signal told this process to exit, but the results so far are worth a report
        actual, not_made = INTERRUPTED, f"not run, because {INTERRUPTED}"
    except Exception as error:  # noqa: BLE001 - a bug in one check must not lose the results of the others
        actual = f"a bug in the check itself: {type(error).__name__}: {error}"
    return verdict, actual, not_made


def _was_held_up(before: Waits, after: Waits, seconds: float) -> bool:
    """Return whether a subject may have been late because it had to wait for a processor or a disk."""
    if seconds < _SHORT or not (before.queued or after.queued):  # the waits are unknown
        return True
    return before.for_cpus(after) > _HELD_UP * seconds or before.for_disks(after) > _DISK * seconds


def result_of(check: Check[Subject], verdict: Verdict, actual: str, seconds: float = 0.0) -> Result:
    """Return the result of a check, with one printable line about what happened."""
    lines = " | ".join(line.strip() for line in actual.splitlines() if line.strip())
    text = foreign_text(lines, MAX_ACTUAL)
    return Result(check.name, check.severity, verdict, check.done, check.expected, text, check.clause, seconds)


def load_of_a_processor() -> float:
    """Return how many processes per CPU wanted to run, on average over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
