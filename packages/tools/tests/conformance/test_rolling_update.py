"""A driver with a fault in its rolling update fails the check for it, and no other check."""

import pytest
from devicecore_tools.conformance.dra import CHECKS
from tests.conformance.faults.rolling_update import RollingDriver
from tests.conformance.harness import QUICK, Fault, Findings, assert_all_pass, faults_to_try, run_on

FAULTS = faults_to_try("rolling_update")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_a_fault_is_found(fault: Fault, findings: Findings) -> None:
    findings.assert_found(fault)


def test_a_driver_with_instances_passes() -> None:
    assert_all_pass(run_on(RollingDriver, [check for check in CHECKS if check.group == "rolling update"], None, QUICK))
