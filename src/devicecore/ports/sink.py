"""Who hears about capacity and allocatable."""

from typing import Protocol

from devicecore.domain.capacity import NodeStatus


class NodeStatusSink(Protocol):
    """Takes the node's device resources to wherever schedulers look."""

    def publish(self, status: NodeStatus) -> None:
        """Make `status` what others see of the resources it names; anything else they see stays as it is.

        Called only when something changed, never concurrently. The same status twice is no error.
        """
