"""A driver whose process misbehaves fails the checks for that fault, and no others except those in `breaks_too`."""

from tests.conformance.harness import fault_test

test_a_fault_is_found = fault_test("process")
