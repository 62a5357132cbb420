"""A driver with a fault in its health reports fails the checks for that fault.

It fails no others except those in `breaks_too`.
"""

import pytest
from attrs import evolve
from devicecore_tools.conformance import Verdict
from devicecore_tools.conformance.dra import CHECKS
from devicecore_tools.conformance.faults.drivers.health import ReportsOnce, WithoutHealth
from tests.conformance.harness import BY_NAME, QUICK, assert_all_pass, fault_test, run_on

test_a_fault_is_found = fault_test("health")


def test_a_driver_without_health_passes() -> None:
    checks = [check for check in CHECKS if check.group == "health"]
    skipped = [check.name for check in checks if check.name != "survives-being-asked-for-health"]
    assert_all_pass(run_on(WithoutHealth, checks, None, QUICK), *skipped)


def test_a_limit_shorter_than_the_interval_is_wrong_on_a_busy_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 1000.0, 1000.0))
    # as if the driver had waited for a CPU all the time
    monkeypatch.setattr("devicecore_tools.conformance.runner._HELD_UP", -1.0)
    check = BY_NAME["repeats-its-reports-of-health"]
    (result,) = run_on(ReportsOnce, [check], None, evolve(QUICK, excuses_load=True)).results
    assert result.verdict is Verdict.FAILED
