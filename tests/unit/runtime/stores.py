"""The store for the tests of saved states."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from devicecore.adapters.memory import MemoryStore
from devicecore.domain.checkpoint import decode


class Store(MemoryStore):
    """A store that calls `before` before each save."""

    before: Callable[[], object] = staticmethod(lambda: None)
    saves = 0

    def save(self, blob: bytes) -> None:
        self.saves += 1
        self.before()
        super().save(blob)

    @contextmanager
    def failing(self, error: BaseException) -> Iterator[None]:
        """Make each save raise `error`."""

        def fail() -> None:
            raise error

        self.before = fail
        yield
        del self.before

    def resources(self) -> set[str]:
        return set(decode(self.blob).data.registered_devices or ()) if self.blob else set()
