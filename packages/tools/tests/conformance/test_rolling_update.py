"""A driver whose instances work together wrongly fails the checks for that fault.

It fails no others except those in `breaks_too`.
"""

from devicecore_tools.conformance.dra import CHECKS
from devicecore_tools.conformance.faults.drivers.rolling_update import RollingDriver
from tests.conformance.harness import QUICK, assert_all_pass, fault_test, run_on

test_a_fault_is_found = fault_test("rolling_update")


def test_a_driver_with_instances_passes() -> None:
    assert_all_pass(run_on(RollingDriver, [check for check in CHECKS if check.group == "rolling update"], None, QUICK))
