"""One node of a fleet: the real managers, an engine, and devices that change on command.

Law: everything that a node has allocated survives a stop, because the next start uses the same stores. Only one thread
at a time uses a node.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, frozen
from devicecore_tools.node.claims import DraParts, NodeClaims
from devicecore_tools.node.engine import NodeEngine
from devicecore_tools.node.feed import PodFeed, PodReporter
from devicecore_tools.node.lanes import Workers
from devicecore_tools.numa import CPU_FILE, MEMORY_FILE, NO_ZONES, NodeManagers, Zones

from devicecore.adapters.file import CHECKPOINT_NAME, FileStore
from devicecore.adapters.memory import MemoryStore
from devicecore.adapters.pod_resources import PodResourcesServer
from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.state_file import FILE_NAME as CLAIMS_NAME
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import Health
from devicecore.domain.node_state import NodeState
from devicecore.dra_manager import DraManager
from devicecore.manager import DeviceManager
from devicecore.plugins.simulated import SimulatedPlugin
from devicecore.ports.claims import ClaimSource
from devicecore.ports.dra_observer import DraObserver
from devicecore.ports.sink import NodeStatusSink
from devicecore.ports.slices import ResourceSlices
from devicecore.ports.store import CheckpointStore
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.runtime.saver_thread import SaverThread
from devicecore.system.directories import make_directories, make_directory
from devicecore_fleet.fleet.commands import places_of
from devicecore_fleet.fleet.description import GroupDescription
from devicecore_fleet.fleet.driver import RememberedClaims, VirtualDriver
from devicecore_fleet.fleet.machine import Disconnect, Machine, MemoryMachine, Report, SocketMachine
from devicecore_fleet.fleet.views import NodeView, ProviderView, cell_of

if TYPE_CHECKING:
    from devicecore.adapters.prometheus import PrometheusMetrics

_log = logging.getLogger(__name__)


@frozen
class NodeLink:
    """The connection of a node to its cluster: incoming pods, outgoing reports and status, claims and ResourceSlices.

    `observe` is called with the state of devices whenever that state may have changed.
    """

    feed: PodFeed
    reporter: PodReporter
    sink: NodeStatusSink
    claims: ClaimSource
    slices: ResourceSlices
    observe: Callable[[NodeState, Zones], None] = lambda _, __: None


@frozen
class SharedParts:
    """The shared parts of a fleet's nodes.

    Attributes:
        saver: saves data that no call is waiting for.
        readers: threads that wait for the API server.
        workers: threads that wait for a disk or a socket.
        clock: returns monotonic seconds.
        root: where nodes store their files, each node in a directory with its name, or None for memory.
        metrics: measures the managers of all nodes together, or is None.
    """

    saver: SaverThread
    readers: Workers
    workers: Workers
    clock: Callable[[], float]
    root: Path | None = None
    metrics: "PrometheusMetrics | None" = None


class VirtualNode(HasLifecycle):
    """A node without a machine. After a stop, a start continues with the saved state.

    Args:
        name: the node's name.
        group: the node's group.
        shared: the shared parts of all nodes.
        link: connects the node to the cluster, once for each start.
        wake: called from any thread when the node has something to do.
    """

    def __init__(
        self,
        name: str,
        group: GroupDescription,
        shared: SharedParts,
        link: Callable[[], NodeLink],
        wake: Callable[[], None],
    ) -> None:
        self.name = name
        self.group = group
        self._shared = shared
        self._link = link
        self._wake = wake
        self._directory = None if group.directory is None else Path(str(group.directory).replace("{node}", name))
        self._checkpoint, self._claims_file, *self._pinned_files = _stores(
            self._directory or (shared.root and shared.root / name)
        )
        if (metrics := shared.metrics) is not None:  # all nodes share these metrics
            self._checkpoint = metrics.measured(self._checkpoint, CHECKPOINT_NAME)
            self._claims_file = metrics.measured(self._claims_file, CLAIMS_NAME)
        self._managers: NodeManagers | None = None
        self._plugins = {str(one.resource): SimulatedPlugin(one.resource, one.devices) for one in group.plugins}
        self._unhealthy: dict[str, frozenset[str]] = {str(one.name): frozenset() for one in group.drivers}
        self._away: set[str] = set()  # resources and drivers that are gone until a command brings them back
        self._connected: dict[str, Disconnect] = {}
        self._report_health_of: dict[str, Report] = {}
        self._machine: Machine = MemoryMachine()
        self._drivers: dict[str, VirtualDriver] = {}
        self._closing = ExitStack()
        self._lifecycle = Lifecycle(f"node {name}")
        self._manager: DeviceManager | None = None
        self._observe: Callable[[NodeState, Zones], None] = lambda _, __: None
        self._looked_at: NodeState | None = None  # the last state that `advance` has examined
        self._claims: NodeClaims | None = None
        self._viewed, self._viewed_version = NodeView(name, is_up=False, is_cut=False, providers=()), object()
        self.engine: NodeEngine | None = None
        """The engine while the node is running, None otherwise."""

    def change(self, group: GroupDescription) -> None:
        """Use the description of a different group from the next start on. The node must not be running.

        If the managers' settings differ, nothing is pinned at first, as on a node whose state files were removed.
        """
        if group.managers != self.group.managers:
            for store in self._pinned_files:
                if store.load() is not None:
                    store.set_aside()
        self.group = group
        self._plugins = {str(one.resource): SimulatedPlugin(one.resource, one.devices) for one in group.plugins}
        self._unhealthy = {str(one.name): frozenset() for one in group.drivers}
        self._away &= {*self._plugins, *self._unhealthy}

    @property
    def is_running(self) -> bool:
        """Whether the node has been started and not stopped since."""
        return self._lifecycle.is_running

    def _begin(self) -> None:
        link = self._link()
        self._observe = link.observe
        known = RememberedClaims(link.claims)
        engine = self._start_managers(link, known)
        self._drivers = {str(one.name): VirtualDriver(one, self.name, known, self._cache) for one in self.group.drivers}
        for provider in (*self._plugins, *self._drivers):
            if provider not in self._away:
                self._connect(provider)
        self.engine = engine
        self._wake()

    def _start_managers(self, link: NodeLink, known: RememberedClaims) -> NodeEngine:
        shared = self._shared
        # Plugins in memory answer at once. Only waiting for a disk, a socket or a server needs a thread.
        in_memory = self._directory is None and shared.root is None
        quick = Workers(0) if in_memory else shared.workers
        self._claims = claims = NodeClaims(
            partial(self._dra, known, link),
            self._wake,
            workers=shared.readers,  # claims are read from the server
            release_workers=quick,
            clock=shared.clock,
        )
        if self._directory is None:
            self._machine = MemoryMachine()
        else:
            make_directories(self._directory)
            make_directory(self._directory)
            self._machine = SocketMachine(self._directory, claims)
        settings = self.group.managers
        managers = None
        if settings is not None:
            managers = NodeManagers(settings.configuration, settings.machine, *self._pinned_files)
        self._managers = managers
        self._manager = manager = DeviceManager(
            self._machine.transport,
            self._checkpoint,
            link.sink,
            pods=link.feed,
            metrics=shared.metrics,
            topology=self.group.topology if managers is None else managers.device_topology,
            clock=shared.clock,
            saver=shared.saver,
        )
        engine = NodeEngine(
            manager,
            link.feed,
            claims,
            self._wake,
            reporter=link.reporter,
            workers=quick,
            clock=shared.clock,
            managers=managers,
        )
        self._closing.callback(engine.stop)
        engine.start()
        if self.group.drivers or self._directory is not None:
            claims.start()
        if self._directory is not None:
            socket = self._directory / "pod-resources" / "kubelet.sock"
            server = PodResourcesServer(socket, engine.snapshot, sweep=manager.update_allocated_devices)
            server.start()
            self._closing.callback(server.stop)
        return engine

    def _cache(self) -> ClaimCache:
        manager = self._claims.manager if self._claims is not None else None
        return manager.claims if manager is not None else ClaimCache()

    def _end(self) -> None:
        self.engine = None
        with ExitStack() as last_to_first:
            # The managers stop first: running managers would report that all plugins and drivers are gone.
            for provider in tuple(self._connected):
                last_to_first.callback(self._disconnect, provider)
            closing, self._closing = self._closing, ExitStack()
            last_to_first.callback(closing.close)

    def _dra(self, known: RememberedClaims, link: NodeLink, observer: DraObserver) -> DraParts:
        manager = DraManager(
            self._machine.drivers,
            known,
            self._claims_file,
            pods=link.feed,
            slices=link.slices,
            metrics=self._shared.metrics,
            observers=(observer,),
            clock=self._shared.clock,
            saver=self._shared.saver,
        )
        return DraParts(manager, self._machine.handler, ExitStack(), deletes_slices=True)

    # --- called by the fleet's loop ----------------------------------------------------------------------------------

    def advance(self) -> float:
        """Do all pending work.

        Return when to call this method again, in monotonic seconds. If the node calls `wake`, call it earlier.
        """
        engine = self.engine
        if engine is None:
            return float("inf")
        is_complete = engine.poll()
        engine.advance()
        if self._manager is not None:
            self._looked_at = self._manager.state
            self._observe(self._looked_at, NO_ZONES if self._managers is None else self._managers.zones)
        return engine.next_due if is_complete else self._shared.clock()

    def tick(self) -> None:
        """Process the passing of time. Call this method every 10 seconds."""
        if self.engine is None or self._manager is None:
            return
        self.engine.tick()
        for driver in tuple(self._report_health_of):  # a report is valid for 30 s, so real drivers also repeat it
            self._report_health(driver)
        if self._manager.state is not self._looked_at:  # a third-party plugin has reported different devices
            self._wake()

    def view(self, *, is_cut: bool = False) -> NodeView:
        """Return the node's view. If the node is not running, the view shows its last state."""
        engine = self.engine
        version = (engine and engine.version, frozenset(self._away), tuple(self._unhealthy.values()))
        if version != self._viewed_version:
            self._viewed_version = version
            providers = tuple(chain(self._plugin_views(), self._driver_views()))
            pods = engine.phases if engine is not None else self._viewed.pods
            self._viewed = NodeView(self.name, self.is_running, is_cut, providers, pods)
        return evolve(self._viewed, is_up=self.is_running, is_cut=is_cut)

    def _plugin_views(self) -> Iterator[ProviderView]:
        ledger = self._manager.state.ledger if self._manager is not None else Ledger()
        for provider, plugin in self._plugins.items():
            held = ledger.in_use(plugin.resource)
            devices = [
                (device.id, cell_of(is_healthy=device.health is Health.HEALTHY, is_held=device.id in held))
                for device in plugin.devices()
            ]
            yield ProviderView(provider, provider not in self._away, tuple(devices))

    def _driver_views(self) -> Iterator[ProviderView]:
        claims = self._cache().claims.values()
        for driver in self.group.drivers:
            provider, unhealthy = str(driver.name), self._unhealthy[str(driver.name)]
            held = {one.name for claim in claims for one in claim.drivers.get(driver.name) or ()}
            devices = [(name, cell_of(is_healthy=name not in unhealthy, is_held=name in held)) for name in driver.names]
            yield ProviderView(provider, provider not in self._away, tuple(devices))

    def obey(self, command: tuple[str, ...]) -> str:
        """Execute a command for devices, plugins or drivers that `check_command` has allowed. Return what was done."""
        self._wake()
        word, what = command[0], command[-1]
        if word in ("unhealthy", "healthy"):
            self._set_health(what, is_healthy=word == "healthy")
            return f"{what} is {word}"
        self._away = self._away | {what} if word.endswith("-gone") else self._away - {what}
        if what in self._away:
            self._disconnect(what)
        elif self.engine is not None and what not in self._connected:
            self._connect(what)
        return f"{what} is {'gone' if what in self._away else 'back'}"

    def unhealthy_of(self, driver: str) -> frozenset[str] | None:
        """Return a driver's unhealthy devices, which the driver does not publish, or None if the driver is gone."""
        return None if driver in self._away else self._unhealthy[driver]

    # --- devices ------------------------------------------------------------------------------------------------------

    def _connect(self, provider: str) -> None:
        if provider in self._plugins:
            self._connected[provider] = self._machine.connect(self._plugins[provider])
            return
        driver = self._drivers[provider]
        self._connected[provider], self._report_health_of[provider] = self._machine.connect_driver(driver)
        self._report_health(provider)

    def _disconnect(self, provider: str) -> None:
        self._report_health_of.pop(provider, None)
        disconnect = self._connected.pop(provider, None)
        if disconnect is not None:
            disconnect()

    def _set_health(self, device: str, *, is_healthy: bool) -> None:
        for provider, name in places_of(device, self.group):
            if provider in self._plugins:
                self._plugins[provider].set_health(name, Health.HEALTHY if is_healthy else Health.UNHEALTHY)
            else:
                before = self._unhealthy[provider]
                self._unhealthy[provider] = before - {name} if is_healthy else before | {name}
                self._report_health(provider)

    def _report_health(self, provider: str) -> None:
        if provider in self._report_health_of:
            self._report_health_of[provider](self._drivers[provider].health(self._unhealthy[provider]))


def _stores(directory: Path | None) -> tuple[CheckpointStore, ...]:
    """Return the stores for devices, claims, CPUs and memory: files in a directory, or else stores in memory."""
    if directory is None:
        return tuple(MemoryStore() for _ in range(4))
    plugins = directory / "device-plugins"
    make_directories(plugins)
    others = (FileStore(directory / name) for name in (CLAIMS_NAME, CPU_FILE, MEMORY_FILE))
    return FileStore.in_directory(plugins), *others
