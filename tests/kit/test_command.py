"""`devicecore conformance`: the report for people, for programs and for CI systems, and the exit status."""

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from attrs import frozen

from devicecore.cli.main import main
from devicecore.conformance import CHECKS

PLUGIN = Path(__file__).with_name("faulty_plugin.py")
CALM = [f"--skip={check.name}" for check in CHECKS if check.name.startswith(("returns-", "is-", "keeps-", "starts-"))]


@frozen
class Ran:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def conformance(*arguments: str | Path) -> Ran:
    """Run the command to its end, in this process: another would take half a second to begin."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patched:
        patched.setenv("GRPC_VERBOSITY", "ERROR")  # which the command sets, and would leave behind
        status = main(["conformance", *map(str, arguments)])
    return Ran(status, out.getvalue(), err.getvalue())


def test_a_faulty_one_is_told_what_to_do_something_about(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    ran = conformance(*CALM, "--junit", report, "--", sys.executable, PLUGIN, "{dir}", "by-position")
    assert ran.returncode == 1
    assert "FAIL  must    gives-nodes-by-id " in ran.stdout
    told = ran.stdout.partition("\ngives-nodes-by-id (must)\n")[2]
    assert told.startswith("  done:      The host paths of the device nodes in the answer for all devices")
    for line in (
        "  expected:  all of them together come with no node that none has alone",
        "  came:      all devices together come with /dev/chip1, /dev/chip2, which no device has alone",
        "  because:   Allocate is called during container creation",
        "The plugin's last output:\n  chips on ",
        "1 failed (1 of them must-checks)",
    ):
        assert line in told
    suite = ET.fromstring(report.read_text())[0]  # noqa: S314 - we wrote it
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("31", "1", "2")
    (failure,) = suite.iter("failure")
    assert "expected:  all of them" in (failure.text or "")


def test_a_should_is_no_must(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    ran = conformance(*CALM, "--json", "--junit", report, "--", sys.executable, PLUGIN, "{dir}", "repeats")
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["passed"], document["resource"]) == (0, True, "example.com/chip")
    (failed,) = [check for check in document["checks"] if check["verdict"] == "failed"]
    assert {*failed} == {"name", "severity", "verdict", "done", "expected", "came", "clause", "seconds"}
    assert (failed["name"], failed["severity"]) == ("answers-each-of-two-containers", "should")
    suite = ET.fromstring(report.read_text())[0]  # noqa: S314 - we wrote it
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "3")
    assert "should, failed: " in report.read_text()


def test_a_plugin_that_ends_at_once_is_quoted() -> None:
    ran = conformance("--timeout", "0.5", "--", "sh", "-c", "echo no licence; exit 3")
    assert ran.returncode == 1
    assert "exited early with status 3, last output: no licence" in ran.stdout


def test_it_says_what_it_checks() -> None:
    listed = json.loads(conformance("--list", "--json").stdout)
    assert [(check["name"], check["severity"]) for check in listed] == [(it.name, it.severity.value) for it in CHECKS]
    some = conformance("--list", *CALM).stdout
    assert "must    lists-unique-ids                          The ids of the list are compared.\n" in some
    assert "returns-" not in some


def test_it_takes_a_directory_of_its_own_and_leaves_it_as_it_was(short_path: Path) -> None:
    ran = conformance(
        *CALM, "--socket-dir", short_path, "--resource", "example.com/chip", "--", sys.executable, PLUGIN, short_path
    )
    assert (ran.returncode, list(short_path.iterdir())) == (0, [])


def test_a_plugin_can_be_started_by_hand(short_path: Path) -> None:
    command = [sys.executable, "-m", "devicecore", "conformance", *CALM, "--socket-dir", str(short_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith(
            "devicecore conformance: start your plugin now, so that it registers"
        )
        with subprocess.Popen([sys.executable, PLUGIN, str(short_path)], stdout=subprocess.DEVNULL) as plugin:
            stdout, _ = running.communicate(timeout=60)
            plugin.terminate()
    assert running.returncode == 0
    assert "skip  should  ends-on-sigterm " in stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--skip", "nonsense", "--", "true"], "--skip nonsense: there is no such check; --list names them."),
        (["--", "/no/such/plugin"], "cannot run `/no/such/plugin`: No such file or directory"),
        (["--socket-dir", f"/var/{'x' * 100}", "--", "true"], "choose a directory with a shorter name"),
        (["--socket-dir", "/dev/null/at/all", "--", "true"], "cannot use directory '/dev/null/at/all'"),
        (["--junit", "/nowhere/r.xml", "--", "true"], "No such file or directory: '/nowhere/r.xml'"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_status_2(arguments: list[str], sentence: str) -> None:
    ran = conformance(*arguments)
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert sentence in ran.stderr
