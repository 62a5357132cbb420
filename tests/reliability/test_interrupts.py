"""Ctrl-C at any point of an admission; docs/reliability.md says what is guaranteed."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import pytest

from devicecore.adapters.grpc_unix import GrpcUnixTransport, directory, transport
from devicecore.domain.events import Event
from devicecore.system.temporary import short_directory
from tests.adapters.peers import environment
from tests.interrupts import Interrupts
from tests.reliability.scale import scale

FAST = "/dev/shm"  # noqa: S108 - a file system in memory, because a disk would only make so many calls slower


@pytest.mark.parametrize(("way", "calls"), [("main", scale(150, 100_000)), ("threads", scale(1_500, 500_000))])
def test_after_an_interrupt_the_manager_works_and_its_state_is_correct(way: str, calls: int, tmp_path: Path) -> None:
    """A pod has all of its devices or none, no turn or reservation is left, and the file has the state in memory."""
    with tempfile.TemporaryDirectory(dir=FAST if os.access(FAST, os.W_OK) else tmp_path) as directory:
        command = [sys.executable, "-m", "tests.reliability.interrupted", way, str(calls), directory]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=3600)
    assert run.returncode == 0, run.stderr[-5000:]
    counts = json.loads(run.stdout)
    print(json.dumps(counts, indent=1))  # noqa: T201 - for `pytest -s`, which tells how it was
    assert counts["interrupted, and the pod has none"] > 0


def ignore(_event: Event) -> None:
    pass


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("name", ["start", "stop"])
def test_a_transport_whose_start_or_stop_was_interrupted_can_be_stopped_and_started(name: str) -> None:
    """It could not be started any more: its own lock, or its own socket, kept it out."""
    with short_directory() as path:
        at, is_interrupted = 0, True
        while is_interrupted:
            tested = GrpcUnixTransport(path)
            start = partial(tested.start, ignore)
            if name == "stop":
                start()
            interrupts = Interrupts(at := at + 1, transport, directory)
            is_interrupted = interrupts.interrupt(tested.stop if name == "stop" else start)
            if at % 2:
                tested.stop()
            start()
            tested.stop()
            assert not [*Path(path).iterdir()]
    assert "devicecore-grpc" not in {thread.name for thread in threading.enumerate()}
    assert at > 10
