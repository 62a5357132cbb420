"""The checks that restart the kubelet or the plugin, on plugins with faults, and all checks on good plugins."""

from pathlib import Path

import pytest
from attrs import evolve
from devicecore_tools.conformance import Report, Verdict
from devicecore_tools.conformance.device_plugin import CHECKS
from tests.conformance.harness import mostly_slow
from tests.kit.faults import NAMES, QUICK, RESTART_FAULTS, SHORT, assert_found, run_checks_on


@pytest.mark.parametrize(("fault", "names"), mostly_slow(RESTART_FAULTS), ids=[fault for fault, _ in RESTART_FAULTS])
def test_a_fault_is_found(fault: str, names: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "ignores-refusals":  # this fault is recognized by something that does not happen
        monkeypatch.setattr("devicecore_tools.conformance.device_plugin.checks.restarts._AFTER_REFUSAL", 5.0)
    assert_found(fault, names, directory)


def test_a_plugin_without_fault_passes_everything(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # so that a check of many calls makes them all on a busy machine, too
    monkeypatch.setattr("devicecore_tools.conformance.device_plugin.checks.allocate._CALLING", 60.0)
    report = run_checks_on("", NAMES, QUICK, directory)
    not_undone = {
        *("reports-a-recovery-of-health", "allocates-a-device-that-has-recovered", "reports-a-later-change-of-health")
    }
    without = {  # nothing that this plugin gives exists
        *("mounts-existing-paths", "gives-existing-device-nodes", "keeps-the-mounts-of-other-containers"),
        "keeps-the-files-of-other-containers",
        "keeps-what-it-has-mounted",
    }
    others = {
        "answers-notify-registration-status",
        "gives-each-variable-once",
        "gives-nothing-that-has-vanished",
        "lists-each-device-for-one-resource",
        "prints-no-secrets",
        "reports-the-health-of-each-copy",
        "returns-with-all-its-resources",
        "starts-containers-at-the-same-time",
    }
    assert not_passed(report).keys() == others | without | not_undone
    assert (report.subject, len(report.results)) == ("example.com/chip, 3 devices", len(CHECKS))
    assert report.notes == ("the provoked change of health was not undone (no --undo-health)",)
    assert list(directory.iterdir()) == [directory / "sick"]


@pytest.mark.slow
def test_a_plugin_without_fault_that_is_found_by_the_watcher_passes_everything(directory: Path) -> None:
    report = run_checks_on("watched", NAMES, evolve(QUICK, undo_health="rm -f {dir}/sick"), directory)
    # this plugin does not call Register, gives nothing that exists and nothing secret, is fast, and has one resource
    without = {
        *("mounts-existing-paths", "gives-existing-device-nodes", "keeps-the-mounts-of-other-containers"),
        "keeps-the-files-of-other-containers",
        "keeps-what-it-has-mounted",
        "reports-the-health-of-each-copy",
        *("ends-or-registers-after-a-refusal", "lists-each-device-for-one-resource", "returns-with-all-its-resources"),
        *(
            "gives-each-variable-once",
            "gives-nothing-that-has-vanished",
            "prints-no-secrets",
            "starts-containers-at-the-same-time",
        ),
    }
    left = set(not_passed(report)) - without
    # a plugin watcher would consider another program's socket a plugin
    assert all("leaves-sockets-of-others-alone" in name for name in left)
    assert (report.subject, len(report.results)) == ("example.com/chip, 3 devices", len(CHECKS))


def test_a_socket_of_another_type_is_named(directory: Path) -> None:
    report = run_checks_on("watched-as-another", NAMES[:1], evolve(QUICK, first=5), directory)
    assert "is a socket of type 'CSIPlugin', expected 'DevicePlugin'" in report.results[0].actual


def test_a_kubelet_that_refuses_needs_a_call_to_refuse(directory: Path) -> None:
    settings = evolve(SHORT["slow-to-return"], noticing=0.3)
    report = run_checks_on("slow-to-return", ["is-patient-with-a-kubelet-that-refuses"], settings, directory)
    result = report.results[-1]
    assert result.verdict is Verdict.UNDECIDED
    assert result.actual == "0 calls to Register in 0.5 seconds, so there was nothing to refuse"


def test_a_plugin_that_ends_when_it_is_refused_need_not_be_started_again(directory: Path) -> None:
    names = ["is-patient-with-a-kubelet-that-refuses", "ends-or-registers-after-a-refusal"]
    report = run_checks_on("ends-when-refused-later", names, evolve(QUICK, restart=False, refusing=1), directory)
    assert report.result(names[1]).actual == "the plugin exited, or registered again"


def test_devices_that_appear_late_are_checked_at_the_end(directory: Path) -> None:
    names = ["lists-unique-ids", "allocates-each-device", "gives-nodes-by-id", "stays-up"]
    report = run_checks_on("slow-to-start", names, evolve(QUICK, timeout=0.3), directory)
    assert not_passed(report) == {}
    assert [result.name for result in report.results] == [NAMES[0], *names]


def not_passed(report: Report) -> dict[str, str]:
    """Return what happened in each check that did not pass, by check name."""
    return {result.name: result.actual for result in report.results if result.verdict is not Verdict.PASSED}
