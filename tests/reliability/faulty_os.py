"""The operating system, failing on cue: what no healthy disk can be asked for.

A shim in front of `os`, of one process and for the calls with which files are replaced. Everything but the one call
that goes wrong is real.
"""

import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn, Self

CALLS = ("close", "fsync", "listdir", "open", "rename", "replace", "scandir", "unlink", "write")
"""What `DurableFile` calls, by itself or through pathlib."""

KILLS = ("killed before", "killed after", "killed half way")
ERRORS = ("EIO", "ENOSPC", "EROFS", "EDQUOT", "EINTR")
HALF = "half of it"
"""A write that takes half of what it is given, as it may, and says so."""


class FaultyOs:
    """`os` with its `at`-th call, counted from 1, going wrong; used by a `with`.

    `fault` is one of `KILLS`, one of `ERRORS`, or `HALF`. With `lasting`, every later call goes wrong too. `calls` are
    the names of the calls that were made.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    @property
    def hit(self) -> bool:
        """Whether a call went wrong."""
        return 0 < self._at <= len(self.calls)

    def _shim(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - it stands for any call
            self.calls.append(name)
            if len(self.calls) == self._at or (self._lasting and self.hit):
                return self._go_wrong(name, *arguments, **options)
            return self._real[name](*arguments, **options)

        return call

    def _go_wrong(self, name: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - it stands for any call
        real = self._real[name]
        match self._fault:
            case "killed before":
                die()
            case "killed after":
                with suppress(OSError):
                    real(*arguments, **options)
                die()
            case "killed half way" if name == "write":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                die()
            case "half of it" if name == "write":
                return real(arguments[0], arguments[1][: len(arguments[1]) // 2])
            case fault if fault in ERRORS:
                if name == "close":
                    real(*arguments, **options)  # Linux closes the descriptor, whatever close says
                number = getattr(errno, fault)
                raise OSError(number, os.strerror(number))
            case _:
                pass
        return real(*arguments, **options)  # only a write can stop half way


def die() -> NoReturn:
    """End this process as a power cut would: at once, and without a word."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
