"""Output to a reader that may stall: a terminal after Ctrl-S, or a pipe that no process reads.

Law: `write` never waits. If strings were dropped because the reader was too slow, a line in the output says how many.
"""

import os
import select
import threading
from collections import deque

from attrs import frozen

MAX_WAITING = 1024 * 1024
"""How many bytes may wait for a slow reader before further strings are dropped. A single string may be longer."""


@frozen
class _Piece:
    data: bytes
    keep: bool


class Stream:
    """Writes strings to a file descriptor from its own thread. The stream does not close the descriptor.

    With `latest_only`, a string that has not been written yet is replaced by the next one, which suits live views.
    Otherwise, strings are queued. A string that would make more than `MAX_WAITING` bytes wait is dropped, unless no
    other string is waiting.
    """

    def __init__(self, descriptor: int, *, latest_only: bool = False) -> None:
        self._descriptor = descriptor
        self._latest_only = latest_only
        self._changed = threading.Condition()
        self._waiting: deque[_Piece] = deque()
        self._bytes = 0
        self._is_writing = False
        self._dropped = 0
        self._broken = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="devicecore-output", daemon=True)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """Whether no reader is left: the pipe is closed, or the terminal is gone."""
        return self._broken

    def write(self, text: str, *, keep: bool = False) -> None:
        """Queue `text` for writing. With `keep`, the text is neither replaced nor dropped."""
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._broken or self._closing:
                return
            if self._latest_only and not keep:
                self._waiting = deque(piece for piece in self._waiting if piece.keep)
                self._bytes = sum(len(piece.data) for piece in self._waiting)
            elif self._bytes + len(data) > MAX_WAITING and self._waiting and not keep:
                self._dropped += 1
                return
            self._report_dropped()
            self._append(data, keep=keep)

    def flush(self, patience: float) -> None:
        """Wait for at most `patience` seconds until everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_writing, patience)

    def close(self, patience: float) -> None:
        """Accept no more text, and wait for at most `patience` seconds until everything is written."""
        with self._changed:
            self._report_dropped()
            self._closing = True
            self._changed.notify_all()
        self._thread.join(patience)

    def _report_dropped(self) -> None:
        if self._dropped:
            said = "1 line was" if self._dropped == 1 else f"{self._dropped} lines were"
            self._append(f"({said} dropped because nobody read them)\n".encode(), keep=True)
            self._dropped = 0

    def _append(self, data: bytes, *, keep: bool) -> None:
        self._waiting.append(_Piece(data, keep))
        self._bytes += len(data)
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                data = self._waiting.popleft().data
                self._bytes -= len(data)
                self._is_writing = True
            if not self._written(data):
                with self._changed:
                    self._broken = True
                    self._waiting.clear()
                    self._is_writing = False
                    self._changed.notify_all()
                return

    def _written(self, data: bytes) -> bool:
        """Write all of `data` and return True, or return False if no reader is left."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another program has made the terminal non-blocking
                ready = select.poll()
                ready.register(self._descriptor, select.POLLOUT)
                ready.poll()
            except OSError:
                return False
        return True
