"""A device manager with in-memory adapters, which most tests of the manager use."""

from collections.abc import Callable
from typing import Any, Self

from devicecore import DeviceManager, DevicePlugin
from devicecore.adapters.memory import MemoryConnection, MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.capacity import NodeStatus
from devicecore.testing.faults import FaultySink, FaultyStore, Script


class MemoryManager(DeviceManager):
    """A manager that keeps its adapters, and connects `plugins` when a `with` statement starts.

    `script` makes the store and the sink fail.
    """

    def __init__(self, *plugins: DevicePlugin, store: MemoryStore | None = None, **options: Any) -> None:  # noqa: ANN401 - those of a manager
        self.transport, self.store, self.sink = MemoryTransport(), store or MemoryStore(), MemorySink()
        self.script, self.plugins = Script(), plugins
        self.connections: list[MemoryConnection] = []
        faulty = FaultyStore(self.store, self.script), FaultySink(self.sink, self.script)
        super().__init__(self.transport, *faulty, **options)

    def __enter__(self) -> Self:
        self.start()
        self.connections = [self.transport.connect(plugin) for plugin in self.plugins]
        return self


def nothing() -> None: ...


class ActingSink(MemorySink):
    """A sink that does something before it publishes."""

    def __init__(self) -> None:
        super().__init__()
        self.action: Callable[[], object] = nothing

    def publish(self, status: NodeStatus) -> None:
        self.action()
        super().publish(status)
