"""Every check of device plugins fails on a plugin with the check's fault.

Other checks pass on this plugin, except those in the fault's `breaks_too`.

Faults that need restarts are tested in a separate file, so that two workers can share the work.
"""

import ctypes
import os
import shlex
import socket
import struct
import sys
from pathlib import Path

import pytest
from attrs import evolve
from devicecore_tools.conformance import Verdict
from devicecore_tools.conformance.device_plugin import CHECKS, Settings, run
from devicecore_tools.conformance.device_plugin.kubelet import BareKubelet, PluginConnection
from devicecore_tools.conformance.faults import PLUGIN, PLUGIN_FAULTS
from tests.conformance.harness import mostly_slow
from tests.kit import faults


@pytest.mark.parametrize(("fault", "names"), mostly_slow(faults.FAULTS), ids=[fault for fault, _ in faults.FAULTS])
def test_a_fault_is_found(fault: str, names: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # so that a check of many calls makes them all on a busy machine, too
    monkeypatch.setattr("devicecore_tools.conformance.device_plugin.checks.allocate._CALLING", 60.0)
    faults.assert_found(fault, names, directory)


def test_growth_is_found_even_if_there_is_time_for_only_a_few_calls(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_CALLS", 1000), ("_CALLS_FIRST", 1000), ("_CALLING", 4.0)):
        monkeypatch.setattr(f"devicecore_tools.conformance.device_plugin.checks.allocate.{name}", value)
    report = faults.run_checks_on("leaves-zombies", faults.EXPENSIVE, faults.QUICK, directory)
    assert report.result("grows-with-no-call").failed


def test_every_check_has_a_fault_that_it_finds() -> None:
    every = [*faults.FAULTS, *faults.HEALTH_FAULTS, *faults.RESTART_FAULTS]
    assert {name for fault, _ in every for name in PLUGIN_FAULTS[fault].split()} == set(faults.NAMES)


def test_every_check_says_what_it_does_and_why() -> None:
    for check in CHECKS:
        assert check.done.endswith("."), check.name
        assert check.expected, check.name
        assert "api.proto" in check.clause or "kubernetes.io" in check.clause or "kubelet" in check.clause, check.name


def test_an_empty_answer_for_an_unknown_device_is_not_called_a_device(directory: Path) -> None:
    report = faults.run_checks_on("empty-answer", ["refuses-an-unknown-device"], faults.QUICK, directory)
    assert "succeeded with an empty answer, so the container starts without the device" in report.results[-1].actual


def test_a_share_of_a_listed_device_is_not_an_unknown_device(directory: Path) -> None:
    report = faults.run_checks_on("shares", ["refuses-an-unknown-device"], faults.QUICK, directory)
    assert report.passed
    assert "'c1000000': except for the ids, the answer is the same as for a listed device" in report.results[-1].actual


def test_where_nothing_can_be_compared_no_answer_is_called_the_same(directory: Path) -> None:
    name = "allocates-again-in-the-same-way"
    report = faults.run_checks_on("only-variables", [name], faults.QUICK, directory)
    assert not report.result(name).applies
    assert report.result(name).actual == "the plugin provides no device nodes and no CDI devices"


@pytest.mark.parametrize(("fault", "subject"), [("", ", 3 devices"), ("silent", "")])
def test_the_devices_are_counted_if_there_was_a_list(fault: str, subject: str, directory: Path) -> None:
    names = ["keeps-its-stream-open"] if not fault else []
    report = faults.run_checks_on(fault, names, faults.QUICK, directory)
    assert report.subject == f"example.com/chip{subject}"


def test_cdi_devices_that_vanish_are_found(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devicecore_tools.conformance.device_plugin.devices.CDI_DIRECTORIES", (directory / ".cdi",))
    names = ["keeps-what-it-has-mounted", "gives-nothing-that-has-vanished"]
    checks = [*names, "allocates-after-a-kubelet-restart"]
    report = faults.run_checks_on("removes-its-cdi-file", checks, faults.QUICK, directory)
    assert {result.name for result in report.failures} == set(names)
    assert all("the CDI device ex.org/chip=c" in result.actual for result in report.failures)


def test_a_cdi_device_that_is_rewritten_for_each_container_is_found(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devicecore_tools.conformance.device_plugin.devices.CDI_DIRECTORIES", (directory / ".cdi",))
    name = "keeps-the-files-of-other-containers"
    report = faults.run_checks_on("rewrites-its-cdi-file", [name], faults.QUICK, directory)
    assert "changed the CDI device ex.org/chip=c0, which" in report.result(name).actual


def test_without_a_registration_the_other_checks_are_not_made(directory: Path) -> None:
    report = faults.run_checks_on("never-registers", faults.NAMES, faults.SHORT["never-registers"], directory)
    first, *others = report.results
    assert first.actual.startswith(
        "no plugin called Register for any resource, for 1 second; is the plugin configured to use "
    )
    assert first.actual.endswith("If the program is a DRA driver, run: devicecore conformance driver")
    assert {result.actual for result in others} == {report.not_made}
    assert report.not_made == "not run, because serves-before-it-registers failed"
    assert not report.cannot_run


def test_a_busy_machine_refuses_no_connection(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 1000.0, 1000.0))
    # as if the plugin had waited for a CPU all the time
    monkeypatch.setattr("devicecore_tools.conformance.runner._HELD_UP", -1.0)
    settings = evolve(faults.SHORT["registers-first"], timeout=1, excuses_load=True)
    (result,) = faults.run_checks_on("registers-first", [faults.NAMES[0]], settings, directory).results
    assert result.verdict is Verdict.FAILED


def test_a_plugin_that_does_not_register_within_the_budget_is_not_waited_for_longer() -> None:
    report = run(["sleep", "600"], settings=evolve(faults.QUICK, budget=0.5), checks=CHECKS)
    first, *others = report.results
    assert first.actual.endswith("--budget ended the wait before --starting did")
    assert not report.made_any
    assert not report.passed
    assert {result.verdict for result in others} == {Verdict.UNDECIDED, Verdict.SKIPPED}


def test_a_process_that_ends_before_any_call_could_not_be_run() -> None:
    report = run(["sh", "-c", "exit 3"], settings=faults.QUICK, checks=CHECKS[:2])
    assert (report.cannot_run, report.passed) == (True, False)


def test_a_check_alone_waits_for_the_registration_itself(directory: Path) -> None:
    command = [sys.executable, str(PLUGIN), str(directory)]
    report = run(command, settings=faults.QUICK, directory=directory, checks=[faults.BY_NAME["lists-unique-ids"]])
    assert [result.verdict for result in report.results] == [Verdict.PASSED]


def test_texts_for_the_plugin_watcher_do_not_mention_register(directory: Path) -> None:
    settings = Settings(first=0.2)
    report = run(["sleep", "60"], settings=settings, directory=directory, registry=True, checks=CHECKS[:1])
    begin = f"no socket in {directory} belongs to a device plugin, for 0 seconds; "
    assert report.results[0].actual.startswith(begin)
    assert not any("Register" in faults.BY_NAME[name].expected for name in faults.CALM if "options" not in name)


def test_a_new_kubelet_sock_is_a_created_file(directory: Path) -> None:
    """kubelet.sock is created in place, as by a real kubelet, so inotify(7) reports a created file."""
    created, moved_to = 0x100, 0x80
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init()
    assert libc.inotify_add_watch(watcher, bytes(directory), created | moved_to) >= 0
    kubelet = BareKubelet(directory, 1.0)
    try:
        kubelet.serve()
        events = os.read(watcher, 4096)
    finally:
        kubelet.leave()
        os.close(watcher)
    masks = {}
    while events:
        _, mask, _, length = struct.unpack_from("iIII", events)
        masks[events[16 : 16 + length].rstrip(b"\0").decode()] = mask
        events = events[16 + length :]
    assert masks["kubelet.sock"] == created


@pytest.mark.parametrize("trap", [":", "trap 'kill $!; sleep 0.4 & exit' TERM"])
def test_a_shell_is_named_if_it_does_not_pass_on_the_signal(trap: str) -> None:
    command = ["sh", "-c", f"{trap}; {shlex.join([sys.executable, str(PLUGIN)])} {{dir}} & wait"]
    checks = [faults.BY_NAME[name] for name in (faults.NAMES[0], "ends-on-sigterm")]
    actual = run(command, settings=faults.QUICK, checks=checks).result("ends-on-sigterm").actual
    assert ("a process that it started is still running. A shell or" in actual) is (trap == ":")


def test_the_reason_why_a_socket_cannot_be_reached_is_named(directory: Path) -> None:
    def why(name: str) -> str:
        connection = PluginConnection(str(directory / name))
        try:
            return connection.why_not()
        finally:
            connection.close()

    assert why("none") == f"there is no {directory}/none"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "dead"))
        assert why("dead") == f"no process listens on {directory}/dead"
        dead.listen()
        assert "does not speak gRPC or does not answer" in why("dead")
    (directory / "loop").symlink_to("loop")
    assert "loop: Too many levels of symbolic links" in why("loop")
