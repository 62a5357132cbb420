"""A driver with a fault when it prepares claims fails the check for it, and no other check."""

import sys

import pytest
from devicecore_tools.conformance import Verdict
from devicecore_tools.conformance.dra import run
from tests.conformance.harness import BY_NAME, DRIVER, QUICK, Fault, Findings, faults_to_try

FAULTS = faults_to_try("prepare")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_a_fault_is_found(fault: Fault, findings: Findings) -> None:
    findings.assert_found(fault)


def test_a_device_that_a_check_should_not_have_got_is_free_for_the_next_check() -> None:
    checks = [BY_NAME["refuses-senseless-names"], BY_NAME["unprepares-at-the-same-time"]]
    report = run([sys.executable, str(DRIVER), "prepare:HoldsDevicesForAnyUid"], settings=QUICK, checks=checks)
    assert [result.verdict for result in report.results] == [Verdict.FAILED, Verdict.PASSED], report
