"""Drivers that try to harm the run or the machine: they leave nothing behind, and other programs lose nothing."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attrs import evolve
from devicecore_tools.conformance import Verdict
from devicecore_tools.conformance.dra import DriverTestSettings, DriverUnderTest, Environment, registration, run
from devicecore_tools.conformance.dra import environment as environment_module
from devicecore_tools.conformance.dra.kubelet import no_sockets_in
from devicecore_tools.conformance.faults import DRIVER
from devicecore_tools.testing.temporary import short_directory
from tests.conformance.harness import BY_NAME, QUICK, TRIES_ALL_FAULTS
from tests.forks import is_running

from tests.adapters.peers import wait_until

LIMIT = 120.0  # seconds for a run on a loaded machine


def command(driver: str) -> list[str]:
    """Return the command that starts a hostile driver."""
    return [sys.executable, str(DRIVER), f"hostile:{driver}"]


@pytest.mark.parametrize(
    "number",
    [None, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), *([signal.SIGINT] if TRIES_ALL_FAULTS else [])],
)
def test_daemons_without_the_environment_end_with_the_run(tmp_path: Path, number: signal.Signals | None) -> None:
    pids = tmp_path / "pids"
    only = "answers-get-info" if number is None else "stays-while-the-api-server-is-away"
    options = ["conformance", "driver", "--full", "--only", only, "--env", f"PIDS={pids}"]
    words = [sys.executable, "-m", "devicecore_tools", *options, "--", *command("StartsDaemons")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}) as ran:
        if number is not None:
            deadline = time.monotonic() + LIMIT
            while not pids.exists() and ran.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            ran.send_signal(number)
        output, _ = ran.communicate(timeout=LIMIT)
    assert ran.returncode == (0 if number is None else 128 + number), output
    found = [int(pid) for pid in pids.read_text().split()]
    assert found
    assert not [pid for pid in found if is_running(pid)]
    assert [path.name for path in tmp_path.iterdir()] == ["pids"]


def test_the_socket_of_another_program_is_not_deleted(tmp_path: Path) -> None:
    victim = tmp_path / "victim.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(victim))
        other.listen()
        settings = evolve(QUICK, returning=1.0, environment={"VICTIM": str(victim)})
        checks = [BY_NAME["serves-what-it-announces"], BY_NAME["serves-new-connections"]]
        report = run(command("NamesAnotherSocket"), settings=settings, checks=checks)
        assert victim.exists(), report


def test_the_option_for_a_driver_that_is_late_after_a_restart_is_mentioned(tmp_path: Path) -> None:
    """When the command is started again, it only sleeps."""
    script = f"test -e {tmp_path}/started && exec sleep 600; touch {tmp_path}/started; exec {sys.executable} {DRIVER}"
    checks = [BY_NAME["replaces-stale-sockets"]]
    report = run(["sh", "-c", script], settings=evolve(QUICK, returning=1.0), checks=checks)
    assert "(--returning gives more)" in report.results[0].actual, report


def test_a_program_that_creates_no_socket_may_be_a_device_plugin() -> None:
    check = BY_NAME["makes-a-registration-socket"]
    report = run(["sleep", "600"], settings=evolve(QUICK, starting=1.0), checks=[check])
    assert "If the program is a device plugin, run: devicecore conformance plugin" in report.results[0].actual


def test_each_check_of_an_event_that_is_impossible_says_so() -> None:
    names = ["restores-cdi-devices-after-a-reboot", "unprepares-after-a-reboot"]
    report = run(command("DeletesItsDirectory"), settings=QUICK, checks=[BY_NAME[name] for name in names])
    assert Verdict.PASSED not in {result.verdict for result in report.results}
    assert "No such file or directory" in report.result("unprepares-after-a-reboot").actual


def test_slices_of_wrong_types_fail_the_check_of_slices_and_end_no_run() -> None:
    checks = [BY_NAME["publishes-slices-in-time"], BY_NAME["publishes-valid-slices"]]
    report = run(command("PublishesNonsense"), settings=evolve(QUICK, starting=10.0), checks=checks)
    assert "expected array" in report.result("publishes-valid-slices").actual
    assert report.result("publishes-valid-slices").failed


def test_a_driver_for_an_alpha_api_learns_which_version_is_served() -> None:
    settings = evolve(QUICK, starting=10.0)
    report = run(command("AsksForV1alpha3"), settings=settings, checks=[BY_NAME["publishes-slices-in-time"]])
    assert "asked for resource.k8s.io/v1alpha3; the API server serves v1, v1beta2, v1beta1" in report.results[0].actual


def test_a_good_driver_for_an_older_api_passes_and_the_report_names_the_version() -> None:
    names = ["publishes-valid-slices", "prepares-a-claim", "completes-its-pools"]
    report = run(command("UsesV1beta1"), settings=QUICK, checks=[BY_NAME[name] for name in names])
    assert {result.verdict for result in report.results} == {Verdict.PASSED}, report
    assert report.facts["resource_versions"] == ["v1beta1"]
    assert report.notes[0].startswith(
        "the driver uses resource.k8s.io/v1beta1, which API servers from Kubernetes 1.34 on "
    )


def test_a_reason_to_skip_is_printed_once() -> None:
    words = [sys.executable, "-m", "devicecore_tools", "conformance", "driver", "--starting", "10"]
    only = ["--only", "says-*", "--only", "has-a-*", "--only", "prepares-a-claim*"]
    ran = subprocess.run(
        [*words, *only, "--", *command("AnswersNothing")], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert ran.stdout.count("GetInfo was not answered") == 1, ran.stdout
    assert ran.stdout.count("the driver is not registered") == 1, ran.stdout
    assert "more checks not run for the reasons above: " in ran.stdout
    assert ran.stdout.rstrip().endswith("; no check was run, so this run has failed"), ran.stdout
    assert ran.returncode == 1


def test_a_device_class_that_is_not_there_skips_checks_and_ends_no_run() -> None:
    checks = [BY_NAME["prepares-a-claim"], BY_NAME["refuses-a-device-in-use"]]
    report = run([sys.executable, str(DRIVER)], settings=evolve(QUICK, device_class="nope"), checks=checks)
    assert all("there is no DeviceClass nope" in result.actual for result in report.results)


def test_a_claim_of_wrong_types_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text("kind: ResourceClaim\nspec: {devices: {requests: [{name: r, exactly: 5}]}}\n")
    words = [sys.executable, "-m", "devicecore_tools", "conformance", "driver", "--claims", str(file), "--", "true"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ran.returncode == 2
    assert "number into field spec.devices.requests[0].exactly: expected object" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_driver_that_hangs_does_not_make_the_run_longer() -> None:
    settings = evolve(QUICK, budget=3.0, call=600.0, call_again=600.0, grace=600.0)
    report = run(command("Hangs"), settings=settings, checks=[BY_NAME["ends-on-sigterm"]])
    assert report.seconds < LIMIT
    assert report.results[0].verdict is Verdict.UNDECIDED
    assert "the run's 3 seconds are over" in report.results[0].actual


def test_anything_in_place_of_the_registration_socket_is_named() -> None:
    settings = evolve(QUICK, starting=10.0)
    report = run(command("MakesAPipe"), settings=settings, checks=[BY_NAME["makes-a-registration-socket"]])
    assert "chip.example.org-reg.sock there is a named pipe" in report.results[0].actual


def test_each_file_that_is_no_registration_socket_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "directory").mkdir()
    with socket.socket(socket.AF_UNIX) as hidden, socket.socket(socket.AF_UNIX) as left_behind:
        hidden.bind(str(tmp_path / ".reg.sock"))
        left_behind.bind(str(tmp_path / "reg.sock"))
        found = no_sockets_in(tmp_path)
    assert found == (
        ".reg.sock there has a name that starts with a dot, which a kubelet ignores, file there is a regular file, "
        "link there is a symbolic link to a path that does not exist"
    )
    assert no_sockets_in(tmp_path / "removed") == "is no longer a directory"


def test_a_link_to_a_registration_socket_is_followed_as_a_kubelet_does() -> None:
    checks = [BY_NAME[name] for name in ("makes-a-registration-socket", "prepares-a-claim", "replaces-stale-sockets")]
    report = run(command("RegistersThroughALink"), settings=QUICK, checks=checks)
    assert {result.verdict for result in report.results} == {Verdict.PASSED}, report


def test_each_run_has_uids_of_its_own_and_a_seed_repeats_them() -> None:
    def uid(settings: DriverTestSettings) -> str:
        with Environment(settings) as environment:
            return str(environment.api.get("Node", settings.node)["metadata"]["uid"])

    assert uid(DriverTestSettings()) != uid(DriverTestSettings())
    assert uid(DriverTestSettings(seed=1)) == uid(DriverTestSettings(seed=1))


def test_a_directory_of_the_user_that_the_driver_removes_ends_no_run(tmp_path: Path) -> None:
    with Environment(evolve(QUICK, cdi=tmp_path / "cdi")) as environment:
        environment.cdi.rmdir()
        environment.clear()


def test_a_driver_that_makes_the_cdi_directory_again_does_not_lose_its_files() -> None:
    with Environment(QUICK) as environment:
        (environment.cdi / "kept.json").touch()
        with environment.without_cdi():
            environment.cdi.unlink()
            (environment.cdi / "own").mkdir(parents=True)
        assert [path.name for path in environment.cdi.iterdir()] == ["kept.json"]


def test_what_the_user_says_about_the_node_is_added_to_it() -> None:
    labels = {"example.com/accelerator": "v4"}
    status = {"capacity": {"example.com/accelerator": "1"}}
    own = {"kind": "Node", "metadata": {"name": "conformance-node", "labels": labels}, "status": status}
    with Environment(DriverTestSettings(objects=[own])) as environment:
        node = environment.api.get("Node", "conformance-node")
    assert labels.items() < node["metadata"]["labels"].items()
    assert node["status"] == status


def test_the_namespaces_of_the_users_objects_are_created() -> None:
    own = [
        {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ml"}},
        {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "labeled"}},
        {"kind": "Namespace", "metadata": {"name": "labeled", "labels": {"a": "b"}}},
    ]
    with Environment(DriverTestSettings(objects=own)) as environment:
        spaces = {one["metadata"]["name"]: one["metadata"] for one in environment.api.objects("Namespace")}
    assert "ml" in spaces
    assert spaces["labeled"]["labels"]["a"] == "b"


def test_devices_that_are_published_after_an_empty_pool_are_waited_for() -> None:
    checks = [BY_NAME["completes-its-pools"], BY_NAME["prepares-a-claim"]]
    report = run(command("FindsItsDevicesLate"), settings=QUICK, checks=checks)
    assert {result.verdict for result in report.results} == {Verdict.PASSED}, report
    assert report.facts["devices"] == 7


@pytest.mark.skipif(not TRIES_ALL_FAULTS, reason="this test waits for devices for four seconds")
def test_a_report_on_a_driver_without_devices_says_that_little_was_checked() -> None:
    checks = [BY_NAME["completes-its-pools"]]
    report = run(command("PublishesAnEmptyPool"), settings=evolve(QUICK, starting=4.0), checks=checks)
    late = report.subject == "no driver"  # on a busy machine, the driver may not register in time
    assert late or "the driver has not published any devices, so most checks could not be run" in report.notes


def test_an_object_of_a_check_that_the_api_server_refuses_ends_no_run() -> None:
    checks = [BY_NAME["replaces-stale-sockets"], BY_NAME["leaves-slices-of-others-alone"]]
    # the driver's name is not allowed in a slice
    words = [sys.executable, str(DRIVER), "registration:NameWithUnderscore"]
    report = run(words, settings=evolve(QUICK, starting=5.0), checks=checks)
    assert report.result("leaves-slices-of-others-alone").verdict is Verdict.UNDECIDED


def test_a_device_that_a_driver_does_not_give_back_is_not_used_by_later_checks() -> None:
    checks = [BY_NAME["unprepares-a-claim"], BY_NAME["prepares-claims-at-the-same-time"]]
    report = run([sys.executable, str(DRIVER), "unprepare:RefusesPreparedClaims"], settings=QUICK, checks=checks)
    assert not report.result("prepares-claims-at-the-same-time").failed, report


@pytest.mark.skipif(not TRIES_ALL_FAULTS, reason="this test waits for a call of ten seconds")
def test_a_driver_that_hangs_only_with_claims_fails_although_little_time_is_left() -> None:
    settings = evolve(QUICK, budget=25.0, call=600.0, call_again=1.0, environment={"HANGS_WITH": "claims"})
    checks = [BY_NAME["prepares-a-claim"], BY_NAME["prepare-is-idempotent"]]
    report = run(command("Hangs"), settings=settings, checks=checks)
    assert report.result("prepares-a-claim").failed, report
    assert "there was no answer within 1" in report.results[0].actual
    assert "there was no answer within 1 second, and an earlier call got none within 1" in report.results[1].actual


def test_a_device_of_a_claim_that_is_unprepared_is_given_to_later_checks() -> None:
    checks = [BY_NAME["unprepares-a-claim"], BY_NAME["unprepare-is-idempotent"]]
    report = run([sys.executable, str(DRIVER), "unprepare:RefusesTheSecond"], settings=QUICK, checks=checks)
    assert report.result("unprepare-is-idempotent").failed, report


def test_a_service_that_answers_nothing_fails_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_DIAL", 0.5)
    report = run(command("ServesNothing"), settings=QUICK, checks=[BY_NAME["serves-what-it-announces"]])
    (result,) = report.results
    assert result.verdict is Verdict.FAILED, result
    assert result.actual.startswith("the driver's service is unreachable: ")


def test_a_command_that_is_killed_leaves_no_driver() -> None:
    with short_directory() as directory:  # short enough for the paths of the sockets in the command's own directory
        pid = Path(directory) / "pid"
        script = f"setsid sleep 600 & echo $! > {pid}.new; mv {pid}.new {pid}; wait"
        words = ["conformance", "driver", "--", "sh", "-c", script]
        environment = {**os.environ, "TMPDIR": directory}
        with subprocess.Popen(
            [sys.executable, "-m", "devicecore_tools", *words], stdout=subprocess.DEVNULL, env=environment
        ) as ran:
            wait_until(pid.exists, "the driver has written its process id")
            ran.kill()
        driver = int(pid.read_text())
        wait_until(lambda: not is_running(driver), "the driver ends")


def test_a_registration_that_does_not_end_fails_a_check() -> None:
    settings = evolve(QUICK, starting=0.3)
    report = run(command("HangsInGetInfo"), settings=settings, checks=[BY_NAME["accepts-its-registration"]])
    (result,) = report.results
    assert result.verdict is not Verdict.PASSED
    assert not report.passed


def test_a_run_is_as_much_longer_as_a_late_driver_needs() -> None:
    settings = evolve(QUICK, budget=0.2)
    with Environment(settings) as environment:
        driver = DriverUnderTest(environment, ["sleep", "600"], settings)
        with driver.process.in_time():
            driver.process.allow_for(600.0)
            driver.process.wait(lambda: None, 0.5)
            assert driver.process.time_left > 500
            driver.process.start()  # each start may take as long as was allowed for the first one
            assert driver.process.time_left > 1100
        driver.process.stop()


def test_files_that_are_too_many_or_too_large_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_module, "MAX_ENTRIES", 30)
    monkeypatch.setattr(environment_module, "MAX_CONTENTS", 1_000)
    with Environment(QUICK) as environment:
        (environment.plugins / "d" / "d").mkdir(parents=True)
        state = environment.plugins / "d" / "d" / "state"
        state.write_text("state")
        (environment.plugins / "loop").symlink_to(".")
        (environment.plugins / "pipe").symlink_to("/dev/zero")
        assert environment.state_files() == {state: b"state"}
        (environment.plugins / "large").write_bytes(b"x" * 1_000)
        with pytest.raises(OSError, match="the files are larger than 1000 bytes in total"):
            environment.state_files()
        for number in range(30):
            (environment.plugins / f"n{number}").touch()
        with pytest.raises(OSError, match="more than 30 files and directories"):
            environment.files()


def test_a_pipe_among_cdi_files_is_a_failure_and_nothing_waits_for_it() -> None:
    checks = [BY_NAME[name] for name in ("writes-valid-cdi-files", "removes-cdi-devices", "prepare-is-idempotent")]
    report = run(command("PutsPipes"), settings=QUICK, checks=checks)
    actual = report.result("writes-valid-cdi-files").actual
    assert actual == "for a claim, a.json: it is a pipe, a socket or a device, expected a regular file"
    assert report.result("removes-cdi-devices").verdict is Verdict.PASSED


def test_cdi_files_that_were_never_found_do_not_count_as_removed() -> None:
    report = run(command("WritesCdiFilesElsewhere"), settings=QUICK, checks=[BY_NAME["removes-cdi-devices"]])
    assert "the driver has no file in " in report.result("removes-cdi-devices").actual
