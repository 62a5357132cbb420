"""Any bytes from a plugin, even over a real socket, become a value or our error, and the next plugin is served."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from devicecore.adapters.grpc_unix import GrpcUnixTransport, PluginLimits
from devicecore.domain.errors import PluginCallError, PluginError
from devicecore.domain.events import DevicesReported, PluginLost, PluginRegistered
from devicecore.domain.model import DeviceId, PluginId
from devicecore.wire import deviceplugin
from tests.adapters.peers import PATIENCE, Recorder, register
from tests.recorded import DATA
from tests.reliability import fuzz_targets

text = st.text(max_size=80)
int64 = st.integers(-(2**63), 2**63 - 1)
no_message = b"\xff"
not_utf8 = b"\n\x03\n\x01\xff"


def maybe(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """Dictionaries with some of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


node = maybe(ID=int64)
health = st.sampled_from(["Healthy", "Unhealthy"]) | text
device = maybe(ID=text, health=health, topology=maybe(nodes=st.lists(node, max_size=5)))
container = maybe(
    envs=st.dictionaries(text, text, max_size=4),
    mounts=st.lists(maybe(container_path=text, host_path=text, read_only=st.booleans()), max_size=4),
    devices=st.lists(maybe(container_path=text, host_path=text, permissions=text), max_size=4),
    annotations=st.dictionaries(text, text, max_size=4),
    cdi_devices=st.lists(maybe(name=text), max_size=4),
)
MESSAGES: dict[type[Message], st.SearchStrategy[dict[str, object]]] = {
    deviceplugin.ListAndWatchResponse: maybe(devices=st.lists(device, max_size=10)),
    deviceplugin.AllocateResponse: maybe(container_responses=st.lists(container, max_size=3)),
    deviceplugin.PreferredAllocationResponse: maybe(
        container_responses=st.lists(maybe(deviceIDs=st.lists(text, max_size=5)), max_size=3)
    ),
    deviceplugin.DevicePluginOptions: maybe(
        pre_start_required=st.booleans(), get_preferred_allocation_available=st.booleans()
    ),
    deviceplugin.RegisterRequest: maybe(version=text, endpoint=text, resource_name=text),
    deviceplugin.ContainerAllocateResponse: container,
}
KINDS = tuple(MESSAGES)
"""The kinds of messages, in the order of the numbers in `fuzz_targets.wire`."""


@st.composite
def sent(draw: st.DrawFn, kind: type[Message]) -> bytes:
    """Messages that may arrive where a `kind` is expected: a valid one, a damaged one, or any bytes."""
    match draw(st.integers(0, 3)):
        case 0:
            return draw(st.binary(max_size=200))
        case 1:
            data = bytearray(kind(**draw(MESSAGES[kind])).SerializeToString())
            for place in draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=3)) if data else ():
                data[place] = draw(st.integers(0, 255))
            return bytes(data)
        case _:
            return kind(**draw(MESSAGES[kind])).SerializeToString()


FOUND = sorted(path for path in (DATA / "fuzz").rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}: {path.name}")
def test_what_a_fuzzer_has_found_is_no_longer_found(path: Path) -> None:
    getattr(fuzz_targets, path.parent.name)(path.read_bytes())


class TestConversion:
    @given(st.sampled_from(range(len(KINDS))).flatmap(lambda kind: sent(KINDS[kind]).map(bytes([kind]).__add__)))
    def test_every_message_is_a_value_or_no_message(self, data: bytes) -> None:
        fuzz_targets.wire(data)

    @given(st.binary(max_size=300))
    def test_every_receipt_is_read_or_refused(self, data: bytes) -> None:
        fuzz_targets.receipt(data)

    @given(st.binary(max_size=300))
    def test_every_file_is_read_or_refused(self, data: bytes) -> None:
        fuzz_targets.checkpoint(data)


# --- over a real socket -----------------------------------------------------------------------------------------------


class Bytes:
    """A plugin that answers each call with the bytes in its attributes."""

    def __init__(self, path: Path) -> None:
        self.options = b""
        self.allocation = self.preference = b""
        self._ended = False
        self._streams: list[SimpleQueue[bytes | None]] = []
        self._begun: SimpleQueue[SimpleQueue[bytes | None]] = SimpleQueue()
        self.lists: SimpleQueue[bytes | None] = SimpleQueue()
        """The queue of the newest stream: an older stream must not take the lists of a newer one."""
        self._server = grpc.server(ThreadPoolExecutor(8))
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda *_: self.options),
            "Allocate": grpc.unary_unary_rpc_method_handler(lambda *_: self.allocation),
            "GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(lambda *_: self.preference),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(lambda *_: self.preference),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def _list_and_watch(self, _: bytes, __: grpc.ServicerContext) -> Iterator[bytes]:
        lists: SimpleQueue[bytes | None] = SimpleQueue()
        self._streams.append(lists)
        self._begun.put(lists)
        while not self._ended and (message := lists.get()) is not None:
            yield message

    def wait_for_a_stream(self) -> None:
        """End the old stream of lists, and wait for a new stream."""
        self.lists.put(None)
        self.lists = self._begun.get(timeout=PATIENCE)

    def stop(self) -> None:
        """End the streams, and stop serving."""
        self._ended = True
        for lists in self._streams:
            lists.put(None)
        self._server.stop(0.5).wait()


class Line:
    """A transport, a plugin that sends any bytes, and the transport's events."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recorder = Recorder()
        self.transport = GrpcUnixTransport(directory, limits=PluginLimits(dial=PATIENCE, registrations_per_second=None))
        self.transport.start(self.recorder)
        self.plugin = Bytes(directory / "p.sock")
        self._known: PluginId | None = None

    def close(self) -> None:
        """Stop the plugin and the transport."""
        self.plugin.stop()
        self.transport.stop()

    def connected(self) -> PluginId:
        """Return the plugin, after registering it again if it was lost."""
        gone = {event.plugin for event in self.recorder.of(PluginLost)}
        ours = [event.plugin for event in self.recorder.of(PluginRegistered) if event.plugin.socket.endswith("/p.sock")]
        live = [plugin for plugin in ours if plugin not in gone]
        if not live:
            self.plugin.options = b""
            self.recorder.events.clear()
            assert register(self.directory, "p.sock") == (grpc.StatusCode.OK, "")
            live = [self.recorder.plugin()]
        if self._known != live[0]:
            self._known = live[0]
            self.plugin.wait_for_a_stream()
        return live[0]


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    with TemporaryDirectory(prefix="dc", dir="/tmp") as directory:
        line = Line(Path(directory))
        yield line
        line.connected()  # the transport still works, whatever came before
        line.close()


sockets = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestTransport:
    @sockets
    @given(sent(deviceplugin.RegisterRequest))
    @example(no_message)
    @example(b"\n\x07v1beta1\x12\x06p.sock\x1a\x0bacme.io/gpu" + b"\xfa\x01\x03new")
    def test_any_registration_is_answered(self, line: Line, data: bytes) -> None:
        line.plugin.options = b""
        with grpc.insecure_channel(f"unix:{line.directory}/kubelet.sock") as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/v1beta1.Registration/Register")
            with suppress(grpc.RpcError):
                call(data, timeout=PATIENCE)
        _, words = register(line.directory, "p.sock", version="x")  # the next registration is answered, too
        assert words.startswith('requested API version "x" is not supported')

    @sockets
    @given(sent(deviceplugin.AllocateResponse))
    @example(no_message)
    @example(not_utf8)
    def test_any_answer_to_allocate_is_a_receipt_or_an_error(self, line: Line, data: bytes) -> None:
        plugin = line.connected()
        line.plugin.allocation = data
        try:
            receipt = line.transport.allocate(plugin, [DeviceId("d0")])
        except PluginError as error:
            assert str(error)  # noqa: PT017 - none is expected, but one of ours may be raised
        else:
            line.transport.read(receipt)

    @sockets
    @given(sent(deviceplugin.PreferredAllocationResponse))
    @example(no_message)
    def test_any_preference_is_one_or_an_error(self, line: Line, data: bytes) -> None:
        plugin = line.connected()
        line.plugin.preference = data
        with suppress(PluginCallError):
            preferred = line.transport.get_preferred_allocation(plugin, [DeviceId("d0")], [], 1)
            assert all(isinstance(each, str) for each in preferred)
        with suppress(PluginCallError):
            line.transport.pre_start_container(plugin, [DeviceId("d0")])

    @sockets
    @given(sent(deviceplugin.ListAndWatchResponse))
    @example(no_message)
    @example(b"\n\x03\n\x01\xff")
    def test_any_list_is_reported_or_loses_the_plugin(self, line: Line, data: bytes) -> None:
        plugin = line.connected()
        heard = len(line.recorder.about(plugin))
        line.plugin.lists.put(data)
        line.recorder.wait_for(lambda _: len(line.recorder.about(plugin)) > heard)
        assert isinstance(line.recorder.about(plugin)[heard], DevicesReported | PluginLost)

    @sockets
    @given(sent(deviceplugin.DevicePluginOptions))
    @example(no_message)
    def test_any_options_are_some_or_a_refusal(self, line: Line, data: bytes) -> None:
        path = line.directory / "options.sock"
        plugin = Bytes(path)
        plugin.options = data
        try:
            status, words = register(line.directory, "options.sock", "acme.io/options")
        finally:
            plugin.stop()
        assert status is grpc.StatusCode.OK or words.startswith("failed to get device plugin options: ")
