"""The checks that change the health of a device, on plugins with faults, in a separate file for a second worker."""

from pathlib import Path

import pytest
from attrs import evolve
from devicecore_tools.conformance import Verdict
from tests.conformance.harness import mostly_slow
from tests.kit.faults import HEALTH, HEALTH_FAULTS, NAMES, QUICK, SHORT, SICK, assert_found, run_checks_on


@pytest.mark.parametrize(("fault", "names"), mostly_slow(HEALTH_FAULTS), ids=[fault for fault, _ in HEALTH_FAULTS])
def test_a_fault_is_found(fault: str, names: list[str], directory: Path) -> None:
    assert_found(fault, names, directory)


def test_a_failing_user_command_is_not_the_plugins_fault(directory: Path) -> None:
    report = run_checks_on("", HEALTH[:1], evolve(QUICK, undo_health="exit 3"), directory)
    assert not report.failures
    assert not report.passed
    assert report.result(HEALTH[0]).actual == "`exit 3` exited with status 3: it printed nothing"


def test_a_plugin_whose_only_device_is_sick_has_no_other_to_allocate(directory: Path) -> None:
    settings = evolve(QUICK, timeout=5, undo_health=f"rm {directory}/sick")
    name = "allocates-while-a-device-is-sick"
    report = run_checks_on("has-one-device", [*HEALTH, name], settings, directory)
    assert report.passed
    assert report.result(name).verdict is Verdict.SKIPPED


def test_the_checks_that_apply_to_a_quick_plugin_apply_to_a_slow_one(directory: Path) -> None:
    """Few calls are made to a plugin that was slow once, but they must not leave out what the plugin does."""
    names = ["allocates-each-device", *(name for name in NAMES if name.startswith(("gives-", "allocates-")))]
    names += [*HEALTH, *SICK, "reports-a-later-change-of-health"]
    reports = [run_checks_on(fault, names, SHORT["one-copy-is-sick"], directory) for fault in ("", "slow-at-first")]
    quick, slow = ([one.name for one in report.not_applicable] for report in reports)
    assert slow == quick
    assert not reports[1].failures


def test_a_plugin_that_reports_nothing_is_blamed_although_the_undo_command_fails(directory: Path) -> None:
    settings = evolve(QUICK, timeout=1, undo_health="exit 3")
    report = run_checks_on("never-sick", HEALTH, settings, directory)
    assert [one.name for one in report.failures] == HEALTH[:2]


def test_a_change_of_health_can_be_undone(directory: Path) -> None:
    """Without the undo command, the new process would already list the change before the second check.

    The process starts with an empty list, which is not a change of health.
    """
    settings = evolve(QUICK, timeout=5, undo_health=f"rm {directory}/sick")
    report = run_checks_on("loses-a-later-change", HEALTH, settings, directory)
    assert report.result(HEALTH[0]).failed
    assert report.result(HEALTH[1]).actual == "c0 is Unhealthy"
    assert report.notes == ()
    assert list(directory.iterdir()) == []
