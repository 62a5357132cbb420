"""What the user of a node has chosen.

Law: settings that contradict each other are refused before anything starts.
"""

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import field, frozen

from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import NumaNode
from devicecore.domain.names import is_qualified_name
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text
from devicecore.domain.topology import Policy, Scope, Topology

if TYPE_CHECKING:
    from devicecore_tools.node.cluster.words.nodes import NodeDescription


class ContradictionError(ValueError):
    """A setting contradicts another one, or the machine. The text names the options."""


TAINT = {"key": "devicecore.io/virtual", "value": "true", "effect": "NoSchedule"}
"""The taint of a registered node, because an ordinary pod that is bound to it would seem to run."""

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_VALUE = re.compile("(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def _quantity(option: str, text: str) -> str:
    try:
        Quantity.parse(text)
    except DeviceCoreError as error:
        message = f"{option}: {error}"
        raise ContradictionError(message) from None
    return text


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not is_qualified_name(key) or not _VALUE.fullmatch(value):
        message = f"--node-label: expected KEY=VALUE, got {foreign_text(text)!r}"
        raise ContradictionError(message)
    return key, value


def _taint(text: str) -> dict[str, str]:
    pair, colon, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if not colon or effect not in _EFFECTS or not is_qualified_name(key) or not _VALUE.fullmatch(value):
        message = f"--taint: expected KEY[=VALUE]:EFFECT with {', '.join(_EFFECTS)}, got {foreign_text(text)!r}"
        raise ContradictionError(message)
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def _this_machine(name: str | None) -> str:
    return name or socket.gethostname().lower()


@frozen(kw_only=True)
class NodeSettings:
    """What the user of a node has chosen.

    Times are in seconds. Raises ContradictionError if they contradict each other.
    """

    root: Path
    manifests: Path | None
    numa_nodes: tuple[int, ...]
    policy: str
    scope: str
    allocation_policy: str
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
    from_server: bool
    register: bool
    cpu: str
    memory: str
    max_pods: int
    labels: tuple[str, ...]
    taints: tuple[str, ...]
    is_tainted: bool
    node_ip: str | None
    port: int
    topology_objects: bool
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
        if not self.has_server and (self.runs_pods_of_server or self.topology_objects):
            message = "--pods-from-server, --register-node and --topology-objects need --kubeconfig or --in-cluster."
            raise ContradictionError(message)
        if self.runs_pods_of_server and self.manifests is not None:
            message = "pods come from --manifests or from the API server, not from both."
            raise ContradictionError(message)
        if self.runs_pods_of_server and self.beside_kubelet:
            message = "--beside-kubelet: the kubelet runs the pods of this node, and has registered it."
            raise ContradictionError(message)
        if self.register:
            self.describe()
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
    def is_machine(self) -> bool:
        """Whether the node has the name of this machine."""
        return self.node_name == _this_machine(None)

    @property
    def runs_pods_of_server(self) -> bool:
        """Whether the node runs the pods that the API server has bound to it."""
        return self.from_server or self.register

    def describe(self) -> "NodeDescription":
        """Return what the Node of this node says.

        Raises ContradictionError if an option has not the form that it needs.
        """
        from devicecore_tools.node.cluster.words.nodes import NodeDescription

        capacity = {"cpu": _quantity("--cpu", self.cpu), "memory": _quantity("--memory", self.memory)}
        taints = [*map(_taint, self.taints), *([dict(TAINT)] if self.is_tainted else [])]
        return NodeDescription(
            self.node_name,
            {**capacity, "pods": str(self.max_pods)},
            labels=dict(map(_label, self.labels)),
            taints=tuple(taints),
        )

    @property
    def deletes_slices(self) -> bool:
        """Whether ResourceSlices of this node are deleted. A kubelet that also writes the Node does that itself."""
        return self.has_server and not self.beside_kubelet
