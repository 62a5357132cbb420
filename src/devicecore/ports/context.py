"""The lifecycle of every object that runs.

Law: leaving the context stops the object, even if the block has failed, and the block's error is not suppressed.

The rule is in `docs/maintain/managers.md` ("Starting and stopping"), the checks are in
`devicecore.testing.contracts.lifecycle`, and the shared implementation is in `devicecore.runtime.lifecycle`.
"""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Runs(ABC):
    """A context manager that calls `start` on entry and `stop` on exit."""

    @abstractmethod
    def start(self) -> None:
        """Start. A second call does nothing."""

    @abstractmethod
    def stop(self) -> None:
        """Stop, and release everything. A second call does nothing. Afterwards, the object may be started again."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()  # an interrupt may have come after the start
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
