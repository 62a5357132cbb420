"""Contexts of everything that runs: leaving the context stops it.

Law: it is stopped even if the block has failed, and the failure of the block is not suppressed.
"""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class StopsAtExit(ABC):
    """A context manager that runs already when it is entered. Its end calls `stop`."""

    @abstractmethod
    def stop(self) -> None:
        """Stop, and release everything. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class Runs(StopsAtExit):
    """A context manager whose beginning calls `start`, and whose end calls `stop`."""

    @abstractmethod
    def start(self) -> None:
        """Start. A second call does nothing."""

    def __enter__(self) -> Self:
        self.start()
        return self


class ClosesAtExit(ABC):
    """A context manager whose end calls `close`."""

    @abstractmethod
    def close(self) -> None:
        """Close, and release everything. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
