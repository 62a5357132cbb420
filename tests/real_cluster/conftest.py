"""What the checks of `make cluster` share: one control plane for all that run in a process. Most of them wait."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from tests.real_cluster.control_plane import ControlPlane
from tests.real_cluster.programs import RealClusterError


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # so that pytest stops what was started


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that one process runs, because those take the longest."""
    items.sort(key=lambda item: item.get_closest_marker("apart") is not None)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane of Kubernetes' own programs."""
    signal.signal(signal.SIGTERM, _end)
    running = ControlPlane()
    try:
        running.start()
    except RealClusterError as error:
        pytest.exit(str(error), 1)
    yield running
    running.stop()
