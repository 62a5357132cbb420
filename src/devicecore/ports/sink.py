"""Publishes capacity and allocatable.

Law: only the numbers of resources that a status names are changed.
"""

from typing import Protocol

from devicecore.domain.capacity import NodeStatus


class NodeStatusSink(Protocol):
    """Writes the node's device resources to where a scheduler reads them."""

    def publish(self, status: NodeStatus) -> None:
        """Show the numbers of `status` for the resources it names, and 0 or nothing for those in `status.removed`.

        The numbers of other resources are left alone, because other programs may have written them. The manager calls
        this only after changes, and never concurrently. Publishing the same status twice is not an error.

        Raises:
            SinkError: the status is not published. The manager logs this and tries again at the next change or `tick`.
        """
