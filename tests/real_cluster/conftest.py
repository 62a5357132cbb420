"""Shared fixtures of `make cluster`: one control plane for all checks in a process.

If the variable SHARE is set, only the checks that CI has time for are run.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.real_cluster.control_plane import ControlPlane
from tests.real_cluster.plants import grow_planted
from tests.real_cluster.programs import RealClusterError

_HERE = Path(__file__).parent

SHARE = (
    "checks_story",
    "test_a_pod_is_the_same_on_a_real_kubelet_and_here[fleet]",
    "[a_plugin_is_killed]",
    "test_pods_in_each_state_outlive_a_kill",
)
"""Parts of the names of the checks that CI runs."""

grow_planted()


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # so that pytest stops the programs that it has started


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that need a single process first, because they take longest, and skip what CI has no time for.

    pytest also calls this function when it collects other folders, whose tests stay as they are.
    """
    if not all(item.path.is_relative_to(_HERE) for item in items):
        return
    if os.environ.get("SHARE"):
        items[:] = [item for item in items if any(part in item.nodeid for part in SHARE)]
    items.sort(key=lambda item: item.get_closest_marker("apart") is not None)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane that consists of Kubernetes' own programs."""
    signal.signal(signal.SIGTERM, _end)
    running = ControlPlane()
    try:
        running.start()
    except RealClusterError as error:
        pytest.exit(str(error), 1)
    yield running
    running.stop()
