"""The objects of a node or of all nodes, read from the API server. Nothing is written.

Laws: the result is what the server sent, or a `RequestError` with a sentence. All responses read for one question are
charged to the question's budget.
"""

import re
from collections.abc import Iterable
from http import HTTPStatus
from os import PathLike

from attrs import evolve

from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.access import (
    ApiRequest,
    ApiResource,
    ApiServer,
    RequestError,
    check_node_name,
    node_sentences,
)
from devicecore.adapters.kube_api.patches import Json
from devicecore.adapters.kube_api.requests import CLAIMS, CLASSES, EVENTS, NODES, PODS, SLICES, all_of
from devicecore_tools.budget import Budget
from devicecore_tools.doctor.reading.objects import OF_NODES

_SECONDS = 30.0  # the timeout of a request
_PODS_AT_ONCE = 100  # keeps responses well below the size limit
# the API versions of DeviceTaintRules since Kubernetes 1.37, 1.36 and 1.33
_VERSIONS_OF_RULES = ("v1", "v1beta2", "v1alpha3")
_RESOURCES = {
    "Node": [NODES],
    "Pod": [PODS],
    "Event": [EVENTS],
    "ResourceSlice": [SLICES],
    "ResourceClaim": [CLAIMS],
    "DeviceClass": [CLASSES],
    "ResourceClaimTemplate": [ApiResource("resource.k8s.io", "v1", "resourceclaimtemplates")],
    "PriorityClass": [ApiResource("scheduling.k8s.io", "v1", "priorityclasses")],
    "PodDisruptionBudget": [ApiResource("policy", "v1", "poddisruptionbudgets")],
    "PersistentVolumeClaim": [ApiResource("", "v1", "persistentvolumeclaims")],
    "PersistentVolume": [ApiResource("", "v1", "persistentvolumes")],
    "StorageClass": [ApiResource("storage.k8s.io", "v1", "storageclasses")],
    "CSINode": [ApiResource("storage.k8s.io", "v1", "csinodes")],
    "CSIDriver": [ApiResource("storage.k8s.io", "v1", "csidrivers")],
    "CSIStorageCapacity": [ApiResource("storage.k8s.io", "v1", "csistoragecapacities")],
    "RuntimeClass": [ApiResource("node.k8s.io", "v1", "runtimeclasses")],
    "ResourceQuota": [ApiResource("", "v1", "resourcequotas")],
    "LimitRange": [ApiResource("", "v1", "limitranges")],
    "Namespace": [ApiResource("", "v1", "namespaces")],
    "DeviceTaintRule": [ApiResource("resource.k8s.io", one, "devicetaintrules") for one in _VERSIONS_OF_RULES],
}
# the API versions of the other kinds of dynamic resource allocation, until Kubernetes 1.33
_OLDER = ("v1beta2", "v1beta1")

OF_CLAIMS = (
    *("ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "DeviceTaintRule"),
    *("Node", "Pod", "Namespace", "PriorityClass", "PodDisruptionBudget"),
)
"""The kinds that determine on which node a pod runs and which devices it gets."""

OF_VOLUMES = (
    *("PersistentVolumeClaim", "PersistentVolume", "StorageClass"),
    *("CSINode", "CSIDriver", "CSIStorageCapacity"),
)
"""The additional kinds that determine where a pod with volumes runs."""

OF_ADMISSION = ("RuntimeClass", "ResourceQuota", "LimitRange")
"""The additional kinds that determine whether a new pod is accepted, and what an API server adds to it."""

_NOT_STARTED = ("reason=FailedPrepareDynamicResources", "reason=FailedCreatePodSandBox")
"""Field selectors of the events that are read if no pod is given. No pod's status contains what these events say."""


def _server(kubeconfig: str | PathLike[str] | None, budget: Budget, node: str = "") -> ApiServer:
    sentences = node_sentences(node or "all")
    return ApiServer(Access(kubeconfig, timeout=_SECONDS), sentences, charge=budget.keep_answer)


def _objects(server: ApiServer, kind: str, node: str, events: Iterable[str]) -> Json:
    """Return the objects of a kind as the server sent them, for one node or for all nodes.

    ResourceClaims of all nodes are returned, because they do not name a node. ResourceSlices include those that do not
    name a node, unless the server refuses to list them, as it does for a kubelet. Only events that a field selector in
    `events` matches are returned. If the server does not know a kind such as DeviceTaintRule, there are no objects.
    Raises RequestError if the server does not answer or returns an error.
    """
    if kind == "Node" and node:
        return server.send(ApiRequest("get nodes", "GET", NODES.path(name=node)))
    if kind == "Event":
        return [one for fields in events for one in _listed(server, kind, fields)]
    fields = ""
    if node and kind in {"Pod", "ResourceSlice"}:
        fields = f"spec.nodeName={node}"
    found = _listed(server, kind, fields, has_older=not node)
    return found + _slices_of_no_node(server) if node and kind == "ResourceSlice" else found


def _listed(server: ApiServer, kind: str, fields: str, *, has_older: bool = True) -> list[Json]:
    """Return the objects of a kind that match a field selector, in the first version that the server knows."""
    known = _RESOURCES[kind]
    if has_older and len(known) == 1 and known[0].group == "resource.k8s.io":
        known = [*known, *(evolve(known[0], version=one) for one in _OLDER)]
    for resource in known:
        try:
            return all_of(server, resource, fields, page=_PODS_AT_ONCE)[0]
        except RequestError as problem:
            if problem.kind != HTTPStatus.NOT_FOUND or kind in {"Node", "Pod", "Event"}:
                raise
    return []


def _slices_of_no_node(server: ApiServer) -> list[Json]:
    """Return the slices that name no node: slices for all nodes, with a node selector, or with a node per device."""
    try:
        return all_of(server, SLICES, "spec.nodeName=", page=_PODS_AT_ONCE)[0]
    except RequestError as problem:
        if problem.kind not in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
            raise
        return []


def read_version(kubeconfig: str | PathLike[str] | None, budget: Budget) -> str:
    """Return the version of an API server, such as `v1.37.2`, or an empty string if unknown."""
    server = _server(kubeconfig, budget)
    try:
        answer = server.send(ApiRequest("get the version", "GET", "version"))
    except RequestError:
        return ""
    finally:
        server.disconnect()
    version = answer.get("gitVersion") if isinstance(answer, dict) else None
    return version if isinstance(version, str) else ""


def read_named(kubeconfig: str | PathLike[str] | None, kind: str, name: str, budget: Budget) -> list[Json]:
    """Return the objects of a kind with the name `name` or `namespace/name`.

    Without a namespace, the objects of all namespaces are returned. Raises RequestError if the objects cannot be read.
    """
    namespace, _, short = name.rpartition("/")
    server = _server(kubeconfig, budget)
    try:
        found = _listed(server, kind, f"metadata.name={_escaped(short)}")
    finally:
        server.disconnect()
    return [one for one in found if namespace in ("", one["metadata"].get("namespace", "default"))]


def _escaped(value: str) -> str:
    """Return a value escaped for a field selector."""
    return re.sub(r"([\\,=])", r"\\\1", value)


def read_objects(
    node: str,
    kubeconfig: str | PathLike[str] | None,
    kinds: Iterable[str] = OF_NODES,
    events_of: tuple[str, str] | None = None,
    *,
    budget: Budget,
) -> dict[str, Json | str]:
    """Return the objects of a node by kind, or of all nodes if `node` is empty.

    If `events_of`, the namespace and name of a pod, is given, that pod's events are read. Without `events_of`, the
    events that say why pods do not start are read.

    If a kind cannot be read, or `budget` does not allow reading it, its value is a sentence that says why. Raises
    NodeNameError if no node can have this name.
    """
    if node:
        check_node_name(node)
    server = _server(kubeconfig, budget, node)
    escaped = [_escaped(one) for one in events_of or ()]
    about = ["involvedObject.namespace={},involvedObject.name={}".format(*escaped)] if events_of else _NOT_STARTED
    unreachable = ""
    answers: dict[str, Json | str] = {}
    try:
        for kind in kinds:
            try:
                answers[kind] = unreachable or _objects(server, kind, node, about)
            except RequestError as problem:
                unreachable = str(problem) if problem.is_unreachable else ""  # wait only once for a silent server
                answers[kind] = str(problem)
    finally:
        server.disconnect()
    return answers
