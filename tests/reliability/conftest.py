"""Fixtures for the reliability tests."""

import pytest

from tests.adapters.peers import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
