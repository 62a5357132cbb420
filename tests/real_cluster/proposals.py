"""Carries out what `why` proposes in a situation, so that a real scheduler can show whether the proposals help."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve
from devicecore_tools.budget import Budget
from devicecore_tools.command import claims
from devicecore_tools.command.claim_reports import ClaimReport
from devicecore_tools.doctor.pod.claim_changes import Change
from devicecore_tools.doctor.pod.extended_claim import ExtendedResourceClaim

from devicecore.domain.allocation import UnallocatedClaim
from devicecore.domain.allocation.model import DeviceRequest
from devicecore.domain.documents import Value
from tests.real_cluster.situations_of_pods import Situation

Json = Any

_WITHOUT_PROPOSALS = """
    all-of-none all-others-want-to-be-apart allocated-and-tainted allocated-elsewhere-reserved
    another-scheduler apart-and-the-devices-are-there apart-from-all binding-conditions
    binding-conditions-that-failed claim-not-there class-missing fifty-nodes-full gate
    near-and-devices-elsewhere near-in-a-selected-namespace near-in-another-namespace near-itself
    near-nobody near-without-the-label other-driver pool-of-a-rack-held pool-without-a-slice
    pool-without-a-slice-and-all pool-without-its-counters port-of-a-sidecar port-of-all-addresses
    port-of-the-host's-network port-taken-everywhere quota-of-a-class quota-of-a-plugin's quota-of-pods
    quota-that-wants-limits refused-affinity refused-fraction refused-huge-pages-alone
    refused-less-than-its-containers refused-plugin-of-the-whole-pod refused-port-twice
    refused-request-above-limit refused-skew rule-and-a-served-resource runtime-not-there
    shared-and-the-node-is-full spread-and-full spread-over-all-nodes spread-over-three-places
    spread-with-tainted-nodes spread-without-the-label too-many-pods two-claims-on-two-nodes
    two-drivers-on-two-nodes two-volumes-for-three volume-for-one-pod volume-lost volume-not-bound
    volume-not-there volume-of-a-node-without-the-devices volume-of-another-zone volume-of-no-driver
    volume-that-is-too-small volume-too-many volume-without-room
"""
WITHOUT_PROPOSALS = frozenset(_WITHOUT_PROPOSALS.split())
"""Situations whose pod does not run, and for which `why` makes no proposal that `proposals_in` can carry out."""


def report_on(situation: Situation, objects: str) -> ClaimReport:
    """Return the report of `why` on a situation's pod. `objects` is a file with the situation's objects."""
    trial = claims._claim_trial([objects], None, budget=Budget(), lists_claims=True)  # noqa: SLF001 - its values
    return claims._report_of_pod(trial, "", Value(situation.pod, "pod"), None)  # noqa: SLF001 - as above


def proposals_in(report: ClaimReport, situation: Situation) -> Iterator[tuple[str, Situation]]:
    """Yield each proposal in a report on a situation's pod, and the situation after it has been carried out."""
    if report.status == 0 or not report.answers:
        return
    for change in report.answers[0].changes:
        if not change.classes:  # classes are shared by all situations
            yield change.sentence, changed(situation, change)
    for one in report.answers:
        is_named = one.has_devices or (not report.claims and one is report.answers[0])
        done = cured(situation, one.cure.split(", and ")) if one.obstacles and is_named else None
        if done is not None:
            yield f"{one.node.name}: {one.cure}", done


def changed(situation: Situation, change: Change) -> Situation:
    """Return a situation with changed claims, and without the claim that is to be released, if any."""
    specs = {claim.name.partition("/")[2]: claim for claim in change.claims}
    objects = []
    for body in situation.objects:
        name = body["metadata"]["name"]
        if body["kind"] == "ResourceClaim" and change.holder.split(" of ")[0] in {
            f"claim {name}",
            f"claim default/{name}",
        }:
            continue
        if body["kind"] == "ResourceClaim" and name in specs and "status" not in body:
            body = {**body, "spec": spec_of(specs[name], body["spec"])}  # noqa: PLW2901 - the same claim
        objects.append(body)
    pod = situation.pod
    for claim in change.claims:
        if isinstance(claim, ExtendedResourceClaim):
            pod = with_limits(pod, claim)
    return evolve(situation, objects=tuple(objects), pod=pod)


def with_limits(pod: Json, claim: ExtendedResourceClaim) -> Json:
    """Return a pod with the limits from which a changed claim would be created."""
    spec = {**pod["spec"]}
    for kind in ("initContainers", "containers"):
        containers = []
        for one in spec.get(kind, ()):
            sizes = {name: str(of[one["name"]]) for name in claim.classes if one["name"] in (of := claim.sizes(name))}
            resources = one.get("resources", {})
            limits = {**resources.get("limits", {}), **sizes}
            containers.append({**one, "resources": {**resources, "limits": limits}} if sizes else one)
        spec |= {kind: containers} if containers else {}
    return {**pod, "spec": spec}


def spec_of(claim: UnallocatedClaim, before: Json) -> Json:
    """Return a claim's spec in the API's format."""
    requests = [
        request_of(ways[0])
        if not ways[0].parent
        else {"name": ways[0].parent, "firstAvailable": [{"name": one.name, **fields_of(one)} for one in ways]}
        for ways in claim.requests
    ]
    constraints = [
        {one.rule.value: one.attribute, **({"requests": sorted(one.requests)} if one.requests else {})}
        for one in claim.constraints
        if one.rule is not None
    ]
    return {**before, "devices": {**before["devices"], "requests": requests, "constraints": constraints}}


def request_of(one: DeviceRequest) -> Json:
    """Return a request without alternatives in the API's format."""
    admin = {"adminAccess": True} if one.admin_access else {}
    return {"name": one.name, "exactly": {**fields_of(one), **admin}}


def fields_of(one: DeviceRequest) -> Json:
    """Return the fields that requests and alternatives have in common."""
    fields: Json = {"deviceClassName": one.device_class, "allocationMode": one.mode}
    if not one.wants_all:
        fields["count"] = one.count
    if one.selectors:
        fields["selectors"] = [{"cel": {"expression": text}} for text in one.selectors if text]
    if one.tolerations:
        fields["tolerations"] = [
            {"key": of.key, "operator": of.operator, "value": of.value, "effect": of.effect} for of in one.tolerations
        ]
    if one.capacity:
        fields["capacity"] = {"requests": {name: str(size) for name, size in one.capacity.items()}}
    return fields


def cured(situation: Situation, cures: list[str]) -> Situation | None:
    """Return the situation after all `cures` have been carried out, or None if one of them is unknown."""
    for cure in cures:
        found = ((form.match(cure), do) for form, do in _CURES)
        done = next(((match, do) for match, do in found if match), None)
        if done is None:
            return None
        situation = done[1](situation, *done[0].groups())
    return situation


def _uncordoned(situation: Situation, node: str) -> Situation:
    return _with_node(situation, node, lambda spec: {**spec, "unschedulable": False})


def _with_node(situation: Situation, node: str, change: Callable[[Json], Json]) -> Situation:
    objects = (
        {**one, "spec": change(one["spec"])} if one["kind"] == "Node" and one["metadata"]["name"] == node else one
        for one in situation.objects
    )
    return evolve(situation, objects=tuple(objects))


def _with_spec(situation: Situation, **fields: Json) -> Situation:
    return evolve(situation, pod={**situation.pod, "spec": {**situation.pod["spec"], **fields}})


def _tolerated(situation: Situation, key: str, effect: str) -> Situation:
    before = situation.pod["spec"].get("tolerations", [])
    return _with_spec(situation, tolerations=[*before, {"key": key, "operator": "Exists", "effect": effect}])


def _selects_anything(situation: Situation, *_: str) -> Situation:
    return _with_spec(situation, nodeSelector=None)


def _has_no_affinity(situation: Situation, *_: str) -> Situation:
    return _with_spec(situation, affinity=None)


def _requests(situation: Situation, size: str | None, name: str) -> Situation:
    """Reduce a request at the place where the pod makes it: in the pod-level resources or in a container."""
    spec = situation.pod["spec"]
    own = {which: {**of, name: size} for which, of in spec.get("resources", {}).items() if name in of}
    if own:
        return _with_spec(situation, resources={**spec["resources"], **own})
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind, ()):
            amounts = next((of for of in container.get("resources", {}).values() if name in of), None)
            if amounts is not None:
                less = {key: of for key, of in amounts.items() if key != name}
                if size:
                    less[name] = "1" if container.get("restartPolicy") else size
                which = "requests" if kind == "initContainers" else "limits"
                resources = {**container.get("resources", {}), which: less}
                return _with_spec(situation, **{kind: [{**container, "resources": resources}]})
    return situation


def _requests_at_most(situation: Situation, name: str, size: str) -> Situation:
    return _requests(situation, size, name)


def _requests_none(situation: Situation, name: str) -> Situation:
    return _requests(situation, None, name)


_CURES: tuple[tuple[re.Pattern[str], Callable[..., Situation]], ...] = (
    (re.compile(r"node (\S+) is uncordoned$"), _uncordoned),
    (re.compile(r"the pod tolerates ([^=:]+)[^:]*:(\w+), or node"), _tolerated),
    (re.compile(r"the pod's nodeSelector does not require"), _selects_anything),
    (re.compile(r"the pod's affinity accepts node"), _has_no_affinity),
    (re.compile(r"the pod's request for (\S+) is at most ([^\s,]+)"), _requests_at_most),
    (re.compile(r"the pod requests no ([^,]+)"), _requests_none),
)
