"""Fixtures for device plugins that do not use devicecore."""

import subprocess
import sys
from pathlib import Path

import pytest

PROTO = Path(__file__).parents[4] / "src" / "devicecore" / "wire" / "proto"


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules that protoc generates from the API."""
    pytest.importorskip("grpc_tools")
    made = tmp_path_factory.mktemp("stubs")
    options = [f"--proto_path={PROTO}", f"--python_out={made}", f"--grpc_python_out={made}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, "deviceplugin.proto"], check=True)
    return made
