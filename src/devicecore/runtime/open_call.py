"""A call in some thread, and whether it is still in progress.

Law: a call that has returned or raised never counts as in progress, even if an interrupt (Ctrl-C) kept it from calling
`end`.
"""

import sys
import threading
from types import FrameType


class OpenCall:
    """The call of the function that creates this object: its thread and its frame."""

    __slots__ = ("_frame", "thread")

    def __init__(self) -> None:
        self.thread: int = threading.get_ident()
        self._frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and the cheapest way

    def end(self) -> None:
        """Mark the call as ended. This also breaks the reference cycle with the frame."""
        self._frame = None

    @property
    def has_ended(self) -> bool:
        """Whether the call has returned or raised."""
        frame = self._frame
        if frame is None:
            return True
        try:
            frame.clear()  # Python refuses to clear a frame that is still being executed by a thread
        except RuntimeError:
            return False
        self._frame = None
        return True

    @property
    def encloses_caller(self) -> bool:
        """Whether the caller runs inside this call."""
        return self.thread == threading.get_ident() and not self.has_ended
