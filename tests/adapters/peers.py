"""Real listeners, plugins and sockets that the tests connect to transports and plugins.

The plugins here use grpc's synchronous API, so that the two sides cannot share a mistake.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from queue import Queue, SimpleQueue
from typing import Any, Self, TypeVar

import grpc
from attrs import frozen

from devicecore.adapters.grpc_unix import GrpcUnixTransport
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import DeviceCoreError, DeviceRefusedError
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered
from devicecore.domain.model import Device, DeviceId, PluginId, PluginOptions, resource_name
from devicecore.ports.plugin import DevicePlugin
from devicecore.wire import deviceplugin

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 60.0
"""Seconds after which a test stops waiting for something that should happen at once."""

E = TypeVar("E")


class Recorder:
    """A listener that keeps all events, and refuses plugins if `refusal` is set."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.refusal: DeviceCoreError | None = None
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        if self.refusal is not None and isinstance(event, PluginRegistered):
            raise self.refusal

    def wait_for(self, predicate: Callable[[list[Event]], bool], timeout: float = PATIENCE) -> None:
        """Wait until the events so far satisfy `predicate`."""
        with self._changed:
            assert self._changed.wait_for(lambda: predicate(self.events), timeout), self.events

    def wait(self, kind: type[E], number: int = 1) -> list[E]:
        """Wait for at least `number` events of `kind`, and return all of them."""
        self.wait_for(lambda _: len(self.of(kind)) >= number)
        return self.of(kind)

    def of(self, kind: type[E]) -> list[E]:
        """Return every event of `kind`."""
        return [event for event in tuple(self.events) if isinstance(event, kind)]

    def about(self, plugin: PluginId) -> list[Event]:
        """Return every event about `plugin`."""
        return [event for event in tuple(self.events) if getattr(event, "plugin", None) == plugin]

    def plugin(self, number: int = 1) -> PluginId:
        """Return the `number`-th plugin that registered."""
        return self.wait(PluginRegistered, number)[number - 1].plugin

    def lists(self, plugin: PluginId, number: int = 1) -> list[tuple[str, ...]]:
        """Return the device ids in each list from `plugin`, once there are at least `number` lists."""

        def lists() -> list[tuple[str, ...]]:
            reports = [event for event in self.of(DevicesReported) if event.plugin == plugin]
            return [tuple(device.id for device in report.devices) for report in reports]

        self.wait_for(lambda _: len(lists()) >= number)
        return lists()

    def wait_lost(self, plugin: PluginId) -> None:
        """Wait until `plugin` is lost."""
        self.wait_for(lambda events: PluginLost(plugin) in events)


class Gpus(DevicePlugin):
    """A plugin that follows the API."""

    def __init__(self, *devices: str, resource: str = "acme.io/gpu", options: PluginOptions | None = None) -> None:
        self.resource = resource_name(resource)
        self.options = options or PluginOptions()
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self._devices = tuple(Device(DeviceId(device)) for device in devices)
        self._subscribers: list[Callable[[], None]] = []

    def devices(self) -> Sequence[Device]:
        return self._devices

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        self.calls.append(("allocate", tuple(devices)))
        for device in devices:
            if device not in {known.id for known in self._devices}:
                raise DeviceRefusedError(self.resource, device)
        return ContainerAllocateResponse(envs={"GPUS": ",".join(devices)})

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        self.calls.append(("prefer", (*available, "|", *must_include, "|", str(size))))
        return list(reversed(available))[:size]

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        self.calls.append(("pre-start", tuple(devices)))

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def become(self, *devices: Device) -> None:
        """Replace the devices, and notify the subscribers."""
        self._devices = devices
        for changed in self._subscribers:
            changed()


class RawPlugin:
    """A plugin whose methods a test can override.

    Calls to the method `mute` succeed without an answer.
    """

    def __init__(self, path: Path, *lists: Sequence[str], threads: int = 4, mute: str = "") -> None:
        self.path = path
        self.lists: SimpleQueue[deviceplugin.ListAndWatchResponse | None] = SimpleQueue()
        for ids in lists:
            self.report(*ids)
        self._open = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(threads))
        answers: dict[str, tuple[Callable[..., Any], Any]] = {
            "GetDevicePluginOptions": (self.get_device_plugin_options, deviceplugin.Empty),
            "GetPreferredAllocation": (self.get_preferred_allocation, deviceplugin.PreferredAllocationRequest),
            "Allocate": (self.allocate, deviceplugin.AllocateRequest),
            "PreStartContainer": (self.pre_start_container, deviceplugin.PreStartContainerRequest),
        }
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(behavior, request.FromString, _serialize)
            for name, (behavior, request) in answers.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self.list_and_watch, deviceplugin.Empty.FromString, _serialize
        )
        if mute:
            handlers[mute] = grpc.unary_stream_rpc_method_handler(lambda _, __: iter(()))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the stream and stop serving."""
        self.end_stream()
        self._server.stop(0.5).wait()

    def report(self, *ids: str) -> None:
        """Send a list of healthy devices."""
        self.lists.put(deviceplugin.ListAndWatchResponse(devices=[{"ID": id_, "health": "Healthy"} for id_ in ids]))

    def end_stream(self) -> None:
        """Make ListAndWatch return."""
        self.lists.put(None)

    def get_device_plugin_options(
        self, _: deviceplugin.Empty, __: grpc.ServicerContext
    ) -> deviceplugin.DevicePluginOptions:
        return deviceplugin.DevicePluginOptions()

    def list_and_watch(
        self, _: deviceplugin.Empty, __: grpc.ServicerContext
    ) -> Iterator[deviceplugin.ListAndWatchResponse]:
        while (message := self.lists.get()) is not None:
            yield message

    def allocate(self, _: deviceplugin.AllocateRequest, __: grpc.ServicerContext) -> deviceplugin.AllocateResponse:
        return deviceplugin.AllocateResponse()

    def get_preferred_allocation(
        self, _: deviceplugin.PreferredAllocationRequest, __: grpc.ServicerContext
    ) -> deviceplugin.PreferredAllocationResponse:
        return deviceplugin.PreferredAllocationResponse()

    def pre_start_container(
        self, _: deviceplugin.PreStartContainerRequest, __: grpc.ServicerContext
    ) -> deviceplugin.PreStartContainerResponse:
        return deviceplugin.PreStartContainerResponse()


class RawKubelet:
    """A kubelet that accepts every registration, deletes nothing and calls no plugin."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: Queue[deviceplugin.RegisterRequest] = Queue()
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            self.register, deviceplugin.RegisterRequest.FromString, _serialize
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix:{directory}/kubelet.sock")
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0.5).wait()

    def register(self, request: deviceplugin.RegisterRequest, _: grpc.ServicerContext) -> deviceplugin.Empty:
        self.requests.put(request)
        return deviceplugin.Empty()


def leave_socket(path: Path) -> None:
    """Create a socket on which nothing listens."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Poll until `condition` holds, because there is no event to wait for. The error message contains `what`."""
    given_up_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < given_up_at, f"still waiting until {what}"
        time.sleep(0.01)


@contextmanager
def deep_tree(top: Path) -> Iterator[None]:
    """Make 1,100 directories `d/d/d/...` below `top`, and remove them with `rm` (Python's function recurses)."""
    here = Path.cwd()
    os.chdir(top)
    try:
        for _ in range(1100):
            os.mkdir("d")  # noqa: PTH102 - relative, because the whole path is too long for the system
            os.chdir("d")
    finally:
        os.chdir(here)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", str(top / "d")], check=True)  # noqa: S607 - wherever it is installed


@contextmanager
def listening(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Listen on a socket: one thread calls `serve` with each connection, which `serve` may close."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(100)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with suppress(OSError):  # the client has disconnected
                    serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


Answer = Callable[[bytes, grpc.ServicerContext], object] | bytes
"""An answer as bytes, or a function that returns it.

For a streaming method, the function returns an iterator of bytes.
"""


@frozen
class _Answers(grpc.GenericRpcHandler):
    answers: Mapping[str, Answer]
    asked: list[str]

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        path = str(handler_call_details.method)
        self.asked.append(path)
        answer = next((answer for known, answer in self.answers.items() if path.endswith(known)), None)
        if answer is None:
            return None
        if path.endswith(("/ListAndWatch", "/NodeWatchResources")):
            answers = (lambda _, __: iter([answer])) if isinstance(answer, bytes) else answer
            return grpc.unary_stream_rpc_method_handler(answers)
        return grpc.unary_unary_rpc_method_handler((lambda _, __: answer) if isinstance(answer, bytes) else answer)


@contextmanager
def answering(
    path: Path, answers: Mapping[str, Answer], options: Sequence[tuple[str, object]] = (), threads: int = 8
) -> Iterator[list[str]]:
    """Answer each gRPC call with the bytes for the end of its path, and yield a list of the requested paths."""
    asked: list[str] = []
    options = [("grpc.max_send_message_length", -1), *options]
    server = grpc.server(ThreadPoolExecutor(threads), handlers=[_Answers(answers, asked)], options=options)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield asked
    finally:
        server.stop(None).wait(PATIENCE)


PINGS = """
import socket, sys, threading

def flood(connection):
    frames = bytes.fromhex("000000040000000000") + bytes.fromhex("0000080600000000000000000000000000") * 3000
    with connection:
        try:
            while True:
                connection.sendall(frames)
        except OSError:
            pass  # the client has disconnected

with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    while True:
        threading.Thread(target=flood, args=(listener.accept()[0],), daemon=True).start()
"""


READS_NO_MORE = """
import socket, sys

connected = "000006040000000000 0004 7fffffff" "000004080000000000 7fff0000"  # windows of 2 GiB
asked = "000005000100000001 0000000000"  # the first call, without content
answer = (
    "000020010400000001 88 00 0c 636f6e74656e742d74797065 10 6170706c69636174696f6e2f67727063"  # content-type
    "000005000000000001 0000000000"
    "00000f010500000001 00 0b 677270632d737461747573 01 30"  # grpc-status: 0
)
pings = bytes.fromhex("000008060000000000 0000000000000000") * 3000

with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    connection = listener.accept()[0]
    connection.sendall(bytes.fromhex(connected))
    received = b""
    while bytes.fromhex(asked) not in received:
        received += connection.recv(4096)
    connection.sendall(bytes.fromhex(answer))
    while sys.argv[2] == "pings":
        connection.sendall(pings)
    kept = []
    while True:
        kept.append(listener.accept()[0])
        if sys.argv[2] == "accept":
            kept[-1].sendall(bytes.fromhex(connected))
"""


def flood_of_pings(path: Path) -> AbstractContextManager[None]:
    """Run a process that listens on a socket, sends endless PINGs to gRPC clients, and reads no answer."""
    return _process_at(path, PINGS)


def plugin_that_reads_no_more(path: Path, then: str) -> AbstractContextManager[None]:
    """Run a plugin that answers one call and then reads nothing.

    If `then` is "pings", the plugin sends endless PINGs; if it is "accept", the plugin accepts other connections but
    reads nothing from them.
    """
    return _process_at(path, READS_NO_MORE, then)


@contextmanager
def _process_at(path: Path, script: str, *arguments: str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", script, path, *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listening\n"
            yield
            assert process.poll() is None
        finally:
            process.kill()


def environment(*folders: Path) -> dict[str, str]:
    """Return an environment in which a child can import devicecore, these tests, and the modules in `folders`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*folders, ROOT / "src", ROOT]))}


def register(
    directory: Path,
    endpoint: str,
    resource: str = "acme.io/gpu",
    *,
    version: str = "v1beta1",
    method: str = "/v1beta1.Registration/Register",
) -> tuple[grpc.StatusCode, str]:
    """Call Register as a plugin does, and return the status and the text of the answer."""
    request = deviceplugin.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
    with grpc.insecure_channel(f"unix:{directory}/kubelet.sock") as channel:
        call = channel.unary_unary(method, _serialize, deviceplugin.Empty.FromString)
        try:
            call(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def running(directory: Path, listener: Callable[[Event], None], **settings: object) -> "Running":
    """Return a context manager that starts and stops a transport."""
    return Running(GrpcUnixTransport(directory, **settings), listener)  # type: ignore[arg-type]  # as it says


class Running:
    """A transport that a `with` statement starts and stops."""

    def __init__(self, transport: GrpcUnixTransport, listener: Callable[[Event], None]) -> None:
        self.transport = transport
        self.listener = listener

    def __enter__(self) -> GrpcUnixTransport:
        self.transport.start(self.listener)
        return self.transport

    def __exit__(self, *_: object) -> None:
        self.transport.stop()


def _serialize(message: Any) -> bytes:  # noqa: ANN401  # any message
    data: bytes = message.SerializeToString()
    return data
