"""Keeps a node's NodeResourceTopology in sync with its devices.

Law: the object is read before it is written, and written only if it is not as desired. On a Node that this process
created, another program's object is left alone. If a server does not know the kind, the publisher retries later,
because the CustomResourceDefinition may be installed by then.
"""

import logging
from collections.abc import Callable
from http import HTTPStatus

from devicecore_tools.numa import NO_ZONES, Zones

from devicecore.adapters.kube_api.access import ApiResource, RequestError
from devicecore.domain.node_state import NodeState
from devicecore.domain.topology import Topology
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words.patches import Json
from devicecore_fleet.cluster.words.topology import topology_object
from devicecore_fleet.cluster.writer import Writer

TOPOLOGIES = ApiResource("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies")

KIND_RETRY = 300.0
"""Seconds before a retry if the server does not know the kind."""

_log = logging.getLogger(__name__)


class TopologyPublisher:
    """Publishes the NodeResourceTopology of one node.

    Args:
        node: the name of the node.
        topology: the NUMA nodes of the machine, and how the topology manager uses them.
        writer: sends requests to the API server.
        uid: returns the UID of the Node, or None while it is unknown.
    """

    def __init__(
        self, node: str, topology: Topology, writer: Writer, uid: Callable[[], str | None] = lambda: None
    ) -> None:
        self._node = node
        self._topology = topology
        self._writer = writer
        self._uid = uid
        self._seen: tuple[NodeState, str | None, Zones] | None = None
        self._wanted: Json = {}
        self._is_made = False  # whether this publisher has written the object

    def publish(self, state: NodeState, zones: Zones = NO_ZONES) -> None:
        """Publish the state of devices, and what is pinned on each NUMA node, if either has changed.

        This method returns at once.
        """
        uid = self._uid()
        seen = self._seen
        if seen is not None and state is seen[0] and uid == seen[1] and zones is seen[2]:
            return
        self._seen = state, uid, zones
        wanted = topology_object(self._node, state, self._topology, uid, zones)
        if wanted != self._wanted:
            self._wanted = wanted
            self._writer.put(("topology", self._node), lambda requests: self._write(requests, wanted))

    def _write(self, requests: KubeApiRequests, wanted: Json) -> float | None:
        if (before := requests.find(TOPOLOGIES, self._node)) is None:
            try:
                requests.create(TOPOLOGIES, wanted)
            except RequestError as refused:
                if refused.status != HTTPStatus.NOT_FOUND:
                    raise
                _log.warning("the API server has no NodeResourceTopologies: install their CustomResourceDefinition")
                return KIND_RETRY
            self._is_made = True
            return None
        owners = before["metadata"].get("ownerReferences") or []
        missing = [one for one in wanted["metadata"].get("ownerReferences") or [] if one not in owners]
        is_owned = any(one.get("kind") == "Node" and one.get("name") == self._node for one in owners)
        if missing and not is_owned and not self._is_made:
            _log.warning("another program created the NodeResourceTopology %s: it is left alone", self._node)
            return KIND_RETRY
        metadata = {**before["metadata"], "ownerReferences": [*owners, *missing]}
        changed = {name: wanted[name] for name in ("attributes", "zones")}
        if missing or {name: before.get(name) for name in changed} != changed:
            requests.update(TOPOLOGIES, {**before, **changed, "metadata": metadata})
        return None
