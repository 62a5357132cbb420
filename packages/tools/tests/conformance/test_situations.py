"""A driver that mishandles its claims after an event, or constantly misbehaves, fails the checks for that fault.

It fails no others except those in `breaks_too`.
"""

from devicecore_tools.conformance.dra.checks.situations import CELLS, NO_CELL
from tests.conformance.harness import BY_NAME, fault_test

test_a_fault_is_found = fault_test("situations")


def test_each_empty_cell_of_the_table_has_a_reason() -> None:
    seen = {one.name for _, cells in CELLS.values() for one in cells}
    full = {(event.name, one.name) for (event, _), (_, cells) in CELLS.items() for one in cells}
    events = {event.name for event, _ in (*CELLS, *NO_CELL)}
    empty = {(event.name, name): reason for (event, name), reason in NO_CELL.items()}
    assert full | set(empty) == {(event, name) for event in events for name in seen}
    assert not full & set(empty)
    for reason in empty.values():
        assert reason in BY_NAME or " " in reason
