"""The contract suites themselves: they omit no check, and need nothing but the library."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from devicecore.adapters.memory import MemorySink, MemoryStore
from devicecore.testing import contracts
from devicecore.testing.contracts import dra_claims, dra_drivers, dra_metrics, dra_slices, lifecycle

Checks = list[Callable[..., None]]

SUITES: dict[ModuleType, Checks] = {
    contracts.store: contracts.CHECKPOINT_STORE + contracts.DURABLE_CHECKPOINT_STORE,
    contracts.sink: contracts.NODE_STATUS_SINK,
    contracts.pods: contracts.POD_SOURCE,
    contracts.policy: contracts.ALLOCATION_POLICY,
    contracts.metrics: contracts.METRICS,
    contracts.plugin: contracts.DEVICE_PLUGIN + contracts.CHANGING_DEVICE_PLUGIN,
    contracts.transport: contracts.PLUGIN_TRANSPORT + contracts.REMOTE_PLUGIN_TRANSPORT,
    dra_drivers: dra_drivers.DRIVER_TRANSPORT,
    dra_claims: dra_claims.CLAIM_SOURCE,
    dra_slices: dra_slices.RESOURCE_SLICES,
    dra_metrics: dra_metrics.DRA_METRICS,
    lifecycle: lifecycle.LIFECYCLE,
}


def checks_in(module: ModuleType) -> list[str]:
    """Return the names of all public functions that are defined in a module."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return [name for name, function in functions if function.__module__ == module.__name__ and name[0] != "_"]


@pytest.mark.parametrize("module", SUITES, ids=lambda module: module.__name__)
def test_every_check_is_in_one_suite(module: ModuleType) -> None:
    """Running the suites runs every check exactly once."""
    assert sorted(check.__name__ for check in SUITES[module]) == checks_in(module)


@pytest.mark.parametrize("check", [check for checks in SUITES.values() for check in checks])
def test_every_check_is_one_sentence(check: Callable[..., None]) -> None:
    """The docstring of each check says what it checks, in one line."""
    said = check.__doc__ or ""
    assert said.endswith(".")
    assert "\n" not in said


def test_the_contracts_need_no_test_framework() -> None:
    """Importing the contracts loads neither pytest nor Hypothesis nor gRPC."""
    script = "import devicecore.testing.contracts, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert not {"pytest", "hypothesis", "grpc"} & set(run.stdout.split())


@pytest.mark.parametrize(
    ("check", "make", "wanted"),
    [
        (contracts.NODE_STATUS_SINK[0], MemorySink, "a Callable[[], AbstractContextManager[SinkHarness]], got <class"),
        (contracts.CHECKPOINT_STORE[0], MemoryStore(), "a Callable[[], CheckpointStore], got "),
    ],
)
def test_a_wrong_argument_is_not_a_broken_contract(check: Callable[[Any], None], make: object, wanted: str) -> None:
    """The error names the check and the type of the expected argument."""
    with pytest.raises(AssertionError) as refused:
        check(make)
    assert str(refused.value).startswith(f"the argument of {check.__name__}: expected {wanted}")
