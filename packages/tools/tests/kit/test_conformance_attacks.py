"""Plugins that attack `devicecore conformance`: the run ends in time, in bounded memory, and leaves nothing."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
from attrs import evolve
from devicecore_tools.conformance import Report, Severity, Verdict
from devicecore_tools.conformance.connection import CallFailedError, SocketConnection
from devicecore_tools.conformance.device_plugin import CHECKS, PluginUnderTest, run
from devicecore_tools.conformance.device_plugin.kubelet import BareKubelet, PluginConnection
from devicecore_tools.conformance.device_plugin.watcher import WatchingKubelet
from devicecore_tools.conformance.faults import PLUGIN
from devicecore_tools.conformance.model import Check, Failure, OutOfTime, Skip, TookTooLong
from devicecore_tools.conformance.processes import ProcessorUse, Waits
from devicecore_tools.conformance.reports import summary
from devicecore_tools.conformance.runner import run_checks
from devicecore_tools.testing.process import PluginProcess
from tests.forks import is_running
from tests.kit.faults import BY_NAME, NAMES, QUICK

from devicecore.adapters.grpc_unix import rpc
from devicecore.system.grpc_settings import target
from devicecore.wire import deviceplugin
from tests.adapters.peers import Answer, answering, flood_of_pings, listening, wait_until

LIMIT = 120.0  # seconds for a run on a loaded machine


def listing(at: Path, lists: Answer = lambda _, __: iter(()), answer: bytes = b"") -> AbstractContextManager[list[str]]:
    """Serve a plugin that answers ListAndWatch with `lists`, and every other call with `answer`."""
    return answering(at, {rpc.LIST_AND_WATCH.path: lists, "": answer}, threads=64)


# --- processes --------------------------------------------------------------------------------------------------------


def test_daemons_of_a_plugin_end_with_the_run(tmp_path: Path) -> None:
    """One daemon has the plugin's environment, the other has dropped it, and both keep the plugin's output open."""
    pids = tmp_path / "pids"
    script = f"setsid sleep 600 & echo $! >> {pids}; env -i setsid sleep 600 & echo $! >> {pids}; exit 3"
    words = f"-m devicecore_tools conformance plugin --no-restart --only {NAMES[0]} -- sh -c".split()
    command, environment = [sys.executable, *words, script], {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment)
    assert ran.returncode == 2, ran.stdout
    found = [int(pid) for pid in pids.read_text().split()]
    assert len(found) >= 2
    assert not [pid for pid in found if is_running(pid)]
    assert [path.name for path in tmp_path.iterdir()] == ["pids"]


def test_a_signal_while_the_run_ends_leaves_no_plugin(tmp_path: Path) -> None:
    """The plugin ignores SIGTERM, so the end of the run waits for a second, and the signal arrives during that time."""
    pid = tmp_path / "pid"
    script = f"trap '' TERM; echo $$ > {pid}; while :; do sleep 1; done"
    words = ["conformance", "plugin", "--starting", "0.5", "--only", NAMES[0], "--", "sh", "-c", script]
    with subprocess.Popen(
        [sys.executable, "-m", "devicecore_tools", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as ran:
        assert ran.stdout is not None
        assert ran.stdout.readline().startswith("FAIL")
        ran.send_signal(signal.SIGTERM)
        output, _ = ran.communicate(timeout=LIMIT)
    assert ran.returncode in {128 + signal.SIGTERM, 1}, output  # the status is 1 if the signal arrived too late
    assert not is_running(int(pid.read_text()))
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]


def test_output_without_end_is_kept_up_to_a_bound(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "print('x' * 3_000_000); print('y' * 3_000_000, end=''); print('\\n' * 2000 + 'z')"]
    with PluginProcess(words, tmp_path) as process:
        process.wait_for_output("z", LIMIT)
        assert len(process.output) < 1_100_000
    with PluginProcess([sys.executable, "-c", "print('x' * 3_000_000)"], tmp_path) as process:
        process.wait(LIMIT)
        assert len(process.last_output) == 20_000
        assert len(process.output) < 1_100_000


# --- its directory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script", ["rm -r {dir}; sleep 60", "mv {dir} {dir}2; ln -s /proc/self {dir}; rm -r {dir}2; sleep 60"]
)
def test_a_plugin_that_removes_its_directory_gets_a_report(script: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tempfile.tempdir", str(tmp_path))
        settings = evolve(QUICK, first=1.0)
        report = run(["sh", "-c", script], settings=settings, checks=[CHECKS[0], BY_NAME["stays-up"]])
    assert report.results[0].actual.startswith("no plugin called Register"), report
    assert list(tmp_path.iterdir()) == []


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_plugin_that_does_not_return_is_restarted_once(directory: Path) -> None:
    starts: list[PluginProcess] = []

    def start() -> PluginProcess:
        starts.append(PluginProcess(["sleep", "600"], directory))
        starts[-1].start()
        return starts[-1]

    kubelet = BareKubelet(directory, LIMIT)
    plugin = PluginUnderTest(kubelet, start, evolve(QUICK, returning=0.1))
    try:
        for _ in range(3):
            with pytest.raises(Skip, match="did not register again"):
                plugin.registration.restarted()
    finally:
        plugin.process.stop()
        kubelet.leave()
    assert len(starts) == 1


def test_no_check_waits_when_the_time_of_the_run_is_over() -> None:
    command = [sys.executable, str(PLUGIN), "{dir}", "silent"]
    began = time.monotonic()
    report = run(command, settings=evolve(QUICK, budget=5.0, timeout=600.0), checks=CHECKS)
    assert time.monotonic() - began < LIMIT
    assert report.result("registers-a-supported-version").verdict is Verdict.PASSED
    late = report.result("lists-devices-in-time")
    assert late.verdict is Verdict.UNDECIDED
    assert late.actual.startswith("the run's 5 seconds are over")
    assert not report.failures
    assert not report.passed


def look_late(_: None) -> str:
    raise OutOfTime("the time is over")


@pytest.mark.parametrize(
    ("severity", "passed"), [(Severity.MUST, False), (Severity.SHOULD, True), (Severity.INFO, True)]
)
def test_a_run_without_time_for_a_must_check_has_not_passed(severity: Severity, *, passed: bool) -> None:
    good: Check[None] = Check("good", Severity.MUST, "", "", "", lambda _: "well")
    results, _ = run_checks([good, Check("late", severity, "", "", "", look_late)], None)
    report = Report(subject="x", results=results, seconds=1.0)
    assert report.passed is passed
    sentence = "1 'must' check was not decided, so this run did not pass: late"
    assert (sentence in summary(report)) is (not passed)


def fail_late(_: None) -> str:
    raise TookTooLong("it was not back")


def fail_with_a_foreign_text(_: None) -> str:
    raise Failure("the error is: after 30 seconds it still runs")


@pytest.mark.parametrize(("load", "verdict"), [(1.0, Verdict.FAILED), (1000.0, Verdict.UNDECIDED)])
def test_a_lack_of_time_on_a_busy_machine_decides_nothing(
    load: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    late: Check[None] = Check("late", Severity.MUST, "", "", "", fail_late)
    foreign: Check[None] = Check("foreign", Severity.MUST, "", "", "", fail_with_a_foreign_text)
    (result, other), _ = run_checks([late, foreign], None, excuses_load=True)
    assert result.verdict is verdict
    assert other.verdict is Verdict.FAILED
    (result,), _ = run_checks([late], None)
    assert result.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (Waits({"1": 1.05, "2": 0.15}, 100.5, 9), Verdict.FAILED),
        (Waits({"1": 1.05, "2": 0.4}, 100.5, 9), Verdict.UNDECIDED),
        (Waits({"1": 1.05, "2": 0.15}, 101.5, 9), Verdict.UNDECIDED),
        (Waits({"1": 1.05, "2": 0.15}, 101.5, 5), Verdict.FAILED),  # other processes used the disk
        (Waits(), Verdict.FAILED),  # the process has ended
    ],
)
def test_a_subject_that_had_a_processor_and_the_disk_at_once_is_late_on_a_busy_machine_too(
    after: Waits, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 1000.0, 1000.0))
    clock, waits = iter([0.0, 0.0, 2.0, 2.0]), iter([Waits({"1": 1.0}, 100.0, 5), after])
    monkeypatch.setattr("devicecore_tools.conformance.runner.time.monotonic", lambda: next(clock))
    late: Check[None] = Check("late", Severity.MUST, "", "", "", fail_late)
    (result,), _ = run_checks([late], None, excuses_load=True, waits=lambda: next(waits))
    assert result.verdict is verdict


def test_what_a_process_writes_to_a_disk_is_counted(tmp_path: Path) -> None:
    if subprocess.check_output(["/bin/sh", "-c", f"stat -f -c %T {tmp_path}"]) == b"tmpfs\n":
        pytest.skip(f"{tmp_path} is in memory")
    script = f"head -c 100000 /dev/zero > {tmp_path}/state; echo written; sleep 60"
    with PluginProcess(["sh", "-c", script], tmp_path) as process:
        process.wait_for_output("written")
        assert process.disk_bytes >= 100_000


@pytest.mark.parametrize(("share", "late"), [(0.5, False), (0.05, True)])
def test_a_process_that_uses_a_processor_is_late_only_if_it_rarely_got_one(share: float, *, late: bool) -> None:
    before = ProcessorUse(0.0, 1.0, Waits({"1": 0.0}))
    with pytest.raises(Failure) as failure:
        before.require_little_until(ProcessorUse(10.0, 1.0 + 10 * share, Waits({"1": 9.5})), "driver")
    assert failure.value.is_late is late


def test_a_missing_directory_skips_a_check() -> None:
    def look(_: None) -> str:
        raise FileNotFoundError(2, "No such file or directory", "/gone")

    results, _ = run_checks([Check("gone", Severity.MUST, "", "", "", look)], None)
    assert results[0].verdict is Verdict.UNDECIDED
    assert results[0].actual == "the check could not be run: [Errno 2] No such file or directory: '/gone'"


# --- connections and messages -----------------------------------------------------------------------------------------


def frame(kind: int, body: bytes = b"") -> bytes:
    """Return an HTTP/2 frame on stream 0, which stands for the whole connection."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, 0]) + bytes(4) + body


def test_a_call_to_a_socket_that_says_goaway_is_not_repeated_without_a_pause(directory: Path) -> None:
    """Left to itself, gRPC would repeat the call, and memory use would grow by hundreds of megabytes each second."""
    connections: list[socket.socket] = []

    def say_goaway(connection: socket.socket) -> None:
        connections.append(connection)
        connection.sendall(frame(4) + frame(7, bytes(8)))

    with listening(directory / "s", say_goaway):
        connection = SocketConnection(str(directory / "s"))
        before = resident_bytes()
        assert not connection.dial(1.5)
        assert resident_bytes() - before < 100_000_000
        connection.close()
    assert connections
    for one in connections:
        one.close()


def test_an_exiting_process_that_still_listens_is_not_running(directory: Path) -> None:
    path = directory / "s"
    connections = []

    def close(connection: socket.socket) -> None:
        connection.close()
        connections.append(connection)
        if len(connections) == 2:
            path.unlink()

    with listening(path, close):
        connection = SocketConnection(str(path))
        assert connection.has_no_listener()
        connection.close()
    with answering(path, {"": b""}):
        connection = SocketConnection(str(path))
        assert not connection.has_no_listener()
        connection.close()


def test_a_socket_that_sends_ping_without_end_holds_up_no_call(directory: Path) -> None:
    with flood_of_pings(directory / "s"):
        connection = SocketConnection(str(directory / "s"))
        assert not connection.dial(0.3)
        with pytest.raises(CallFailedError):
            connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), 0.3)
        connection.close()


def resident_bytes() -> int:
    """Return the memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_answer_that_a_kubelet_would_not_accept_is_a_failure(directory: Path) -> None:
    with listing(directory / "s", answer=b"x" * 5_000_000):
        connection = SocketConnection(str(directory / "s"))
        try:
            with pytest.raises(
                CallFailedError, match="the answer is 5000000 bytes long; a kubelet accepts at most 4194304"
            ):
                connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), LIMIT)
        finally:
            connection.close()


@pytest.mark.parametrize("path", ["/" + "e" * 1_000_000, "../x" * 100, "/a\0b"], ids=["long", "relative", "nul"])
def test_a_path_that_no_socket_can_have_is_not_dialed(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    connection = SocketConnection(path)
    try:
        assert not connection.dial(LIMIT)
        assert connection.why_not().isprintable()
        assert len(connection.why_not()) < 1_200
        with pytest.raises(CallFailedError):
            connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), LIMIT)
    finally:
        connection.close()
    assert capfd.readouterr().err == ""


def test_long_lists_are_kept_up_to_a_bound(directory: Path) -> None:
    def lists(_: bytes, __: grpc.ServicerContext) -> Iterator[bytes]:
        for _number in range(12):
            yield deviceplugin.ListAndWatchResponse(
                devices=[deviceplugin.Device(ID="x" * 3_000_000, health="Healthy")]
            ).SerializeToString()

    with listing(directory / "s", lists):
        connection = PluginConnection(str(directory / "s"))
        assert connection.dial(LIMIT)
        connection.follow()
        wait_until(lambda: connection.ended, "the connection ends")
        kept = sum(message.ByteSize() for message in connection.lists_after(0))
        connection.close()
    assert connection.list_count == 12
    assert 3_000_000 <= kept <= 16 * 1024 * 1024


def test_registrations_without_end_keep_few_connections_and_no_long_texts(directory: Path) -> None:
    kubelet = BareKubelet(directory, LIMIT)

    def lists(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b""
        while context.is_active():
            time.sleep(0.05)

    with listing(directory / "p", lists):
        kubelet.serve()
        try:
            with grpc.insecure_channel(target(str(kubelet.socket))) as channel:
                register = channel.unary_unary(
                    rpc.REGISTER.path, deviceplugin.RegisterRequest.SerializeToString, deviceplugin.Empty.FromString
                )
                request = deviceplugin.RegisterRequest(version="v1beta1", endpoint="p", resource_name="example.com/a")
                for _ in range(55):
                    register(request, timeout=LIMIT)
                request.version = "v" * 500_000
                with pytest.raises(grpc.RpcError):
                    register(request, timeout=LIMIT)
            connected = [one for one in kubelet.registrations if one.connection is not None]
            assert len(kubelet.registrations) == 56
            assert len(connected) <= 50
            assert len(kubelet.registrations[-1].request.version) == 2_000
            assert len(kubelet.registrations[-1].problem) <= 1_000
        finally:
            kubelet.leave()


def test_sockets_that_do_not_answer_hold_up_no_other_plugin(directory: Path) -> None:
    """There are more mute sockets than calling threads, and several sockets of each kind."""
    kubelet = WatchingKubelet(directory, LIMIT)
    mute = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for number, one in enumerate(mute):
        one.bind(str(directory / f"a{number}"))
        if number % 2:
            one.listen()
    kubelet.serve()
    try:
        with listing(directory / "z"):
            wait_until(lambda: kubelet.was_called, "the kubelet is called")
    finally:
        kubelet.leave()
        for one in mute:
            one.close()
