"""Observes allocations, releases and the health of devices.

Law: observers are notified of each change at least once, and of changes to a given pod in order.
"""

from typing import Protocol

from devicecore.domain.notifications import Notification


class Observer(Protocol):
    """A function that the manager calls for each allocation, release and change of health, at least once.

    The notifications about a given pod arrive in the order of the events. Calls come from several threads, and the
    manager holds no lock during a call. An observer must not block, because an admission waits until the observer has
    returned. An exception is logged and changes nothing. After a start, `Allocated` is sent for each restored
    allocation.
    """

    def __call__(self, notification: Notification, /) -> None:
        """Receive a notification.

        `Allocated` is sent after the allocation is saved, and `Released` before the release is saved, so a notification
        is repeated if the manager crashes in between.
        """
