"""Reads the recorded behavior under `tests/data`. `tests/data/README.md` says where the recordings come from."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings

from devicecore.domain.inventory import DeviceReport, Inventory, Plugin, Resource
from devicecore.domain.ledger import Allocation, Ledger
from devicecore.domain.model import (
    Container,
    ContainerKey,
    Device,
    DeviceId,
    Health,
    NumaNode,
    PluginId,
    PluginOptions,
    Pod,
    PodUid,
    Receipt,
    ResourceName,
)

DATA = Path(__file__).parent / "data"

T = TypeVar("T")

Json = Any  # recorded data, whose structure the tests themselves check


def cases(name: str) -> Json:
    """Return the content of a file of cases."""
    return json.loads((DATA / "cases" / f"{name}.json").read_text())


def lines(pattern: str) -> Iterator[Json]:
    """Yield the recordings in all files whose path matches `pattern`; each line of a file is one recording."""
    for path in sorted(DATA.glob(pattern)):
        with path.open() as recordings:
            yield from map(json.loads, recordings)


def check_each(recordings: Iterable[Json], check: Callable[[Json], None]) -> None:
    """Check all recordings in one test, because hundreds of separate tests would take seconds.

    Raises:
        ExceptionGroup: the failures, each with the id of its recording.
    """
    failures = []
    for recording in recordings:
        try:
            check(recording)
        except Exception as error:  # noqa: BLE001 - the other recordings are checked too
            error.add_note(f"recording {recording['id']}")
            failures.append(error)
    if failures:
        raise ExceptionGroup("recordings that failed", failures)


def share(recordings: Sequence[T], of: int) -> Sequence[T]:
    """Return all recordings in `make laws`.

    Otherwise, return only every `of`-th recording, because the others test the same code.
    """
    return recordings if settings.get_current_profile_name() == "thorough" else recordings[::of]


def device(row: Json) -> Device:
    """Return the device that a row describes in the notation that all cases use."""
    topology = None if row.get("numa") is None else tuple(NumaNode(node) for node in row["numa"])
    return Device(DeviceId(row["id"]), Health.HEALTHY if row.get("healthy", True) else Health.UNHEALTHY, topology)


def resource(name: str, devices: Sequence[Json], options: PluginOptions = PluginOptions()) -> Resource:
    """Return a resource whose plugin is connected and has reported these devices."""
    plugin = Plugin(PluginId(ResourceName(name), "plugin.sock", 1), options)
    return Resource(ResourceName(name), (plugin,), DeviceReport.of(map(device, devices)))


def inventory(*resources: Resource) -> Inventory:
    """Return an inventory of these resources."""
    return Inventory({listed.name: listed for listed in resources})


def allocation(pod: str, container: str, name: str, devices: Sequence[str]) -> Allocation:
    """Return an allocation of devices without topology to a container."""
    nodes: dict[DeviceId, tuple[NumaNode, ...]] = {DeviceId(id_): () for id_ in devices}
    return Allocation(ContainerKey(PodUid(pod), container), ResourceName(name), nodes, Receipt(b""))


def ledger(allocated: Json) -> Ledger:
    """Return a ledger with the allocations in `{pod: {container: {resource: [ids]}}}`."""
    return Ledger.of(
        allocation(pod, container, name, devices)
        for pod, containers in allocated.items()
        for container, resources in containers.items()
        for name, devices in resources.items()
    )


def pod(row: Json) -> Pod:
    """Return the pod that a row describes; containers without a name get a name."""

    def containers(rows: Sequence[Json], kind: str) -> tuple[Container, ...]:
        return tuple(
            Container(row.get("name", f"{kind}{number}"), row["limits"], row.get("restartable", False))
            for number, row in enumerate(rows)
        )

    return Pod(
        PodUid(row.get("uid", "pod")),
        containers=containers(row["containers"], "app"),
        init_containers=containers(row.get("init_containers", ()), "init"),
    )
