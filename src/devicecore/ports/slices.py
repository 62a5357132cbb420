"""Deletes the ResourceSlices of drivers that are gone.

Law: only this node's slices are deleted.
"""

from typing import Protocol

from devicecore.domain.dra.model import DriverName


class ResourceSlices(Protocol):
    """The ResourceSlices of this node. Drivers write them; the manager only deletes them."""

    def delete(self, driver: DriverName | None) -> None:
        """Delete this node's slices that `driver` has written; None means every driver.

        Slices of other nodes, and slices without a node, stay. It is not an error if there are no slices to delete.
        Every call ends within a finite time.

        Raises:
            SliceError: some or all of the slices could not be deleted.
        """
