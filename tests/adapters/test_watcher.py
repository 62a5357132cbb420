"""The plugin watcher, with plugins that put their sockets into its directory (kubelet.md 2.8)."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import grpc
import pytest

from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin, watcher
from devicecore.domain.errors import DeviceRefusedError, DirectoryError
from devicecore.domain.events import PluginLost, PluginRegistered, RegistrationRequested
from devicecore.wire import pluginregistration
from tests.adapters.peers import PATIENCE, Gpus, RawPlugin, Recorder

Info = pluginregistration.PluginInfo
Status = pluginregistration.RegistrationStatus


class Announcer:
    """A plugin's registration service on a separate socket, written without our code."""

    def __init__(self, path: Path, info: Info, *, notified_ok: bool = True) -> None:
        self.statuses: Queue[Status] = Queue()
        self.asked = 0
        self._info = info
        self._notified_ok = notified_ok
        self._server = grpc.server(ThreadPoolExecutor(2))
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                self.get_info, pluginregistration.InfoRequest.FromString, lambda message: message.SerializeToString()
            ),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                self.notify, Status.FromString, lambda message: message.SerializeToString()
            ),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("pluginregistration.Registration", handlers),)
        )
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def get_info(self, _: pluginregistration.InfoRequest, __: grpc.ServicerContext) -> Info:
        self.asked += 1
        return self._info

    def notify(self, status: Status, context: grpc.ServicerContext) -> pluginregistration.RegistrationStatusResponse:
        self.statuses.put(status)
        if not self._notified_ok:
            context.abort(grpc.StatusCode.INTERNAL, "I do not want to know")
        return pluginregistration.RegistrationStatusResponse()

    def status(self) -> tuple[bool, str]:
        """Return the next status that the plugin gets."""
        status = self.statuses.get(timeout=PATIENCE)
        return status.plugin_registered, status.error

    def stop(self) -> None:
        self._server.stop(0.5).wait()


@contextmanager
def announced(
    path: Path,
    *,
    notified_ok: bool = True,
    **info: Any,  # noqa: ANN401 - the fields of a message
) -> Iterator[Announcer]:
    fields: dict[str, Any] = {"type": "DevicePlugin", "name": "acme.io/gpu", "supported_versions": ["v1beta1"]}
    announcer = Announcer(path, Info(**{**fields, **info}), notified_ok=notified_ok)
    try:
        yield announcer
    finally:
        announcer.stop()


@pytest.fixture
def registry(directory: Path) -> Path:
    return directory / "plugins_registry"


@pytest.fixture
def kubelet(directory: Path, registry: Path, recorder: Recorder) -> Iterator[GrpcUnixTransport]:
    transport = GrpcUnixTransport(directory / "dp", plugins_registry=registry)
    transport.start(recorder)
    yield transport
    transport.stop()


@pytest.fixture
def served(directory: Path) -> Iterator[RawPlugin]:
    with RawPlugin(directory / "elsewhere.sock") as plugin:
        plugin.report("gpu-0")
        yield plugin


# Since Kubernetes 1.37, the helper for drivers replaces a name that would be too long with a hash like this one.
@pytest.mark.parametrize("name", ["gpu.sock", "dra-5f4dcc3b5aa765d61d8327deb882cf99-reg.sock"])
@pytest.mark.usefixtures("kubelet", "served")
def test_a_plugin_is_found_and_notified_that_it_is_registered(
    registry: Path, directory: Path, recorder: Recorder, name: str
) -> None:
    endpoint = str(directory / "elsewhere.sock")
    with announced(registry / name, endpoint=endpoint, supported_versions=["v1", "v1beta1"]) as announcer:
        assert announcer.status() == (True, "")
        plugin = recorder.plugin()
        assert (plugin.resource, plugin.socket) == ("acme.io/gpu", endpoint)
        assert recorder.lists(plugin) == [("gpu-0",)]
    recorder.wait_lost(plugin)
    assert recorder.of(RegistrationRequested) == []  # the registration metric counts Register calls only


def test_our_own_plugins_are_served_and_announced_on_one_socket(
    kubelet: GrpcUnixTransport, registry: Path, recorder: Recorder
) -> None:
    (registry / "acme" / "deep").mkdir(parents=True)
    with serve_plugin(Gpus("gpu-0"), registry=registry / "acme" / "deep") as plugin:
        plugin.wait_registered(PATIENCE)
        assert recorder.plugin().socket == plugin.socket
        assert recorder.lists(recorder.plugin()) == [("gpu-0",)]
        assert kubelet.read(kubelet.allocate(recorder.plugin(), [])).envs == {"GPUS": ""}
    recorder.wait_lost(recorder.plugin())


def test_a_plugin_that_started_before_the_kubelet_is_found(directory: Path, registry: Path, recorder: Recorder) -> None:
    registry.mkdir()
    with serve_plugin(Gpus("gpu-0"), registry=registry) as plugin:
        for number in (1, 2):  # the second time, the kubelet has restarted
            transport = GrpcUnixTransport(directory / "dp", plugins_registry=registry)
            transport.start(recorder)
            recorder.lists(recorder.plugin(number))
            plugin.wait_registered(PATIENCE)
            transport.stop()


@pytest.mark.usefixtures("kubelet")
def test_a_recreated_socket_is_a_new_plugin(registry: Path, recorder: Recorder) -> None:
    with serve_plugin(Gpus("gpu-0"), registry=registry) as plugin:
        first = recorder.plugin()
        Path(plugin.socket).unlink()  # our plugin notices this and serves again, at the same path
        second = recorder.plugin(2)
        assert first.socket == second.socket
        events = [event for event in recorder.events if isinstance(event, PluginLost | PluginRegistered)]
        assert [type(event) for event in events] == [PluginRegistered, PluginLost, PluginRegistered]


INVALID = "plugin validation failed with err: "
FAILED = "plugin registration failed with err: "
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"type": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin at socket {socket}"),
    "versions": (
        {"supported_versions": ["v1alpha", "v1"]},
        f"{INVALID}manager version, v1beta1, is not among plugin supported versions [v1alpha v1]",
    ),
    "name": ({"name": "gpu"}, f'{INVALID}invalid name of device plugin socket: the ResourceName "gpu" is invalid'),
    "endpoint": (
        {"endpoint": "gpu.sock"},
        f'{FAILED}the endpoint "gpu.sock" is refused: it is not the absolute path of a socket',
    ),
    "nobody-there": (
        {},
        f"{FAILED}failed to get device plugin options: rpc error: code = Unimplemented desc = Method not found!",
    ),
}


@pytest.mark.usefixtures("kubelet")
def test_a_refused_plugin_is_told_why_and_contacted_again(registry: Path, recorder: Recorder) -> None:
    with ExitStack() as stack:
        enter = stack.enter_context
        announcers = {name: enter(announced(registry / name, **info)) for name, (info, _) in REFUSED.items()}
        for _ in range(2):
            assert {name: announcer.status() for name, announcer in announcers.items()} == {
                name: (False, f"RegisterPlugin error -- {told.format(socket=registry / name)}")
                for name, (_, told) in REFUSED.items()
            }
    assert recorder.events == []


@pytest.mark.usefixtures("kubelet", "served")
def test_a_plugin_that_the_listener_refuses_is_notified(registry: Path, directory: Path, recorder: Recorder) -> None:
    recorder.refusal = DeviceRefusedError("acme.io/gpu", "gpu-0")
    with announced(registry / "gpu.sock", endpoint=str(directory / "elsewhere.sock")) as announcer:
        registered, error = announcer.status()
        assert not registered
        assert error.endswith(str(recorder.refusal))
        recorder.refusal = None
        assert announcer.status() == (True, "")


@pytest.mark.usefixtures("kubelet", "served")
def test_a_plugin_that_cannot_be_notified_is_disconnected(registry: Path, directory: Path, recorder: Recorder) -> None:
    endpoint = str(directory / "elsewhere.sock")
    with announced(registry / "gpu.sock", endpoint=endpoint, notified_ok=False) as announcer:
        assert announcer.status() == (True, "")
        recorder.wait_lost(recorder.plugin())


@pytest.mark.usefixtures("kubelet")
def test_a_plugin_whose_stream_ends_is_contacted_again(
    registry: Path, directory: Path, served: RawPlugin, recorder: Recorder
) -> None:
    with announced(registry / "gpu.sock", endpoint=str(directory / "elsewhere.sock")) as announcer:
        assert announcer.status() == (True, "")
        served.end_stream()
        recorder.wait_lost(recorder.plugin())
        assert announcer.status() == (True, "")
        assert recorder.plugin(2).generation > recorder.plugin().generation


@pytest.mark.usefixtures("kubelet", "served", "recorder")
def test_dead_sockets_hidden_ones_and_other_files_are_left_alone(registry: Path, directory: Path) -> None:
    (registry / "readme").write_text("not a socket")
    (registry / ".hidden").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(registry / "dead.sock"))
    endpoint = str(directory / "elsewhere.sock")
    with (
        announced(registry / ".gpu.sock", name="acme.io/hidden", endpoint=endpoint) as hidden,
        announced(registry / ".hidden" / "gpu.sock", name="acme.io/hidden", endpoint=endpoint) as below,
        announced(registry / "z.sock", endpoint=endpoint) as announcer,
    ):
        assert announcer.status() == (True, "")
        assert (hidden.asked, below.asked) == (0, 0)
    assert (registry / "readme").exists()
    assert (registry / "dead.sock").exists()


def test_many_sockets_are_contacted_a_few_at_a_time(
    directory: Path, registry: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MAX_ATTEMPTS", 3)
    monkeypatch.setattr(watcher, "GET_INFO_TIMEOUT", PATIENCE)
    asked: Queue[int] = Queue()
    answer = threading.Event()

    def get_info(_: bytes, __: grpc.ServicerContext) -> bytes:
        asked.put(1)
        answer.wait(PATIENCE)
        return Info(type="OtherPlugin", name="acme.io/gpu").SerializeToString()

    registry.mkdir(0o755)
    server = grpc.server(ThreadPoolExecutor(10))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"GetInfo": grpc.unary_unary_rpc_method_handler(get_info)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("pluginregistration.Registration", handlers),)
    )
    for number in range(8):
        server.add_insecure_port(f"unix:{registry}/{number}.sock")
    server.start()
    transport = GrpcUnixTransport(directory / "dp", plugins_registry=registry)
    transport.start(recorder)
    try:
        for _ in range(3):
            asked.get(timeout=PATIENCE)
        with pytest.raises(Empty):  # there is no fourth call until one of these three is answered
            asked.get(timeout=0.2)
        answer.set()
        for _ in range(5):
            asked.get(timeout=PATIENCE)
    finally:
        answer.set()
        transport.stop()
        server.stop(None)


def test_a_path_that_is_not_a_directory_is_refused_and_left_alone(directory: Path, recorder: Recorder) -> None:
    (directory / "file").touch()
    for place in (directory / "file", directory / "missing" / "plugins_registry"):
        transport = GrpcUnixTransport(directory / "dp", plugins_registry=place)
        with pytest.raises(DirectoryError):
            transport.start(recorder)
        assert list((directory / "dp").iterdir()) == []
