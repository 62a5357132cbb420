"""Capacity and counters at their limits: exactly enough is enough, and too little is detected without a search."""

from typing import Any

import pytest

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceClass,
    DeviceKey,
    Held,
    NoAllocation,
    TargetNode,
    UnallocatedClaim,
    allocate,
    claim_of,
    held_by,
    slice_of,
)

DRIVER = "gpu.example.com"
Answer = DeviceAllocation | NoAllocation


def answer(
    requests: list[dict[str, Any]],
    devices: list[dict[str, Any]],
    counter: int | None = None,
    held: list[Held] | None = None,
    max_steps: int = 2_000,
    **others: int,
) -> Answer:
    """Return what one claim with these requests gets from a pool that may have counters, such as `units`."""
    claim = claim_of({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})
    return allocated([claim], devices, counter, held, max_steps, **others)


def allocated(
    claims: list[UnallocatedClaim],
    devices: list[dict[str, Any]],
    counter: int | None = None,
    held: list[Held] | None = None,
    max_steps: int = 2_000,
    **others: int,
) -> Answer:
    """Return what these claims get from a pool that may have counters, such as `units`."""
    head = {"driver": DRIVER, "nodeName": "n1"}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1 if counter is None else 2}
    slices = [slice_of({"metadata": {"name": "s"}, "spec": {**head, "pool": pool, "devices": devices}})]
    if counter is not None:
        known = {"units": counter, **others}
        counters = [{"name": "c", "counters": {name: {"value": str(value)} for name, value in known.items()}}]
        slices.append(slice_of({"metadata": {"name": "t"}, "spec": {**head, "pool": pool, "sharedCounters": counters}}))
    return allocate(claims, TargetNode("n1"), slices, held or [], [DeviceClass("any")], max_steps=max_steps)


def request(**fields: object) -> dict[str, Any]:
    return {"name": "a", "exactly": {"deviceClassName": "any", **fields}}


def using(name: str, units: int, counter: str = "units", /, **fields: object) -> dict[str, Any]:
    return {
        "name": name,
        "consumesCounters": [{"counterSet": "c", "counters": {counter: {"value": str(units)}}}],
        **fields,
    }


def names(found: Answer) -> list[str]:
    assert isinstance(found, DeviceAllocation), found
    return [one.key.device for one in found.taken]


@pytest.mark.parametrize(("asked", "expected"), [("3", ["d1", "d2"]), ("4", ["d2"])])
def test_all_devices_are_those_with_at_least_the_capacity(asked: str, expected: list[str]) -> None:
    devices = [{"name": f"d{size - 2}", "capacity": {"memory": {"value": str(size)}}} for size in (2, 3, 4)]
    found = answer([request(allocationMode="All", capacity={"requests": {"memory": asked}})], devices)
    assert names(found) == expected


def test_all_devices_with_more_than_any_has_are_none() -> None:
    devices = [{"name": "d", "capacity": {"memory": {"value": "4"}}}]
    assert not answer([request(allocationMode="All", capacity={"requests": {"memory": "5"}})], devices)


def test_counters_that_just_suffice_for_the_smallest_devices_do() -> None:
    """The first device alone uses up the counter, so the search must backtrack."""
    found = answer([request(count=3)], [using("large", 3), *(using(f"d{number}", 1) for number in range(3))], counter=3)
    assert names(found) == ["d0", "d1", "d2"]


def test_counters_that_suffice_for_no_choice_are_found_without_trying() -> None:
    """There are about 143,000 ways to take five of thirty devices."""
    devices = [using(f"d{number}", 10 + number) for number in range(30)]
    found = answer([request(count=5)], devices, counter=59)
    assert isinstance(found, NoAllocation)
    assert not found.is_unknown


def test_a_device_without_counters_pays_for_none() -> None:
    found = answer([request(count=2)], [using("large", 4), using("small", 3), {"name": "free"}], counter=3)
    assert sorted(names(found)) == ["free", "small"]


LARGE_FIRST = [using("large", 2), using("d0", 1), using("d1", 1)]
"""With a counter of 2, the search takes the large device first, and then has to backtrack."""


def test_a_device_without_counters_in_the_same_pool_leaves_the_counter_to_the_others() -> None:
    found = answer([request(count=3)], [{"name": "free"}, *LARGE_FIRST], counter=2)
    assert sorted(names(found)) == ["d0", "d1", "free"]


def test_a_share_that_is_paid_for_leaves_the_counter_to_the_others() -> None:
    devices = [using("shared", 5, allowMultipleAllocations=True), *LARGE_FIRST]
    held = [Held(DeviceKey(DRIVER, "p", "shared"), is_share=True)]
    found = answer([request(count=3)], devices, counter=7, held=held)
    assert sorted(names(found)) == ["d0", "d1", "shared"]


def test_a_counter_that_is_used_up_twice_over_keeps_no_device_back_that_does_not_need_it() -> None:
    devices = [using("held", 2, "others"), *LARGE_FIRST]
    found = answer([request(count=2)], devices, counter=2, held=[Held(DeviceKey(DRIVER, "p", "held"))], others=1)
    assert names(found) == ["d0", "d1"]


def test_admin_access_has_not_paid_for_the_share_of_another_request() -> None:
    shared = using("d", 2, allowMultipleAllocations=True)
    admin, share = request(adminAccess=True), {**request(), "name": "b"}
    assert names(answer([admin, share], [shared], counter=2)) == ["d", "d"]
    assert not answer([admin, share], [shared], counter=1)


SHARED = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "4"}}}


def held_share() -> list[Held]:
    result = {
        "driver": DRIVER,
        "pool": "p",
        "device": "d",
        "request": "a",
        "shareID": "s",
        "consumedCapacity": {"memory": "1"},
    }
    status = {"allocation": {"devices": {"results": [result]}}}
    return list(held_by({"metadata": {"name": "other"}, "spec": {}, "status": status}))


def test_a_share_of_a_device_in_use_needs_no_free_counter() -> None:
    asks = request(capacity={"requests": {"memory": "1"}})
    assert names(answer([asks], [using("d", 2, **SHARED)], counter=2, held=held_share())) == ["d"]


def test_a_whole_device_beside_a_share_finds_its_counter_used() -> None:
    found = answer([request()], [using("d", 2, **SHARED), using("e", 1)], counter=2, held=held_share())
    assert "e" not in (names(found) if isinstance(found, DeviceAllocation) else ())


def test_two_shares_of_one_device_use_its_counters_once() -> None:
    asks = [{**request(capacity={"requests": {"memory": "1"}}), "name": name} for name in ("a", "b")]
    assert names(answer(asks, [using("d", 2, **SHARED)], counter=2)) == ["d", "d"]


def test_a_scheduler_counts_the_counters_of_a_whole_device_once_for_each_admin_access() -> None:
    requests = [{**request(adminAccess=True), "name": "r"}]
    claims = [claim_of({"metadata": {"name": one}, "spec": {"devices": {"requests": requests}}}) for one in "ab"]
    found = {counter: allocated(claims, [using("d", 2)], counter) for counter in (2, 4)}
    assert {counter: (names(one), one.faults) for counter, one in found.items()} == {
        2: (["d", "d"], ("k/k#140729",)),
        4: (["d", "d"], ()),
    }


def test_a_scheduler_that_finds_all_devices_and_is_right_has_no_fault() -> None:
    """With counters, our allocator also searches as a scheduler does, and checks the result against the rules."""
    found = answer([request(allocationMode="All")], [using("d0", 1), using("d1", 1), {"name": "d2"}], counter=2)
    assert isinstance(found, DeviceAllocation)
    assert (names(found), found.faults) == (["d0", "d1", "d2"], ())
