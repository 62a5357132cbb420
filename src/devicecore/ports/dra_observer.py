"""Observes the health of claimed devices.

Law: an observer changes nothing. Any exception that an observer raises is logged.
"""

from typing import Protocol

from devicecore.domain.dra.health import ClaimHealthChanged


class DraObserver(Protocol):
    """A function that the DRA manager calls when the health of claimed devices changes.

    Calls come from any thread, and the manager holds no lock during a call. An observer must not block, because the
    driver's next report waits until the observer has returned. An exception is logged and changes nothing.
    """

    def __call__(self, notification: ClaimHealthChanged, /) -> None:
        """Receive a notification. `DraManager.allocated_resources_status` returns the health."""
