"""Every port, implemented within one process for tests and for programs without sockets and files.

Law: these adapters fulfill the same contracts as the real adapters.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

from attrs import Attribute, define, field

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checks import tuple_of
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.device_list import DeviceList
from devicecore.domain.errors import (
    PluginCallError,
    PluginError,
    PluginStoppedError,
    TransportInUseError,
    TransportNotStartedError,
)
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.model import ContainerKey, DeviceId, PluginId, PodUid, Receipt, resource_name
from devicecore.domain.text import counted, foreign_text
from devicecore.ports.plugin import DevicePlugin, allocated, check_plugin, listed, preferred, subscribed
from devicecore.ports.transport import Listener
from devicecore.system.arguments import checks_arguments, checks_fields
from devicecore.system.list_check import ListCheck
from devicecore.wire.conversion import read_receipt, write_receipt

Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)


class MemoryTransport:
    """A `PluginTransport` to plugins that are objects in this process.

    Calls run in the caller's thread, so a plugin's method that hangs is not interrupted. A call's time limit is the
    only promise of the port that this adapter cannot keep. `devicecore.testing.faults` simulates plugins that never
    answer.
    """

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._connections: dict[PluginId, MemoryConnection] = {}
        self._generations = count(1)

    def __repr__(self) -> str:
        plugins = len(self._connections)
        state = "stopped" if self._listener is None else counted(plugins, "plugin")
        return f"MemoryTransport({state})"

    def start(self, listener: Listener) -> None:
        """Begin to accept registrations, which `connect` makes. A second start does nothing.

        Raises:
            TransportInUseError: another manager has started this transport and not stopped it.
        """
        if self._listener not in (None, listener):
            raise TransportInUseError(type(self).__name__)
        self._listener = listener

    def stop(self) -> None:
        """Disconnect every plugin."""
        self._listener = None
        for connection in tuple(self._connections.values()):
            connection.disconnect()

    @checks_arguments()
    def connect(self, plugin: DevicePlugin, socket: str = "") -> "MemoryConnection":
        """Register `plugin` as if it were served on `socket` (by default a unique one), and read its first list.

        Raises:
            TypeError: `plugin` is not a plugin, or lists something other than devices.
            TransportNotStartedError: the transport is not started.
            InvalidResourceNameError: a kubelet would not accept the plugin's resource name.
            DeviceCoreError: the listener refuses the plugin.
        """
        check_plugin(plugin, "connect")
        if self._listener is None:
            raise TransportNotStartedError(plugin.resource)
        self._listener(RegistrationRequested(plugin.resource))
        generation = next(self._generations)
        id_ = PluginId(resource_name(plugin.resource), socket or f"memory-{generation}.sock", generation)
        self._listener(PluginRegistered(id_, plugin.options))
        self._connections[id_] = connection = MemoryConnection(id_, plugin, self)
        connection.open()
        return connection

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:  # noqa: ARG002  # see the class
        """Ask the plugin to prepare `devices`."""
        return self._call(plugin, "Allocate", lambda live: write_receipt(allocated(live, tuple(devices))))

    def get_preferred_allocation(
        self,
        plugin: PluginId,
        available: Sequence[DeviceId],
        must_include: Sequence[DeviceId],
        size: int,
        *,
        timeout: float | None = None,  # noqa: ARG002  # see the class
    ) -> tuple[DeviceId, ...]:
        """Ask the plugin which devices it prefers."""
        question = tuple(available), tuple(must_include), size
        return self._call(plugin, "GetPreferredAllocation", lambda live: preferred(live, *question))

    def pre_start_container(
        self,
        plugin: PluginId,
        devices: Sequence[DeviceId],
        *,
        timeout: float | None = None,  # noqa: ARG002  # see the class
    ) -> None:
        """Announce to the plugin that a container is about to start."""
        self._call(plugin, "PreStartContainer", lambda live: live.pre_start_container(tuple(devices)))

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """Return the content of a receipt."""
        return read_receipt(receipt)

    def _call(self, plugin: PluginId, method: str, call: Callable[[DevicePlugin], Answer]) -> Answer:
        connection = self._connections.get(plugin)
        if connection is None:
            raise PluginStoppedError(plugin.resource)
        try:
            return call(connection.plugin)
        except Exception as error:  # any exception that the plugin raises counts as its answer
            raise PluginCallError(plugin.resource, method, str(error)) from error

    def _remove(self, plugin: PluginId) -> None:
        if self._connections.pop(plugin, None):
            self._notify(PluginLost(plugin))

    def _notify(self, event: Event) -> None:
        if self._listener:
            self._listener(event)


class MemoryConnection:
    """One registered plugin, created by `MemoryTransport.connect`."""

    def __init__(self, id_: PluginId, plugin: DevicePlugin, transport: MemoryTransport) -> None:
        self.id = id_
        self.plugin = plugin
        self._transport = transport
        self._check = ListCheck(id_, message_bytes=None)
        self._in_turn = threading.RLock()
        self._unsubscribe: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Read the first list and every later list."""
        with self._in_turn:
            self._unsubscribe = subscribed(self.plugin, self.report)
            self.report()

    def disconnect(self) -> None:
        """End the stream, as when a plugin's process ends. A second call does nothing."""
        with self._in_turn:
            self._unsubscribe()
            self._transport._remove(self.id)  # noqa: SLF001  # the two are one adapter

    def report(self) -> None:
        """Send the current list, for example as a heartbeat. If the list is too large, the plugin is lost."""
        with self._in_turn:
            if self.id not in self._transport._connections:  # noqa: SLF001  # as above
                return
            devices = DeviceList.of(listed(self.plugin))
            try:
                self._check.look(sum(map(len, devices.ids)), devices)
            except PluginError as error:
                _log.warning("lost %s at %s: %s", self.id.resource, foreign_text(self.id.socket), error)
                self.disconnect()
            else:
                self._transport._notify(DevicesReported(self.id, devices))  # noqa: SLF001  # as above


@checks_fields
@define
class MemoryStore:
    """A `CheckpointStore` in memory. `aside` contains the blobs that were set aside, oldest first."""

    blob: bytes | None = None
    aside: list[bytes] = field(factory=list)

    def load(self) -> bytes | None:
        """Return the blob."""
        return self.blob

    def save(self, blob: bytes) -> None:
        """Replace the blob."""
        self.blob = blob

    def set_aside(self) -> str | None:
        """Move the blob into `aside`."""
        if self.blob is None:
            return None
        self.aside.append(self.blob)
        self.blob = None
        return f"aside[{len(self.aside) - 1}]"


@define
class MemorySink:
    """A `NodeStatusSink` that acts as a node: `capacity` and `allocatable` as a Node object shows them.

    `published` contains every status that was published, oldest first.
    """

    capacity: dict[str, int] = field(factory=dict)
    allocatable: dict[str, int] = field(factory=dict)
    published: list[NodeStatus] = field(factory=list)

    def publish(self, status: NodeStatus) -> None:
        """Store the status."""
        self.published.append(status)
        for shown, counts in ((self.capacity, status.capacity), (self.allocatable, status.allocatable)):
            shown.update((str(name), counts.get(name, 0)) for name in (*status.removed, *counts))


def _are_uids(_: object, field: "Attribute[set[PodUid]]", value: set[PodUid]) -> None:
    tuple_of(value, str, f"MemoryPods.{field.name}")


def _are_keys(_: object, field: "Attribute[set[ContainerKey]]", value: set[ContainerKey]) -> None:
    tuple_of(value, ContainerKey, f"MemoryPods.{field.name}")


@checks_fields
@define
class MemoryPods:
    """A `PodSource` that returns its attributes."""

    active: set[PodUid] = field(factory=set, validator=_are_uids)
    ready: bool = True
    running: set[ContainerKey] = field(factory=set, validator=_are_keys)

    def active_pods(self) -> tuple[PodUid, ...]:
        """Return the active pods."""
        return tuple(sorted(self.active))

    def sources_ready(self) -> bool:
        """Return whether every source has reported."""
        return self.ready

    def running_containers(self) -> tuple[ContainerKey, ...]:
        """Return the containers that were running at the start."""
        return tuple(sorted(self.running, key=lambda key: (key.pod, key.container)))


@define
class MemoryMetrics:
    """`Metrics` as plain lists, and counts by resource.

    `allocations` contains durations in seconds; `admissions` also says whether each admission failed.
    """

    registrations: dict[str, int] = field(factory=dict)
    allocations: dict[str, list[float]] = field(factory=dict)
    admissions: list[tuple[float, bool]] = field(factory=list)

    def device_plugin_registration(self, resource: str) -> None:
        """Count a registration."""
        self.registrations[resource] = self.registrations.get(resource, 0) + 1

    def device_plugin_alloc_duration(self, resource: str, seconds: float) -> None:
        """Record a duration."""
        self.allocations.setdefault(resource, []).append(seconds)

    def topology_manager_admission(self, seconds: float, *, failed: bool) -> None:
        """Record an admission."""
        self.admissions.append((seconds, failed))
