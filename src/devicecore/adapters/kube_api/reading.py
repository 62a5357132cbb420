"""The Node object, the pods and the ResourceSlices of a node, read from the API server. Nothing is written.

Law: the answer is what the server sent, or a `Problem` with a sentence.
"""

from collections.abc import Callable
from http import HTTPStatus
from os import PathLike
from typing import Any

from lightkube.core.resource import ApiInfo, GlobalResource, NamespacedResourceG, ResourceDef

from devicecore.adapters.kube_api.access import Access, ApiServer, NodeNameError, Problem
from devicecore.adapters.kube_api.client_config import SERVICE_ACCOUNT
from devicecore.adapters.kube_api.patches import Json
from devicecore.domain.names import is_dns_subdomain

_SECONDS = 30.0  # for a request, and for a program that gives credentials
_PODS_AT_ONCE = 100  # so that no answer comes near the limit of one


class _WholeNode(GlobalResource, dict[str, Any]):
    _api_info = ApiInfo(ResourceDef("", "v1", "Node"), plural="nodes", verbs=["get"])


class _Pod(NamespacedResourceG, dict[str, Any]):
    _api_info = ApiInfo(ResourceDef("", "v1", "Pod"), plural="pods", verbs=["global_list"])


class _Slice(GlobalResource, dict[str, Any]):
    _api_info = ApiInfo(ResourceDef("resource.k8s.io", "v1", "ResourceSlice"), plural="resourceslices", verbs=["list"])


class NodeReader(ApiServer):
    """Reads one node, its pods, and the devices that DRA drivers publish for it."""

    def read_slices(self) -> Json:
        """Return the ResourceSlices of the node, as the server sent them; none if it does not know that kind.

        Raises:
            Problem: there is no answer, or an error.
        """
        fields: dict[str, Any] = {"spec.nodeName": self.node}
        try:
            return self.ask(
                "list resourceslices", lambda client: [*client.list(_Slice, fields=fields, chunk_size=_PODS_AT_ONCE)]
            )
        except Problem as problem:
            if problem.kind == HTTPStatus.NOT_FOUND:
                return []
            raise

    def read_node(self) -> Json:
        """Return the Node object as the server sent it.

        Raises:
            Problem: there is no answer, or an error.
        """
        return self.ask("get nodes", lambda client: client.get(_WholeNode, self.node))

    def read_pods(self) -> Json:
        """Return the pods that are bound to the node, as the server sent them.

        Raises:
            Problem: there is no answer, or an error.
        """
        fields: dict[str, Any] = {"spec.nodeName": self.node}
        return self.ask(
            "list pods", lambda client: [*client.list(_Pod, namespace="*", fields=fields, chunk_size=_PODS_AT_ONCE)]
        )


def read_objects(node: str, kubeconfig: str | PathLike[str] | None) -> tuple[Json | str, Json | str, Json | str]:
    """The Node, its pods and its ResourceSlices; in place of each, a sentence if it cannot be read.

    Raises:
        NodeNameError: no node can have this name.
    """
    if not is_dns_subdomain(node):
        raise NodeNameError(node)
    reader = NodeReader(node, Access(kubeconfig, None, SERVICE_ACCOUNT, _SECONDS, _SECONDS), "devicecore")
    unreachable = ""

    def answer(read: Callable[[], Json]) -> Json | str:
        nonlocal unreachable
        if unreachable:  # a server that is silent is waited for once
            return unreachable
        try:
            return read()
        except Problem as problem:
            unreachable = str(problem) if problem.is_unreachable else ""
            return str(problem)

    try:
        return answer(reader.read_node), answer(reader.read_pods), answer(reader.read_slices)
    finally:
        reader.disconnect()
