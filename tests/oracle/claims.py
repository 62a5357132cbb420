"""Allocations of claims, and CEL expressions of DeviceClasses: what is asked, and how two answers are compared."""

import json
from collections.abc import Iterator
from random import Random

from devicecore_tools.testing.allocation_cases import random_case

from devicecore.domain import allocation
from tests.allocation.causes import causes
from tests.oracle import expressions
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences
from tests.recorded_allocations import devices_of, features_of, held_of, hold, results_of, selectors, situation_of

GATES = ("AdminAccess", "PrioritizedList", "PartitionableDevices", "DeviceTaints", "DeviceBindingAndStatus")
FEATURES = {**dict.fromkeys(GATES, True), "ConsumableCapacity": True, "ListTypeAttributes": False}


def case(random: Random) -> Json:
    """One to three questions about one cluster: the claims that come one after another."""
    return random_case(random)


def judge(asked: Json, oracle: Oracle) -> Verdict:
    """Compare the answers to each question, with what Kubernetes has given before allocated."""
    release = allocation.Release.of(oracle.version) or allocation.Release.V1_37
    allocated = json.loads(json.dumps(asked["allocated"]))
    for number, claims in enumerate([asked["claims"], *asked["later"]]):
        features = {**FEATURES, **asked.get("features", {})}
        question = {**asked, "claims": claims, "allocated": allocated, "features": features}
        theirs = oracle.ask("allocate", question)
        if "panic" in theirs:
            return Verdict(f"Kubernetes panics: {theirs['panic']}", ())
        given = [_tidy(one) for one in theirs["results"]] if theirs["ok"] else None
        answer = _answer(question, release)
        lines = list(differences(json.loads(json.dumps(results_of(answer))), given))
        if lines:
            cause = ", ".join(answer.faults) or _fault_of(question, release, given)
            return Verdict(cause, [f"question {number}{line}" for line in lines])
        hold(allocated, given or (), number)
    return AGREED


def _fault_of(question: Json, release: allocation.Release, given: Json) -> str | None:
    """The fewest faults with which a search finds what Kubernetes has given, None if there are none."""
    found = causes(situation_of(question, release), devices_of(given))
    return ", ".join(sorted(fault.value for fault in found[0])) or None if found else None


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


def _tidy(result: Json) -> Json:
    """Leave out what Go writes of nothing."""
    devices = {name: value for name, value in result["devices"].items() if value}
    return {**result, "devices": {"results": [], **devices}}


# --- expressions ------------------------------------------------------------------------------------------------------


def expression(random: Random) -> Json:
    """An expression, with the devices for which it is evaluated."""
    devices = [{"name": f"device-{number}", "device": body} for number, body in enumerate(expressions.DEVICES)]
    return {"expression": expressions.expression(random), "driver": expressions.DRIVER, "devices": devices}


def judge_expression(asked: Json, oracle: Oracle) -> Verdict:
    """Compare for each device whether there is a value, and which; and the words that refuse another type."""
    theirs = oracle.ask("cel", {**asked, "features": {"ConsumableCapacity": True}})
    given = [one["result"] for one in theirs["devices"]] or [None] * len(asked["devices"])
    ours = list(_values(asked))
    refusal = theirs["compileError"] or ""
    if _OF_TYPE in refusal and (problem := _problem_of(asked["expression"])) != refusal:
        is_word = problem == refusal.replace("google.protobuf.Any", "dyn")
        return Verdict("the name of dyn" if is_word else None, [asked["expression"], *differences(problem, refusal)])
    if ours == given:
        return AGREED
    errors = " ".join(str(one["error"]) for one in theirs["devices"])
    return Verdict(_cause(asked["expression"], errors), [asked["expression"], *differences(ours, given)])


_OF_TYPE = "must evaluate to bool"


def _problem_of(expression: str) -> str:
    """What is wrong with an expression, empty if nothing is."""
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


def _cause(text: str, errors: str) -> str | None:
    """The row of docs/claims.md that a difference belongs to."""
    if "no such overload" in errors and "==" in text:
        return "a version compared with something computed"
    return "missing in []" if " in []" in text else None
