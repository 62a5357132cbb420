"""A terminal of any size that runs `devicecore`."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence

PATIENCE = 60.0  # seconds for something that takes one or two seconds
_ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'devicecore_tools', *sys.argv[1:]])"
)


class Terminal:
    """`devicecore` on a terminal of this size."""

    def __init__(self, arguments: Sequence[str], columns: int, lines: int, **environment: str) -> None:
        self._master, slave = os.openpty()
        self.resize(columns, lines)
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )
        os.close(slave)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, pattern: str) -> str:
        """Return what is printed from now on, up to this pattern."""
        self.text = ""
        until = time.monotonic() + PATIENCE
        while not re.search(pattern, self.text):
            ready, _, _ = select.select([self._master], [], [], max(0.0, until - time.monotonic()))
            assert ready, self.text
            self.text += os.read(self._master, 65536).decode(errors="replace")
        return self.text

    def hang_up(self) -> None:
        """Close the terminal, as closing the window or connection does."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)
