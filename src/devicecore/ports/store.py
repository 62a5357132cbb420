"""Keeps one blob of bytes across restarts.

Law: `load` returns the complete blob that was saved last, or raises an error.
"""

from typing import Protocol


class CheckpointStore(Protocol):
    """Keeps one blob, which each save replaces as a whole. A store neither encodes nor verifies its content."""

    def load(self) -> bytes | None:
        """Return the blob that was saved last, or None if none was ever saved.

        Raises:
            StoreError: there is a blob, but it cannot be read.
        """

    def save(self, blob: bytes) -> None:
        """Replace the blob and make it durable.

        After a crash, `load` returns the old blob or the new one, never a mixture.

        Raises:
            StoreError: the blob cannot be saved. The old blob is unchanged.
        """

    def set_aside(self) -> str | None:
        """Move the blob elsewhere, so that `load` returns None.

        Return the blob's new location, or None if there is no blob.

        Raises:
            StoreError: the blob cannot be moved, and stays where it is.
        """
