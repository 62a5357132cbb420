"""Fixtures for several test folders: programs that start as forks, generated modules, and a browser."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import Browser, a_browser
from tests.forks import Start

_PROTOS = Path(__file__).parents[3] / "src" / "devicecore" / "wire" / "proto"
_WITH_PROGRAMS = {"conformance", "interop", "kit"}
"""The folders whose tests start a plugin, a driver or devicecore hundreds of times."""


@pytest.fixture(scope="module", autouse=True)
def _programs_are_forks(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        if request.path.parent.name in _WITH_PROGRAMS:
            patched.setattr(subprocess, "Popen", Start)
        yield


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate modules from the APIs with protoc, for plugins and drivers that do not use devicecore."""
    pytest.importorskip("grpc_tools")
    made = tmp_path_factory.mktemp("stubs")
    options = [f"--proto_path={_PROTOS}", f"--python_out={made}", f"--grpc_python_out={made}"]
    names = ("deviceplugin", "dra_v1", "dra_health_v1alpha1", "pluginregistration")
    protos = [f"{name}.proto" for name in names]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *protos], check=True)
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser
