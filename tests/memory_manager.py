"""A device manager with in-memory adapters, for most tests of the manager."""

from collections.abc import Callable
from typing import Any, Self

from devicecore import DeviceManager, DevicePlugin
from devicecore.adapters.memory import MemoryConnection, MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.capacity import NodeStatus
from devicecore.testing.faults import FaultySink, FaultyStore, Script


class MemoryManager(DeviceManager):
    """A manager with its adapters as attributes. Entering a `with` statement starts the manager and connects `plugins`.

    `script` can make the store and the sink fail.
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
    """A sink that calls `action` before it publishes."""

    def __init__(self) -> None:
        super().__init__()
        self.action: Callable[[], object] = nothing

    def publish(self, status: NodeStatus) -> None:
        self.action()
        super().publish(status)
