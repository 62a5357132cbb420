"""The checks about a kubelet's life, on plugins that do not get over it; and one that gets over everything."""

from pathlib import Path

import pytest

from devicecore.testing.conformance import CHECKS, Verdict
from tests.kit.faults import LIFE_FAULTS, NAMES, QUICK, check_that_it_is_found, put_to_the_checks


@pytest.mark.parametrize(("fault", "failing", "names"), LIFE_FAULTS, ids=[fault for fault, _, _ in LIFE_FAULTS])
def test_a_fault_is_found(fault: str, failing: str, names: list[str], short_path: Path) -> None:
    check_that_it_is_found(fault, failing, names, short_path)


def test_a_plugin_without_fault_passes_everything(short_path: Path) -> None:
    report = put_to_the_checks("", NAMES, QUICK, short_path)
    assert [result for result in report.results if result.verdict is not Verdict.PASSED] == []
    assert (report.resource, report.devices, len(report.results)) == ("example.com/chip", 3, len(CHECKS))
    assert list(short_path.iterdir()) == [short_path / "sick"]
