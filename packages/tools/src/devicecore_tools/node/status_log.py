"""The log of published counts.

Law: each change of a resource's published counts is one line in the log.
"""

import logging
from collections.abc import Callable

from attrs import define, field

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import SinkError
from devicecore.domain.text import foreign_text
from devicecore.ports.sink import NodeStatusSink

_log = logging.getLogger(__name__)


@define(eq=False)
class LoggedSink(NodeStatusSink):
    """Logs changes, passes them to another sink, and calls `wake`."""

    _sink: NodeStatusSink
    _wake: Callable[[], None]  # called after every attempt to publish
    _still_failing: Callable[[], SinkError | None] = lambda: None
    """Returns why a sink that publishes later cannot publish, or None."""
    _wait: Callable[[float], None] = lambda _seconds: None
    """Waits this many seconds for a sink that publishes later.

    Raises SinkError if the sink has not published by then.
    """
    _refused: SinkError | None = None
    _last: NodeStatus = field(factory=NodeStatus)

    @property
    def problem(self) -> str | None:
        """Why the latest status is not published, or None if it is published."""
        error = self._refused or self._still_failing()
        return foreign_text(str(error)) if error else None

    def wait(self, seconds: float) -> None:
        """Wait until the other sink has published, if that sink publishes later.

        If the sink has not published after `seconds`, `problem` says why.
        """
        try:
            self._wait(seconds)
        except SinkError as error:
            self._refused = error

    def publish(self, status: NodeStatus) -> None:
        """Log the changes, and pass the status on. Raises SinkError if the other sink refuses the status."""
        for resource, count in status.capacity.items():
            now = count, status.allocatable[resource]
            # At first, counts of 0 only mean that the plugin has not listed its devices yet, or has not come back yet.
            if now != (self._last.capacity.get(resource, 0), self._last.allocatable.get(resource, 0)):
                devices = "device" if count == 1 else "devices"
                _log.info("%s: %d of %d %s allocatable", resource, now[1], count, devices)
        for resource in status.removed:
            _log.info("%s: removed, because its plugin has been gone for five minutes", resource)
        self._last = status
        try:
            self._sink.publish(status)
        except SinkError as error:
            self._refused = error
            raise
        else:
            self._refused = None
        finally:
            self._wake()
