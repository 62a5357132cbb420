"""`devicecore why`: explain why a pod does not run.

Law: a message that is neither a kubelet's nor the scheduler's is not explained.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Pod
from devicecore.domain.text import MAX_FOREIGN_TEXT, counted, foreign_text, listed
from devicecore_tools.budget import Budget
from devicecore_tools.command.claims import NotKnownError, Wanted, explain_claims, may_decide
from devicecore_tools.command.node_sources import check_places, node_sources, question_options
from devicecore_tools.command.options import SOURCE, json_option
from devicecore_tools.command.output import complain, print_json, print_pairs
from devicecore_tools.command.question import (
    KINDS,
    NO_OBJECT,
    Named,
    Question,
    Said,
    exists,
    look_up,
    look_up_at_server,
    question_of,
)
from devicecore_tools.command.trial_options import (
    GivenPod,
    check_numa_nodes,
    given_pod,
    topology_options,
    wants_devices,
)

if TYPE_CHECKING:
    from devicecore_tools.doctor.account.facts import Facts
    from devicecore_tools.doctor.findings.finding import NodeFinding
    from devicecore_tools.doctor.look.topology_settings import TopologySettings
    from devicecore_tools.doctor.pod.explanation import Explanation, ResourceNow
    from devicecore_tools.doctor.pod.trial import Fit
    from devicecore_tools.doctor.reading.managers import ManagersSeen

_NEGATIVE, _UNUSABLE, _NOT_KNOWN = 1, 2, 3
_MAX_ROWS = 40
_MAX_NAMES = 10
_MAX_SHOWN = 200  # the length to which error messages cut a file name or an unrecognized text
_HOW_TO_GET_IT = (
    " (no file, pod or claim has this name, and a reason such as UnexpectedAdmissionError is not enough; run: "
    "kubectl get pod NAME -o json | devicecore why -)"
)
_NOT_ASKED = (
    " (no file has this name, and no source was named in which to look for a pod or a claim: add --kubeconfig FILE, or "
    "--root DIR for the pods of a node; or run: kubectl get pod NAME -o json | devicecore why -)"
)
_NO_EVENTS = " (its events may contain one: add --events FILE, or --kubeconfig FILE)"
_NO_SUCH_EVENT = " (and none of the pod's events that were read contains such a message)"
_NOT_ABOUT_PODS = (
    "; name a pod, a claim or an event: devicecore why POD.yaml --slices FILE, where FILE may contain ResourceSlices, "
    "DeviceClasses and Nodes"
)
_NAME_ONE = " (its events may contain one; for one of several pods: devicecore why NAME --pods FILE --events FILE)"
_STANDING = re.compile(r"(?:[\d,]+ (?:Running|Succeeded) pods?(?: and )?)+")
_UPSTREAM = "https://github.com/kubernetes/kubernetes/issues/"


@click.command(short_help="Explain why a pod or a claim was refused or waits.")
@question_options
@topology_options
@json_option
@click.option(
    "--pod",
    "pod_file",
    metavar="FILE",
    type=SOURCE,
    help="The manifest of the refused pod, if MESSAGE is text. YAML or JSON.",
)
@click.option("--all-devices", is_flag=True, help="For claims: print why each device was rejected.")
@click.option(
    "--scheduler", metavar="VERSION", help="For claims: the scheduler's version, such as 1.37.2, if no source gives it."
)
@click.argument("words", metavar="[message|pod|claim] MESSAGE", nargs=-1, required=True)
def why(
    *,
    as_json: bool,
    all_devices: bool,
    scheduler: str | None,
    pod_file: str | None,
    words: tuple[str, ...],
    topology: "TopologySettings",
    slices: tuple[str, ...],
    **sources: object,
) -> int:
    """Explain why a kubelet refused a pod, why a pod waits, or why the scheduler finds no node for it.

    MESSAGE is a message, a file or a name. A message comes from the pod's status or from an event. A message may still
    contain the quotes, line breaks and columns that `kubectl describe` and logs print. A file, or - for standard input,
    contains messages, or what `kubectl get -o json` prints for events or a pod. The pod's events are read with --events
    or --kubeconfig, because no status says why a pod waits for a claim. A name, or NAMESPACE/NAME, means a pod on the
    API server or in the other sources, or, if there is none, a ResourceClaim. A word before the argument says which of
    these you mean: `why pod NAME`, `why claim NAME`, `why message TEXT`.

    \b
    $ devicecore why "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. ..."
    $ devicecore why train --kubeconfig ~/.kube/config
    $ kubectl describe pod train | devicecore why -
    $ kubectl get pod train -o json | devicecore why - --root /var/lib/kubelet
    $ kubectl get pod train -o json | devicecore why - --kubeconfig ~/.kube/config

    A file may also contain pods that wait for a node, workloads, ResourceClaims or their templates. For these, the
    command names a node that accepts the pod, and the devices, or says what is in the way on the node that comes
    closest to fitting, and what would have to change. --slices, --claims, --node and --pods take lists that `kubectl
    get -o json` prints, with slices, classes, claims, nodes and pods. --kubeconfig reads all of these from the API
    server instead.

    \b
    $ devicecore why claim.yaml --slices slices-classes-nodes.json --claims claims.json
    $ devicecore why claim.yaml --kubeconfig ~/.kube/config

    The command names the component that decided, the numbers behind its decision, what the kubelet does next, and what
    would have to change. With the node's sources (see `devicecore doctor --help`), the command also names the pods that
    hold the devices now, tries the pod on the node as it is now, and proposes the smallest changes that make it fit.

    If a message comes from a different scheduler, an autoscaler, a container runtime or the kubelet's log, the command
    says so and names the place to ask.

    Exit status: 0 if something was explained, 1 if the message is not recognized, 2 if nothing could be read, 3 if an
    API server has more objects than one question may read. For waiting claims and pods: 0 if they get their devices and
    a node, 1 if not, 3 if that cannot be known or something decisive was not considered, 4 if the rules allow an
    allocation that a scheduler of the given release does not find.
    """
    sources |= {"slices": slices[0] if slices else None, "more_slices": slices[1:]}
    kind, message = words if len(words) == 2 and words[0] in KINDS else ("", words[0])
    if len(words) > 1 and not kind:
        several = "expected one MESSAGE, optionally after message, pod or claim. Put a message with spaces in quotes."
        raise click.UsageError(several)
    budget, is_unasked = Budget(), False
    try:
        question = question_of(message, sources, kind, budget=budget)
        kubeconfig = sources["kubeconfig"]
        if isinstance(question, Named) and sources["node_name"] and isinstance(kubeconfig, str):
            check_places(sources)
            question = look_up_at_server(question.name, kubeconfig, kind, budget=budget) or question
        given = given_pod(pod_file) if pod_file else None
        about = given or _pod_of(question)
        if isinstance(question, Wanted):
            check_places(sources)
        read = (
            None
            if isinstance(question, Wanted)
            else _Sources.read(sources, about.pod if about else None, topology, budget)
        )
        if isinstance(question, Named):
            assert read is not None  # noqa: S101 - for mypy: only claims need no sources
            found = look_up(question, read.facts, read.documents, sources["root"])
            if found is None and kind:
                raise ValueError(f"no source has a {kind} {message}: add --kubeconfig FILE, or name a file")  # noqa: TRY301 - one way out
            is_unasked = found is None and read.facts is None and not may_decide(sources)
            question = found or Said((message,))
            about = given or _pod_of(question)
        if isinstance(question, Wanted):
            options = {**sources, "scheduler": scheduler}
            return explain_claims(question, options, budget=budget, as_json=as_json, all_devices=all_devices)
    except OSError as error:
        if error.filename is None:  # not an input file: our own output failed
            raise
        complain("devicecore why", f"{error.filename}: {error.strerror}")
        return _UNUSABLE
    except ValueError as error:
        complain("devicecore why", str(error))
        return _NOT_KNOWN if isinstance(error, NotKnownError) else _UNUSABLE
    assert read is not None  # noqa: S101 - for mypy: as above
    hint = _NOT_ASKED if is_unasked else f"{_HOW_TO_GET_IT}{_pods_read(read)}"
    return _explain_messages(question, message, read, about, hint, as_json=as_json)


def _pods_read(read: "_Sources") -> str:
    """Return the end of a sentence, with the names of the pods that were read, or an empty string if there are none."""
    from devicecore_tools.doctor.reading import record  # claims do not need this import

    if read.facts is None or read.facts.look.pods.value is None:
        return ""
    items = (read.documents.get(record.PODS) or {}).get("items") or ()
    names = [f"{one['metadata'].get('namespace', 'default')}/{one['metadata']['name']}" for one in items]
    return f"; the pods that were read: {foreign_text(listed(names, _MAX_NAMES))}" if names else ""


def _pod_of(question: Question) -> GivenPod | None:
    """Return the pod that the question's messages are about, or None if unknown."""
    if not isinstance(question, Said) or question.seen is None or question.manifest is None:
        return None
    return GivenPod(question.seen.pod, question.seen.tolerations, question.manifest)


def _explain_messages(
    said: Said,
    message: str,
    read: "_Sources",
    about: GivenPod | None,
    hint: str,
    *,
    as_json: bool,
) -> int:
    """Print what messages mean, and related problems on the node. Return the exit status."""
    from devicecore_tools.doctor.pod.explanation import concerning, explain  # claims do not need this import
    from devicecore_tools.doctor.pod.messages import without_prefix

    facts, pod = read.facts, about.pod if about else None
    found = said.texts if pod is None or facts is None else (*said.texts, *_events_of(pod, facts))
    nodes = _nodes(read.options, read.budget) if any(_SCHEDULER in text for text in found) else None
    told: dict[str | None, Explanation] = {}
    for one in (one for text in found for one in explain(text, pod, facts, nodes)):
        told.setdefault(without_prefix(one.text), one)  # a kubelet repeats its message in an event, without the prefix
    explained = list(told.values())
    named = [value for one in explained for name, value in one.values if name == "resource"]
    wrong = concerning(pod, facts, named) if facts is not None and (pod is not None or explained) else ()
    stands = "" if explained else _standing(said)
    if not explained and not wrong:
        complain(
            "devicecore why", stands or _not_understood(message, found, said.what, hint, _about_events(pod, facts))
        )
        return _NEGATIVE
    is_pinned = read.managers is not None and read.managers.has_policy
    asks = wrong or any(one.concerns_devices or (is_pinned and one.concerns_pinning) for one in explained)
    trial = None
    if about is not None and facts is not None and asks and _shows_what_is_free(facts, about.pod, read.managers):
        trial = _tried_now(about, read)
    if trial is not None and trial.fits and any(one.code == "claim-not-prepared" for one in wrong):
        trial = None  # the pod waits for a driver, whose answer cannot be predicted
    if as_json:
        document = {"explanations": list(map(_document, explained)), "findings": list(map(_document, wrong))}
        note = {"note": stands} if stands else {}
        print_json({**document, "trial": trial and _trial_document(trial), **note})
    else:
        if stands:
            click.echo(stands)
        _print(explained, wrong, trial)
    return _NOT_KNOWN if read.budget.refused else 0


def _not_understood(message: str, texts: Sequence[str], what: str, hint: str, no_events: str) -> str:
    # the message of an object is shown in full; any other text is the user's own, and may be a long file
    said = (foreign_text(texts[0], MAX_FOREIGN_TEXT if what else _MAX_SHOWN) if texts else "") or "an empty text"
    hint = "" if message == "-" or exists(message) else hint
    if what:
        first = "the message: " if len(texts) == 1 else f"{len(texts)} messages, the first: "
        of_nothing = what if what == NO_OBJECT else f"{what} without a message"
        said = f"{what} with {first}{said}" if texts else of_nothing
        hint = no_events if " pod" in what else "" if texts or " Event" in what else _NOT_ABOUT_PODS
    elif exists(message):
        shown = foreign_text(message, _MAX_SHOWN)
        return f"{shown}: expected a pod, a claim, an event or the message of a kubelet that refused a pod, got: {said}"
    return f"expected the message of a kubelet that refused a pod, got: {said}{hint}"


def _about_events(pod: Pod | None, facts: "Facts | None") -> str:
    events = facts.look.events if facts is not None else None
    if pod is None:
        return _NAME_ONE
    if events is None or not events.place:
        return _NO_EVENTS
    return _NO_SUCH_EVENT if events.value is not None else ""  # `_Sources.read` has said why the events were not read


def _shows_what_is_free(facts: "Facts", pod: Pod, managers: "ManagersSeen | None") -> bool:
    """Return whether the sources show which resources are free. For plugin devices, a Node object is not enough."""
    is_known = facts.look.node.value is not None or bool(managers and managers.files)
    return facts.look.is_enough or (is_known and not wants_devices(pod))


def _tried_now(about: GivenPod, read: "_Sources") -> "Fit | None":
    """Try the pod on the node as it is now. Return None if the pod is already running there."""
    from devicecore_tools.doctor.pod.claim_trial import ClaimTrial
    from devicecore_tools.doctor.pod.managers import with_managers
    from devicecore_tools.doctor.pod.trial import fit, trial_node

    facts, pod = read.facts, about.pod
    if facts is None or any(one.pod.uid == pod.uid and one.phase == "Running" for one in facts.pods.here):
        return None
    claims = ClaimTrial.of_record(read.documents, read.budget)
    node = trial_node("this node", facts, read.topology, claims, about.tolerations)
    check_numa_nodes(node, read.topology.numa_nodes)
    return fit(with_managers(node, read.managers, facts, about.manifest), pod)


def _print(explained: "Sequence[Explanation]", wrong: "Sequence[NodeFinding]", trial: "Fit | None") -> None:
    for one in explained:
        print_pairs(one.text, _pairs(one))
    for finding in wrong:
        is_explained = bool(explained) and finding.code == "pod-refused"  # its advice is to run this command
        advice = () if is_explained else (("do", finding.do),)
        print_pairs(finding.sentence, (("next", finding.next), *advice, ("confirm", finding.confirm)))
    if trial is not None:
        print_pairs("The same pod, tried on the node as it is now", _trial_pairs(trial, explained))


# --- input -----------------------------------------------------------------------------------------------------


def _standing(said: Said) -> str:
    """Return a sentence about pods that were certainly not refused, or an empty string."""
    seen = said.seen
    if seen is None and _STANDING.fullmatch(said.what):
        return f"{said.what}: no kubelet has refused any of them"
    if seen is not None and seen.phase == "Pending" and seen.node and not seen.is_acknowledged:
        here = f"pod {foreign_text(seen.identity)} was sent to node {foreign_text(seen.node)}"
        return (
            f"{here}, whose kubelet has not picked it up yet: run devicecore doctor there to find out what the kubelet "
            "is waiting for"
        )
    if seen is None or seen.phase not in {"Running", "Succeeded"}:
        return ""
    return f"pod {foreign_text(f'{seen.pod.namespace}/{seen.pod.name}')} is {seen.phase}: no kubelet has refused it"


@frozen
class _Sources:
    """The contents of the sources that the user named.

    Attributes:
        options: the options that name the sources.
        facts: the contents of the node's sources, or None if the options name none.
        documents: the objects that were read.
        topology: the kubelet's topology manager.
        budget: the budget for answering the question.
        managers: the kubelet's CPU manager and memory manager, or None if its directory was not read.
    """

    options: Mapping[str, object]
    facts: "Facts | None"
    documents: Mapping[str, Any]
    topology: "TopologySettings"
    budget: Budget
    managers: "ManagersSeen | None" = None

    @classmethod
    def read(
        cls, options: Mapping[str, object], pod: Pod | None, topology: "TopologySettings", budget: Budget
    ) -> "_Sources":
        """Read the named sources, and report what cannot be read."""
        from devicecore_tools.doctor.account.facts import Facts  # claims do not need this import
        from devicecore_tools.doctor.look.values import Look, Reading

        named = [name for name in _SOURCES if options[name]]
        if not named:
            return cls(options, None, {}, topology, budget)
        is_of_pod = set(named) <= {"pods", "events"} or (named == ["kubeconfig"] and pod is not None)
        sources = node_sources(**({**options, "root": os.devnull} if is_of_pod else options))
        if pod is not None:
            sources.events_of = pod.namespace, pod.name
        look = sources.look(budget)
        pods = look.pods if "pods" in named else Reading()  # an API server returns the pods of all nodes
        facts = Facts(Look(pods=pods, events=look.events) if is_of_pod else look)
        for source, reading in facts.look.readings.items():
            if reading.value is None and reading.place and os.devnull not in reading.place:
                problem = reading.problem.removeprefix(f"{reading.place}: ")
                complain("devicecore why", f"{source.value} at {reading.place} was not read: {problem}")
        if facts.look.damage:
            complain("devicecore why", f"{facts.look.checkpoint.place}: {facts.look.damage}")
        managers = None if is_of_pod else sources.managers()
        return cls(options, facts, sources.documents, sources.topology(topology), budget, managers)


def _nodes(options: Mapping[str, object], budget: Budget) -> dict[str, dict[str, tuple[int, int]]] | None:
    """Return the capacity and allocatable of all Nodes, or None if the options name one Node or no API server.

    If the Nodes cannot be read, print why and return None.
    """
    if not (options["kubeconfig"] or options["in_cluster"]) or options["node_name"]:
        return None
    from devicecore_tools.doctor.reading.api_server import read_objects
    from devicecore_tools.doctor.reading.objects import node_in

    kubeconfig = options["kubeconfig"]
    assert kubeconfig is None or isinstance(kubeconfig, str)  # noqa: S101 - for mypy: click has checked it
    answer = read_objects("", kubeconfig, ("Node",), budget=budget)["Node"]
    if isinstance(answer, str):
        complain("devicecore why", f"the Nodes were not read: {answer}")
        return None
    try:
        nodes = [node_in(Value({"kind": "Node", **one}, "API server")) for one in answer]
    except DocumentError as error:
        complain("devicecore why", f"the Nodes were not read: {error}")
        return None
    return {
        one.name: {name: (count, one.allocatable.get(name, 0)) for name, count in one.capacity.items()} for one in nodes
    }


_SCHEDULER = "nodes are available"


def _events_of(pod: Pod, facts: "Facts") -> list[str]:
    """Return the messages of the pod's events, newest first."""
    events = [
        one
        for one in facts.look.events.value or ()
        if (one.namespace, one.pod) == (pod.namespace, pod.name) and one.pod_uid in {"", str(pod.uid)}
    ]
    return list(dict.fromkeys(one.message for one in sorted(events, key=lambda one: one.last, reverse=True)))


_SOURCES = ("root", "checkpoint", "pod_resources", "pods", "events", "kubeconfig", "in_cluster")


# --- output --------------------------------------------------------------------------------------------------


def _pairs(one: "Explanation") -> Iterator[tuple[str, str]]:
    yield "decided by", f"{one.manager} ({one.id})"
    yield "because", one.because
    if one.next:
        yield "next", one.next
    yield "change", one.change
    for issue in one.issues:
        yield "see", f"{_UPSTREAM}{issue.rpartition('#')[2]}"
    for now in one.resources:
        yield "now", _counts(now)
    for row in one.devices[:_MAX_ROWS]:
        holder = f"{row.owner} {row.container}".strip()
        yield f"  {row.device}", f"{row.health}, {holder}, {row.state.value}"
    if len(one.devices) > _MAX_ROWS:
        yield "", f"and {len(one.devices) - _MAX_ROWS} more; --json lists them all"


def _counts(now: "ResourceNow") -> str:
    numbers = (now.listed, now.healthy, now.free)
    listed, healthy, free = ("unknown" if number is None else number for number in numbers)
    gone = f" ({now.held_by_pods_that_are_gone} by pods that are gone)" if now.held_by_pods_that_are_gone else ""
    why_ = f": {now.absent}" if now.absent else ""
    return f"{now.resource}: {listed} listed, {healthy} healthy, {now.held} held{gone}, {free} free{why_}"


def _verdict(trial: "Fit") -> str:
    from devicecore_tools.command.fits import fits_or_not, unhandled_of

    if trial.fits:
        return fits_or_not(trial)
    return "; ".join(f"{container}: {text}" for container, text in unhandled_of(trial)) or str(trial.verdict)


def _trial_pairs(trial: "Fit", explained: "Sequence[Explanation]") -> Iterator[tuple[str, str]]:
    from devicecore_tools.command.fits import pinned_pairs

    yield "verdict", _verdict(trial)
    gone = {now.resource: now.held_by_pods_that_are_gone for one in explained for now in one.resources}
    if trial.fits and (count := sum(gone.values())):
        what = f"{counted(count, 'device')} held by pods that are gone {'counts' if count == 1 else 'count'} as free"
        yield "because", f"{what}: the kubelet frees such devices before it admits a pod"
    yield from pinned_pairs(trial)
    for warning in trial.warnings:
        yield "warning", warning
    for change in trial.changes:
        yield "it fits if", change.sentence


def _document(one: object) -> object:
    from devicecore.system.json_values import to_json

    return to_json(one)


def _trial_document(trial: "Fit") -> dict[str, object]:
    from devicecore_tools.command.fits import pinned_document

    verdict = None if trial.fits else _verdict(trial)
    changes = [{"change": change.sentence, "size": change.size} for change in trial.changes]
    return {
        "fits": None if trial.is_unknown else trial.fits,
        "refusal": verdict,
        "pinned": pinned_document(trial),
        "claims_not_looked_at": list(trial.claims),
        "warnings": list(trial.warnings),
        "changes": changes,
    }
