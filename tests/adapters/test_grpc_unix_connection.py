"""Calls to a plugin: directly in a waiting thread, or through the event loop."""

import random
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import grpc
import pytest

from devicecore.adapters.grpc_unix import GrpcUnixTransport, rpc
from devicecore.adapters.grpc_unix.connection import PeerConnection
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.domain.model import DeviceId, PluginId
from devicecore.runtime import in_time
from devicecore.system.sockets import socket_identity
from devicecore.wire import deviceplugin
from tests.adapters.peers import PATIENCE, RawPlugin, Recorder, register, running, wait_until

D0 = DeviceId("d0")


class Interrupted(BaseException):
    """Raised by a signal handler, as KeyboardInterrupt is by Python's handler for SIGINT."""


class NamedPlugin(RawPlugin):
    """A plugin whose answer contains its name."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        super().__init__(path)

    def allocate(self, _: deviceplugin.AllocateRequest, __: grpc.ServicerContext) -> deviceplugin.AllocateResponse:
        container = deviceplugin.ContainerAllocateResponse(envs={"NAME": self.name})
        return deviceplugin.AllocateResponse(container_responses=[container])


def connections(path: Path) -> int:
    """Return the number of connections to the socket that was bound at `path`."""
    entries = [line.split() for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()]
    connected = "03"
    return sum(entry[-1] == str(path) and entry[5] == connected for entry in entries)


async def nothing() -> None:
    pass


def name(transport: GrpcUnixTransport, plugin: PluginId) -> str:
    """Return the name of the plugin that answers Allocate."""
    return transport.read(transport.allocate(plugin, [D0])).envs["NAME"]


def test_calls_have_a_connection_of_their_own(directory: Path, recorder: Recorder) -> None:
    path = directory / "p.sock"
    with NamedPlugin(path, "a"):
        with running(directory, recorder, wipe=False) as transport:
            register(directory, "p.sock")
            assert connections(path) == 1
            assert [name(transport, recorder.plugin()) for _ in range(3)] == ["a"] * 3
            assert connections(path) == 2
        wait_until(lambda: connections(path) == 0, "both are closed")


def test_a_connection_for_calls_that_another_replaced_is_closed(directory: Path) -> None:
    path = directory / "p.sock"
    loop = LoopThread.acquire(nothing)

    async def connect() -> PeerConnection:
        return PeerConnection(str(path), 65536)

    async def replace() -> None:
        connection.allow_direct_calls(socket_identity(str(path)))

    connection = loop.run(connect)
    with NamedPlugin(path, "a"):
        for _ in range(3):
            loop.run(replace)
            connection.call(loop, rpc.ALLOCATE, deviceplugin.AllocateRequest(), PATIENCE)
        wait_until(lambda: connections(path) == 1, "only the last connection is left")
        loop.run(connection.close)
        wait_until(lambda: connections(path) == 0, "the last connection is closed, too")
    loop.release(nothing)


@pytest.mark.parametrize("when", ["before its first call", "later"])
@pytest.mark.parametrize("then", ["deleted", "replaced"])
def test_a_call_reaches_the_registered_plugin_even_if_its_path_changed(
    directory: Path, recorder: Recorder, when: str, then: str
) -> None:
    path = directory / "p.sock"
    with NamedPlugin(path, "first"), running(directory, recorder, wipe=False) as transport:
        register(directory, "p.sock")
        if when == "later":
            assert name(transport, recorder.plugin()) == "first"
        path.rename(directory / "first.sock")
        with NamedPlugin(path if then == "replaced" else directory / "other.sock", "second"):
            assert name(transport, recorder.plugin()) == "first"


@contextmanager
def one_connection(path: Path, behind: Path) -> Iterator[None]:
    """Run a server at `path` that accepts only one connection, and forwards it to the server at `behind`."""

    def copy(source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        there, _ = listener.accept()
        with there, socket.socket(socket.AF_UNIX) as here:
            here.connect(str(behind))
            back = threading.Thread(target=copy, args=(here, there))
            back.start()
            copy(there, here)
            back.join()

    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as serving:
        listener.bind(str(path))
        listener.listen()
        served = serving.submit(serve)
        yield
        served.result(PATIENCE)


def test_a_plugin_that_takes_one_connection_is_called_over_that(directory: Path, recorder: Recorder) -> None:
    with (
        NamedPlugin(directory / "behind.sock", "a"),
        one_connection(directory / "p.sock", directory / "behind.sock"),
        running(directory, recorder, wipe=False) as transport,
    ):
        register(directory, "p.sock")
        assert [name(transport, recorder.plugin()) for _ in range(3)] == ["a"] * 3


def test_a_call_for_which_no_thread_can_be_started_goes_through_the_event_loop(
    directory: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        problem = "can't start new thread"
        raise RuntimeError(problem)

    monkeypatch.setattr(in_time, "start_new_thread", refuse)  # a real limit would affect all threads of this process
    with NamedPlugin(directory / "p.sock", "a"), running(directory, recorder, wipe=False) as transport:
        register(directory, "p.sock")
        assert name(transport, recorder.plugin()) == "a"
        assert connections(directory / "p.sock") == 1


def test_an_interrupted_call_keeps_nothing_from_others(directory: Path, recorder: Recorder) -> None:
    def interrupt(_: int, __: FrameType | None) -> None:
        raise Interrupted

    chance, interrupts = random.Random(1), 0  # noqa: S311 - to be repeated
    with NamedPlugin(directory / "p.sock", "a"), running(directory, recorder, wipe=False) as transport:
        register(directory, "p.sock")
        plugin = recorder.plugin()
        assert name(transport, plugin) == "a"
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for _ in range(300):
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 1e-3))
                        name(transport, plugin)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    interrupts += 1
        finally:
            signal.signal(signal.SIGALRM, before)
        assert interrupts
        with ThreadPoolExecutor(4) as others:
            calls = [others.submit(name, transport, plugin) for _ in range(20)]
            assert [call.result(PATIENCE) for call in calls] == ["a"] * 20
