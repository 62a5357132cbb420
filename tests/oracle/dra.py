"""Histories of a DRA manager: generated ones, and recombined parts of recorded ones."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from random import Random

from devicecore.domain import allocation
from devicecore.domain.dra.errors import DraError
from devicecore.domain.dra.lookup import claim_key, claim_name, pod_claims
from devicecore.domain.dra.model import ClaimKey
from devicecore.domain.objects import pod_of
from tests import recorded
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, joined
from tests.oracle.pods_of_claims import Author
from tests.unit.test_dra_histories import Comparison

OPS = frozenset(
    (
        *("driver_up", "driver_down", "driver_script", "put_claim", "delete_claim", "put_pod"),
        *("prepare", "unprepare", "all_resources", "pod_resources", "pod_might_need", "reconcile", "restart"),
    )
)


@cache
def _recorded() -> Sequence[Sequence[Json]]:
    return [
        [{name: value for name, value in step.items() if not name.startswith("expect")} for step in history["steps"]]
        for history in recorded.lines("dra/histories.jsonl")
    ]


def history(random: Random) -> Json:
    """Return a generated history, or a recorded one after some steps were omitted, repeated, moved or changed."""
    if random.random() < MADE:
        gates = [SKIPS] if random.random() < 0.98 else []
        return {"steps": Author(random).history(), "gates": gates}
    steps = [step for step in random.choice(_recorded()) if step["op"] in OPS]
    scripts = [
        step["script"] for other in random.sample(_recorded(), 8) for step in other if step["op"] == "driver_script"
    ]
    for _ in range(random.randint(0, 8)):
        place = random.randrange(len(steps))
        match random.choice(("drop", "repeat", "move", "move", "renew")):
            case "drop" if steps[place]["op"] not in ("put_pod", "driver_up"):
                del steps[place]
            case "repeat":
                steps.insert(random.randint(place, len(steps)), steps[place])
            case "move":
                steps.insert(random.randrange(len(steps)), steps.pop(place))
            case "renew" if steps[place]["op"] == "put_claim":
                metadata = steps[place]["object"]["metadata"]
                renewed = {**steps[place]["object"], "metadata": {**metadata, "uid": f"{metadata['uid']}-new"}}
                again = [step for step in steps if step["op"] == "prepare"][:3]
                end = random.randint(place + 1, len(steps))
                steps[end:end] = [{**steps[place], "object": renewed}, *again]
            case _:
                pass
    possible = _possible(random, steps, scripts)
    return {"steps": possible if random.random() < TWICE else [_naming_once(step) for step in possible]}


MADE = 0.5
"""The share of cases that are generated. The other cases are changed recorded histories."""

SKIPS = "DRAOptionalNodeOperations"
"""Without this feature gate, a kubelet rejects a claim whose driver need not be called (N20)."""

TWICE = 0.01
"""The share of recorded histories in which a pod may name a claim twice. A kubelet never prepares the claim (N6)."""


def _naming_once(step: Json) -> Json:
    """Return the step with a pod that names each claim only once."""
    if step["op"] != "put_pod":
        return step
    pod = step["object"]
    statuses = pod.get("status", {}).get("resourceClaimStatuses") or ()
    made = {one["name"]: one.get("resourceClaimName") for one in statuses}
    claims = {
        one.get("resourceClaimName") or made.get(one["name"]) or one["name"]: one
        for one in reversed(pod["spec"].get("resourceClaims") or ())
    }
    kept = list(reversed(claims.values()))
    names = {one["name"] for one in kept}

    def with_claims(container: Json) -> Json:
        resources = container.get("resources", {})
        if not resources.get("claims"):
            return container
        named = [one for one in resources["claims"] if one["name"] in names]
        return {**container, "resources": {**resources, "claims": named}}

    spec = {**pod["spec"], "resourceClaims": kept}
    for part in ("containers", "initContainers"):
        if part in spec:
            spec[part] = [with_claims(one) for one in spec[part]]
    return {**step, "object": {**pod, "spec": spec}}


def _possible(random: Random, steps: Sequence[Json], scripts: Sequence[Json]) -> Sequence[Json]:
    """Return the steps that are possible in this order: their pods exist, and their drivers are running."""
    pods, drivers, result = set[str](), set[tuple[str, str]](), []
    for given in steps:
        step, key = given, (given.get("name", ""), given.get("instance", "a"))
        match step["op"]:
            case "put_pod":
                pods.add(step["object"]["metadata"]["uid"])
            case "driver_up":
                drivers.add(key)
                step = {name: value for name, value in step.items() if name != "timeout_ms"}  # no call is delayed
            case "driver_down":
                if key not in drivers:
                    continue
                step = {**step, "mode": "deregister"}  # kubelets notice other losses only later
                drivers.discard(key)
            case "driver_script":
                if key not in drivers:
                    continue
                if scripts and random.random() < 0.3:
                    step = {**step, "script": random.choice(scripts)}
                step = {**step, "script": _without_delays(step["script"])}
            case "prepare" | "unprepare" | "all_resources" | "pod_resources" if step["pod"] not in pods:
                continue
            case _:
                pass
        result.append(step)
    return result


def _without_delays(script: Json) -> Json:
    return {method: {name: one for name, one in says.items() if name != "delay_ms"} for method, says in script.items()}


class _Live(Comparison):
    """A comparison that accepts an error about any of several missing drivers or claims (D18)."""

    def _compare(self, step: Json, outcome: Json) -> None:
        pod = self.replay.manifests[step["pod"]] if "pod" in step else {}
        expect = {**step["expect"], "error": self._named(pod, outcome, step["expect"])}
        for name, container in expect.get("containers", {}).items():
            ours = outcome["containers"][name]
            told = {**container, "error": self._named(pod, ours, container)} if "error" in container else container
            expect["containers"] = {**expect["containers"], name: told}
        super()._compare({**step, "expect": expect}, outcome)

    def _named(self, pod: Json, ours: Json, theirs: Json) -> str:
        """Return the kubelet's error, or ours if the errors differ only in which missing driver or claim they name."""
        told, named = str(theirs.get("error", "")), str(ours.get("error", ""))
        found, other = _MISSING.search(told), _MISSING.search(named)
        if told == named or not (found and other and told.replace(found[0], "") == named.replace(other[0], "")):
            return told
        both = {found["driver"] or found["claim"], other["driver"] or other["claim"]}
        return named if both <= self._missing(pod, is_driver=bool(found["driver"])) else told

    def _missing(self, pod: Json, *, is_driver: bool) -> set[str]:
        """Return the pod's claims that are not in the cache, or its claims' drivers that are not registered."""
        replay, owner, keys = self.replay, pod_of(pod), list[ClaimKey]()
        for entry in pod_claims(owner):
            with suppress(DraError):
                keys.append(claim_key(owner, claim_name(owner, entry) or ""))
        if not is_driver:
            return {key.name for key in keys if key not in replay.manager.claims.claims}
        claims = [replay.source.claims[key] for key in keys if key in replay.source.claims]
        drivers = {result.driver for claim in claims for result in claim.allocation or ()}
        return {name for name in drivers if name not in replay.manager.drivers}


_MISSING = re.compile(r"DRA driver (?P<driver>\S+) is not registered|claim info for ResourceClaim (?P<claim>\S+) ")

PASSED_OVER = frozenset(("D25", "N3", "N6", "N13", "N21"))
"""The reasons for which the step that differs is left out, so that later steps can be compared."""


def judge(case: Json, oracle: Oracle) -> Verdict:
    """Compare the answers step by step, up to the first that differs. docs/dra.md lists the known reasons (N1 to N21).

    If the reason is N5 or in `PASSED_OVER`, a step is left out, and the other steps are compared again. If a kubelet
    refuses a pod because the feature gate of `skipNodeOperations` is off (N20), our answers are compared with those
    that the kubelet gives with the gate on.
    """
    total = len(case["steps"])
    if (allocation.Release.of(oracle.version) or allocation.Release.V1_37).is_before_1_37:
        case = {"steps": [_calling_always(step) for step in case["steps"]]}
    answers = oracle.ask("claims", case)
    if "panic" in answers:
        return Verdict(None, [f"panic: {answers['panic']}"])
    verdict, number = _compared(case, answers, _Live())
    if verdict.cause is None and f"{SKIPS} feature gate is disabled" in answers[number].get("error", ""):
        rest = judge({**case, "gates": [SKIPS]}, oracle)
        return rest._replace(cause=joined("N20", rest.cause), lines=rest.lines or verdict.lines)
    if verdict.cause == "N5":  # the kubelet has read an outdated file, so the restart is left out
        number = max(place for place in range(number + 1) if case["steps"][place]["op"] == "restart")
    if verdict.cause in {*PASSED_OVER, "N5"}:
        rest = judge({**case, "steps": [*case["steps"][:number], *case["steps"][number + 1 :]]}, oracle)
        return rest._replace(
            cause=joined(verdict.cause, rest.cause), lines=rest.lines or verdict.lines, steps=(rest.steps[0], total)
        )
    return verdict._replace(steps=(total if verdict.cause == "" else number, total))


def _calling_always(step: Json) -> Json:
    """Return a step without the claim's field `skipNodeOperations`, which is new in 1.37."""
    if step["op"] != "put_claim":
        return step
    text = json.dumps(step, default=str)
    return json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "skipNodeOperations"})


def _compared(case: Json, answers: Json, comparison: Comparison) -> tuple[Verdict, int]:
    """Return the comparison with a kubelet's answers, and the step at which the comparison ended."""
    number = 0
    for number, (step, expect) in enumerate(zip(case["steps"], answers, strict=True)):
        try:
            comparison.play({**step, "expect": expect})
        except AssertionError as error:
            return Verdict(None, [f"step {number}: {step}", f"theirs: {expect}", str(error)[:600]]), number
        if comparison.different:
            return Verdict(comparison.different, [f"step {number}: {step}"]), number
    return AGREED, number


def recorded_anew(history: Json, oracle: Oracle) -> Json:
    """Return a recorded history with the answers from this version of Kubernetes.

    A recorded answer is kept if the kubelet can still give it in a different order. If the kubelet names a different
    missing item than we do, that step and all later ones get no answer.
    """
    steps = [
        {name: value for name, value in step.items() if not name.startswith("expect")} for step in history["steps"]
    ]
    recorded = [step["expect"] for step in history["steps"] if "expect" in step]
    known = {"steps": steps[: len(recorded)]}
    answers = oracle.ask("claims", {"steps": steps})
    before, now = (_compared(known, one, Comparison()) for one in (recorded, answers[: len(recorded)]))
    if (before[0].cause, before[1]) == (now[0].cause, now[1]):
        return history
    verdict, place = _compared({"steps": steps}, answers, Comparison())
    is_named = verdict.cause is None and _compared({"steps": steps}, answers, _Live())[1] > place
    count = place if is_named else len(steps)
    answered = [{**step, "expect": answer} for step, answer in zip(steps[:count], answers, strict=False)]
    return {"id": history["id"], "steps": [*answered, *steps[count:]]}
