"""Fixtures for the checks of DRA drivers."""

import subprocess
import sys
from pathlib import Path

import pytest

PROTO = Path(__file__).parents[2] / "src" / "devicecore" / "wire" / "proto"


@pytest.fixture(scope="session")
def dra_stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules that protoc generates from the API."""
    pytest.importorskip("grpc_tools")
    made = tmp_path_factory.mktemp("dra_stubs")
    options = [f"--proto_path={PROTO}", f"--python_out={made}"]
    protos = ["dra_v1.proto", "dra_health_v1alpha1.proto", "pluginregistration.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *protos], check=True)
    return made
