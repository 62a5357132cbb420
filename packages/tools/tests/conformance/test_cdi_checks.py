"""A driver with a fault in its CDI files fails the checks for that fault.

It fails no others except those in `breaks_too`.
"""

import re
from pathlib import Path

import pytest
from devicecore_tools.conformance.dra.checks.directory_watch import written_in
from devicecore_tools.conformance.faults.drivers.habits import HasTwoPools, TakesTheOtherPool
from tests.conformance.harness import BY_NAME, QUICK, assert_all_pass, fault_test, run_on

test_a_fault_is_found = fault_test("cdi")


def test_devices_with_the_same_name_in_two_pools_are_distinguished() -> None:
    check = BY_NAME["makes-cdi-devices-of-the-allocated-device"]
    assert_all_pass(run_on(HasTwoPools, [check], None, QUICK))
    (failed,) = run_on(TakesTheOtherPool, [check], None, QUICK).failures
    assert re.search(r"those for \S+-0/chip-0 contain the pciBusID of \S+-1/chip-0", failed.actual)


def test_files_that_are_written_in_a_directory_are_noticed(tmp_path: Path) -> None:
    with written_in(tmp_path) as names:
        (tmp_path / "a").write_text("text", encoding="utf-8")
        (tmp_path / "empty").touch()
    assert names == {"a"}
    with pytest.raises(FileNotFoundError, match="none"), written_in(tmp_path / "none"):
        pass
