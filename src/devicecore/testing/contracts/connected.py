"""Where transports are checked: a plugin that answers what it is told, and a listener that remembers everything."""

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
from devicecore.testing.contracts.expecting import GPU, PATIENCE

T = TypeVar("T")


class Connection(Protocol):
    """A plugin that is connected to a transport: a harness."""

    def disconnect(self) -> None:
        """Have the plugin go, as when its process dies."""


class TransportHarness(Protocol):
    """A transport that is not started yet, and the plugins' way to it."""

    @property
    def transport(self) -> PluginTransport:
        """The transport."""

    def connect(self, plugin: DevicePlugin) -> Connection:
        """Have `plugin` register, on an endpoint of its own; return once it is registered.

        Raises:
            DeviceCoreError: it is refused; its text contains the reason that the plugin was given.
        """


MakeTransport = Callable[[], AbstractContextManager[TransportHarness]]
"""Makes a transport to which nothing is connected."""

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
    """A plugin that writes down what it is asked, and answers what it is told."""

    options = BOTH_OPTIONS

    def __init__(self, resource: str = GPU, listed: Sequence[Device] = DEVICES) -> None:
        self.resource = ResourceName(resource)  # unparsed: some are to be refused
        self.calls: list[tuple[object, ...]] = []
        self.prefers: Sequence[str] = ()
        self.answers: ContainerAllocateResponse | None = ANSWER
        self.error: Exception | None = None
        self._listed = tuple(listed)
        self._subscribers: list[Callable[[], None]] = []

    def devices(self) -> Sequence[Device]:
        """What it was last told to list."""
        return self._listed

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever it is told to list something else."""
        self._subscribers.append(changed)

        def unsubscribe() -> None:
            if changed in self._subscribers:
                self._subscribers.remove(changed)

        return unsubscribe

    def list(self, devices: Sequence[Device]) -> None:
        """Have it list `devices` from now on."""
        self._listed = tuple(devices)
        for changed in tuple(self._subscribers):
            changed()

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Answer what it was told to."""
        answer = self.answers
        self._note("allocate", tuple(devices))
        return answer  # type: ignore[return-value]  # None is to be somebody's mistake

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        """Prefer what it was told to."""
        self._note("get_preferred_allocation", tuple(available), tuple(must_include), size)
        return [DeviceId(device) for device in self.prefers]

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        """Write it down."""
        self._note("pre_start_container", tuple(devices))

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error


@frozen
class Heard:
    """A listener that remembers every event, and refuses plugins of some resources."""

    refused: Mapping[ResourceName, DeviceCoreError] = field(factory=dict)
    events: list[Event] = field(factory=list)
    _changed: threading.Condition = field(factory=threading.Condition)

    def __call__(self, event: Event) -> None:
        """Remember `event`, and refuse it if it is a plugin that is to be refused."""
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        if isinstance(event, PluginRegistered) and event.plugin.resource in self.refused:
            raise self.refused[event.plugin.resource]

    def of(self, plugin: PluginId) -> list[Event]:
        """Everything about one plugin instance."""
        return [
            event
            for event in tuple(self.events)
            if not isinstance(event, RegistrationRequested) and event.plugin == plugin
        ]

    def registered(self) -> list[PluginId]:
        """The plugin instances, in the order in which they registered."""
        return [event.plugin for event in tuple(self.events) if isinstance(event, PluginRegistered)]

    def wait(self, what: str, condition: Callable[[], T]) -> T:
        """Wait until `condition` is true, and give what it gave."""
        with self._changed:
            self._changed.wait_for(condition, PATIENCE)
            if came := condition():
                return came
            message = f"waited {PATIENCE:g} seconds for {what}; these events came: {self.events!r}"
            raise AssertionError(message)

    def wait_for_last(self, event: DevicesReported) -> None:
        """Wait until `event` is the last that was heard of its plugin."""
        self.wait(repr(event), lambda: self.of(event.plugin)[-1:] == [event])


@frozen
class StartedTransport:
    """A started transport, its plugins, and who hears of them."""

    harness: TransportHarness
    heard: Heard

    @property
    def transport(self) -> PluginTransport:
        """The transport."""
        return self.harness.transport

    def connect(self, plugin: DevicePlugin) -> tuple[PluginId, Connection]:
        """Connect `plugin`, and wait until it has reported."""
        before = len(self.heard.registered())
        connection = self.harness.connect(plugin)

        def ours() -> list[PluginId]:  # a plugin that was refused before may still be trying
            return [id_ for id_ in self.heard.registered()[before:] if id_.resource == plugin.resource]

        id_ = self.heard.wait("PluginRegistered", ours)[0]
        self.heard.wait_for_last(DevicesReported(id_, tuple(plugin.devices())))
        return id_, connection

    def wait_until_quiet(self) -> None:
        """Wait until a plugin that comes now has been heard, so that everything before it has."""
        self.connect(Probe("example.com/last"))


@contextmanager
def started(
    make: MakeTransport, refused: Mapping[ResourceName, DeviceCoreError] | None = None
) -> Iterator[StartedTransport]:
    """A started transport, whose listener refuses plugins of some resources; it is stopped in the end."""
    with make() as harness:
        running = StartedTransport(harness, Heard(refused or {}))
        harness.transport.start(running.heard)
        try:
            yield running
        finally:
            harness.transport.stop()


IDS = tuple(device.id for device in DEVICES)


def calls_to(transport: PluginTransport, plugin: PluginId) -> dict[str, Callable[[], object]]:
    """Every call there is to a plugin."""
    return {
        "allocate": lambda: transport.allocate(plugin, IDS),
        "get_preferred_allocation": lambda: transport.get_preferred_allocation(plugin, IDS, IDS[:1], 2),
        "pre_start_container": lambda: transport.pre_start_container(plugin, IDS),
    }
