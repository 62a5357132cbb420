"""The plugin's side over real sockets: it registers, sends lists, registers again and stops."""

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import grpc
import pytest

from devicecore.adapters.grpc_unix import (
    GrpcUnixTransport,
    KubeletUnreachableError,
    PluginLimits,
    ServedPlugin,
    default_endpoint,
    serve_plugin,
)
from devicecore.adapters.grpc_unix import served as served_module
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import (
    DirectoryError,
    InvalidEndpointError,
    NotStartedError,
    PluginCallError,
    PluginConnectError,
    SocketPathTooLongError,
)
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.model import Device, DeviceId, Health, PluginOptions, resource_name
from devicecore.runtime.in_time import in_time
from devicecore.testing.interrupts import Interrupts
from devicecore.wire import deviceplugin
from tests.adapters.peers import PATIENCE, Gpus, RawKubelet, RawPlugin, Recorder, environment, running, wait_until

D0 = DeviceId("d0")
SOON = 0.05
"""Seconds between two checks of the sockets; short, so that the tests are fast."""


def call(path: str, method: str, request: deviceplugin.AllocateRequest | deviceplugin.Empty) -> bytes:
    """Call a plugin as a kubelet does, and return the unparsed answer or the name of the status."""
    with grpc.insecure_channel(f"unix:{path}", [("grpc.default_authority", "localhost")]) as channel:
        try:
            return channel.unary_unary(f"/v1beta1.DevicePlugin/{method}", bytes, bytes)(
                request.SerializeToString(), timeout=PATIENCE
            )
        except grpc.RpcError as error:
            return error.code().name.encode()


def test_an_interrupted_wait_for_the_registration_keeps_nothing_from_others(directory: Path) -> None:
    """Ctrl-C during a wait could otherwise stop the event loop, and with it every transport in the process."""
    with serve_plugin(Gpus("d0"), directory, poll_interval=SOON) as served:

        def wait() -> None:
            with suppress(KubeletUnreachableError):
                served.wait_registered(0.001)

        for place in count(1):
            try:
                is_interrupted = Interrupts(place, threading, served_module).interrupt(wait)
            except RuntimeError:
                is_interrupted = True  # interrupted while Condition.wait did not hold the lock
            in_time(wait, PATIENCE)
            if not is_interrupted:
                break


def test_a_plugin_serves_before_it_registers(directory: Path) -> None:
    with serve_plugin(Gpus("d0"), directory, endpoint="p.sock", poll_interval=SOON) as served:
        assert served.socket == str(directory / "p.sock")
        assert not served.registered
        request = deviceplugin.AllocateRequest(container_requests=[{"devices_ids": ["d0"]}, {"devices_ids": []}])
        answer = deviceplugin.AllocateResponse.FromString(call(served.socket, "Allocate", request))
        assert [dict(response.envs) for response in answer.container_responses] == [{"GPUS": "d0"}, {"GPUS": ""}]
    assert list(directory.iterdir()) == []


def test_a_change_reaches_the_kubelet(directory: Path, recorder: Recorder) -> None:
    gpus = Gpus("d0")
    with running(directory, recorder), serve_plugin(gpus, directory, poll_interval=SOON) as served:
        served.wait_registered(PATIENCE)
        assert served.registered
        plugin = recorder.plugin()
        assert recorder.lists(plugin) == [("d0",)]
        gpus.become(Device(D0, Health.UNHEALTHY), Device(DeviceId("d1")))
        assert recorder.lists(plugin, 2)[1] == ("d0", "d1")
        gpus.become()
        assert recorder.lists(plugin, 3)[2] == ()
        assert gpus.subscribers == 1
        served.stop()
        served.stop()
        recorder.wait_lost(plugin)
        assert gpus.subscribers == 0
        gpus.become(Device(D0))


def test_many_changes_at_once_end_with_the_last_one(directory: Path, recorder: Recorder) -> None:
    gpus = Gpus()
    with running(directory, recorder), serve_plugin(gpus, directory, poll_interval=SOON):
        plugin = recorder.plugin()
        for number in range(200):
            gpus.become(Device(DeviceId(f"d{number}")))
        recorder.wait_for(lambda _: recorder.lists(plugin)[-1] == ("d199",))


def test_a_plugin_returns_after_the_kubelet_restarts_and_deletes_its_socket(directory: Path) -> None:
    with serve_plugin(Gpus("d0"), directory, poll_interval=SOON) as served:
        for _ in range(5):
            recorder = Recorder()
            with running(directory, recorder) as transport:
                plugin = recorder.plugin()
                served.wait_registered(PATIENCE)
                assert recorder.lists(plugin) == [("d0",)]
                assert transport.read(transport.allocate(plugin, [D0])).envs == {"GPUS": "d0"}
            assert not served.registered


def test_a_plugin_returns_after_the_kubelet_restarts_and_deletes_nothing(directory: Path) -> None:
    with serve_plugin(Gpus("d0"), directory, endpoint="p.sock", poll_interval=SOON) as served:
        inode = Path(served.socket).stat().st_ino
        for _ in range(5):
            with RawKubelet(directory) as kubelet:
                request = kubelet.requests.get(timeout=PATIENCE)
                served.wait_registered(PATIENCE)
            assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", "p.sock", "acme.io/gpu")
            assert not served.registered
        assert Path(served.socket).stat().st_ino == inode


def test_a_plugin_whose_socket_was_deleted_makes_a_new_one(directory: Path, recorder: Recorder) -> None:
    with running(directory, recorder), serve_plugin(Gpus("d0"), directory, poll_interval=SOON) as served:
        first = recorder.plugin()
        served.wait_registered(PATIENCE)
        Path(served.socket).unlink()
        second = recorder.plugin(2)
        recorder.wait_lost(first)
        served.wait_registered(PATIENCE)
        assert recorder.lists(second) == [("d0",)]


def test_a_plugin_that_the_kubelet_dropped_registers_again(directory: Path, recorder: Recorder) -> None:
    class Failing(Gpus):
        failures = 0

        def devices(self) -> Sequence[Device]:
            if self.failures:
                self.failures -= 1
                raise OSError("the driver is gone")
            return super().devices()

    gpus = Failing("d0")
    with running(directory, recorder), serve_plugin(gpus, directory, poll_interval=SOON):
        first = recorder.plugin()
        recorder.lists(first)
        gpus.failures = 1
        gpus.become(Device(DeviceId("d1")))
        recorder.wait_lost(first)
        assert recorder.lists(recorder.plugin(2)) == [("d1",)]


class NotesItsDrop(ServedPlugin):
    """A served plugin that sets an event once it notices that the kubelet has dropped it."""

    dropped = threading.Event()

    def _dropped(self) -> None:
        super()._dropped()
        self.dropped.set()


class CutsTheFirstRegister(RawKubelet):
    """Cuts a plugin's stream before answering the plugin's first Register call."""

    def register(self, request: deviceplugin.RegisterRequest, context: grpc.ServicerContext) -> deviceplugin.Empty:
        if not NotesItsDrop.dropped.is_set():
            with grpc.insecure_channel(f"unix:{self.directory}/{request.endpoint}") as channel:
                lists = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch", bytes, bytes)(b"")
                next(lists)
                lists.cancel()
                NotesItsDrop.dropped.wait(PATIENCE)
        return super().register(request, context)


def test_a_plugin_that_is_dropped_before_its_registration_is_answered_registers_again(directory: Path) -> None:
    NotesItsDrop.dropped.clear()
    path = str(directory / "p.sock")
    with CutsTheFirstRegister(directory) as kubelet:
        served = NotesItsDrop(Gpus("d0"), path, str(directory / "kubelet.sock"), SOON)
        served.start()
        with served:
            for _ in range(2):
                assert kubelet.requests.get(timeout=PATIENCE).endpoint == "p.sock"


def test_a_refused_plugin_keeps_trying(directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    recorder.refusal = PluginConnectError("acme.io/gpu", "p.sock", "we are closed")
    with running(directory, recorder), serve_plugin(Gpus("d0"), directory, poll_interval=SOON) as served:
        recorder.wait(RegistrationRequested, 3)
        with pytest.raises(KubeletUnreachableError) as refused:
            served.wait_registered(0)
        assert "code = Unknown desc = failed to dial device plugin: we are closed" in str(refused.value)
        recorder.refusal = None
        served.wait_registered(PATIENCE)
    told = [record for record in caplog.records if "cannot register" in record.message]
    assert len(told) <= 2  # possibly "no such socket", and then this refusal, but not one message per attempt


def test_a_plugin_without_a_kubelet_says_so_and_waits(directory: Path, recorder: Recorder) -> None:
    with serve_plugin(Gpus("d0"), directory, poll_interval=SOON) as served:
        with pytest.raises(KubeletUnreachableError) as unreachable:
            served.wait_registered(3 * SOON)
        why = "there is no such socket: no kubelet is running there"
        assert unreachable.value.args == (str(directory / "kubelet.sock"), why)
        with running(directory, recorder):
            served.wait_registered(PATIENCE)


def test_a_plugin_whose_path_was_taken_does_not_take_it_back(directory: Path, recorder: Recorder) -> None:
    with running(directory, recorder):
        served = serve_plugin(Gpus("old"), directory, endpoint="p.sock", poll_interval=SOON)
        recorder.lists(recorder.plugin())
        with RawPlugin(directory / "p.sock", ["new"]):
            while (why := problem(served)) in ("the registration has just been lost", None):
                pass  # the plugin has not checked its socket yet
            assert why == f"another process has taken {directory / 'p.sock'}"
            assert len(recorder.of(RegistrationRequested)) == 1
            served.stop()


def problem(served: ServedPlugin) -> str | None:
    """Return why the plugin is still not registered after a short while, or None if it is registered."""
    try:
        served.wait_registered(SOON)
    except KubeletUnreachableError as error:
        return error.cause
    return None


def test_an_exception_of_a_plugin_is_the_callers_error(directory: Path, recorder: Recorder) -> None:
    class Broken(Gpus):
        def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
            if len(devices) > 1:
                raise ValueError
            return ContainerAllocateResponse(envs={"A": 1})  # type: ignore[dict-item]  # a mistake that plugins make

    with running(directory, recorder) as transport, serve_plugin(Broken("d0"), directory):
        with pytest.raises(PluginCallError, match="code = Unknown desc = ValueError"):
            transport.allocate(recorder.plugin(), [D0, D0])
        with pytest.raises(
            PluginCallError, match=r"code = Unknown desc = ContainerAllocateResponse\.envs\['A'\]: expected str, got 1"
        ):
            transport.allocate(recorder.plugin(), [D0])


def test_a_plugin_that_exits_ends_its_call_and_no_other_plugin(directory: Path, recorder: Recorder) -> None:
    class Exiting(Gpus):
        def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
            sys.exit("the driver has gone")

    gpus = Exiting("d0")
    with running(directory, recorder) as transport, serve_plugin(gpus, directory):
        with pytest.raises(PluginCallError, match="code = Unknown desc = the driver has gone"):
            transport.allocate(recorder.plugin(), [D0])
        transport.pre_start_container(recorder.plugin(), [D0])
    assert gpus.calls == [("pre-start", ("d0",))]


def test_a_call_that_hangs_delays_neither_the_list_nor_the_stop(directory: Path, recorder: Recorder) -> None:
    asked, released = threading.Event(), threading.Event()

    class Hanging(Gpus):
        def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
            asked.set()
            released.wait(PATIENCE)

    gpus = Hanging("d0")
    limits = PluginLimits(pre_start=5.0)
    with running(directory, recorder, limits=limits) as transport, serve_plugin(gpus, directory) as served:
        plugin = recorder.plugin()
        caller = threading.Thread(target=ignoring(PluginCallError, lambda: transport.pre_start_container(plugin, [])))
        caller.start()
        assert asked.wait(PATIENCE)
        gpus.become(Device(DeviceId("d1")))
        recorder.wait_for(lambda _: recorder.lists(plugin)[-1] == ("d1",))
        caller.join()
        served.stop()
        recorder.wait_lost(plugin)
        released.set()


def ignoring(error: type[Exception], function: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with pytest.raises(error):
            function()

    return run


def test_options_count_only_where_the_kubelet_asks_for_them(directory: Path, recorder: Recorder) -> None:
    options = PluginOptions(pre_start_required=True)
    with running(directory, recorder), serve_plugin(Gpus(options=options), directory) as served:
        answer = call(served.socket, "GetDevicePluginOptions", deviceplugin.Empty())
        assert answer == b"\x08\x01"
        assert recorder.wait(PluginRegistered)[0].options == options


def test_an_unknown_method_is_unimplemented(directory: Path) -> None:
    with serve_plugin(Gpus(), directory) as served:
        assert call(served.socket, "Deallocate", deviceplugin.Empty()) == b"UNIMPLEMENTED"


def test_several_plugins_of_one_process_share_one_kubelet(directory: Path, recorder: Recorder) -> None:
    names = ["acme.io/gpu", "acme.io/fpga", "other.org/gpu"]
    with running(directory, recorder):
        served = [serve_plugin(Gpus("d0", resource=name), directory) for name in names]
        assert {event.plugin.resource for event in recorder.wait(PluginRegistered, 3)} == set(names)
        served[0].stop()
        (lost,) = recorder.wait(PluginLost)
        assert lost.plugin.resource == "acme.io/gpu"
        for each in served[1:]:
            each.wait_registered(PATIENCE)
            each.stop()


def test_a_plugin_can_be_started_again(directory: Path, recorder: Recorder) -> None:
    with running(directory, recorder), serve_plugin(Gpus("d0"), directory) as served:
        recorder.plugin(1)
        served.stop()
        with pytest.raises(NotStartedError, match="call start"):
            served.wait_registered(0)
        served.start()
        served.start()
        assert recorder.lists(recorder.plugin(2)) == [("d0",)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the user nobody")
@pytest.mark.parametrize("mode", [0o555, 0o700], ids=["to write", "to look"])
def test_where_it_may_not_serve_it_says_so(directory: Path, mode: int) -> None:
    inside = directory / "inside"
    inside.mkdir()
    inside.chmod(mode)
    directory.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(DirectoryError, match="Permission denied"):
            serve_plugin(Gpus(), inside)
    finally:
        os.seteuid(0)


def test_where_it_cannot_serve_it_says_why(directory: Path) -> None:
    (directory / "p.sock").touch()
    with pytest.raises(SocketPathTooLongError):
        serve_plugin(Gpus(), directory / ("x" * 100))
    with pytest.raises(DirectoryError) as refused:
        serve_plugin(Gpus(), directory / "p.sock")
    assert refused.value.args == (str(directory / "p.sock"), "it is not a directory")
    with pytest.raises(DirectoryError) as refused:
        serve_plugin(Gpus(), directory, endpoint="p.sock")
    assert refused.value.args == (str(directory), "p.sock is in the way and is not a socket")


@pytest.mark.parametrize("endpoint", ["kubelet.sock", "../x.sock", "/x.sock", "a/x.sock", "..", "", "a\nb", "x\0"])
def test_it_serves_nowhere_but_beside_the_kubelets_socket(directory: Path, recorder: Recorder, endpoint: str) -> None:
    with running(directory, recorder), pytest.raises(InvalidEndpointError, match=r'^the endpoint ".*" is refused: it '):
        serve_plugin(Gpus(), directory, endpoint=endpoint)
    if endpoint != "kubelet.sock":
        with pytest.raises(InvalidEndpointError):
            serve_plugin(Gpus(), registry=directory, endpoint=endpoint)


def test_the_kubelets_socket_may_be_a_path(directory: Path, recorder: Recorder) -> None:
    kubelet = directory / "kubelet.sock"
    with running(directory, recorder):
        with serve_plugin(Gpus(), directory, kubelet_socket=kubelet) as served:
            assert served.kubelet_socket == str(kubelet)
        for given in (kubelet, str(kubelet)):
            with pytest.raises(InvalidEndpointError, match="it is the kubelet's own socket"):
                serve_plugin(Gpus(), directory, endpoint="kubelet.sock", kubelet_socket=given)


def test_a_plugin_that_cannot_be_subscribed_to_is_not_served(directory: Path) -> None:
    class Deaf(Gpus):
        def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
            raise LookupError("nothing to watch")

    with pytest.raises(LookupError):
        serve_plugin(Deaf(), directory)
    assert list(directory.iterdir()) == []


class IgnoresTheFirstCancellation(ServedPlugin):
    """A served plugin whose task ignores the first cancellation, as grpc's `Server.stop` may before Python 3.12."""

    looking = threading.Event()

    async def _look(self) -> None:
        if not self.looking.is_set():
            self.looking.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await asyncio.Event().wait()


def test_a_stop_does_not_hang_when_a_cancellation_is_swallowed_on_the_way(directory: Path) -> None:
    """About one stop in a hundred used to hang when the kubelet had just deleted the plugin's socket."""
    served = IgnoresTheFirstCancellation(Gpus(), str(directory / "p.sock"), str(directory / "kubelet.sock"), SOON)
    served.start()
    assert served.looking.wait(PATIENCE)
    stopping = threading.Thread(target=served.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()


def test_default_endpoints_are_short_stable_and_differ_between_resources() -> None:
    names = ["acme.io/gpu", "other.org/gpu", "acme.io/" + "x" * 63, "acme.io/a.b", "acme.io/a_b"]
    endpoints = [default_endpoint(resource_name(name)) for name in names]
    assert len(set(endpoints)) == len(names)
    assert max(map(len, endpoints)) <= 34
    assert endpoints[0] == default_endpoint(resource_name("acme.io/gpu"))
    assert endpoints[0].startswith("gpu-")


def test_a_plugin_finds_a_transport_under_another_socket_name(directory: Path, recorder: Recorder) -> None:
    transport = GrpcUnixTransport(directory, socket_name="other.sock")
    transport.start(recorder)
    with serve_plugin(Gpus("d0"), directory, kubelet_socket="other.sock", poll_interval=SOON):
        heard: list[Event] = [recorder.wait(PluginRegistered)[0]]
        transport.stop()
    assert len(heard) == 1


def test_a_missing_directory_is_waited_for(directory: Path, recorder: Recorder) -> None:
    later = directory / "later"
    with serve_plugin(Gpus("d0"), later, poll_interval=SOON) as served:
        with pytest.raises(KubeletUnreachableError, match="there is no such directory: a kubelet creates it"):
            served.wait_registered(4 * SOON)
        with running(later, recorder):
            served.wait_registered(PATIENCE)
            assert recorder.lists(recorder.plugin()) == [("d0",)]


def test_a_program_that_waits_for_its_directory_ends_by_a_signal(directory: Path) -> None:
    script = (
        "import logging, sys\n"
        "from devicecore.adapters.grpc_unix import run_plugin\n"
        "from tests.adapters.peers import Gpus\n"
        "logging.basicConfig()\n"
        "print(run_plugin(Gpus('d0'), sys.argv[1]).name)\n"
    )
    child = [sys.executable, "-c", script, str(directory / "missing")]
    with subprocess.Popen(child, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as run:
        assert run.stderr is not None
        assert "there is no such directory" in run.stderr.readline()
        run.send_signal(signal.SIGTERM)
        assert run.communicate(timeout=PATIENCE)[0] == "SIGTERM\n"
    assert run.returncode == 0


@pytest.mark.parametrize("has_socket", [True, False])
def test_the_environment_says_where_the_kubelet_is(
    directory: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, *, has_socket: bool
) -> None:
    name = "other.sock" if has_socket else "kubelet.sock"
    monkeypatch.setenv("DEVICE_PLUGIN_PATH", str(directory))
    if has_socket:
        monkeypatch.setenv("KUBELET_SOCKET", str(directory / name))
    transport = GrpcUnixTransport(directory, socket_name=name)
    transport.start(recorder)
    with serve_plugin(Gpus("d0")) as served:
        served.wait_registered(PATIENCE)
        assert served.kubelet_socket == str(directory / name)
    transport.stop()
    with serve_plugin(Gpus("d0"), directory / "elsewhere") as served:  # the caller's value takes precedence
        assert served.kubelet_socket == str(directory / "elsewhere" / "kubelet.sock")


def test_a_list_that_is_too_long_for_the_kubelet_is_logged_and_not_sent_each_second(
    directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Gpus(*(f"{number:07}" + "x" * 60 for number in range(60_000)))
    told = "the list of devices is 4800000 bytes long, but a kubelet drops a plugin whose list is longer than 4194304"
    began = time.monotonic()
    with running(directory, recorder), serve_plugin(plugin, directory, poll_interval=SOON) as served:
        recorder.wait_lost(recorder.plugin())
        wait_until(lambda: any(told in message for message in caplog.messages), "the plugin has noticed")
        time.sleep(20 * SOON)
        pauses = math.log2(1 + (time.monotonic() - began) / SOON)  # each pause is twice the one before
        assert len(recorder.of(PluginRegistered)) <= 2 + pauses
        plugin.become(Device(D0))  # a list that fits is sent at once
        recorder.wait(DevicesReported)
        served.wait_registered(PATIENCE)


def test_a_wrong_list_is_explained_without_a_traceback_and_not_sent_each_second(
    directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    plugin, listed = Gpus(D0), ["d0"]
    plugin.devices = lambda: listed  # type: ignore[assignment, method-assign, return-value]  # the mistake
    began = time.monotonic()
    told = "acme.io/gpu failed: Gpus.devices: expected Device, got 'd0'"
    with running(directory, recorder), serve_plugin(plugin, directory, poll_interval=SOON):
        recorder.wait_lost(recorder.plugin())
        wait_until(lambda: caplog.messages.count(told) == 2, "the plugin has registered again")
        pauses = math.log2(1 + (time.monotonic() - began) / SOON)
        assert len(recorder.of(PluginRegistered)) <= 2 + pauses
        assert not any(record.exc_info for record in caplog.records)
        listed[:] = [Device(D0), Device(D0)]  # type: ignore[list-item]  # what a caller without a type checker does
        plugin.become(Device(D0))
        recorder.wait(DevicesReported)
    assert "acme.io/gpu lists device d0 twice, but a kubelet counts it once: give each device a different id" in (
        caplog.messages
    )


def test_a_plugin_in_the_wrong_directory_is_told_where_the_kubelet_is(directory: Path, recorder: Recorder) -> None:
    plugins = directory / "device-plugins"
    (plugins / "sub").mkdir(parents=True)
    with running(plugins, recorder):
        for wrong in (directory, plugins / "sub"):
            with (
                serve_plugin(Gpus(D0), wrong, poll_interval=SOON) as served,
                pytest.raises(KubeletUnreachableError, match=f"but there is one in {plugins}: use that directory"),
            ):
                served.wait_registered(20 * SOON)
