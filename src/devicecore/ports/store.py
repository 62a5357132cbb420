"""Keep one blob of bytes across restarts."""

from typing import Protocol


class CheckpointStore(Protocol):
    """One blob, replaced whole. It neither encodes nor verifies: what is in the blob is the domain's business."""

    def load(self) -> bytes | None:
        """The blob that was saved last; None if nothing was ever saved.

        Raises:
            StoreError: there is something, and it cannot be read.
        """

    def save(self, blob: bytes) -> None:
        """Replace the whole blob. On return it is durable; after a crash it is the old or the new one, never a mixture.

        Raises:
            StoreError: the old blob is still there, whole.
        """

    def set_aside(self) -> str | None:
        """Move the blob out of the way, keeping it, so that `load` gives None; where it went, None if there was none.

        Raises:
            StoreError: it could not be moved, and is still there.
        """
