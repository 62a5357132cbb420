"""Run the conformance checks on the programs in `peers/subjects/`, and print tables for docs/maintain/found-faults.md.

`python3 tools/make_peers.py subjects` builds the programs, and `python -m tools.find_subjects` runs each fault and each
unusual behavior under `devicecore conformance`, as a user would; a run takes half an hour to an hour. If the command
line names faults, only these faults are run, and no tables are printed.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from tools.conformance_runs import report_of
from tools.make_peers import PEERS, default_version, problem_of, program

PLANTED = PEERS / "subjects" / "planted.json"
DIRECTORY = "{plugins}/chip.subject.example"
PROGRAMS = ("driver", "plugin")


@frozen
class Found:
    """The result of the checks for a program.

    Attributes:
        planted: the fault's entry in `planted.json`.
        failed: the checks that failed, with their severities.
        passed: whether the exit status of the checks was 0.
        seconds: how long the run took.
    """

    planted: dict[str, Any]
    failed: dict[str, str]
    passed: bool
    seconds: float

    @property
    def is_blamed(self) -> bool:
        """Whether a check whose severity is not `info` has failed."""
        return any(severity != "info" for severity in self.failed.values())

    @property
    def is_named(self) -> bool:
        """Whether one of the checks that the fault's entry names has failed."""
        return not self.failed.keys().isdisjoint(self.planted["checks"])


def run(planted: dict[str, Any], *options: str) -> Found:
    """Run the checks on a program with a fault or an unusual behavior."""
    variable = "FAULT" if "severity" in planted else "VARIANT"
    environment = {**os.environ, variable: planted["name"]}
    with tempfile.TemporaryDirectory(prefix="dc-") as directory:
        if planted["program"] == "driver":
            # Some faults show only when a device is unhealthy, not when it is gone.
            file = f"{DIRECTORY}/{planted.get('provoke', 'gone-3')}"
            words = ["--env", "POD_UID={pod_uid}", "--data-dir", "chip.subject.example"]
            words += ["--provoke-devices", f"touch {file}", "--undo-devices", f"rm {file}"]
            command = [str(program("subject-driver"))]
        else:
            control, state = (Path(directory) / name for name in ("control", "state"))
            control.mkdir()
            words = ["--provoke-health", f"touch {control}/sick-3", "--undo-health", f"rm {control}/sick-3"]
            command = [str(program("subject-plugin")), "--device-plugin-path", "{dir}", "--ctl", str(control)]
            command += ["--state", str(state)]
        report = report_of(planted["program"], [*words, *options], command, environment=environment)
    if report is None:
        return Found(planted, {}, passed=False, seconds=0.0)
    failed = {one["name"]: one["severity"] for one in report["checks"] if one["verdict"] == "failed"}
    return Found(planted, failed, report["passed"], report["seconds"])


def tables(found: Sequence[Found]) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield "| program | faults | number | named | exit status 1 | longest run |"
    yield "|---|---|---|---|---|---|"
    for kind in PROGRAMS:
        for severity in ("must", "should", None):
            mine = [one for one in found if (one.planted["program"], one.planted.get("severity")) == (kind, severity)]
            named = sum(one.is_blamed if severity is None else one.is_named for one in mine)
            ended = sum(not one.passed for one in mine)
            longest = max((one.seconds for one in mine), default=0.0)
            yield f"| {kind} | {severity or 'none, unusual'} | {len(mine)} | {named} | {ended} | {longest:.0f} s |"
    odd = [one for one in found if one.planted["checks"] and not one.is_named]
    odd += [one for one in found if not one.planted["checks"]]
    yield "\n| not named | why, or what fails |\n|---|---|"
    for one in odd:
        said = one.planted.get("reason") or ", ".join(sorted(one.failed)) or "nothing fails"
        yield f"| `{one.planted['name']}` of the {one.planted['program']} | {said} |"


def main(names: Sequence[str]) -> int:
    """Run the programs with every fault and behavior and print the tables, or run them only with those named."""
    for one in ("subject-driver", "subject-plugin"):
        if problem := problem_of(one, default_version()):
            print(f"{problem}. Run `python3 tools/make_peers.py subjects` first", file=sys.stderr)
            return 1
    programs = json.loads(PLANTED.read_text(encoding="utf-8"))["programs"]
    found: list[Found] = []
    for planted in programs:
        if not names or planted["name"] in names:
            found.append(run(planted))
            last = found[-1]
            said = ", ".join(sorted(last.failed)) or "nothing failed"
            print(f"{last.seconds:5.0f} s  {planted['name']:<32}  exit {int(not last.passed)}  {said}", flush=True)
    if not names:
        print("\n".join(tables(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
