"""Publishes capacity and allocatable.

Law: the numbers of a resource change only if the status names that resource.
"""

from typing import Protocol

from devicecore.domain.capacity import NodeStatus


class NodeStatusSink(Protocol):
    """Writes the node's device resources to where a scheduler reads them."""

    def publish(self, status: NodeStatus) -> None:
        """Publish the numbers in `status`. Publish 0 or nothing for the resources in `status.removed`.

        The numbers of other resources are left alone, because other programs may have written them. The manager calls
        this method only after changes, and never concurrently. Publishing the same status twice is not an error.

        Raises:
            SinkError: the status is not published. The manager logs this and tries again at the next change or `tick`.
        """
