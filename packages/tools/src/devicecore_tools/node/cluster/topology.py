"""Keeps the NodeResourceTopology of a node as its devices are.

Law: the object is read before it is written, and written only if it differs. A server without the kind is asked again
after a while, because somebody may install the CustomResourceDefinition later.
"""

import logging
from collections.abc import Callable, Hashable
from http import HTTPStatus
from typing import TYPE_CHECKING

from devicecore.domain.node_state import NodeState
from devicecore.domain.topology import Topology
from devicecore_tools.node.cluster.words.patches import Json
from devicecore_tools.node.cluster.words.topology import topology_object

if TYPE_CHECKING:
    from devicecore.adapters.kube_api.requests import ApiResource, KubeApiRequests

KIND_RETRY = 300.0
"""Seconds after which a server that does not have the kind is asked again."""

_log = logging.getLogger(__name__)

Job = Callable[["KubeApiRequests"], float | None]
"""What is done with an API server. It returns the seconds until it has to be done again, or None."""


class TopologyPublisher:
    """Publishes the NodeResourceTopology of one node.

    Args:
        node: the name of the node.
        topology: the NUMA nodes of the machine, and how the topology manager uses them.
        put: takes a job under a key; a newer job of a key replaces an older one that has not begun.
        uid: returns the UID of the Node, or None while it is not known.
    """

    def __init__(
        self,
        node: str,
        topology: Topology,
        put: Callable[[Hashable, Job], None],
        uid: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._node = node
        self._topology = topology
        self._put = put
        self._uid = uid
        self._seen: NodeState | None = None
        self._wanted: Json = {}

    def publish(self, state: NodeState) -> None:
        """Publish a state of the device manager, if it changes anything. Return at once."""
        if state is self._seen:
            return
        self._seen = state
        wanted = topology_object(self._node, state, self._topology, self._uid())
        if wanted != self._wanted:
            self._wanted = wanted
            self._put(("topology", self._node), lambda requests: self._write(requests, wanted))

    def _write(self, requests: "KubeApiRequests", wanted: Json) -> float | None:
        from devicecore.adapters.kube_api.requests import RequestError

        resource = _resource()
        try:
            before = requests.get(resource, self._node)
        except RequestError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            try:
                requests.create(resource, wanted)
            except RequestError as refused:
                if refused.status != HTTPStatus.NOT_FOUND:
                    raise
                _log.warning("the API server has no NodeResourceTopologies: install their CustomResourceDefinition")
                return KIND_RETRY
            return None
        changed = {name: wanted[name] for name in ("attributes", "zones")}
        if {name: before.get(name) for name in changed} != changed:
            requests.update(resource, {**before, **changed})
        return None


def _resource() -> "ApiResource":
    from devicecore.adapters.kube_api.requests import ApiResource

    return ApiResource("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies")
