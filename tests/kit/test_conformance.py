"""Every check of `devicecore conformance` fails on a plugin with just that fault, and on no other.

Those about a kubelet's life are in a file of their own, so that two workers share the time.
"""

from pathlib import Path

import pytest

from devicecore.testing.conformance import CHECKS
from tests.kit.faults import FAULTS, LIFE_FAULTS, NAMES, check_that_it_is_found


@pytest.mark.parametrize(("fault", "failing", "names"), FAULTS, ids=[fault for fault, _, _ in FAULTS])
def test_a_fault_is_found(fault: str, failing: str, names: list[str], short_path: Path) -> None:
    check_that_it_is_found(fault, failing, names, short_path)


def test_every_check_has_a_fault_that_it_finds() -> None:
    found = {name for _, failing, _ in [*FAULTS, *LIFE_FAULTS] for name in failing.split()}
    assert found == set(NAMES)


def test_every_check_says_what_it_does_and_why() -> None:
    for check in CHECKS:
        assert check.done.endswith("."), check.name
        assert check.expected, check.name
        assert "api.proto" in check.clause or "kubernetes.io" in check.clause or "kubelet" in check.clause, check.name
