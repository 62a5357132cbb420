"""Which devices claims get from each of Kubernetes' three allocators."""

from collections.abc import Collection
from random import Random

from devicecore_tools.testing.allocation_cases import evaluate, random_case
from devicecore_tools.testing.allocation_judge import Judge

from devicecore.domain.allocation import NoAllocation, Release
from devicecore.domain.allocation.faults import KubernetesFault
from devicecore.domain.allocation.search import Situation
from tests.allocation.causes import causes
from tests.oracle.asking import AGREED, Json, Oracle, OracleError, Verdict, differences
from tests.recorded_allocations import allocation_of, devices_of, results_of, situation_of

ALLOCATORS = ("incubating", "experimental", "stable")
GATES = ("AdminAccess", "PrioritizedList", "PartitionableDevices", "DeviceTaints")
OTHER_GATES = ("DeviceBindingAndStatus", "ConsumableCapacity")
GATED = ("allowMultipleAllocations", "requestPolicy", "bindsToNode", "bindingConditions", "bindingFailureConditions")
TRIES = 20


def case(random: Random) -> Json:
    """A small cluster with claims, and an allocator."""
    allocator = random.choice(ALLOCATORS)
    gates = dict.fromkeys(GATES, True) | dict.fromkeys(OTHER_GATES, allocator != "stable")
    made = random_case(random)
    lists = made.pop("features", {})
    if allocator == "stable":  # the API server drops what needs the other gates
        made = _without(made) | {"allocated": {**made["allocated"], "shared": [], "capacity": []}}
    return {"allocator": allocator, "features": {**gates, "ListTypeAttributes": False, **lists}, **made}


def _without(value: Json) -> Json:
    """A value without the fields of sharing, of distinct attributes, and of binding conditions."""
    if isinstance(value, list):
        return [_without(one) for one in value if not (isinstance(one, dict) and "distinctAttribute" in one)]
    if not isinstance(value, dict):
        return value
    return {
        name: _without(below)
        for name, below in value.items()
        if name not in GATED and not (name == "capacity" and isinstance(below, dict) and "requests" in below)
    }


def judge(case: Json, oracle: Oracle) -> Verdict:
    """Compare the devices of each claim, or why there are none. Faults of Kubernetes are named as in docs/claims.md.

    The stable allocator walks Go's maps, so it has several answers to some questions (D18): one of them is ours, or the
    judge finds nothing wrong with what it says.
    """
    try:
        theirs = oracle.ask("allocate", case)
    except OracleError as error:
        if "no allocator available" not in str(error):
            raise
        return AGREED  # this allocator has not all features of the case in this release
    release = Release.of(oracle.version)
    assert release
    answer = allocation_of(case, release)
    ours = {"results": results_of(answer), "error": isinstance(answer, NoAllocation) and answer.is_error}
    lines = list(differences(ours, _outcome(theirs)))
    if not lines:
        return AGREED
    situation, known = situation_of(case, release), faults_of(case["allocator"], release)
    for attempt in range(TRIES if case["allocator"] == "stable" else 1):
        if attempt:
            theirs = oracle.ask("allocate", case)
            if ours == _outcome(theirs):
                return Verdict("D18", lines)
        if found := causes(situation, devices_of(theirs["results"]), known):
            names = "+".join(sorted(fault.value for fault in found[0]))
            return Verdict(names or _unfaulty(ours, theirs, situation, known), lines)
    is_other = case["allocator"] == "stable" and theirs["results"] and not _problem_with(case, theirs["results"])
    return Verdict("D18" if is_other else None, lines)


def faults_of(allocator: str, release: Release) -> frozenset[KubernetesFault]:
    """The faults that an allocator of a release has."""
    mended = {KubernetesFault.FOREIGN_COUNTERS} if allocator == "stable" else set()  # in the other two
    return release.faults | mended


def _problem_with(case: Json, results: Json) -> str:
    """What the judge of allocations finds wrong with these, empty if nothing."""
    return Judge(case, evaluate, sees_node_only=True).problem_with(results)


def _unfaulty(ours: Json, theirs: Json, situation: Situation, known: Collection[KubernetesFault]) -> str | None:
    """The cause of a difference in which nobody gets devices: one of the two stops with an error."""
    if ours["results"] is not None or theirs["results"] is not None:
        return None
    foreign = KubernetesFault.FOREIGN_COUNTERS
    seen = situation.slices.pools(situation.node, situation.features, frozenset({foreign}))
    return foreign.value if foreign in known and seen != situation.pools else "D24"


def _outcome(answer: Json) -> Json:
    return {"results": answer["results"], "error": answer["error"] is not None}
