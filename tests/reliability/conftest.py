"""What the tests of reliability share."""

import pytest

from tests.adapters.peers import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
