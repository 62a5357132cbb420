"""The question that `devicecore why` answers: about messages, a name, or claims.

Law: only `question_of` decides whether the question is about messages, a name or claims. A name that is not a file is
looked up in the sources: first as a pod, then as a claim.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from errno import ENOENT
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from attrs import evolve, frozen

from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.domain.text import foreign_text, listed
from devicecore_tools.budget import Budget
from devicecore_tools.command.claims import (
    CLAIM_KINDS,
    WORKLOADS,
    Wanted,
    documents_of,
    items_in,
    may_decide,
    named_at_server,
    waiting_pods,
    wanted_in,
)
from devicecore_tools.command.inputs import read_input
from devicecore_tools.command.node_sources import check_places

if TYPE_CHECKING:
    from devicecore_tools.doctor.account.facts import Facts
    from devicecore_tools.doctor.look.values import PodSeen

_MAX_SHOWN = 300  # maximum length of the argument in messages
_MAX_TEXT = 2_000_000  # maximum number of characters in a text
_NOT_TEXT = frozenset(range(32)) - frozenset(b"\t\n\v\f\r\x1b")  # control characters that no log contains
_LOG_LINE = re.compile(
    r'\{"(?!kind"|apiVersion"|metadata"|spec"|status"|items")[^\n]*\}[ \t\r]*(?:\n\{|$)'
)  # lines of a JSON log
_LEADING_COMMENTS = re.compile(r"(?:#[^\n]*\n\s*)+")
_FILE = re.compile(r"(?:\.{0,2}/|~)\S*|\S+\.(?:json|ya?ml|txt|log)")  # no one-word message looks like this
_NAME = re.compile(r"(?:[a-z0-9][-a-z0-9]{0,62}/)?[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")


@frozen
class Said:
    """Messages to explain.

    Attributes:
        texts: the messages.
        seen: the pod that the messages are about, or None if unknown.
        what: a description of the objects in a document, or an empty string if the messages were given directly.
        manifest: the pod as an API object, or None if `seen` is None.
    """

    texts: tuple[str, ...]
    seen: "PodSeen | None" = None
    what: str = ""
    manifest: Value | None = None


@frozen
class Named:
    """The name of a pod or claim, as `name` or `namespace/name`.

    `kind` is `pod` or `claim`, or empty if the name may belong to either.
    """

    name: str
    kind: str = ""


Question = Said | Named | Wanted


NO_OBJECT = "an empty list"
"""The description of a list without objects."""

KINDS = ("message", "pod", "claim")
"""The kinds of question that users can ask for explicitly. Otherwise, the argument determines the kind."""


def question_of(given: str, sources: Mapping[str, object], kind: str = "", *, budget: Budget) -> Question:
    """Return the question in an argument: a message, the name of a file, `-` for standard input, or an object's name.

    If the sources name an API server or files with a cluster's objects, but no node, a name is looked up in the whole
    cluster. `kind` is one of `KINDS` or empty. If `kind` is empty, a name means a pod or, failing that, a claim, and
    anything else is a message.

    Raises:
        click.UsageError: the string is empty, names a directory, or is standard input, which an option names too.
        OSError: a file cannot be read, or does not exist.
        ValueError: the input cannot be used, the API server has no object with this name, or several pods that do not
            wait have this name.
    """
    from devicecore_tools.doctor.reading.large_documents import MAX_INPUT, as_utf8

    if not given.strip():
        raise click.UsageError("MESSAGE is empty: expected the message of a pod or an event, the name of a file, or -.")
    if os.path.isdir(given):  # noqa: PTH112 - it returns False if access is denied
        problem = f"{given} is a directory; expected a message or a file. To also read a node's directory, add --root."
        raise click.UsageError(problem)
    if given == "-":
        if "-" in (sources.get("pods"), sources.get("events")):
            raise click.UsageError("MESSAGE and --pods or --events cannot both be standard input.")
        data, place = sys.stdin.buffer.read(MAX_INPUT), "standard input"
    elif exists(given):
        # the input is read only once, because it may change in the meantime
        data, place = read_input(given, MAX_INPUT), given
    elif kind != "message" and _FILE.fullmatch(given):
        raise FileNotFoundError(ENOENT, "there is no such file", given)
    elif kind != "message" and _NAME.fullmatch(given):
        server = sources.get("kubeconfig") if not sources.get("node_name") else None
        if not isinstance(server, str):
            return look_up_in_files(given, sources, kind, budget=budget) or Named(given, kind)
        found = look_up_at_server(given, server, kind, budget=budget, refuses_several=True)
        return found or look_up_in_files(given, sources, kind, budget=budget) or _refuse_name(given, server, kind)
    elif kind in {"pod", "claim"}:
        shown = foreign_text(given, _MAX_SHOWN)
        raise ValueError(f"why {kind}: expected the name of a {kind}, a file or -, got {shown}")
    else:
        data, place = given.encode(errors="replace"), "MESSAGE"
    return _question_in(as_utf8(data), place, sources, kind)


def _refuse_name(given: str, kubeconfig: str, kind: str) -> NoReturn:
    """Raise ValueError for a name that no object on an API server has."""
    of_kubectl, _, name = given.partition("/")
    if name and of_kubectl.lower().removesuffix("s") in _LOWER_WORKLOADS:
        advice = "to ask about one of its pods, run: kubectl get pods"
        raise ValueError(f"{kubeconfig}: expected the name of a pod or ResourceClaim, got {given}; {advice}")
    meant = _KINDS_OF_KUBECTL.get(of_kubectl, "")
    hint = f"write `why {meant} {name}`" if meant else "to give a namespace, write NAMESPACE/NAME"
    what = {"pod": "pod", "claim": "ResourceClaim"}.get(kind, "pod or ResourceClaim")
    problem = f"the server has no {what} with that name: {hint}"
    raise ValueError(f"{kubeconfig}: expected the name of a {what}, got {given}; {problem}")


_LOWER_WORKLOADS = {kind.lower() for kind in WORKLOADS}
_KINDS_OF_KUBECTL = {
    **dict.fromkeys(("po", "pod", "pods"), "pod"),
    **dict.fromkeys(("resourceclaim", "resourceclaims"), "claim"),
}


def _question_in(data: bytes, place: str, sources: Mapping[str, object], kind: str) -> Question:
    """Return the question in a string or in documents. Raises ValueError if the input does not match `kind`."""
    wanted = wanted_in(data, place, sources) if kind != "message" else None
    if kind == "pod" and wanted is not None:
        if not wanted.pods:
            raise ValueError(f"{place}: expected a pod, got a claim; for a claim, run: devicecore why claim {place}")
        wanted = evolve(wanted, claims=())
    if kind == "claim":
        return _claims_in(wanted, place)
    found = said_in(data, place) if wanted is None else wanted
    if kind == "pod" and isinstance(found, Said) and found.seen is None:
        got = found.what or "a text"
        raise ValueError(f"{place}: expected a pod, got {got}; for a message, run: devicecore why message")
    return found


def _claims_in(wanted: Wanted | None, place: str) -> Wanted:
    """Return the claims in a file, including those that its pods name. Raises ValueError if there are no claims."""
    items = [item for one in (wanted.others if wanted else ()) for item in items_in(one)]
    claims = [item for item in items if item["kind"].data in CLAIM_KINDS]
    if wanted is None or not claims:
        raise ValueError(f"{place}: expected a ResourceClaim or a ResourceClaimTemplate, found none")
    return evolve(wanted, pods=(), claims=claims)


def exists(text: str) -> bool:
    """Return whether a string is the name of a file or of a pipe, such as `<(kubectl ...)`."""
    try:
        return Path(text).exists()
    except PermissionError:  # opening the file reports the error
        return True
    except (OSError, ValueError):  # no path looks like this
        return False


# --- names ------------------------------------------------------------------------------------------------------------


def look_up_at_server(
    name: str, kubeconfig: str, kind: str = "", *, budget: Budget, refuses_several: bool = False
) -> Said | Wanted | None:
    """Return the waiting pod and the claim that have this name on an API server, or the pod's messages.

    `kind` is `pod` or `claim` if only one of them is meant.

    Return None if no object has this name, or if several pods have this name, none of which waits. With
    `refuses_several`, raise ValueError in the latter case. Raises ValueError if the server cannot be reached.
    """
    pods, claims = named_at_server(name, kubeconfig, budget)
    return _about(name, pods, claims, kind, refuses_several=refuses_several)


def look_up_in_files(
    name: str, sources: Mapping[str, object], kind: str = "", *, budget: Budget
) -> Said | Wanted | None:
    """Return the same as `look_up_at_server`, for the files with a cluster's objects that the sources name.

    Return None if the sources name no such files. Raises click.UsageError if a file does not exist, and ValueError if a
    file cannot be read, or several pods that do not wait have this name.
    """
    if not may_decide(sources):
        return None
    check_places(sources)
    documents = documents_of(sources, budget)
    items: dict[tuple[str, str], Value] = {}  # if several files contain an object, the first one counts
    for item in (item for one in documents for item in items_in(one)):
        own, namespace = item["metadata"]["name"].data, item["metadata"]["namespace"].data or "default"
        if name in {str(own), f"{namespace}/{own}"}:
            items.setdefault((str(item["kind"].data), str(namespace)), item)
    pods, claims = ([one for (of, _), one in items.items() if of == wanted] for wanted in ("Pod", "ResourceClaim"))
    found = _about(name, pods, claims, kind, refuses_several=True)
    return evolve(found, others=documents) if isinstance(found, Wanted) else found


def _about(
    name: str, pods: list[Value], claims: list[Value], kind: str, *, refuses_several: bool
) -> Said | Wanted | None:
    """Return the question about the pods and claims that have this name, as `look_up_at_server` does."""
    pods, claims = ([], claims) if kind == "claim" else (pods, []) if kind == "pod" else (pods, claims)
    if (waiting := waiting_pods(pods)) or claims:
        return Wanted(waiting, claims)
    if len(pods) > 1 and refuses_several:
        spaces = listed([foreign_text(pod["metadata"]["namespace"].text("default")) for pod in pods], 3)
        raise ValueError(f"{len(pods)} pods are called {name}, in the namespaces {spaces}: write NAMESPACE/{name}")
    return said_in(json.dumps(pods[0].data).encode(), name) if len(pods) == 1 else None


def look_up(named: Named, facts: "Facts | None", documents: Mapping[str, Any], root: object) -> Said | Wanted | None:
    """Return the messages of the only pod with this name, or else the question about the only claim, or else None.

    `root` may be the directory of a `devicecore kubelet`, whose `state.json` lists pods without their specs.
    """
    from devicecore_tools.doctor.reading import record

    name = named.name
    item = _pod_in_sources(name, facts, documents) or _pod_in_state_file(name, root)
    if item is not None and named.kind != "claim":
        return said_in(json.dumps({"kind": "Pod", **item}).encode(), name)
    found = _called(name, documents.get(record.CLAIMS))
    if found is None or named.kind == "pod":
        return None
    of_claims = (record.CLAIMS, record.SLICES, record.CLASSES, record.RULES, record.NODE)
    others = [Value(documents[file], file) for file in of_claims if file in documents]
    return Wanted((), [Value({"kind": "ResourceClaim", **found}, record.CLAIMS)], others)


def _called(name: str, document: Any) -> dict[str, Any] | None:  # noqa: ANN401 - JSON has no better type
    """Return the only object in a list that has this name or `namespace/name`, or None."""
    items = (document or {}).get("items") or ()
    names = ((one, one["metadata"]["name"], one["metadata"].get("namespace", "default")) for one in items)
    found = [one for one, own, namespace in names if name in {own, f"{namespace}/{own}"}]
    return found[0] if len(found) == 1 else None


def _pod_in_sources(name: str, facts: "Facts | None", documents: Mapping[str, Any]) -> dict[str, Any] | None:
    from devicecore_tools.doctor.reading import record

    is_read = facts is not None and facts.look.pods.value is not None
    return _called(name, documents.get(record.PODS)) if is_read else None


def _pod_in_state_file(name: str, root: object) -> dict[str, Any] | None:
    from devicecore_tools.doctor.reading.large_documents import read_document_file

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


# --- documents --------------------------------------------------------------------------------------------------------


def said_in(data: bytes, place: str) -> Said:
    """Return the messages in a text or a document. Raises ValueError if the input cannot be used."""
    from devicecore.adapters.manifests.pods import template_hint
    from devicecore.system.documents import why_not_text
    from devicecore_tools.doctor.pod.pasted import find_all
    from devicecore_tools.doctor.reading.large_documents import parse_documents
    from devicecore_tools.doctor.reading.objects import pods_in

    if len(data) > 4 * _MAX_TEXT and not data[:1_000].lstrip().startswith(b"{"):  # a character has at most 4 bytes
        problem = f"{place}: expected text of at most {_MAX_TEXT:,} characters, got {len(data):,} bytes or more"
        raise ValueError(problem)
    if not _NOT_TEXT.isdisjoint(data[:1_000]):
        raise ValueError(f"{place}: {why_not_text(data, 'expected text, got binary data')}")
    text = data.decode(errors="replace").strip()
    is_document = _LEADING_COMMENTS.sub("", text, 1).startswith(("{", "apiVersion:", "kind:", "metadata:", "---"))
    if not is_document or _LOG_LINE.match(text):
        if len(text) > _MAX_TEXT:
            raise ValueError(f"{place}: expected text of at most {_MAX_TEXT:,} characters, got {len(text):,}")
        return Said((text,))
    try:
        documents = parse_documents(data, place)
    except DocumentError:
        if len(text) <= _MAX_TEXT and find_all(text):
            return Said((text,))  # a truncated document
        raise
    document = documents[0] if len(documents) == 1 else Value({"items": [one.data for one in documents]}, place)
    _refuse_unseen(document, place)
    refused = _refused_pods(document)
    seen = None
    if len(refused) == 1:
        kind = refused[0]["kind"]
        if kind.text("Pod") != "Pod":
            hint = template_hint(str(kind.data))
            if kind.data in CLAIM_KINDS:
                kind.refuse(
                    f"expected a message, got a claim; for a claim, run: devicecore why claim {place} --slices FILE"
                )
            kind.refuse(f"expected a Pod, an Event or a ResourceClaim, got {described(kind.data)}{hint}")
        (seen,) = pods_in(Value({"kind": "PodList", "items": [refused[0].data]}, refused[0].file))
    manifest = None if seen is None else refused[0]
    return Said(tuple(dict.fromkeys(_messages(document))), seen, _contents(document), manifest)


def _refuse_unseen(document: Value, place: str) -> None:
    """Raise ValueError for pods without a status and for workloads, unless the document also contains a message."""
    others = [one for one in items_in(document) if one["kind"].data not in WORKLOADS]
    pods = [one for one in others if one["kind"].data == "Pod"]
    items = [one for one in items_in(document) if one["kind"].data in ("Pod", *WORKLOADS)]
    if not items or any(one["status"].data is not None for one in pods) or any(any(_messages(one)) for one in others):
        return
    if len(items) > 1:
        how = "To try one of them, write it to a separate FILE, and run: devicecore fits FILE"
    else:
        how = f"To try it, run: devicecore fits {'-' if place == 'standard input' else place}"
    if len(pods) == len(items):
        what = "the pod has no status, so no kubelet has seen it" if len(pods) == 1 else "the pods have no status"
        raise ValueError(f"{place}: {what}. {how}")
    kind = next(one["kind"].text() for one in items if one["kind"].data != "Pod")
    raise ValueError(f"{place}: no kubelet sees a {kind}, only its pods. {how}")


def _contents(document: Value) -> str:
    """Return how many objects of each kind a document contains, and how many pods in each phase."""
    is_list = document["items"].data is not None
    whole = document["kind"].text("").removesuffix("List")
    kinds: Counter[str] = Counter()
    for item in document["items"].sequence() if is_list else [document]:
        kind = item["kind"].text("") or whole or "object"
        kinds[f"{item['status']['phase'].text('')} pod".strip() if kind == "Pod" else kind] += 1
    endings = {kind: "es" if kind.endswith("s") else "s" for kind in kinds}
    parts = [f"{count:,} {foreign_text(kind, 60)}{endings[kind] * (count > 1)}" for kind, count in kinds.most_common(5)]
    return " and ".join(parts) or NO_OBJECT


def _refused_pods(document: Value) -> list[Value]:
    """Return the pod in a document, or the only pod in a list, or the refused pods in a list."""
    from devicecore_tools.doctor.pod.pasted import find_all

    if document["items"].data is None:
        return [document] if document["spec"].data else []
    pods = [item for item in document["items"].sequence() if item["spec"].data]
    return pods if len(pods) == 1 else [pod for pod in pods if any(find_all(text) for text in _messages(pod))]


def _messages(document: Value) -> Iterator[str]:
    """Yield every message in a pod, an event, or a list of pods or events."""
    if document["items"].data is not None:
        for item in document["items"].sequence():
            yield from _messages(item)
        return
    places = [document["message"], document["note"], document["status"]["message"]]
    yield from (text for place in places if (text := place.text("")))
    for condition in document["status"]["conditions"].sequence():
        # for a resize, the condition contains only the inner part of the event's message
        if text := condition["message"].text(""):
            is_resize = condition["type"].data == "PodResizePending"
            reason = condition["reason"].text("")
            yield f"Pod resize {reason}: {json.dumps({'error': text})}" if is_resize else text
    for statuses in ("initContainerStatuses", "containerStatuses"):
        for waiting in (one["state"]["waiting"] for one in document["status"][statuses].sequence()):
            if text := waiting["message"].text(""):
                reason = waiting["reason"].text("")
                yield f"{reason}: {text}" if reason == "CreateContainerConfigError" else text
