"""A driver with a fault in its registration fails the checks for that fault.

It fails no others except those in `breaks_too`.
"""

import pytest
from attrs import evolve
from devicecore_tools.conformance import Verdict
from devicecore_tools.conformance.faults.drivers.registration import ListensBeforeItServes, RegistersTooEarly
from tests.conformance.harness import BY_NAME, QUICK, Fault, fault_test, run_on

test_a_fault_is_found = fault_test("registration")


@pytest.mark.parametrize(
    ("fault", "verdict"), [(RegistersTooEarly, Verdict.FAILED), (ListensBeforeItServes, Verdict.UNDECIDED)]
)
def test_a_busy_machine_delays_an_answer_but_refuses_no_connection(
    fault: Fault, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 1000.0, 1000.0))
    # as if the driver had waited for a CPU all the time
    monkeypatch.setattr("devicecore_tools.conformance.runner._HELD_UP", -1.0)
    check = BY_NAME["serves-before-it-registers"]
    (result,) = run_on(fault, [check], None, evolve(QUICK, excuses_load=True)).results
    assert result.verdict is verdict
