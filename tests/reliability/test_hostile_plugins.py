"""Plugins that send too much, too often, or nothing at all, and directories that are not as they should be.

In `make storm`, which sets STORM=1, the attacks have their full size.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc import StatusCode

from devicecore.adapters.grpc_unix import GrpcUnixTransport, PluginLimits, serve_plugin, watcher
from devicecore.domain.errors import DirectoryError
from devicecore.domain.events import DevicesReported, Event, PluginRegistered
from devicecore.domain.model import Device, DeviceId, NumaNode, PluginId
from devicecore.system.list_check import MAX_DEVICES
from devicecore.wire import deviceplugin
from tests.adapters.peers import PATIENCE, Gpus, RawPlugin, Recorder, deep_tree, register, running, wait_until
from tests.adapters.test_watcher import announced

OK = (StatusCode.OK, "")
STORM = bool(os.environ.get("STORM"))

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")


def messages(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [message for message in found if text in message]


class SlowListener(Recorder):
    """A listener that takes a while for each list in a flood, and records the pauses between its calls."""

    SECONDS = 0.02

    def __init__(self) -> None:
        super().__init__()
        self.reports = self.max_at_once = 0
        self.pauses: list[float] = []
        self._at_once = 0
        self._ends: dict[str, float] = {}
        self._counting = threading.Lock()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, DevicesReported) or event.plugin.resource == "acme.io/gpu":
            super().__call__(event)
            return
        flood = event.plugin.resource
        with self._counting:
            self.reports += 1
            self._at_once += 1
            self.max_at_once = max(self.max_at_once, self._at_once)
            if flood in self._ends:
                self.pauses.append(time.monotonic() - self._ends[flood])
        time.sleep(self.SECONDS)
        with self._counting:
            self._at_once -= 1
            self._ends[flood] = time.monotonic()

    def normal_plugin(self) -> PluginId:
        """Return the plugin that sends few lists."""
        (plugin,) = {event.plugin for event in self.of(PluginRegistered) if event.plugin.resource == "acme.io/gpu"}
        return plugin


class TestTooMuch:
    def test_a_list_on_too_many_numa_nodes_loses_the_plugin_and_the_log_says_why(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        many = 350_000 if STORM else 1025
        plugin = Gpus()
        plugin.become(Device(DeviceId("fits"), topology=tuple(map(NumaNode, range(1024)))))
        with running(directory, recorder), serve_plugin(plugin, directory):
            assert recorder.lists(recorder.plugin()) == [("fits",)]
            plugin.become(Device(DeviceId("d0"), topology=tuple(map(NumaNode, range(many)))))
            recorder.wait_lost(recorder.plugin())
        told = f"a list from acme.io/gpu names {many} NUMA nodes, expected at most 1024"
        assert len(messages(caplog, told)) >= 1

    def test_a_list_of_too_many_devices_is_counted_before_it_is_read(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Each device in these 500 KB would become a value of about 100 bytes.

        A message of 4 MB may contain 2,000,000 devices.
        """
        list_ = deviceplugin.ListAndWatchResponse(devices=[deviceplugin.Device()] * (MAX_DEVICES + 1))

        class Empty(RawPlugin):
            def list_and_watch(
                self, _: deviceplugin.Empty, __: grpc.ServicerContext
            ) -> Iterator[deviceplugin.ListAndWatchResponse]:
                yield list_

        with running(directory, recorder), Empty(directory / "empty.sock"):
            assert register(directory, "empty.sock", "acme.io/empty") == OK
            recorder.wait_lost(recorder.plugin())
        assert messages(caplog, "a list from acme.io/empty has 250,001 devices, expected at most 250,000")

    def test_large_lists_are_read_one_at_a_time_with_pauses_for_their_plugin(self, directory: Path) -> None:
        floods, devices = (20, 40_000) if STORM else (3, 4_000)
        lists = [
            deviceplugin.ListAndWatchResponse(
                devices=[{"ID": f"gpu-{number:05}", "health": "Healthy"} for number in (*range(devices), devices + n)]
            )
            for n in range(2)  # one device differs, so that no list equals the one before
        ]
        ended = threading.Event()

        class Flood(RawPlugin):
            def list_and_watch(
                self, _: deviceplugin.Empty, __: grpc.ServicerContext
            ) -> Iterator[deviceplugin.ListAndWatchResponse]:
                while not ended.is_set():
                    yield from lists

        listener = SlowListener()
        with running(directory, listener) as transport, ExitStack() as stack:
            stack.callback(ended.set)
            for number in range(floods):
                stack.enter_context(Flood(directory / f"flood-{number}.sock"))
                assert register(directory, f"flood-{number}.sock", f"acme.io/flood-{number}") == OK
            stack.enter_context(serve_plugin(Gpus("d0"), directory)).wait_registered(PATIENCE)
            durations = []
            for _ in range(20):
                started = time.monotonic()
                transport.allocate(listener.normal_plugin(), [DeviceId("d0")])
                durations.append(time.monotonic() - started)
            wait_until(lambda: listener.reports >= 3 * floods, "every flood has been heard")
        assert listener.max_at_once == 1
        assert min(listener.pauses) >= 3 * SlowListener.SECONDS * 0.9
        assert max(durations) < 20  # seconds, on a loaded machine; usually, a call takes a few milliseconds

    def test_registrations_at_one_mute_socket_are_bounded_and_block_no_other(
        self, directory: Path, recorder: Recorder
    ) -> None:
        calls = 2000 if STORM else 40
        limits = PluginLimits(dial=3.0 if STORM else 5.0)
        with socket.socket(socket.AF_UNIX) as mute, running(directory, recorder, limits=limits):
            mute.bind(str(directory / "mute.sock"))
            mute.listen(1000)
            with ThreadPoolExecutor(min(calls, 200)) as callers, RawPlugin(directory / "p.sock", ["d0"]):
                answers = callers.map(lambda n: register(directory, "mute.sock", f"acme.io/r{n}"), range(calls))
                wait_until(lambda: len(recorder.events) >= 30, "the calls have arrived")
                assert register(directory, "p.sock") == OK  # while the mute socket is dialed
                texts = [text for _, text in answers]
        waiting = f"16 registrations at {directory}/mute.sock are waiting for the plugin to answer"
        too_many = f"{waiting}: answer them, then register"
        assert texts.count(too_many) >= calls - 16 * (1 if calls == 40 else 50)
        assert [text for text in texts if text != too_many and "failed to dial device plugin" not in text] == []


@pytest.fixture
def registry(directory: Path) -> Path:
    path = directory / "plugins_registry"
    path.mkdir(0o755)
    return path


class TestRegistry:
    @pytest.fixture(autouse=True)
    def _frequent_looks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watcher, "INTERVAL", 0.05)

    def test_a_deep_tree_and_paths_beyond_path_max_do_not_end_the_watcher(
        self, directory: Path, registry: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        transport = GrpcUnixTransport(directory / "dp", plugins_registry=registry)
        transport.start(recorder)
        with deep_tree(registry), serve_plugin(Gpus("d0"), registry=registry) as served:
            served.wait_registered(PATIENCE)
        transport.stop()
        assert messages(caplog, "ended unexpectedly") == []

    @pytest.mark.parametrize("place", [".", "below"])
    @pytest.mark.parametrize(
        "change",
        [lambda path: path.chmod(0o777), lambda path: os.chown(path, 65534, 65534)],
        ids=["mode 0777", "of user 65534"],
    )
    @as_root
    def test_sockets_in_a_directory_that_others_may_write_are_not_dialed(
        self,
        directory: Path,
        registry: Path,
        recorder: Recorder,
        caplog: pytest.LogCaptureFixture,
        place: str,
        change: Callable[[Path], object],
    ) -> None:
        (registry / place).mkdir(0o755, exist_ok=True)
        transport = GrpcUnixTransport(directory / "dp", plugins_registry=registry)
        change(registry / place)
        if place == ".":
            with pytest.raises(DirectoryError, match=r"its mode is 0777|it belongs to user id 65534"):
                transport.start(recorder)
            return
        transport.start(recorder)
        with announced(registry / place / "p.sock") as announcer:
            wait_until(lambda: messages(caplog, f"plugins in {registry / place} are not registered"), "it is logged")
            with serve_plugin(Gpus("d0"), registry=registry) as served:
                served.wait_registered(PATIENCE)
            transport.stop()
            assert announcer.asked == 0

    def test_a_registry_that_others_may_write_later_registers_nothing_new(
        self, directory: Path, registry: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        transport = GrpcUnixTransport(directory / "dp", plugins_registry=registry)
        transport.start(recorder)
        with serve_plugin(Gpus("d0"), registry=registry) as served:
            served.wait_registered(PATIENCE)
            registry.chmod(0o777)
            wait_until(lambda: messages(caplog, f"plugins in {registry} are not registered"), "it is logged")
            with announced(registry / "evil.sock", name="acme.io/evil") as announcer:
                time.sleep(0.3)  # time for more scans
                assert announcer.asked == 0
            assert served.registered  # earlier registrations stay
        transport.stop()

    def test_the_kubelets_own_socket_is_never_dialed(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The registry is the plugin directory itself, which also contains a hard link to the kubelet's socket."""
        transport = GrpcUnixTransport(directory, plugins_registry=directory)
        transport.start(recorder)
        os.link(directory / "kubelet.sock", directory / "second-name.sock")
        with announced(directory / "z.sock", endpoint=str(directory / "second-name.sock")) as announcer:
            assert announcer.status() == (
                False,
                (
                    "RegisterPlugin error -- plugin registration failed with err: the endpoint "
                    f'"{directory}/second-name.sock" is refused: it is the kubelet\'s own socket'
                ),
            )
        transport.stop()
        assert messages(caplog, "kubelet.sock is not registered") == []
        assert messages(caplog, f"the plugin at {directory}/second-name.sock") == []

    def test_a_link_is_not_an_endpoint_of_a_found_plugin(
        self, directory: Path, registry: Path, recorder: Recorder
    ) -> None:
        transport = GrpcUnixTransport(directory / "dp", plugins_registry=registry)
        transport.start(recorder)
        with RawPlugin(directory / "p.sock", ["d0"]):
            (directory / "link.sock").symlink_to("p.sock")
            with announced(registry / "z.sock", endpoint=str(directory / "link.sock")) as announcer:
                registered, error = announcer.status()
        transport.stop()
        assert not registered
        assert f'the endpoint "{directory}/link.sock" is refused' in error

    def test_the_1100th_failure_of_a_socket_is_like_the_first(
        self,
        directory: Path,
        registry: Path,
        recorder: Recorder,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """With the usual pauses, the 1,100th failure would happen after 36 hours."""
        monkeypatch.setattr(watcher, "FIRST_PAUSE", 0.0)
        monkeypatch.setattr(watcher, "INTERVAL", 0.0)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(registry / "dead.sock"))
        transport = GrpcUnixTransport(directory / "dp", plugins_registry=registry)
        transport.start(recorder)
        try:
            attempts = f"the plugin at {registry}/dead.sock is not registered"
            given_up_at = time.monotonic() + 60
            while len(messages(caplog, attempts)) < 1100 and time.monotonic() < given_up_at:
                time.sleep(0.1)
        finally:
            transport.stop()
        assert len(messages(caplog, attempts)) >= 1100
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
