"""Simulates failures of the operating system in one process, for the calls to `os` that replace a file.

Law: only the chosen calls fail, and every other call reaches the operating system.
"""

import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, Self

CALLS = ("close", "fsync", "listdir", "open", "rename", "replace", "scandir", "unlink", "write")
"""The functions of `os` that `DurableFile` calls, directly or through pathlib."""

KILLS = ("killed before", "killed after", "killed halfway")
ERRORS = ("EIO", "ENOSPC", "EROFS", "EDQUOT", "EINTR")
HALF = "half of it"
"""The fault of a write that writes only half of its data and returns the number of bytes, as a real write may."""


class FaultyOs:
    """A context manager in which the `at`-th call to `os`, counted from 1, fails.

    `fault` is one of `KILLS`, one of `ERRORS`, or `HALF`. With `lasting`, every later call fails, too. `calls` contains
    the names of all calls.
    """

    def __init__(self, at: int = 0, fault: str = "EIO", *, lasting: bool = False) -> None:
        self.calls: list[str] = []
        self._at = at
        self._fault = fault
        self._lasting = lasting
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}

    def __enter__(self) -> Self:
        for name in CALLS:
            setattr(os, name, self._shim(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    @property
    def hit(self) -> bool:
        """Whether the call that has to fail was reached."""
        return 0 < self._at <= len(self.calls)

    def _shim(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - it stands for any call
            self.calls.append(name)
            if len(self.calls) == self._at or (self._lasting and self.hit):
                return self._fail(name, *arguments, **options)
            return self._real[name](*arguments, **options)

        return call

    def _fail(self, name: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - it stands for any call
        real = self._real[name]
        match self._fault:
            case "killed before":
                die()
            case "killed after":
                with suppress(OSError):
                    real(*arguments, **options)
                die()
            case "killed halfway" if name == "write":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                die()
            case "half of it" if name == "write":
                return real(arguments[0], arguments[1][: len(arguments[1]) // 2])
            case fault if fault in ERRORS:
                if name == "close":
                    real(*arguments, **options)  # Linux closes the descriptor even if close fails
                number = getattr(errno, fault)
                raise OSError(number, os.strerror(number))
            case _:
                pass
        return real(*arguments, **options)  # only a write can be done halfway


def die() -> NoReturn:
    """Kill this process with SIGKILL, which is the closest equivalent of a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
