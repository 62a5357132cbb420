"""A store whose saves are measured.

Law: a `MeasuredStore` behaves like the store that it measures, and raises the same errors. Each save is counted once.
"""

import time
from collections.abc import Callable

from attrs import field, frozen

from devicecore.ports.store import CheckpointStore
from devicecore.runtime.measuring import Clock, measured

__all__ = ["MeasuredStore"]


@frozen(eq=False)
class MeasuredStore:
    """Passes each call on to a store, and reports how long its saves take.

    Attributes:
        store: the store to measure.
        record: called after each save with its duration in seconds, and whether the save raised an error.
        clock: returns monotonic seconds.
    """

    store: CheckpointStore
    record: Callable[[float, bool], None]
    clock: Clock = field(default=time.monotonic, kw_only=True)

    def load(self) -> bytes | None:
        """Return the store's contents. Raises StoreError as the store does."""
        return self.store.load()

    def save(self, blob: bytes) -> None:
        """Save in the store. Raises StoreError as the store does."""
        with measured(self.clock, self.record):
            self.store.save(blob)

    def set_aside(self) -> str | None:
        """Set the content of the store aside. Return the new place. Raises StoreError as the store does."""
        return self.store.set_aside()
