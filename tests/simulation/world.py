"""Everything that surrounds a device manager: clock, disk, sink, plugins, pods and power.

Law: the world records events, and the state in which the events must leave the manager. It does this as simply as
possible, and never asks the manager itself.
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
from devicecore.testing import faults

BUDGET = 60.0
"""The number of seconds that one admission may take."""

Holdings = Mapping[tuple[str, ResourceName], frozenset[DeviceId]]
"""The devices of one pod, by container and resource."""

ManagerType = Callable[..., DeviceManager]


def holdings(allocations: Sequence[Allocation]) -> Holdings:
    """Return the devices in `allocations`, which belong to one pod."""
    return {(held.key.container, held.resource): frozenset(held.numa_nodes) for held in allocations}


class PowerCutError(BaseException):
    """Raised when the machine has no power.

    It is not an `Exception`, because the manager would catch that and continue.
    """


class Disk(CheckpointStore):
    """A store that records the last blob that was saved (`promised`), and the blob of a failed save (`attempted`)."""

    def __init__(self, script: faults.Script) -> None:
        self.content = MemoryStore()
        self.promised: bytes | None = None
        self.attempted: bytes | None = None
        self.has_power = True
        self.before_call: Callable[[], None] = lambda: None
        self._store = faults.FaultyStore(self.content, script)

    @property
    def honest(self) -> bool:
        """Whether a correct store could have the disk's content."""
        blob = self.content.blob
        return blob == self.promised or (self.attempted is not None and blob == self.attempted)

    @property
    def up_to_date(self) -> bool:
        """Whether the last save reported success and wrote the blob."""
        return self.attempted is None and self.honest

    def load(self) -> bytes | None:
        """Return the blob."""
        return self._store.load()

    def save(self, blob: bytes) -> None:
        """Save the blob, and record whether this succeeded."""
        if not self.has_power:
            raise PowerCutError
        self.before_call()
        self.attempted = blob
        self._store.save(blob)
        self.promised, self.attempted = blob, None

    def set_aside(self) -> str | None:
        """Set the blob aside."""
        place = self._store.set_aside()
        self.trust_content()
        return place

    def trust_content(self) -> None:
        """Treat the content as promised, because the manager has restarted and knows nothing else."""
        self.promised, self.attempted = self.content.blob, None


class ObservedSink(NodeStatusSink):
    """A sink that records the last status if it was `accepted`, and any status that was published twice in a row."""

    def __init__(self, script: faults.Script) -> None:
        self.accepted: NodeStatus | None = NodeStatus()
        self.count = 0
        self.repeated: NodeStatus | None = None
        self.before_call: Callable[[], None] = lambda: None
        self._sink = faults.FaultySink(MemorySink(), script)

    def publish(self, status: NodeStatus) -> None:
        """Record and publish the status."""
        self.before_call()
        self.count += 1
        if self.accepted is not None and status == evolve(self.accepted, removed=()):
            self.repeated = status
        self.accepted = None
        self._sink.publish(status)
        self.accepted = status


@define
class PluginRecord:
    """What plugins have reported to one manager: the last list of each live instance, in the order of registration."""

    lists: dict[PluginId, tuple[Device, ...] | None] = field(factory=dict)
    reported: set[ResourceName] = field(factory=set)

    def note(self, event: Event) -> None:
        """Record an event."""
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
        """Return the live instances of a resource in the order of registration."""
        return [plugin for plugin in self.lists if plugin.resource == resource]

    def latest_list(self, resource: ResourceName) -> tuple[Device, ...] | None:
        """Return the list of the latest live instance that has sent a list."""
        listed = [self.lists[plugin] for plugin in self.live(resource) if self.lists[plugin] is not None]
        return listed[-1] if listed else None


class ObservedTransport(faults.FaultyTransport):
    """A transport that records in `plugin_record` the events that its listener accepts."""

    def __init__(self, transport: MemoryTransport, script: faults.Script, clock: faults.ManualClock) -> None:
        super().__init__(transport, script, clock)
        self.plugin_record = PluginRecord()

    def start(self, listener: Listener) -> None:
        """Start the transport. Events are recorded before the listener gets them."""

        def observed(event: Event) -> None:
            self.plugin_record.note(event)  # before the call, because laws are checked while the listener runs
            try:
                listener(event)
            except BaseException:
                if isinstance(event, PluginRegistered):
                    self.plugin_record.note(PluginLost(event.plugin))
                raise

        super().start(observed)


class Plugin(SimulatedPlugin):
    """A plugin that prefers the last available devices."""

    def __init__(self, resource: ResourceName, devices: Sequence[Device], options: PluginOptions) -> None:
        super().__init__(resource, devices)
        self.options = options

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> tuple[DeviceId, ...]:
        """Return `must_include` and the last available devices."""
        others = [device for device in reversed(available) if device not in must_include]
        return (*must_include, *others)[:size]


@frozen
class Instance:
    """A connected plugin."""

    connection: MemoryConnection
    plugin: Plugin

    def __str__(self) -> str:
        return self.connection.id.socket


@define(eq=False)
class Attempt:
    """An admission in progress, and what the world was like when it began.

    `called` counts the admission's Allocate calls, `answered_at` is the time of the last answer from a plugin, and
    `ended` says whether the pod ended before its admission did.
    """

    pod: Pod
    containers: tuple[Container, ...]
    before: NodeState
    blob: bytes | None
    up_to_date: bool
    ready: bool
    published: int
    actions_done: int
    deadline: float
    answered_at: float = 0.0
    called: int = 0
    ended: bool = False


class World:
    """A machine, and the manager that currently runs on it.

    `answers` contains the devices of the last answer for each active pod. `actions_done` is the number of actions so
    far. `found` is the content of the disk at the last start, and `was_running` is the set of containers that were
    running then.
    """

    def __init__(self, manager: ManagerType, topology: Topology) -> None:
        self.clock = faults.ManualClock()
        self.script = faults.Script()
        self.listing = faults.Script()
        self.disk = Disk(self.script)
        self.pods = MemoryPods()
        self.specs: dict[PodUid, Pod] = {}
        self.in_flight: list[Attempt] = []
        self.answers: dict[PodUid, Holdings] = {}
        self.topology = topology
        self._manager_type = manager
        self.actions_done = 0
        self._compared: tuple[bytes | None, NodeState | None] = (None, None)
        self.found: bytes | None = None
        self.found_honest = True
        self._begin()

    def _begin(self) -> None:
        self.disk.has_power = True
        self.sink = ObservedSink(self.script)
        self.network = MemoryTransport()
        self.transport = ObservedTransport(self.network, self.script, self.clock)
        self.instances: list[Instance] = []
        self.all_instances: list[PluginId] = []
        self.late_disconnects: list[faults.Delayed] = []
        self.was_running = frozenset(self.pods.running)
        self.manager = self._manager_type(
            self.transport,
            self.disk,
            self.sink,
            pods=self.pods,
            topology=self.topology,
            admission_budget=BUDGET,
            clock=self.clock,
        )
        self.manager._saver.in_background = False  # noqa: SLF001 - with one thread, a seed always gives the same run
        self.locked_calls: list[str] = []
        self.disk.before_call = partial(self.note_a_locked_call, "save")
        self.sink.before_call = partial(self.note_a_locked_call, "publish")

    def note_a_locked_call(self, method: str) -> None:
        """Record `method` if the state is locked, that is, if the manager held the lock when it called the port."""
        if self.manager._state._lock.locked():  # noqa: SLF001 - no caller of the manager can see this lock
            self.locked_calls.append(method)

    @property
    def node(self) -> NodeState:
        """The manager's state."""
        return self.manager.state

    @property
    def plugin_record(self) -> PluginRecord:
        """What plugins have reported to the manager."""
        return self.transport.plugin_record

    @property
    def admitting(self) -> frozenset[PodUid]:
        """The pods in admission."""
        return frozenset(attempt.pod.uid for attempt in self.in_flight)

    def boot(self) -> None:
        """Start a new manager with the disk's content. The old manager is not stopped, but is no longer used.

        Raises:
            StoreError: the manager's start failed.
        """
        self._begin()
        self.found, self.found_honest = self.disk.content.blob, self.disk.honest
        self.manager.start()
        self.disk.trust_content()
        unanswered, self.in_flight = self.admitting, []
        restored = {pod: holdings(held) for pod, held in self.node.ledger.allocations.items()}
        if self.manager.restored.problem or not self.found_honest:
            # The disk broke its promise or could not be read, so the lost data is no longer expected.
            self.answers = {pod: restored[pod] for pod in self.answers if pod in restored}
        for pod in unanswered & self.answers.keys() & restored.keys():
            if restored[pod].items() >= self.answers[pod].items():  # the power failed between the save and the answer
                self.answers[pod] = restored[pod]

    def connect(self, resource: ResourceName, socket: str, devices: Sequence[Device], options: PluginOptions) -> None:
        """Register a new instance of a plugin.

        Raises:
            DeviceCoreError: the registration is refused.
        """
        plugin = Plugin(resource, devices, options)
        connection = self.network.connect(faults.FaultyPlugin(plugin, self.listing), socket)
        self.instances.append(Instance(connection, plugin))
        self.all_instances.append(connection.id)

    def is_new_pair(self, blob: bytes | None, node: NodeState) -> bool:
        """Return whether either value has changed since the last call.

        If neither value has changed, a file need not be read, which would be slow.
        """
        before, self._compared = self._compared, (blob, node)
        return before[0] is not blob or before[1] is not node

    def begin(self, pod: Pod, containers: tuple[Container, ...]) -> Attempt:
        """Record the start of an admission."""
        self.in_flight.append(
            Attempt(
                pod,
                containers,
                before=self.node,
                blob=self.disk.content.blob,
                up_to_date=self.disk.up_to_date,
                ready=self.pods.ready,
                published=self.sink.count,
                actions_done=self.actions_done,
                deadline=self.clock.now + BUDGET,
            )
        )
        return self.in_flight[-1]

    def forget(self, pod: PodUid) -> None:
        """End the pod, so that no source lists it."""
        for attempt in self.in_flight:
            attempt.ended |= attempt.pod.uid == pod
        self.pods.active.discard(pod)
        self.pods.running = {key for key in self.pods.running if key.pod != pod}
        self.specs.pop(pod, None)
        self.answers.pop(pod, None)
