"""What the tests of the kit share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from devicecore_tools.testing.temporary import short_directory


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's."""
    with short_directory() as directory:
        yield Path(directory)
