"""All implementations of `ResourceSlices` meet the contract, and broken ones are caught."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attrs import field, frozen
from devicecore_tools.testing.api_server import LocalApiServer

from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.dra import KubeApiSlices
from devicecore.adapters.memory_dra import MemorySlices
from devicecore.domain.dra.model import DriverName
from devicecore.testing.contracts import dra_slices as contract
from devicecore.testing.contracts.dra_slices import RESOURCE_SLICES, MakeSlices, SlicesHarness

Check = Callable[[MakeSlices], None]


@frozen
class InMemory:
    """Keeps slices in a dictionary."""

    slices: MemorySlices = field(factory=MemorySlices)

    def publish(self, driver: DriverName, names: Iterable[str]) -> None:
        self.slices.publish(driver, names)

    def names(self) -> set[str]:
        return {name for names in self.slices.slices.values() for name in names}


def in_memory() -> AbstractContextManager[SlicesHarness]:
    return nullcontext(InMemory())


@frozen
class OnApiServer:
    """Stores slices on an API server."""

    server: LocalApiServer
    slices: KubeApiSlices

    def publish(self, driver: DriverName, names: Iterable[str]) -> None:
        for name in names:
            self.server.create(slice_of(driver, name))

    def names(self) -> set[str]:
        return {found["metadata"]["name"] for found in self.server.objects("ResourceSlice")}


def slice_of(driver: str, name: str, node: str = "worker-1") -> dict[str, Any]:
    """Return a slice's manifest as a driver would write it."""
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "nodeName": node, "devices": [{"name": "dev-0"}]}
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


@contextmanager
def on_api_server() -> Iterator[SlicesHarness]:
    with (
        TemporaryDirectory() as directory,
        LocalApiServer() as server,
        KubeApiSlices("worker-1", Access(server.kubeconfig(Path(directory) / "config"))) as slices,
    ):
        yield OnApiServer(server, slices)


@pytest.mark.parametrize("make", [in_memory, on_api_server])
@pytest.mark.parametrize("check", RESOURCE_SLICES)
def test_all_slices_keep_the_contract(check: Check, make: MakeSlices) -> None:
    check(make)


class DeletesAll(MemorySlices):
    def delete(self, driver: DriverName | None) -> None:
        super().delete(None)


class DeletesNamedOnly(MemorySlices):
    def delete(self, driver: DriverName | None) -> None:
        if driver is not None:
            super().delete(driver)


class MissesNothing(MemorySlices):
    def delete(self, driver: DriverName | None) -> None:
        if driver not in {None, *self.slices}:
            raise KeyError(driver)


BROKEN: dict[Check, type[MemorySlices]] = {
    contract.deletes_the_slices_of_one_driver: DeletesAll,
    contract.deletes_the_slices_of_all_drivers: DeletesNamedOnly,
    contract.deletes_nothing_where_there_is_nothing: MissesNothing,
}


@pytest.mark.parametrize("check", RESOURCE_SLICES)
def test_each_check_catches_slices_that_break_its_sentence(check: Check) -> None:
    """A check that cannot fail tests nothing."""
    with pytest.raises(AssertionError):
        check(lambda: nullcontext(InMemory(BROKEN[check]())))
