"""The judge and our allocation agree, and the judge finds faults injected into an allocation."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from devicecore_tools.testing.allocation_cases import CLASSES, allocation_cases
from hypothesis import given
from tests.judge.judging import disagreement, disagreement_on

from devicecore.domain.allocation import capacity, kubernetes, pools, search
from tests.recorded import Json

Search = search.Search


@given(allocation_cases())
def test_the_allocation_and_the_judge_agree(case: Json) -> None:
    """The claims get devices if and only if the rules allow it."""
    assert disagreement(case) == ""


def test_the_allocation_and_the_judge_agree_on_many_cases() -> None:
    assert {disagreement_on(number) for number in range(80)} == {""}


@pytest.mark.parametrize("operator", ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
@pytest.mark.parametrize("part", ["matchExpressions", "matchFields"])
def test_the_judge_handles_each_node_selector_operator(operator: str, part: str) -> None:
    keys = ("zone", "rank", "role", "none") if part == "matchExpressions" else ("metadata.name",)
    values = {"In": ["a", "n1"], "NotIn": ["a", "n1"], "Gt": ["4"], "Lt": ["6"]}.get(operator, [])
    labels = {"zone": "a", "rank": "5", "role": ""}
    for key in keys:
        selector = {"nodeSelectorTerms": [{part: [{"key": key, "operator": operator, "values": values}]}]}
        assert _disagreement(labels, {"nodeSelector": selector, "devices": [{"name": "d0"}]}) == ""


def test_if_counts_of_slices_differ_the_judge_takes_that_of_the_nodes_own_slices() -> None:
    of_all = {"allNodes": True, "devices": [{"name": "d0"}]}
    of_node = {"nodeName": "n1", "devices": [{"name": "d1"}]}
    assert _disagreement({}, of_all, of_node, counts=(2, 1)) == _disagreement({}, of_all, of_node, counts=(1, 2)) == ""


def test_the_judge_allocates_no_device_from_an_overcommitted_counter() -> None:
    slots = {amount: {"counters": {"slots": {"value": amount}}} for amount in "012"}
    uses = [{"name": f"d{amount}", "consumesCounters": [{"counterSet": "set", **slots[amount]}]} for amount in "02"]
    counters = {"nodeName": "n1", "sharedCounters": [{"name": "set", **slots["1"]}]}
    assert _disagreement({}, counters, {"nodeName": "n1", "devices": uses}, counts=(2, 2), held="d2") == ""


def _disagreement(labels: Json, *specs: Json, counts: Sequence[int] = (1,), held: str = "") -> str:
    """Return what the judge says about our allocation for one claim for a device, with one pool of these slices."""
    request = {"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}}
    claim = {"metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
    pools = [{"name": "p", "generation": 1, "resourceSliceCount": count} for count in counts]
    slices = [
        {"metadata": {"name": f"s{number}"}, "spec": {"driver": "gpu.example.com", "pool": pool, **spec}}
        for number, (pool, spec) in enumerate(zip(pools, specs, strict=True))
    ]
    device = {"driver": "gpu.example.com", "pool": "p", "device": held}
    allocated: Json = {"devices": [device] if held else [], "shared": [], "capacity": []}
    node = {"metadata": {"name": "n1", "labels": labels}}
    return disagreement({"node": node, "classes": CLASSES, "slices": slices, "claims": [claim], "allocated": allocated})


ROOT = Path(__file__).parents[4]
YES, NO = True, False


def _returns(value: object) -> Callable[..., object]:
    return lambda *_, **__: value


MUTATIONS: dict[str, tuple[object, str, object]] = {
    "taints are ignored": (Search, "_repelled", _returns(None)),
    "constraints are ignored": (Search, "_constraint_broken", _returns(None)),
    "constraints always hold": (Search, "_agree", _returns(YES)),
    "counters are ignored": (Search, "_counters_exhausted", _returns(None)),
    "each share consumes the counters again": (Search, "_counters_are_paid", _returns(NO)),
    "the counters always count as consumed already": (Search, "_counters_are_paid", _returns(YES)),
    "allocated devices consume no counters": (Search, "_paying", lambda *_: iter(())),
    "capacity is ignored": (Search, "_over_capacity", _returns(None)),
    "shares are forgotten": (Search, "_shares", lambda *_: iter(())),
    "a device is given twice": (Search, "_in_use", _returns(None)),
    "admin access takes devices away": (Search, "_blocks", _returns(YES)),
    "no claim takes devices away": (Search, "_blocks", _returns(NO)),
    "admin access consumes capacity": (Search, "_consumes_capacity", _returns(YES)),
    "no claim consumes capacity": (Search, "_consumes_capacity", _returns(NO)),
    "admin access consumes counters": (Search, "_consumes_counters", _returns(YES)),
    "no claim consumes counters": (Search, "_consumes_counters", _returns(NO)),
    "no device is shared": (Search, "_is_shared", _returns(NO)),
    "each device is shared": (Search, "_is_shared", _returns(YES)),
    "each device is selected": (Search, "unselected", _returns(None)),
    "shares of devices that can no longer be shared are forgotten": (Search, "_shares_block", _returns(NO)),
    "all devices have enough left": (Search, "_is_meant", lambda self, *of: not self._over_capacity(*of)),
    "a capacity has only one name": (search, "by_own_names", lambda amounts, _: amounts),
    "a fault leaves out a claim's first alternative": (kubernetes, "_leaves_out_alternative", _returns(NO)),
    "policies do not round": (capacity, "_rounded_up", lambda asked, *_: asked),
    "policies allow everything": (capacity, "_violated", _returns("")),
    "contradictions in pools are ignored": (pools, "_contradiction", _returns("")),
    "old generations are used": (pools, "max", lambda found, **_: min(found, default=0)),
}


KNOWN = {
    "taints are ignored": 16,
    "counters are ignored": 17,
    "each share consumes the counters again": 14,
    "the counters always count as consumed already": 17,
    "allocated devices consume no counters": 196,
    "capacity is ignored": 68,
    "shares are forgotten": 68,
    "a device is given twice": 12,
    "admin access takes devices away": 578,
    "no claim takes devices away": 191,
    "admin access consumes capacity": 39,
    "no claim consumes capacity": 176,
    "admin access consumes counters": 196,
    "no claim consumes counters": 17,
    "each device is shared": 17,
    "each device is selected": 16,
    "shares of devices that can no longer be shared are forgotten": 159,
    "all devices have enough left": 112,
    "a capacity has only one name": 540,
    "a fault leaves out a claim's first alternative": 1988,
    "policies do not round": 927,
    "policies allow everything": 782,
    "contradictions in pools are ignored": 20,
}
"""For each of these mutations, the number of a random case that exposes it. Case 0 exposes all other mutations."""


@pytest.mark.no_cover  # these cases must not count toward coverage
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_judge_finds(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The known case exposes the mutation, or another case does if the cases have changed."""
    where, name, instead = MUTATIONS[mutation]
    monkeypatch.setattr(where, name, instead, raising=False)
    assert any(_differs(number) for number in (KNOWN.get(mutation, 0), *range(4_000)))


def _differs(number: int) -> bool:
    try:
        return bool(disagreement_on(number, "mutation"))
    except (KeyError, IndexError, RuntimeError):
        return True  # a mutation may also break code that relies on the mutated function


def test_the_published_cases_are_answered_right_by_our_allocation_and_by_the_program() -> None:
    """An allocator that always refuses is reported in each satisfiable case."""
    cases = [json.loads(line) for line in (ROOT / "docs" / "claims" / "cases.jsonl").read_text().splitlines()]
    assert [disagreement(case) for case in cases] == [""] * len(cases)
    command = [sys.executable, "tools/try_allocator.py", "echo", "null"]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 1
    assert len(run.stdout.splitlines()) == sum(case["possible"] is not None for case in cases)
