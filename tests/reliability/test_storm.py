"""Many plugins and registrations, after which no thread, descriptor or memory is left in use."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.peers import environment
from tests.reliability.scale import scale
from tests.reliability.storm import PROCESSES, SLACK

MOST_THREADS = 32
MOST_MEGABYTES = 200
NOISE = 16  # megabytes that the memory allocator may keep or give back
GENEROUS = scale(60, 10)  # seconds: the longest admission with the healthy plugin on a busy machine


def storm(scenario: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON is of any type
    """Run a storm in a separate process, because its memory is measured, and return its measurements."""
    command = [sys.executable, "-m", "tests.reliability.storm", scenario, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=1800)
    assert run.returncode == 0, run.stderr[-5000:]
    record = json.loads(run.stdout)
    print(json.dumps(record, indent=1))  # noqa: T201 - for `pytest -s`, which tells how it was
    return record


def check_the_client(client: Any) -> None:  # noqa: ANN401 - as above
    """Check that the healthy plugin was served throughout."""
    assert client["refusals"] == []
    assert client["admissions"] >= scale(2, 50)
    assert client["longest"] < GENEROUS


@pytest.mark.slow
def test_plugins_in_crowds_need_few_threads_and_leave_nothing_behind_when_killed(directory: Path) -> None:
    number, rounds = scale(20, 1000), scale(2, 4)
    record = storm("fleets", directory, number, rounds)
    before, first = record["before"], record["rounds"][0]
    for fleet in record["rounds"]:
        assert fleet["during"]["threads"] <= MOST_THREADS
        assert fleet["during"]["megabytes"] <= MOST_MEGABYTES
        # one descriptor for each plugin
        assert number <= fleet["during"]["descriptors"] <= before["descriptors"] + number + 16
        assert fleet["stopped"] == -(-number // PROCESSES)  # plugins that are only suspended are not lost
        assert fleet["removed"] == number
        assert fleet["after"]["descriptors"] <= before["descriptors"] + 1  # the client's file may be open
    assert record["after"]["threads"] <= before["threads"] + SLACK
    assert record["after"]["descriptors"] <= before["descriptors"]
    assert record["after"]["megabytes"] <= first["after"]["megabytes"] + NOISE
    check_the_client(record["client"])


def test_registrations_in_a_row_leave_one_connection_of_one_live_plugin(directory: Path) -> None:
    number = scale(40, 10_000)
    record = storm("registrations", directory, number)
    before, after, answers = record["before"], record["after"], record["answers"]
    assert {kind.partition(".")[0]: count for kind, count in answers.items()} == {
        "0 OK ": number // 4,
        "1 OK ": number // 4,
        "2 OK ": number // 4,
        "3 UNKNOWN failed to dial device plugin: dial unix ": number // 4,
    }
    assert after["threads"] <= before["threads"] + SLACK
    assert after["descriptors"] <= before["descriptors"] + 1  # the client's file may be open
    assert after["megabytes"] <= before["megabytes"] + NOISE
    check_the_client(record["client"])
