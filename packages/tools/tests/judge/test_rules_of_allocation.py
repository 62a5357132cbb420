"""The judge names the rule that an answer breaks: each rule is tested with a small wrong answer and a correct one."""

from typing import Any

import pytest
from devicecore_tools.testing.allocation_cases import CLASSES, GPU, NODE, evaluate
from devicecore_tools.testing.allocation_judge import MAX_STEPS, Judge, TooLargeError
from devicecore_tools.testing.allocation_rules import Rule

from tests.recorded import Json

HERE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
USES = [{"counterSet": "set", "counters": {"slots": {"value": "1"}}}]
POLICY = {"default": "1", "validValues": ["1", "2"]}
DEVICES: Json = {
    "whole": {"attributes": {"model": {"string": "L4"}}},
    "other": {"attributes": {"model": {"string": "A100"}}},
    "shared": {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "4", "requestPolicy": POLICY}}},
    "tainted": {"taints": [{"key": "k1", "effect": "NoSchedule"}]},
    "waiting": {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]},
    "one": {"consumesCounters": USES},
    "two": {"consumesCounters": USES},
    "held": {},
}
STALE = [{"name": "stale"}]


def a_slice(name: str, part: Json, *, generation: int = 2, count: int = 2) -> Json:
    """Return a ResourceSlice of the pool p on node n1."""
    pool = {"name": "p", "generation": generation, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": GPU, "nodeName": "n1", "pool": pool, **part}}


def judge(requests: Json, *more: Json, count: int = 2, max_steps: int = MAX_STEPS, **devices_of_claim: Any) -> Judge:  # noqa: ANN401 - JSON
    """Return a judge for one claim with these requests, and for another claim for each item of `more`."""
    sets = [{"name": "set", "counters": {"slots": {"value": "1"}}}]
    devices = [{"name": name, **body} for name, body in DEVICES.items()]
    slices = [
        a_slice("counters", {"sharedCounters": sets}, count=count),
        a_slice("devices", {"devices": devices}, count=count),
        a_slice("old", {"devices": STALE}, generation=1, count=1),
    ]
    claims = [
        {"metadata": {"name": f"c{number}"}, "spec": {"devices": {"requests": one, **devices_of_claim}}}
        for number, one in enumerate((requests, *more))
    ]
    held = {"driver": GPU, "pool": "p", "device": "held"}
    allocated: Json = {"devices": [held], "shared": [], "capacity": []}
    case = {"node": NODE, "classes": CLASSES, "slices": slices, "claims": claims, "allocated": allocated}
    return Judge(case, evaluate, max_steps=max_steps)


def exactly(name: str = "r", **spec: Any) -> Json:  # noqa: ANN401 - JSON
    """Return a request for one device of any kind, unless `spec` says otherwise."""
    return {"name": name, "exactly": {"deviceClassName": "any", **spec}}


def given(device: str, request: str = "r", **fields: Any) -> Json:  # noqa: ANN401 - JSON
    """Return a device in an answer."""
    return {"request": request, "driver": GPU, "pool": "p", "device": device, **fields}


def share(request: str = "r", memory: str = "1") -> Json:
    """Return a share of the shareable device."""
    return given("shared", request, shareID="a", consumedCapacity={"memory": memory})


def answer(*results: Json, config: Json = (), where: Json = HERE) -> Json:
    """Return the `status.allocation` of a claim."""
    devices = {"results": list(results), "config": list(config)}
    return {"devices": devices, "nodeSelector": where and {"nodeSelectorTerms": [where]}}


R = exactly()
TOLERATING = exactly(tolerations=[{"operator": "Exists"}])
KEYS = [{"key": key, "operator": operator} for key in ("k1", "k2") for operator in ("Exists", "Equal")]
WAYS = {"name": "r", "firstAvailable": [{"name": name, "deviceClassName": "any"} for name in ("a", "b")]}
MATCH = [{"matchAttribute": f"{GPU}/model"}]
DISTINCT = [{"distinctAttribute": f"{GPU}/model"}]
OPAQUE = {"opaque": {"driver": GPU, "parameters": {"a": 1}}}
ELSEWHERE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}


@pytest.mark.parametrize(
    ("rule", "asked", "results"),
    [
        (None, judge([R]), answer(given("whole"))),
        (Rule.GENERATION, judge([R]), answer(given("stale"))),
        (Rule.EXISTS, judge([R]), answer(given("unknown"))),
        (Rule.COMPLETE, judge([R], count=3), answer(given("whole"))),
        (Rule.REQUESTS, judge([R]), answer(given("whole", "unknown"))),
        (Rule.REQUESTS, judge([R]), answer()),
        (Rule.COUNT, judge([R]), answer(given("whole"), given("other"))),
        (Rule.ONCE, judge([R]), answer(given("held"))),
        (Rule.DISTINCT_DEVICES, judge([exactly(count=2)]), answer(given("whole"), given("whole"))),
        (Rule.DISTINCT_DEVICES, judge([exactly(count=2)]), answer(share(), share())),
        (None, judge([R, exactly("s")]), answer(share(), share("s"))),
        (Rule.CONSUMED, judge([R]), answer(share(memory="2"))),
        (Rule.SHARE, judge([R]), answer(given("shared", consumedCapacity={"memory": "1"}))),
        (None, judge([TOLERATING]), answer(given("tainted", tolerations=[{"operator": "Exists"}]))),
        *(
            (
                None if one["key"] == "k1" else Rule.TAINTS,
                judge([exactly(tolerations=[one])]),
                answer(given("tainted", tolerations=[one])),
            )
            for one in KEYS
        ),
        (Rule.TAINTS, judge([R]), answer(given("tainted"))),
        (Rule.COPIES, judge([TOLERATING]), answer(given("tainted"))),
        (Rule.COPIES, judge([R]), answer(given("waiting"))),
        (Rule.ADMIN, judge([exactly(adminAccess=True)]), answer(given("held"))),
        (None, judge([exactly(adminAccess=True)]), answer(given("held", adminAccess=True))),
        (None, judge([R]), answer(given("one"))),
        (Rule.COUNTERS, judge([exactly(count=2)]), answer(given("one"), given("two"))),
        (Rule.SELECTORS, judge([exactly(deviceClassName="nic")]), answer(given("whole"))),
        (Rule.CAPACITY_FILTER, judge([exactly(capacity={"requests": {"memory": "1"}})]), answer(given("whole"))),
        (Rule.POLICY, judge([exactly(capacity={"requests": {"memory": "3"}})]), answer(share(memory="3"))),
        (Rule.MATCH, judge([exactly(count=2)], constraints=MATCH), answer(given("whole"), given("other"))),
        (None, judge([exactly(count=2)], constraints=DISTINCT), answer(given("whole"), given("other"))),
        (Rule.DISTINCT, judge([exactly(count=2)], constraints=DISTINCT), answer(given("whole"), given("one"))),
        (None, judge([WAYS]), answer(given("whole", "r/a"))),
        (Rule.ORDER, judge([WAYS]), answer(given("whole", "r/b"))),
        (Rule.FIRST_AVAILABLE, judge([WAYS]), answer(given("whole", "r/a"), given("other", "r/b"))),
        (Rule.TAINTS, judge([exactly(allocationMode="All")]), answer(given("whole"))),
        (Rule.WHERE, judge([R]), answer(given("whole"), where=None)),
        (Rule.WHERE, judge([R]), answer(given("whole"), where=ELSEWHERE)),
        (None, judge([R], config=[OPAQUE]), answer(given("whole"), config=[{"source": "FromClaim", **OPAQUE}])),
        (Rule.CONFIG, judge([R], config=[OPAQUE]), answer(given("whole"))),
        (Rule.POSSIBLE, judge([R]), None),
        (None, judge([exactly(deviceClassName="nic")]), None),
        (None, judge([exactly(deviceClassName="unknown")]), None),
        (None, judge([exactly(allocationMode="Some")]), None),
        (None, judge([exactly(count=33)]), None),
        (None, judge([R], count=3), None),
    ],
)
def test_the_judge_names_the_rule_that_an_answer_breaks(rule: Rule | None, asked: Judge, results: Json) -> None:
    found = asked.breaches(results if results is None else [results])
    assert [one.rule for one in found][:1] == ([rule] if rule else [])


def test_a_breach_says_where_it_is_and_quotes_the_field() -> None:
    text = judge([R]).problem_with([answer(given("tainted"))])
    assert text.startswith('claim c0, request r, device gpu.example.com/p/tainted: tolerations: "Tolerations for')


def test_one_result_is_expected_for_each_claim() -> None:
    assert "2 claims, but 1 results" in judge([R], [R]).problem_with([answer(given("whole"))])


def test_a_device_goes_to_one_of_two_claims_and_admin_access_takes_none() -> None:
    both = [answer(given("whole")), answer(given("whole"))]
    assert [one.rule for one in judge([R], [R]).breaches(both)] == [Rule.ONCE]
    looking = [answer(given("whole", adminAccess=True)), answer(given("whole"))]
    assert judge([exactly(adminAccess=True)], [R]).breaches(looking) == []


def test_the_judge_gives_up_instead_of_guessing() -> None:
    asked = judge([exactly(count=2)], constraints=MATCH)
    assert asked.first() is None
    with pytest.raises(TooLargeError, match="more than 1 devices"):
        judge([exactly(count=2)], constraints=MATCH, max_steps=1).first()
