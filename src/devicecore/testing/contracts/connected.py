"""Tools for the transport checks: a plugin whose answers can be set, and a listener that records every event.

Law: nothing here checks the transport; a check waits until the listener has recorded the expected events.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from attrs import field, frozen

from devicecore.domain.container_options import ContainerAllocateResponse, DeviceSpec, Mount
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.events import DevicesReported, Event, PluginRegistered, RegistrationRequested
from devicecore.domain.model import Device, DeviceId, Health, NumaNode, PluginId, PluginOptions, ResourceName
from devicecore.ports.plugin import DevicePlugin
from devicecore.ports.transport import PluginTransport
from devicecore.testing.contracts.expect import EVENT_TIMEOUT, GPU

T = TypeVar("T")


class Connection(Protocol):
    """A plugin that is connected to a transport."""

    def disconnect(self) -> None:
        """Disconnect the plugin, as happens when its process is killed."""


class TransportHarness(Protocol):
    """A transport that is not started yet, and a way to connect plugins to it."""

    @property
    def transport(self) -> PluginTransport:
        """The transport."""

    def connect(self, plugin: DevicePlugin) -> Connection:
        """Register `plugin` at a separate endpoint. This method returns once the transport has accepted the plugin.

        Raises:
            DeviceCoreError: the transport refused the plugin; the text of the error contains the reason that was sent
                to the plugin.
        """


MakeTransport = Callable[[], AbstractContextManager[TransportHarness]]
"""Creates a transport without connected plugins."""

BOTH_OPTIONS = PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
DEVICES = (
    Device(DeviceId("gpu-10")),
    Device(DeviceId("gpu-2"), Health.UNHEALTHY, (NumaNode(1),)),
    Device(DeviceId("ä b"), topology=()),
    Device(DeviceId("gpu-0"), topology=(NumaNode(1), NumaNode(0))),
)
ANSWER = ContainerAllocateResponse(
    envs={"VISIBLE": "gpu-10,gpu-2", "EMPTY": "", "ä": "😀"},
    mounts=(Mount("/a", "/b", read_only=True), Mount("/c", "/d")),
    devices=(DeviceSpec("/dev/a", "/dev/b", "mrw"), DeviceSpec("/dev/c", "/dev/c", "r")),
    annotations={"key": "value"},
    cdi_devices=("example.com/gpu=0", "example.com/gpu=1"),
)


class Probe(DevicePlugin):
    """A plugin that records its calls and returns the answers that the check has set."""

    options = BOTH_OPTIONS

    def __init__(self, resource: str = GPU, listed: Sequence[Device] = DEVICES) -> None:
        # not validated, because transports must refuse some of these names
        self.resource: ResourceName = ResourceName(resource)
        self.calls: list[tuple[object, ...]] = []
        self.prefers: Sequence[str] = ()
        self.answers: ContainerAllocateResponse | None = ANSWER
        self.error: Exception | None = None
        self._listed = tuple(listed)
        self._subscribers: list[Callable[[], None]] = []

    def devices(self) -> Sequence[Device]:
        """Return the list of devices that was last set."""
        return self._listed

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each call to `list`."""
        self._subscribers.append(changed)

        def unsubscribe() -> None:
            if changed in self._subscribers:
                self._subscribers.remove(changed)

        return unsubscribe

    def list(self, devices: Sequence[Device]) -> None:
        """Set the list of devices."""
        self._listed = tuple(devices)
        for changed in tuple(self._subscribers):
            changed()

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Return the answer that was set."""
        answer = self.answers
        self._record("allocate", tuple(devices))
        return answer  # type: ignore[return-value]  # a check sets None to test how a transport handles it

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        """Return the preferred devices that were set."""
        self._record("get_preferred_allocation", tuple(available), tuple(must_include), size)
        return [DeviceId(device) for device in self.prefers]

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        """Record that the method was called."""
        self._record("pre_start_container", tuple(devices))

    def _record(self, *call: object) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error


@frozen
class EventLog:
    """A listener that records every event, and refuses plugins of some resources."""

    refused: Mapping[ResourceName, DeviceCoreError] = field(factory=dict)
    events: list[Event] = field(factory=list)
    _changed: threading.Condition = field(factory=threading.Condition)

    def __call__(self, event: Event) -> None:
        """Record `event`. Raise an error if `event` registers a plugin that is to be refused."""
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        if isinstance(event, PluginRegistered) and event.plugin.resource in self.refused:
            raise self.refused[event.plugin.resource]

    def of(self, plugin: PluginId) -> list[Event]:
        """Return the events of one plugin instance."""
        return [
            event
            for event in tuple(self.events)
            if not isinstance(event, RegistrationRequested) and event.plugin == plugin
        ]

    def registered(self) -> list[PluginId]:
        """Return the plugin instances in the order of their registrations."""
        return [event.plugin for event in tuple(self.events) if isinstance(event, PluginRegistered)]

    def wait(self, what: str, condition: Callable[[], T]) -> T:
        """Wait until `condition` returns a true value, and return that value."""
        __tracebackhide__ = True
        with self._changed:
            self._changed.wait_for(condition, EVENT_TIMEOUT)
            if actual := condition():
                return actual
            message = f"expected {what} within {EVENT_TIMEOUT:g} s, got these events: {self.events!r}"
            raise AssertionError(message)

    def wait_for_last(self, event: DevicesReported) -> None:
        """Wait until `event` is the latest event of its plugin."""
        self.wait(repr(event), lambda: self.of(event.plugin)[-1:] == [event])


@frozen
class StartedTransport:
    """A started transport and the log of its events."""

    harness: TransportHarness
    log: EventLog

    @property
    def transport(self) -> PluginTransport:
        """The transport."""
        return self.harness.transport

    def connect(self, plugin: DevicePlugin) -> tuple[PluginId, Connection]:
        """Connect `plugin`, and wait until the transport has reported its devices."""
        before = len(self.log.registered())
        connection = self.harness.connect(plugin)

        def ours() -> list[PluginId]:  # a previously refused plugin may still be trying to register
            return [id_ for id_ in self.log.registered()[before:] if id_.resource == plugin.resource]

        id_ = self.log.wait("PluginRegistered", ours)[0]
        self.log.wait_for_last(DevicesReported(id_, tuple(plugin.devices())))
        return id_, connection

    def wait_until_quiet(self) -> None:
        """Connect one more plugin and wait for its events, to be sure that all earlier events have been delivered."""
        self.connect(Probe("example.com/last"))


@contextmanager
def started(
    make: MakeTransport, refused: Mapping[ResourceName, DeviceCoreError] | None = None
) -> Iterator[StartedTransport]:
    """Start a transport whose listener refuses plugins of some resources, and stop the transport at the end."""
    with make() as harness:
        running = StartedTransport(harness, EventLog(refused or {}))
        harness.transport.start(running.log)
        try:
            yield running
        finally:
            harness.transport.stop()


@contextmanager
def connected(make: MakeTransport) -> Iterator[tuple[StartedTransport, Probe, PluginId]]:
    """Start a transport, connect a plugin, and stop the transport at the end."""
    with started(make) as running:
        plugin = Probe()
        id_, _ = running.connect(plugin)
        yield running, plugin, id_


IDS = tuple(device.id for device in DEVICES)


def calls_to(
    transport: PluginTransport, plugin: PluginId, timeout: float | None = None
) -> dict[str, Callable[[], object]]:
    """Return a function for each call to a plugin, by the call's name."""
    ask = transport.get_preferred_allocation
    return {
        "allocate": lambda: transport.allocate(plugin, IDS, timeout=timeout),
        "get_preferred_allocation": lambda: ask(plugin, IDS, IDS[:1], 2, timeout=timeout),
        "pre_start_container": lambda: transport.pre_start_container(plugin, IDS, timeout=timeout),
    }
