"""Compares our allocator's answers with the judge's rules."""

import json
from random import Random

from devicecore_tools.testing.allocation_cases import evaluate, random_case
from devicecore_tools.testing.allocation_judge import Judge

from devicecore.domain import allocation
from tests.recorded import Json
from tests.recorded_allocations import features_of, held_of, hold, results_of

GATES = ("AdminAccess", "PrioritizedList", "PartitionableDevices", "DeviceTaints", "DeviceBindingAndStatus")
FEATURES = {**dict.fromkeys(GATES, True), "ConsumableCapacity": True, "ListTypeAttributes": False}


def answer_to(case: Json) -> allocation.DeviceAllocation | allocation.NoAllocation:
    """Return our allocator's result for a case, without using a CEL library."""
    slices = [allocation.slice_of(one) for one in case["slices"]]
    bodies = {
        device: body
        for one, read in zip(case["slices"], slices, strict=True)
        for body, device in zip(one["spec"].get("devices", ()), read.devices, strict=True)
    }

    def matches(expression: str, device: allocation.PoolDevice) -> bool:
        selected = evaluate(expression, device.key.driver, bodies[device])
        if selected is None:
            raise allocation.SelectorError("no such key")
        return selected

    return allocation.allocate(
        [allocation.claim_of(one) for one in case["claims"]],
        allocation.node_of(case["node"]),
        slices,
        held_of(case["allocated"]),
        [allocation.class_of(one) for one in case["classes"]],
        matches=matches,
        features=features_of({**FEATURES, **case.get("features", {})}),
    )


SEES_NODE_ONLY = "right only if other nodes' slices are ignored"


def verdict(case: Json) -> str:
    """Return what the judge says about our first wrong answer in a case, or an empty string if all answers are right.

    The result is `SEES_NODE_ONLY` if some answers are right only when other nodes' slices are ignored.
    """
    allocated, found = json.loads(json.dumps(case["allocated"])), ""
    for number, claims in enumerate([case["claims"], *case.get("later", ())]):
        question = {**case, "claims": claims, "allocated": allocated}
        results = json.loads(json.dumps(results_of(answer_to(question))))
        if Judge(question, evaluate).problem_with(results):
            if problem := Judge(question, evaluate, sees_node_only=True).problem_with(results):
                return f"pod {number}: {problem}"
            found = SEES_NODE_ONLY
        hold(allocated, results or (), number)
    return found


def disagreement(case: Json) -> str:
    """Return what `verdict` returns, except that `SEES_NODE_ONLY` counts as agreement."""
    found = verdict(case)
    return "" if found == SEES_NODE_ONLY else found


def disagreement_on(number: int, seed: str = "judge") -> str:
    """Return how our allocation and the judge disagree on the random case with this number, or an empty string."""
    return disagreement(numbered_case(number, seed))


def numbered_case(number: int, seed: str = "judge") -> Json:
    """Return the random case with this number."""
    return random_case(Random(f"{seed}-{number}"))  # noqa: S311 - no secret
