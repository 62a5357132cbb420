"""A driver with a fault when it unprepares claims, or in its state, fails the check for it, and no other check."""

import pytest
from tests.conformance.harness import Fault, Findings, faults_to_try

FAULTS = [*faults_to_try("unprepare"), *faults_to_try("state")]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_a_fault_is_found(fault: Fault, findings: Findings) -> None:
    findings.assert_found(fault)
