"""What the tests of adapters share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.peers import Recorder


@pytest.fixture
def directory() -> Iterator[Path]:
    """A new directory with a name so short that sockets fit into it, which pytest's own have not."""
    path = Path(tempfile.mkdtemp(prefix="dc", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
