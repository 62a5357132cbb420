"""A run passes only if every applicable "must" check was run. If such a check could not be run, the status is 1."""

import re
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from attrs import evolve
from devicecore_tools.command.conformance_report import Reporting
from devicecore_tools.conformance import Check, Report, Severity
from devicecore_tools.conformance.device_plugin import CHECKS, situations
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS
from devicecore_tools.conformance.model import DoesNotApply, Skip, Undecided
from devicecore_tools.conformance.reports import counts_of, summary
from devicecore_tools.conformance.runner import run_checks

from tests.recorded import share

EVERY: list[Check[Any]] = [*CHECKS, *DRA_CHECKS]


def raises(error: Exception) -> Callable[[object], NoReturn]:
    def look(_: object) -> NoReturn:
        raise error

    return look


def report_without(broken: Check[Any], error: Exception, among: list[Check[Any]], part: str = "look") -> Report:
    """Return the report of a run in which all checks pass except `broken`, one part of which raises `error`."""
    fails = raises(error)
    checks = [
        evolve(
            one,
            look=fails if one is broken and part == "look" else lambda _: "good",
            needs=fails if one is broken and part == "needs" else bool,
        )
        for one in among
    ]
    results, not_made = run_checks(checks, None)
    return Report(subject="subject", results=results, not_made=not_made, seconds=1.0)


def exit_of(report: Report) -> int:
    return Reporting(as_json=False, junit=None, card=None, release="").run("subject", EVERY, lambda: report)


ERRORS = [Skip("no"), Undecided("no"), OSError("no"), AssertionError("a bug of ours")]


@pytest.mark.parametrize("part", ["look", "needs"])
@pytest.mark.parametrize("error", ERRORS)
def test_no_run_without_one_of_its_musts_exits_with_0(error: Exception, part: str) -> None:
    suites: list[list[Check[Any]]] = [[*CHECKS], [*DRA_CHECKS]]
    for suite in suites:
        musts = [one for one in suite if one.severity is Severity.MUST]
        for broken in share(musts[ERRORS.index(error) :] + musts[: ERRORS.index(error)], 3 * len(ERRORS)):
            report = report_without(broken, error, suite, part)
            assert exit_of(report) == 1, broken.name
            assert broken.name in summary(report)


def test_a_run_without_a_should_check_or_with_one_that_does_not_apply_exits_with_0() -> None:
    must, should = (next(one for one in EVERY if one.severity is severity) for severity in list(Severity)[:2])
    assert exit_of(report_without(should, Skip("no"), EVERY)) == 0
    assert exit_of(report_without(must, DoesNotApply("it says so"), EVERY)) == 0


def test_the_numbers_of_the_last_line_add_up() -> None:
    counts = counts_of(report_without(EVERY[0], Skip("no"), EVERY))
    assert counts.pop("checks") == sum(counts.values()) == len(EVERY)
    assert counts["not_decided"] == 1


def test_each_cell_of_the_table_of_plugins_has_a_check_or_a_reason() -> None:
    names = {one.name for one in CHECKS}
    for event, cells in situations.CELLS.items():
        for one in situations.COLUMNS:
            assert (one in cells) != bool(situations.WHY_NOT.get((event, one))), (event.name, one.name)
    reasons = [*situations.WHY_NOT.values(), *(text for row in situations.OTHER_CELLS.values() for text in row)]
    assert {name for text in reasons for name in re.findall("`([^`]*)`", text)} <= names
    assert all(len(row) == len(situations.COLUMNS) and all(row) for row in situations.OTHER_CELLS.values())
