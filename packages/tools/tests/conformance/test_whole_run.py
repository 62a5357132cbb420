"""Faults that show only in some calls of a run: each is found by a check of the whole run."""

from tests.conformance.harness import fault_test

test_a_fault_is_found = fault_test("whole_run")
