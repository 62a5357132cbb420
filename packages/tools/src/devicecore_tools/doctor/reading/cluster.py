"""All nodes of a cluster, from the API server or from files with its objects.

Law: a node's look contains only objects that name the node, so all looks together are no larger than the input. Sources
on the node itself are marked as not read. Devices that do not name a node are in a separate look.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, TypeVar

from attrs import evolve

from devicecore.domain.allocation import TargetNode
from devicecore.domain.documents import Document, Value
from devicecore.domain.errors import DocumentError
from devicecore_tools.budget import Budget
from devicecore_tools.doctor.look.values import ON_THE_NODE, Look, Reading, Source, grouped
from devicecore_tools.doctor.reading.claims import allocations_in, published_by, slices_in
from devicecore_tools.doctor.reading.objects import OF_NODES, events_in, items_of, node_in, pods_in, reading

PLACE = "API server"

NO_NODE = ""
"""The key of the look at devices that are available on several nodes, and at their claims.

The key of a look at a single node is the node's name.
"""

OF_DEVICES = ("Node", "Pod", "ResourceSlice", "ResourceClaim")
"""The kinds that show which devices nodes have and who holds them."""

Seen = TypeVar("Seen")


def looks_at_all_nodes(
    kubeconfig: str | PathLike[str] | None,
    selects: Callable[[TargetNode], bool] | None = None,
    kinds: Iterable[str] = OF_NODES,
    *,
    budget: Budget,
) -> dict[str, Look]:
    """Read the API server's objects, and return the result of `looks_of`.

    A `kubeconfig` of None means this pod's service account.

    Raises ModuleNotFoundError if the client for the API server is not installed. Raises ValueError, with the reason, if
    the nodes cannot be read.
    """
    from devicecore_tools.doctor.reading.api_server import read_objects

    found = dict.fromkeys(OF_NODES, "they were not requested") | read_objects("", kubeconfig, kinds, budget=budget)
    return looks_of(found, selects, budget, time.time())


def objects_in(documents: Iterable[Value]) -> dict[str, list[Any] | str]:
    """Return the objects of each kind in the output of `kubectl get KINDS -o json`.

    If the documents contain neither objects nor a list of a kind, its value is a sentence that says so: kubectl prints
    one List for several kinds, which does not show whether a kind was requested. Raises DocumentError if a list is
    incomplete.
    """
    found: dict[str, list[Any] | str] = {}
    for document in documents:
        kind = document["kind"].text("")
        for item in items_of(document, "objects", kind) if kind.endswith("List") else (document,):
            of_kind = found.setdefault(item["kind"].text(kind.removesuffix("List")), [])
            assert isinstance(of_kind, list)  # noqa: S101 - for mypy: the sentences are handled below
            of_kind.append(item.data)
        if kind.endswith("List") and kind != "List":
            found.setdefault(kind.removesuffix("List"), [])
    return {kind: _NONE.format(kind, kind.lower()) for kind in OF_NODES} | found


_NONE = (
    "the files contain no {0}s: either there are none, which only --kubeconfig shows, or they were not requested "
    "(kubectl get {1}s -A -o json)"
)


def looks_of(
    answers: Mapping[str, Any],
    selects: Callable[[TargetNode], bool] | None = None,
    budget: Budget | None = None,
    taken: float | None = None,
) -> dict[str, Look]:
    """Return a look at each selected node, sorted by name, and a look at the devices of `NO_NODE`, if any.

    `answers` contains the objects of each kind in `OF_NODES`, or a sentence that says why they were not read. When the
    budget is spent, the looks at the remaining nodes contain a reason instead of the Node. `taken` is when the objects
    were read, in seconds since 1970, or None if the time is not known.

    Raises ValueError, with the reason, if the nodes were not read or cannot be used.
    """
    nodes = _by_node(answers["Node"], lambda node: [(node["metadata"]["name"].text(), node.data)])
    if isinstance(nodes, str):
        raise ValueError(nodes)  # noqa: TRY004 - the server could not be queried
    pods = _by_node(answers["Pod"], _bound)
    slices = _by_node(answers["ResourceSlice"], _published)
    claims = _read(answers["ResourceClaim"], "ResourceClaimList", allocations_in)
    events = _read(answers["Event"], "EventList", events_in)
    of_device = grouped((device, claim.claim) for claim in claims.value or () for device in claim.devices)
    by_name = {one.claim: one for one in claims.value or ()}
    of_pod = grouped(((event.namespace, event.pod), event) for event in events.value or ())
    kept = budget or Budget()
    on_the_node = evolve(_ON_THE_NODE, taken=taken)

    def look(name: str, node: Reading[Any]) -> Look:
        own = _read(pods if isinstance(pods, str) else pods.get(name, []), "PodList", pods_in)
        of_node = slices if isinstance(slices, str) else slices.get(name, [])
        published = _read(of_node, "ResourceSliceList", lambda document: published_by(slices_in(document, kept), name))
        held = [claim for pod in own.value or () for claim in pod.all_claims]
        for one in published.value or ():
            held += of_device.get(one.key, ())
        used = dict.fromkeys(by_name[claim] for claim in held if claim in by_name)
        about = tuple(one for pod in own.value or () for one in of_pod.get(pod.place, ()))
        return evolve(
            on_the_node,
            pods=evolve(own, is_whole=True),
            node=node,
            slices=published,
            allocations=claims if claims.value is None else evolve(claims, value=tuple(used)),
            events=events if events.value is None else evolve(events, value=about),
        )

    found = {}
    for name, (*_, node) in sorted(nodes.items()):
        if selects is not None and not selects(TargetNode(name, _labels(node))):
            continue
        if budget is not None and (why := budget.spent()):
            found[name] = given_up(why)
            continue
        found[name] = look(name, Reading.of(PLACE, node_in(Value({**node, "kind": "Node"}, PLACE))))
    return found if isinstance(slices, str) or NO_NODE not in slices else {**found, NO_NODE: look(NO_NODE, _AWAY)}


_AWAY: Reading[Any] = Reading(problem=ON_THE_NODE)
_UNREAD: dict[str, Any] = dict.fromkeys((source.name.lower() for source in Source), _AWAY)
_ON_THE_NODE = Look(**_UNREAD)


def given_up(why: str) -> Look:
    """Return the look at a node for which no time was left."""
    return evolve(_ON_THE_NODE, node=Reading(PLACE, problem=why))


def _labels(node: Any) -> dict[str, str]:  # noqa: ANN401 - JSON has no better type
    labels = Value(node, Document(PLACE))["metadata"]["labels"].mapping()
    return {name: one.text("") for name, one in labels.items()}


def _by_node(objects: Any, placed: Callable[[Value], Iterable[tuple[str, Any]]]) -> dict[str, list[Any]] | str:  # noqa: ANN401 - JSON has no better type
    """Return the objects by node, or why they cannot be used."""
    if isinstance(objects, str):
        return objects
    try:
        items = Value(objects, Document(PLACE, field="items")).sequence()
        return grouped(part for one in items for part in placed(one))
    except DocumentError as error:
        return str(error)


def _bound(pod: Value) -> Iterator[tuple[str, Any]]:
    if name := pod["spec"]["nodeName"].text(""):
        yield name, pod.data


def _published(one: Value) -> Iterator[tuple[str, Any]]:
    """Yield a slice with its node, or, if its devices name nodes, the part for each node."""
    spec = one["spec"]
    if not spec["perDeviceNodeSelection"].boolean():
        yield spec["nodeName"].text("") or NO_NODE, one.data
        return
    whole: Any = one.data
    devices = grouped(
        (one["nodeName"].text("") or one["basic"]["nodeName"].text("") or NO_NODE, one.data)
        for one in spec["devices"].sequence()
    )
    for name, of_node in devices.items():
        yield name, {**whole, "spec": {**whole["spec"], "devices": of_node}}


def _read(objects: Any, kind: str, read: Callable[[Value], Seen]) -> Reading[Seen]:  # noqa: ANN401 - as above
    if isinstance(objects, str):
        return Reading(PLACE, problem=objects)
    return reading(PLACE, lambda: read(Value({"kind": kind, "items": objects}, PLACE)))
