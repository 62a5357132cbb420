"""Keep one blob of bytes across restarts.

Law: `load` returns the blob that was saved last, complete, or raises an error.
"""

from typing import Protocol


class CheckpointStore(Protocol):
    """Keeps one blob, which each save replaces as a whole. A store neither encodes nor verifies the content."""

    def load(self) -> bytes | None:
        """Return the blob that was saved last. Return None if none was ever saved.

        Raises:
            StoreError: there is a blob, and it cannot be read.
        """

    def save(self, blob: bytes) -> None:
        """Replace the blob and make it durable. After a crash, `load` gives the old or the new one, never a mixture.

        Raises:
            StoreError: it cannot be saved. The old blob is unchanged.
        """

    def set_aside(self) -> str | None:
        """Keep the blob in another place, so that `load` gives None. Return that place, or None without a blob.

        Raises:
            StoreError: it cannot be moved, and is still where it was.
        """
