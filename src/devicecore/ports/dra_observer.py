"""Hear what drivers report."""

from typing import Protocol

from devicecore.domain.dra.health import ClaimHealthChanged


class DraObserver(Protocol):
    """Is notified of the health of claimed devices.

    It is called from any thread, without a lock, and must not block: the driver's next report waits for it. An
    exception that it raises is logged and changes nothing.
    """

    def __call__(self, notification: ClaimHealthChanged, /) -> None:
        """Take note. `DraManager.allocated_resources_status` tells the health."""
