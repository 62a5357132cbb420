"""Publish capacity and allocatable.

Law: only numbers of resources that a status names are changed.
"""

from typing import Protocol

from devicecore.domain.capacity import NodeStatus


class NodeStatusSink(Protocol):
    """Writes the node's device resources where a scheduler reads them."""

    def publish(self, status: NodeStatus) -> None:
        """Publish the numbers of the resources that `status` names. Others stay as they are.

        The manager calls it after changes only, and never concurrently. The same status twice is no error.
        """
