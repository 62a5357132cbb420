"""Compares our allocation with the judge."""

from collections.abc import Iterator
from random import Random

from devicecore_tools.testing.allocation_cases import EXPRESSIONS, random_case
from devicecore_tools.testing.allocation_judge import Judge

from devicecore.domain import allocation
from tests.recorded import Json
from tests.recorded_allocations import held_of, results_of


def answer_to(case: Json) -> allocation.DeviceAllocation | allocation.NoAllocation:
    """What our allocation answers to a case, without a library for CEL."""
    slices = [allocation.slice_of(one) for one in case["slices"]]
    bodies = {
        device: body
        for one, read in zip(case["slices"], slices, strict=True)
        for body, device in zip(one["spec"].get("devices", ()), read.devices, strict=True)
    }

    def matches(expression: str, device: allocation.PoolDevice) -> bool:
        return EXPRESSIONS[expression](device.key.driver, bodies[device])

    return allocation.allocate(
        [allocation.claim_of(one) for one in case["claims"]],
        allocation.node_of(case["node"]),
        slices,
        held_of(case["allocated"]),
        [allocation.class_of(one) for one in case["classes"]],
        matches=matches,
    )


def disagreement(case: Json) -> str:
    """In what our allocation and the judge differ, empty if in nothing."""
    judge = Judge(case, lambda expression, driver, device: EXPRESSIONS[expression](driver, device))
    answer = answer_to(case)
    if problem := judge.problem_with(results_of(answer)):
        return problem
    if isinstance(answer, allocation.DeviceAllocation) and not _may_differ(case):
        ours = [(one.claim, one.request.result_name, tuple(one.key)) for one in answer.taken]
        first = [(one.claim, one.names[-1], one.key) for one in judge.first() or ()]
        return "" if ours == first else f"expected the devices that come first, {first}, got {ours}"
    return ""


def _may_differ(case: Json) -> bool:
    """Whether Kubernetes may find other devices than those that come first, which are right as well."""
    requests = (one for claim in case["claims"] for one in claim["spec"]["devices"]["requests"])
    return any(one["spec"].get("sharedCounters") for one in case["slices"]) or any(
        one.get("exactly", {}).get("adminAccess") for one in requests
    )


def disagreements(cases: int, seed: str = "judge") -> Iterator[str]:
    """In what they differ on each of so many cases, empty for most."""
    return (disagreement(random_case(Random(f"{seed}-{number}"))) for number in range(cases))  # noqa: S311 - no secret
