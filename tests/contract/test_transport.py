"""Every plugin transport meets the contract, in memory and over gRPC, and broken ones are caught."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path

import pytest
from attrs import evolve

from devicecore.adapters.grpc_unix import (
    GrpcUnixTransport,
    KubeletUnreachableError,
    PluginLimits,
    ServedPlugin,
    serve_plugin,
)
from devicecore.adapters.memory import MemoryConnection, MemoryTransport
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import DeviceCoreError, PluginCallError, PluginStoppedError, UnreadableReceiptError
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.model import DeviceId, PluginId, PluginOptions, Receipt, resource_name
from devicecore.ports.plugin import DevicePlugin
from devicecore.ports.transport import Listener
from devicecore.testing import contracts
from devicecore.testing.contracts import transport as contract

Check = Callable[[contracts.MakeTransport], None]
RemoteCheck = Callable[[contracts.MakeRemoteTransport], None]

PATIENCE = 60.0
NOT_TRIED_YET = "not tried yet"  # the initial registration status of a served plugin
LOOK_INTERVAL = 0.05  # seconds between a plugin's polls; short, so that tests are fast


class InMemory:
    """Plugins connect by being passed to the transport."""

    def __init__(self, transport: MemoryTransport | None = None) -> None:
        self.transport = transport or MemoryTransport()

    def connect(self, plugin: DevicePlugin) -> contracts.Connection:
        return self.transport.connect(plugin)


def in_memory() -> AbstractContextManager[contracts.TransportHarness]:
    return nullcontext(InMemory())


class Served:
    """A plugin that is served over gRPC, in its own threads."""

    def __init__(self, served: ServedPlugin) -> None:
        self._served = served

    def disconnect(self) -> None:
        self._served.stop()


class OverGrpc:
    """Plugins connect by being served in the transport's directory."""

    def __init__(self, directory: Path, limit: float, plugins: ExitStack) -> None:
        self._directory = directory
        self._plugins = plugins
        self._numbers = count()
        self.transport = GrpcUnixTransport(
            directory, limits=PluginLimits(allocate=limit, preferred_allocation=limit, pre_start=limit)
        )

    def connect(self, plugin: DevicePlugin) -> contracts.Connection:
        endpoint = f"plugin-{next(self._numbers)}.sock"
        served = serve_plugin(plugin, self._directory, endpoint=endpoint, poll_interval=LOOK_INTERVAL)
        self._plugins.callback(served.stop)
        try:
            wait_until_answered(served)
        except KubeletUnreachableError:
            served.stop()
            raise
        return Served(served)

    def spoil(self) -> None:
        """Create a regular file with the name of the kubelet's socket."""
        (self._directory / "kubelet.sock").write_text("no socket")

    def contents(self) -> object:
        return {path.name: path.read_bytes() for path in self._directory.iterdir()}


def wait_until_answered(served: ServedPlugin) -> None:
    """Wait until the kubelet has accepted or refused the plugin.

    Raises: KubeletUnreachableError: the kubelet has refused the plugin; the text says why.
    """
    for _ in range(100):
        try:
            served.wait_registered(timeout=PATIENCE / 100)
        except KubeletUnreachableError as refusal:
            if refusal.cause != NOT_TRIED_YET:
                raise
        else:
            return


@contextmanager
def over_grpc_within(limit: float) -> Iterator[contracts.RemoteTransportHarness]:
    """Yield a harness with a transport in a directory whose path is short enough for sockets."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dc", dir="/tmp")))
        yield OverGrpc(directory, limit, stack)


@contextmanager
def over_grpc() -> Iterator[contracts.TransportHarness]:
    with over_grpc_within(PATIENCE) as harness:
        yield harness


@pytest.mark.parametrize("make", [in_memory, over_grpc])
@pytest.mark.parametrize("check", contracts.PLUGIN_TRANSPORT)
def test_a_transport_keeps_the_contract(check: Check, make: contracts.MakeTransport) -> None:
    """MemoryTransport and GrpcUnixTransport meet every sentence of the port."""
    check(make)


@pytest.mark.parametrize("check", contracts.REMOTE_PLUGIN_TRANSPORT)
def test_a_transport_to_other_processes_keeps_the_contract(check: RemoteCheck) -> None:
    """GrpcUnixTransport meets the rules about plugins that do not answer and unusable directories."""
    check(over_grpc_within)


# --- the contract can fail -------------------------------------------------------------------------------------------


class ChecksFirst(MemoryTransport):
    """Does not notify the listener of registrations that it refuses."""

    def connect(self, plugin: DevicePlugin, socket: str = "") -> MemoryConnection:
        resource_name(plugin.resource)
        return super().connect(plugin, socket)


class ChangesEvents(MemoryTransport):
    """Notifies the listener of other events instead of the real events."""

    def start(self, listener: Listener) -> None:
        def notify(event: Event) -> None:
            for other in self.instead_of(event):
                listener(other)

        super().start(notify)

    def instead_of(self, event: Event) -> Sequence[Event]:
        raise NotImplementedError


class ForgetsOptions(ChangesEvents):
    def instead_of(self, event: Event) -> Sequence[Event]:
        return [evolve(event, options=PluginOptions()) if isinstance(event, PluginRegistered) else event]


class SortsDevices(ChangesEvents):
    def instead_of(self, event: Event) -> Sequence[Event]:
        if not isinstance(event, DevicesReported):
            return [event]
        return [evolve(event, devices=tuple(sorted(event.devices, key=lambda device: device.id)))]


class ReportsTheFirstListOnly(ChangesEvents):
    def __init__(self) -> None:
        super().__init__()
        self._reported: set[PluginId] = set()

    def instead_of(self, event: Event) -> Sequence[Event]:
        if not isinstance(event, DevicesReported):
            return [event]
        is_new = event.plugin not in self._reported
        self._reported.add(event.plugin)
        return [event] if is_new else []


class ReportsEachLossTwice(ChangesEvents):
    def instead_of(self, event: Event) -> Sequence[Event]:
        return [event, event] if isinstance(event, PluginLost) else [event]


class GivesAllInstancesOneIdentity(ChangesEvents):
    def instead_of(self, event: Event) -> Sequence[Event]:
        if isinstance(event, RegistrationRequested):
            return [event]
        return [evolve(event, plugin=evolve(event.plugin, socket="", generation=1))]


class LosesAllInstancesTogether(ChangesEvents):
    """Reports all instances as lost when one of them is lost."""

    def instead_of(self, event: Event) -> Sequence[Event]:
        if not isinstance(event, PluginLost):
            return [event]
        return [event, *map(PluginLost, self._connections)]


class RefusesWithoutAReason(MemoryTransport):
    def connect(self, plugin: DevicePlugin, socket: str = "") -> MemoryConnection:
        try:
            return super().connect(plugin, socket)
        except DeviceCoreError:
            raise PluginStoppedError(plugin.resource) from None


class ReportsFromSeveralThreads(MemoryTransport):
    """Does not wait for the listener before it reports the next change."""

    def connect(self, plugin: DevicePlugin, socket: str = "") -> MemoryConnection:
        connection: list[MemoryConnection] = []

        def changed() -> None:
            for known in tuple(self._connections):
                self._notify(DevicesReported(known, tuple(plugin.devices())))

        plugin.subscribe(changed)
        connection.append(super().connect(plugin, socket))
        return connection[0]


class SortsWhatItAllocates(MemoryTransport):
    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        return super().allocate(plugin, sorted(devices), timeout=timeout)


class ReadsEnvironmentOnly(MemoryTransport):
    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        return ContainerAllocateResponse(envs=super().read(receipt).envs)


class RemembersReceipts(MemoryTransport):
    """Returns the number of a receipt instead of the receipt."""

    def __init__(self) -> None:
        super().__init__()
        self._receipts: list[Receipt] = []

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        self._receipts.append(super().allocate(plugin, devices, timeout=timeout))
        return Receipt(b"%d" % (len(self._receipts) - 1))

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        return super().read(self._receipts[int(receipt)])


class ReadsAnything(MemoryTransport):
    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        with suppress(UnreadableReceiptError):
            return super().read(receipt)
        return ContainerAllocateResponse()


class ChecksPreferences(MemoryTransport):
    def get_preferred_allocation(
        self,
        plugin: PluginId,
        available: Sequence[DeviceId],
        must_include: Sequence[DeviceId],
        size: int,
        *,
        timeout: float | None = None,
    ) -> tuple[DeviceId, ...]:
        named = super().get_preferred_allocation(plugin, available, must_include, size, timeout=timeout)
        return tuple(device for device in named if device in available)[:size]


class IgnoresPreStart(MemoryTransport):
    def pre_start_container(
        self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None
    ) -> None:
        pass


class AsksTheSuccessor(MemoryTransport):
    """Calls the newest instance of the resource instead of the instance that it is asked to call."""

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        successors = [known for known in self._connections if known.resource == plugin.resource]
        return super().allocate(successors[-1] if successors else plugin, devices, timeout=timeout)


class LosesTheReason(MemoryTransport):
    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        try:
            return super().allocate(plugin, devices, timeout=timeout)
        except PluginCallError as error:
            raise evolve(error, cause="something went wrong") from None


class TakesNoAnswerForAnAnswer(MemoryTransport):
    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        with suppress(PluginCallError):
            return super().allocate(plugin, devices, timeout=timeout)
        return Receipt(b"")


class ReportsLossesAtItsStop(MemoryTransport):
    def stop(self) -> None:
        for connection in tuple(self._connections.values()):
            connection.disconnect()
        super().stop()


class StopsOnce(MemoryTransport):
    def stop(self) -> None:
        if self._listener is None:
            raise PluginStoppedError("everything")
        super().stop()


BROKEN: dict[Check, type[MemoryTransport]] = {
    contract.reports_every_registration_before_checking_it: ChecksFirst,
    contract.reports_the_options_of_a_plugin: ForgetsOptions,
    contract.reports_the_complete_list_in_its_order: SortsDevices,
    contract.reports_every_change_of_the_list: ReportsTheFirstListOnly,
    contract.reports_a_loss_once_and_last: ReportsEachLossTwice,
    contract.gives_every_instance_an_identity_of_its_own: GivesAllInstancesOneIdentity,
    contract.keeps_two_instances_of_one_resource_apart: LosesAllInstancesTogether,
    contract.refuses_a_plugin_with_the_listeners_reason: RefusesWithoutAReason,
    contract.reports_one_event_of_an_instance_at_a_time: ReportsFromSeveralThreads,
    contract.hands_devices_to_the_plugin_in_their_order: SortsWhatItAllocates,
    contract.reads_what_the_plugin_answered: ReadsEnvironmentOnly,
    contract.reads_receipts_of_an_earlier_process: RemembersReceipts,
    contract.refuses_to_read_what_is_no_receipt: ReadsAnything,
    contract.passes_on_preferences_unchecked: ChecksPreferences,
    contract.calls_pre_start_container: IgnoresPreStart,
    contract.sends_nothing_to_a_disconnected_plugin: AsksTheSuccessor,
    contract.says_why_a_call_failed: LosesTheReason,
    contract.treats_a_missing_answer_as_a_failed_call: TakesNoAnswerForAnAnswer,
    contract.stops_without_further_events: ReportsLossesAtItsStop,
    contract.can_be_stopped_twice_or_unstarted: StopsOnce,
}


@pytest.mark.parametrize("check", contracts.PLUGIN_TRANSPORT)
def test_each_check_catches_a_transport_that_breaks_its_sentence(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail tests nothing. The waits are short, because broken transports use them up."""
    monkeypatch.setattr(contracts.connected, "EVENT_TIMEOUT", 0.3)

    with pytest.raises(AssertionError):
        check(lambda: nullcontext(InMemory(BROKEN[check]())))


class WaitsForever:
    """A harness whose MemoryTransport never lets calls time out and never refuses a directory."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self._places = count()

    def connect(self, plugin: DevicePlugin) -> contracts.Connection:
        return self.transport.connect(plugin)

    def spoil(self) -> None:
        pass

    def contents(self) -> object:
        return next(self._places)


@pytest.mark.parametrize("check", contracts.REMOTE_PLUGIN_TRANSPORT)
def test_each_check_catches_a_transport_that_waits_forever_or_takes_any_place(
    check: RemoteCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that never fails tests nothing."""
    monkeypatch.setattr(contract, "EVENT_TIMEOUT", 0.3)

    with pytest.raises(AssertionError):
        check(lambda _: nullcontext(WaitsForever()))
