"""Runs modules of these tests as programs in separate processes."""

import subprocess
import sys

from tests.adapters.peers import environment


class Child(subprocess.Popen[str]):
    """A program in a separate process that runs a module of these tests.

    At the end of the `with` statement, the program is killed if it is still running or suspended.
    """

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", f"tests.reliability.{module}", *map(str, arguments)]
        super().__init__(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), bufsize=1
        )

    def __exit__(self, *_: object) -> None:
        self.kill()
        super().__exit__(None, None, None)

    def send(self, *words: str) -> None:
        """Write a line to the program's standard input."""
        assert self.stdin is not None
        self.stdin.write(" ".join(words) + "\n")

    def line(self) -> str:
        """Return the next line that the program prints."""
        assert self.stdout is not None
        return self.stdout.readline().strip()
