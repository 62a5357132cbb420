"""The sentence about a claim that gets no devices: the first request that too few devices fit, and the obstacles."""

import pytest

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceClass,
    DeviceKey,
    Held,
    NoAllocation,
    TargetNode,
    allocate,
    claim_of,
    slice_of,
)
from tests.allocation.asking import Json, what_a_claim_gets

DRIVER = "gpu.example.com"


def _pool(*devices: str, name: str = "p", count: int = 1) -> Json:
    pool = {"name": name, "generation": 1, "resourceSliceCount": count}
    listed = [{"name": one} for one in devices]
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": listed}}


def _request(name: str, count: int = 1) -> Json:
    return {"name": name, "exactly": {"deviceClassName": "any", "count": count}}


def _problem(*slices: Json, requests: list[Json], held: str = "") -> str:
    answer = what_a_claim_gets(slices, requests, [Held(DeviceKey(DRIVER, "p", one), "other") for one in held.split()])
    assert isinstance(answer, NoAllocation)
    return str(answer)


@pytest.mark.parametrize(
    ("slices", "held", "request_", "expected"),
    [
        ([], "", _request("r"), "0 of 1 devices fit; there are none on the node"),
        ([_pool("a")], "", _request("r", 2), "1 of 2 devices fit; there is only 1 on the node"),
        ([_pool("a", "b")], "", _request("r", 3), "2 of 3 devices fit; there are only 2 on the node"),
        ([_pool("a", "b")], "a", _request("r", 2), "1 of 2 devices fit; of 2 devices on the node, 1 in use"),
        ([_pool("a")], "a", _request("r"), "0 of 1 devices fit; of 1 device on the node, 1 in use"),
        (
            [_pool("a", count=2)],
            "",
            _request("r"),
            (
                "0 of 1 devices fit; of 1 device on the node, 1 in unusable pools; pool gpu.example.com/p: it has only "
                "1 of 2 slices of generation 1"
            ),
        ),
        (
            [_pool(count=2)],
            "",
            _request("r"),
            (
                "0 of 1 devices fit; nothing is known about the devices on the node; pool gpu.example.com/p: it has "
                "only 1 of 2 slices of generation 1"
            ),
        ),
    ],
)
def test_a_problem_counts_the_devices_that_fit_and_what_is_in_the_way_of_the_others(
    slices: list[Json], held: str, request_: Json, expected: str
) -> None:
    assert _problem(*slices, requests=[request_], held=held) == f"claim c, request r: {expected}"


def test_a_problem_is_about_the_first_request_that_has_too_few_devices() -> None:
    """Two devices fit the first request, exactly as many as it asks for."""
    said = _problem(_pool("a", "b"), requests=[_request("two", 2), _request("three", 3)])
    assert said == "claim c, request three: 0 of 3 devices fit; of 2 devices on the node, 2 taken by other requests"


def test_a_problem_names_all_alternatives_of_a_request() -> None:
    ways = [{"name": f"w{count}", "deviceClassName": "any", "count": count} for count in (3, 2)]
    said = _problem(_pool("a"), requests=[{"name": "r", "firstAvailable": ways}])
    assert said == (
        "claim c, request r/w3: 1 of 3 devices fit; there is only 1 on the node; or "
        "request r/w2: 1 of 2 devices fit; there is only 1 on the node"
    )


def test_each_device_that_does_not_help_has_a_reason_and_the_others_have_none() -> None:
    held = [Held(DeviceKey(DRIVER, "p", "a"), "other")]
    answer = what_a_claim_gets([_pool("a", "b")], [_request("r", 2)], held)
    assert isinstance(answer, NoAllocation)
    assert [str(one) for one in answer.verdicts] == [
        "gpu.example.com/p/a: is held by claim other",
        "gpu.example.com/p/b: fits alone",
    ]


def test_a_pool_that_only_an_obsolete_slice_has_for_the_node_is_named_and_blocks_nothing() -> None:
    old, new = _pool("a"), _pool("b")
    new["metadata"]["name"], new["spec"]["nodeName"] = "new", "n2"
    new["spec"]["pool"] = {**new["spec"]["pool"], "generation": 2}
    old["spec"]["pool"] = {**old["spec"]["pool"], "resourceSliceCount": 2}
    every = {"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": "All"}}
    given = what_a_claim_gets([old, new, _pool("c", name="other")], [every], [])
    assert isinstance(given, DeviceAllocation)
    assert [one.key.device for one in given.taken] == ["c"]
    refused = what_a_claim_gets([old, new], [_request("r")], [])
    assert isinstance(refused, NoAllocation)
    assert "its slices for the node have generation 1, but generation 2 exists" in str(refused)
    assert not refused.is_error


def test_a_question_is_charged_for_each_step_of_its_search() -> None:
    """If only expressions were charged, a budget could not end a search that has none left to evaluate."""
    charged: list[int] = []
    numbers = [{"name": f"d{number}", "attributes": {"a/b": {"int": number // 2}}} for number in range(12)]
    devices = {**_pool()["spec"], "devices": numbers}
    constraints = [{"requests": ["r", "s"], "matchAttribute": "a/b"}, {"requests": ["s", "t"], "matchAttribute": "a/b"}]
    requests = [_request(name) for name in "rst"]
    spec = {"devices": {"requests": requests, "constraints": constraints}}
    answer = allocate(
        [claim_of({"metadata": {"name": "c"}, "spec": spec})],
        TargetNode("n1"),
        [slice_of({"metadata": {"name": "s"}, "spec": devices})],
        [],
        [DeviceClass("any")],
        charge=charged.append,
        max_steps=100,
    )
    assert isinstance(answer, NoAllocation)
    assert len(charged) > 100 + 3 * 12


@pytest.mark.parametrize(
    ("rank", "is_selected"), [("9223372036854775807", True), ("10000000000000000000000", False), ("1", False)]
)
def test_a_node_selector_compares_whole_numbers_of_64_bits(rank: str, *, is_selected: bool) -> None:
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["1"]}]}]}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeSelector": selector, "pool": pool, "devices": [{"name": "d"}]}
    claim = claim_of({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [_request("r")]}}})
    node = TargetNode("n1", {"rank": rank})
    assert bool(allocate([claim], node, [slice_of({"spec": spec})], [], [DeviceClass("any")])) is is_selected
