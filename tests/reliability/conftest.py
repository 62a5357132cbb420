"""What the tests of reliability share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory() -> Iterator[Path]:
    """A new directory with a name so short that sockets fit into it, which pytest's own have not."""
    path = Path(tempfile.mkdtemp(prefix="dc", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
