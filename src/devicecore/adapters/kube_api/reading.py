"""The objects of a node or of all nodes, read from the API server. Nothing is written.

Law: the answer is what the server sent, or a `Problem` with a sentence.
"""

from collections.abc import Iterable
from http import HTTPStatus
from os import PathLike
from typing import Any

from lightkube.core.resource import ApiInfo, GlobalResource, NamespacedResourceG, ResourceDef

from devicecore.adapters.kube_api.access import Access, ApiServer, NodeNameError, Problem
from devicecore.adapters.kube_api.patches import Json
from devicecore.domain.names import is_dns_subdomain

_SECONDS = 30.0  # for a request
_PODS_AT_ONCE = 100  # so that no answer comes near the limit of one


class _Node(GlobalResource, dict[str, Any]):
    _api_info = ApiInfo(ResourceDef("", "v1", "Node"), plural="nodes", verbs=["get", "list"])


class _Pod(NamespacedResourceG, dict[str, Any]):
    _api_info = ApiInfo(ResourceDef("", "v1", "Pod"), plural="pods", verbs=["global_list"])


class _Event(NamespacedResourceG, dict[str, Any]):
    _api_info = ApiInfo(ResourceDef("", "v1", "Event"), plural="events", verbs=["global_list"])


class _Slice(GlobalResource, dict[str, Any]):
    _api_info = ApiInfo(ResourceDef("resource.k8s.io", "v1", "ResourceSlice"), plural="resourceslices", verbs=["list"])


class _Claim(NamespacedResourceG, dict[str, Any]):
    _api_info = ApiInfo(
        ResourceDef("resource.k8s.io", "v1", "ResourceClaim"), plural="resourceclaims", verbs=["global_list"]
    )


class _DeviceClass(GlobalResource, dict[str, Any]):
    _api_info = ApiInfo(ResourceDef("resource.k8s.io", "v1", "DeviceClass"), plural="deviceclasses", verbs=["list"])


_LISTS: dict[str, tuple[str, type[dict[str, Any]]]] = {
    "Node": ("nodes", _Node),
    "Pod": ("pods", _Pod),
    "Event": ("events", _Event),
    "ResourceSlice": ("resourceslices", _Slice),
    "ResourceClaim": ("resourceclaims", _Claim),
    "DeviceClass": ("deviceclasses", _DeviceClass),
}

OF_NODES = ("Node", "Pod", "Event", "ResourceSlice", "ResourceClaim", "DeviceClass")
"""The kinds that say what happens on nodes."""

OF_CLAIMS = ("ResourceSlice", "DeviceClass", "ResourceClaim", "Node")
"""The kinds that decide which devices claims get."""

PREPARE_FAILED = {"reason": "FailedPrepareDynamicResources"}
"""The events that are read: no status of a pod says what they say."""


class NodeReader(ApiServer):
    """Reads nodes, their pods, and the devices that DRA drivers publish for them."""

    def objects(self, kind: str, *, of_all_nodes: bool) -> Json:
        """Return the objects of a kind as the server sent them, for one node or for all.

        ResourceClaims are those of all nodes, because they name no node. There are none of the kinds of dynamic
        resource allocation if the server does not know them.

        Raises:
            Problem: there is no answer, or an error.
        """
        if kind == "Node" and not of_all_nodes:
            return self.ask("get nodes", lambda client: client.get(_Node, self.node))
        what, resource = _LISTS[kind]
        of_node = {} if of_all_nodes or kind not in {"Pod", "ResourceSlice"} else {"spec.nodeName": self.node}
        try:
            return self._list(what, resource, dict(PREPARE_FAILED) if kind == "Event" else of_node)
        except Problem as problem:
            if problem.kind == HTTPStatus.NOT_FOUND and kind not in {"Node", "Pod", "Event"}:
                return []
            raise

    def _list(self, what: str, kind: Any, fields: dict[str, Any]) -> Json:  # noqa: ANN401 - lightkube has no base
        extra: dict[str, Any] = {"namespace": "*"} if issubclass(kind, NamespacedResourceG) else {}
        return self.ask(
            f"list {what}",
            lambda client: [*client.list(kind, fields=fields or None, chunk_size=_PODS_AT_ONCE, **extra)],
        )


def read_objects(
    node: str, kubeconfig: str | PathLike[str] | None, kinds: Iterable[str] = OF_NODES
) -> dict[str, Json | str]:
    """Return the objects of a node by kind, or of all nodes if `node` is empty; a sentence if they cannot be read.

    Raises:
        NodeNameError: no node can have this name.
    """
    if node and not is_dns_subdomain(node):
        raise NodeNameError(node)
    access = Access(kubeconfig, timeout=_SECONDS)
    reader = NodeReader(node or "all", access, "devicecore")
    unreachable = ""
    answers: dict[str, Json | str] = {}
    try:
        for kind in kinds:
            try:
                answers[kind] = unreachable or reader.objects(kind, of_all_nodes=not node)
            except Problem as problem:
                unreachable = str(problem) if problem.is_unreachable else ""  # a silent server is waited for once
                answers[kind] = str(problem)
    finally:
        reader.disconnect()
    return answers
