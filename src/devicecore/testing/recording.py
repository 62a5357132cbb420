"""A transport that remembers everything that passed through it.

Law: it changes nothing. What a plugin was asked and what it said is kept in the order in which it happened.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from attrs import field, frozen

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.events import Event
from devicecore.domain.model import DeviceId, PluginId, Receipt
from devicecore.ports.transport import Listener, PluginTransport

Answer = TypeVar("Answer")


@frozen
class PluginCall:
    """One call to a plugin, and what came of it.

    `method` is the API's name of it. `devices` are those it was about: of GetPreferredAllocation the available ones,
    and only that has `must_include` and `size`. `answer` is what the plugin answered, if that says anything; `error`
    what came instead.
    """

    plugin: PluginId
    method: str
    devices: tuple[DeviceId, ...]
    must_include: tuple[DeviceId, ...] = ()
    size: int | None = None
    answer: ContainerAllocateResponse | tuple[DeviceId, ...] | None = None
    error: DeviceCoreError | None = None


@frozen
class Recording:
    """What has happened so far: every `event` the plugins caused, and every call to them."""

    events: list[Event] = field(factory=list)
    calls: list[PluginCall] = field(factory=list)


class RecordingTransport(PluginTransport):
    """Another transport, recorded. `happened` is called after each entry."""

    def __init__(self, transport: PluginTransport, record: Recording, happened: Callable[[], None]) -> None:
        self._transport = transport
        self._record = record
        self._happened = happened

    def start(self, listener: Listener) -> None:
        """Start the other one; its listener hears of an event before anybody can read of it."""

        def listen(event: Event) -> None:
            listener(event)  # raises if it refuses, and then nobody has registered
            self._record.events.append(event)
            self._happened()

        self._transport.start(listen)

    def stop(self) -> None:
        """Stop the other one."""
        self._transport.stop()

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        """Record an Allocate."""
        receipt: list[Receipt] = []

        def call() -> ContainerAllocateResponse:
            receipt.append(self._transport.allocate(plugin, devices, timeout=timeout))
            return self._transport.read(receipt[0])

        self._recorded(
            call, lambda answer, error: PluginCall(plugin, "Allocate", tuple(devices), answer=answer, error=error)
        )
        return receipt[0]

    def get_preferred_allocation(
        self,
        plugin: PluginId,
        available: Sequence[DeviceId],
        must_include: Sequence[DeviceId],
        size: int,
        *,
        timeout: float | None = None,
    ) -> tuple[DeviceId, ...]:
        """Record a GetPreferredAllocation."""
        return self._recorded(
            lambda: self._transport.get_preferred_allocation(plugin, available, must_include, size, timeout=timeout),
            lambda answer, error: PluginCall(
                plugin, "GetPreferredAllocation", tuple(available), tuple(must_include), size, answer, error
            ),
        )

    def pre_start_container(
        self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None
    ) -> None:
        """Record a PreStartContainer."""
        self._recorded(
            lambda: self._transport.pre_start_container(plugin, devices, timeout=timeout),
            lambda _, error: PluginCall(plugin, "PreStartContainer", tuple(devices), error=error),
        )

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """Read with the other one."""
        return self._transport.read(receipt)

    def _recorded(
        self, call: Callable[[], Answer], entry: Callable[[Answer | None, DeviceCoreError | None], PluginCall]
    ) -> Answer:
        try:
            answer = call()
        except DeviceCoreError as error:
            self._record.calls.append(entry(None, error))
            self._happened()
            raise
        self._record.calls.append(entry(answer, None))
        self._happened()
        return answer
