"""The checks' allocator allocates what a scheduler would, or says why it cannot decide."""

import pytest
from devicecore_tools.conformance.dra.allocator import AllocationError, Allocator, Json, UndecidableError
from devicecore_tools.testing.dra_pools import SliceDevice

SHARED = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
DEVICE = SliceDevice("pool", "gpu-0", SHARED)


def allocator() -> Allocator:
    return Allocator("gpu.example.com", lambda _: {"spec": {}})


def wanting(amount: object) -> Json:
    wanted = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": amount}}}
    return {"devices": {"requests": [{"name": "r", "exactly": wanted}]}}


@pytest.mark.parametrize(("amount", "uses"), [("8Gi", 1), ("3Gi", 2), ("1Gi", 8)])
def test_a_shared_device_is_full_when_its_capacity_is(amount: str, uses: int) -> None:
    assert allocator().allocate(wanting(amount), [DEVICE], [], [DEVICE] * (uses - 1))
    with pytest.raises(AllocationError, match="short of capacity"):
        allocator().allocate(wanting(amount), [DEVICE], [], [DEVICE] * uses)


@pytest.mark.parametrize("amount", ["much", True])
def test_a_capacity_that_is_no_quantity_is_a_reason_to_skip(amount: object) -> None:
    with pytest.raises(UndecidableError, match=r"memory: .*quantity"):
        allocator().allocate(wanting(amount), [DEVICE], [], [])


def test_the_device_that_was_used_least_recently_comes_first() -> None:
    devices = [SliceDevice("pool", f"gpu-{number}", {"name": f"gpu-{number}"}) for number in range(2)]
    one = allocator()
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    given = [one.allocate(spec, devices, [], [])["devices"]["results"][0]["device"] for _ in range(3)]
    assert given == ["gpu-0", "gpu-1", "gpu-0"]


def test_devices_for_a_single_claim_come_before_shared_ones() -> None:
    devices = [DEVICE, SliceDevice("pool", "gpu-1", {"name": "gpu-1"})]
    one = allocator()
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    given = [one.allocate(spec, devices, [], [])["devices"]["results"][0]["device"] for _ in range(2)]
    assert given == ["gpu-1", "gpu-1"]


def test_the_devices_of_many_slices_can_be_allocated_together() -> None:
    counters = [{"name": f"set-{number}", "counters": {"memory": {"value": "1"}}} for number in range(1000)]
    uses = [[{"counterSet": one["name"], "counters": {"memory": {"value": "1"}}}] for one in counters]
    bodies = [{"name": f"vf-{number}", "consumesCounters": use} for number, use in enumerate(uses)]
    devices = [SliceDevice("pool", f"vf-{number}", body) for number, body in enumerate(bodies)]
    slices = [{"spec": {"pool": {"name": "pool"}, "sharedCounters": counters[at : at + 8]}} for at in range(0, 1000, 8)]
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 32}}]}}
    allocation = allocator().allocate(spec, devices, slices, devices[:500])
    assert [one["device"] for one in allocation["devices"]["results"]] == [f"vf-{number}" for number in range(500, 532)]


def test_a_claim_finds_its_device_among_hundreds() -> None:
    devices = [SliceDevice("pool", f"gpu-{number}", {"name": f"gpu-{number}"}) for number in range(400)]
    last = {"name": "gpu-400", "attributes": {"model": {"string": "rare"}}}
    devices.append(SliceDevice("pool", "gpu-400", last))
    selector = {"cel": {"expression": 'device.attributes["gpu.example.com"].?model.orValue("") == "rare"'}}
    wanted = {"deviceClassName": "gpu", "selectors": [selector]}
    spec = {"devices": {"requests": [{"name": "r", "exactly": wanted}]}}
    assert allocator().allocate(spec, devices, [], [])["devices"]["results"][0]["device"] == "gpu-400"
