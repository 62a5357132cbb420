"""All nodes of a cluster, from the API server alone.

Law: a node's look has only what names the node, so that all looks together are as large as what was read. What lies on
the node itself counts as not read. Devices that name no node are in one look of their own.
"""

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Any, TypeVar

from attrs import evolve

from devicecore.domain.documents import Document, Value
from devicecore.domain.errors import DocumentError
from devicecore_tools.doctor.look import AllocatedClaimSeen, EventSeen, Look, Reading
from devicecore_tools.doctor.sources.claims import allocations_in, slices_in
from devicecore_tools.doctor.sources.objects import events_in, node_in, pods_in, reading

_ON_THE_NODE = "it lies on the node: run doctor there"
PLACE = "API server"

NO_NODE = ""
"""In place of a node's name, the look that has the devices of several nodes, and which claims have them."""

Seen = TypeVar("Seen")


def looks_at_all_nodes(kubeconfig: str | PathLike[str] | None) -> dict[str, Look]:
    """Return a look at each node, by its name in their order, and one of `NO_NODE` if there are such devices.

    `kubeconfig` None is the service account of this pod.

    Raises ModuleNotFoundError if the client of the API server is not installed. Raises ValueError if the nodes cannot
    be read. The text says why.
    """
    from devicecore_tools.doctor.sources.api_server import read_objects

    answers = read_objects("", kubeconfig)
    nodes = _by_node(answers["Node"], _named)
    if isinstance(nodes, str):
        raise ValueError(nodes)  # noqa: TRY004 - the server could not be asked
    pods = _by_node(answers["Pod"], _bound)
    slices = _by_node(answers["ResourceSlice"], _published)
    claims = _read(answers["ResourceClaim"], "ResourceClaimList", allocations_in)
    events = _read(answers["Event"], "EventList", events_in)
    of_device: dict[tuple[str, str, str], dict[str, AllocatedClaimSeen]] = {}
    for claim in claims.value or ():
        for device in claim.devices:
            of_device.setdefault(device, {})[claim.claim] = claim
    by_name = {one.claim: one for one in claims.value or ()}
    of_pod: dict[tuple[str, str], list[EventSeen]] = {}
    for event in events.value or ():
        of_pod.setdefault((event.namespace, event.pod), []).append(event)
    away: Reading[Any] = Reading(problem=_ON_THE_NODE)

    def look(name: str, node: Reading[Any]) -> Look:
        own = _read(pods if isinstance(pods, str) else pods.get(name, []), "PodList", pods_in)
        of_node = slices if isinstance(slices, str) else slices.get(name, [])
        published = _read(of_node, "ResourceSliceList", lambda document: slices_in(document, name))
        held = (claim for pod in own.value or () for of_container in pod.claims.values() for claim in of_container)
        used = {claim: by_name[claim] for claim in held if claim in by_name}
        for one in published.value or ():  # and not of its pool, which may have the devices of a thousand nodes
            used |= of_device.get((one.driver, one.pool, one.device), {})
        about = tuple(one for pod in own.value or () for one in of_pod.get((pod.pod.namespace, pod.pod.name), ()))
        return Look(
            checkpoint=away,
            sockets=away,
            pod_resources=away,
            plugins=away,
            cdi=away,
            claims=away,
            health=away,
            state_files=away,
            pods=own,
            node=node,
            slices=published,
            allocations=claims if claims.value is None else evolve(claims, value=tuple(used.values())),
            events=events if events.value is None else evolve(events, value=about),
        )

    found = {}
    for name, (*_, node) in sorted(nodes.items()):
        found[name] = look(name, Reading.of(PLACE, node_in(Value({**node, "kind": "Node"}, PLACE))))
    return found if isinstance(slices, str) or NO_NODE not in slices else {**found, NO_NODE: look(NO_NODE, away)}


def _by_node(objects: Any, placed: Callable[[Value], Iterable[tuple[str, Any]]]) -> dict[str, list[Any]] | str:  # noqa: ANN401 - JSON has no better type
    """Return the objects by node, or why they cannot be used."""
    if isinstance(objects, str):
        return objects
    found: dict[str, list[Any]] = {}
    try:
        for one in Value(objects, Document(PLACE, field="items")).sequence():
            for name, part in placed(one):
                found.setdefault(name, []).append(part)
    except DocumentError as error:
        return str(error)
    return found


def _named(node: Value) -> Iterator[tuple[str, Any]]:
    yield node["metadata"]["name"].text(), node.data


def _bound(pod: Value) -> Iterator[tuple[str, Any]]:
    if name := pod["spec"]["nodeName"].text(""):
        yield name, pod.data


def _published(one: Value) -> Iterator[tuple[str, Any]]:
    """Yield a slice with its node, or, if its devices name nodes of their own, those of each node."""
    spec = one["spec"]
    if not spec["perDeviceNodeSelection"].boolean():
        yield spec["nodeName"].text("") or NO_NODE, one.data
        return
    whole: Any = one.data
    devices: dict[str, list[Any]] = {}
    for device in spec["devices"].sequence():
        name = device["nodeName"].text("") or device["basic"]["nodeName"].text("")
        devices.setdefault(name or NO_NODE, []).append(device.data)
    for name, of_node in devices.items():
        yield name, {**whole, "spec": {**whole["spec"], "devices": of_node}}


def _read(objects: Any, kind: str, read: Callable[[Value], Seen]) -> Reading[Seen]:  # noqa: ANN401 - as above
    if isinstance(objects, str):
        return Reading(PLACE, problem=objects)
    return reading(PLACE, lambda: read(Value({"kind": kind, "items": objects}, PLACE)))
