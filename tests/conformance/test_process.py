"""A driver with a fault in how its process behaves fails the check for it, and no other check."""

from pathlib import Path

import pytest

from tests.conformance.harness import Fault, assert_found, faults_of

FAULTS = faults_of("process")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_a_fault_is_found(fault: Fault, dra_stubs: Path) -> None:
    is_with_stubs = FAULTS.index(fault) % 2
    assert_found(fault, dra_stubs if is_with_stubs else None)
