"""A run that a signal or a bug in devicecore ends still writes its report as JUnit XML, scorecard and JSON."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree as ET

import pytest
from devicecore_tools.command.conformance_report import Reporting
from devicecore_tools.conformance import Check, Report, Result, Severity, Verdict
from devicecore_tools.conformance.device_plugin import CHECKS
from devicecore_tools.conformance.faults import DRIVER, PLUGIN
from tests.kit.test_command import CONFORMANCE

THREE: list[Check[Any]] = [*CHECKS[:3]]
FORMER = "the last good report"


def reporting_in(directory: Path, *, as_json: bool = True) -> Reporting:
    junit, card = directory / "junit.xml", directory / "card.html"
    for path in (junit, card):
        path.write_text(FORMER, encoding="utf-8")
    return Reporting(as_json=as_json, junit=str(junit), card=str(card), release="")


def assert_undecided(directory: Path, document: Any, reason: str, number: int) -> None:  # noqa: ANN401 - of JSON
    """Assert that the document lists `number` checks as not run for this reason, and that all reports were written."""
    rows = [row for row in document["checks"] if row["verdict"] == "undecided"]
    assert len(rows) == number
    assert all(reason in row["actual"] for row in rows)
    junit = ET.parse(directory / "junit.xml").getroot()  # noqa: S314 - it is our own
    assert len([*junit.iter("error"), *junit.iter("skipped")]) >= number
    assert reason in (directory / "card.html").read_text(encoding="utf-8")
    assert (directory / "card.svg").read_text(encoding="utf-8").startswith("<svg")


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def made() -> NoReturn:
        raise error

    return made


def test_a_signal_before_the_first_check_leaves_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = reporting_in(tmp_path).run("device plugin", THREE, lambda: os.kill(os.getpid(), signal.SIGTERM))  # type: ignore[arg-type, return-value]  # the signal comes first
    assert status == 128 + signal.SIGTERM
    assert_undecided(tmp_path, json.loads(capsys.readouterr().out), "the run was interrupted", 3)


def test_a_signal_between_two_checks_keeps_the_results_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporting = reporting_in(tmp_path)

    def made() -> Report:
        one = THREE[0]
        reporting.show(Result(one.name, Severity.MUST, Verdict.PASSED, one.done, one.expected, "good", one.clause, 0.1))
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal has raised SystemExit")

    assert reporting.run("device plugin", THREE, made) == 128 + signal.SIGINT
    document = json.loads(capsys.readouterr().out)
    assert_undecided(tmp_path, document, "the run was interrupted", 2)
    assert document["checks"][0]["verdict"] == "passed"


def test_a_mistake_of_ours_leaves_a_report_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        reporting_in(tmp_path).run("DRA driver", THREE, raising(ZeroDivisionError("by zero")))
    assert_undecided(tmp_path, json.loads(capsys.readouterr().out), "a bug in devicecore ended the run", 3)


def test_a_run_that_cannot_start_keeps_the_last_report(tmp_path: Path) -> None:
    reporting = reporting_in(tmp_path)
    reporting.begin()
    with pytest.raises(PermissionError):
        reporting.run("DRA driver", THREE, raising(PermissionError("no")))
    assert (tmp_path / "junit.xml").read_text(encoding="utf-8") == FORMER
    assert (tmp_path / "card.html").read_text(encoding="utf-8") == FORMER


def test_a_disk_that_is_full_leaves_the_last_report(tmp_path: Path) -> None:
    reporting = reporting_in(tmp_path, as_json=False)
    path = tmp_path / "junit.xml"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            reporting.end(Report(subject="x", results=(), seconds=1.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_text(encoding="utf-8") == FORMER


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("kind", "program"),
    [
        ("plugin", f"{sys.executable} {PLUGIN} {{dir}} slow-to-start"),
        ("driver", f"{sys.executable} {DRIVER}"),
    ],
)
def test_a_run_that_is_interrupted_writes_all_reports(
    kind: str, program: str, number: signal.Signals, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    options = ["--json", "--junit", str(tmp_path / "junit.xml"), "--card", str(tmp_path / "card.html")]
    shell = ["sh", "-c", f"echo $$ > {started}; exec {program}"]
    command = [*CONFORMANCE[:-1], kind, *options, "--", *shell]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        started.read_text(encoding="utf-8")
        running.send_signal(number)
        printed, complaint = running.communicate(timeout=60)
    assert (running.returncode, complaint) == (128 + number, "")
    document = json.loads(printed)
    number_of_open = sum(row["verdict"] == "undecided" for row in document["checks"])
    assert_undecided(tmp_path, document, "the run was interrupted", number_of_open)
    assert number_of_open > 20
