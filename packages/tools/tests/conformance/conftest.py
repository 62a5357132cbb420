"""Fixtures for the checks of DRA drivers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.harness import Findings

PROTO = Path(__file__).parents[4] / "src" / "devicecore" / "wire" / "proto"


@pytest.fixture(scope="session")
def dra_stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules that protoc generates from the API."""
    pytest.importorskip("grpc_tools")
    made = tmp_path_factory.mktemp("dra_stubs")
    options = [f"--proto_path={PROTO}", f"--python_out={made}"]
    protos = ["dra_v1.proto", "dra_health_v1alpha1.proto", "pluginregistration.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *protos], check=True)
    return made


@pytest.fixture(scope="module")
def findings(request: pytest.FixtureRequest, dra_stubs: Path) -> Iterator[Findings]:
    """The reports on the faulty drivers of the tests of this module that were chosen."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [item.callspec.params for item in items if item.module is request.module and hasattr(item, "callspec")]
    faults: list[Any] = [params["fault"] for params in chosen if "fault" in params]
    found = Findings(faults, dra_stubs)
    yield found
    found.close()
