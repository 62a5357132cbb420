"""Ctrl-C at any point in a call to a manager; docs/reliability.md says what is guaranteed."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.adapters.peers import environment
from tests.reliability.scale import scale

FAST = "/dev/shm"  # noqa: S108 - a file system in memory, because a disk would only slow down this many calls


@pytest.mark.parametrize(
    ("what", "way", "calls"),
    [
        ("devices", "main", scale(150, 100_000)),
        ("claims", "threads", scale(200, 100_000)),
        pytest.param("claims", "main", scale(150, 100_000), marks=pytest.mark.slow),
        pytest.param("devices", "threads", scale(200, 100_000), marks=pytest.mark.slow),
    ],
)
def test_after_an_interrupt_the_manager_works_correctly(what: str, way: str, calls: int, tmp_path: Path) -> None:
    """A pod has all of its devices or none, no turn or reservation is left, and the file agrees with memory."""
    with tempfile.TemporaryDirectory(dir=FAST if os.access(FAST, os.W_OK) else tmp_path) as directory:
        command = [sys.executable, "-m", "tests.reliability.interrupted", what, way, str(calls), directory]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=3600)
    assert run.returncode == 0, run.stderr[-5000:]
    counts = json.loads(run.stdout)
    print(json.dumps(counts, indent=1))  # noqa: T201 - for `pytest -s`, which tells how it was
    assert counts["interrupted, and the pod has none"] > 0
