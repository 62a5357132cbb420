"""How a virtual node's plugins and drivers reach its managers: as objects in this process, or through real sockets.

Law: the function that `connect` returns is called at most once, and disconnects the plugin or driver.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from devicecore_tools.node.claims import NodeClaims

from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin
from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport, serve_driver
from devicecore.adapters.grpc_unix.watcher import PluginHandler
from devicecore.adapters.memory import MemoryTransport
from devicecore.adapters.memory_dra import MemoryDriverTransport
from devicecore.domain.dra.health import ReportedHealth
from devicecore.ports.dra_driver import DraDriver
from devicecore.ports.drivers import DriverTransport
from devicecore.ports.plugin import DevicePlugin
from devicecore.ports.transport import PluginTransport
from devicecore.system.directories import make_directories

Disconnect = Callable[[], object]
Report = Callable[[Sequence[ReportedHealth]], object]


class Machine(Protocol):
    """Connects plugins and drivers. Its transports last for a single run of a node."""

    transport: PluginTransport
    drivers: DriverTransport
    handler: PluginHandler | None

    def connect(self, plugin: DevicePlugin) -> Disconnect:
        """Register a plugin with the running device manager."""

    def connect_driver(self, driver: DraDriver) -> tuple[Disconnect, Report]:
        """Register a driver with the running DRA manager.

        The second function that is returned reports the health of devices.
        """


class MemoryMachine(Machine):
    """A machine whose plugins and drivers are objects, so that nothing needs a thread."""

    handler: PluginHandler | None = None

    def __init__(self) -> None:
        self.transport: MemoryTransport = MemoryTransport()
        self.drivers: MemoryDriverTransport = MemoryDriverTransport()

    def connect(self, plugin: DevicePlugin) -> Disconnect:
        """Register a plugin."""
        return self.transport.connect(plugin).disconnect

    def connect_driver(self, driver: DraDriver) -> tuple[Disconnect, Report]:
        """Register a driver."""
        instance = self.drivers.register(driver)
        return instance.remove, lambda devices: instance.report(*devices)


class SocketMachine(Machine):
    """A machine whose plugins and drivers have sockets in a directory, where third-party plugins are also found."""

    def __init__(self, root: Path, claims: NodeClaims) -> None:
        self._plugins, self._registry, self._own = root / "device-plugins", root / "plugins_registry", root / "plugins"
        drivers = GrpcDriverTransport()
        self.drivers: DriverTransport = drivers
        self.handler: PluginHandler | None = drivers.handler
        self.transport: PluginTransport = GrpcUnixTransport(
            self._plugins, plugins_registry=self._registry, handlers=[claims.handler]
        )

    def connect(self, plugin: DevicePlugin) -> Disconnect:
        """Serve a plugin, which then registers almost immediately."""
        return serve_plugin(plugin, self._plugins).stop

    def connect_driver(self, driver: DraDriver) -> tuple[Disconnect, Report]:
        """Serve a driver, which is then found almost immediately."""
        make_directories(self._own / driver.name)
        served = serve_driver(
            driver, self._registry, endpoint=self._own / driver.name / "dra.sock", wait_for_registry=True
        )
        return served.stop, served.report
