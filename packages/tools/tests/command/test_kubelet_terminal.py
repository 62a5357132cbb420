"""`devicecore kubelet` on a terminal, and with readers and files that hang: real processes, signals and terminals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import pytest
from devicecore_tools.command.kubelet.command import END_WITHIN
from tests.command.terminal import PATIENCE, Terminal
from tests.forks import Fork

from devicecore.adapters.grpc_unix import serve_plugin
from devicecore.domain.model import Device, Health
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from tests.adapters.peers import wait_until


def arguments(root: Path) -> list[str]:
    return ["kubelet", "--root", str(root), "--manifests", str(root / "pods")]


@contextmanager
def started(starting: "subprocess.Popen[str]") -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    """Yield a process that has started, and its log since then."""
    with starting as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "started" in line)
        yield process, process.stderr


def write_pod(root: Path, name: str) -> None:
    (root / "pods" / f"{name}.yaml").write_text(
        f"{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: main}}]}}}}"
    )


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(arguments: Sequence[str], columns: int = 80, lines: int = 24, **environment: str) -> Terminal:
        opened.append(Terminal(arguments, columns, lines, **environment))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


Open = Callable[..., Terminal]


def test_the_live_view_is_drawn_again_when_the_terminal_changes_its_size(root: Path, terminal: Open) -> None:
    plugin = SimulatedPlugin("acme.io/gpu", simulated_devices("gpu", 64))
    with serve_plugin(plugin, root / "device-plugins", poll_interval=0.1):
        shown = terminal(arguments(root))
        shown.read_until(r"(·{8} ){7}·{8}")
        shown.resize(30, 24)
        shown.read_until(r"(·{8} ){2}·{8}\x1b\[K\s")
    shown.process.send_signal(signal.SIGTERM)
    shown.read_until(r"\x1b\[\?1049l")  # back to the earlier screen
    assert shown.process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(root: Path, terminal: Open) -> None:
    shown = terminal(arguments(root))
    shown.read_until("no plugin has registered yet")
    shown.type(b"\x1a")
    shown.read_until(r"\x1b\[\?1049l")
    os.waitid(os.P_PID, shown.process.pid, os.WSTOPPED)
    shown.process.send_signal(signal.SIGCONT)
    shown.read_until(r"(?s)\x1b\[\?1049h.*no plugin has registered yet")
    shown.type(b"\x03")
    assert shown.process.wait(PATIENCE) == 0


def test_a_dumb_terminal_gets_lines(root: Path, terminal: Open) -> None:
    shown = terminal(arguments(root), TERM="dumb")
    write_pod(root, "train")
    assert "\x1b" not in shown.read_until("pod default/train: Running")


def test_a_process_that_was_stopped_and_continued_goes_on(root: Path) -> None:
    """If its timeout expires during a stop, CPython's `sigtimedwait` returns a signal number that was not sent."""
    with started(Fork(arguments(root), stderr=subprocess.PIPE)) as (process, log):
        for _ in range(2):
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            time.sleep(1.5)  # longer than any wait of the process
            process.send_signal(signal.SIGCONT)
        write_pod(root, "train")
        assert any("pod default/train: Running" in line for line in log)
        process.send_signal(signal.SIGTERM)
        assert "ended by SIGTERM" in log.read()
    assert process.returncode == 0


# --- the end ----------------------------------------------------------------------------------------------------------


def ends_in_time(process: "subprocess.Popen[str]") -> int:
    """Send SIGTERM and return the exit status. A busy machine gets 30 seconds more than the documented time."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status = process.wait(PATIENCE)
    assert time.monotonic() - began < END_WITHIN + 30
    return status


@pytest.mark.parametrize("stalled", ["stdout", "stderr"])
def test_sigterm_ends_it_when_a_reader_stalls(root: Path, stalled: str) -> None:
    """Nobody reads the pipe, so it is full: a megabyte of JSON per state, or a message for each of 1,000 files."""
    more = ["--json"] if stalled == "stdout" else []
    plugin = SimulatedPlugin("acme.io/gpu", simulated_devices("gpu", 10_000 if stalled == "stdout" else 1))
    for number in range(1000 if stalled == "stderr" else 0):
        (root / "pods" / f"{number:0100}.yaml").write_text("x")
    with (
        serve_plugin(plugin, root / "device-plugins", poll_interval=0.1),
        Fork(
            [*arguments(root), *more],
            stdout=subprocess.PIPE if stalled == "stdout" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if stalled == "stderr" else subprocess.DEVNULL,
        ) as process,
    ):
        while not (root / "state.json").exists() or "gpu-0" not in (root / "state.json").read_text():
            time.sleep(0.05)
        write_pod(root, "late")
        while "late" not in (root / "state.json").read_text():  # the process keeps running although nobody reads
            time.sleep(0.05)
        assert ends_in_time(process) == 0


def test_the_state_file_has_the_newest_of_several_lists_that_arrive_together(root: Path) -> None:
    plugin = SimulatedPlugin("acme.io/gpu", simulated_devices("gpu", 8))
    names = [device.id for device in plugin.devices()]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with serve_plugin(plugin, root / "device-plugins"), Fork(arguments(root), **streams) as process, ending(process):
        for turn in range(3):
            for change in range(3):
                healthy = (turn + 3 + 2 * change) % 7
                plugin.set_devices(
                    Device(name, Health.HEALTHY if number < healthy else Health.UNHEALTHY)
                    for number, name in enumerate(names)
                )
            wait_until(partial(is_allocatable, root, healthy), f"state.json has {healthy} allocatable devices")


@contextmanager
def ending(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Stop a process after the block, even if the block fails."""
    try:
        yield
    finally:
        process.terminate()


def is_allocatable(root: Path, count: int) -> bool:
    try:
        state = json.loads((root / "state.json").read_text())
    except FileNotFoundError:
        return False
    return bool(state["allocatable"].get("acme.io/gpu") == count)


@pytest.mark.parametrize("name", ["pods_state", "state.json", ".state.json.new", "node.json"])
def test_sigterm_ends_it_when_a_file_is_a_pipe(root: Path, name: str) -> None:
    os.mkfifo(root / name)
    with Fork(arguments(root), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), True)
        while Path(f"/proc/{process.pid}/status").read_text().count("SigBlk:\t0000000000000000"):
            time.sleep(0.05)  # the process has not blocked signals yet
        ends_in_time(process)
        assert "Traceback" not in process.stderr.read()


# Tests may run under nohup, and a process inherits ignored signals.
WITH_SIGHUP = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "devicecore_tools", *sys.argv[1:]])
"""


def test_a_terminal_that_is_closed_ends_it_and_leaves_no_socket(root: Path) -> None:
    command = [sys.executable, "-c", WITH_SIGHUP, *arguments(root)]
    with started(subprocess.Popen(command, stderr=subprocess.PIPE, text=True)) as (process, _):
        process.send_signal(signal.SIGHUP)
        try:
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
    assert [path for path in root.rglob("*") if path.is_socket()] == []


@pytest.mark.slow
def test_a_terminal_that_goes_away_while_sighup_is_ignored_does_not_end_it(root: Path, terminal: Open) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        shown = terminal(arguments(root))
    finally:
        signal.signal(signal.SIGHUP, before)
    shown.read_until("no plugin has registered yet")
    shown.hang_up()
    write_pod(root, "train")
    wait_until(lambda: '"Running"' in (root / "state.json").read_text(), "the pod runs")
    shown.process.send_signal(signal.SIGTERM)
    shown.process.wait(PATIENCE)
    assert [path for path in root.rglob("*") if path.is_socket()] == []


def test_sigterm_ends_it_after_signals_that_mean_nothing(root: Path) -> None:
    with started(Fork(arguments(root), stderr=subprocess.PIPE)) as (process, log):
        for number in (signal.SIGURG, signal.SIGIO, signal.SIGWINCH):
            process.send_signal(number)
        write_pod(root, "train")
        try:
            assert any("pod default/train: Running" in line for line in log)
            assert ends_in_time(process) == 0
        finally:
            process.kill()  # otherwise, a failure would wait forever
