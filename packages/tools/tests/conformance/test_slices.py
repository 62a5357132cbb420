"""A driver with a fault in its slices fails the checks for that fault, and no others except those in `breaks_too`."""

import pytest
from attrs import evolve
from devicecore_tools.conformance import Report, Verdict
from devicecore_tools.conformance.faults.drivers.habits import WritesAndForgets
from devicecore_tools.conformance.faults.drivers.slices import PublishesThroughTheHelper
from devicecore_tools.conformance.reports import summary
from tests.conformance.harness import BY_NAME, QUICK, Fault, fault_test, run_on

test_a_fault_is_found = fault_test("slices")


def wiped(habit: Fault, race: float) -> Report:
    settings = evolve(QUICK, race=race, republishing=6.0)
    return run_on(habit, [BY_NAME["publishes-again-after-a-wipe"]], None, settings)


def test_a_wipe_waits_until_the_helper_would_notice_it() -> None:
    report = wiped(PublishesThroughTheHelper, race=2.5)
    assert report.passed, report.results


@pytest.mark.slow
def test_a_wipe_that_a_driver_cannot_notice_is_not_decided() -> None:
    report = wiped(WritesAndForgets, race=1.0)
    (result,) = report.results
    assert result.verdict is Verdict.UNDECIDED, result
    assert "Kubernetes' publishing helper" in result.actual
    assert not report.passed
    assert "1 'must' check was not decided, so this run did not pass" in summary(report)
