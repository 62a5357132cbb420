"""Messages to a service manager over a real socket, and `/healthz`."""

import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from devicecore_tools.command.service import SILENCE, Service
from tests.forks import Fork

from devicecore.adapters.prometheus import PrometheusMetrics

PATIENCE = 60.0


class Clock:
    """Monotonic seconds that only a test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def service_manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address)
        channel.settimeout(PATIENCE)
        yield channel


def arrived(channel: socket.socket) -> list[str]:
    """Return the messages waiting to be read."""
    found = []
    channel.settimeout(0)
    try:
        while True:
            found.append(channel.recv(1000).decode())
    except BlockingIOError:
        return found


def environment(address: str, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": address, **more}


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_service_manager_is_notified_of_the_start_and_the_end(kind: str, directory: Path) -> None:
    name = f"{directory}/notify"
    with service_manager(name if kind == "path" else f"\0{name}") as channel:
        service = Service(environment(name if kind == "path" else f"@{name}"))
        service.ready()
        assert service.alive() == float("inf")  # no watchdog is configured
        service.stopping()
        assert arrived(channel) == ["READY=1", "STOPPING=1"]


def test_the_watchdog_is_notified_often_enough_and_only_while_the_loop_runs(directory: Path) -> None:
    clock = Clock()
    with service_manager(f"{directory}/notify") as channel:
        service = Service(environment(f"{directory}/notify", WATCHDOG_USEC="30000000"), clock)
        assert service.alive() == 110.0
        clock.now = 109.0
        assert service.alive() == 110.0
        clock.now = 111.0
        assert service.alive() == 121.0
        clock.now = 1000.0  # the loop hangs
        assert arrived(channel) == ["WATCHDOG=1"] * 2


@pytest.mark.parametrize("usec", ["", "0", "-1", "1e6", "soon", "9" * 30])
def test_an_odd_period_of_the_watchdog_does_no_harm(usec: str, directory: Path) -> None:
    service = Service(environment(f"{directory}/notify", WATCHDOG_USEC=usec), Clock())
    assert service.alive() > 100.0


def test_a_watchdog_of_another_process_is_not_ours(directory: Path) -> None:
    more = {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid() + 1)}
    assert Service(environment(f"{directory}/notify", **more)).alive() == float("inf")


@pytest.mark.parametrize("address", ["/nowhere/notify", "notify", "vsock:2:1", "/" + "x" * 200, "@", "/a\0b"])
def test_a_socket_that_cannot_be_used_is_logged_once(address: str, caplog: pytest.LogCaptureFixture) -> None:
    clock, seconds = Clock(), count(100)
    service = Service(environment(address, WATCHDOG_USEC="3000000"), clock)
    service.ready()
    for _ in range(5):
        clock.now = float(next(seconds))
        service.alive()
    assert [one.getMessage().startswith("NOTIFY_SOCKET ") for one in caplog.records] == [True]


def test_a_stuck_main_loop_is_a_problem() -> None:
    clock = Clock()
    service = Service({}, clock)
    clock.now += SILENCE
    assert not service.problem()
    clock.now += 1
    assert service.problem() == "the main loop has been stuck for 121 seconds"
    service.alive()
    assert not service.problem()


def asked(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310 - http, to ourselves
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_healthz_answers_with_the_problem() -> None:
    problems = ["", "it hangs"]
    with PrometheusMetrics().serve(0, problem=lambda: problems.pop(0)) as server:
        healthz = server.url.replace("/metrics", "/healthz")
        assert asked(healthz) == (200, "ok")
        assert asked(healthz) == (503, "it hangs")
        assert "devicecore_devices" in asked(server.url)[1]


def test_a_kubelet_tells_its_service_manager_and_answers_healthz(root: Path) -> None:
    arguments = ("kubelet", "--root", str(root), "--metrics-port", "0")
    with service_manager(f"\0{root}/notify") as channel:
        env = {**os.environ, **environment(f"@{root}/notify", WATCHDOG_USEC="3000000")}
        with Fork(arguments, env=env, stderr=subprocess.PIPE) as process:
            try:
                assert channel.recv(100) == b"READY=1"
                assert [channel.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
                assert process.stderr
                (url,) = next(found for line in process.stderr if (found := re.findall(r"metrics at (\S+)", line)))
                assert asked(url.replace("/metrics", "/healthz")) == (200, "ok")
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=PATIENCE) == 0
                assert arrived(channel)[-1] == "STOPPING=1"
            finally:
                process.kill()
