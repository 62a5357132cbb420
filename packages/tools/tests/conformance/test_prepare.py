"""A driver with a fault when it prepares claims fails only the check for that fault."""

import sys

from devicecore_tools.conformance import Verdict
from devicecore_tools.conformance.dra import run
from devicecore_tools.conformance.faults import DRIVER
from tests.conformance.harness import BY_NAME, QUICK, fault_test

test_a_fault_is_found = fault_test("prepare")


def test_a_device_that_a_check_should_not_have_got_is_free_for_the_next_check() -> None:
    checks = [BY_NAME["refuses-senseless-names"], BY_NAME["unprepares-at-the-same-time"]]
    report = run([sys.executable, str(DRIVER), "prepare:HoldsDevicesForAnyUid"], settings=QUICK, checks=checks)
    assert [result.verdict for result in report.results] == [Verdict.FAILED, Verdict.PASSED], report
