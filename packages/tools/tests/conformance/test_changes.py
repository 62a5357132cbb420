"""A driver with a fault when its devices change fails the check for it, and no other check."""

from tests.conformance.harness import fault_test

test_a_fault_is_found = fault_test("changes")
