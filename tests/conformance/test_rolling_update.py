"""A driver with a fault in its rolling update fails the check for it, and no other check."""

from pathlib import Path

import pytest

from devicecore.conformance.dra.checks import rolling_update
from tests.conformance.faults.rolling_update import RollingDriver
from tests.conformance.harness import QUICK, Fault, assert_all_pass, assert_found, faults_of, run_on

FAULTS = faults_of("rolling_update")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_a_fault_is_found(fault: Fault, dra_stubs: Path) -> None:
    is_with_stubs = FAULTS.index(fault) % 2
    assert_found(fault, dra_stubs if is_with_stubs else None)


def test_a_driver_with_instances_passes() -> None:
    assert_all_pass(run_on(RollingDriver, list(rolling_update.CHECKS), None, QUICK))
