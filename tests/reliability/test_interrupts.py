"""Ctrl-C at any point of a call to a manager; docs/reliability.md says what is guaranteed."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from devicecore.adapters.grpc_unix import GrpcUnixTransport, listening, transport
from devicecore.adapters.grpc_unix import directory as plugin_directory
from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport
from devicecore.adapters.pod_resources import PodResourcesServer, Snapshot
from devicecore.adapters.pod_resources import server as pod_resources
from devicecore.domain.node_state import NodeState
from devicecore.system.temporary import short_directory
from devicecore.testing.interrupts import Interrupts
from tests.adapters.peers import environment
from tests.reliability.scale import scale

FAST = "/dev/shm"  # noqa: S108 - a file system in memory, because a disk would only make so many calls slower


@pytest.mark.parametrize("what", ["devices", "claims"])
@pytest.mark.parametrize(("way", "calls"), [("main", scale(150, 100_000)), ("threads", scale(1_500, 100_000))])
def test_after_an_interrupt_the_manager_works_and_its_state_is_correct(
    what: str, way: str, calls: int, tmp_path: Path
) -> None:
    """A pod has all of its devices or none, no turn or reservation is left, and the file has the state in memory."""
    with tempfile.TemporaryDirectory(dir=FAST if os.access(FAST, os.W_OK) else tmp_path) as directory:
        command = [sys.executable, "-m", "tests.reliability.interrupted", what, way, str(calls), directory]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=3600)
    assert run.returncode == 0, run.stderr[-5000:]
    counts = json.loads(run.stdout)
    print(json.dumps(counts, indent=1))  # noqa: T201 - for `pytest -s`, which tells how it was
    assert counts["interrupted, and the pod has none"] > 0


def ignore(_event: object) -> None:
    pass


def server(what: str, directory: str) -> tuple[Callable[[], None], Callable[[], None], Sequence[ModuleType]]:
    """How to start and stop a server in `directory`, and the modules in which it is interrupted."""
    match what:
        case "plugins":
            plugins = GrpcUnixTransport(directory)
            return partial(plugins.start, ignore), plugins.stop, (transport, listening, plugin_directory)
        case "drivers":
            drivers = GrpcDriverTransport(directory)
            return partial(drivers.start, ignore), drivers.stop, (listening,)
        case _:
            snapshot = partial(Snapshot, NodeState(), ())
            pods = PodResourcesServer(Path(directory, "kubelet.sock"), snapshot)
            return pods.start, pods.stop, (pod_resources,)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("name", ["start", "stop"])
@pytest.mark.parametrize("what", ["plugins", "drivers", "pod resources"])
def test_a_server_whose_start_or_stop_was_interrupted_can_be_stopped_and_started(what: str, name: str) -> None:
    """It could not be started any more: its own lock, or its own socket, kept it out."""
    with short_directory() as path:
        at, is_interrupted = 0, True
        while is_interrupted:
            start, stop, modules = server(what, path)
            if name == "stop":
                start()
            is_interrupted = Interrupts(at := at + 1, *modules).interrupt(stop if name == "stop" else start)
            if at % 2:
                stop()
            start()
            stop()
            assert not [*Path(path).iterdir()]
    assert "devicecore-grpc" not in {thread.name for thread in threading.enumerate()}
    assert at > 4
