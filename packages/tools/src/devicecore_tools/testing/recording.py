"""A transport that records every event and every call.

Law: a recording transport changes no call and no event, and records them in the order in which they happened.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from attrs import field, frozen

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.events import Event
from devicecore.domain.model import DeviceId, PluginId, Receipt
from devicecore.ports.transport import PluginTransport

Answer = TypeVar("Answer")
Reported = TypeVar("Reported")
Made = TypeVar("Made")
Recorded = TypeVar("Recorded", bound="_Transport")
Failed = TypeVar("Failed", bound=DeviceCoreError)


PLUGIN_METHODS = ("Allocate", "GetPreferredAllocation", "PreStartContainer")
"""The methods whose calls are recorded."""


@frozen
class PluginCall:
    """One call to a plugin, with its response or error.

    `method` is the method's name in the API. `devices` contains the requested devices or, for GetPreferredAllocation,
    the available devices; only that method has `must_include` and `size`. `answer` is None if the method returns
    nothing or failed; `error` is None if the method did not fail.
    """

    plugin: PluginId
    method: str
    devices: tuple[DeviceId, ...]
    must_include: tuple[DeviceId, ...] = ()
    size: int | None = None
    answer: ContainerAllocateResponse | tuple[DeviceId, ...] | None = None
    error: DeviceCoreError | None = None


@frozen
class Recording(Generic[Reported, Made]):
    """Everything recorded so far: every event of plugins or drivers, and every call to them."""

    events: list[Reported] = field(factory=list)
    calls: list[Made] = field(factory=list)


class _Transport(Protocol):
    def start(self, listener: Any) -> None: ...  # noqa: ANN401 - of either port

    def stop(self) -> None: ...


class Recorder(Generic[Recorded, Reported, Made]):
    """Records the events of a transport, and the calls made through it. `recorded` is called after each entry."""

    def __init__(self, transport: Recorded, record: Recording[Reported, Made], recorded: Callable[[], None]) -> None:
        self._transport = transport
        self._record = record
        self._notify = recorded

    def start(self, listener: Callable[[Reported], None]) -> None:
        """Start the recorded transport. An event is recorded after the listener has accepted it."""

        def listen(event: Reported) -> None:
            listener(event)  # raises if the listener refuses a registration, so there is nothing to record
            self._record.events.append(event)
            self._notify()

        self._transport.start(listen)

    def stop(self) -> None:
        """Stop the recorded transport."""
        self._transport.stop()

    def _recorded(
        self, failure: type[Failed], call: Callable[[], Answer], entry: Callable[[Answer | None, Failed | None], Made]
    ) -> Answer:
        try:
            answer = call()
        except failure as error:
            self._record.calls.append(entry(None, error))
            self._notify()
            raise
        self._record.calls.append(entry(answer, None))
        self._notify()
        return answer


class RecordingTransport(Recorder[PluginTransport, Event, PluginCall], PluginTransport):
    """Records calls and events of a device plugin transport."""

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        """Call Allocate and record it."""
        receipt: list[Receipt] = []

        def call() -> ContainerAllocateResponse:
            receipt.append(self._transport.allocate(plugin, devices, timeout=timeout))
            return self._transport.read(receipt[0])

        self._recorded(
            DeviceCoreError,
            call,
            lambda answer, error: PluginCall(plugin, "Allocate", tuple(devices), answer=answer, error=error),
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
        """Call GetPreferredAllocation and record it."""
        return self._recorded(
            DeviceCoreError,
            lambda: self._transport.get_preferred_allocation(plugin, available, must_include, size, timeout=timeout),
            lambda answer, error: PluginCall(
                plugin, "GetPreferredAllocation", tuple(available), tuple(must_include), size, answer, error
            ),
        )

    def pre_start_container(
        self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None
    ) -> None:
        """Call PreStartContainer and record it."""
        self._recorded(
            DeviceCoreError,
            lambda: self._transport.pre_start_container(plugin, devices, timeout=timeout),
            lambda _, error: PluginCall(plugin, "PreStartContainer", tuple(devices), error=error),
        )

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """Read a receipt using the recorded transport."""
        return self._transport.read(receipt)
