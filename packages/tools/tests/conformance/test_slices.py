"""A driver with a fault in its slices fails the check for it, and no other check."""

import pytest
from attrs import evolve
from devicecore_tools.conformance import Verdict
from tests.conformance.faults.slices import PublishesThroughTheHelper
from tests.conformance.harness import BY_NAME, QUICK, fault_test, run_on

test_a_fault_is_found = fault_test("slices")


@pytest.mark.parametrize(("waits", "verdict"), [(False, Verdict.SKIPPED), (True, Verdict.PASSED)])
def test_a_wipe_right_after_an_update_blames_no_driver(waits: bool, verdict: Verdict) -> None:
    settings = evolve(QUICK, race=2.5, republishing=6.0, waits_for_calm=waits)
    report = run_on(PublishesThroughTheHelper, [BY_NAME["publishes-again-after-a-wipe"]], None, settings)
    result = report.result("publishes-again-after-a-wipe")
    assert result.verdict is verdict, result
    assert waits or "Kubernetes' helper" in result.actual
