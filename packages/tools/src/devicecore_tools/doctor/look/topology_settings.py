"""The settings of a kubelet's topology manager.

Law: the defaults are those of a kubelet.
"""

from collections.abc import Iterable

from attrs import field, frozen

from devicecore.domain.model import NumaNode
from devicecore.domain.topology import MAX_ALLOWABLE_NUMA_NODES, Policy, PolicyOptions, Scope, Topology


@frozen
class TopologySettings:
    """The topology manager of a kubelet. Without NUMA nodes, the devices' topologies define them.

    `is_given` is whether a user or the kubelet's configuration has set it; otherwise it is the default of a kubelet.
    `distances` are row by row those between the NUMA nodes, in order; without them they are not known.
    """

    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER
    numa_nodes: tuple[NumaNode, ...] = ()
    is_given: bool = False
    options: PolicyOptions = field(factory=PolicyOptions)
    distances: tuple[tuple[int, ...], ...] = ()

    @property
    def max_numa_nodes(self) -> int:
        """How many NUMA nodes a kubelet allows with a policy other than `none`."""
        return self.options.max_allowable_numa_nodes or MAX_ALLOWABLE_NUMA_NODES

    def on(self, numa_nodes: Iterable[NumaNode]) -> Topology:
        """Return the topology of a machine with these NUMA nodes, unless the settings name others."""
        nodes = self.numa_nodes or tuple(numa_nodes)
        uses = self.options.prefer_closest_numa_nodes and len(self.distances) == len(nodes)
        return Topology(nodes, self.policy, self.scope, distances=self.distances if uses else ())

    def not_known_on(self, topology: Topology) -> str:
        """Return what a kubelet knows that this topology lacks, and how to name it, empty if it lacks nothing."""
        if len(topology.numa_nodes) == 1:
            return ""
        if not self.is_given:
            return "the kubelet's topology policy, taken as none: name it with --topology-policy"
        if topology.distances or not self.options.prefer_closest_numa_nodes:
            return ""
        if topology.policy in (Policy.NONE, Policy.SINGLE_NUMA_NODE):  # which ignores distances
            return ""
        return "how far the NUMA nodes are from each other: name it with --numa-distances"

    def problem_on(self, topology: Topology) -> str:
        """Return why a kubelet does not start on a machine with this topology (`NewManager`), empty if it does."""
        most, count = self.max_numa_nodes, len(topology.numa_nodes)
        if count <= most or topology.policy is Policy.NONE:
            return ""
        return f"the kubelet does not start: the machine has {count} NUMA nodes, and {_MOST} allows {most}"


_MOST = "max-allowable-numa-nodes in topologyManagerPolicyOptions"
