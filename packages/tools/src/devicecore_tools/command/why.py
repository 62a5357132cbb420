"""`devicecore why`: explain why a pod does not run.

Law: a message that neither a kubelet nor the scheduler says is not explained.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Pod
from devicecore.domain.text import foreign_text
from devicecore_tools.command.claims import explain_claims, wanted_in
from devicecore_tools.command.fits import fits_or_not, unhandled_of
from devicecore_tools.command.inputs import read_input
from devicecore_tools.command.node_sources import check_places, node_sources, source_options
from devicecore_tools.command.options import PLACE, json_option
from devicecore_tools.command.output import complain, print_json, print_pairs
from devicecore_tools.command.trial_options import pod_in_file, topology_options, wants_devices
from devicecore_tools.doctor.explanation import Explanation, ResourceNow, concerning, explain
from devicecore_tools.doctor.facts import Facts
from devicecore_tools.doctor.findings import NodeFinding
from devicecore_tools.doctor.look import Look, PodSeen, Reading
from devicecore_tools.doctor.pasted import find_all

if TYPE_CHECKING:
    from devicecore_tools.doctor.topology_settings import TopologySettings
    from devicecore_tools.doctor.trial import Fit

_NEGATIVE, _UNUSABLE = 1, 2
_MAX_TEXT = 2_000_000  # characters, of which each line is searched
_MAX_ROWS = 40
_NOT_TEXT = frozenset(range(32)) - frozenset(b"\t\n\v\f\r\x1b")  # control characters that no log has
_HOW_TO_GET_IT = (
    " (no file and no pod of a source has this name, and a reason such as UnexpectedAdmissionError is not enough; "
    "run: kubectl get pod NAME -o json | devicecore why -)"
)
_NO_EVENTS = " (its events may have one: add --events FILE, or --kubeconfig FILE)"
_NO_SUCH_EVENT = " (and no event of the pod was read that has one)"
_NAME_ONE = " (its events may have one; name one of several pods: devicecore why NAME --pods FILE --events FILE)"
_STANDING = re.compile(r"(?:[\d,]+ (?:Running|Succeeded) pods?(?: and )?)+")
_LOG_LINE = re.compile(
    r'\{"(?!kind"|apiVersion"|metadata"|spec"|status"|items")[^\n]*\}[ \t\r]*(?:\n\{|$)'
)  # a log in JSON
_LEADING_COMMENTS = re.compile(r"(?:#[^\n]*\n\s*)+")
_UPSTREAM = "https://github.com/kubernetes/kubernetes/issues/"


@click.command(short_help="Explain why a pod or a claim was refused or waits.")
@source_options
@topology_options
@json_option
@click.option(
    "--pod",
    "pod_file",
    metavar="FILE",
    type=PLACE,
    help="The refused pod, if MESSAGE is a text: its manifest, YAML or JSON.",
)
@click.option("--all-devices", is_flag=True, help="Of claims: print the reason against each device.")
@click.option(
    "--scheduler", metavar="VERSION", help="Of claims: the scheduler's version, such as 1.36.3, if no source tells it."
)
@click.argument("message")
def why(
    *,
    as_json: bool,
    all_devices: bool,
    scheduler: str | None,
    pod_file: str | None,
    message: str,
    topology: "TopologySettings",
    **sources: object,
) -> int:
    """Explain why a kubelet refused a pod, why it waits, or why the scheduler finds no node for it.

    MESSAGE is the message of the pod's status or of its event, or a file, or - for standard input, or the name of a
    pod of the node whose pods are read. It may have quotes, line breaks and columns around it, as `kubectl describe`
    and logs print them. A file may also be what
    `kubectl get -o json` prints: events, or a pod, which then is known, too. Its events are read with --events or
    --kubeconfig, because no status says why a pod waits for a claim.

    \b
    $ devicecore why "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. ..."
    $ kubectl describe pod train | devicecore why -
    $ kubectl get pod train -o json | devicecore why - --root /var/lib/kubelet
    $ kubectl get pod train -o json | devicecore why - --kubeconfig ~/.kube/config

    A file with ResourceClaims, templates of them, or pods and workloads that name some is explained too: which node has
    the devices, or, of the node that comes nearest, what is in the way, and what would have to change. --slices and
    --claims are lists of `kubectl get -o json` and may have slices, classes, claims and nodes; or --kubeconfig reads
    them all.

    \b
    $ devicecore why claim.yaml --slices slices-classes-nodes.json --claims claims.json
    $ devicecore why claim.yaml --kubeconfig ~/.kube/config

    Names who decided, on which numbers, what the kubelet does next, and what would have to change. With sources of the
    node (see `devicecore doctor --help`), also says who holds the devices now, tries the pod on the node as it is now,
    and proposes the smallest changes after which it fits.

    A sentence of another scheduler, an autoscaler, a container runtime or the kubelet's log is named as theirs, with
    where to ask.

    Exit status: 0 if something was explained, 1 if nobody who is known says it, 2 if nothing could be read. Of claims:
    0 if they get their devices, 1 if not, 3 if nobody can say, 4 if the rules allow it, but a scheduler of that release
    does not find the devices.
    """
    try:
        check_message(message)
        data, place = _content(message)
        if (wanted := wanted_in(data, place, sources)) is not None:
            check_places(sources)
            return explain_claims(wanted, {**sources, "scheduler": scheduler}, as_json=as_json, all_devices=all_devices)
        texts, seen, what = _read(data, place)
        pod = pod_in_file(pod_file) if pod_file else seen.pod if seen else None
    except OSError as error:
        complain("devicecore why", f"{error.filename}: {error.strerror}")
        return _UNUSABLE
    except ValueError as error:
        complain("devicecore why", str(error))
        return _UNUSABLE
    facts, documents = _facts(sources, pod)
    if pod is None and (item := _named(message, facts, documents) or _in_state_file(message, sources["root"])):
        texts, seen, what = _read(json.dumps({"kind": "Pod", **item}).encode(), message)
        pod = seen.pod if seen else None
    found = texts if pod is None or facts is None else [*texts, *_events_of(pod, facts)]
    nodes = _nodes(sources) if any(_SCHEDULER in text for text in found) else None
    explained = list({one.text: one for text in found for one in explain(text, pod, facts, nodes)}.values())
    named = [value for one in explained for name, value in one.values if name == "resource"]
    wrong = concerning(pod, facts, named) if facts is not None and (pod is not None or explained) else ()
    stands = "" if explained else _standing(seen, what)
    if not explained and not wrong:
        complain("devicecore why", stands or _not_understood(message, found, what, _about_events(pod, facts)))
        return _NEGATIVE
    asks = wrong or any(one.concerns_devices for one in explained)
    trial = None
    if pod is not None and facts is not None and asks and _shows_free_devices(facts, pod):
        trial = _tried_now(pod, facts, documents, topology)
    if trial is not None and trial.fits and any(one.code == "claim-not-prepared" for one in wrong):
        trial = None  # the pod waits for a driver, and nobody can try what that will answer
    if as_json:
        document = {"explanations": list(map(_document, explained)), "findings": list(map(_document, wrong))}
        note = {"note": stands} if stands else {}
        print_json({**document, "trial": trial and _trial_document(trial), **note})
    else:
        if stands:
            click.echo(stands)
        _print(explained, wrong, trial)
    return 0


def _not_understood(message: str, texts: Sequence[str], what: str, no_events: str) -> str:
    said = (foreign_text(texts[0]) if texts else "") or "an empty text"
    hint = "" if message == "-" or _exists(message) else _HOW_TO_GET_IT
    if what:
        first = "the message: " if len(texts) == 1 else f"{len(texts)} messages, the first: "
        said = f"{what} with {first}{said}" if texts else f"{what} without a message"
        hint = no_events if " pod" in what else ""
    return f"expected a message with which a kubelet refuses a pod, got: {said}{hint}"


def _about_events(pod: Pod | None, facts: Facts | None) -> str:
    events = facts.look.events if facts is not None else None
    if pod is None:
        return _NAME_ONE
    if events is None or not events.place:
        return _NO_EVENTS
    return _NO_SUCH_EVENT if events.value is not None else ""  # `_facts` has said why they were not read


def _shows_free_devices(facts: Facts, pod: Pod) -> bool:
    """Return whether the sources tell which devices are free. Of a plugin's, only the node's own files do."""
    return facts.look.is_enough or (facts.look.node.value is not None and not wants_devices(pod))


def _tried_now(pod: Pod, facts: Facts, documents: dict[str, Any], topology: "TopologySettings") -> "Fit | None":
    """Try the pod on the node as it is now. Return None if it runs there."""
    from devicecore_tools.doctor.claim_trial import ClaimTrial
    from devicecore_tools.doctor.trial import fit, trial_node

    if any(one.pod.uid == pod.uid and one.phase == "Running" for one in facts.pods.here):
        return None
    return fit(trial_node("this node", facts, topology, ClaimTrial.of_record(documents)), pod)


def _print(explained: Sequence[Explanation], wrong: Sequence[NodeFinding], trial: "Fit | None") -> None:
    for one in explained:
        print_pairs(one.text, _pairs(one))
    for finding in wrong:
        pairs = (("next", finding.next), ("do", finding.do), ("confirm", finding.confirm))
        print_pairs(finding.sentence, pairs)
    if trial is not None:
        print_pairs("The same pod, tried on the node as it is now", _trial_pairs(trial))


# --- what is read -----------------------------------------------------------------------------------------------------


def _named(name: str, facts: Facts | None, documents: dict[str, Any]) -> dict[str, Any] | None:
    """Return the pod of this name, or `namespace/name`, as it was read. Return None if there is not exactly one."""
    is_read = facts is not None and facts.look.pods.value is not None
    items = documents.get(_PODS, {"items": []})["items"] if is_read else []
    names = ((one, one["metadata"]["name"], one["metadata"].get("namespace", "default")) for one in items or ())
    found = [one for one, of_pod, namespace in names if name in {of_pod, f"{namespace}/{of_pod}"}]
    return found[0] if len(found) == 1 else None


def _in_state_file(name: str, root: object) -> dict[str, Any] | None:
    """Return a pod of this name as the `state.json` of a `devicecore kubelet` has it: without its spec."""
    from devicecore_tools.doctor.sources.large_documents import read_document_file

    if not isinstance(root, str):
        return None
    try:
        document = read_document_file(str(Path(root) / "state.json"))
        found = [
            {"metadata": {"name": name}, "status": {"phase": one["phase"].text(), "message": one["reason"].text("")}}
            for one in document["pods"].sequence()
            if name in {one["name"].text(), f"{one['namespace'].text()}/{one['name'].text()}"}
        ]
    except DocumentError:
        return None
    return found[0] if len(found) == 1 else None


def _standing(seen: PodSeen | None, what: str) -> str:
    """Return a sentence for pods that were certainly not refused, or an empty text."""
    if seen is None and _STANDING.fullmatch(what):
        return f"{what}: no kubelet has refused any of them"
    if seen is None or seen.phase not in {"Running", "Succeeded"}:
        return ""
    return f"pod {foreign_text(f'{seen.pod.namespace}/{seen.pod.name}')} is {seen.phase}: no kubelet has refused it"


def _content(message: str) -> tuple[bytes, str]:
    """Return what MESSAGE stands for, and where it was read. A file is read once, because it may change meanwhile."""
    from devicecore_tools.doctor.sources.large_documents import as_utf8
    from devicecore_tools.doctor.sources.node import MAX_INPUT

    if message == "-":
        data, place = sys.stdin.buffer.read(MAX_INPUT), "standard input"
    elif _exists(message):
        data, place = read_input(message, MAX_INPUT), message
    else:
        data, place = message.encode(errors="replace"), "MESSAGE"
    return as_utf8(data), place


def _read(data: bytes, place: str) -> tuple[list[str], PodSeen | None, str]:
    """Return the messages, the pod if it is known, and in words what a document has."""
    from devicecore_tools.doctor.sources.large_documents import parse_document
    from devicecore_tools.doctor.sources.objects import pods_in

    if len(data) > 4 * _MAX_TEXT and not data[:1_000].lstrip().startswith(b"{"):  # a character has at most 4 bytes
        problem = f"{place}: expected a text of at most {_MAX_TEXT:,} characters, got {len(data):,} bytes or more"
        raise ValueError(problem)
    if not _NOT_TEXT.isdisjoint(data[:1_000]):
        raise ValueError(f"{place}: expected text, got other bytes")
    text = data.decode(errors="replace").strip()
    is_document = _LEADING_COMMENTS.sub("", text, 1).startswith(("{", "apiVersion:", "kind:", "metadata:", "---"))
    if not is_document or _LOG_LINE.match(text):
        if len(text) > _MAX_TEXT:
            raise ValueError(f"{place}: expected a text of at most {_MAX_TEXT:,} characters, got {len(text):,}")
        return [text], None, ""
    try:
        document = parse_document(data, place)
    except DocumentError:
        if len(text) <= _MAX_TEXT and find_all(text):
            return [text], None, ""  # a document that was cut off, or several of them
        raise
    if document["kind"].text("") == "Pod" and document["status"].data is None:
        raise ValueError(f"{place}: the pod has no status, so no kubelet has seen it. Run: devicecore fits {place}")
    refused = _refused_pods(document)
    seen = None
    if len(refused) == 1:
        kind = refused[0]["kind"]
        if kind.text("Pod") != "Pod":
            kind.refuse(f"expected a Pod, an Event or a ResourceClaim, got {described(kind.data)}")
        (seen,) = pods_in(Value({"kind": "PodList", "items": [refused[0].data]}, refused[0].file))
    return list(dict.fromkeys(_messages(document))), seen, _contents(document)


def _contents(document: Value) -> str:
    """Return how many objects of each kind are in a document; of pods, how many in each phase."""
    is_list = document["items"].data is not None
    whole = document["kind"].text("").removesuffix("List")
    kinds: Counter[str] = Counter()
    for item in document["items"].sequence() if is_list else [document]:
        kind = item["kind"].text("") or whole or "object"
        kinds[f"{item['status']['phase'].text('')} pod".strip() if kind == "Pod" else kind] += 1
    parts = [f"{count:,} {foreign_text(kind, 60)}{'s' * (count > 1)}" for kind, count in kinds.most_common(5)]
    return " and ".join(parts) or "no object"


def check_message(message: str) -> None:
    """Refuse what is neither a text nor a file. Raises click.UsageError if it is empty or a directory."""
    if not message.strip():
        raise click.UsageError("MESSAGE is empty: expected the message of a pod or an event, the name of a file, or -.")
    if os.path.isdir(message):  # noqa: PTH112 - it says False if it cannot look
        problem = (
            f"{message} is a directory, expected a message or a file. To read a node's directory besides, add --root."
        )
        raise click.UsageError(problem)


def _refused_pods(document: Value) -> list[Value]:
    """Return the pod of a document, or the only pod of a list, or those pods of a list that have a refusal."""
    if document["items"].data is None:
        return [document] if document["spec"].data else []
    pods = [item for item in document["items"].sequence() if item["spec"].data]
    return pods if len(pods) == 1 else [pod for pod in pods if any(find_all(text) for text in _messages(pod))]


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()  # also a pipe, as `<(kubectl ...)` is one
    except PermissionError:  # opening it says so
        return True
    except (OSError, ValueError):  # no path can look like this
        return False


def _messages(document: Value) -> Iterator[str]:
    """Return every message that a pod, an event or a list of them has."""
    if document["items"].data is not None:
        for item in document["items"].sequence():
            yield from _messages(item)
        return
    places = [document["message"], document["note"], document["status"]["message"]]
    yield from (text for place in places if (text := place.text("")))
    for condition in document["status"]["conditions"].sequence():
        if text := condition["message"].text(""):  # of a resize, the condition has only what is inside of its event
            is_resize = condition["type"].data == "PodResizePending"
            reason = condition["reason"].text("")
            yield f"Pod resize {reason}: {json.dumps({'error': text})}" if is_resize else text
    for statuses in ("initContainerStatuses", "containerStatuses"):
        for waiting in (one["state"]["waiting"] for one in document["status"][statuses].sequence()):
            if text := waiting["message"].text(""):
                reason = waiting["reason"].text("")
                yield f"{reason}: {text}" if reason == "CreateContainerConfigError" else text


def _facts(options: dict[str, object], pod: Pod | None) -> tuple[Facts | None, dict[str, Any]]:
    """Return what the named sources say, and the objects that were read. Return None if the options name no source."""
    named = [name for name in _SOURCES if options[name]]
    if not named:
        return None, {}
    is_of_pod = set(named) <= {"pods", "events"} or (named == ["kubeconfig"] and pod is not None)
    sources = node_sources(**({**options, "root": os.devnull} if is_of_pod else options))
    if pod is not None:
        sources.events_of = pod.namespace, pod.name
    look = sources.look()
    pods = look.pods if "pods" in named else Reading()  # an API server has those of all nodes
    facts = Facts(Look(pods=pods, events=look.events) if is_of_pod else look)
    for source, reading in facts.look.readings.items():
        if reading.value is None and reading.place and os.devnull not in reading.place:
            problem = reading.problem.removeprefix(f"{reading.place}: ")
            complain("devicecore why", f"{source.value} at {reading.place} was not read: {problem}")
    if facts.look.damage:
        complain("devicecore why", f"{facts.look.checkpoint.place}: {facts.look.damage}")
    return facts, sources.documents


def _nodes(options: dict[str, object]) -> dict[str, dict[str, tuple[int, int]]] | None:
    """Return capacity and allocatable of all Nodes, if an API server is named and no Node. Return None otherwise."""
    if not (options["kubeconfig"] or options["in_cluster"]) or options["node_name"]:
        return None
    from devicecore_tools.doctor.sources.api_server import read_objects
    from devicecore_tools.doctor.sources.objects import node_in

    kubeconfig = options["kubeconfig"]
    assert kubeconfig is None or isinstance(kubeconfig, str)  # noqa: S101 - for mypy: click has checked it
    answer = read_objects("", kubeconfig, ("Node",))["Node"]
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


def _events_of(pod: Pod, facts: Facts) -> list[str]:
    """Return the messages of the pod's events, the newest first."""
    events = [
        one
        for one in facts.look.events.value or ()
        if (one.namespace, one.pod) == (pod.namespace, pod.name) and one.pod_uid in {"", str(pod.uid)}
    ]
    return list(dict.fromkeys(one.message for one in sorted(events, key=lambda one: one.last, reverse=True)))


_PODS = "pods.json"
_SOURCES = ("root", "checkpoint", "pod_resources", "pods", "events", "kubeconfig", "in_cluster")


# --- what is printed --------------------------------------------------------------------------------------------------


def _pairs(one: Explanation) -> Iterator[tuple[str, str]]:
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
        yield "", f"and {len(one.devices) - _MAX_ROWS} more; --json has them all"


def _counts(now: ResourceNow) -> str:
    numbers = (now.listed, now.healthy, now.free)
    listed, healthy, free = ("unknown" if number is None else number for number in numbers)
    gone = f" ({now.held_by_pods_that_are_gone} by pods that are gone)" if now.held_by_pods_that_are_gone else ""
    why_ = f": {now.absent}" if now.absent else ""
    return f"{now.resource}: {listed} listed, {healthy} healthy, {now.held} held{gone}, {free} free{why_}"


def _verdict(trial: "Fit") -> str:
    if trial.fits:
        return fits_or_not(trial)
    return "; ".join(f"{container}: {text}" for container, text in unhandled_of(trial)) or str(trial.verdict)


def _trial_pairs(trial: "Fit") -> Iterator[tuple[str, str]]:
    yield "verdict", _verdict(trial)
    for warning in trial.warnings:
        yield "warning", warning
    for change in trial.changes:
        yield "it fits if", change.sentence


def _document(one: object) -> object:
    from devicecore.system.json_values import to_json

    return to_json(one)


def _trial_document(trial: "Fit") -> dict[str, object]:
    verdict = None if trial.fits else _verdict(trial)
    changes = [{"change": change.sentence, "size": change.size} for change in trial.changes]
    return {
        "fits": None if trial.is_unknown else trial.fits,
        "refusal": verdict,
        "claims_not_looked_at": list(trial.claims),
        "warnings": list(trial.warnings),
        "changes": changes,
    }
