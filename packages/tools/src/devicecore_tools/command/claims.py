"""ResourceClaims for `why` and `fits`: which devices they get on the nodes of a cluster, or why they get none.

Law: everything printed about an unallocated claim comes from a trial (`devicecore_tools.doctor.pod.claim_trial`).
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click
from attrs import evolve, frozen

from devicecore.domain.allocation import Release, UnallocatedClaim, claim_of
from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Pod, PodUid
from devicecore.domain.names import is_dns_label
from devicecore.domain.objects import pod_of
from devicecore.domain.text import foreign_text
from devicecore_tools.budget import Budget
from devicecore_tools.command.collector import without_collector

if TYPE_CHECKING:
    from devicecore_tools.command.claim_reports import ClaimReport
    from devicecore_tools.doctor.pod.claim_trial import ClaimAnswer, ClaimTrial

_MADE_FOR = "resource.kubernetes.io/pod-claim-name"
"""The annotation that identifies a claim as created from a template."""

_OBJECTS = ("slices", "claims", "node", "pods", "resourceclaims")
"""The options that name files with a cluster's objects."""

_MAX_WANTED = 20  # the maximum number of claims and pods in one file
_NO_CLASSES_THERE = (
    "{}: the API server has no DeviceClass, and every request in a claim names one. Most drivers install their own. "
    "To create one: kubectl create -f FILE, with apiVersion: resource.k8s.io/v1, kind: DeviceClass, its "
    "metadata.name, and in spec.selectors a CEL expression such as device.driver == 'gpu.example.com'"
)
_NO_CLASSES = (
    "no DeviceClass is known; add --kubeconfig FILE, or pass a file with the DeviceClasses to --slices: "
    "kubectl get resourceslices,deviceclasses,nodes -o json"
)
CLAIM_KINDS = ("ResourceClaim", "ResourceClaimTemplate")
"""The kinds of objects that request devices."""

_HAS_A_POD = re.compile(rb"""kind["']?\s*:\s*["']?(?:Pod|Deployment|StatefulSet|DaemonSet|ReplicaSet|Job|CronJob)\b""")

WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "PodTemplate")
"""The kinds of objects that contain a template for pods."""


_REMOVED = {
    **dict.fromkeys(("extensions/v1beta1", "apps/v1beta1", "apps/v1beta2"), ("1.16", "apps/v1")),
    "batch/v2alpha1": ("1.21", "batch/v1"),
    "batch/v1beta1": ("1.25", "batch/v1"),
}
"""For each former version of a workload, the release that removed it, and the version to use."""


@frozen
class Wanted:
    """What a question is about: the pods and claims in a file, and all documents of the file.

    Attributes:
        pods: pods that wait for a node, including those of workloads.
        claims: claims and templates that no pod in the file names.
        others: all documents.
    """

    pods: Sequence[Value] = ()
    claims: Sequence[Value] = ()
    others: Sequence[Value] = ()


def may_decide(sources: Mapping[str, object]) -> bool:
    """Return whether the sources include anything that a scheduler reads, and nothing that belongs to a single node."""
    of_node = any(sources.get(name) for name in ("root", "checkpoint", "pod_resources", "node_name"))
    return not of_node and any(sources.get(name) for name in ("slices", "claims", "node", "kubeconfig"))


def documents_of(sources: Mapping[str, object], budget: Budget) -> list[Value]:
    """Return the documents in the files with a cluster's objects. Raises DocumentError if a file cannot be used."""
    from devicecore_tools.doctor.reading.large_documents import read_all_documents

    places = dict.fromkeys(place for place in _places(sources) if place != "-")
    return [one for place in places for one in read_all_documents(place, budget)]


def _places(sources: Mapping[str, object]) -> list[str]:
    """Return the files with a cluster's objects that the options name."""
    more = sources.get("more_slices")
    return [
        *(place for name in _OBJECTS if (place := _text(sources.get(name)))),
        *(more if isinstance(more, tuple) else ()),
    ]


def wanted_in(data: bytes, place: str, sources: Mapping[str, object]) -> Wanted | None:
    """Return the claims and the waiting pods among the objects of a source, or None if there are none of either.

    A pod counts only if its file or `sources` may contain what a scheduler needs to place it.
    """
    from devicecore_tools.doctor.reading.large_documents import parse_documents

    decides = may_decide(sources)
    of_claims = b"ResourceClaim" in data or b"resourceClaims" in data
    if not of_claims and not (decides and _HAS_A_POD.search(data)):
        return None
    try:
        documents = parse_documents(data, place, unique_keys=True)
        items = [item for one in documents for item in items_in(one)]
        kinds = {item["kind"].text("") for item in items}
        pods: list[Value] = []
        if "DeviceClass" in kinds or decides or any(sources.get(name) for name in ("slices", "claims", "kubeconfig")):
            pods = waiting_pods(items, needs_claims=not decides)
        named = {name for pod in pods for name in _names_of_claims(pod)}
        claims = [
            one
            for one in items
            if one["kind"].data in CLAIM_KINDS
            # A name that is not a string may not be hashable; `claim_of` refuses it.
            and not (isinstance(name := one["metadata"]["name"].data, str) and name in named)
        ]
    except DocumentError:
        return None  # the data may be a scheduler's message; otherwise, the reader of messages reports the error
    for item in items:
        if item["kind"].data in CLAIM_KINDS:
            refuse_misspelled_request(item)
        elif item["kind"].data == "Pod":
            refuse_misspelled_pod(item)
    return Wanted(pods, claims, documents) if pods or claims else None


def refuse_misspelled_request(claim: Value) -> None:
    """Refuse a claim or a template with a misspelled field or value, as kubectl and an API server do.

    Without this check, a request with `exacly` or `selector` would ask for something else.
    """
    from devicecore_tools.doctor.reading.large_documents import refuse_misspelled

    version = claim["apiVersion"]
    if version.data is not None and version.text().partition("/")[0] != _GROUP:
        version.refuse(f"expected {_GROUP}/v1, got {described(version.data)}")
    refuse_misspelled(claim, _FIELDS_OF_OBJECT)
    spec = claim["spec"]["spec"] if claim["kind"].data == "ResourceClaimTemplate" else claim["spec"]
    refuse_misspelled(spec, ("devices",))
    refuse_misspelled(spec["devices"], ("requests", "constraints", "config"))
    for request in spec["devices"]["requests"].sequence():
        for one in (request, request["exactly"], *request["firstAvailable"].sequence()):
            refuse_misspelled(one, _FIELDS_OF_REQUEST)
            if one["name"].data is not None and not is_dns_label(one["name"].text()):
                one["name"].refuse(f"expected a DNS name such as gpu, got {described(one['name'].data)}")
            if (mode := one["allocationMode"].text("")) not in _MODES:
                one["allocationMode"].refuse(f"expected ExactCount or All, got {foreign_text(mode, 50)!r}")


def refuse_misspelled_pod(pod: Value) -> None:
    """Refuse a pod with a misspelled field that decides where it can run, as kubectl does."""
    from devicecore_tools.doctor.reading.large_documents import refuse_misspelled

    refuse_misspelled(pod, _FIELDS_OF_OBJECT)
    refuse_misspelled(pod["spec"], _FIELDS_OF_POD)


_FIELDS_OF_OBJECT = ("apiVersion", "kind", "metadata", "spec", "status")
_FIELDS_OF_POD = (
    *("containers", "initContainers", "resourceClaims", "nodeName", "nodeSelector", "affinity", "tolerations"),
    *("priorityClassName", "schedulerName", "runtimeClassName", "topologySpreadConstraints", "schedulingGates"),
)
_GROUP = "resource.k8s.io"
_MODES = ("", "ExactCount", "All")
_FIELDS_OF_REQUEST = (
    "name",
    "exactly",
    "firstAvailable",
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
)


def named_at_server(name: str, kubeconfig: str, budget: Budget) -> tuple[list[Value], list[Value]]:
    """Return the pods and claims on an API server that have this name or `namespace/name`.

    Raises ValueError if the objects cannot be read, and NotKnownError if the budget does not allow reading them.
    """
    try:
        from devicecore.adapters.kube_api.access import RequestError
        from devicecore_tools.doctor.reading.api_server import read_named
    except ModuleNotFoundError as error:
        raise ValueError(f"--kubeconfig: {error}: install the extra `kubernetes`") from None

    def called(kind: str) -> list[Value]:
        try:
            named = read_named(kubeconfig, kind, name, budget)
        except RequestError as error:
            raise _unread(kubeconfig, kind, str(error), budget) from None
        return [Value({**one, "kind": kind}, f"{kubeconfig}: {kind} {name}") for one in named]

    return called("Pod"), called("ResourceClaim")


def items_in(document: Value) -> Iterator[Value]:
    """Yield the objects in a document, including the members of lists."""
    if document["items"].data is None:
        yield document
    else:
        for item in document["items"].sequence():
            yield from items_in(item)


def waiting_pods(items: Sequence[Value], *, needs_claims: bool = False) -> list[Value]:
    """Return the waiting pods among the objects, including the pods of workloads.

    With `needs_claims`, only pods with claims count. Otherwise, pods without claims also count if every pod in the list
    is waiting, and there are at most `_MAX_WANTED`. A list that contains other pods is probably about those pods, and
    their messages explain them.
    """
    pods = [pod for item in items if (pod := _waiting_pod(item)) is not None]
    with_claims = [pod for pod in pods if pod["spec"]["resourceClaims"].sequence()]
    is_alone = len(pods) == sum(item["kind"].data in ("Pod", *WORKLOADS) for item in items)
    return pods if is_alone and not needs_claims and len(pods) <= _MAX_WANTED else with_claims


def _waiting_pod(item: Value) -> Value | None:
    """Return the waiting pod that an object or a workload describes, or None if there is none.

    A pod that has a node or has ended is not waiting. The manifest of a new pod, which has no UID, may name its node.
    """
    pod = item if item["kind"].text("") == "Pod" else pod_of_workload(item)
    if pod is None:
        return None
    has_ended = pod["status"]["phase"].text("") in {"Succeeded", "Failed"}
    has_node = bool(pod["spec"]["nodeName"].text("")) and pod["metadata"]["uid"].data is not None
    return None if has_node or has_ended else pod


def pod_of_workload(item: Value) -> Value | None:
    """Return the first pod that a workload's controller creates, or None if the object is not a workload.

    Raises DocumentError if the workload has a version that no supported API server serves.
    """
    kind = item["kind"].text("")
    if kind not in WORKLOADS:
        return None
    if (gone := _REMOVED.get(item["apiVersion"].text(""))) is not None:
        item["apiVersion"].refuse(f"{item['apiVersion'].data} was removed in Kubernetes {gone[0]}: write {gone[1]}")
    spec = item["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else item["spec"]
    template = item["template"] if kind == "PodTemplate" else spec["template"]
    names = {"name": item["metadata"]["name"].data, "namespace": item["metadata"]["namespace"].data}
    labels = template["metadata"]["labels"].data
    metadata = {**names, "labels": labels, "ownerReferences": [{"kind": kind, "name": names["name"]}]}
    of_pod = {"kind": "Pod", "metadata": metadata, "spec": _spec_of(kind, spec, template["spec"], names["name"])}
    places = {"CronJob": "spec.jobTemplate.spec.template", "PodTemplate": "template"}
    return Value(of_pod, item, places.get(kind, "spec.template"))


_OF_DAEMONS = ("unschedulable", "disk-pressure", "memory-pressure", "pid-pressure")
"""Taints of Nodes that each pod of a DaemonSet tolerates (Kubernetes: `AddOrUpdateDaemonPodTolerations`)."""


def _spec_of(kind: str, workload: Value, spec: Value, name: object) -> object:
    """Return the spec of a workload's first pod, including what the workload's controller adds."""
    own = {key: one.data for key, one in spec.mapping().items()}
    if kind == "DaemonSet":
        added = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in _OF_DAEMONS]
        own["tolerations"] = [*(one.data for one in spec["tolerations"].sequence()), *added]
    templates = workload["volumeClaimTemplates"].sequence() if kind == "StatefulSet" else []
    if templates:
        made = [
            {
                "name": one["metadata"]["name"].data,
                "persistentVolumeClaim": {"claimName": f"{one['metadata']['name'].text('')}-{name}-0"},
                # if the claim does not exist, the controller creates it, as for an ephemeral volume
                "ephemeral": {"volumeClaimTemplate": one.data},
            }
            for one in templates
        ]
        own["volumes"] = [*(one.data for one in spec["volumes"].sequence()), *made]
    return own


def _read_pod(pod: Value) -> Pod:
    return pod_of(pod, uid=PodUid("u"))


def _names_of_claims(pod: Value) -> Iterator[str]:
    for entry in pod["spec"]["resourceClaims"].sequence():
        yield from filter(None, (entry[name].text("") for name in ("resourceClaimName", "resourceClaimTemplateName")))


def _claim_trial(
    places: Sequence[str | None],
    kubeconfig: str | None,
    read: Sequence[Value] = (),
    scheduler: str | None = None,
    pods: Sequence[Value] = (),
    *,
    budget: Budget,
    lists_claims: bool = False,
) -> "ClaimTrial":
    """Return a trial with objects from files and an API server, and with objects that were already read.

    From an API server, objects that concern volumes are read only if one of the pods has volumes, and objects that
    concern admission only if one of the pods is new. `lists_claims` says whether one of the files lists all claims and
    templates, as an API server does.

    Raises ValueError if an object cannot be read, and NotKnownError if the budget does not allow reading it.
    """
    from devicecore_tools.doctor.pod.claim_trial import ClaimTrial
    from devicecore_tools.doctor.pod.cluster_objects import objects_of

    version = scheduler or ""
    if kubeconfig is not None:
        try:
            from devicecore_tools.doctor.reading.api_server import read_version
        except ModuleNotFoundError as error:
            raise ValueError(f"--kubeconfig: {error}: install the extra `kubernetes`") from None
        version = version or read_version(kubeconfig, budget)
    release = Release.of(version)
    if scheduler and release is None:
        raise ValueError(f"--scheduler: expected a Kubernetes version such as 1.36.3, got {scheduler}")
    problems: dict[str, str] = {}
    lists_claims = lists_claims or kubeconfig is not None
    objects = objects_of(_documents(places, kubeconfig, read, problems, pods, budget), budget=budget)
    files = dict.fromkeys([*(one.file for one in read), *filter(None, places)])
    sources = [f"in {one}" for one in files]
    if kubeconfig is not None:
        refused = "".join(f", which does not list {kind}s: {one}" for kind, one in problems.items())
        sources.append(f"on the API server of {kubeconfig}{refused}")
    trial = ClaimTrial(objects, () if release is None else (release,), sources, budget, lists_claims=lists_claims)
    trial.unread = [f"the {kind}s: {why}" for kind, why in problems.items() if why in budget.refused]
    if sys.stderr.isatty():
        trial.on_trials = _say_what_takes_long
    return trial


def _say_what_takes_long() -> None:
    click.echo("testing which changes would help ...", err=True)


def _documents(
    places: Sequence[str | None],
    kubeconfig: str | None,
    read: Sequence[Value],
    problems: dict[str, str],
    pods: Sequence[Value],
    budget: Budget,
) -> Iterator[Value]:
    """Yield the documents one by one, so that the text of only one source is in memory at a time.

    If an API server does not list a kind that only some pods need, the reason is added to `problems`.
    """
    from devicecore_tools.doctor.reading.large_documents import MAX_INPUT, parse_documents, read_all_documents

    for place in places:
        if place == "-":
            yield from parse_documents(sys.stdin.buffer.read(MAX_INPUT), "standard input", budget)
        elif place is not None:
            yield from read_all_documents(place, budget)
    yield from read
    if kubeconfig is not None:
        from devicecore_tools.doctor.reading.api_server import OF_ADMISSION, OF_CLAIMS, OF_VOLUMES, read_objects

        of_volumes = OF_VOLUMES if any(one["spec"]["volumes"].data for one in pods) else ()
        of_new = OF_ADMISSION if any(one["metadata"]["uid"].data is None for one in pods) else ()
        for kind in (*OF_CLAIMS, *of_volumes, *of_new):
            items = read_objects("", kubeconfig, (kind,), budget=budget)[kind]
            if isinstance(items, str) and kind in _OPTIONAL:
                problems[kind] = items
                continue
            if isinstance(items, str):
                raise _unread(kubeconfig, kind, items, budget)
            # A list states its kind even if it is empty, so it is certain that there are no pods.
            found = {"kind": f"{kind}List", "items": [{**one, "kind": kind} for one in items]}
            yield Value(found, f"{kubeconfig}: {kind}")


class NotKnownError(ValueError):
    """The budget for the question does not allow reading the objects that decide the answer."""


def _unread(kubeconfig: str, kind: str, why: str, budget: Budget) -> ValueError:
    if why in budget.refused:
        return NotKnownError(f"{kubeconfig}: {kind}s are not known, so neither is the answer: {why}")
    return ValueError(f"{kubeconfig}: {kind}: {why}")


_OPTIONAL = (
    *("ResourceClaimTemplate", "Pod", "Namespace", "PriorityClass", "PodDisruptionBudget"),
    *("PersistentVolumeClaim", "PersistentVolume", "StorageClass", "CSINode", "CSIDriver", "CSIStorageCapacity"),
    *("RuntimeClass", "ResourceQuota", "LimitRange"),
)
"""Kinds that most pods do not need. If a pod needs an unread kind, the answer says what was not examined."""


# --- why --------------------------------------------------------------------------------------------------------------


@without_collector()
def explain_claims(
    wanted: Wanted, sources: Mapping[str, object], *, budget: Budget, as_json: bool, all_devices: bool = False
) -> int:
    """Print a report on each pod and claim: its devices, or the nodes' answers if it has none. Return the exit status.

    `sources` maps the options in `_OBJECTS`, and `kubeconfig`, `node_name`, `scheduler` and `more_slices`, to their
    values. Raises ValueError if an object cannot be read, and NotKnownError if the budget does not allow reading it.
    """
    kubeconfig, node, scheduler = (_text(sources.get(name)) for name in ("kubeconfig", "node_name", "scheduler"))
    read = {one.file for one in wanted.others}
    places = [place for place in _places(sources) if place not in read]
    from devicecore_tools.command.claim_reports import AllocatedReport, ClaimReport, print_reports
    from devicecore_tools.doctor.pod.claim_trial import OF_TEMPLATE, allocated_claim
    from devicecore_tools.doctor.pod.cluster_objects import template_of

    asked = (*wanted.pods, *wanted.claims)
    if len(asked) > _MAX_WANTED:
        raise ValueError(f"expected at most {_MAX_WANTED} pods and claims in one file, got {len(asked):,}")
    # An allocated claim needs no trial, so its own report says everything.
    if len(asked) == 1 and (allocated := allocated_claim(asked[0], ())) is not None:
        return print_reports([AllocatedReport(allocated)], as_json=as_json, all_devices=all_devices)
    has_claims = bool(sources.get("claims"))
    others = list(wanted.others)
    if place := _text(sources.get("resourceclaims")):  # kubectl prints an empty list without the kind of its members
        others.append(Value({"kind": "ResourceClaimList", "items": []}, place))
    trial = _claim_trial(places, kubeconfig, others, scheduler, wanted.pods, budget=budget, lists_claims=has_claims)
    reports: list[AllocatedReport | ClaimReport] = [
        _report_of_pod(trial, _title_of(pod), pod, node, kubeconfig) for pod in wanted.pods
    ]
    for one in wanted.claims:
        is_template = one["kind"].data == "ResourceClaimTemplate"
        claim = template_of(one) if is_template else claim_of(one)
        if not claim.name:
            one["metadata"]["name"].refuse("it is missing")
        names = [] if is_template else [claim.name]
        if is_template:
            claim = evolve(claim, name=f"{OF_TEMPLATE}{claim.name}")
        elif one["metadata"]["annotations"][_MADE_FOR].text(""):
            claim = evolve(claim, name=f"{claim.name} (from a ResourceClaimTemplate)")
        if (allocated := allocated_claim(one, ()) or trial.allocated(one)) is not None:
            reports.append(AllocatedReport(allocated))
        else:
            answers = _answers(trial, [claim], node, kubeconfig, names=names)
            reports.append(ClaimReport(f"claim {claim.name}", trial, [claim], answers))
    return print_reports(reports, as_json=as_json, all_devices=all_devices)


def _title_of(pod: Value) -> str:
    """Return a pod's title. A pod built from a workload has its owner's name, which no real pod has."""
    metadata = pod["metadata"]
    namespace, name = metadata["namespace"].text("default"), metadata["name"].text()
    for owner in metadata["ownerReferences"].sequence():
        if owner["name"].text("") == name:
            return f"a pod of {owner['kind'].text('')} {namespace}/{name}"
    return f"pod {namespace}/{name}"


_NEVER_ALLOCATED = (
    "the pod names its node, {}, so no scheduler considers the pod, and nothing allocates devices for its claims: "
    "select the node by its label kubernetes.io/hostname instead of nodeName"
)


def _report_of_pod(
    trial: "ClaimTrial",
    title: str,
    manifest: Value,
    node: str | None,
    kubeconfig: str | None = None,
    *,
    is_kubelet_asked: bool = False,
) -> "ClaimReport":
    """Return the nodes' answers about a pod's claims and its other requirements.

    With `is_kubelet_asked`, plugin devices are left out unless a Node shows them, because the kubelet's own sources
    answer for them. If the pod cannot be placed, the trial is repeated without the devices of claims that no other pod
    uses, because a scheduler deallocates such claims.
    """
    from devicecore_tools.command.claim_reports import ClaimReport
    from devicecore_tools.command.claim_rows import OF_EXTENDED
    from devicecore_tools.doctor.pod.admission import why_invalid, why_refused
    from devicecore_tools.doctor.pod.scheduling import PodAsks

    if refused := why_invalid(manifest):
        return ClaimReport(title, trial, (), refused=refused)
    pod, admission = _read_pod(manifest), trial.objects.admission
    refused = why_refused(pod) or admission.why_refused(manifest) or trial.why_refused(pod)
    manifest = admission.admitted(manifest)
    asks = PodAsks.of(manifest, trial.objects.priorities)
    is_for_kubelet = bool(asks.node) and not asks.uid
    if is_for_kubelet:
        asks, node = asks.without_scheduler(), node or asks.node
    if is_kubelet_asked and node not in trial.objects.machines:
        asks = asks.without_plugins()
    resources = trial.served_resources(pod)
    idle = [] if refused or is_for_kubelet else trial.idle_claims(pod, asks.uid)
    filters = trial.filters(asks)
    unjudged = (*admission.unjudged(manifest), *filters.unjudged, *trial.unjudged(resources))
    assumed = (*filters.assumed, *admission.assumed(manifest))
    lacking = trial.lacking_claim(pod, asks.uid)
    if not (refused or lacking) and is_for_kubelet:
        waits = trial.delegated(pod, node or "") or trial.unallocated_claims(pod)
        lacking = _NEVER_ALLOCATED.format(foreign_text(asks.node)) if waits else ""
    if not refused and lacking:
        return ClaimReport(title, trial, (), asks=asks, unjudged=unjudged, lacking=lacking)
    report = None
    for taken_away in ((), *((name,) for name in idle), *([tuple(idle)] if len(idle) > 1 else [])):
        after = trial.without(taken_away) if taken_away else trial
        claims = after.unallocated_claims(pod)
        names = after.claims_named_by(pod)
        if claims and not trial.has_classes:
            raise ValueError(_NO_CLASSES if kubeconfig is None else _NO_CLASSES_THERE.format(kubeconfig))
        answers = (
            []
            if refused
            else after.answers(claims, node, names=names, pod=pod, uid=asks.uid, filters=filters, resources=resources)
        )
        extended = after.extended_claim(pod, resources)
        named = [
            *claims,
            *([] if extended is None else [evolve(extended, name=f"{OF_EXTENDED}{pod.namespace}/{pod.name}")]),
        ]
        allocated = after.allocated_claims(pod)
        lost = [one for one in trial.allocated_claims(pod) if one.name in taken_away] if taken_away else ()
        found = ClaimReport(
            title,
            after,
            named,
            answers,
            allocated,
            asks,
            lost,
            refused,
            unjudged,
            assumed,
            is_kubelet_asked=is_kubelet_asked,
        )
        # There may be thousands of claims to take away. Once the budget is spent, the nodes' answers say so.
        if report is None or found.is_placed or found.is_given_up:
            report = found
        if report.is_placed or report.is_given_up:
            break
    assert report is not None  # noqa: S101 - for mypy: the loop runs at least once
    return report


def _answers(
    trial: "ClaimTrial",
    claims: Sequence[UnallocatedClaim],
    node: str | None,
    kubeconfig: str | None = None,
    *,
    names: Sequence[str] = (),
) -> "Sequence[ClaimAnswer]":
    if claims and not trial.has_classes:
        raise ValueError(_NO_CLASSES if kubeconfig is None else _NO_CLASSES_THERE.format(kubeconfig))
    return trial.answers(claims, node, names=names)


def _text(option: object) -> str | None:
    return option if isinstance(option, str) else None


def answer_of_node(
    pod: Value,
    node: str,
    slices: Sequence[str],
    claims: str | None,
    pods: str | None = None,
    *,
    others: Sequence[Value] = (),
    budget: Budget,
    is_named: bool = True,
) -> "ClaimReport | None":
    """Return a node's answer about a pod. Return None if no file says anything about the pod's requests.

    `others` are the other documents in the pod's file, which may contain claims, classes and slices, and the documents
    from standard input. If the node's name is unknown, the only node in the files is used. Raises ValueError if
    something cannot be read, or if the files say nothing about the node.
    """
    from devicecore_tools.doctor.pod.extended_claim import extended_resources

    known = _read_pod(pod)
    kinds = {item["kind"].data for document in others for item in items_in(document)}
    if not (slices or claims or "ResourceSlice" in kinds):
        return None
    places = (*slices, claims, None if pods == "-" else pods)
    trial = _claim_trial(places, None, others, budget=budget, lists_claims=bool(claims))
    name = trial.name_of(node, is_named=is_named)
    if name is None and not (known.claims or extended_resources(known)):
        return None
    if name is None:
        files = " and ".join(filter(None, (*slices, claims))) or others[0].file
        raise UnknownNodeError(
            f"no ResourceSlice and no Node in {files} belongs to {node}, so its devices are not known"
        )
    return _report_of_pod(trial, _title_of(pod), pod, name, is_kubelet_asked=True)


class UnknownNodeError(ValueError):
    """The files say nothing about a node."""
