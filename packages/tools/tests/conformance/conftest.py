"""Fixtures for the checks of DRA drivers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.harness import Findings


@pytest.fixture(scope="module")
def findings(request: pytest.FixtureRequest, stubs: Path) -> Iterator[Findings]:
    """Run the checks on the faulty drivers that this module's selected tests need."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [
        item.callspec.params
        for item in items
        if item.module is request.module and hasattr(item, "callspec") and not item.get_closest_marker("skip")
    ]
    faults: list[Any] = [params["fault"] for params in chosen if "fault" in params]
    found = Findings(faults, stubs)
    yield found
    found.close()
