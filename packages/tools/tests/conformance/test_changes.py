"""A driver that handles changes to its devices wrongly fails the checks for that fault.

It fails no others except those in `breaks_too`.
"""

from tests.conformance.harness import fault_test

test_a_fault_is_found = fault_test("changes")
