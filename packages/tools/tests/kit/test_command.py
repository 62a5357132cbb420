"""`devicecore conformance`: its reports for people, for programs and for CI systems, and its exit status."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from attrs import frozen
from devicecore_tools.command.main import main
from devicecore_tools.conformance.device_plugin import CHECKS
from devicecore_tools.conformance.faults import PLUGIN
from tests.kit.faults import EXPENSIVE, HEALTH, RESTARTS

CONFORMANCE = [sys.executable, "-m", "devicecore_tools", "conformance", "plugin"]
CALM = [f"--skip={name}" for name in (*RESTARTS, *EXPENSIVE)]


@frozen
class Ran:
    """A command's exit status and output."""

    returncode: int
    stdout: str
    stderr: str


def conformance(*arguments: str | Path, kind: str = "plugin") -> Ran:
    """Run the command in this process, because another process would need half a second to start."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patched:
        patched.setenv("GRPC_VERBOSITY", "ERROR")  # the command sets this environment variable and never unsets it
        status = main(["conformance", kind, *map(str, arguments)])
    return Ran(status, out.getvalue(), err.getvalue())


def test_a_failure_is_explained(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    ran = conformance(*CALM, "--junit", report, "--", sys.executable, PLUGIN, "{dir}", "by-position")
    assert ran.returncode == 1
    assert "FAIL  must    gives-nodes-by-id " in ran.stdout
    explained = ran.stdout.partition("\ngives-nodes-by-id (must)\n")[2]
    assert explained.startswith("  done:      The nodes and CDI devices in each answer for several devices")
    for line in (
        "  expected:  every node in the answer for several devices is also in an answer for a single device",
        "  actual:    the answer for all devices contains /dev/chip1, /dev/chip2, which is in no answer",
        "  because:   Allocate is called during container creation",
        "The last output of the device plugin:\n  chips on ",
        "1 failed (1 of severity must)",
    ):
        assert line in explained
    suite = ET.fromstring(report.read_text())[0]  # noqa: S314 - this test wrote it
    assert [suite.get(name) for name in ("tests", "failures")] == [str(len(CHECKS) - len(CALM)), "1"]
    (failure,) = suite.iter("failure")
    assert "expected: every node" in (failure.text or "")


def test_a_command_that_provokes_nothing_is_wrong_usage() -> None:
    chosen = [f"--only={name}" for name in ("serves-before-it-registers", *HEALTH)]
    ran = conformance(*chosen, "--provoke-health", "exit 3", "--", sys.executable, PLUGIN, "{dir}")
    problem = "--provoke-health: `exit 3` exited with status 3: it printed nothing"
    assert (ran.returncode, problem in ran.stdout.splitlines()[-1]) == (2, True), ran.stdout
    assert "undone" not in ran.stdout


def test_a_failed_should_check_fails_no_run_but_shows_the_output(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    ran = conformance(*CALM, "--json", "--junit", report, "--", sys.executable, PLUGIN, "{dir}", "repeats")
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["passed"], document["resource"]) == (0, True, "example.com/chip")
    (failed,) = [check for check in document["checks"] if check["verdict"] == "failed"]
    answered = "name severity verdict done expected actual clause seconds applies"
    assert {*failed} == {*answered.split()}
    assert (failed["name"], failed["severity"]) == ("answers-each-of-two-containers", "should")
    suite = ET.fromstring(report.read_text())[0]  # noqa: S314 - this test wrote it
    assert suite.get("failures") == "0"
    assert "should, failed: " in report.read_text()
    only = ("--only", "answers-each-of-two-containers")
    ran = conformance(*only, "--", sys.executable, PLUGIN, "{dir}", "repeats")
    assert (ran.returncode, ran.stdout.count("\nThe last output of the device plugin:\n")) == (0, 1)
    assert "1 failed (0 of severity must)" in ran.stdout


def test_the_options_of_the_command_are_not_ours() -> None:
    """As with docker run, our options come before the command, so that -- can be left out."""
    ran = conformance(
        "--only", "lists-devices-soon", sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", "--list"
    )
    assert ran.returncode == 2
    assert "--list" in ran.stdout


def test_a_resource_that_the_plugin_does_not_register_is_compared_with_the_one_it_does() -> None:
    options = ("--only", "lists-devices-soon", "--resource", "example.com/chp", "--starting", "3")
    ran = conformance(*options, "--", sys.executable, PLUGIN, "{dir}")
    said = "no plugin called Register for example.com/chp, but only example.com/chip registered in "
    assert (ran.returncode, said in ran.stdout) == (1, True), ran.stdout


def test_a_plugin_that_exits_at_once_cannot_be_run() -> None:
    ran = conformance("--", "sh", "-c", "echo no license; exit 3")
    assert ran.returncode == 2
    first, empty, not_made, *_ = ran.stdout.splitlines()
    assert first.startswith("FAIL  must    serves-before-it-registers ")
    assert "it exited early with status 3: no license" in first
    assert empty == ""
    assert not_made == f"{len(CHECKS) - 1} more checks not run, because serves-before-it-registers failed."
    assert "n/a" not in ran.stdout
    assert ran.stdout.count("exited early with status 3") == 1


def test_checks_can_be_listed_and_chosen() -> None:
    listed = json.loads(conformance("--list", "--json").stdout)
    assert [(check["name"], check["severity"]) for check in listed] == [(it.name, it.severity.value) for it in CHECKS]
    some = conformance("--list", *CALM).stdout
    assert "must    lists-unique-ids                          The ids in the list are compared.\n" in some
    assert "returns-" not in some
    only = conformance("--list", "--only", "lists-short-ids", "--only", "lists-unique-ids").stdout.splitlines()
    assert [line.split()[1] for line in only] == ["lists-unique-ids", "lists-short-ids"]
    pattern = conformance("--list", "--only", "lists-*", "--skip", "*-short-ids").stdout.splitlines()
    names = [check.name for check in CHECKS if check.name.startswith("lists-") and check.name != "lists-short-ids"]
    assert [line.split()[1] for line in pattern] == names


@pytest.mark.slow
def test_a_directory_of_the_user_is_left_as_it_was(directory: Path) -> None:
    directory.chmod(0o770)
    command = ("--socket-dir", directory, "--resource", "example.com/chip", "--", sys.executable, PLUGIN, directory)
    refused = conformance(*CALM, *command)
    assert refused.returncode == 2
    assert "--allow-shared-directory" in refused.stderr
    ran = conformance(*CALM, "--allow-shared-directory", *command)
    assert (ran.returncode, list(directory.iterdir())) == (0, [])


def test_sigterm_ends_the_plugin_and_leaves_nothing(directory: Path, tmp_path: Path) -> None:
    """SIGTERM arrives, as when a CI job is canceled."""
    started = tmp_path / "started"
    os.mkfifo(started)
    # The plugin prints more than a pipe holds, so once the plugin writes its id, the command is reading its output.
    plugin = ["sh", "-c", f"seq 20000; echo $$ > {started}; exec sleep 600"]
    with subprocess.Popen(
        [*CONFORMANCE, "--", *plugin],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    ) as running:
        process = int(started.read_text())
        running.send_signal(signal.SIGTERM)
        _, complaint = running.communicate(timeout=60)
    assert (running.returncode, complaint, list(directory.iterdir())) == (128 + signal.SIGTERM, "", [])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_plugin_can_be_started_by_hand(directory: Path) -> None:
    command = [*CONFORMANCE, *CALM, "--socket-dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        hint = running.stderr.readline()
        assert hint.startswith("devicecore conformance: start your plugin within 60 seconds, so that it registers at ")
        with subprocess.Popen([sys.executable, PLUGIN, str(directory)], stdout=subprocess.DEVNULL) as plugin:
            stdout, _ = running.communicate(timeout=60)
            plugin.terminate()
    assert running.returncode == 0
    assert "not run for the reasons above: " in stdout
    assert "ends-on-sigterm" in stdout


def test_a_terminal_gets_colors_and_lines_broken_between_words() -> None:
    ours, theirs = pty.openpty()
    arguments = ["--only", "gives-nodes-by-id", "--", sys.executable, str(PLUGIN), "{dir}", "by-position"]
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    with subprocess.Popen([*CONFORMANCE, *arguments], stdout=theirs, env=environment):
        os.close(theirs)
        printed = b""
        while chunk := _read(ours):
            printed += chunk
    os.close(ours)
    text = printed.decode().replace("\r\n", "\n")
    assert "\x1b[31m\x1b[1mFAIL\x1b[0m  must" in text
    plain = re.sub(r"\x1b\[\d+m", "", text)
    lines = [line for line in plain.splitlines() if "chips on " not in line]  # the plugin's output is not folded
    assert max(map(len, lines)) <= 60
    assert "which is in no answer for a single device" in " ".join(plain.split())


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux reports the end of a terminal
        return b""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--skip", "nonsense", "--", "true"], "--skip nonsense: there is no such check; --list lists the checks."),
        (["--only", "nonsense", "--", "true"], "--only nonsense: there is no such check; --list lists the checks."),
        (["--only", "list-unique-ids"], "--only list-unique-ids: there is no such check; did you mean lists-"),
        (["--skip", "sigterm"], "--skip sigterm: there is no such check; did you mean ends-on-sigterm?"),
        (["--only", "x-*"], "--only x-*: there is no such check; --list lists the checks."),
        (["--only", "lists-*", "--skip", "l*"], "--only and --skip leave no check to run."),
        (["--undo-health", "true", "--", "true"], "--undo-health needs --provoke-health."),
        (["--", "/no/such/plugin"], "cannot run `/no/such/plugin`: No such file or directory"),
        (["--socket-dir", f"/var/{'x' * 100}", "--", "true"], "choose a directory with a shorter name"),
        (["--socket-dir", "/dev/null/at/all", "--", "true"], "cannot use directory '/dev/null/at/all'"),
        (
            ["--junit", "/nowhere/r.xml", "--", "true"],
            "devicecore conformance plugin: /nowhere/r.xml: No such file or directory",
        ),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_status_2(arguments: list[str], sentence: str) -> None:
    ran = conformance(*arguments)
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert sentence in ran.stderr
