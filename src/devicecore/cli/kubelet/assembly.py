"""The adapters of `devicecore kubelet`: made from its options, and started.

Law: everything that is started is stopped in the reverse order, also if a later start fails.
"""

import fcntl
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import frozen

from devicecore.adapters.file import FileStore, JsonFileSink
from devicecore.adapters.grpc_unix import GrpcUnixTransport
from devicecore.adapters.manifests import ManifestPods
from devicecore.adapters.pod_resources import PodResourcesServer
from devicecore.cli.kubelet.claims import DraParts, NodeClaims
from devicecore.cli.kubelet.pods import PodStarter
from devicecore.cli.kubelet.status_log import LoggedSink
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.inventory import Phase
from devicecore.domain.model import NumaNode
from devicecore.domain.topology import Policy, Scope, Topology
from devicecore.manager import DeviceManager
from devicecore.system.directories import check_directory

if TYPE_CHECKING:
    from devicecore.adapters.prometheus import PrometheusMetrics

NODE_NAME = "node.json"
"""The file in `--root` with the node's status, if there is no API server."""

PODS_NAME = "pods.json"
"""The file in `--root` with which pods run, for the next start."""

CLAIMS_NAME = "dra_manager_state"
"""The kubelet's file of claims, in its root directory."""

_CHANGES = fcntl.DN_MULTISHOT | fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_MODIFY | fcntl.DN_RENAME | fcntl.DN_ATTRIB

_log = logging.getLogger(__name__)


@frozen
class KubeletSettings:
    """What the user has chosen."""

    root: Path
    node_name: str
    manifests: Path | None
    numa_nodes: tuple[int, ...]
    policy: str
    scope: str
    allow_shared_directory: bool
    api: "ApiSettings"

    @property
    def topology(self) -> Topology:
        """The topology manager's settings."""
        return Topology(tuple(map(NumaNode, self.numa_nodes)), Policy(self.policy), Scope(self.scope))


@frozen
class ApiSettings:
    """How the node's status is published on an API server, if it is.

    Attributes:
        kubeconfig: the file that names the server.
        in_cluster: whether the server is that of the cluster in which this process runs.
        context: the context of the kubeconfig; None for the current one.
        patch: the name of a `PatchStrategy`.
        keep_removed: whether a removed resource stays with 0.
        beside_kubelet: whether a kubelet also writes this Node's status.
        resync: seconds after which the Node is compared in any case.
    """

    kubeconfig: Path | None
    in_cluster: bool
    context: str | None
    patch: str
    keep_removed: bool
    beside_kubelet: bool
    resync: float

    @property
    def deletes_slices(self) -> bool:
        """Whether ResourceSlices of this node are deleted. A kubelet that also writes the Node does that itself."""
        return self.has_server and not self.beside_kubelet

    @property
    def has_server(self) -> bool:
        """Whether there is an API server to publish on."""
        return self.kubeconfig is not None or self.in_cluster


def sink(
    root: Path,
    name: str,
    last_to_first: ExitStack,
    wake: Callable[[], None],
    settings: "ApiSettings",
) -> LoggedSink:
    """Publish the node's status to an API server if one is named, else into a file.

    Raises:
        click.UsageError: `in_cluster` is set, and there is no service account.
        SetUpError: the kubeconfig cannot be used.
    """
    if not settings.has_server:
        return LoggedSink(JsonFileSink(root / NODE_NAME), wake)
    from devicecore.adapters.kube_api import SERVICE_ACCOUNT, KubeApiSink, PatchStrategy

    if settings.in_cluster and not Path(SERVICE_ACCOUNT).is_dir():  # the sink would go on to look for a kubeconfig
        message = f"--in-cluster: there is no service account in {SERVICE_ACCOUNT}."
        raise click.UsageError(message)
    published = KubeApiSink(
        name,
        kubeconfig=settings.kubeconfig,
        context=settings.context,
        strategy=PatchStrategy(settings.patch),
        keep_removed=settings.keep_removed,
        beside_kubelet=settings.beside_kubelet,
        resync=settings.resync,
    )
    last_to_first.callback(published.close)
    published.publish(NodeStatus())  # what an earlier run left on the Node is removed, even if no plugin ever comes
    return LoggedSink(published, wake, lambda: published.problem, published.wait_until_published)


def metrics(port: int | None, last_to_first: ExitStack) -> "PrometheusMetrics | None":
    """Serve metrics on `port`; None if there is no port: then the library for it need not be installed."""
    if port is None:
        return None
    from devicecore.adapters.prometheus import PrometheusMetrics

    counted = PrometheusMetrics()
    server = counted.serve(port)
    last_to_first.callback(server.close)
    _log.info("metrics at %s", server.url)
    return counted


def start(
    settings: KubeletSettings,
    sink: LoggedSink,
    metrics: "PrometheusMetrics | None",
    wake: Callable[[], None],
    last_to_first: ExitStack,
) -> PodStarter:
    """Start the manager, and then the pod-resources API, which tells others of it.

    Raises:
        SetUpError: a directory or socket cannot be used.
        StoreError: there is an unusable checkpoint, and it cannot be set aside.
    """
    root = settings.root
    check_directory(root, allow_shared=settings.allow_shared_directory)
    plugins = root / "device-plugins"
    pods = None if settings.manifests is None else ManifestPods(settings.manifests, root / PODS_NAME)
    claims = NodeClaims(lambda: _dra_parts(settings, pods, metrics, claims.notify), wake)
    manager = DeviceManager(
        GrpcUnixTransport(
            plugins,
            plugins_registry=root / "plugins_registry",
            allow_shared_directory=settings.allow_shared_directory,
            handlers=[claims.handler],
        ),
        FileStore.in_directory(plugins),
        sink,
        pods=pods,
        metrics=metrics,
        topology=settings.topology,
    )
    if metrics is not None:
        metrics.count_devices(lambda: manager.state)
        metrics.count_sink_problems(lambda: sink.problem)
    starter = PodStarter(manager, pods, claims, wake)
    manager.start()
    last_to_first.callback(manager.stop)
    last_to_first.callback(claims.stop)
    last_to_first.callback(starter.stop)
    if (root / CLAIMS_NAME).exists() or settings.api.deletes_slices:
        claims.start()
    server = PodResourcesServer(
        root / "pod-resources" / "kubelet.sock",
        starter.snapshot,
        sweep=manager.update_allocated_devices,
        observe=metrics.pod_resources_request if metrics else lambda _method, _version, _failed: None,
        allow_shared_directory=settings.allow_shared_directory,
    )
    server.start()
    last_to_first.callback(server.stop)
    count = manager.restored.allocations
    _log.info("started in %s, with %d allocation%s from before", root, count, "" if count == 1 else "s")
    for name, resource in sorted(manager.state.inventory.resources.items()):
        if resource.phase is Phase.AWAITED:
            _log.info("%s: waiting for its plugin, which was there before", name)
    return starter


def _dra_parts(
    settings: KubeletSettings,
    pods: ManifestPods | None,
    metrics: "PrometheusMetrics | None",
    observer: Callable[[object], None],
) -> DraParts:
    """Make the DRA manager, which reads claims and deletes slices on the API server if there is one."""
    from devicecore.cli.kubelet import dra

    api = settings.api
    with ExitStack() as closing:
        server, slices = None, None
        if api.has_server:
            from devicecore.adapters.kube_api.dra import KubeApiClaims, KubeApiSlices

            server = closing.enter_context(KubeApiClaims(kubeconfig=api.kubeconfig, context=api.context))
            if api.deletes_slices:
                slices = KubeApiSlices(settings.node_name, kubeconfig=api.kubeconfig, context=api.context)
                closing.enter_context(slices)
        made = dra.DraSettings(settings.root / CLAIMS_NAME, pods, server, slices, metrics)
        return dra.make(made, observer, closing.pop_all())


@contextmanager
def watched(directory: Path, changed: signal.Signals) -> Iterator[None]:
    """Have the kernel send `changed` when something in `directory` changes.

    Some file systems cannot do that; there, changes are seen at the next look.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, changed)
            fcntl.fcntl(descriptor, fcntl.F_NOTIFY, _CHANGES)
        yield
    finally:
        os.close(descriptor)
