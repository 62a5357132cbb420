"""The allocator of the checks allocates what a scheduler would, or says why it cannot decide."""

import pytest
from devicecore_tools.conformance.dra.allocator import Allocator, Json, UndecidableError, has_room
from devicecore_tools.testing.dra_pools import SliceDevice

SHARED = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
DEVICE = SliceDevice("pool", "gpu-0", SHARED)


def wanted(amount: object) -> Json:
    return {"name": "r", "deviceClassName": "gpu", "capacity": {"requests": {"memory": amount}}}


@pytest.mark.parametrize(("amount", "uses"), [("8Gi", 1), ("3Gi", 2), ("1Gi", 8)])
def test_a_shared_device_is_full_when_its_capacity_is(amount: str, uses: int) -> None:
    assert has_room(DEVICE, wanted(amount), uses - 1)
    assert not has_room(DEVICE, wanted(amount), uses)


@pytest.mark.parametrize("amount", ["much", True])
def test_a_capacity_that_is_no_quantity_is_a_reason_to_skip(amount: object) -> None:
    spec = {"devices": {"requests": [{"name": "r", "exactly": wanted(amount)}]}}
    with pytest.raises(UndecidableError, match=f'"{amount}" is not a quantity'):
        Allocator("gpu.example.com", lambda _: {"spec": {}}).allocate(spec, [DEVICE], [], [])
