"""The contract of `ResourceSlices`.

Law: exactly the slices of the named driver on this node are deleted, or those of all drivers if no driver is named.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from devicecore.domain.dra.model import DriverName
from devicecore.ports.slices import ResourceSlices
from devicecore.testing.contracts.dra_drivers import GPU_DRIVER, NIC_DRIVER
from devicecore.testing.contracts.expect import Suite, expect

__all__ = ["RESOURCE_SLICES", "MakeSlices", "SlicesHarness"]


class SlicesHarness(Protocol):
    """A `ResourceSlices` adapter, and the slices that other programs see."""

    @property
    def slices(self) -> ResourceSlices:
        """The slices of this node."""

    def publish(self, driver: DriverName, names: Iterable[str]) -> None:
        """Create slices for this node, as a driver does."""

    def names(self) -> set[str]:
        """Return the names of all slices that exist."""


MakeSlices = Callable[[], AbstractContextManager[SlicesHarness]]
"""Creates a harness for a node without slices."""

RESOURCE_SLICES: Suite[MakeSlices] = Suite()
"""The checks for every kind of `ResourceSlices`."""


@RESOURCE_SLICES.check
def deletes_the_slices_of_one_driver(make: MakeSlices) -> None:
    """Slices of other drivers are not deleted."""
    with make() as harness:
        harness.publish(GPU_DRIVER, ["gpu-0", "gpu-1"])
        harness.publish(NIC_DRIVER, ["nic-0"])
        harness.slices.delete(GPU_DRIVER)
        expect("what is left", harness.names(), {"nic-0"})


@RESOURCE_SLICES.check
def deletes_the_slices_of_all_drivers(make: MakeSlices) -> None:
    """If the driver is None, the slices of all drivers are deleted."""
    with make() as harness:
        harness.publish(GPU_DRIVER, ["gpu-0"])
        harness.publish(NIC_DRIVER, ["nic-0"])
        harness.slices.delete(None)
        expect("what is left", harness.names(), set())


@RESOURCE_SLICES.check
def deletes_nothing_where_there_is_nothing(make: MakeSlices) -> None:
    """Deleting slices that do not exist is not an error."""
    with make() as harness:
        harness.slices.delete(GPU_DRIVER)
        harness.slices.delete(None)
        harness.publish(GPU_DRIVER, ["gpu-0"])
        expect("what is there", harness.names(), {"gpu-0"})
