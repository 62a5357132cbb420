"""Everything around one device manager: clock, disk, sink, plugins, pods, and the power.

Law: what a manager is to be judged by is written down here when it happens, as naively as can be, and never asked of
the manager.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import define, evolve, field, frozen

from devicecore.adapters.memory import MemoryConnection, MemoryPods, MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered
from devicecore.domain.ledger import Allocation
from devicecore.domain.model import Container, Device, DeviceId, PluginId, PluginOptions, Pod, PodUid, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.topology import Topology
from devicecore.manager import DeviceManager
from devicecore.plugins.simulated import SimulatedPlugin
from devicecore.ports.sink import NodeStatusSink
from devicecore.ports.store import CheckpointStore
from devicecore.ports.transport import Listener
from devicecore.testing.faults import (
    Delayed,
    FaultyPlugin,
    FaultySink,
    FaultyStore,
    FaultyTransport,
    ManualClock,
    Script,
)

BUDGET = 60.0
"""Seconds that one admission may take."""

Holdings = Mapping[tuple[str, ResourceName], frozenset[DeviceId]]
"""The devices of one pod, by container and resource."""

ManagerType = Callable[..., DeviceManager]


def holdings(allocations: Sequence[Allocation]) -> Holdings:
    """What `allocations` of one pod hold."""
    return {(held.key.container, held.resource): frozenset(held.numa_nodes) for held in allocations}


class PowerCutError(BaseException):
    """The machine is off. No code of the manager may catch it and go on."""


class Disk(CheckpointStore):
    """A store that knows what it promised. `promised` was saved; `attempted` may have been, since it failed."""

    def __init__(self, script: Script) -> None:
        self.content = MemoryStore()
        self.promised: bytes | None = None
        self.attempted: bytes | None = None
        self.has_power = True
        self.look: Callable[[], None] = lambda: None
        self._store = FaultyStore(self.content, script)

    @property
    def honest(self) -> bool:
        """Whether what is on it is what a store may have on it."""
        return self.content.blob in {self.promised, self.attempted}

    @property
    def up_to_date(self) -> bool:
        """Whether the last save succeeded, and really did."""
        return self.attempted is None and self.honest

    def load(self) -> bytes | None:
        """The blob."""
        return self._store.load()

    def save(self, blob: bytes) -> None:
        """Replace the blob."""
        if not self.has_power:
            raise PowerCutError
        self.look()
        self.attempted = blob
        self._store.save(blob)
        self.promised, self.attempted = blob, None

    def set_aside(self) -> str | None:
        """Move the blob out of the way."""
        place = self._store.set_aside()
        self.settle()
        return place

    def settle(self) -> None:
        """Take what is on it for what was promised: there was a restart."""
        self.promised, self.attempted = self.content.blob, None


class Board(NodeStatusSink):
    """A sink that knows whether it `shows` what it was told last, and whether it was told something twice."""

    def __init__(self, script: Script) -> None:
        self.shows: NodeStatus | None = NodeStatus()
        self.count = 0
        self.repeated: NodeStatus | None = None
        self.look: Callable[[], None] = lambda: None
        self._sink = FaultySink(MemorySink(), script)

    def publish(self, status: NodeStatus) -> None:
        """Show the status."""
        self.look()
        self.count += 1
        if self.shows is not None and status == evolve(self.shows, removed=()):
            self.repeated = status
        self.shows = None
        self._sink.publish(status)
        self.shows = status


@define
class Hearsay:
    """What the plugins have told one manager: the last list of each live instance, in the order of registration."""

    lists: dict[PluginId, tuple[Device, ...] | None] = field(factory=dict)
    reported: set[ResourceName] = field(factory=set)

    def hear(self, event: Event) -> None:
        """Take note."""
        match event:
            case PluginRegistered(plugin):
                self.lists[plugin] = None
            case DevicesReported(plugin, devices) if plugin in self.lists:
                self.lists[plugin] = tuple(devices)
                self.reported.add(plugin.resource)
            case PluginLost(plugin):
                self.lists.pop(plugin, None)
            case _:
                pass

    def live(self, resource: ResourceName) -> list[PluginId]:
        """The live instances of a resource, the latest last."""
        return [plugin for plugin in self.lists if plugin.resource == resource]

    def latest_list(self, resource: ResourceName) -> tuple[Device, ...] | None:
        """What the latest live instance that has listed anything listed."""
        listed = [self.lists[plugin] for plugin in self.live(resource) if self.lists[plugin] is not None]
        return listed[-1] if listed else None


class Wire(FaultyTransport):
    """A transport of which everything that its listener took is in `heard`."""

    def __init__(self, transport: MemoryTransport, script: Script, clock: ManualClock) -> None:
        super().__init__(transport, script, clock)
        self.heard = Hearsay()

    def start(self, listener: Listener) -> None:
        """Start, and listen too."""

        def witnessed(event: Event) -> None:
            self.heard.hear(event)  # first: whatever the listener does may be judged by it
            try:
                listener(event)
            except BaseException:
                if isinstance(event, PluginRegistered):
                    self.heard.hear(PluginLost(event.plugin))
                raise

        super().start(witnessed)


class Plugin(SimulatedPlugin):
    """A plugin with a taste: it prefers the last devices that it is offered."""

    def __init__(self, resource: ResourceName, devices: Sequence[Device], options: PluginOptions) -> None:
        super().__init__(resource, devices)
        self.options = options

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> tuple[DeviceId, ...]:
        """Prefer the last ones."""
        others = [device for device in reversed(available) if device not in must_include]
        return (*must_include, *others)[:size]


@frozen
class Instance:
    """A plugin that is connected."""

    connection: MemoryConnection
    plugin: Plugin

    def __str__(self) -> str:
        return self.connection.id.socket


@define(eq=False)
class Attempt:
    """An admission under way, and how things stood when it began: node, file, disk, pods, sink and clock.

    `called` counts its Allocate calls, `answered_at` is when a plugin last answered, and `ended` says that the pod was
    over before it was answered.
    """

    pod: Pod
    containers: tuple[Container, ...]
    before: NodeState
    blob: bytes | None
    up_to_date: bool
    ready: bool
    published: int
    moment: int
    deadline: float
    answered_at: float = 0.0
    called: int = 0
    ended: bool = False


class World:
    """One machine, with whatever manager runs on it now.

    `answers` is what active pods were told that they have. `moment` counts what has happened. `found` is what was on
    the disk at the last start, and `was_running` what ran then.
    """

    def __init__(self, manager: ManagerType, topology: Topology) -> None:
        self.clock = ManualClock()
        self.script = Script()
        self.listing = Script()
        self.disk = Disk(self.script)
        self.pods = MemoryPods()
        self.specs: dict[PodUid, Pod] = {}
        self.in_flight: list[Attempt] = []
        self.answers: dict[PodUid, Holdings] = {}
        self.topology = topology
        self._manager_type = manager
        self.moment = 0
        self._compared: tuple[bytes | None, NodeState | None] = (None, None)
        self.found: bytes | None = None
        self.found_honest = True
        self._begin()

    def _begin(self) -> None:
        self.disk.has_power = True
        self.board = Board(self.script)
        self.network = MemoryTransport()
        self.transport = Wire(self.network, self.script, self.clock)
        self.instances: list[Instance] = []
        self.past: list[PluginId] = []
        self.goodbyes: list[Delayed] = []
        self.was_running = frozenset(self.pods.running)
        self.manager = self._manager_type(
            self.transport,
            self.disk,
            self.board,
            pods=self.pods,
            topology=self.topology,
            admission_budget=BUDGET,
            clock=self.clock,
        )
        self.manager._saver.in_background = False  # noqa: SLF001 - a seed is a run only if there is one thread
        self.locked_at: list[str] = []
        self.disk.look = partial(self.look_at_the_lock, "save")
        self.board.look = partial(self.look_at_the_lock, "publish")

    def look_at_the_lock(self, method: str) -> None:
        """Note if a port is called while the state is locked. There is one thread, so nobody else can hold the lock."""
        if self.manager._state._lock.locked():  # noqa: SLF001 - no caller of the manager can see this lock
            self.locked_at.append(method)

    @property
    def node(self) -> NodeState:
        """What the manager knows."""
        return self.manager.state

    @property
    def heard(self) -> Hearsay:
        """What the manager was told."""
        return self.transport.heard

    @property
    def admitting(self) -> frozenset[PodUid]:
        """The pods whose admission is under way."""
        return frozenset(attempt.pod.uid for attempt in self.in_flight)

    def boot(self) -> None:
        """Start a new manager on what is on the disk. The old one is not asked, and nobody hears of it any more.

        Raises:
            StoreError: its start failed.
        """
        self._begin()
        self.found, self.found_honest = self.disk.content.blob, self.disk.honest
        self.manager.start()
        self.disk.settle()
        unanswered, self.in_flight = self.admitting, []
        restored = {pod: holdings(held) for pod, held in self.node.ledger.allocations.items()}
        if self.manager.restored.problem or not self.found_honest:
            # The disk lied, or could not be read: what it forgot is forgotten, and what it has is what there is.
            self.answers = {pod: restored[pod] for pod in self.answers if pod in restored}
        for pod in unanswered & self.answers.keys() & restored.keys():
            if restored[pod].items() >= self.answers[pod].items():  # more was saved, and then nobody was left to say so
                self.answers[pod] = restored[pod]

    def connect(self, resource: ResourceName, socket: str, devices: Sequence[Device], options: PluginOptions) -> None:
        """Have a new instance of a plugin register.

        Raises:
            DeviceCoreError: it is refused.
        """
        plugin = Plugin(resource, devices, options)
        connection = self.network.connect(FaultyPlugin(plugin, self.listing), socket)
        self.instances.append(Instance(connection, plugin))
        self.past.append(connection.id)

    def is_new_pair(self, blob: bytes | None, node: NodeState) -> bool:
        """Whether the two were not compared before: reading a file costs more than all other laws together."""
        before, self._compared = self._compared, (blob, node)
        return before[0] is not blob or before[1] is not node

    def begin(self, pod: Pod, containers: tuple[Container, ...]) -> Attempt:
        """Note how things stand before an admission."""
        self.in_flight.append(
            Attempt(
                pod,
                containers,
                before=self.node,
                blob=self.disk.content.blob,
                up_to_date=self.disk.up_to_date,
                ready=self.pods.ready,
                published=self.board.count,
                moment=self.moment,
                deadline=self.clock.now + BUDGET,
            )
        )
        return self.in_flight[-1]

    def forget(self, pod: PodUid) -> None:
        """The pod is over: nobody lists it any more."""
        for attempt in self.in_flight:
            attempt.ended |= attempt.pod.uid == pod
        self.pods.active.discard(pod)
        self.pods.running = {key for key in self.pods.running if key.pod != pod}
        self.specs.pop(pod, None)
        self.answers.pop(pod, None)
