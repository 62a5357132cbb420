"""What connects a virtual node with an API server, through what all nodes of the fleet share.

Law: a node that is down or separated sends nothing and learns nothing.
"""

from collections.abc import Callable
from uuid import NAMESPACE_DNS, uuid5

from attrs import evolve, frozen
from devicecore_tools.node.settings import all_taints

from devicecore.domain.dra.model import DriverName
from devicecore.ports.claims import ClaimSource
from devicecore_fleet.cluster.pods import ClusterPods
from devicecore_fleet.cluster.registration import RegisteredNode
from devicecore_fleet.cluster.topology import TopologyPublisher
from devicecore_fleet.cluster.words.nodes import NodeDescription
from devicecore_fleet.cluster.writer import Writer
from devicecore_fleet.fleet.description import GroupDescription
from devicecore_fleet.fleet.fleet import NodeConnection
from devicecore_fleet.fleet.gate import NodeGate
from devicecore_fleet.fleet.slices import NodeSlices, StoredSlices
from devicecore_fleet.fleet.virtual_node import NodeLink

LABEL = "devicecore.io/fleet"
"""The label of every node of a fleet, so that pods that need containers can keep away."""

_ARCHITECTURE = "kubernetes.io/arch"


@frozen
class SharedConnection:
    """What connects all nodes of a fleet with the API server.

    Attributes:
        writer: sends requests.
        claims: reads claims.
        slices: the ResourceSlices at the start.
        host_ips: the addresses of all nodes.
        taints: whether a new Node keeps pods away that do not tolerate the fleet.
    """

    writer: Writer
    claims: ClaimSource
    slices: StoredSlices
    host_ips: tuple[str, ...]
    taints: bool = True


class ServerConnection(NodeConnection):
    """One node at the API server.

    Args:
        name: the node's name.
        group: what it has.
        shared: what connects all nodes with the API server.
        wake: called from any thread when the node has something to do.
    """

    def __init__(self, name: str, group: GroupDescription, shared: SharedConnection, wake: Callable[[], None]) -> None:
        self._name = name
        self._group = group
        self._taints = shared.taints
        self._host_ips = shared.host_ips
        self._wake = wake
        self._starts = 0
        self.gate: NodeGate = NodeGate(shared.writer, shared.claims, lambda: self._pods)
        self._node = self._new_node()
        self._pods = self._new_pods()
        self._slices = NodeSlices(name, group, self.gate, shared.slices, self._uid)

    def link(self) -> NodeLink:
        """Begin anew, with the pods that the server has shown."""
        self.gate.forget_jobs()
        before, self._pods = self._pods, self._new_pods()
        if before.is_listed:
            self._pods.listed(before.objects)
        self._starts += 1
        self._node = self._new_node()
        link = NodeLink(self._pods, self._pods, self._node, self.gate, self._slices)
        if not self._group.topology_objects:
            return link
        topology = TopologyPublisher(self._name, self._group.topology, self.gate, self._uid)
        return evolve(link, observe=topology.publish)

    def tick(self) -> None:
        """Renew the Lease, and register the Node if it is not. This does not wait."""
        self._node.tick()

    def publish(self, driver: str, unhealthy: frozenset[str]) -> None:
        """Show the devices of a driver, but for those that are unhealthy."""
        self._slices.publish(DriverName(driver), unhealthy)

    def cut(self, *, is_cut: bool) -> None:
        """Separate the node from the API server, or connect it again."""
        if is_cut:
            self.gate.close()
        else:
            self.gate.open()

    def _uid(self) -> str | None:
        return self._node.uid

    def _new_pods(self) -> ClusterPods:
        return ClusterPods(self._name, self.gate, self._wake, host_ips=self._host_ips, node=lambda: self._node)

    def _new_node(self) -> RegisteredNode:
        description = describe(self._name, self._group, self._starts, self._host_ips, taints=self._taints)
        # A fleet renews Leases, by which a cluster knows that nodes are alive, and no more.
        return RegisteredNode(description, self.gate, changed=self._wake, heartbeat=None)


def describe(
    name: str, group: GroupDescription, starts: int, host_ips: tuple[str, ...], *, taints: bool
) -> NodeDescription:
    """Return what the Node of a virtual node says after so many starts of the node."""
    machine, boot = uuid5(NAMESPACE_DNS, name), uuid5(NAMESPACE_DNS, f"{name} {starts}")
    return NodeDescription(
        name,
        group.capacity,
        labels={LABEL: "true", **group.labels},
        host_ips=host_ips,
        taints=all_taints(group.taints, is_tainted=taints),
        info={
            "osImage": "devicecore fleet",
            "machineID": machine.hex,
            "systemUUID": str(machine),
            "bootID": str(boot),
            "architecture": group.labels.get(_ARCHITECTURE, "amd64"),
        },
    )
