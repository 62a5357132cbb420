"""Faults that show only in some calls of a run: each is found by a check of the whole run."""

from collections.abc import Iterator

import pytest
from tests.conformance.harness import fault_test


@pytest.fixture(scope="module", autouse=True)
def _time_for_all_claims() -> Iterator[None]:
    """Let the check of many claims prepare all of them on a busy machine, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("devicecore_tools.conformance.dra.checks.process._CLAIM_SECONDS", 60.0)
        yield


test_a_fault_is_found = fault_test("whole_run")
