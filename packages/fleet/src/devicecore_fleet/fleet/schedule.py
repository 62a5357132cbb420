"""The commands in a fleet's file, in the order of their times.

Law: a command is due once at each of its times. If it lasts for a limited time, the command that undoes it is due once
after each of these times.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import count

from devicecore_fleet.fleet.commands import undone
from devicecore_fleet.fleet.description import PlannedCommand


class Schedule:
    """The schedule of commands.

    Args:
        planned: the commands in the file.
        began: when the fleet started (monotonic seconds).
    """

    def __init__(self, planned: Iterable[PlannedCommand], began: float) -> None:
        self._order = count()
        self._waiting: list[tuple[float, int, str, tuple[str, ...], PlannedCommand | None]] = []
        for one in planned:
            self._add(began + one.at, one.nodes, one.command, one)

    def _add(self, at: float, nodes: str, command: tuple[str, ...], again: PlannedCommand | None = None) -> None:
        heapq.heappush(self._waiting, (at, next(self._order), nodes, command, again))

    @property
    def next_due(self) -> float:
        """When the next command is due (monotonic seconds)."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def due(self, now: float) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the commands that are due, each with its node pattern, and remove them from the schedule."""
        while self._waiting and self._waiting[0][0] <= now:
            at, _, nodes, command, planned = heapq.heappop(self._waiting)
            if planned is not None and planned.lasts is not None:
                self._add(at + planned.lasts, nodes, undone(command))
            if planned is not None and planned.every is not None:
                self._add(max(at + planned.every, now), nodes, command, planned)
            yield nodes, command
