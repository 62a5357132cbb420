"""The adapters of a node whose pods come from an API server: made from its options, and started.

Law: this is loaded only if the options name an API server for more than the counts of devices.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack

from attrs import frozen
from devicecore_tools.node.feed import Outside
from devicecore_tools.node.settings import ClusterSettings, NodeSettings

from devicecore.domain.node_state import NodeState
from devicecore_fleet.cluster.addresses import addresses_of
from devicecore_fleet.cluster.pod_watch import KubeApiPods
from devicecore_fleet.cluster.pods import ClusterPods, NodePods
from devicecore_fleet.cluster.registration import RegisteredNode
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.topology import TopologyPublisher
from devicecore_fleet.cluster.words.nodes import RENEW_SECONDS, NodeDescription
from devicecore_fleet.cluster.writer import ApiWriter

_REGISTERING = 2.0  # seconds to wait for the Node, so that what is published next finds it


@frozen
class InCluster(Outside):
    """What a node has on the API server besides the counts of its devices.

    `pods` are those that the API server has bound to it, None if it does not run them, and `topology` publishes its
    NUMA nodes, None if it does not.
    """

    pods: ClusterPods | None
    topology: TopologyPublisher | None
    _watch: KubeApiPods | None
    _last_to_first: ExitStack

    def start(self) -> None:
        """Begin to watch pods. Start the engine before, so that it knows which pods had devices."""
        if self._watch is not None:
            self._last_to_first.enter_context(self._watch)

    def publish(self, state: NodeState) -> None:
        """Publish a state of the device manager where that is wanted."""
        if self.topology is not None:
            self.topology.publish(state)


def begin(
    options: NodeSettings, chosen: ClusterSettings, wake: Callable[[], None], last_to_first: ExitStack
) -> InCluster:
    """Start the writer, and register the node if it is to be registered.

    Raises SetUpError if the kubeconfig cannot be used.
    """
    writer, new = ApiWriter(KubeApiRequests(chosen.access)), chosen.registered
    is_registered = threading.Event()
    registered, host_ips = None, tuple[str, ...]()
    if new is not None:
        host_ips = addresses_of(new.address)
        description = NodeDescription(
            options.name, new.capacity, labels=new.labels, taints=new.taints, host_ips=host_ips
        )
        registered = RegisteredNode(description, writer, changed=is_registered.set)
    topology = None
    if chosen.topology_objects:
        topology = TopologyPublisher(
            options.name, options.topology, writer, lambda: registered.uid if registered else None
        )
    pods = watch = None
    if chosen.runs_pods:
        pods = ClusterPods(options.name, writer, wake, host_ips=host_ips, node=lambda: registered)
        watch = KubeApiPods(NodePods({options.name: pods}), chosen.access, node=options.name)
    last_to_first.enter_context(writer)
    if registered is not None:
        node = registered

        def tick(_: KubeApiRequests) -> float:
            node.tick()
            return RENEW_SECONDS

        writer.put(("tick", node.name), tick, urgent=True)
        is_registered.wait(_REGISTERING)
    return InCluster(pods, topology, watch, last_to_first)
