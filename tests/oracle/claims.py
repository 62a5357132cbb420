"""Allocations of claims, and CEL expressions as in DeviceClasses: the questions, and how two answers are compared."""

import json
from collections.abc import Iterator
from random import Random

from devicecore_tools.testing.allocation_cases import random_case

from devicecore.domain import allocation
from devicecore.domain.allocation.faults import KubernetesFault
from devicecore.domain.allocation.kubernetes import KubernetesAnswer, answer_of_kubernetes
from devicecore.domain.allocation.search import Situation
from tests.allocation.causes import causes
from tests.oracle import expressions
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences
from tests.recorded_allocations import devices_of, features_of, held_of, hold, results_of, selectors, situation_of

GATES = ("AdminAccess", "PrioritizedList", "PartitionableDevices", "DeviceTaints", "DeviceBindingAndStatus")
FEATURES = {**dict.fromkeys(GATES, True), "ConsumableCapacity": True, "ListTypeAttributes": False}


def case(random: Random) -> Json:
    """Return a cluster, and claims that arrive one after another, in one to three questions."""
    made = random_case(random)
    if random.random() < 0.2:
        hold_elsewhere(random, made)
    return made


def hold_elsewhere(random: Random, made: Json) -> None:
    """Add a device on another node to a pool with counters. The device is held, so it consumes some of the counters."""
    sets = [one["spec"] for one in made["slices"] if one["spec"].get("sharedCounters")]
    if not sets:
        return
    spec = random.choice(sets)
    driver, pool = spec["driver"], {**spec["pool"], "resourceSliceCount": spec["pool"]["resourceSliceCount"] + 1}
    for one in made["slices"]:
        if (one["spec"]["driver"], one["spec"]["pool"]) == (driver, spec["pool"]) and one["spec"] is not spec:
            one["spec"]["pool"] = pool
    spec["pool"] = pool
    chosen = random.choice(spec["sharedCounters"])
    used = {name: {"value": str(random.randint(1, 2))} for name in chosen["counters"]}
    device = {"name": "elsewhere", "consumesCounters": [{"counterSet": chosen["name"], "counters": used}]}
    other = {"driver": driver, "pool": pool, "nodeName": "n2", "devices": [device]}
    made["slices"].append({"metadata": {"name": "elsewhere"}, "spec": other})
    made["allocated"]["devices"].append({"driver": driver, "pool": pool["name"], "device": "elsewhere"})


def judge(asked: Json, oracle: Oracle) -> Verdict:
    """Compare the answers to each question, keeping the devices that Kubernetes allocated for earlier questions."""
    release = allocation.Release.of(oracle.version) or allocation.Release.V1_37
    allocated = json.loads(json.dumps(asked["allocated"]))
    for number, claims in enumerate([asked["claims"], *asked["later"]]):
        features = {**FEATURES, **asked.get("features", {})}
        question = {**asked, "claims": claims, "allocated": allocated, "features": features}
        theirs = oracle.ask("allocate", question)
        if "panic" in theirs:
            return Verdict(None, [f"question {number}: {theirs['panic']}"])
        given = [tidy(one) for one in theirs["results"]] if theirs["ok"] else None
        answer = _answer(question, release)
        ours = json.loads(json.dumps(results_of(answer)))
        lines = list(differences(ours, given))
        if lines:
            cause = fault_of(situation_of(question, release), given, release.faults)
            return Verdict(cause, [f"question {number}{line}" for line in lines])
        hold(allocated, given or (), number)
    return AGREED


def fault_of(situation: Situation, given: Json, faults: frozenset[KubernetesFault]) -> str | None:
    """Return the names of the fewest bugs with which a search finds Kubernetes' allocation, or None.

    The result is None unless the search with all of these bugs agrees in every field: our search shares our own bugs,
    and a bug in Kubernetes must not explain away a bug of ours.
    """
    with_all = answer_of_kubernetes(situation, faults)
    if with_all.is_known and json.loads(json.dumps(results_with_faults(situation, with_all))) != given:
        return None
    found = causes(situation, devices_of(given), faults)
    return ", ".join(sorted(fault.value for fault in found[0])) or None if found else None


def results_with_faults(situation: Situation, answer: KubernetesAnswer) -> Json:
    """Return the results of a search with Kubernetes' bugs, in Kubernetes' format, or None if it finds nothing."""
    if answer.taken is None:
        return None
    node, classes, features = situation.node, situation.classes, situation.features
    claims, taken = tuple(situation.claims), answer.taken
    found = allocation.DeviceAllocation(claims, node, classes, features, taken, (), situation.release)
    return [tidy(one) for one in results_of(found)]


def _answer(question: Json, release: allocation.Release) -> allocation.DeviceAllocation | allocation.NoAllocation:
    features = features_of(question["features"])
    return allocation.allocate(
        [allocation.claim_of(one) for one in question["claims"]],
        allocation.node_of(question["node"]),
        [allocation.slice_of(one) for one in question["slices"]],
        held_of(question["allocated"]),
        [allocation.class_of(one) for one in question["classes"]],
        matches=selectors(features),
        features=features,
        release=release,
    )


def tidy(result: Json) -> Json:
    """Return a result without the empty values that Go writes."""
    devices = {name: value for name, value in result["devices"].items() if value}
    return {**result, "devices": {"results": [], **devices}}


# --- expressions ------------------------------------------------------------------------------------------------------


def expression(random: Random) -> Json:
    """Return an expression, and the devices for which it is evaluated."""
    devices = [{"name": f"device-{number}", "device": body} for number, body in enumerate(expressions.DEVICES)]
    return {"expression": expressions.expression(random), "driver": expressions.DRIVER, "devices": devices}


def judge_expression(asked: Json, oracle: Oracle) -> Verdict:
    """Compare the value (or its absence) for each device, and the message for a result of the wrong type."""
    theirs = oracle.ask("cel", {**asked, "features": {"ConsumableCapacity": True}})
    given = [one["result"] for one in theirs["devices"]] or [None] * len(asked["devices"])
    ours = list(_values(asked))
    refusal = theirs["compileError"] or ""
    if _OF_TYPE in refusal and (problem := _problem_of(asked["expression"])) != refusal:
        is_word = problem == refusal.replace("google.protobuf.Any", "dyn")
        return Verdict("the name of dyn" if is_word else None, [asked["expression"], *differences(problem, refusal)])
    if ours == given:
        return AGREED
    errors = [str(one["error"]) for one in theirs["devices"]] or [refusal] * len(given)
    causes_of = {
        cause_of_value(asked["expression"], error, ours=mine, theirs=other)
        for mine, other, error in zip(ours, given, errors, strict=True)
        if mine != other
    }
    cause = causes_of.pop() if len(causes_of) == 1 else None
    return Verdict(cause, [asked["expression"], *differences(ours, given)])


_OF_TYPE = "must evaluate to bool"


def _problem_of(expression: str) -> str:
    """Return what is wrong with an expression, or an empty string if it is valid."""
    try:
        selectors(allocation.Features()).check(expression)
    except allocation.SelectorError as error:
        return error.problem
    return ""


def _values(asked: Json) -> Iterator[bool | None]:
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": asked["driver"], "nodeName": "node", "pool": pool}
    for one in asked["devices"]:
        devices = [{**one["device"], "name": one["name"]}]
        (device,) = allocation.slice_of({"metadata": {"name": "slice"}, "spec": {**spec, "devices": devices}}).devices
        try:
            yield selectors(allocation.Features())(asked["expression"], device)
        except allocation.SelectorError:
            yield None


def cause_of_value(text: str, error: str, *, ours: bool | None, theirs: bool | None) -> str | None:
    """Return the row of docs/claims.md that explains why two values for one device differ, or None."""
    if "no such overload" in error and "==" in text and theirs is None and ours is not None:
        return "a version compared with a computed value"
    return "missing in []" if " in []" in text and None in (ours, theirs) else None
