"""Each part of `make cluster` has a planted fault that it must find, and each can be planted.

No test in this file needs Go.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.real_cluster.plants import PLANTS, ROOT

CHECKS = Path(ROOT) / "tests" / "real_cluster"


def test_each_part_has_a_planted_fault() -> None:
    parts = {path.stem.removeprefix("checks_") for path in CHECKS.glob("checks_*.py")}
    assert {one.part for one in PLANTS.values()} == parts


def test_each_fault_can_be_planted() -> None:
    """A plant names functions of ours, which may be moved. Plants are permanent, so this runs in a separate process."""
    program = "from tests.real_cluster.plants import PLANTS\nfor one in PLANTS.values():\n    one.grow()\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
