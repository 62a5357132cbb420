"""ResourceClaims for `why` and `fits`: which devices they get on the nodes of a cluster, and why not.

Law: what is printed of a claim comes from a trial (`devicecore_tools.doctor.claim_trial`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click
from attrs import evolve, frozen

from devicecore.domain.allocation import DeviceAllocation, NoAllocation, Release, UnallocatedClaim, claim_of
from devicecore.domain.allocation.faults import KubernetesFault
from devicecore.domain.allocation.model import DeviceRequest
from devicecore.domain.allocation.reasons import InUse, NotTolerated
from devicecore.domain.capacity import pod_request
from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Pod, PodUid, is_extended_resource
from devicecore.domain.objects import pod_of
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.command.collector import without_collector
from devicecore_tools.command.output import print_json, print_pairs

if TYPE_CHECKING:
    from devicecore.domain.allocation import TargetNode
    from devicecore.domain.allocation.reasons import DeviceVerdict
    from devicecore_tools.doctor.claim_report import ReasonLine
    from devicecore_tools.doctor.claim_trial import AllocatedClaim, ClaimAnswer, ClaimTrial, Outcome

_LOOK = "look in the driver's log why the device is marked, and have it repaired"
_MAX_DEVICES = 2_000  # rows with --all-devices
_MAX_REASONS = 5  # rows for a request
_MAX_REQUESTS = 4  # requests of which the reasons are shown
_MAX_CHANGES = 4
_MAX_GROUPS = 6  # rows for nodes without the best one
_MAX_NAMES = 3
_MAX_LINES = 24  # of what is printed of a claim: a small terminal has so many
_OF_EXTENDED = "for extended resources of pod "
"""How the name of a claim begins that a scheduler makes for a pod."""

_MADE_FOR = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that is made from a template."""

_OF_TEMPLATE = "of ResourceClaimTemplate "

_MAX_WANTED = 20  # claims and pods of one file
_MAX_GIVEN = 12  # rows for devices that claims get
_NO_CLASSES_THERE = (
    "{}: the API server has no DeviceClass, and every request of a claim names one. Most drivers install theirs; or "
    "make one: kubectl create -f FILE, with apiVersion: resource.k8s.io/v1, kind: DeviceClass, its metadata.name, and "
    "in spec.selectors a CEL expression such as device.driver == 'gpu.example.com'"
)
_NO_CLASSES = (
    "no DeviceClass is known; add --kubeconfig FILE, or give --slices a file with it: "
    "kubectl get resourceslices,deviceclasses,nodes -o json"
)
_CLAIM_KINDS = ("ResourceClaim", "ResourceClaimTemplate")
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "PodTemplate")


@frozen
class Wanted:
    """What somebody asks about: the pods and claims of a file, and all its documents.

    Attributes:
        pods: pods that name claims, those of workloads among them.
        claims: claims and templates that no pod of the file names.
        others: all documents.
    """

    pods: Sequence[Value] = ()
    claims: Sequence[Value] = ()
    others: Sequence[Value] = ()


def wanted_in(data: bytes, place: str, sources: Mapping[str, object]) -> Wanted | None:
    """Return the claims and the pods with claims in what was read of a place. Return None if there are none.

    A pod counts only if no node has it yet, and if its file or `sources` may say what decides about its claims. The
    only pod of a file needs no claims if a DeviceClass may serve its extended resources.
    """
    from devicecore_tools.doctor.sources.large_documents import parse_documents

    may_decide = any(sources.get(name) for name in ("slices", "claims", "kubeconfig"))
    if b"ResourceClaim" not in data and b"resourceClaims" not in data and not (may_decide and b"limits" in data):
        return None
    try:
        documents = parse_documents(data, place)
        items = [item for one in documents for item in _items(one)]
        kinds = {item["kind"].text("") for item in items}
        pods: list[Value] = []
        if "DeviceClass" in kinds or may_decide:
            pods = waiting_pods(items, _text(sources.get("kubeconfig")))
        named = {name for pod in pods for name in _names_of_claims(pod)}
        claims = [
            one
            for one in items
            if one["kind"].data in _CLAIM_KINDS
            # A name that is no text may have no hash; `claim_of` refuses it.
            and not (isinstance(name := one["metadata"]["name"].data, str) and name in named)
        ]
    except DocumentError:
        return None  # as a message, it may be understood, or is refused with a sentence
    return Wanted(pods, claims, documents) if pods or claims else None


def named_at_server(name: str, kubeconfig: str) -> tuple[list[Value], list[Value]]:
    """Return the pods and the claims that an API server has of a name, or `namespace/name`.

    Raises ValueError if they cannot be read.
    """
    try:
        from devicecore.adapters.kube_api.access import RequestError
        from devicecore_tools.doctor.sources.api_server import read_named
    except ModuleNotFoundError as error:
        raise ValueError(f"--kubeconfig: {error}: install the extra `kubernetes`") from None

    def called(kind: str) -> list[Value]:
        try:
            named = read_named(kubeconfig, kind, name)
        except RequestError as error:
            raise ValueError(f"{kubeconfig}: {kind}: {error}") from None
        return [Value({**one, "kind": kind}, f"{kubeconfig}: {kind} {name}") for one in named]

    return called("Pod"), called("ResourceClaim")


def _items(document: Value) -> Iterator[Value]:
    if document["items"].data is None:
        yield document
    else:
        for item in document["items"].sequence():
            yield from _items(item)


def waiting_pods(items: Sequence[Value], kubeconfig: str | None) -> list[Value]:
    """Return the pods of objects that name claims and that no node has, also those of workloads.

    A single one needs no claim if it has extended resources that DeviceClasses may serve. An API server is asked
    whether they do.
    """
    pods = [pod for item in items if (pod := _waiting_pod(item)) is not None]
    if pods or len(items) != 1 or (single := _waiting_pod(items[0], needs_claims=False)) is None:
        return pods
    return [single] if kubeconfig is None or _is_served(single, kubeconfig) else []


def _waiting_pod(item: Value, *, needs_claims: bool = True) -> Value | None:
    """Return the pod of an object if it names claims and no node has it, also of a workload. Return None else.

    Without `needs_claims`, a pod counts that has extended resources.
    """
    kind, pod = item["kind"].text(""), item
    if kind in _WORKLOADS:
        spec = item["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else item["spec"]
        template = item["template"] if kind == "PodTemplate" else spec["template"]
        names = {"name": item["metadata"]["name"].data, "namespace": item["metadata"]["namespace"].data}
        metadata = {**names, "ownerReferences": [{"kind": kind, "name": names["name"]}]}
        pod = Value({"kind": "Pod", "metadata": metadata, "spec": template["spec"].data}, item, "spec.template")
    elif kind != "Pod":
        return None
    is_bound = pod["spec"]["nodeName"].text("")
    asks = pod["spec"]["resourceClaims"].sequence() or (not needs_claims and _extended_resources(_read_pod(pod)))
    return pod if asks and not is_bound else None


def _read_pod(pod: Value) -> Pod:
    return pod_of(pod, uid=PodUid("u"))


def _extended_resources(pod: Pod) -> list[str]:
    """Return the extended resources that a pod asks for and no claim serves yet."""
    known = pod.extended_claim.mappings if pod.extended_claim is not None else ()
    served = {one.resource for one in known}
    return [
        name for name, size in pod_request(pod).items() if size and is_extended_resource(name) and name not in served
    ]


def _is_served(pod: Value, kubeconfig: str) -> bool:
    """Return whether a DeviceClass of an API server serves an extended resource of a pod."""
    from devicecore_tools.doctor.claim_trial import objects_of
    from devicecore_tools.doctor.sources.api_server import read_objects

    classes = read_objects("", kubeconfig, ("DeviceClass",))["DeviceClass"]
    if isinstance(classes, str):
        return False
    known = objects_of([Value({"items": [{**one, "kind": "DeviceClass"} for one in classes]}, kubeconfig)])
    return any(name in known.extended for name in _extended_resources(_read_pod(pod)))


def _names_of_claims(pod: Value) -> Iterator[str]:
    for entry in pod["spec"]["resourceClaims"].sequence():
        yield from filter(None, (entry[name].text("") for name in ("resourceClaimName", "resourceClaimTemplateName")))


def _claim_trial(
    places: Sequence[str | None], kubeconfig: str | None, read: Sequence[Value] = (), scheduler: str | None = None
) -> "ClaimTrial":
    """Return a trial with the objects of files, of an API server, and those that were read already.

    Raises ValueError if one cannot be read.
    """
    from devicecore_tools.doctor.claim_trial import ClaimTrial, objects_of

    version = scheduler or ""
    if kubeconfig is not None:
        try:
            from devicecore_tools.doctor.sources.api_server import read_version
        except ModuleNotFoundError as error:
            raise ValueError(f"--kubeconfig: {error}: install the extra `kubernetes`") from None
        version = version or read_version(kubeconfig)
    release = Release.of(version)
    if scheduler and release is None:
        raise ValueError(f"--scheduler: expected a version of Kubernetes such as 1.36.3, got {scheduler}")
    problems: dict[str, str] = {}
    objects = objects_of(_documents(places, kubeconfig, read, problems))
    files = dict.fromkeys([*(one.file for one in read), *filter(None, places)])
    sources = [f"in {one}" for one in files]
    if kubeconfig is not None:
        refused = "".join(f", which does not list them: {one}" for one in problems.values())
        sources.append(f"at the API server of {kubeconfig}{refused}")
    return ClaimTrial(objects, () if release is None else (release,), sources)


def _documents(
    places: Sequence[str | None], kubeconfig: str | None, read: Sequence[Value], problems: dict[str, str]
) -> Iterator[Value]:
    """Return the documents one after the other, so that the text of only one of them has to be kept.

    `problems` gets why an API server does not list templates: only pods that name one need them.
    """
    from devicecore_tools.doctor.sources.large_documents import read_all_documents

    for place in places:
        if place is not None:
            yield from read_all_documents(place)
    yield from read
    if kubeconfig is not None:
        from devicecore_tools.doctor.sources.api_server import OF_CLAIMS, read_objects

        for kind, items in read_objects("", kubeconfig, OF_CLAIMS).items():
            if isinstance(items, str) and kind == "ResourceClaimTemplate":
                problems[kind] = items
                continue
            if isinstance(items, str):
                raise ValueError(f"{kubeconfig}: {kind}: {items}")  # noqa: TRY004 - a sentence in place of the answer
            yield Value({"items": [{**one, "kind": kind} for one in items]}, f"{kubeconfig}: {kind}")


# --- why --------------------------------------------------------------------------------------------------------------


@without_collector()
def explain_claims(wanted: Wanted, sources: Mapping[str, object], *, as_json: bool, all_devices: bool = False) -> int:
    """Print what each pod and claim has, or what the nodes say of it if it has nothing. Return the exit status.

    `sources` has the options `slices`, `claims`, `kubeconfig`, `node_name` and `scheduler`. Raises ValueError if one
    cannot be read.
    """
    slices, claims, kubeconfig, node, scheduler = (
        _text(sources.get(name)) for name in ("slices", "claims", "kubeconfig", "node_name", "scheduler")
    )
    from devicecore_tools.doctor.claim_trial import allocated_claim, template_of

    asked = (*wanted.pods, *wanted.claims)
    if len(asked) > _MAX_WANTED:
        raise ValueError(f"expected at most {_MAX_WANTED} pods and claims in one file, got {len(asked):,}")
    if len(asked) == 1 and (allocated := allocated_claim(asked[0], ())) is not None:  # it says all itself
        return _put([_Allocated(allocated)], as_json=as_json, all_devices=all_devices)
    trial = _claim_trial((slices, claims), kubeconfig, wanted.others, scheduler)
    reports: list[_Allocated | _Report] = [
        _report_of_pod(trial, _title_of(pod), _read_pod(pod), node, kubeconfig) for pod in wanted.pods
    ]
    for one in wanted.claims:
        is_template = one["kind"].data == "ResourceClaimTemplate"
        claim = template_of(one) if is_template else claim_of(one)
        if is_template:
            claim = evolve(claim, name=f"{_OF_TEMPLATE}{claim.name}")
        elif one["metadata"]["annotations"][_MADE_FOR].text(""):
            claim = evolve(claim, name=f"{claim.name} of a ResourceClaimTemplate")
        if (allocated := allocated_claim(one, ()) or trial.allocated(one)) is not None:
            reports.append(_Allocated(allocated))
        else:
            reports.append(_report(trial, f"claim {claim.name}", [claim], node, kubeconfig))
    return _put(reports, as_json=as_json, all_devices=all_devices)


def _put(reports: "Sequence[_Allocated | _Report]", *, as_json: bool, all_devices: bool) -> int:
    """Print reports, as JSON those of several pods and claims as one list. Return the exit status."""
    if as_json:
        documents = [one.document for one in reports]
        print_json(documents[0] if len(documents) == 1 else {"claims": documents})
    else:
        for report in reports:
            report.show(all_devices=all_devices)
    return max((one.status for one in reports), key=_SEVERITY.index, default=0)


_SEVERITY = (0, 4, 3, 1)
"""Exit statuses, the worst one last."""


@frozen
class _Allocated:
    """What a claim has: its devices, where they can be used, and for which pods they are reserved."""

    claim: "AllocatedClaim"
    status: int = 0

    @property
    def document(self) -> dict[str, object]:
        """The report as JSON."""
        claim = self.claim
        allocated = {
            "devices": [{"request": request, "device": device} for request, device in claim.devices],
            "nodes": None if claim.nodes is None else list(claim.nodes),
            "reservedFor": list(claim.pods),
        }
        return {"claims": claim.name, "allocated": allocated}

    def show(self, *, all_devices: bool) -> None:  # noqa: ARG002 - as `_Report` has it
        """Print the report."""
        claim = self.claim
        rows = [(f"request {request}", device) for request, device in claim.devices]
        if claim.nodes is None:
            rows.append(("usable on", "all nodes"))
        elif claim.nodes:
            rows.append(("usable on", ", ".join(claim.nodes)))
        rows.append(("reserved for", ", ".join(f"pod {name}" for name in claim.pods) or "no pod"))
        print_pairs(f"claim {claim.name} is allocated", rows)


@frozen
class _Report:
    """What nodes say of the claims of one pod, or of one claim.

    Attributes:
        title: the pod or the claim.
        trial: what is known.
        claims: those that are not allocated.
        answers: of each node.
        allocated: the other claims of the pod.
        plugins: nodes that were not tried, because a device plugin serves an extended resource there.
    """

    title: str
    trial: "ClaimTrial"
    claims: Sequence[UnallocatedClaim]
    answers: "Sequence[ClaimAnswer]" = ()
    allocated: "Sequence[AllocatedClaim]" = ()
    plugins: Sequence[str] = ()

    @property
    def outcome(self) -> "Outcome":
        """What a scheduler does with them, by the node that says most."""
        from devicecore_tools.doctor.claim_trial import Outcome

        if not self.claims:
            return Outcome.FITS
        if self.plugins and not (self.answers and self.answers[0].fits):
            return Outcome.UNKNOWN
        if not self.answers:
            return Outcome.FITS_NOT
        if self.trial.lacks_library and not self.answers[0].fits:
            return Outcome.UNKNOWN
        outcome = self.answers[0].outcome
        return Outcome.MISSED if outcome is Outcome.FITS and self._stopping is not None else outcome

    @property
    def _stopping(self) -> "ClaimAnswer | None":
        """The first node whose error makes a scheduler try no other node."""
        return next((one for one in self.answers[1:] if getattr(one.answer, "stops_pod", False)), None)

    @property
    def status(self) -> int:
        """The exit status."""
        return int(self.outcome.value)

    @property
    def document(self) -> dict[str, object]:
        """The report as JSON."""
        names = ", ".join(one.name for one in self.claims)
        nodes = [document_of(one) for one in self.answers]
        return {"claims": names, "outcome": self.outcome.name.lower().replace("_", "-"), "nodes": nodes}

    def show(self, *, all_devices: bool) -> None:
        """Print the report: what is said of the best node, and the others by what they have in common."""
        if not self.claims:
            click.echo(f"{self.title}: each claim is allocated already")
            for one in self.allocated:
                _Allocated(one).show(all_devices=all_devices)
        elif not self.answers:
            click.echo(f"{self.title}: there is no node{f', but {self._with_plugins}' * bool(self.plugins)}")
        else:
            best, *others = self.answers
            pairs = list(_with_hint(self._pairs(best, all_devices=all_devices), self._bare_sibling(best, others)))
            of_others = list(_other_pairs(others))
            room = _MAX_LINES - 1 - len(of_others) - bool(others)
            if len(pairs) > room and not all_devices:
                more = counted(len(pairs) - room + 1, "more row")
                pairs[room - 1 :] = [("...", f"{more}: --all-devices has the reason against each device")]
            print_pairs(self._headline(best), pairs)
            if others:
                print_pairs("The other nodes", of_others)

    @property
    def _with_plugins(self) -> str:
        more = f" and {len(self.plugins) - _MAX_NAMES:,} more" * (len(self.plugins) > _MAX_NAMES)
        names = f"{', '.join(self.plugins[:_MAX_NAMES])}{more}"
        return f"device plugins serve the pod's extended resources on {names}: devicecore fits tries the pod there"

    def _bare_sibling(self, best: "ClaimAnswer", others: "Sequence[ClaimAnswer]") -> str:
        """Return what to look at if a node of the best one's type has no slice of a driver that is wanted."""
        from devicecore_tools.doctor.claim_report import type_of

        drivers = {key.driver for _, _, key, _ in getattr(best.answer, "verdicts", ())}
        wanted = [one for one in drivers if self.trial.wants_driver(self.claims, one)]
        kind = type_of(best.node)
        if not wanted or not kind:
            return ""
        bare = [one.node.name for one in others if type_of(one.node) == kind and not self.trial.pools(one.node)]
        if not bare:
            return ""
        more = f" and {len(bare) - 1:,} more" * (len(bare) > 1)
        what = f"{bare[0]}{more} of the same {kind} {'have' if more else 'has'} no ResourceSlice of {min(wanted)}"
        return f"look whether the driver's pod runs on {bare[0]}, and at its log: {what}"

    def _headline(self, best: "ClaimAnswer") -> str:
        from devicecore_tools.doctor.claim_trial import Outcome

        says = {
            Outcome.FITS: "gets its devices",
            Outcome.FITS_NOT: "gets no devices",
            Outcome.UNKNOWN: "nobody can say whether it gets devices",
            Outcome.MISSED: "could get its devices, but not every scheduler finds them",
        }[self.outcome]
        if self._stopping is not None:
            says = f"gets no devices from kube-scheduler, although {best.node.name} has them"
            return f"{self.title}: {says}"
        count, alike = len(self.answers), sum(one.outcome is Outcome.FITS for one in self.answers)
        which = ""
        if count > 1 and not best.fits:
            which = f", the nearest of {count:,} nodes"
        elif alike > 1:
            which = f", one of {alike:,} such nodes of {count:,}"
        return f"{self.title} on {best.node.name}{which}: {says}"

    def _pairs(self, best: "ClaimAnswer", *, all_devices: bool) -> Iterator[tuple[str, str]]:
        if self.plugins:
            yield "not tried", self._with_plugins
        if isinstance(best.answer, DeviceAllocation):
            if (stopping := self._stopping) is not None:
                error = f"an error on {stopping.node.name} stops the pod on every node"
                yield "reason", f"{error}: {stopping.answer}"
                yield from _pool_pairs(self.trial, stopping)
                if isinstance(stopping.answer, NoAllocation):
                    yield from _expression_pairs(self.trial, self.claims, stopping.answer, is_mended=False)
                away = "nodeSelector, nodeAffinity, or a taint of the node"
                if not best.faults:  # with which a scheduler may look at slices of other nodes, whatever it tries
                    yield "do", f"until that is mended, keep the pod away from {stopping.node.name}: {away}"
            yield from pairs_of(best, _over_committed_pairs(self.trial, best))
            for one in self.trial.unpublished(best.answer)[:_MAX_NAMES]:
                text = f"{one.device} is allocated to {one} and published no more: which counters it uses is not known"
                yield "caution", text
            return
        yield from _problem_pairs(self.trial, self.claims, best, all_devices=all_devices)


def _with_hint(pairs: Iterable[tuple[str, str]], hint: str) -> Iterator[tuple[str, str]]:
    """Return rows with a hint after those that say what is in the way."""
    is_given = not hint
    for name, text in pairs:
        if not is_given and name not in ("reason", "because", "but", "do"):
            yield "do", hint
            is_given = True
        yield name, text
    if not is_given:
        yield "do", hint


def _title_of(pod: Value) -> str:
    """Return what a pod is called. That of a workload has the name of its owner, which no real pod has."""
    known = _read_pod(pod)
    title = f"pod {known.namespace}/{known.name}"
    for owner in pod["metadata"]["ownerReferences"].sequence():
        if owner["name"].text("") == known.name:
            return f"a pod of {owner['kind'].text('')} {known.namespace}/{known.name}"
    return title


def _report_of_pod(trial: "ClaimTrial", title: str, pod: Pod, node: str | None, kubeconfig: str | None) -> _Report:
    """Return what nodes say of the claims of a pod, and of those that a scheduler makes for extended resources."""
    claims = trial.unallocated_claims(pod)
    resources = _extended_resources(pod)
    served = [name for name in resources if trial.class_for(name)]
    if (extended := trial.extended_claim(pod, served)) is not None:
        claims = [*claims, evolve(extended, name=f"{_OF_EXTENDED}{pod.namespace}/{pod.name}")]
    elif not pod.claims:
        names = ", ".join(resources)
        raise ValueError(f"{title} has no claim, and no DeviceClass serves {names}; for plugins, run: devicecore fits")
    plugins = trial.nodes_with_plugins(served)
    answers = _answers(trial, claims, node, kubeconfig, plugins) if claims else ()
    return _Report(title, trial, claims, answers, trial.allocated_claims(pod), plugins)


def _report(
    trial: "ClaimTrial", title: str, claims: Sequence[UnallocatedClaim], node: str | None, kubeconfig: str | None
) -> _Report:
    return _Report(title, trial, claims, _answers(trial, claims, node, kubeconfig) if claims else ())


def _answers(
    trial: "ClaimTrial",
    claims: Sequence[UnallocatedClaim],
    node: str | None,
    kubeconfig: str | None = None,
    plugins: Sequence[str] = (),
) -> "Sequence[ClaimAnswer]":
    if claims and not trial.has_classes:
        raise ValueError(_NO_CLASSES if kubeconfig is None else _NO_CLASSES_THERE.format(kubeconfig))
    return trial.answers(claims, node, frozenset(plugins))


def _text(option: object) -> str | None:
    return option if isinstance(option, str) else None


def answer_of_node(pod: Pod, node: str, slices: str | None, claims: str | None) -> "ClaimAnswer | None":
    """Return whether a node has the devices for the claims of a pod. Return None if it has none, or no file says.

    Raises ValueError if something cannot be read, or the node is not known.
    """
    if not pod.claims or not (slices or claims):
        return None
    from devicecore_tools.doctor.claim_trial import ClaimAnswer
    from devicecore_tools.doctor.trial import claim_names

    trial = _claim_trial((slices, claims), None)
    wanted = trial.unallocated_claims(pod)
    target = trial.node(node)
    if target is None:
        raise ValueError(f"no slice and no Node is of {node}; give a description of the node that has its name")
    if problem := trial.unusable(claim_names(pod), target, pod.name):
        return ClaimAnswer(target, NoAllocation(problem))
    return _answers(trial, wanted, target.name)[0]


# --- what is printed --------------------------------------------------------------------------------------------------


def pairs_of(answer: "ClaimAnswer", about_faults: Iterable[tuple[str, str]] = ()) -> Iterator[tuple[str, str]]:
    """Rows for a node: the devices that claims get, or the reasons against devices with their number."""
    if isinstance(answer.answer, DeviceAllocation):
        yield from _but(answer)
        yield from about_faults
        for taken in answer.answer.taken[:_MAX_GIVEN]:
            yield f"request {taken.request.result_name}", str(taken.key)
        if (more := len(answer.answer.taken) - _MAX_GIVEN) > 0:
            yield "...", f"{more:,} more"
        return
    yield "reason", str(answer.answer)
    yield from _but(answer)
    yield from _change_pairs(answer)
    yield from _reason_pairs(answer.answer)


def _but(answer: "ClaimAnswer") -> Iterator[tuple[str, str]]:
    """Rows for the schedulers that answer otherwise, those with the same faults in one row."""
    does = "does not find them" if answer.fits else "gives devices against the rules"
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for release, faults in answer.faults.items():
        alike[faults].append(release)
    for faults, releases in alike.items():
        known = {fault.value: fault.sentence for fault in KubernetesFault}
        why = "; ".join(known[part] for name in faults for part in name.split(" + ") if part in known)
        names = ", ".join(faults)
        yield (
            "but",
            f"a scheduler of Kubernetes {_releases(releases)} {does}: {why or names} ({names}, see docs/claims.md)",
        )


def _releases(names: Sequence[str]) -> str:
    """Return releases as people call them: 1.36 has two, and what is older answers as the older of them."""
    is_old = Release.V1_36_2.value in names
    shown = ["1.36" if is_old and name == Release.V1_36_3.value else name for name in names]
    kept = [name for name in shown if not (name == Release.V1_36_2.value and "1.36" in shown)]
    return ", ".join(kept) + " or older" * is_old


def _change_pairs(answer: "ClaimAnswer", claims: Sequence[UnallocatedClaim] = ()) -> Iterator[tuple[str, str]]:
    """Rows for the changes that help, and how to make them if `claims` has to change.

    Claims of which it is enough that one is released are one row.
    """
    from devicecore_tools.doctor.claim_changes import Rank

    changes = [one for one in answer.changes if one.rank is not Rank.DROP] or answer.changes
    holders = [one for one in changes if one.holder]
    more = f" and {len(holders) - _MAX_NAMES:,} more" * (len(holders) > _MAX_NAMES)
    shown = ", ".join(one.holder for one in holders[:_MAX_NAMES])
    rows: list[tuple[str, bool]] = []
    for change in changes:
        if not change.holder:
            rows.append((str(change), not change.classes))
        elif len(holders) == 1:
            pods = change.holder.partition(" of pod ")[2]
            end = ", as when its pods end" if ", " in pods else ", as when its pod ends" * bool(pods)
            rows.append((f"{change}{end}", False))
        elif change is holders[0]:
            end = ", as when its pod ends" * (" of pod " in shown)
            rows.append((f"any one of these {len(holders):,} is released{end}: {shown}{more}", False))
    for row, _ in rows[:_MAX_CHANGES]:
        yield "gets them if", row
    if (rest := len(rows) - _MAX_CHANGES) > 0:
        yield "...", f"{counted(rest, 'other change')} would help, too: --json has all"
    if any(is_of_claim for _, is_of_claim in rows[:_MAX_CHANGES]):
        for how in dict.fromkeys(_how_to_edit(one) for one in claims):
            yield "how", how


def _how_to_edit(claim: UnallocatedClaim) -> str:
    """Return how a claim is changed, whose name says what it is made from."""
    if claim.name.startswith(_OF_EXTENDED):
        return "the limits of a pod cannot be edited: delete the pod, and create it anew with the change"
    if "ResourceClaimTemplate" in claim.name:  # which the name of an object cannot have
        both = "delete the template and the pods that wait, and create both anew with the change"
        return f"the spec of a template cannot be edited: {both}"
    return "the spec of a claim cannot be edited: delete the claim, and create it anew with the change"


def _problem_pairs(
    trial: "ClaimTrial", claims: Sequence[UnallocatedClaim], best: "ClaimAnswer", *, all_devices: bool
) -> Iterator[tuple[str, str]]:
    """Rows for a node that has no devices: why, what helps, and the devices by reason."""
    from devicecore_tools.doctor.claim_changes import Rank
    from devicecore_tools.doctor.claim_report import constraint_lines

    refused = best.answer
    if not isinstance(refused, NoAllocation):
        return
    yield "reason", str(refused)
    for line in constraint_lines(claims, refused, trial.objects.devices):
        yield "because", line
    yield from _but(best)
    yield from _outside_pairs(trial, claims, best)
    if refused.is_error and not trial.lacks_library:
        is_mended = any(one.rank in (Rank.REPAIR, Rank.VALUE) for one in best.changes)
        then = ", but alone this gives no device"
        yield from _expression_pairs(trial, claims, refused, is_mended=is_mended, then=then)
        yield from _known_classes(trial, claims)
    yield from _next_pairs(trial, claims, best)
    yield from _change_pairs(best, claims)
    if all_devices:
        yield from _device_pairs(refused)
    else:
        yield from _reason_pairs(refused, trial.holders, claims)


def _outside_pairs(
    trial: "ClaimTrial", claims: Sequence[UnallocatedClaim], best: "ClaimAnswer"
) -> Iterator[tuple[str, str]]:
    """Say which devices a request describes that its class does not select, if no other class that is known does."""
    if any(" names deviceClassName: " in str(one) for one in best.changes):
        return
    node = trial.refused(best)
    for claim in claims:
        for request in claim.alternatives:
            for device in node.outside_class(claim, request)[:1]:
                todo = f"name a DeviceClass that selects {device.key}, or make one"
                what = f"it is as request {request.result_name} describes it, but class {request.device_class}"
                yield "do", f"{todo}: {what} does not select it"


def _expression_pairs(
    trial: "ClaimTrial", claims: Sequence[UnallocatedClaim], refused: NoAllocation, *, is_mended: bool, then: str = ""
) -> Iterator[tuple[str, str]]:
    """Say what is wrong with the expression that an error names, and what to write."""
    from devicecore_tools.doctor.claim_changes import MAX_EXPRESSION
    from devicecore_tools.doctor.claim_report import Expression, expression_advice

    requests = [request for one in claims for request in one.alternatives]
    named = {one.device_class for one in requests}
    expressions = [
        *(Expression(f"request {one.result_name}", text or "") for one in requests for text in one.selectors),
        *(
            Expression(f"DeviceClass {one.name}", text or "")
            for one in trial.objects.classes
            if one.name in named
            for text in one.selectors
        ),
    ]
    known = [one for one in expressions if len(one.text) <= MAX_EXPRESSION]
    devices = {str(key): device for key, device in trial.objects.devices.items()}
    yield from expression_advice(str(refused), known, devices, is_mended=is_mended, then=then)


def _next_pairs(
    trial: "ClaimTrial", claims: Sequence[UnallocatedClaim], best: "ClaimAnswer"
) -> Iterator[tuple[str, str]]:
    """Say what to look at if pools are not usable, a driver is missing, or devices are marked."""
    refused = best.answer
    if not isinstance(refused, NoAllocation):
        return
    yield from _pool_pairs(trial, best)
    if not refused.is_error:
        missing = list(dict.fromkeys(_missing_drivers(trial, claims, best)))
        if not missing and not refused.verdicts and not refused.unusable:
            missing = [_nothing_published(trial, best.node)]
        for text in missing[:_MAX_NAMES]:
            yield "because", text
        if missing:
            look = f"look whether the driver is installed, whether its pod runs on {best.node.name}, and at its log"
            yield "do", f"{look}; compare the nodeSelector and affinity of its DaemonSet with the labels of the node"
    for claim in claims:
        for request in claim.alternatives:
            yield from _whole_pairs(trial, request, refused)
    yield from _taint_pairs(trial, claims, refused)


def _missing_drivers(trial: "ClaimTrial", claims: Sequence[UnallocatedClaim], best: "ClaimAnswer") -> Iterator[str]:
    """Return a sentence for each request that wants a driver which publishes nothing for a node."""
    from devicecore_tools.doctor.expression_edits import wanted_drivers

    classes = {one.name: one for one in trial.objects.classes}
    here = {pool.key[0] for pool in trial.pools(best.node)}
    for request in (one for claim in claims for one in claim.alternatives):
        known = classes.get(request.device_class)
        expressions = [*(known.selectors if known else ()), *request.selectors]
        wanted = [driver for one in expressions if one for driver in wanted_drivers(one)]
        if wanted and here.isdisjoint(wanted):
            drivers = foreign_text(" or ".join(wanted[:_MAX_NAMES]))
            by = f"class {request.device_class}" if known and wanted[0] in str(known.selectors) else "the claim"
            nodes, others = trial.nodes_of(wanted), _drivers(trial)
            if nodes:
                there = f", only for {', '.join(nodes[:_MAX_NAMES])}"
                there += f" and {len(nodes) - _MAX_NAMES:,} more" * (len(nodes) > _MAX_NAMES)
            elif any(one.driver in wanted for one in trial.objects.slices):
                there = ", only for nodes that are not known"
            else:
                there = f"; there are no slices of it at all{others and f', only of {others}'}"
            yield f"{by} wants devices of driver {drivers}, which has no ResourceSlice for {best.node.name}{there}"


def _nothing_published(trial: "ClaimTrial", node: "TargetNode") -> str:
    """Return what drivers publish if a node has no device."""
    if pools := trial.pools(node):
        drivers = ", ".join(dict.fromkeys(one.key[0] for one in pools))
        return f"the slices for {node.name}, of {drivers}, have no device"
    others = _drivers(trial)
    return f"no driver has a ResourceSlice for {node.name}{others and f'; there are slices of {others}'}"


def _drivers(trial: "ClaimTrial") -> str:
    """Return the drivers that publish something."""
    drivers = sorted({one.driver for one in trial.objects.slices})
    return ", ".join(drivers[: 2 * _MAX_NAMES]) + ", ..." * (len(drivers) > 2 * _MAX_NAMES)


def _whole_pairs(trial: "ClaimTrial", request: DeviceRequest, refused: NoAllocation) -> Iterator[tuple[str, str]]:
    """Say of a device of which a part is wanted that it is given as a whole."""
    for one in refused.verdicts if request.capacity else ():
        device = trial.objects.devices.get(one.device)
        if one.request == request.result_name and isinstance(one.reason, InUse) and device and not device.is_shared:
            asks = f"request {request.result_name} asks for a part of {one.device}"
            yield "because", f"{asks}, which is published without allowMultipleAllocations: one claim has it as a whole"
            # An API server that drops the one field drops the other.
            gate = f"{one.reason.held} has kept its capacity, so the API server knew the field when that was created"
            if not trial.asks_for_capacity(one.reason.held.claim):
                gate = "before 1.36 an API server drops the field unless the feature gate DRAConsumableCapacity is on"
            todo = f"restart the pod of {one.device.driver}, so that it publishes anew"
            yield "do", f"{todo}; if the field is still missing, it is the driver's version or its settings ({gate})"
            return


def _taint_pairs(
    trial: "ClaimTrial", claims: Sequence[UnallocatedClaim], refused: NoAllocation
) -> Iterator[tuple[str, str]]:
    """Say who has marked devices. To tolerate a mark is right only for what may run on a device so marked."""
    watches = any(one.admin_access for claim in claims for one in claim.alternatives)
    marked: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in refused.verdicts:
        if isinstance(one.reason, NotTolerated):
            marked[trial.marked_by(one.device, one.reason.taint), str(one.reason.taint)].append(str(one.device))
    for (who, taint), devices in list(marked.items())[:_MAX_NAMES]:
        more = f" and {len(devices) - 1:,} more" * (len(devices) > 1)
        todo = "delete that rule when its reason is gone"
        if who.startswith("its driver"):
            todo = f"{_LOOK}, or use another device, before a claim tolerates this"
            todo = (
                f"adminAccess ignores no taint; what only watches devices may tolerate it; {_LOOK}" if watches else todo
            )
        yield "because", f"{devices[0]}{more} {'have' if more else 'has'} the taint {taint} from {who}"
        yield "do", todo


def _pool_pairs(trial: "ClaimTrial", answer: "ClaimAnswer") -> Iterator[tuple[str, str]]:
    """Say what has to be done about the pools of a node that cannot be used."""
    for pool in [one for one in trial.pools(answer.node) if one.problem][:_MAX_NAMES]:
        driver = pool.key[0]
        if pool.has_surplus:
            count = "spec.pool.resourceSliceCount has to be the number of slices"
            todo = f"{count}: mend what publishes pool {pool}, {driver} or an autoscaler"
        elif pool.is_incomplete:
            todo = f"{driver} has to publish all slices of pool {pool}: look at its pod and log"
        elif pool.is_obsolete:
            todo = f"{driver} has to publish pool {pool} anew for {answer.node.name}: look at its pod and log"
        else:
            todo = f"{driver} has to publish pool {pool} without this contradiction: try another version of it"
        known = "" if pool.problem in str(answer.answer) else f" ({pool.problem})"
        yield "do", f"{todo}{known}"


def _over_committed_pairs(trial: "ClaimTrial", best: "ClaimAnswer") -> Iterator[tuple[str, str]]:
    """Say who has to release what if counters are over-committed, and a scheduler stops there."""
    if any(KubernetesFault.OVER_COMMITTED.value in " + ".join(faults) for faults in best.faults.values()):
        for one in list(trial.over_committed(best.node))[:_MAX_NAMES]:
            more = len(one.holders) - _MAX_NAMES
            by = ", ".join(one.holders[:_MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")
            which = "it" if len(one.holders) == 1 else "some of them"
            yield "do", f"counter {one.counter} has {one.total}, and {one.used} are in use by {by}: release {which}"


def _known_classes(trial: "ClaimTrial", claims: Sequence[UnallocatedClaim]) -> Iterator[tuple[str, str]]:
    """Name the classes that there are if a request names another."""
    known = sorted(one.name for one in trial.objects.classes)
    missing = sorted({one.device_class for claim in claims for one in claim.alternatives} - {*known, ""})
    if missing and known:
        from difflib import get_close_matches

        # Classes of one driver differ in their first part only: `mig.nvidia.com` is no misspelt `gpu.nvidia.com`.
        first, _, rest = missing[0].partition(".")
        kin = {name.partition(".")[0]: name for name in known if name.partition(".")[2] == rest}
        near = [kin[one] for one in get_close_matches(first, kin, n=1)]
        shown = ", ".join(known[: 2 * _MAX_NAMES]) + ", ..." * (len(known) > 2 * _MAX_NAMES)
        if near:
            yield "do", f"write deviceClassName: {near[0]}"
            return
        drivers = sorted({one.driver for one in trial.objects.slices})
        there = f"there is no DeviceClass {missing[0]}, only {shown}"
        if missing[0] not in drivers:
            slices = f", only of {', '.join(drivers[: 2 * _MAX_NAMES])}" if drivers else ""
            there += f"; and there are no ResourceSlices of a driver of this name{slices}"
        yield "because", there
        yield "do", "install the driver of this class, or switch on that part of it; most drivers install their classes"


def _reason_pairs(
    refused: NoAllocation,
    holders: "Callable[[DeviceVerdict], Sequence[str]]" = lambda _: (),
    wanted: Sequence[UnallocatedClaim] = (),
) -> Iterator[tuple[str, str]]:
    """Rows for the devices of each request by reason. Requests of which the same is said are named together."""
    from devicecore_tools.doctor.claim_report import reason_lines

    of_request: dict[tuple[str, str], list[DeviceVerdict]] = defaultdict(list)
    for one in refused.verdicts:
        of_request[one.claim, one.request].append(one)
    claims = {claim for claim, _ in of_request}
    counts = {(claim.name, one.result_name): one.count for claim in wanted for one in claim.alternatives}
    beside, too_few = "would fit, but not beside what else is wanted", "would fit, but too few do"
    alike: dict[tuple[ReasonLine, ...], list[str]] = defaultdict(list)
    for (claim, request), verdicts in of_request.items():
        is_enough = sum(one.reason is None for one in verdicts) >= counts.get((claim, request), 1)
        lines = reason_lines(verdicts, beside if is_enough and len(of_request) > 1 else too_few, holders)
        lines = [line for line in lines if not any(line.text in text for text in refused.unusable)]
        alike[tuple(lines)].append(f"{claim}, request {request}" if len(claims) > 1 else f"request {request}")
    shown = list(alike.items())[:_MAX_REQUESTS]
    # What a device is otherwise comes last, because nobody can change it.
    for is_of_others in (False, True):
        for lines_of, names in shown:
            name = names[0] + f" and {counted(len(names) - 1, 'other')}" * (len(names) > 1)
            for line in lines_of[:_MAX_REASONS]:
                if line.is_of_others is is_of_others:
                    example = f" ({'such as ' * (line.count > 1)}{line.example})" if line.example else ""
                    yield name, f"{line}{example}"
            if is_of_others and (more := len(lines_of) - _MAX_REASONS) > 0:
                rest = sum(line.count for line in lines_of[_MAX_REASONS:])
                yield "...", f"{counted(rest, 'device')} for {counted(more, 'other reason')}: --all-devices has each"
    if (more := len(alike) - _MAX_REQUESTS) > 0:
        yield "...", f"{counted(more, 'more request')}: --all-devices has each device"


def _device_pairs(refused: NoAllocation) -> Iterator[tuple[str, str]]:
    several = len({(one.claim, one.request) for one in refused.verdicts}) > 1
    fits = "fits, but not beside what else is wanted" if several else "fits, but too few devices do"
    for one in refused.verdicts[:_MAX_DEVICES]:
        name = f"{one.request}: {one.device}" if several else str(one.device)
        yield name, str(one.reason or fits)
    if (more := len(refused.verdicts) - _MAX_DEVICES) > 0:
        yield "...", f"{more:,} more"


def _other_pairs(others: "Sequence[ClaimAnswer]") -> Iterator[tuple[str, str]]:
    """Rows for nodes: those of one shape that say the same are one row."""
    from devicecore_tools.doctor.claim_report import shape_of, type_of

    groups: dict[tuple[bool, str, str], list[str]] = defaultdict(list)
    count = len(others)
    for one in others:
        if isinstance(one.answer, DeviceAllocation):
            text = "could get its devices, but is missed" if one.answer.faults else "gets its devices"
            groups[False, type_of(one.node), text].append(one.node.name)
        else:
            holders = dict.fromkeys(
                str(verdict.reason.held) for verdict in one.answer.verdicts if isinstance(verdict.reason, InUse)
            )
            by = f" by {', '.join(holders)}" * (0 < len(holders) <= _MAX_NAMES and count <= _MAX_GROUPS)
            text = f"{one.answer}{by and f'; in use{by}'}"
            text = text.replace(f"/{one.node.name}/", "/NODE/").replace(f"/{one.node.name}", "/NODE")
            groups[True, shape_of(one.node, one.answer.verdicts), text].append(one.node.name)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1])))
    for (_, shape, text), names in ordered[:_MAX_GROUPS]:
        shown = ", ".join(names[:_MAX_NAMES]) + f" and {len(names) - _MAX_NAMES:,} more" * (len(names) > _MAX_NAMES)
        name = names[0] if len(names) == 1 else counted(len(names), "node")
        if len(names) == 1:
            text = text.replace("/NODE", f"/{name}")  # noqa: PLW2901 - the name of the only one
        rest = f" ({': '.join(filter(None, (shape, shown)))})" if len(names) > 1 else ""
        yield name, f"{foreign_text(text)}{rest}"
    if (more := sum(len(names) for _, names in ordered[_MAX_GROUPS:])) > 0:
        yield "...", f"{counted(more, 'more node')}: --json has each"


def document_of(answer: "ClaimAnswer") -> dict[str, object]:
    """Return the answer of a node as JSON."""
    faults = {"faultsOfKubernetes": {name: list(of) for name, of in answer.faults.items()}} if answer.faults else {}
    if isinstance(answer.answer, DeviceAllocation):
        return {"node": answer.node.name, "fits": True, "allocations": answer.answer.results(), **faults}
    return {
        "node": answer.node.name,
        "fits": False,
        "reason": str(answer.answer),
        "devices": [
            {
                "claim": one.claim,
                "request": one.request,
                "device": str(one.device),
                "reason": one.reason and str(one.reason),
            }
            for one in answer.answer.verdicts
        ],
        "changes": list(map(str, answer.changes)),
        **faults,
    }
