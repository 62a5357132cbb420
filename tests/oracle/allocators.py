"""The devices that each of Kubernetes' three allocators gives to claims."""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice, product
from random import Random

from devicecore_tools.testing.allocation_cases import random_case

from devicecore.domain.allocation import NoAllocation, Release
from devicecore.domain.allocation.faults import KubernetesFault
from devicecore.domain.allocation.search import Situation
from tests.oracle.asking import AGREED, Json, Oracle, OracleError, Verdict, differences
from tests.oracle.claims import fault_of
from tests.recorded_allocations import allocation_of, results_of, situation_of

ALLOCATORS = ("incubating", "experimental", "stable")
GATES = ("AdminAccess", "PrioritizedList", "PartitionableDevices", "DeviceTaints")
OTHER_GATES = ("DeviceBindingAndStatus", "ConsumableCapacity")
GATED = ("allowMultipleAllocations", "requestPolicy", "bindsToNode", "bindingConditions", "bindingFailureConditions")
TRIES = 20
MOST_BELIEVED = 64  # combinations of slice counts to try


def case(random: Random) -> Json:
    """Return a small cluster with claims, and an allocator."""
    allocator = random.choice(ALLOCATORS)
    gates = dict.fromkeys(GATES, True) | dict.fromkeys(OTHER_GATES, allocator != "stable")
    made = random_case(random)
    lists = made.pop("features", {})
    if allocator == "stable":  # the API server drops the fields of feature gates that are off
        made = _without(made) | {"allocated": {**made["allocated"], "shared": [], "capacity": []}}
        # The stable allocator tries a pool's slices in the order in which they are listed, which a scheduler does not
        # define. The other allocators sort the slices.
        made["slices"].sort(key=_place)
    return {"allocator": allocator, "features": {**gates, "ListTypeAttributes": False, **lists}, **made}


def _place(one: Json) -> Sequence[str]:
    spec = one["spec"]
    return spec["driver"], spec["pool"]["name"], one["metadata"]["name"]


def _without(value: Json) -> Json:
    """Return a value without the fields for sharing, distinct attributes and binding conditions."""
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
    """Compare the devices of each claim or, if there are none, whether the allocator returns an error.

    Kubernetes' bugs have the names that docs/claims.md gives them. The stable allocator walks Go's maps, so it has
    several answers to some questions (D18), and ours must be one of them.
    """
    try:
        theirs = oracle.ask("allocate", case)
    except OracleError as error:
        if "no allocator available" not in str(error):
            raise
        return AGREED  # in this release, the allocator lacks a feature that the case uses
    release = Release.of(oracle.version)
    assert release
    ours = _ours(case, release)
    lines = list(differences(ours, _outcome(theirs)))
    if not lines:
        return AGREED
    situation, known = situation_of(case, release), faults_of(case["allocator"], release)
    is_stable = case["allocator"] == "stable"
    others = [theirs, *(oracle.ask("allocate", case) for _ in range(TRIES - 1 if is_stable else 0))]
    if ours in map(_outcome, others[1:]):
        return Verdict("D18", lines)
    if ours["results"] == theirs["results"]:
        cause = cause_of_error(situation, known, ours=ours["error"], theirs=theirs, is_stable=is_stable)
    else:
        cause = next(filter(None, (fault_of(situation, one["results"], known) for one in others)), None)
    if cause is None and is_stable and any(_is_answer_to(one, theirs, known, release) for one in believed(case)):
        cause = "D27"
    return Verdict(cause, lines)


def believed(case: Json) -> Iterator[Json]:
    """Yield the case once for each choice of slice counts for the pools whose slices state different counts."""
    counts = dict[Json, set[int]]()
    for one in (each["spec"] for each in case["slices"]):
        counts.setdefault(_generation(one), set()).add(one["pool"]["resourceSliceCount"])
    named = {pool: sorted(numbers) for pool, numbers in counts.items() if len(numbers) > 1}
    for chosen in islice(product(*named.values()), MOST_BELIEVED) if named else ():
        of_pool = dict(zip(named, chosen, strict=True))
        slices = [
            {**one, "spec": {**one["spec"], "pool": {**one["spec"]["pool"], "resourceSliceCount": count}}}
            if (count := of_pool.get(_generation(one["spec"])))
            else one
            for one in case["slices"]
        ]
        yield {**case, "slices": slices}


def _generation(spec: Json) -> Json:
    return spec["driver"], spec["pool"]["name"], spec["pool"]["generation"]


def _is_answer_to(case: Json, theirs: Json, known: frozenset[KubernetesFault], release: Release) -> bool:
    """Return whether Kubernetes' answer is right for this case, or wrong because of its known bugs."""
    right, given = _ours(case, release), theirs["results"]
    if given == right["results"]:
        return bool(_outcome(theirs) == right)
    return bool(fault_of(situation_of(case, release), given, known))


def faults_of(allocator: str, release: Release) -> frozenset[KubernetesFault]:
    """Return the known bugs of an allocator in a release."""
    # later releases have fixed this bug only in the other two allocators
    mended = {KubernetesFault.FOREIGN_COUNTERS} if allocator == "stable" else set()
    return release.faults | mended


def cause_of_error(
    situation: Situation, known: Collection[KubernetesFault], *, ours: bool, theirs: Json, is_stable: bool
) -> str | None:
    """Return why only one of the two allocators returns an error for a case without devices.

    D24: the stable allocator finds nothing where ours returns an error. A Kubernetes bug can cause an error because of
    other nodes' pools. It can also hide an error, because other nodes' slices make an invalid pool incomplete.
    """
    foreign = KubernetesFault.FOREIGN_COUNTERS
    seen = situation.slices.pools(situation.node, situation.features, frozenset({foreign}))
    if ours:
        if is_stable:
            return "D24" if theirs["error"] is None else None
        is_told = any(pool.problem and not (pool.is_incomplete or pool.is_obsolete) for pool in seen)
        return foreign.value if foreign in known and not is_told else None
    stops, told = KubernetesFault.ALL_ERROR, theirs["error"] or ""
    if is_stable and stops in known and "a claim constraint would not be satisfied" in told:
        return stops.value  # whether the allocator stops there depends on the order in which it tries devices
    return foreign.value if foreign in known and seen != situation.pools else None


def _ours(case: Json, release: Release) -> Json:
    answer = allocation_of(case, release)
    return {"results": results_of(answer), "error": isinstance(answer, NoAllocation) and answer.is_error}


def _outcome(answer: Json) -> Json:
    return {"results": answer["results"], "error": answer["error"] is not None}
