"""Reads recorded allocations by Kubernetes from the `shared` directory next to the repository."""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from devicecore.adapters.cel import CelSelectors
from devicecore.domain import allocation
from devicecore.domain.allocation.search import Situation
from devicecore.domain.quantity import Quantity
from tests.recorded import Json

RELEASE = allocation.Release.V1_36_2
KEYS = ("driver", "pool", "device")
RECORDINGS = Path(__file__).parent.parent.parent / "shared" / "vectors" / "allocator"


def recordings(name: str) -> Iterator[Json]:
    """Yield each recording in a file. If the directory does not exist, skip the test."""
    if not RECORDINGS.is_dir():
        pytest.skip(f"the recordings of Kubernetes' allocator are not at {RECORDINGS}")
    path = RECORDINGS / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from map(json.loads, file)


def features_of(recorded: dict[str, bool]) -> allocation.Features:
    """Return a recording's feature gates."""
    gates = ("AdminAccess", "PrioritizedList", "PartitionableDevices", "DeviceTaints", "DeviceBindingAndStatus")
    return allocation.Features(*(recorded[gate] for gate in (*gates, "ConsumableCapacity", "ListTypeAttributes")))


selectors = cache(CelSelectors)


def held_of(recorded: Json) -> list[allocation.Held]:
    """Return the devices that a recording lists as already allocated."""

    def key(one: Json) -> allocation.DeviceKey:
        return allocation.DeviceKey(one["driver"], one["pool"], one["device"])

    held = [allocation.Held(key(one)) for one in recorded["devices"]]
    held += [allocation.Held(key(one), is_share=True) for one in recorded["shared"]]
    for one in recorded["capacity"]:
        consumed = {name: Quantity.parse(value) for name, value in one["consumed"].items()}
        held.append(allocation.Held(key(one), is_share=True, consumed=consumed))
    return held


def situation_of(recording: Json, release: allocation.Release = RELEASE) -> Situation:
    """Return the situation in which the search for a recording's allocation starts."""
    features, node = features_of(recording["features"]), allocation.node_of(recording["node"])
    return Situation(
        [allocation.claim_of(one) for one in recording["claims"]],
        node,
        allocation.Slices([allocation.slice_of(one) for one in recording["slices"]]),
        allocation.by_device(held_of(recording["allocated"])),
        {one.name: one for one in map(allocation.class_of, recording["classes"])},
        selectors(features),
        features,
        release=release,
    )


def devices_of(results: Json) -> tuple[tuple[int, str, allocation.DeviceKey], ...] | None:
    """Return the claim, request and device of each result, or None if there are no results."""
    if results is None:
        return None
    return tuple(
        (number, one["request"], allocation.DeviceKey(one["driver"], one["pool"], one["device"]))
        for number, result in enumerate(results)
        for one in result["devices"].get("results", ())
    )


def allocation_of(
    recording: Json, release: allocation.Release = RELEASE
) -> allocation.DeviceAllocation | allocation.NoAllocation:
    """Return the result of `allocate` for a recording."""
    features = features_of(recording["features"])
    return allocation.allocate(
        [allocation.claim_of(one) for one in recording["claims"]],
        allocation.node_of(recording["node"]),
        [allocation.slice_of(one) for one in recording["slices"]],
        held_of(recording["allocated"]),
        [allocation.class_of(one) for one in recording["classes"]],
        matches=selectors(features),
        features=features,
        release=release,
    )


def results_of(answer: allocation.DeviceAllocation | allocation.NoAllocation) -> Json:
    """Return an answer's results with the share id that is used in all recordings, or None if there are no results."""
    if isinstance(answer, allocation.NoAllocation):
        return None
    return answer.results(iter(lambda: "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", ""))


def hold(allocated: Json, results: Json, number: int) -> None:
    """Add the devices in these results to the allocated devices."""
    for index, one in enumerate(one for result in results for one in result["devices"]["results"]):
        if one.get("adminAccess"):
            continue
        named = {key: one[key] for key in KEYS}
        if "shareID" in one:
            share = f"00000000-0000-4000-8000-{number:06x}{index:06x}"
            allocated["shared"].append({**named, "shareID": share})
            if one.get("consumedCapacity"):
                allocated["capacity"].append({**named, "consumed": one["consumedCapacity"]})
        else:
            allocated["devices"].append(named)
