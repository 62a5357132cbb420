"""Searches that have to backtrack: what Kubernetes does not undo, and which searches must not be abandoned early."""

from collections.abc import Mapping

import pytest

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceClass,
    NoAllocation,
    PoolDevice,
    QuestionGivenUpError,
    Release,
    TargetNode,
    allocate,
    claim_of,
    search,
    slice_of,
)
from devicecore.domain.allocation.alignment import shortages
from devicecore.domain.allocation.model import DeviceRequest
from tests.recorded import Json

X = "gpu.example.com/x"
USES: Mapping[str, int] = {"s": 2, "f": 2}
POOL = {"name": "p", "generation": 1, "resourceSliceCount": 2}
HEAD = {"driver": "gpu.example.com", "nodeName": "n1", "pool": POOL}


def _device(name: str, x: int) -> Json:
    """Return a device. The name determines how many units the device consumes; only the device `s` may be shared."""
    counters = {"units": {"value": str(USES.get(name, 0))}}
    uses = {"consumesCounters": [{"counterSet": "c", "counters": counters}]} if name in USES else {}
    return {"name": name, "attributes": {"x": {"int": x}}, "allowMultipleAllocations": name == "s", **uses}


def _request(name: str, of: str = "", count: int = 1) -> Json:
    """Return a request for `count` of the devices whose names are in `of`, or of all devices."""
    selectors = [{"cel": {"expression": of}}] if of else []
    return {"name": name, "exactly": {"deviceClassName": "any", "selectors": selectors, "count": count}}


def _names(expression: str, device: PoolDevice) -> bool:
    return device.key.device in expression.split()


def _answer(
    devices: list[Json],
    requests: list[Json],
    constraint: Json,
    units: int = 0,
    release: Release = Release.V1_37,
) -> DeviceAllocation | NoAllocation:
    counters = {"sharedCounters": [{"name": "c", "counters": {"units": {"value": str(units)}}}]}
    slices = [slice_of({"spec": {**HEAD, **part}}) for part in ({"devices": devices}, counters)]
    spec = {"devices": {"requests": requests, "constraints": [constraint]}}
    claim = claim_of({"metadata": {"name": "c"}, "spec": spec})
    return allocate([claim], TargetNode("n1"), slices, [], [DeviceClass("any")], matches=_names, release=release)


def _taken(answer: DeviceAllocation | NoAllocation) -> list[str]:
    assert isinstance(answer, DeviceAllocation), answer
    return [one.key.device for one in answer.taken]


@pytest.mark.parametrize("release", Release)
def test_a_share_that_was_given_back_is_taken_again_and_paid_for_once(release: Release) -> None:
    """Up to Kubernetes 1.36.2, the counters of the returned share stay consumed, and are not consumed a second time."""
    requests = [_request("a", "s e"), _request("b", "s"), _request("c", "f")]
    constraint = {"requests": ["a", "b"], "distinctAttribute": X}
    answer = _answer([_device("s", 1), _device("e", 2), _device("f", 3)], requests, constraint, 4, release)
    assert _taken(answer) == ["e", "s", "f"]
    assert isinstance(answer, DeviceAllocation)
    assert answer.faults == ()


@pytest.mark.parametrize("release", Release)
def test_a_share_that_was_given_back_is_taken_again_although_its_counters_are_consumed(release: Release) -> None:
    requests = [_request("a", "s e"), _request("b", "s")]
    constraint = {"requests": ["a", "b"], "distinctAttribute": X}
    answer = _answer([_device("s", 1), _device("e", 2)], requests, constraint, 2, release)
    assert _taken(answer) == ["e", "s"]
    assert isinstance(answer, DeviceAllocation)
    assert answer.faults == ()


@pytest.mark.parametrize("release", Release)
def test_a_share_that_was_given_back_has_not_paid_for_counters_that_others_then_take(release: Release) -> None:
    requests = [_request("a", "s f"), _request("b", "s")]
    constraint = {"requests": ["a", "b"], "distinctAttribute": X}
    answer = _answer([_device("s", 1), _device("f", 2)], requests, constraint, 2, release)
    assert isinstance(answer, NoAllocation)
    assert answer.faults == ()


@pytest.mark.parametrize("release", Release)
def test_a_share_that_was_given_back_leaves_its_counters_to_others_since_1_36_3(release: Release) -> None:
    requests = [_request("z", "g"), _request("a", "s e1"), _request("b", "e2"), _request("c", "f")]
    devices = [_device("s", 1), _device("e1", 2), _device("e2", 2), _device("f", 3), _device("g", 4)]
    answer = _answer(devices, requests, {"requests": ["a", "b"], "matchAttribute": X}, 2, release)
    assert _taken(answer) == ["g", "e1", "e2", "f"]
    assert isinstance(answer, DeviceAllocation)
    assert answer.faults == (("k/k#140436:undo-shared",) if release is Release.V1_36_2 else ())


def test_exactly_as_many_devices_with_one_value_as_requested_are_enough() -> None:
    devices = [_device("d0", 1), _device("d1", 2), _device("d2", 2)]
    assert _taken(_answer(devices, [_request("a", count=2)], {"matchAttribute": X})) == ["d1", "d2"]


def test_each_value_satisfies_as_many_constraints_as_its_devices_allow() -> None:
    requests = [_request(name, count=2) for name in "ab"]
    constraints = [{"requests": [name], "matchAttribute": X} for name in "ab"]
    claim = claim_of(
        {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests, "constraints": constraints}}}
    )

    def found(*values: int) -> list[tuple[int, Mapping[str, int], str]]:
        listed = [_device(f"d{number}", x) for number, x in enumerate(values)]
        devices = slice_of({"spec": {**HEAD, "devices": listed}}).devices

        def usable(_request: DeviceRequest) -> tuple[PoolDevice, ...]:
            return devices

        return [(one.wanted, one.supply, one.nearest) for one in shortages(claim, usable)]

    assert found(1, 1, 1, 1) == found(1, 1, 2, 2, 3) == []
    assert found(1, 1, 1) == [(2, {"1 (int)": 1}, "1 (int)")]
    assert found(1, 2, 2, 3) == [(2, {"1 (int)": 0, "2 (int)": 1, "3 (int)": 0}, "2 (int)")]


def test_a_question_that_has_used_up_its_budget_is_unknown() -> None:
    def charge(_reasons: int) -> None:
        raise QuestionGivenUpError("the budget is used up")

    claim = claim_of({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [_request("a")]}}})
    broken = slice_of({"spec": {**HEAD, "devices": [_device("d", 1)]}})
    whole = slice_of(
        {"spec": {**HEAD, "pool": {**POOL, "name": "q", "resourceSliceCount": 1}, "devices": [_device("d", 1)]}}
    )
    answer = allocate([claim], TargetNode("n1"), [broken, whole], [], [DeviceClass("any")], charge=charge)
    assert isinstance(answer, NoAllocation)
    assert (str(answer), answer.is_unknown, answer.verdicts) == ("the budget is used up", True, ())
    assert answer.unusable == ("pool gpu.example.com/p: it has only 1 of 2 slices of generation 1",)


def test_an_alternative_that_leaves_no_room_for_the_other_requests_is_not_taken() -> None:
    ways = [{"name": f"of-{count}", "deviceClassName": "any", "count": count} for count in (30, 1)]
    requests = [{"name": "a", "firstAvailable": ways}, _request("b", count=10)]
    claim = claim_of({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})
    devices = slice_of(
        {
            "spec": {
                **HEAD,
                "pool": {**POOL, "resourceSliceCount": 1},
                "devices": [_device(f"d{n}", n) for n in range(40)],
            }
        }
    )
    assert len(_taken(allocate([claim], TargetNode("n1"), [devices], [], [DeviceClass("any")]))) == 11


def test_a_search_of_too_many_pairs_of_requests_and_devices_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_PAIRS", 1)
    answer = _answer([_device("d0", 1), _device("d1", 1)], [_request("a", count=2)], {"matchAttribute": X})
    assert isinstance(answer, NoAllocation)
    assert answer.is_unknown
    assert str(answer) == "the search was abandoned after 1 pairs of a request and a device"
