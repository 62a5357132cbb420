"""The effects of other nodes' slices, overcommitted counters and shares, and how these effects differ by release."""

from collections.abc import Sequence

import pytest

from devicecore.domain.allocation import DeviceAllocation, DeviceKey, Held, NoAllocation, Release
from tests.allocation.asking import Json, what_a_claim_gets

HERE, ELSEWHERE = {"nodeName": "n1"}, {"nodeName": "n2"}
COUNTERS = {"sharedCounters": [{"name": "set", "counters": {"slots": {"value": "2"}}}]}


def a_slice(name: str, place: Json, part: Json, *, pool: str = "p", count: int = 1, generation: int = 1) -> Json:
    """Return a ResourceSlice in the API's format."""
    of_pool = {"name": pool, "generation": generation, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": "gpu.example.com", "pool": of_pool, **place, **part}}


def a_device(name: str, **counters: int) -> Json:
    """Return a device that consumes this many slots from each of the named counter sets."""
    used = [{"counterSet": one, "counters": {"slots": {"value": str(count)}}} for one, count in counters.items()]
    return {"name": name, "consumesCounters": used}


def answer(
    slices: Sequence[Json], release: Release, *held: Held, mode: str = "ExactCount"
) -> DeviceAllocation | NoAllocation:
    """Return what a claim for one device, or for all devices, gets on node n1."""
    request = {"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": mode}}
    return what_a_claim_gets(slices, [request], held, release)


def names(given: DeviceAllocation | NoAllocation) -> list[str]:
    """Return the names of the devices that a claim gets."""
    return [one.key.device for one in given.devices()] if isinstance(given, DeviceAllocation) else []


UPDATING = [
    a_slice("a", HERE, {"devices": [{"name": "gpu-0"}]}, pool="n1"),
    a_slice("b", ELSEWHERE, COUNTERS, pool="n2", count=2),
]


@pytest.mark.parametrize(
    ("release", "faults"),
    [
        (Release.V1_36_2, ("counters-of-other-nodes",)),
        (Release.V1_36_3, ("counters-of-other-nodes",)),
        (Release.V1_37, ()),
    ],
)
def test_an_incomplete_pool_of_another_node_is_a_fault_of_1_36(release: Release, faults: tuple[str, ...]) -> None:
    given = answer(UPDATING, release, mode="All")
    assert (names(given), given.faults) == (["gpu-0"], faults)


@pytest.mark.parametrize("release", Release)
def test_counters_count_no_matter_which_node_their_slice_names(release: Release) -> None:
    devices = {"devices": [a_device("big", set=3), a_device("small", set=2)]}
    given = answer([a_slice("a", HERE, devices, count=2), a_slice("b", ELSEWHERE, COUNTERS, count=2)], release)
    assert (names(given), given.faults) == (["small"], ())


def test_newer_counters_of_another_node_hide_older_devices_in_1_36_only() -> None:
    old = a_slice("a", HERE, {"devices": [{"name": "gpu-0"}]})
    newer = a_slice("b", ELSEWHERE, COUNTERS, generation=2, count=2)
    assert answer([old, newer], Release.V1_36_3).faults == ("counters-of-other-nodes",)
    assert answer([old, newer], Release.V1_37).faults == ()


@pytest.mark.parametrize("release", Release)
def test_an_over_committed_counter_blocks_other_counters_in_each_release(release: Release) -> None:
    sets = [{"name": name, "counters": {"slots": {"value": "1"}}} for name in ("one", "two")]
    devices = {"devices": [a_device("old", one=2), a_device("free", two=1)]}
    slices = [a_slice("a", HERE, {"sharedCounters": sets}, count=2), a_slice("b", HERE, devices, count=2)]
    given = answer(slices, release, Held(DeviceKey("gpu.example.com", "p", "old")))
    assert (names(given), given.faults) == (["free"], ("over-committed-counter",))


@pytest.mark.parametrize(("release", "faults"), [(Release.V1_36_3, ("k/k#140433",)), (Release.V1_37, ())])
def test_a_share_that_is_paid_twice_weighs_on_the_next_device(release: Release, faults: tuple[str, ...]) -> None:
    shared = {**a_device("shared", set=2), "allowMultipleAllocations": True}
    sets = {"sharedCounters": [{"name": "set", "counters": {"slots": {"value": "3"}}}]}
    slices = [
        a_slice("a", HERE, {"devices": [shared, a_device("next", set=1)]}, count=2),
        a_slice("b", HERE, sets, count=2),
    ]
    requests = [
        {"name": name, "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount"}} for name in ("r0", "r1")
    ]
    held = [Held(DeviceKey("gpu.example.com", "p", "shared"), is_share=True)]
    given = what_a_claim_gets(slices, requests, held, release)
    assert given
    assert given.faults == faults


def test_a_pool_without_all_its_slices_says_how_many_are_there() -> None:
    given = answer([a_slice("a", HERE, COUNTERS, count=2)], Release.V1_37)
    assert str(given) == (
        "claim c, request r: 0 of 1 devices fit; nothing is known about the devices on the node; pool "
        "gpu.example.com/p: it has only 1 of 2 slices of generation 1"
    )


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("v1.36.1", "1.36.2"),
        ("1.36.3+k3s1", "1.36.3"),
        ("v1.37.0-rc.1", "1.37"),
        ("v1.38.0-beta.0", "1.38"),
        ("1.40", "1.38"),
        ("1.34.2", "1.36.2"),
    ],
)
def test_each_version_has_the_allocator_of_a_release(version: str, release: str) -> None:
    assert Release.of(version) is Release(release)
    assert Release.of("devel") is None


def test_among_different_counts_1_36_takes_the_counters_count_last() -> None:
    """Found by the oracle: 1.36 puts slices with counters, like slices for several nodes, after the node's own."""
    selector = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
    devices = a_slice("a", {"nodeSelector": selector}, {"devices": [{"name": "gpu-0"}]})
    slices = [devices, a_slice("b", HERE, COUNTERS, count=2)]
    assert answer(slices, Release.V1_36_3).faults == ("counters-of-other-nodes",)
    assert names(answer(slices, Release.V1_37)) == ["gpu-0"]


def test_a_request_for_all_that_1_36_answers_without_an_error_does_not_crash() -> None:
    """By the rules, the pool is incomplete. 1.36 considers it complete, and its device is in use."""
    slices = [
        a_slice("b", HERE, COUNTERS, count=3),
        a_slice("a", HERE, {"devices": [{"name": "gpu-0"}]}, count=2),
    ]
    held = Held(DeviceKey("gpu.example.com", "p", "gpu-0"))
    assert isinstance(answer(slices, Release.V1_36_3, held, mode="All"), NoAllocation)


def test_a_device_that_became_shared_after_it_was_allocated_pays_again_for_admin_access() -> None:
    """The device itself uses both slots, but Kubernetes counts only shares that were charged."""
    device = {**a_device("gpu-0", set=2), "allowMultipleAllocations": True}
    slices = [a_slice("a", HERE, {"devices": [device]}, count=2), a_slice("b", HERE, COUNTERS, count=2)]
    held = Held(DeviceKey("gpu.example.com", "p", "gpu-0"), "other")
    request = {"name": "r", "exactly": {"deviceClassName": "any", "adminAccess": True}}
    given = what_a_claim_gets(slices, [request], [held])
    assert (names(given), given.faults) == (["gpu-0"], ("k/k#140729",))
