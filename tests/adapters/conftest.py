"""Fixtures for the tests of adapters."""

import pytest

from tests.adapters.peers import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
