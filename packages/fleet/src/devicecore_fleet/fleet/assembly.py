"""Creates and starts what the nodes of a fleet share: one watch, one writer, one saver, and a few threads.

Law: everything that was started is stopped in reverse order, even if a later start fails.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from attrs import frozen
from devicecore_tools.node.assembly import serve_metrics
from devicecore_tools.node.lanes import Workers

from devicecore.adapters.kube_api import SERVICE_ACCOUNT, Access
from devicecore.adapters.kube_api.dra import KubeApiClaims
from devicecore.domain.errors import SetUpError
from devicecore.domain.text import foreign_text
from devicecore.runtime.saver_thread import SaverThread
from devicecore_fleet.cluster.addresses import addresses_of
from devicecore_fleet.cluster.free_names import FreeNames
from devicecore_fleet.cluster.object_watch import KubeApiNodes, KubeApiPods
from devicecore_fleet.cluster.pods import NodePods, PodReceiver
from devicecore_fleet.cluster.process import Process
from devicecore_fleet.cluster.refusals import Refusals
from devicecore_fleet.cluster.registration import RegisteredNodes
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words.nodes import LABEL
from devicecore_fleet.cluster.words.patches import Json
from devicecore_fleet.cluster.writer import THREADS, ApiWriter
from devicecore_fleet.fleet.connection import ServerConnection, SharedConnection
from devicecore_fleet.fleet.description import FleetDescription, GroupDescription
from devicecore_fleet.fleet.fleet import Fleet
from devicecore_fleet.fleet.slices import StoredSlices
from devicecore_fleet.fleet.virtual_node import SharedParts

WORKERS = 16
"""The number of threads that read claims, and also of threads that wait for the nodes' disks and sockets.

Idle threads end. Of these threads, a server that does not answer blocks only those that read claims.
"""

NODES_OF_CONNECTION, MAX_CONNECTIONS = 8, 64
"""The initial number of nodes per connection for writing, and the maximum number of such connections.

With these numbers, a server that takes 0.2 s per request has six times the capacity that the Leases of up to 512 nodes
need, which leaves room for more nodes and slower servers.
"""

# how many bytes of the lock file are read, and how many earlier owners of the root are remembered
_MAX_LOCK, _MAX_BEFORE = 4096, 20

_MANY = 20  # from this number of nodes on, two lists cost less than two requests per node, even in a larger cluster

LOCK_NAME = ".lock"
"""The file in the root that a fleet locks.

The file contains the identities of the processes that have locked it. No node can have this name.
"""


@frozen
class RootInUseError(SetUpError):
    """Another fleet stores its files in the directory."""

    root: str
    _text = "another fleet is already running and stores its files in {root}: stop it, or choose another --root"


@frozen
class NoServiceAccountError(SetUpError):
    """This process is not running in a pod, so it has no service account."""

    directory: str
    _text = "expected the service account of a pod in {directory}: outside a pod, use --kubeconfig"


@frozen
class FleetSettings:
    """The settings that the user of a fleet has chosen.

    Attributes:
        kubeconfig: the API server, or None for this pod's service account.
        context: the context to use from the kubeconfig, if not the current one.
        root: where nodes store their files, or None for memory.
        taints: whether Nodes repel pods that do not tolerate the fleet's taint.
        metrics_port: the port on which to serve metrics, or None.
        metrics_host: the address at which to serve metrics.
        node_ip: the address of all nodes, or None for this machine's.
        adopt: whether to take over Nodes and Leases that devicecore did not create.
    """

    kubeconfig: Path | None
    context: str | None = None
    root: Path | None = None
    taints: bool = True
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    node_ip: str | None = None
    adopt: bool = False


def start(
    description: FleetDescription,
    settings: FleetSettings,
    wake: Callable[[], None],
    last_to_first: ExitStack,
    read: Callable[[], FleetDescription] | None = None,
    problem: Callable[[], str] = str,
) -> Fleet:
    """Start a fleet, and then the watch of its pods. `read` reads the fleet's file again on `reload`.

    `problem` returns why the process is not healthy, or an empty string.

    Raises:
        RootInUseError: another fleet stores its files in the root.
        NoServiceAccountError: there is no kubeconfig, and this process is not running in a pod.
        SetUpError: the kubeconfig, or a directory or socket of a node, cannot be used.
        StoreError: an unusable checkpoint cannot be set aside.
    """
    if settings.kubeconfig is None and not Path(SERVICE_ACCOUNT).is_dir():
        # Otherwise, the adapter would use ~/.kube/config, perhaps for a different cluster.
        raise NoServiceAccountError(SERVICE_ACCOUNT)
    process = Process() if settings.root is None else _locked(settings.root, last_to_first)
    access = Access(settings.kubeconfig, settings.context)
    claims = last_to_first.enter_context(KubeApiClaims(access))
    names = {name for name, _ in description.nodes()}
    threads = min(max(THREADS, len(names) // NODES_OF_CONNECTION), MAX_CONNECTIONS)
    writer = ApiWriter(KubeApiRequests(access, MAX_CONNECTIONS), threads=threads, most=MAX_CONNECTIONS)
    metrics = serve_metrics(settings.metrics_port, last_to_first, settings.metrics_host, problem=problem)
    saver = SaverThread()
    last_to_first.callback(saver.end)
    shared = SharedParts(saver, Workers(WORKERS), Workers(WORKERS), monotonic, settings.root, metrics)
    connections: dict[str, ServerConnection] = {}
    gates: dict[str, PodReceiver] = {}
    seen: dict[str, Callable[[Json | None], None]] = {}
    host_ips = addresses_of(settings.node_ip)
    stored = StoredSlices(lambda node: node in connections)
    refused = Refusals(writer).add
    free = FreeNames(names if len(names) >= _MANY else set())
    connection = SharedConnection(
        writer, claims, stored, host_ips, settings.taints, settings.adopt, process, refused, free=free
    )

    def connect(name: str, group: GroupDescription, wake_node: Callable[[], None]) -> ServerConnection:
        connections[name] = made = ServerConnection(name, group, connection, wake_node)
        gates[name], seen[name] = made.gate, made.seen
        return made

    def disconnect(name: str) -> None:
        for known in (connections, gates, seen):
            del known[name]

    fleet = Fleet(description, shared, connect, wake, disconnect=disconnect, read=read)
    if metrics is not None:
        from devicecore_fleet.fleet.metrics import FleetCollector

        metrics.registry.register(FleetCollector(fleet.totals))
    last_to_first.enter_context(writer)
    last_to_first.enter_context(fleet)
    last_to_first.enter_context(KubeApiPods(NodePods(gates), access))
    last_to_first.enter_context(KubeApiNodes(RegisteredNodes(seen), access, label="" if settings.adopt else LABEL))
    return fleet


def _locked(root: Path, last_to_first: ExitStack) -> Process:
    """Keep other fleets out of the root until the process ends or the stack closes.

    Return this process as a `Process` that knows that earlier owners of the root have ended.
    """
    lock = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    last_to_first.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RootInUseError(foreign_text(str(root))) from None
    before = os.pread(lock, _MAX_LOCK, 0).decode("ascii", "replace").split()[-_MAX_BEFORE:]
    process = Process(ended=frozenset(before))
    os.ftruncate(lock, 0)
    os.pwrite(lock, "\n".join((*before, process.identity, "")).encode(), 0)
    return process
