"""A driver with a fault in its health reports fails only the check for that fault."""

from devicecore_tools.conformance.dra import CHECKS
from devicecore_tools.conformance.faults.drivers.health import WithoutHealth
from tests.conformance.harness import QUICK, assert_all_pass, fault_test, run_on

test_a_fault_is_found = fault_test("health")


def test_a_driver_without_health_passes() -> None:
    checks = [check for check in CHECKS if check.group == "health"]
    skipped = [check.name for check in checks if check.name != "survives-being-asked-for-health"]
    assert_all_pass(run_on(WithoutHealth, checks, None, QUICK), *skipped)
