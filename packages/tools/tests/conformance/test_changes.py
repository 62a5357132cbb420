"""A driver that handles changes to its devices wrongly fails only the checks for that fault."""

from tests.conformance.harness import fault_test

test_a_fault_is_found = fault_test("changes")
