"""The settings that a user has chosen for a node.

Law: a program can create the settings just as the command does, because no setting refers to a command's options.
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
"""The possible effects of a Node's taint on pods that do not tolerate it."""

TAINT = {"key": "devicecore.io/virtual", "value": "true", "effect": "NoSchedule"}
"""The taint of a registered node. Without this taint, an ordinary pod that is bound to the node would appear to run."""


def taint(key: str, value: str, effect: str) -> dict[str, str]:
    """Return a taint as in a Node object. The value may be missing."""
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def all_taints(own: Iterable[Mapping[str, str]], *, is_tainted: bool) -> tuple[Mapping[str, str], ...]:
    """Return the taints of a Node: its own taints and, if `is_tainted`, `TAINT`.

    An API server refuses two taints with the same key and effect, so only the last of such taints is kept, and the
    Node's own taint replaces `TAINT`.
    """
    taints = (*([TAINT] if is_tainted else ()), *own)
    return tuple({(one["key"], one["effect"]): dict(one) for one in taints}.values())


def this_machine() -> str:
    """Return the default name of this machine's Node."""
    return socket.gethostname().lower()


@frozen(kw_only=True)
class ServerSettings:
    """How a node uses an API server.

    Attributes:
        access: where the server and the credentials are.
        strategy: how the Node is changed.
        keep_removed: whether a resource without a plugin stays on the Node with a count of 0.
        beside_kubelet: whether a kubelet also runs here, which writes the Node, runs its pods and deletes its
            ResourceSlices.
        pace: how often the Node is checked and written.
    """

    access: "Access"
    strategy: "PatchStrategy"
    keep_removed: bool
    beside_kubelet: bool
    pace: "Pace"


@frozen(kw_only=True)
class NewNode:
    """The Node object to create.

    Attributes:
        capacity: the Node's capacity, not including devices, such as `cpu`, `memory` and `pods`, as quantities.
        allocatable: the part of the capacity that pods can use, for resources of which they cannot use all.
        labels: the Node's labels.
        taints: the Node's taints.
        address: the Node's address, or None for this machine's address.
        adopts: whether to take over a Node that someone else created.
    """

    capacity: Mapping[str, str]
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    address: str | None
    adopts: bool
    allocatable: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class ClusterSettings:
    """What a node gets from an API server and reports there, in addition to the counts of its devices.

    Attributes:
        access: where the server and the credentials are.
        runs_pods: whether the node runs the pods that the API server has bound to it.
        registered: the Node to create, or None.
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
        machine: a description of the machine, or None for this machine.
    """

    configuration: Mapping[str, object]
    machine: object


@frozen(kw_only=True)
class NodeSettings:
    """The settings that a user has chosen for a node.

    Attributes:
        name: the name of the Node object.
        root: the directory of the sockets and the checkpoint.
        manifests: a directory of pods and ResourceClaims, or None.
        topology: the machine's NUMA nodes and the policy for them.
        policy: chooses a container's devices from the available ones; None means the kubelet's order.
        allow_shared_directory: whether other users may write to the root or a directory in it.
        metrics_port: the port on which metrics are served, or None.
        server: how the node uses an API server, or None to publish its status in a file.
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
        """Whether the node has this machine's name."""
        return self.name == this_machine()

    @property
    def deletes_slices(self) -> bool:
        """Whether this program deletes the node's ResourceSlices.

        If a kubelet writes the Node, that kubelet deletes the slices.
        """
        return self.server is not None and not self.server.beside_kubelet
