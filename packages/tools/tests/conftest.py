"""What several folders of tests share: programs that start as forks."""

import subprocess
from collections.abc import Iterator

import pytest
from tests.forks import Start

_WITH_PROGRAMS = {"conformance", "interop", "kit"}
"""The folders whose tests start a plugin, a driver or the command hundreds of times, most of them by our own code."""


@pytest.fixture(scope="module", autouse=True)
def _programs_are_forks(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        if request.path.parent.name in _WITH_PROGRAMS:
            patched.setattr(subprocess, "Popen", Start)
        yield
