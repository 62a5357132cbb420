"""`devicecore fits`: whether a pod fits on a node, which devices it gets, and what could be changed if it does not fit.

Law: a pod is said to fit only if a trial (`devicecore_tools.doctor.pod.trial`) has admitted it.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import evolve, frozen

from devicecore.domain.admission import Admitted
from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Pod
from devicecore.domain.text import foreign_text
from devicecore_tools.budget import Budget
from devicecore_tools.command.node_sources import given_pods, node_sources
from devicecore_tools.command.options import PLACE, json_option, missing_file, source_option
from devicecore_tools.command.output import complain, print_json, print_pairs
from devicecore_tools.command.trial_options import (
    GivenPod,
    RefusedPodError,
    check_numa_nodes,
    given_pod,
    topology_options,
    wants_devices,
)
from devicecore_tools.doctor import DEFAULT_ROOT
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.look.values import CONFIGURATION, PodSeen, Reading

if TYPE_CHECKING:
    from devicecore_tools.command.claim_reports import ClaimReport
    from devicecore_tools.doctor.look.topology_settings import TopologySettings
    from devicecore_tools.doctor.pod.trial import Fit, TrialNode

_NEGATIVE, _UNUSABLE, _NOT_KNOWN = 1, 2, 3
_FREE = (
    "A device was assumed to be free if no source names its holder. In a description, an unknown owner counts as a "
    "holder."
)
_ONLY_DEVICES = (
    f"Only devices were tried: the CPU manager, the memory manager or the scheduler may still refuse the pod. {_FREE}"
)
_NO_DEVICE = "The pod requests no device: no container has a limit on an extended resource, and the pod names no claim."
_WITH_MANAGERS = (
    f"Devices, exclusive CPUs and NUMA-local memory were tried: the scheduler may still refuse the pod. {_FREE}"
)


@click.command()
@click.option(
    "--node",
    "--root",
    "places",
    metavar="PLACE",
    type=PLACE,
    multiple=True,
    help="A node: a kubelet's directory, a record of one, a checkpoint, or a description. May be repeated. Default: "
    f"{DEFAULT_ROOT}.",
)
@click.option(
    "--plugins/--no-plugins",
    default=None,
    help=(
        "Ask the plugins in a kubelet's directory for their lists, or do not query plugins at all. Default: only ask "
        "each plugin to identify itself."
    ),
)
@source_option(
    "--pods",
    "FILE",
    "All pods on the nodes: what `kubectl get pods -A -o json` prints. Pods hold what they request, and ended pods "
    "hold nothing, which a checkpoint alone does not show. - is standard input.",
)
@source_option(
    "--slices",
    "FILE",
    "Also try the ResourceClaims of the pod: `kubectl get resourceslices,deviceclasses,nodes -o json`. May be "
    "repeated, for files with other objects.",
    multiple=True,
)
@source_option(
    "--claims", "FILE", "The cluster's claims: `kubectl get resourceclaims,resourceclaimtemplates -A -o json`."
)
@topology_options
@json_option
@click.argument("pod", type=PLACE)
def fits(
    *,
    as_json: bool,
    places: tuple[str, ...],
    plugins: bool | None,
    pods: str | None,
    slices: tuple[str, ...],
    claims: str | None,
    pod: str,
    topology: "TopologySettings",
) -> int:
    """Say whether POD fits on a node, and which devices it would get.

    POD is a manifest (YAML or JSON) of a pod, or of a workload such as a Deployment, whose pod is then tried. The file
    may also contain other objects, such as the pod's ResourceClaimTemplate. Use - for standard input. If the pod does
    not fit, the command prints the kubelet's reason, and for each kind of change the smallest change that makes the pod
    fit. Each change has been tried. If the kubelet has static policies for exclusive CPUs and NUMA-local memory, these
    are tried as well, provided that devicecore-numa is installed.

    \b
    $ devicecore fits train.yaml
    $ devicecore fits train.yaml --node /var/lib/kubelet --plugins --topology-policy single-numa-node
    $ devicecore fits - --node node-1.json --node node-2.json < train.yaml
    $ kubectl get pods -A -o json | devicecore fits train.yaml --pods -

    A description is what `devicecore doctor --json` prints on a node, or a few lines of YAML:

    \b
    name: node-1
    topologyPolicy: restricted
    devices:
    - {resource: example.com/gpu, device: gpu-0, numa_nodes: [0]}
    - {resource: example.com/gpu, device: gpu-1, numa_nodes: [1], health: Unhealthy}
    - {resource: example.com/gpu, device: gpu-2, owner: default/train, container: app}

    With --slices and --claims, the pod's ResourceClaims are tried on the same nodes.

    A pod that an API server would refuse fits nowhere: for example one that requests a device without a limit, or that
    names its claim below `source`, as before Kubernetes 1.31.

    Exit status: 0 if the pod fits on a node, 1 if it fits on none, and 2 if something cannot be read. The status is 3
    if the answer cannot be known (with --json, `fits` is then null): the pod's claims, or the CPUs and the memory of a
    node with static policies, were not considered, or no trusted source names a resource. The status is 4 if the rules
    allow devices for the pod's claims, but a scheduler does not find them.
    """
    if pod == pods == "-":
        raise click.UsageError("POD and --pods cannot both be standard input.")
    budget = Budget()
    known, document = (Reading(), None) if pods is None else given_pods(pods)
    try:
        given = given_pod(pod)
        if document is not None and pods == "-":  # unlike a file, standard input cannot be read again
            given = evolve(given, others=(*given.others, document))
        wanted = given.pod
        nodes = [_node(place, given, topology, known, budget, plugins=plugins) for place in places or (DEFAULT_ROOT,)]
        files = (slices, claims, pods)
        tried = [_tried(node, facts, given, files, budget, is_named=node.name not in places) for node, facts in nodes]
    except RefusedPodError as error:
        if as_json:
            print_json({"nodes": [], "note": str(error)})
        else:
            print_pairs(f"{pod}: fits on no node", [("reason", str(error))])
        return _NEGATIVE
    except OSError as error:
        is_name = isinstance(error, FileNotFoundError) and error.filename == pod and not {"/", "."} & {*pod}
        hint = f". For a pod in the cluster, run: kubectl get pod {pod} -o json | devicecore fits -" if is_name else ""
        complain("devicecore fits", f"{error.filename}: {error.strerror}{hint}")
        return _UNUSABLE
    except ValueError as error:
        complain("devicecore fits", str(error))
        return _UNUSABLE
    note = _WITH_MANAGERS if all(node.managers is not None for node, _ in nodes) else _ONLY_DEVICES
    if not wants_devices(wanted) and not wanted.has_claims:
        note = f"{_NO_DEVICE} {note}"
    if as_json:
        print_json({"nodes": [one.document for one in tried], "note": note})
    else:
        names = [one.answer.node for one in tried]
        for place, one in zip(places or (DEFAULT_ROOT,), tried, strict=True):
            one.show(place if names.count(one.answer.node) > 1 else "")
        click.echo(note)
    return min((one.status for one in tried), key=_PREFERENCE.index)


_PREFERENCE = (0, 4, _NOT_KNOWN, _NEGATIVE)
"""The exit statuses for a node, best first."""


@frozen
class _Tried:
    """The results for a pod on a node: the kubelet's verdict, and a scheduler's verdict on the pod's claims.

    `problem` says why the scheduler's verdict is unknown, or is empty. `doubts` are problems on the node that may keep
    the pod from running even though it fits.
    """

    answer: "Fit"
    report: "ClaimReport | None" = None
    problem: str = ""
    doubts: Sequence[str] = ()

    @property
    def status(self) -> int:
        """The exit status for the node."""
        if not self.answer.fits and not self.answer.is_unknown:
            return _NEGATIVE
        of_claims = self.report.status if self.report is not None else 0
        if of_claims == _NEGATIVE:
            return _NEGATIVE
        is_known = not (self.answer.is_unknown or self.answer.claims or self.problem or self.doubts)
        return of_claims if is_known else _NOT_KNOWN

    @property
    def says(self) -> str:
        """The answer in a few words."""
        if self.status == _NOT_KNOWN and self.doubts and not self.answer.is_unknown:
            return "has the devices, but may not run the pod"
        if self.status == _NOT_KNOWN and self.answer.claims and not self.answer.is_unknown:
            return fits_or_not(self.answer)
        if self.status == 0 and self.report is not None and self.report.victims:
            return "fits after other pods are preempted"
        words = {0: "fits", 4: "could fit, but not every scheduler finds devices for it", _NOT_KNOWN: "unknown"}
        return words.get(self.status, "does not fit")

    @property
    def document(self) -> dict[str, object]:
        """The answer as JSON."""
        document = _document(self.answer)
        fits_now = None if self.status == _NOT_KNOWN else self.status == 0
        document["fits"] = fits_now
        if self.problem:
            document["claims_problem"] = self.problem
        document["doubts"] = list(self.doubts)
        return {**document, **({"claims": self.report.document} if self.report is not None else {})}

    def show(self, place: str) -> None:
        """Print the answer. `place` distinguishes the node from other nodes with the same name, or is empty."""
        rows = [*_pairs(self.answer), *(("but", foreign_text(one)) for one in self.doubts)]
        if self.problem:
            rows.append(("not known", self.problem))
        name = f"{self.answer.node} ({foreign_text(place)})" if place else self.answer.node
        print_pairs(f"{name}: {self.says}", rows)
        if self.report is not None:
            self.report.show(all_devices=False)


def _tried(
    node: "TrialNode",
    facts: Facts | None,
    given: GivenPod,
    files: tuple[Sequence[str], str | None, str | None],
    budget: Budget,
    *,
    is_named: bool,
) -> _Tried:
    """Try a pod on a node, with slices, claims and pods from these files.

    Raises ValueError if a file cannot be read.
    """
    from devicecore_tools.command.claims import UnknownNodeError, answer_of_node
    from devicecore_tools.doctor.pod.admission import why_refused
    from devicecore_tools.doctor.pod.doubts import doubts, still_prepared
    from devicecore_tools.doctor.pod.trial import fit

    pod = given.pod
    if why_refused(pod):
        return _Tried(fit(node, pod, budget))
    try:
        report = answer_of_node(
            given.manifest, node.name, *files, others=given.others, budget=budget, is_named=is_named
        )
    except UnknownNodeError as error:
        return _Tried(fit(node, pod, budget), problem=str(error))
    admitted = pod
    if report is not None:
        admitted = report.trial.admitted(pod, node.name, node.allocatable)
        names = {one.name for one in report.victims}
        node = node.without([uid for uid in node.holders if node.pod_name(uid) in names])
    answer = fit(node, admitted, budget)
    found: tuple[str, ...] = ()
    if facts is not None and answer.fits:
        chosen = report.chosen if report is not None else ()
        found = (*doubts(admitted, facts, node.topology.policy), *still_prepared(chosen, facts))
    # With --slices and --claims, claims are examined, and a class may provide what no plugin offers.
    return _Tried(answer if report is None else evolve(answer, claims=()), report, doubts=found)


def _node(
    place: str,
    given: GivenPod,
    topology: "TopologySettings",
    pods: Reading[tuple[PodSeen, ...]],
    budget: Budget,
    *,
    plugins: bool | None,
) -> "tuple[TrialNode, Facts | None]":
    """Return a node to try the pod on, and the contents of its sources.

    A description names the holders of its devices itself, so it is not compared with `pods`.

    Raises OSError if the location cannot be read, and ValueError if it has no information about devices.
    """
    from devicecore_tools.doctor.pod.claim_trial import ClaimTrial
    from devicecore_tools.doctor.pod.managers import with_managers
    from devicecore_tools.doctor.pod.trial import trial_node

    path = Path(place)
    if problem := missing_file(place, "file or directory"):
        if place == "-":
            raise ValueError("--node: only POD and --pods can be standard input; name a file")
        others = "; name a node with --node, or try the nodes of a cluster with: devicecore why POD --slices FILE"
        is_name = not {"/", "."} & {*place}
        in_cluster = "; to try the nodes of a cluster, run: kubectl devicecore fits POD" if is_name else ""
        hint = others if place == DEFAULT_ROOT else in_cluster
        raise ValueError(f"{place}: {problem}{hint}")
    if not path.is_dir():
        document = _description(path, given.pod)
        if document is not None:
            from devicecore_tools.doctor.pod.description import described_node

            described_one = described_node(document, topology)
            check_numa_nodes(described_one, topology.numa_nodes)
            return described_one, None
    root, checkpoint = (place, None) if path.is_dir() else (None, place)
    sources = node_sources(root=root, checkpoint=checkpoint, plugins=plugins if root is not None else None)
    look, seen = sources.look(), sources.managers()
    file = look.checkpoint.value
    is_known = (
        look.pod_resources.value
        or (file and (file.data or (path.is_dir() and look.damage)))
        or look.node.value
        or (look.is_enough and not file)
        or (seen is not None and seen.files)  # a kubelet without device plugins
    )
    if not is_known:
        if look.checkpoint.problem == os.strerror(errno.EACCES):
            raise PermissionError(errno.EACCES, look.checkpoint.problem, place)
        problem = (file.verdict.problem if file else look.checkpoint.problem) or "there is no checkpoint"
        raise ValueError(
            f"{place}: expected a kubelet's directory, a checkpoint or a description, got none of them: {problem}"
        )
    facts = Facts(look if pods.value is None else evolve(look, pods=pods))
    if pods.value is not None and facts.pods.why_incomplete:
        why = f"{facts.pods.doubt}. Holders that are not in the list keep their devices"
        complain("devicecore fits", f"warning: {why}")
    for state_file in look.state_files.value or ():
        if state_file.name == CONFIGURATION and state_file.problem:
            wrong = f"{place}: a kubelet does not start with its {CONFIGURATION}: {state_file.problem}"
            complain("devicecore fits", f"warning: {wrong}. Its settings were not used")
    node = facts.look.node.value
    name, claims = (node.name if node else "") or place, ClaimTrial.of_record(sources.documents, budget)
    tried = trial_node(name, facts, sources.topology(topology), claims, given.tolerations)
    check_numa_nodes(tried, topology.numa_nodes)
    return with_managers(tried, seen, facts, given.manifest), facts


def _description(path: Path, pod: Pod) -> Value | None:
    """Return the description in a file, or None if the file is not a description.

    For a pod that requests no plugin devices, a Node object is enough, and only its name is used. Raises ValueError for
    any other API object, which would otherwise be read as a checkpoint, and for a description without `devices`.
    """
    from devicecore_tools.doctor.reading.large_documents import read_document_file

    try:
        document = read_document_file(str(path))
    except DocumentError as error:
        if path.suffix in {".yaml", ".yml"}:  # a checkpoint is JSON, and its name has no extension
            raise ValueError(str(error)) from error
        return None  # `NodeSources` reports what is wrong with the file
    if not isinstance(document.data, dict):
        return None
    if kind := document.data.get("kind"):
        if kind == "Node" and not wants_devices(pod):
            return Value({"name": document["metadata"]["name"].text(), "devices": []}, str(path))
        message = (
            f"{path}: expected a kubelet's directory, a checkpoint or a description, but found an object of kind "
            f"{described(kind)}. To get a description of a node, run on that node: devicecore doctor --json"
        )
        raise ValueError(message)
    if "devices" not in document.data and not _OF_DESCRIPTIONS.isdisjoint(document.data):
        message = f"{path}: `devices` is missing. A node without plugin devices is described with `devices: []`"
        raise ValueError(message)
    return read_document_file(str(path), unique_keys=True) if "devices" in document.data else None


_OF_DESCRIPTIONS = frozenset({"name", "topologyPolicy", "topologyScope", "numaNodes"})


def fits_or_not(answer: "Fit") -> str:
    """Return the answer in a few words."""
    if not answer.fits:
        return "unknown" if answer.is_unknown else "does not fit"
    return "fits, apart from its claims, which were not checked" if answer.claims else "fits"


def unhandled_of(answer: "Fit") -> Iterator[tuple[str, str]]:
    """Yield each container that requests a resource unknown to every source on the node, and what that means."""
    if isinstance(answer.verdict, Admitted):
        for container, resource in answer.verdict.unhandled:
            yield container, f"{resource}: no source names this resource, so a kubelet would not give any devices"


def pinned_pairs(answer: "Fit") -> Iterator[tuple[str, str]]:
    """Yield each container that gets exclusive CPUs or NUMA-local memory, and what it gets."""
    for one in answer.pinned:
        yield one.container, f"{one.resource}: {one.what}"


def pinned_document(answer: "Fit") -> list[dict[str, str]]:
    """Return the containers' exclusive CPUs and NUMA-local memory as JSON."""
    return [{"container": one.container, "resource": one.resource, "what": one.what} for one in answer.pinned]


def _pairs(answer: "Fit") -> Iterator[tuple[str, str]]:
    if isinstance(answer.verdict, Admitted):
        if not (answer.warnings or answer.uncertain):
            for held in answer.verdict.allocations:
                yield f"{held.key.container}", f"{held.resource}: {', '.join(held.devices)}"
        yield from pinned_pairs(answer)
        yield from unhandled_of(answer)
    else:
        yield "reason", str(answer.verdict)
    for warning in answer.warnings:
        yield "warning", warning
    if answer.uncertain:
        yield "not certain", f"which devices the pod gets, because {answer.uncertain}"
    if answer.topology_not_known:
        yield "not checked", answer.topology_not_known
    for claim in answer.claims:
        yield "not checked", f"claim {claim}: whether any devices for it are left"
    for change in answer.changes:
        yield "fits if", change.sentence


def _document(answer: "Fit") -> dict[str, object]:
    verdict = answer.verdict
    admitted = verdict if isinstance(verdict, Admitted) else None
    certain = admitted.allocations if admitted and not (answer.warnings or answer.uncertain) else ()
    unhandled = admitted.unhandled if admitted else ()
    return {
        "node": answer.node,
        "fits": None if answer.is_unknown else answer.fits,
        "reason": None if admitted else str(verdict),
        "devices": [
            {"container": held.key.container, "resource": held.resource, "devices": list(held.devices)}
            for held in certain
        ],
        "devices_not_certain": answer.uncertain,
        "pinned": pinned_document(answer),
        "unhandled": [{"container": container, "resource": resource} for container, resource in unhandled],
        "claims_not_looked_at": list(answer.claims),
        "topology_not_looked_at": bool(answer.topology_not_known),
        "warnings": list(answer.warnings),
        "changes": [{"change": change.sentence, "size": change.size} for change in answer.changes],
    }
