"""Each part of `make cluster` has a fault that it must find when injected, and each of these faults can be injected.

No test in this file needs Go.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.real_cluster.plants import PLANTS, ROOT

CHECKS = Path(ROOT) / "tests" / "real_cluster"


def test_each_part_has_an_injected_fault() -> None:
    parts = {path.stem.removeprefix("checks_") for path in CHECKS.glob("checks_*.py")}
    assert {one.part for one in PLANTS.values()} == parts


def test_each_fault_can_be_injected() -> None:
    """The definition of a fault names our own functions, which may have moved.

    An injected fault cannot be removed, so this test runs a separate process.
    """
    program = "from tests.real_cluster.plants import PLANTS\nfor one in PLANTS.values():\n    one.grow()\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
