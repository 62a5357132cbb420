"""Creates the adapters of a node whose pods come from an API server, and starts them.

Law: this module is loaded only if the API server is used for more than device counts.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from attrs import frozen
from devicecore_tools.node.feed import Outside
from devicecore_tools.node.settings import ClusterSettings, NodeSettings
from devicecore_tools.numa import Zones

from devicecore.domain.errors import SetUpError
from devicecore.domain.node_state import NodeState
from devicecore_fleet.cluster.addresses import addresses_of
from devicecore_fleet.cluster.gate import NodeGate
from devicecore_fleet.cluster.object_watch import KubeApiNodes, KubeApiPods, KubeApiWatch
from devicecore_fleet.cluster.pods import ClusterPods, NodePods
from devicecore_fleet.cluster.registration import RegisteredNode, RegisteredNodes
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.topology import TopologyPublisher
from devicecore_fleet.cluster.words.leases import RENEW_SECONDS
from devicecore_fleet.cluster.words.nodes import NodeDescription, machine_info
from devicecore_fleet.cluster.writer import ApiWriter

_REGISTERING = 2.0  # seconds to wait until the Node exists, so that later updates find it


@frozen
class NodeRefusedError(SetUpError):
    """The Node with this name belongs to a machine or to another program."""

    node: str
    why: str
    _text = "node {node} is refused: {why}"


@frozen
class InCluster(Outside):
    """The parts of a node that use the API server, apart from its device counts.

    `pods` are the pods bound to the node on the API server, or None if the node does not run these pods. `sink` is the
    Node that this process registers, or None. `topology` publishes the node's NUMA nodes, or is None.
    """

    pods: ClusterPods | None
    sink: RegisteredNode | None
    topology: TopologyPublisher | None
    _watches: tuple[KubeApiWatch, ...]
    _last_to_first: ExitStack

    def start(self) -> None:
        """Start watching pods and the Node.

        The engine must be started first, so that it knows which pods had devices.
        """
        for watch in self._watches:
            self._last_to_first.enter_context(watch)

    def publish(self, state: NodeState, zones: Zones) -> None:
        """Publish a state of the device manager as a NodeResourceTopology, if configured."""
        if self.topology is not None:
            self.topology.publish(state, zones)


def begin(
    options: NodeSettings, chosen: ClusterSettings, wake: Callable[[], None], last_to_first: ExitStack
) -> InCluster:
    """Start the writer, and register the node if configured.

    Raises:
        NodeRefusedError: devicecore did not create the Node with this name, or someone else holds its Lease.
        SetUpError: the kubeconfig cannot be used.
    """
    writer, new = ApiWriter(KubeApiRequests(chosen.access)), chosen.registered
    if new is None:
        return _beside(options, chosen, writer, wake, last_to_first)
    answered, host_ips = threading.Event(), addresses_of(new.address)
    description = NodeDescription(
        options.name,
        new.capacity,
        allocatable=new.allocatable,
        labels=new.labels,
        taints=new.taints,
        host_ips=host_ips,
        info={**machine_info(options.name), "bootID": _boot()},
        adopts=new.adopts,
    )

    def changed() -> None:
        proven.decide(lambda: node.is_ours)
        answered.set()
        wake()

    node = RegisteredNode(description, writer, changed=changed)
    proven = NodeGate(writer, None, lambda: pods, is_closed=True)
    pods = ClusterPods(options.name, proven, wake, host_ips=host_ips, node=lambda: node)
    topology = TopologyPublisher(options.name, options.topology, proven, lambda: node.uid)
    watches = (
        KubeApiPods(NodePods({options.name: proven}), chosen.access, node=options.name),
        KubeApiNodes(RegisteredNodes({options.name: node.seen}), chosen.access, node=options.name),
    )
    last_to_first.enter_context(writer)

    def tick(_: KubeApiRequests) -> float:
        node.tick()
        return RENEW_SECONDS

    writer.put(("lease", "", "tick"), tick)
    answered.wait(_REGISTERING)
    if node.refusal is not None:
        raise NodeRefusedError(options.name, node.refusal)
    return InCluster(pods, node, topology if chosen.topology_objects else None, watches, last_to_first)


def _boot() -> str:
    """Return this machine's boot id, or an empty string if it is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _beside(
    options: NodeSettings,
    chosen: ClusterSettings,
    writer: ApiWriter,
    wake: Callable[[], None],
    last_to_first: ExitStack,
) -> InCluster:
    """Start the cluster parts of a node whose Node object was created by someone else."""
    topology = TopologyPublisher(options.name, options.topology, writer) if chosen.topology_objects else None
    pods, watches = None, tuple[KubeApiWatch, ...]()
    if chosen.runs_pods:
        pods = ClusterPods(options.name, writer, wake)
        watches = (KubeApiPods(NodePods({options.name: pods}), chosen.access, node=options.name),)
    last_to_first.enter_context(writer)
    return InCluster(pods, None, topology, watches, last_to_first)
