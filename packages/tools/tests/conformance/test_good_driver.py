"""A good driver passes every check, with our stubs and with generated ones, and each check has a driver that fails."""

from pathlib import Path

import pytest
from devicecore_tools.conformance.dra import CHECKS, CORE
from tests.conformance.faults.habits import SharesCapacity, WorksThroughTheRuntime
from tests.conformance.harness import QUICK, Fault, assert_all_pass, faults_of, run_on

GROUPS = sorted(path.stem for path in Path(__file__).with_name("faults").glob("*.py"))
INFO = {"keeps-its-slices-at-sigterm"}
"""Checks that only report."""
OTHERS = {
    "survives-being-asked-for-health",
    *(check.name for check in CHECKS if check.group == "rolling update" and check.name != "survives-a-second-start"),
}
"""Checks for drivers that report no health, or that can be updated while they run: other tests have such drivers."""

HABITS: list[tuple[Fault, set[str]]] = [
    (
        WorksThroughTheRuntime,
        {
            "answers-with-all-allocated-devices",
            "answers-valid-cdi-names",
            "keeps-the-cdi-devices-of-other-claims",
        },
    ),
    (SharesCapacity, set()),
]
"""Drivers with habits of real ones, each with the checks that do not apply to it."""
AROUND_HABITS = {
    "prepares-a-claim",
    "unprepares-a-claim",
    "answers-with-all-allocated-devices",
    "keeps-the-cdi-devices-of-other-claims",
    "separates-shares-of-a-device",
    "answers-valid-cdi-names",
    "frees-the-device",
    "numbers-numa-nodes-from-zero",
    "spells-standard-attributes-as-others-do",
}


def test_a_good_driver_passes_every_check() -> None:
    assert_all_pass(run_on(None, list(CHECKS), None, QUICK), *OTHERS)


def test_a_good_driver_with_generated_stubs_passes_the_default_run(dra_stubs: Path) -> None:
    assert_all_pass(run_on(None, list(CORE), dra_stubs, QUICK), *(OTHERS & {check.name for check in CORE}))


@pytest.mark.parametrize(("habit", "skipped"), HABITS, ids=[habit.__name__ for habit, _ in HABITS])
def test_a_habit_of_real_drivers_is_no_fault(habit: Fault, skipped: set[str]) -> None:
    report = run_on(habit, [check for check in CHECKS if check.name in AROUND_HABITS], None, QUICK)
    assert_all_pass(report, *skipped)
    assert not report.facts["exits"]


def test_every_check_has_a_fault_that_it_finds() -> None:
    found = {name for group in GROUPS for fault in faults_of(group) for name in fault.fails}
    assert found == {check.name for check in CHECKS} - INFO


def test_every_check_says_what_it_does_and_why() -> None:
    for check in CHECKS:
        assert check.done.endswith("."), check.name
        assert check.done.count("\n") == 0, check.name
        assert check.expected, check.name
        assert check.clause.endswith((".", ")")), check.name
        assert check.group, check.name


def test_what_a_fault_breaks_too_is_a_check_and_has_a_reason() -> None:
    names = {check.name for check in CHECKS}
    for group in GROUPS:
        for fault in faults_of(group):
            assert set(fault.breaks_too) <= names - set(fault.fails), fault
            assert all(reason.endswith(".") for reason in fault.breaks_too.values()), fault


def test_the_names_of_the_checks_are_unique() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
