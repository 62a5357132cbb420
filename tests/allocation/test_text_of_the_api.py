"""Rules in the API's text that a scheduler breaks: about earlier alternatives, all devices, shares and names."""

from devicecore.domain.allocation import DeviceAllocation, DeviceKey, Held, NoAllocation, Release
from devicecore.domain.quantity import Quantity
from tests.allocation.asking import Json, what_a_claim_gets

DRIVER = "gpu.example.com"
POOL = {"name": "p", "generation": 1, "resourceSliceCount": 2}


def answer(parts: list[Json], request: Json, held: Held, release: Release) -> DeviceAllocation | NoAllocation:
    """Return what a claim with one request gets from a pool on node n1."""
    slices = [
        {"metadata": {"name": str(number)}, "spec": {"driver": DRIVER, "nodeName": "n1", "pool": POOL, **part}}
        for number, part in enumerate(parts)
    ]
    return what_a_claim_gets(slices, [{"name": "r", **request}], [held], release)


def test_a_fault_that_keeps_a_scheduler_from_the_first_alternative_is_named() -> None:
    counters = {name: {"slots": {"value": "1"}} for name in ("one", "two")}
    sets = {"sharedCounters": [{"name": name, "counters": one} for name, one in counters.items()]}
    uses = [{"counterSet": "one", "counters": {"slots": {"value": "1"}}}]
    over = [{"counterSet": "two", "counters": {"slots": {"value": "2"}}}]
    devices = [
        {"name": "plain"},
        {"name": "counted", "consumesCounters": uses},
        {"name": "x", "consumesCounters": over},
    ]
    ways = [{"name": name, "deviceClassName": "any", "count": count} for name, count in (("two", 2), ("one", 1))]
    held = Held(DeviceKey(DRIVER, "p", "x"))
    given = answer([sets, {"devices": devices}], {"firstAvailable": ways}, held, Release.V1_37)
    assert isinstance(given, DeviceAllocation)
    assert [(one.request.name, one.key.device) for one in given.devices()] == [("two", "plain"), ("two", "counted")]
    assert given.faults == ("over-committed-counter",)


def test_a_shared_device_with_too_little_left_is_one_of_all_devices_in_each_release() -> None:
    shared = {"name": "shared", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "4"}}}
    whole = {"name": "whole", "capacity": {"memory": {"value": "4"}}}
    request = {"deviceClassName": "any", "allocationMode": "All", "capacity": {"requests": {"memory": "3"}}}
    held = Held(DeviceKey(DRIVER, "p", "shared"), is_share=True, consumed={"memory": Quantity.parse("2")})
    parts = [{"devices": [shared]}, {"devices": [whole]}]
    for release, faults in ((Release.V1_36_3, ("all-skips-full-shared",)), (Release.V1_37, ())):
        given = answer(parts, {"exactly": request}, held, release)
        assert isinstance(given, NoAllocation)
        assert given.faults == faults


def test_a_share_counts_under_any_name_of_its_capacity() -> None:
    shared = {"name": "shared", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "4"}}}
    request = {"exactly": {"deviceClassName": "any", "capacity": {"requests": {"memory": "2"}}}}
    held = Held(DeviceKey(DRIVER, "p", "shared"), is_share=True, consumed={f"{DRIVER}/memory": Quantity.parse("3")})
    given = answer([{"devices": [shared]}, {}], request, held, Release.V1_37)
    assert isinstance(given, NoAllocation)
    assert given.faults == ("k/k#140650",)
