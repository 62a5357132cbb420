"""Publishes capacity and allocatable.

Law: an older status is never published after a newer one. If the sink fails, the status is published with the next
change or the next tick.
"""

import logging
import threading
from collections.abc import Iterable

from attrs import evolve

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import CalledFromInsideError, SinkError
from devicecore.domain.model import ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.ports.sink import NodeStatusSink
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.open_call import OpenCall

_log = logging.getLogger(__name__)


class Publisher:
    """Owns the sink and the last published status. The lock is held while the sink is called."""

    def __init__(self, sink: NodeStatusSink, state: CurrentState[NodeState]) -> None:
        self._sink = sink
        self._state = state
        self._lock = threading.Lock()
        self._call: OpenCall | None = None  # the call that is publishing to the sink
        self._published = NodeStatus()
        self._removed: tuple[ResourceName, ...] = ()  # resources whose removal has not been published yet

    def publish(self, removed: Iterable[ResourceName] = ()) -> NodeStatus:
        """Publish the status if it has changed, and return the status.

        `removed` are resources that the node no longer has. Raises CalledFromInsideError if the sink calls this method
        while it publishes.
        """
        self.check_call("publishing")
        with self._lock:
            status = self._state.value.inventory.status()
            status = evolve(status, removed=tuple(sorted({*self._removed, *removed} - status.capacity.keys())))
            if status == self._published or self._state.run is None:
                return status
            self._removed = status.removed
            self._call = OpenCall()
            try:
                self._sink.publish(status)
            except SinkError as error:
                _log.error("%s", error)
            except OSError as error:  # a sink may leave such errors to its caller
                _log.error("%s", SinkError(type(self._sink).__name__, str(error)))
            else:
                self._removed = ()
                self._published = evolve(status, removed=())
            finally:
                self._call = None
            return status

    def check_call(self, method: str) -> None:
        """Raise CalledFromInsideError if the call of `method` comes from the sink.

        Such a call would wait for events that are themselves waiting to publish.
        """
        if self._call is not None and self._call.encloses_caller:
            raise CalledFromInsideError(method, "NodeStatusSink.publish")
