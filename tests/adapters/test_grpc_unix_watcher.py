"""Registration through the plugin watcher, from the plugin's side, and how a kubelet drops a plugin."""

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from devicecore.adapters.grpc_unix import GrpcUnixTransport, KubeletUnreachableError, ServedPlugin, serve_plugin
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.events import PluginLost
from devicecore.domain.model import DeviceId, PluginId, resource_name
from devicecore.system.sockets import socket_identity
from devicecore.wire import deviceplugin, pluginregistration
from tests.adapters.peers import PATIENCE, Gpus, Recorder, environment, running

SOON = 0.05
# With one pool for the whole process, a channel to a new socket would reuse the old socket's connection.
_OPTIONS = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]


@contextmanager
def watcher(served: ServedPlugin) -> Iterator[grpc.Channel]:
    """Yield a channel like that of a kubelet that has found the plugin's socket: the authority is gRPC's default."""
    with grpc.insecure_channel(f"unix:{served.socket}", _OPTIONS) as channel:
        yield channel


def get_info(channel: grpc.Channel) -> pluginregistration.PluginInfo:
    call: Any = channel.unary_unary(
        "/pluginregistration.Registration/GetInfo", bytes, pluginregistration.PluginInfo.FromString
    )
    answer: pluginregistration.PluginInfo = call(b"", timeout=PATIENCE)
    return answer


def notify(channel: grpc.Channel, *, registered: bool, error: str = "") -> None:
    call: Any = channel.unary_unary("/pluginregistration.Registration/NotifyRegistrationStatus", bytes, bytes)
    status = pluginregistration.RegistrationStatus(plugin_registered=registered, error=error)
    call(status.SerializeToString(), timeout=PATIENCE)


def listed(channel: grpc.Channel) -> Any:  # noqa: ANN401 - grpc's stream of lists
    call: Any = channel.unary_stream(
        "/v1beta1.DevicePlugin/ListAndWatch", bytes, deviceplugin.ListAndWatchResponse.FromString
    )
    return call(b"")


def wait_until_dropped(served: ServedPlugin) -> None:
    """Wait until the plugin has noticed that its stream has ended."""
    while served.registered:
        pass


def test_a_watcher_finds_the_name_and_the_devices_of_a_plugin(directory: Path) -> None:
    with serve_plugin(Gpus("d0"), registry=directory, endpoint="p.sock", poll_interval=SOON) as served:
        assert served.socket == str(directory / "p.sock")
        assert not served.registered
        with watcher(served) as channel:
            info = get_info(channel)
            assert (info.type, info.name, info.endpoint) == ("DevicePlugin", "acme.io/gpu", served.socket)
            assert list(info.supported_versions) == ["v1beta1"]
            stream = listed(channel)
            assert [device.ID for device in next(stream).devices] == ["d0"]
            notify(channel, registered=True)
            served.wait_registered(PATIENCE)
            stream.cancel()
            wait_until_dropped(served)
    assert list(directory.iterdir()) == []


def test_the_refusal_of_a_watcher_is_the_cause_of_the_error(directory: Path) -> None:
    with serve_plugin(Gpus("d0"), registry=directory, poll_interval=SOON) as served, watcher(served) as channel:
        notify(channel, registered=False, error="we are closed")
        with pytest.raises(KubeletUnreachableError, match="we are closed"):
            served.wait_registered(0)
        notify(channel, registered=False)
        with pytest.raises(KubeletUnreachableError, match="without saying why"):
            served.wait_registered(0)


def test_a_watched_socket_that_was_deleted_is_recreated(directory: Path) -> None:
    with serve_plugin(Gpus("d0"), registry=directory, poll_interval=SOON) as served:
        Path(served.socket).unlink()
        while not Path(served.socket).exists():
            with pytest.raises(KubeletUnreachableError):
                served.wait_registered(SOON)
        with watcher(served) as channel:
            assert get_info(channel).name == "acme.io/gpu"


def test_a_watcher_may_answer_before_the_former_server_has_ended(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked, released = threading.Event(), threading.Event()

    class Slow(Gpus):
        def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
            asked.set()
            released.wait(PATIENCE)
            return super().allocate(devices)

    caplog.set_level(logging.INFO)
    with serve_plugin(Slow("d0"), registry=directory, poll_interval=SOON) as served, watcher(served) as former:
        stream = listed(former)
        next(stream)
        notify(former, registered=True)
        request = deviceplugin.AllocateRequest(container_requests=[{"devices_ids": ["d0"]}])
        call: Any = former.unary_unary("/v1beta1.DevicePlugin/Allocate", deviceplugin.AllocateRequest.SerializeToString)
        answer = call.future(request, timeout=PATIENCE)
        assert asked.wait(PATIENCE)
        before = socket_identity(served.socket)
        stream.cancel()
        while socket_identity(served.socket) in {before, None}:
            pass
        with watcher(served) as channel:
            notify(channel, registered=True)
            assert "is served again" not in caplog.text
            released.set()
            while "is served again" not in caplog.text:
                pass
            served.wait_registered(PATIENCE)
        answer.cancel()


def test_without_a_registry_a_plugin_does_not_serve_get_info(directory: Path) -> None:
    with serve_plugin(Gpus("d0"), directory) as served, watcher(served) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            get_info(channel)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_disconnected_plugin_is_lost_and_may_return(directory: Path, recorder: Recorder) -> None:
    with running(directory, recorder) as transport, serve_plugin(Gpus("d0"), directory, poll_interval=SOON):
        first = recorder.plugin()
        recorder.lists(first)
        transport.disconnect(first)
        recorder.wait_lost(first)
        transport.disconnect(first)
        assert recorder.lists(recorder.plugin(2)) == [("d0",)]
        assert len(recorder.of(PluginLost)) == 1
    transport.disconnect(PluginId(resource_name("acme.io/gpu"), "p.sock", 1))


def test_a_start_that_does_not_wipe_leaves_other_sockets(directory: Path, recorder: Recorder) -> None:
    with serve_plugin(Gpus("d0"), directory, endpoint="p.sock", poll_interval=SOON):
        inode = (directory / "p.sock").stat().st_ino
        for number in (1, 2):
            transport = GrpcUnixTransport(directory, wipe=False)
            transport.start(recorder)
            recorder.plugin(number)
            transport.stop()
        assert (directory / "p.sock").stat().st_ino == inode


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_program_and_leaves_nothing(
    directory: Path, recorder: Recorder, ending: signal.Signals
) -> None:
    program = (
        "import sys\n"
        "from devicecore.adapters.grpc_unix import run_plugin\n"
        "from tests.adapters.peers import Gpus\n"
        "print(run_plugin(Gpus('d0'), sys.argv[1]).name)\n"
    )
    command = [sys.executable, "-c", program, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        with running(directory, recorder):
            plugin = recorder.plugin()
            process.send_signal(ending)
            recorder.wait_lost(plugin)
        assert process.stdout is not None
        assert process.stdout.read() == f"{ending.name}\n"
    assert (process.returncode, list(directory.iterdir())) == (0, [])
