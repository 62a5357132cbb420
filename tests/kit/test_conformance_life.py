"""The checks about a kubelet's life, on plugins that do not get over it; and one that gets over everything."""

from pathlib import Path

import pytest
from attrs import evolve

from devicecore.conformance import CHECKS, Report, Verdict
from tests.kit.faults import LIFE_FAULTS, NAMES, QUICK, check_that_it_is_found, put_to_the_checks


@pytest.mark.parametrize(("fault", "failing", "names"), LIFE_FAULTS, ids=[fault for fault, _, _ in LIFE_FAULTS])
def test_a_fault_is_found(fault: str, failing: str, names: list[str], short_path: Path) -> None:
    check_that_it_is_found(fault, failing, names, short_path)


def test_a_plugin_without_fault_passes_everything(short_path: Path) -> None:
    report = put_to_the_checks("", NAMES, QUICK, short_path)
    assert not_passed(report).keys() == {"answers-notify-registration-status"}
    assert (report.resource, report.devices, len(report.results)) == ("example.com/chip", 3, len(CHECKS))
    assert list(short_path.iterdir()) == [short_path / "sick"]


def test_a_plugin_without_fault_that_waits_to_be_found_passes_everything(short_path: Path) -> None:
    report = put_to_the_checks("watched", NAMES, QUICK, short_path)
    assert not_passed(report) == {}
    assert (report.resource, report.devices, len(report.results)) == ("example.com/chip", 3, len(CHECKS))


def test_whoever_waits_to_be_found_as_something_else_is_told_so(short_path: Path) -> None:
    report = put_to_the_checks("watched-as-another", NAMES[:1], evolve(QUICK, first=3), short_path)
    assert "says that it is a 'CSIPlugin', not a 'DevicePlugin'" in report.results[0].came


def not_passed(report: Report) -> dict[str, str]:
    """What came of those checks that were not passed."""
    return {result.check.name: result.came for result in report.results if result.verdict is not Verdict.PASSED}
