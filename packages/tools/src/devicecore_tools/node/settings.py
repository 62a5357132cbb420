"""What the user of a node has chosen.

Law: settings that contradict each other are refused before anything starts.
"""

import socket
from pathlib import Path

from attrs import field, frozen

from devicecore.domain.model import NumaNode
from devicecore.domain.topology import Policy, Scope, Topology


class ContradictionError(ValueError):
    """A setting contradicts another one, or the machine. The text names the options."""


def _this_machine(name: str | None) -> str:
    return name or socket.gethostname().lower()


@frozen(kw_only=True)
class NodeSettings:
    """What the user of a node has chosen. Times are in seconds.

    Raises:
        ContradictionError: the settings contradict each other.
    """

    root: Path
    manifests: Path | None
    numa_nodes: tuple[int, ...]
    policy: str
    scope: str
    shared: bool
    metrics_port: int | None
    node_name: str = field(converter=_this_machine)
    kubeconfig: Path | None
    context: str | None
    in_cluster: bool
    beside_kubelet: bool
    patch: str
    keep_removed: bool
    resync: float
    status_period: float
    once: bool
    wait: float
    as_json: bool

    def __attrs_post_init__(self) -> None:
        if self.kubeconfig is not None and self.in_cluster:
            message = "--kubeconfig and --in-cluster exclude each other."
            raise ContradictionError(message)
        if self.context is not None and self.kubeconfig is None:
            message = "--context needs --kubeconfig."
            raise ContradictionError(message)
        if len(set(self.numa_nodes)) != len(self.numa_nodes) or not self.numa_nodes:
            message = "--numa-nodes: name at least one node, and each node once."
            raise ContradictionError(message)

    @property
    def topology(self) -> Topology:
        """The topology manager's settings."""
        return Topology(tuple(map(NumaNode, self.numa_nodes)), Policy(self.policy), Scope(self.scope))

    @property
    def has_server(self) -> bool:
        """Whether there is an API server to publish on."""
        return self.kubeconfig is not None or self.in_cluster

    @property
    def deletes_slices(self) -> bool:
        """Whether ResourceSlices of this node are deleted. A kubelet that also writes the Node does that itself."""
        return self.has_server and not self.beside_kubelet
