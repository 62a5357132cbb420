"""The settings of a kubelet's topology manager.

Law: the defaults are those of a kubelet.
"""

from attrs import frozen

from devicecore.domain.model import NumaNode
from devicecore.domain.topology import Policy, Scope


@frozen
class TopologySettings:
    """The topology manager of a kubelet. Without NUMA nodes, devices say which there are.

    `is_given` says that a user or the kubelet's configuration says so; otherwise it is what a kubelet does by default.
    """

    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER
    numa_nodes: tuple[NumaNode, ...] = ()
    is_given: bool = False
