"""Histories of a DRA manager: parts of recorded ones, recombined."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache
from random import Random

from tests import recorded
from tests.oracle.asking import AGREED, Json, Oracle, Verdict
from tests.unit.test_dra_histories import Comparison, call_of, own_text

OPS = frozenset(
    (
        *("driver_up", "driver_down", "driver_script", "put_claim", "delete_claim", "put_pod"),
        *("prepare", "unprepare", "all_resources", "pod_might_need", "reconcile", "restart"),
    )
)


@cache
def _recorded() -> Sequence[Sequence[Json]]:
    return [
        [{name: value for name, value in step.items() if not name.startswith("expect")} for step in history["steps"]]
        for history in recorded.lines("dra/histories.jsonl")
    ]


def history(random: Random) -> Json:
    """The steps of a recorded history, some left out, repeated or moved, with other answers of drivers."""
    steps = [step for step in random.choice(_recorded()) if step["op"] in OPS]
    scripts = [
        step["script"] for other in random.sample(_recorded(), 8) for step in other if step["op"] == "driver_script"
    ]
    for _ in range(random.randint(0, 8)):
        place = random.randrange(len(steps))
        match random.choice(("drop", "repeat", "move", "move")):
            case "drop" if steps[place]["op"] not in ("put_pod", "driver_up"):
                del steps[place]
            case "repeat":
                steps.insert(random.randint(place, len(steps)), steps[place])
            case "move":
                steps.insert(random.randrange(len(steps)), steps.pop(place))
            case _:
                pass
    possible = _possible(random, steps, scripts)
    return {"steps": possible if random.random() < TWICE else [_naming_once(step) for step in possible]}


TWICE = 0.01
"""The share of the cases in which a pod may name a claim twice, which a kubelet never prepares (N6)."""


def _naming_once(step: Json) -> Json:
    """Return a step whose pod names each claim once."""
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
    """The steps that are possible in this order: of pods that are known, and of drivers that are up."""
    pods, drivers, result = set[str](), set[tuple[str, str]](), []
    for given in steps:
        step, key = given, (given.get("name", ""), given.get("instance", "a"))
        match step["op"]:
            case "put_pod":
                pods.add(step["object"]["metadata"]["uid"])
            case "driver_up":
                drivers.add(key)
            case "driver_down":
                if key not in drivers:
                    continue
                step = {**step, "mode": "deregister"}  # the kubelet notices other ends after some time
                drivers.discard(key)
            case "driver_script":
                if key not in drivers:
                    continue
                if scripts and random.random() < 0.3:
                    step = {**step, "script": random.choice(scripts)}
                step = {**step, "script": _without_delays(step["script"])}
            case "prepare" | "unprepare" | "all_resources" if step["pod"] not in pods:
                continue
            case _:
                pass
        result.append(step)
    return result


def _without_delays(script: Json) -> Json:
    return {method: {name: one for name, one in says.items() if name != "delay_ms"} for method, says in script.items()}


class _Live(Comparison):
    """A comparison in which the order of CDI names means nothing: the kubelet walks Go's maps (D18)."""

    def _compare_containers(self, ours: Json, theirs: Json) -> None:
        for one in theirs["any"][:-1]:
            with suppress(AssertionError):
                return self._compare_container(ours, one)
        return self._compare_container(ours, theirs["any"][-1])

    def _compare_container(self, ours: Json, theirs: Json) -> None:
        in_order = [{**one, "cdi": sorted(one["cdi"])} if one["ok"] else one for one in (ours, theirs)]
        super()._compare_containers(*in_order)


PASSED_OVER = frozenset(("D25", "N6"))
"""Why a kubelet refuses a pod that we admit: the steps after it are compared as if nobody had asked."""

TRIES = 60
"""How often the kubelet is asked again, because it walks the claims and the drivers of a pod in any order."""


def judge(case: Json, oracle: Oracle) -> Verdict:
    """Compare the answers step by step, up to one that differs for a reason of docs/dra.md, N1 to N20.

    D18: the kubelet gives several answers, one of which is ours, or which together have all of ours: each container of
    a pod, and each call of a driver, may be of any of its answers.
    """
    total = len(case["steps"])
    first, place, ours, best = AGREED, -1, {}, -1
    containers, theirs = dict[str, list[Json]](), set[Json]()
    is_random = False
    for attempt in range(TRIES):
        answers = oracle.ask("claims", case)
        if "panic" in answers:
            return Verdict(None, [answers["panic"]])
        for number, answer in enumerate(answers):
            for name, container in answer.get("containers", {}).items():
                one_of = containers.setdefault(name, []) if number == place else []
                one_of.append(container)
                answer["containers"][name] = {"any": list(one_of)}
        comparison = _Live()
        verdict, number = _compared(case, answers, comparison)
        is_end = verdict.cause is not None
        if verdict.cause in PASSED_OVER:
            rest = judge({"steps": [*case["steps"][:number], *case["steps"][number + 1 :]]}, oracle)
            causes = {*filter(None, (*(rest.cause or "").split("+"), verdict.cause))}
            return rest._replace(
                cause=None if rest.cause is None else "+".join(sorted(causes)),
                lines=rest.lines or verdict.lines,
                steps=(rest.steps[0], total),
            )
        if is_end:
            steps = (total if verdict.cause == "" else number, total)
            if attempt == 0:
                return verdict._replace(steps=steps)
            return Verdict("+".join(filter(None, ("D18", verdict.cause))), first.lines, steps)
        if attempt == 0:
            first, place, ours = verdict, number, comparison.outcome
        is_random |= number > place
        best = max(best, number)
        theirs.add(_called(answers[place], map(call_of, answers[place]["calls"])))
    is_known = is_random or has_parts_of(theirs, _called(ours, ours["calls"]))
    return Verdict("D18" if is_known else None, first.lines, (best, total))


def _compared(case: Json, answers: Json, comparison: Comparison) -> tuple[Verdict, int]:
    """The comparison with one run of the kubelet, and at which step it ended."""
    number = 0
    for number, (step, expect) in enumerate(zip(case["steps"], answers, strict=True)):
        try:
            comparison.play({**step, "expect": expect})
        except AssertionError as error:
            return Verdict(None, [f"step {number}: {step}", f"theirs: {expect}", str(error)[:600]]), number
        if comparison.different:
            return Verdict(comparison.different, [f"step {number}: {step}"]), number
    return AGREED, number


def _called(answer: Json, calls: Iterable[Json]) -> Json:
    """How a step ended, and its calls."""
    return (answer["ok"], own_text(answer.get("error", ""))), frozenset(calls)


def has_parts_of(theirs: AbstractSet[Json], ours: Json) -> bool:
    """Whether the kubelet gives several answers, which together have our end and all our calls."""
    end, calls = ours
    every = frozenset[Json]().union(*(called for _, called in theirs))
    return len(theirs) > 1 and end in {other for other, _ in theirs} and bool(calls) and calls <= every


def recorded_anew(history: Json, oracle: Oracle) -> Json:
    """Return a recorded history with the answers of this Kubernetes.

    The kubelet is asked again until it answers as it was recorded, apart from its order. Then what was recorded stays,
    and also if it never does because an answer is random. If what was recorded is not ours, the kubelet is asked until
    its order is ours. If it never is, the step with a random answer and those after it get no answer. If an answer is
    other than ours and not random, the tests of the recordings show it.
    """
    steps = [
        {name: value for name, value in step.items() if not name.startswith("expect")} for step in history["steps"]
    ]
    recorded = [step["expect"] for step in history["steps"] if "expect" in step]
    known = {"steps": steps[: len(recorded)]}
    before, end = _compared(known, recorded, Comparison())
    found = dict[int, list[Json]]()  # the answers by the step up to which they are ours
    for _ in range(4 * TRIES):
        answers = oracle.ask("claims", {"steps": steps})
        now, place = _compared(known, answers[: len(recorded)], Comparison())
        if before.cause is not None and (now.cause, place) == (before.cause, end):
            return history
        verdict, place = _compared({"steps": steps}, answers, Comparison())
        if verdict.cause is not None:
            found = {len(steps): [answers]}
            break
        found.setdefault(place, []).append(answers)
    place = max(found)
    answers = found[place][0]
    is_random = place < len(steps) and (
        len(found[place]) == 1 or any(one[place] != answers[place] for one in found[place])
    )
    if is_random and before.cause is not None:
        return history
    count = place if is_random else len(steps)
    answered = [{**step, "expect": answer} for step, answer in zip(steps[:count], answers, strict=False)]
    return {"id": history["id"], "steps": [*answered, *steps[count:]]}
