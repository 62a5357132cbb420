"""Hear who got which devices, and who lost them."""

from typing import Protocol

from devicecore.domain.notifications import Notification


class Observer(Protocol):
    """Is told of allocations, releases and health, at least once each, in the order in which they happened to a pod.

    It is called from several threads, with no lock held, and must not block: an admission waits for it. What it raises
    is logged, and changes nothing. After a start it hears `Allocated` for everything that was restored.
    """

    def __call__(self, news: Notification, /) -> None:
        """Take note. `Allocated` comes when it is durable, `Released` before it is: a crash in between repeats it."""
