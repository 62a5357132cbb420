"""The settings of a kubelet's topology manager.

Law: the defaults are the kubelet's.
"""

from collections.abc import Iterable

from attrs import field, frozen

from devicecore.domain.model import NumaNode
from devicecore.domain.topology import MAX_ALLOWABLE_NUMA_NODES, Policy, PolicyOptions, Scope, Topology

POLICY_NOT_KNOWN = "the kubelet's topology policy, assumed to be none"


@frozen
class TopologySettings:
    """The settings of a topology manager. If `numa_nodes` is empty, the devices' topologies name the NUMA nodes.

    `is_given` says whether a user or the kubelet's configuration has set the policy; if neither has, the policy is the
    kubelet's default. `distances` has one row per NUMA node with its distances to all nodes in order, and is empty if
    the distances are not known.
    """

    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER
    numa_nodes: tuple[NumaNode, ...] = ()
    is_given: bool = False
    options: PolicyOptions = field(factory=PolicyOptions)
    distances: tuple[tuple[int, ...], ...] = ()

    @property
    def max_numa_nodes(self) -> int:
        """The maximum number of NUMA nodes that the kubelet accepts if its policy is not `none`."""
        return self.options.max_allowable_numa_nodes or MAX_ALLOWABLE_NUMA_NODES

    def on(self, numa_nodes: Iterable[NumaNode]) -> Topology:
        """Return the topology with these NUMA nodes, unless the settings already name NUMA nodes."""
        nodes = self.numa_nodes or tuple(numa_nodes)
        uses = self.options.prefer_closest_numa_nodes and len(self.distances) == len(nodes)
        return Topology(nodes, self.policy, self.scope, distances=self.distances if uses else ())

    def not_known_on(self, topology: Topology) -> str:
        """Return which kubelet setting is missing and the option that sets it, or "" if none is missing."""
        if len(topology.numa_nodes) == 1:
            return ""
        if not self.is_given:
            return f"{POLICY_NOT_KNOWN}: name it with --topology-policy"
        if topology.distances or not self.options.prefer_closest_numa_nodes:
            return ""
        if topology.policy in (Policy.NONE, Policy.SINGLE_NUMA_NODE):  # these policies ignore distances
            return ""
        return "how far apart the NUMA nodes are: pass the distances with --numa-distances"

    def problem_on(self, topology: Topology) -> str:
        """Return why a kubelet does not start on a machine with this topology (`NewManager`), or "" if it starts."""
        most, count = self.max_numa_nodes, len(topology.numa_nodes)
        if count <= most or topology.policy is Policy.NONE:
            return ""
        return f"the kubelet does not start: the machine has {count} NUMA nodes, and {_MOST} allows {most}"


_MOST = "max-allowable-numa-nodes in topologyManagerPolicyOptions"
