"""Deletes the ResourceSlices of drivers that are gone.

Law: only this node's slices are deleted.
"""

from typing import Protocol

from devicecore.domain.dra.model import DriverName


class ResourceSlices(Protocol):
    """The ResourceSlices of this node. Drivers write the slices, and the manager only deletes them."""

    def delete(self, driver: DriverName | None) -> None:
        """Delete the slices of this node that `driver` has written, or those of all drivers if `driver` is None.

        Slices of other nodes, and slices without a node, stay. It is not an error if there are no slices to delete.
        Every call ends within a finite time.

        Raises:
            SliceError: some or all of the slices could not be deleted.
        """
