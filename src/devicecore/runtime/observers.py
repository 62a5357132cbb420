"""Notifies observers.

Law: an observer that raises an error changes nothing. The error is logged, and the other observers are notified.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from devicecore.domain.checks import check_callables

_log = logging.getLogger(__name__)

Notification = TypeVar("Notification")


class Observers(Generic[Notification]):
    """The observers of one manager. The callers of `notify` hold no lock."""

    def __init__(self, observers: Iterable[Callable[[Notification], None]]) -> None:
        check_callables("observers", observers, "the notification")
        self._observers = tuple(observers)
        self.exist: bool = bool(self._observers)
        """Whether there are any observers."""

    def notify(self, notifications: Iterable[Notification]) -> None:
        """Call every observer with each of `notifications`, in order.

        Without observers, `notifications` is not iterated over.
        """
        if not self._observers:
            return
        for notification in notifications:
            for observer in self._observers:
                try:
                    observer(notification)
                except Exception:  # noqa: BLE001 - an observer's mistake must not fail an admission
                    _log.exception("%r failed on %s", observer, type(notification).__name__)
