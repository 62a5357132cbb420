"""Shows the state of `devicecore kubelet`: on a terminal, as lines of JSON, only in the log, or in a file.

Law: a reader that stalls or a disk that hangs delays the kubelet by a fraction of a second at most, because only other
threads wait longer.
"""

import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from devicecore.domain.text import foreign_text
from devicecore.system.files import DurableFile
from devicecore_tools.command.output import console_on
from devicecore_tools.command.stream import Stream

if TYPE_CHECKING:
    from rich.text import Text

MAX_LOG_LINE = 2_000
"""The maximum length of a log line."""

_LOG_LINES = 8
_PATIENCE = 0.5  # seconds to wait for readers when the command ends
_DISK = 0.2  # seconds to wait for the disk, so that the reader of a line finds the same state in the file
# switch to the alternate screen without a cursor, and back
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

_log = logging.getLogger(__name__)


@frozen
class Picture:
    """A state as JSON, and a function that draws the state for a number of columns and lines."""

    document: str
    draw: "Callable[[int, int], Text]"


class Screen:
    """Shows nothing, because the log says what happens."""

    signals: tuple[signal.Signals, ...] = ()
    """The signals that the screen handles."""

    def show(self, picture: Picture) -> None:
        """Show a state."""

    def handle(self, arrived: frozenset[signal.Signals]) -> bool:
        """Act on signals. Return whether the state has to be drawn again."""
        return bool(arrived & {*self.signals})

    @property
    def is_broken(self) -> bool:
        """Whether the terminal or the pipe is closed."""
        return False

    def close(self) -> None:
        """Stop showing states."""


class JsonLines(Screen):
    """One line of JSON on standard output for every state."""

    def __init__(self) -> None:
        self._stream = Stream(sys.stdout.fileno())

    def show(self, picture: Picture) -> None:
        """Print a line."""
        self._stream.write(picture.document.replace("\n", "") + "\n")

    @property
    def is_broken(self) -> bool:
        """Whether the reader of standard output has closed it."""
        return self._stream.is_broken

    def close(self) -> None:
        """Give the reader a little time to read the last lines."""
        self._stream.close(_PATIENCE)


class LiveScreen(Screen):
    """The live view on the terminal that is standard output."""

    signals: tuple[signal.Signals, ...] = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)

    def __init__(self) -> None:
        self._console = console_on(sys.stdout)
        self._stream = Stream(sys.stdout.fileno(), latest_only=True)
        self._stream.write(_OPEN, keep=True)

    def show(self, picture: Picture) -> None:
        """Draw the view in the terminal's current size."""
        try:
            width, height = os.get_terminal_size(sys.stdout.fileno())
        except OSError:  # If the terminal is gone and SIGHUP is ignored, the kubelet continues without a view.
            return
        text = picture.draw(max(width, 1), max(height, 1))
        with self._console.capture() as capture:
            self._console.print(text, soft_wrap=True, end="")
        lines = capture.get().replace("\n", f"{_REST_OF_LINE}\r\n")
        self._stream.write(f"{_HOME}{lines}{_REST_OF_LINE}{_REST_OF_SCREEN}")

    def handle(self, arrived: frozenset[signal.Signals]) -> bool:
        """Release the terminal before Ctrl-Z stops the process, and take it back when the process continues."""
        if signal.SIGTSTP in arrived:
            self._stream.write(_CLOSE, keep=True)
            self._stream.flush(_PATIENCE)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._stream.write(_OPEN, keep=True)
        elif signal.SIGCONT in arrived:
            self._stream.write(_OPEN, keep=True)
        return super().handle(arrived)

    @property
    def is_broken(self) -> bool:
        """Whether the terminal is gone."""
        return self._stream.is_broken

    def close(self) -> None:
        """Restore the terminal."""
        self._stream.write(_CLOSE, keep=True)
        self._stream.close(_PATIENCE)


def is_live_terminal() -> bool:
    """Return whether standard output is a terminal that can show a view. With `TERM=dumb`, no view is shown."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb").lower() not in {"", "dumb", "unknown"}


class StateFile:
    """A JSON file with the latest state. A separate thread writes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = DurableFile(path, 0o600)
        self._changed = threading.Condition()
        self._next: str | None = None
        self._is_writing = False
        self._problem = ""
        threading.Thread(target=self._run, name="devicecore-state", daemon=True).start()

    def put(self, document: str, patience: float = _DISK) -> None:
        """Hand `document` to the thread, and wait at most `patience` seconds until it is written."""
        with self._changed:
            self._next = document
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next is None and not self._is_writing, patience)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None)
                document, self._next, self._is_writing = self._next, None, True
            assert document is not None, "the document that `put` waits for"  # noqa: S101 - for mypy
            try:
                self._file.replace(document.encode() + b"\n")
            except OSError as error:
                if str(error) != self._problem:  # log once, not with every state
                    _log.error("cannot write %s: %s", self._path, error.strerror or error)
                self._problem = str(error)
            else:
                self._problem = ""
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()


# --- the log ----------------------------------------------------------------------------------------------------------


@contextmanager
def logged(*, live: bool) -> Iterator[deque[str]]:
    """Write the log to standard error, or, with `live`, keep only its last lines.

    The context manager yields these lines.
    """
    log_lines: deque[str] = deque(maxlen=_LOG_LINES)
    loggers = [logging.getLogger(name) for name in ("devicecore", "devicecore_fleet", "devicecore_tools")]
    before = [logger.level for logger in loggers]
    with nullcontext(log_lines.append) if live else _standard_error() as write:
        handler = LineHandler(write, "%H:%M:%S" if live else None)
        for logger in loggers:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        try:
            yield log_lines
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.removeHandler(handler)
                logger.setLevel(level)


@contextmanager
def _standard_error() -> Iterator[Callable[[str], None]]:
    stream = Stream(sys.stderr.fileno())
    try:
        yield lambda line: stream.write(f"{line}\n")
    finally:
        stream.close(_PATIENCE)


class LineHandler(logging.Handler):
    """Writes each record as one printable line of bounded length, and a traceback as further lines."""

    def __init__(self, write: Callable[[str], None], time_format: str | None = None) -> None:
        super().__init__()
        self._write = write
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", time_format))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            time = self.formatter.formatTime(record, self.formatter.datefmt) if self.formatter else ""
            self._write(f"{time} {foreign_text(record.getMessage(), MAX_LOG_LINE)}")
            if record.exc_info and self.formatter:
                for line in self.formatter.formatException(record.exc_info).splitlines():
                    self._write(f"    {foreign_text(line, MAX_LOG_LINE)}")
        except Exception:  # noqa: BLE001 - as every handler of the standard library does
            self.handleError(record)
