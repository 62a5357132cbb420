"""The text of each reason why a device is not allocated.

Law: the text of a reason is one line that names the obstacle, with its value.
"""

from collections.abc import Callable, Mapping, Sequence

import pytest

from devicecore.domain import allocation

Json = Mapping[str, object]

GPU = {"name": "gpu-0", "attributes": {"model": {"string": "A100"}}, "capacity": {"memory": {"value": "40Gi"}}}
SHARED = GPU | {"allowMultipleAllocations": True}
H100 = {"name": "gpu-1", "attributes": {"model": {"string": "H100"}}}
BROKEN = {"key": "example.com/broken", "value": "yes", "effect": "NoSchedule"}
POLICY = {"default": "10Gi", "validValues": ["10Gi", "20Gi"]}
IS_H100 = {"selectors": [{"cel": {"expression": "model ==\n 'H100' && memory && driver && allowMultipleAllocations"}}]}
RESULT = {"driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
HOLDER = {
    "metadata": {"namespace": "ml", "name": "train"},
    "status": {"reservedFor": [{"name": "pod-a"}], "allocation": {"devices": {"results": [RESULT]}}},
}
SHARED_RESULT = RESULT | {"shareID": "a", "consumedCapacity": {"memory": "10Gi"}}
SHARE: Json = {"metadata": {"name": "share"}, "status": {"allocation": {"devices": {"results": [SHARED_RESULT]}}}}


def _refuses(_expression: str, _device: allocation.PoolDevice) -> bool:
    return False


def _fails(_expression: str, _device: allocation.PoolDevice) -> bool:
    message = "no such key: speed"
    raise allocation.SelectorError(message, at_run_time=True)


def _first_reason(
    *devices: Json,
    request: Json | None = None,
    constraints: Sequence[Json] = (),
    counters: Sequence[Json] = (),
    holder: Json | None = None,
    matches: allocation.Matches = _refuses,
    features: allocation.Features = allocation.Features(),
    node: str = "n1",
    second: bool = False,
) -> str:
    """Return the text of the first reason why no device is allocated to a request for one device."""
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1 + bool(counters)}
    shared: Json = {"driver": "gpu.example.com", "nodeName": node, "pool": pool}
    specs: list[Json] = [{"devices": list(devices), **shared}]
    specs += [{"sharedCounters": list(counters), **shared}] if counters else []
    names = ("r", "s") if second else ("r",)
    requests = [{"name": name, "exactly": {"deviceClassName": "gpu", **(request or {})}} for name in names]
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests, "constraints": list(constraints)}}}
    answer = allocation.allocate(
        [allocation.claim_of(claim)],
        allocation.TargetNode("n1"),
        [
            allocation.slice_of({"metadata": {"name": f"slice-{index}"}, "spec": spec})
            for index, spec in enumerate(specs)
        ],
        allocation.held_by(holder) if holder else (),
        [allocation.DeviceClass("gpu")],
        matches=matches,
        features=features,
    )
    assert isinstance(answer, allocation.NoAllocation)
    return next((str(one.reason) for one in answer.verdicts if one.reason), str(answer))


CARD = [{"name": "card", "counters": {"slots": {"value": "2"}}}]
COUNTED = GPU | {"consumesCounters": [{"counterSet": "card", "counters": {"slots": {"value": "3"}}}]}
BINDING = GPU | {"bindingConditions": ["attached"], "bindingFailureConditions": ["lost"]}
POLICED = SHARED | {"capacity": {"memory": {"value": "40Gi", "requestPolicy": POLICY}}}

REASONS = {
    "claim c, request r: 0 of 1 devices fit; there are none on the node": lambda: _first_reason(GPU, node="n2"),
    "request r wants model == 'H100' && memory && driver && allowMultipleAllocations but the driver is "
    'gpu.example.com; model is "A100"; memory is 40Gi; it is not shared': lambda: _first_reason(GPU, request=IS_H100),
    "claim c: selector #0 on device gpu.example.com/n1/gpu-0: CEL runtime error: no such key: speed": lambda: (
        _first_reason(GPU, request=IS_H100, matches=_fails)
    ),
    "is held by claim ml/train of pod pod-a": lambda: _first_reason(GPU, holder=HOLDER),
    "is held by claim share": lambda: _first_reason(GPU, holder=SHARE),  # the device is no longer shared
    "is taken by request r of claim c": lambda: _first_reason(GPU, second=True),
    "has the taint example.com/broken=yes:NoSchedule": lambda: _first_reason(GPU | {"taints": [BROKEN]}),
    "needs 3 of counter card/slots, but 2 is free": lambda: _first_reason(COUNTED, counters=CARD),
    "the request asks for 50Gi of memory, but the device has 40Gi": lambda: _first_reason(
        SHARED, request=_wants(memory="50Gi")
    ),
    "has no capacity speed": lambda: _first_reason(SHARED, request=_wants(speed="1")),
    "gives out memory only in shares of 10Gi, 20Gi, not of 30Gi": lambda: _first_reason(
        POLICED, request=_wants(memory="30Gi")
    ),
    'breaks matchAttribute gpu.example.com/model: it has "H100", and the others have "A100"': lambda: _first_reason(
        GPU, H100, request={"count": 2}, constraints=[{"matchAttribute": "gpu.example.com/model"}]
    ),
    "breaks matchAttribute gpu.example.com/speed: it has no such attribute": lambda: _first_reason(
        GPU, H100, request={"allocationMode": "All"}, constraints=[{"matchAttribute": "gpu.example.com/speed"}]
    ),
    "needs the feature gate DRADeviceBindingConditions": lambda: _first_reason(
        BINDING, features=allocation.Features(binding_conditions=False)
    ),
    "pool gpu.example.com/n1: the device gpu-0 appears twice": lambda: _first_reason(GPU, GPU),
}
"""The cases, by expected text."""


def _wants(**capacity: str) -> Json:
    return {"capacity": {"requests": capacity}}


@pytest.mark.parametrize(("text", "reason"), REASONS.items(), ids=range(len(REASONS)))
def test_a_reason_names_the_obstacle_on_one_line(text: str, reason: Callable[[], str]) -> None:
    assert reason() == text


def _slice(name: str, count: int, *devices: Json, **more: object) -> allocation.PoolSlice:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": count}
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": list(devices), **more}
    return allocation.slice_of({"metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize(("selectors", "found"), [([], ["d1", "d2"]), (["first"], None)])
def test_an_expression_without_a_value_is_fine_where_kubernetes_never_evaluates_it(
    selectors: list[str], found: list[str] | None
) -> None:
    """Kubernetes skips d0 because its counters are exhausted, so it never gets to d3."""

    def matches(expression: str, device: allocation.PoolDevice) -> bool:
        is_first = device.key.device == "d0" or expression != "first"
        return _fails(expression, device) if device.key.device == "d3" and is_first else is_first

    def device(name: str, node: int) -> dict[str, object]:
        return {"name": name, "attributes": {"numa": {"int": node}}}

    first = device("d0", 0) | {"consumesCounters": COUNTED["consumesCounters"]}
    devices = [first, device("d1", 1), device("d2", 1), device("d3", 0)]
    slices = [_slice("a", 2, *devices), _slice("b", 2, sharedCounters=CARD)]
    admin = {"adminAccess": True, "selectors": [{"cel": {"expression": one}} for one in selectors]}
    requests: list[Json] = [
        {"name": "r", "exactly": {"deviceClassName": "gpu", **admin}},
        {"name": "s", "exactly": {"deviceClassName": "gpu", **IS_H100}},
    ]
    constraints = [{"matchAttribute": "gpu.example.com/numa"}]
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests, "constraints": constraints}}}
    wanted, node = [allocation.claim_of(claim)], allocation.TargetNode("n1")
    answer = allocation.allocate(wanted, node, slices, [], [allocation.DeviceClass("gpu")], matches=matches)
    if isinstance(answer, allocation.DeviceAllocation):
        assert [one.key.device for one in answer.devices()] == found
    else:
        assert found is None
        assert not answer.is_error


@pytest.mark.parametrize(("counts", "is_complete"), [((1, 2), False), ((2, 1), True)])
def test_the_first_known_of_different_counts_is_used(counts: tuple[int, int], *, is_complete: bool) -> None:
    slices = [_slice("b", counts[0], GPU), _slice("a", counts[1], H100)]
    (pool,) = allocation.Slices(slices).pools(allocation.TargetNode("n1"), allocation.Features())
    assert pool.is_incomplete is not is_complete


def test_claims_that_ask_for_no_device_get_none_and_no_fault_is_in_the_way() -> None:
    answer = allocation.allocate([allocation.UnallocatedClaim("c", ())], allocation.TargetNode("n1"), [], [], [])
    assert isinstance(answer, allocation.DeviceAllocation)
    assert (answer.taken, answer.faults) == ((), ())


@pytest.mark.parametrize(
    ("selector", "at_run_time", "device"),
    [
        ({"cel": {"expression": "speed"}}, True, "gpu.example.com/n1/gpu-0"),
        ({"cel": {"expression": "speed"}}, False, None),
        ({}, True, None),
    ],
)
def test_an_expression_error_names_the_device_it_has_no_value_for(
    selector: Json, *, at_run_time: bool, device: str | None
) -> None:
    def fails(_expression: str, _device: allocation.PoolDevice) -> bool:
        message = "no such key: speed"
        raise allocation.SelectorError(message, at_run_time=at_run_time)

    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": [selector]}}]
    wanted = [allocation.claim_of({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})]
    node, slices = allocation.TargetNode("n1"), [_slice("a", 1, GPU)]
    answer = allocation.allocate(wanted, node, slices, [], [allocation.DeviceClass("gpu")], matches=fails)
    assert isinstance(answer, allocation.NoAllocation)
    assert answer.expression_error is not None
    assert str(answer) == str(answer.expression_error)
    assert (answer.expression_error.device and str(answer.expression_error.device)) == device


def test_an_error_of_a_request_is_none_of_an_expression() -> None:
    requests = [{"name": "r", "exactly": {"deviceClassName": "unknown"}}]
    wanted = [allocation.claim_of({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})]
    answer = allocation.allocate(wanted, allocation.TargetNode("n1"), [], [], [])
    assert isinstance(answer, allocation.NoAllocation)
    assert (answer.is_error, answer.expression_error) == (True, None)
