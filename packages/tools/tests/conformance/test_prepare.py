"""A driver that prepares claims wrongly fails the checks for that fault, and no others except those in `breaks_too`."""

import sys

from devicecore_tools.conformance import Verdict
from devicecore_tools.conformance.dra import run
from devicecore_tools.conformance.dra.checks.prepare import Row, Rows, foreign_devices
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.faults import DRIVER
from devicecore_tools.testing.dra_pools import SliceDevice
from tests.conformance.harness import BY_NAME, QUICK, fault_test

test_a_fault_is_found = fault_test("prepare")


def test_a_device_that_a_check_should_not_have_got_is_free_for_the_next_check() -> None:
    checks = [BY_NAME["refuses-senseless-names"], BY_NAME["unprepares-at-the-same-time"]]
    report = run([sys.executable, str(DRIVER), "prepare:HoldsDevicesForAnyUid"], settings=QUICK, checks=checks)
    assert [result.verdict for result in report.results] == [Verdict.FAILED, Verdict.PASSED], report


def test_two_claims_may_have_shares_of_one_device() -> None:
    shared, other = SliceDevice("pool", "shared", {}), SliceDevice("pool", "other", {})
    one, two = Claim("one", "1", (shared,)), Claim("two", "2", (shared, other))
    answer = Rows(Row("pool", name, ("r0",), (), "") for name in ("shared", "other"))
    assert foreign_devices(answer, one, [one, two]) == ["pool/other"]
    assert foreign_devices(answer, two, [one, two]) == []
