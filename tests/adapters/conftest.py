"""What the tests of adapters share."""

import pytest

from tests.adapters.peers import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
