"""A driver with a fault in its reports of health fails the check for it, and no other check."""

from pathlib import Path

import pytest

from devicecore.conformance.dra.checks import health
from tests.conformance.faults.health import WithoutHealth
from tests.conformance.harness import QUICK, Fault, assert_all_pass, assert_found, faults_of, run_on

FAULTS = faults_of("health")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_a_fault_is_found(fault: Fault, dra_stubs: Path) -> None:
    is_with_stubs = FAULTS.index(fault) % 2
    assert_found(fault, dra_stubs if is_with_stubs else None)


def test_a_driver_without_health_passes() -> None:
    checks = list(health.CHECKS)
    skipped = [check.name for check in checks if check.name != "survives-being-asked-for-health"]
    assert_all_pass(run_on(WithoutHealth, checks, None, QUICK), *skipped)
