"""Logs one line for all nodes of a process that are refused for the same reason.

Law: every refused node is counted in a log line soon after the last refusal.
"""

import logging
import threading
import time
from collections.abc import Callable

from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.writer import Writer

TOGETHER = 1.0
"""Seconds without a further refusal after which the line is logged."""

_NAMED = 3  # the maximum number of nodes named in a line
_NODE = "NODE"  # stands for the node's name in a reason

_log = logging.getLogger(__name__)


def log_refused(node: str, why: str) -> None:
    """Log that a node is refused."""
    _log.error("node %s is refused: %s", node, why)


class Refusals:
    """Collects the refused nodes. Thread-safe.

    Args:
        writer: runs the job that logs the refused nodes.
        clock: returns monotonic seconds.
    """

    def __init__(self, writer: Writer, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, list[str]] = {}
        self._last = 0.0

    def add(self, node: str, why: str) -> None:
        """Add a node and the reason why it is refused. This method returns at once."""
        with self._lock:
            self._waiting.setdefault(why.replace(node, _NODE), []).append(node)
            self._last = self._clock()
        self._writer.put(("refusals", ""), self._say)

    def _say(self, _: KubeApiRequests) -> float | None:
        with self._lock:
            if (rest := self._last + TOGETHER - self._clock()) > 0:
                return rest
            waiting, self._waiting = self._waiting, {}
        for why, nodes in waiting.items():
            if len(nodes) == 1:
                log_refused(nodes[0], why.replace(_NODE, nodes[0]))
            else:
                named = ", ".join(sorted(nodes)[:_NAMED])
                more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
                _log.error("%d nodes are refused (%s%s): %s", len(nodes), named, more, why)
        return None
