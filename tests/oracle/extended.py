"""The claims that a scheduler creates for extended resources backed by DeviceClasses, and the claims' devices."""

import json
from random import Random

from attrs import evolve
from devicecore_tools.doctor.pod.claim_trial import ClaimTrial
from devicecore_tools.doctor.pod.cluster_objects import objects_of
from devicecore_tools.doctor.pod.extended_claim import extended_claim
from devicecore_tools.doctor.pod.scheduling import PodAsks
from devicecore_tools.testing.allocation_cases import EXPRESSIONS, random_case

from devicecore.domain.allocation import Release, claim_of
from devicecore.domain.documents import Value
from devicecore.domain.model import PodUid
from devicecore.domain.objects import pod_of
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences
from tests.oracle.claims import FEATURES, fault_of, hold_elsewhere, tidy
from tests.recorded_allocations import held_of, results_of, situation_of

IMPLICIT = "deviceclass.resource.kubernetes.io/"
NAMED, OF_PLUGINS = ("ex.com/gpu", "ex.com/nic"), "ex.com/card"
_OUT_OF_ORDER = 0.04  # the share of cases with two classes created in the same second
BROKEN = {"metadata": {"name": "broken"}, "spec": {"selectors": [{"cel": {"expression": tuple(EXPRESSIONS)[-1]}}]}}
"""A class whose expression fails for devices without a particular attribute."""


def case(random: Random) -> Json:
    """Return a cluster and a pod, which requests extended resources by both kinds of names and may use claims."""
    made = random_case(random)
    hold_elsewhere(random, made)
    classes = [json.loads(json.dumps(one)) for one in (*made["classes"], BROKEN)]
    random.shuffle(classes)
    for number, one in enumerate(classes):
        one["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{number}Z"
        if random.random() < 0.5:
            one["spec"]["extendedResourceName"] = random.choice(NAMED)
    names = [*NAMED * 3, OF_PLUGINS, *(IMPLICIT + one["metadata"]["name"] for one in classes)]
    if random.random() < _OUT_OF_ORDER:
        classes[-1]["metadata"]["creationTimestamp"] = classes[0]["metadata"]["creationTimestamp"]
    allocatable = {"cpu": "8", "pods": "9", "memory": "8Gi"}
    allocatable |= {name: random.choice("023") for name in names if random.random() < 0.15}
    del made["later"]
    claims = made["claims"] if random.random() < 0.3 else []
    pod = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": _containers(random, names)}
    node = {**made["node"], "status": {"allocatable": allocatable}}
    return {**made, "classes": classes, "node": node, "claims": claims, "pod": pod, "names": sorted(set(names))}


def _containers(random: Random, names: list[str]) -> Json:
    made: Json = {"initContainers": [], "containers": []}
    for number in range(random.choice((1, 1, 2, 3, 4, 12 if random.random() < 0.1 else 2))):
        kind = random.choice(("initContainers", "containers"))
        sizes = {random.choice(names): random.choice("0111223") for _ in range(random.choice((0, 1, 1, 2)))}
        others = {name: "1" for name in ("cpu", "memory") if random.random() < 0.3}
        resources = {"limits": sizes, "requests": {**sizes, **others}}
        one = {"name": f"c{number}", "image": "i", "resources": resources}
        if kind == "initContainers" and random.random() < 0.4:
            one["restartPolicy"] = "Always"
        made[kind].append(one)
    made["containers"].append({"name": "last", "image": "i"})
    return made


def judge(case: Json, oracle: Oracle) -> Verdict:
    """Compare the class of each resource, what the node lacks, the created claim, and the devices of all claims.

    As in a live cluster, the scheduler sees the classes in the order of their creation. The scheduler does not learn
    the implicit name of a class if it has already seen a newer class with the same extended resource.
    """
    theirs = oracle.ask("extended", case)
    release = Release.of(oracle.version) or Release.V1_37
    trial = _trial(case, release)
    manifest = Value({"kind": "Pod", **case["pod"]}, "pod")
    pod, asks = pod_of(manifest, uid=PodUid("u")), PodAsks.of(manifest, {})
    claims = [claim_of(one) for one in case["claims"]]
    resources = trial.served_resources(pod)
    (answer,) = trial.answers(claims, "n1", pod=pod, filters=trial.filters(asks), resources=resources)
    lacks = sorted({str(one).split(": ")[0].removeprefix("Insufficient ") for one in answer.obstacles})
    classes = {name: served for name in case["names"] if (served := trial.class_for(name)) is not None}
    made = extended_claim(pod, trial.delegated(pod, "n1"))
    lines = list(differences([classes, lacks], [theirs["classes"], sorted(theirs["insufficient"])]))
    if lines:
        return Verdict("a class's own name" if _is_name_lost(case, classes, theirs["classes"]) else None, lines)
    if lacks:
        return AGREED  # the node does not fit, so the claim does not matter
    wanted, mappings = _claim_of(theirs)
    ours = [] if made is None else [(one.name, one.device_class, one.count) for one in made.alternatives]
    mapped = [] if made is None else [(one.container, one.resource, one.request) for one in made.mappings]
    if lines := list(differences([ours, mapped], [wanted, mappings])):
        return Verdict(None, lines)
    if not (wanted or claims):
        return AGREED
    special = [{**theirs["claim"], "metadata": {"name": "x", "namespace": "default"}}] if wanted else []
    question = {**case, "claims": [*case["claims"], *special], "features": {**FEATURES, **case.get("features", {})}}
    found = oracle.ask("allocate", question)
    if "panic" in found:
        return Verdict(None, [found["panic"]])
    given = [tidy(one) for one in found["results"]] if found["ok"] else None
    got = json.loads(json.dumps(results_of(answer.answer)))
    lines = list(differences(got, given))
    return Verdict(fault_of(situation_of(question, release), given, release.faults), lines) if lines else AGREED


def _is_name_lost(case: Json, ours: Json, theirs: Json) -> bool:
    """Return whether a scheduler lacks only implicit names of classes whose extended resource another class serves."""
    named = {one["metadata"]["name"]: one["spec"].get("extendedResourceName", "") for one in case["classes"]}
    lost = [name for name in ours if name not in theirs]
    others = {name: served for name, served in ours.items() if name not in lost}
    return (
        bool(lost)
        and others == theirs
        and all(ours.get(named[name.removeprefix(IMPLICIT)]) != ours[name] for name in lost)
    )


def _claim_of(answer: Json) -> tuple[Json, Json]:
    """Return the requests in a scheduler's claim, and which container and resource each request is for."""
    requests = (answer["claim"] or {"spec": {"devices": {}}})["spec"]["devices"].get("requests") or ()
    return (
        [(one["name"], one["exactly"]["deviceClassName"], one["exactly"]["count"]) for one in requests],
        [(one["containerName"], one["resourceName"], one["requestName"]) for one in answer["mappings"] or ()],
    )


def _trial(case: Json, release: Release) -> ClaimTrial:
    """Return a trial on the case's cluster, with its existing allocations and no other pods."""
    kinds = {"DeviceClass": case["classes"], "ResourceSlice": case["slices"], "Node": [case["node"]], "Pod": []}
    documents = [
        Value({"kind": f"{kind}List", "items": [{**one, "kind": kind} for one in of]}, kind)
        for kind, of in kinds.items()
    ]
    objects = evolve(objects_of(documents), held=tuple(held_of(case["allocated"])))
    return ClaimTrial(objects, (release,))
