"""The lifecycle of every object that can be started and stopped.

Law: leaving the `with` block stops the object, even if the block has failed, and the block's error is not suppressed.

This lifecycle is described in `docs/maintain/managers.md` ("Starting and stopping"), checked by
`devicecore.testing.contracts.lifecycle`, and implemented once in `devicecore.runtime.lifecycle`.
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
            self.stop()  # the start may have succeeded before an interrupt came
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
