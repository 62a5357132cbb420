"""Sockets whose path another process takes, deletes or renames: each process touches only its own file."""

import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from grpc import StatusCode

from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin, server
from devicecore.adapters.pod_resources import PodResourcesClient, PodResourcesServer, Snapshot
from devicecore.adapters.pod_resources import server as pod_resources_server
from devicecore.domain.node_state import NodeState
from devicecore.system.sockets import is_served, socket_identity
from tests.adapters.peers import (
    PATIENCE,
    Gpus,
    RawKubelet,
    RawPlugin,
    Recorder,
    Running,
    environment,
    register,
    running,
    wait_until,
)

OK = (StatusCode.OK, "")
TAKE = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
os.unlink(sys.argv[1])
listener.bind(sys.argv[1])
listener.listen(100)
print("serving", flush=True)
sys.stdin.read()
"""
"""The script of a process that takes over a path as a kubelet does."""

PLUGIN = """
import sys
from devicecore.adapters.grpc_unix import run_plugin
from tests.adapters.peers import Gpus
run_plugin(Gpus("d0"), sys.argv[1], endpoint="p.sock")
"""


@pytest.fixture(autouse=True)
def _frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOOK_INTERVAL", 0.05)
    monkeypatch.setattr(pod_resources_server, "_LOOK_INTERVAL", 0.05)


@contextmanager
def process(script: str, path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def taken_by_another_process(path: Path) -> Iterator[None]:
    with process(TAKE, path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"serving\n"
        yield


def pod_resources(directory: Path) -> PodResourcesServer:
    return PodResourcesServer(directory / "kubelet.sock", lambda: Snapshot(NodeState(), ()))


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> int:
    found = (text in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    return sum(found)


def test_a_kubelet_that_took_our_directory_keeps_its_socket_when_we_stop(
    directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / "kubelet.sock"
    with running(directory, recorder):
        with taken_by_another_process(path):
            wait_until(lambda: warnings(caplog, "another process has put a file of its own there"), "it is noticed")
            theirs = socket_identity(str(path))
        after_its_end = socket_identity(str(path))
    assert theirs is not None
    assert theirs == after_its_end == socket_identity(str(path))
    assert warnings(caplog, "another process has put a file of its own there") == 1


def test_a_kubelet_that_took_our_pod_resources_socket_keeps_it_when_we_stop(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = pod_resources(directory)
    with ours:
        before = socket_identity(str(ours.socket))
        with taken_by_another_process(ours.socket):
            wait_until(lambda: warnings(caplog, "another process has put a file of its own there"), "it is noticed")
            ours.stop()
            assert is_served(str(ours.socket))
            assert socket_identity(str(ours.socket)) != before


def test_a_rolling_update_of_a_plugin_leaves_a_socket_at_its_path(directory: Path, recorder: Recorder) -> None:
    path = directory / "p.sock"
    missing: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if not os.path.lexists(path):
                missing.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    with running(directory, recorder), process(PLUGIN, directory) as former:
        first = recorder.plugin()
        before = socket_identity(str(path))
        watcher.start()
        try:
            with process(PLUGIN, directory) as successor:
                wait_until(lambda: socket_identity(str(path)) != before, "the successor serves")
                second = recorder.plugin(2)
                former.send_signal(signal.SIGTERM)
                assert former.wait(PATIENCE) == 0
                assert is_served(str(path))
                ended.set()
                watcher.join()
                successor.send_signal(signal.SIGTERM)
                assert successor.wait(PATIENCE) == 0
        finally:
            ended.set()
    assert missing == []
    assert (first.socket, second.socket) == (str(path), str(path))
    assert not path.exists()


def test_a_deleted_kubelet_socket_is_logged_and_served_again(
    directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / "kubelet.sock"
    with running(directory, recorder), RawPlugin(directory / "p.sock", ["d0"]):
        path.unlink()
        wait_until(path.is_socket, "the socket is there again")
        assert register(directory, "p.sock") == OK
        assert warnings(caplog, f"{path}: the socket was deleted") == 1
    assert not path.exists()


def test_a_kubelet_socket_is_served_again_in_a_recreated_directory(directory: Path, recorder: Recorder) -> None:
    dp = directory / "dp"
    with running(dp, recorder):
        dp.rename(directory / "away")
        time.sleep(0.2)  # enough time for several checks of the sockets
        dp.mkdir(0o750)
        wait_until((dp / "kubelet.sock").is_socket, "the socket is there")
        assert (dp / ".devicecore.lock").exists()
    assert list(dp.iterdir()) == []


def test_a_deleted_pod_resources_socket_is_served_again(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pod_resources(directory) as ours, PodResourcesClient(ours.socket, timeout=PATIENCE) as client:
        ours.socket.unlink()
        wait_until(ours.socket.is_socket, "the socket is there again")
        assert list(client.list().pod_resources) == []
        assert warnings(caplog, f"{ours.socket}: the socket was deleted") == 1
    assert list(directory.iterdir()) == []


def test_a_deleted_plugin_directory_is_recreated_and_served_again(
    directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    dp = directory / "dp"
    with running(dp, recorder):
        shutil.rmtree(dp)
        wait_until((dp / "kubelet.sock").is_socket, "the socket is there again")
        assert stat.S_IMODE(dp.stat().st_mode) == 0o750
        assert warnings(caplog, f"{dp} was deleted, and has been recreated") == 1
        with serve_plugin(Gpus("d0"), dp) as served:
            served.wait_registered(PATIENCE)
            assert recorder.lists(recorder.plugin()) == [("d0",)]
    assert list(dp.iterdir()) == []


def test_a_plugin_directory_that_was_renamed_is_not_recreated(
    directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    dp = directory / "dp"
    with running(dp, recorder):
        dp.rename(directory / "away")
        wait_until(lambda: warnings(caplog, "cannot be served again yet"), "it is said")
        (directory / "away").rename(dp)
        assert (dp / "kubelet.sock").is_socket()
    assert list(dp.iterdir()) == []


def test_a_deleted_pod_resources_directory_is_recreated_and_served_again(directory: Path) -> None:
    with pod_resources(directory / "pr") as ours, PodResourcesClient(ours.socket, timeout=PATIENCE) as client:
        shutil.rmtree(directory / "pr")
        wait_until(ours.socket.is_socket, "the socket is there again")
        assert list(client.list().pod_resources) == []


def test_a_deleted_registry_is_recreated_and_watched(directory: Path, recorder: Recorder) -> None:
    registry = directory / "registry"
    with Running(GrpcUnixTransport(directory / "dp", plugins_registry=registry), recorder):
        registry.rmdir()
        wait_until(registry.is_dir, "the registry is there again")
        with serve_plugin(Gpus("d0"), registry=registry):
            assert recorder.lists(recorder.plugin()) == [("d0",)]


@pytest.mark.parametrize("replaced", [False, True], ids=["and back", "and replaced by a new one"])
def test_a_plugin_survives_a_renamed_directory(directory: Path, recorder: Recorder, *, replaced: bool) -> None:
    dp, away = directory / "dp", directory / "away"
    dp.mkdir(0o755)
    with serve_plugin(Gpus("d0"), dp, poll_interval=0.05) as served:
        dp.rename(away)
        time.sleep(0.5)  # enough time for several checks of the sockets
        if replaced:
            dp.mkdir(0o755)
        else:
            away.rename(dp)
        with running(dp, recorder):
            served.wait_registered(PATIENCE)
            assert recorder.lists(recorder.plugin()) == [("d0",)]


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_modes_of_sockets_do_not_depend_on_the_umask(directory: Path, recorder: Recorder, umask: int) -> None:
    before = os.umask(umask)
    try:
        with (
            running(directory / "dp", recorder),
            serve_plugin(Gpus("d0"), directory / "dp", endpoint="p.sock"),
            pod_resources(directory / "pr") as ours,
        ):
            sockets = (directory / "dp" / "kubelet.sock", directory / "dp" / "p.sock", ours.socket)
            assert [path.stat().st_mode & 0o777 for path in sockets] == [0o755] * 3
    finally:
        os.umask(before)


def test_a_plugin_leaves_a_path_that_another_process_took(directory: Path) -> None:
    with RawKubelet(directory), serve_plugin(Gpus("d0"), directory, endpoint="p.sock") as served:
        with taken_by_another_process(directory / "p.sock"):
            served.stop()
            assert is_served(served.socket)
        with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
            probe.connect(served.socket)  # the file that the other process left behind is not ours to delete
