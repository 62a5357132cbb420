"""All nodes of a cluster, from the API server alone.

Law: a node's look has only what names the node. What lies on the node itself counts as not read.
"""

from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any, TypeVar

from devicecore.domain.documents import Value
from devicecore_tools.doctor import Look, Reading
from devicecore_tools.doctor.sources.claims import allocations_in, slices_in
from devicecore_tools.doctor.sources.objects import events_in, node_in, pods_in, reading

_ON_THE_NODE = "it lies on the node: run doctor there"
PLACE = "API server"

Seen = TypeVar("Seen")


def looks_at_all_nodes(kubeconfig: str | PathLike[str] | None) -> dict[str, Look]:
    """Return a look at each node, by its name in their order; `kubeconfig` None is the service account of this pod.

    Raises ModuleNotFoundError if the client of the API server is not installed. Raises ValueError if the nodes cannot
    be read. The text says why.
    """
    from devicecore_tools.doctor.sources.api_server import read_objects

    answers = read_objects("", kubeconfig)
    nodes: Any = answers["Node"]
    if isinstance(nodes, str):
        raise ValueError(nodes)  # noqa: TRY004 - the server could not be asked
    pods = _by_node(answers["Pod"], "nodeName")
    slices = _by_node(answers["ResourceSlice"], "nodeName")
    claims = _read(answers["ResourceClaim"], "ResourceClaimList", allocations_in)
    events = _read(answers["Event"], "EventList", events_in)
    away: Reading[Any] = Reading(problem=_ON_THE_NODE)
    found = {}
    for node in sorted(nodes, key=lambda one: str(one["metadata"]["name"])):
        name = node["metadata"]["name"]
        found[name] = Look(
            checkpoint=away,
            sockets=away,
            pod_resources=away,
            plugins=away,
            cdi=away,
            claims=away,
            health=away,
            state_files=away,
            pods=_read(pods if isinstance(pods, str) else pods.get(name, []), "PodList", pods_in),
            node=Reading.of(PLACE, node_in(Value({**node, "kind": "Node"}, PLACE))),
            slices=_read(
                slices if isinstance(slices, str) else slices.get(name, []),
                "ResourceSliceList",
                partial(slices_in, name=name),
            ),
            allocations=claims,
            events=events,
        )
    return found


def _by_node(objects: Any, key: str) -> dict[str, list[Any]] | str:  # noqa: ANN401 - JSON has no better type
    if isinstance(objects, str):
        return objects
    found: dict[str, list[Any]] = {}
    for one in objects:
        found.setdefault((one.get("spec") or {}).get(key) or "", []).append(one)
    return found


def _read(objects: Any, kind: str, read: Callable[[Value], Seen]) -> Reading[Seen]:  # noqa: ANN401 - as above
    if isinstance(objects, str):
        return Reading(PLACE, problem=objects)
    return reading(PLACE, lambda: read(Value({"kind": kind, "items": objects}, PLACE)))
