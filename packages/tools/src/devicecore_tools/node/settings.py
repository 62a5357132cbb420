"""What the user of a node has chosen.

Law: a program can make the settings as the command does; they name no option.
"""

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import field, frozen

from devicecore.domain.topology import Topology
from devicecore.ports.policy import AllocationPolicy

if TYPE_CHECKING:
    from devicecore.adapters.kube_api import Access, Pace, PatchStrategy

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
"""What a taint of a Node may do to pods that do not tolerate it."""

TAINT = {"key": "devicecore.io/virtual", "value": "true", "effect": "NoSchedule"}
"""The taint of a registered node, because an ordinary pod that is bound to it would seem to run."""


def taint(key: str, value: str, effect: str) -> dict[str, str]:
    """Return a taint as a Node has it. It needs no value."""
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def all_taints(own: Iterable[Mapping[str, str]], *, is_tainted: bool) -> tuple[Mapping[str, str], ...]:
    """Return the taints of a Node. Two with the same key and effect are an error, as at an API server.

    If `is_tainted`, they are its own and `TAINT`. Of two of its own, the last counts.
    """
    taints = (*([TAINT] if is_tainted else ()), *own)
    return tuple({(one["key"], one["effect"]): dict(one) for one in taints}.values())


def this_machine() -> str:
    """Return the name that the Node of this machine has by default."""
    return socket.gethostname().lower()


@frozen(kw_only=True)
class ServerSettings:
    """What a node does on an API server.

    Attributes:
        access: where the server and the credentials are.
        strategy: how the Node is changed.
        keep_removed: whether a resource without a plugin stays on the Node with 0.
        beside_kubelet: whether a kubelet also writes the Node, runs its pods and deletes its ResourceSlices.
        pace: how often the Node is compared and written.
    """

    access: "Access"
    strategy: "PatchStrategy"
    keep_removed: bool
    beside_kubelet: bool
    pace: "Pace"


@frozen(kw_only=True)
class NewNode:
    """What the Node says that is made.

    Attributes:
        capacity: what it has besides devices, such as `cpu`, `memory` and `pods`, as quantities.
        allocatable: what pods can have of it, where that is less.
        labels: its labels.
        taints: its taints.
        address: its address; None for that of this machine.
        adopts: whether a Node that somebody else has made is taken over.
    """

    capacity: Mapping[str, str]
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    address: str | None
    adopts: bool
    allocatable: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class ClusterSettings:
    """What a node has from an API server, and reports there, besides the counts of its devices.

    Attributes:
        access: where the server and the credentials are.
        runs_pods: whether the node runs the pods that the API server has bound to it.
        registered: the Node that is made; None to make none.
        topology_objects: whether a NodeResourceTopology is published.
    """

    access: "Access"
    runs_pods: bool
    registered: NewNode | None
    topology_objects: bool


@frozen(kw_only=True)
class ManagerSettings:
    """The CPU manager and the memory manager of a node.

    Attributes:
        configuration: the fields of a kubelet's configuration.
        machine: the machine as it is described; None for this one.
    """

    configuration: Mapping[str, object]
    machine: object


@frozen(kw_only=True)
class NodeSettings:
    """What the user of a node has chosen.

    Attributes:
        name: the name of the Node object.
        root: where sockets and checkpoint are.
        manifests: a directory of pods and ResourceClaims, or None if there is none.
        topology: the machine's NUMA nodes and the policy for them.
        policy: which of the possible devices a container gets; None for the kubelet's order.
        allow_shared_directory: whether other users may write to the root or a directory in it.
        metrics_port: where to serve metrics; None for nowhere.
        server: what the node does on an API server; None to publish its status in a file.
        managers: the CPU manager and the memory manager, or None if neither pins anything.
    """

    name: str
    root: Path
    manifests: Path | None
    topology: Topology
    policy: AllocationPolicy | None
    allow_shared_directory: bool
    metrics_port: int | None
    server: ServerSettings | None
    managers: ManagerSettings | None = None

    @property
    def is_machine(self) -> bool:
        """Whether the node has the name of this machine."""
        return self.name == this_machine()

    @property
    def deletes_slices(self) -> bool:
        """Whether ResourceSlices of this node are deleted. A kubelet that also writes the Node does that itself."""
        return self.server is not None and not self.server.beside_kubelet
