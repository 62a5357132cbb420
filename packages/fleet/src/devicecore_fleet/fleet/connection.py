"""Connects a virtual node to an API server, through parts that all nodes of the fleet share.

Laws: a node that is down or partitioned sends and receives nothing. Until a node's Node is known to be ours, the node
reports no pods or devices, and accepts no pods.
"""

from collections.abc import Callable, Mapping
from functools import partial
from uuid import NAMESPACE_DNS, uuid5

from attrs import evolve, field, frozen
from devicecore_tools.node.settings import all_taints

from devicecore.adapters.kube_api.requests import PODS
from devicecore.domain.dra.model import DriverName
from devicecore.ports.claims import ClaimSource
from devicecore_fleet.cluster.free_names import FreeNames
from devicecore_fleet.cluster.gate import NodeGate
from devicecore_fleet.cluster.pods import ClusterPods
from devicecore_fleet.cluster.process import Process
from devicecore_fleet.cluster.proofs import NodeReads
from devicecore_fleet.cluster.refusals import log_refused
from devicecore_fleet.cluster.registration import NOTHING, RegisteredNode
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.topology import TopologyPublisher
from devicecore_fleet.cluster.words.nodes import LABEL, NodeDescription, machine_info
from devicecore_fleet.cluster.words.patches import Json
from devicecore_fleet.cluster.writer import Job, Writer
from devicecore_fleet.fleet.description import GroupDescription, filled
from devicecore_fleet.fleet.fleet import NodeConnection
from devicecore_fleet.fleet.slices import NodeSlices, StoredSlices
from devicecore_fleet.fleet.virtual_node import NodeLink

_ARCHITECTURE = "kubernetes.io/arch"


@frozen
class SharedConnection:
    """The shared connection of all nodes of a fleet to the API server.

    Attributes:
        writer: sends requests.
        claims: reads claims.
        slices: the ResourceSlices that existed when the fleet started.
        host_ips: the addresses of all nodes.
        taints: whether a new Node repels pods that do not tolerate the fleet's taint.
        adopts: whether to take over Nodes and Leases that devicecore did not create.
        process: the process that holds the Leases.
        refused: called with the name of a node and the reason if the node is refused.
        reads: reads Nodes.
        removals: the pending deletions of removed nodes' Nodes, by name.
        free: the node names for which the server had neither a Node nor a Lease when the fleet started.
    """

    writer: Writer
    claims: ClaimSource
    slices: StoredSlices
    host_ips: tuple[str, ...]
    taints: bool = True
    adopts: bool = False
    process: Process = field(factory=Process)
    refused: Callable[[str, str], None] = log_refused
    reads: NodeReads = field(factory=NodeReads)
    removals: dict[str, Job] = field(factory=dict)
    free: FreeNames = field(factory=lambda: FreeNames(set()))


class ServerConnection(NodeConnection):
    """One node on the API server.

    Args:
        name: the node's name.
        group: the node's group.
        shared: the shared connection of all nodes to the API server.
        wake: called from any thread when the node has something to do.
    """

    def __init__(self, name: str, group: GroupDescription, shared: SharedConnection, wake: Callable[[], None]) -> None:
        self._name = name
        self._group = group
        self._shared = shared
        self._wake = wake
        self._starts = 0
        self._changes = NOTHING  # changes to labels and annotations since the last start
        self.gate: NodeGate = NodeGate(shared.writer, shared.claims, lambda: self._proven)
        self._proven: NodeGate = NodeGate(self.gate, self.gate, lambda: self._pods, is_closed=True)
        self._node = self._new_node()
        self._pods = self._new_pods()
        self._slices = NodeSlices(name, group, self._proven, shared.slices, self._uid)

    def link(self) -> NodeLink:
        """Return a new link, which starts over with the pods that the server has shown."""
        self.gate.forget_jobs()
        self._starts += 1
        self._node = self._new_node(self._changes or self._node.unsent)
        self._changes = NOTHING
        self._decide()  # closes the gate, because the new `_node` is not registered yet
        self._proven.forget_jobs()
        before, self._pods = self._pods, self._new_pods()
        if before.is_listed:
            self._pods.listed(before.objects)
        link = NodeLink(self._pods, self._pods, self._node, self._proven, self._slices)
        if not self._group.topology_objects:
            return link
        topology = TopologyPublisher(self._name, self._group.topology, self._proven, self._uid)
        return evolve(link, observe=topology.publish)

    def tick(self) -> None:
        """Renew the Lease, and register the Node if necessary. This method does not wait."""
        self._node.tick()

    def publish(self, driver: str, unhealthy: frozenset[str]) -> None:
        """Publish a driver's devices, except unhealthy ones."""
        self._slices.publish(DriverName(driver), unhealthy)

    def cut(self, *, is_cut: bool) -> None:
        """Disconnect the node from the API server, or reconnect it."""
        if is_cut:
            self.gate.close()
        elif self.gate.is_closed:
            self._node.doubt()  # watch events were missed in the meantime
            self.gate.open()

    def seen(self, node: Json | None) -> None:
        """Take the Node that the watch shows, or None if the watch no longer shows a Node."""
        if not self.gate.is_closed:
            self._node.seen(node)

    def catch_up(self) -> None:
        """List the pods that are bound to the node, because this node is added while the watch of pods is running."""

        def catch_up(requests: KubeApiRequests) -> None:
            self.gate.catch_up(lambda: requests.list(PODS, f"spec.nodeName={self._name}"))

        self._shared.writer.put(("pods", self._name), catch_up)

    def change(self, group: GroupDescription) -> None:
        """Set the group whose description applies from the node's next start on. The node must not be running.

        Labels and annotations of the previous group are removed.
        """
        before, self._group = self._group, group
        self._slices = NodeSlices(self._name, group, self._proven, self._shared.slices, self._uid)
        old, new = (self._shown(one) for one in (before, group))
        unsent = self._changes or self._node.unsent
        self._changes = {
            part: {**unsent.get(part, {}), **dict.fromkeys(old[part]), **new[part]}
            for part in new
            if part in unsent or old[part] != new[part]
        }

    def _shown(self, group: GroupDescription) -> dict[str, dict[str, str]]:
        found = describe(self._name, group, 0, (), taints=False)
        return {"labels": dict(found.labels), "annotations": dict(found.annotations)}

    def remove(self) -> None:
        """Delete the Node, and send nothing more about the node. The node must not be running."""
        self.gate.close()
        self.gate.forget_jobs()
        node, removals = self._node, self._shared.removals

        def delete(requests: KubeApiRequests) -> float | None:
            again = node.delete(requests)
            if again is None and removals.get(self._name) is delete:
                del removals[self._name]
            return again

        removals[self._name] = delete
        # The deletion has the same key as the node's own job, so that a registration in progress finishes first.
        self._shared.writer.put(("node", self._name), delete)

    @property
    def is_gone(self) -> bool:
        """Whether someone has deleted the Node."""
        return self._node.is_gone

    @property
    def refusal(self) -> str | None:
        """Why the Node with this name is left alone, or None if the Node is not refused."""
        return self._node.refusal

    def _uid(self) -> str | None:
        return self._node.uid

    def _new_pods(self) -> ClusterPods:
        return ClusterPods(
            self._name,
            self._proven,
            self._wake,
            host_ips=self._shared.host_ips,
            node=lambda: self._node,
            says=self._group.said_of,
            reads=self._shared.reads,
        )

    def _new_node(self, changes: Mapping[str, Mapping[str, str | None]] = NOTHING) -> RegisteredNode:
        shared = self._shared
        description = describe(self._name, self._group, self._starts, shared.host_ips, taints=shared.taints)
        description = evolve(description, adopts=shared.adopts)
        # A fleet sends no heartbeats: the renewed Leases show that its nodes are alive.
        return RegisteredNode(
            description,
            self.gate,
            changed=self._changed,
            process=shared.process,
            heartbeat=None,
            refused=shared.refused,
            first=shared.removals.get(self._name),
            changes=changes,
            is_free=partial(shared.free.take, self._name),
        )

    def _changed(self) -> None:
        self._decide()
        self._wake()

    def _decide(self) -> None:
        """Open the inner gate for pods and devices only while the Node is known to be ours."""
        self._proven.decide(lambda: self._node.is_ours)


def describe(
    name: str, group: GroupDescription, starts: int, host_ips: tuple[str, ...], *, taints: bool
) -> NodeDescription:
    """Return the description of a virtual node's Node after the node has started `starts` times."""
    return NodeDescription(
        name,
        group.capacity,
        group.allocatable,
        labels={LABEL: "true", **group.labels},
        annotations={key: filled(text, 0, name) for key, text in group.annotations.items()},
        provider_id=filled(group.provider_id, 0, name),
        host_ips=host_ips,
        taints=all_taints(group.taints, is_tainted=taints),
        info={
            "osImage": "devicecore fleet",
            **machine_info(name),
            "bootID": str(uuid5(NAMESPACE_DNS, f"{name} {starts}")),
            "architecture": group.labels.get(_ARCHITECTURE, "amd64"),
        },
    )
