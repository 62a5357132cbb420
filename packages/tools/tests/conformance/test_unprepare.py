"""A driver that unprepares claims wrongly, or has a fault in its state, fails only the checks for that fault."""

from tests.conformance.harness import fault_test

test_a_fault_is_found = fault_test("unprepare", "state")
