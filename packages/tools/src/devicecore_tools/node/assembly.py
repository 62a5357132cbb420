"""Creates the adapters of `devicecore kubelet` from its options, and starts them.

Law: everything that was started is stopped in reverse order, even if a later start fails.
"""

import fcntl
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from devicecore.adapters.file import CHECKPOINT_NAME, FileStore, JsonFileSink
from devicecore.adapters.grpc_unix import GrpcUnixTransport
from devicecore.adapters.pod_resources import PodResourcesServer
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.inventory import Phase
from devicecore.domain.text import counted
from devicecore.domain.topology import Topology
from devicecore.manager import DeviceManager
from devicecore.system.directories import check_directory
from devicecore.system.files import DurableFile
from devicecore_tools.node.claims import DraParts, NodeClaims
from devicecore_tools.node.engine import NodeEngine
from devicecore_tools.node.feed import ManifestFeed, Outside, PodFeed
from devicecore_tools.node.settings import NodeSettings
from devicecore_tools.node.status_log import LoggedSink
from devicecore_tools.numa import CPU_FILE, MACHINE_FILE, MEMORY_FILE, NodeManagers, described_machine

if TYPE_CHECKING:
    from devicecore.adapters.prometheus import PrometheusMetrics
    from devicecore.ports.dra_observer import DraObserver
    from devicecore.ports.store import CheckpointStore

NODE_NAME = "node.json"
"""The file in `--root` with the node's status, if there is no API server."""

PODS_NAME = "pods_state"
"""The file in `--root` that tells the next run which pods were running.

(A node record contains the list `pods.json` instead.)
"""

CLAIMS_NAME = "dra_manager_state"
"""The kubelet's claim checkpoint, in its root directory."""

CONFIGURATION = "config.yaml"
"""The kubelet's configuration, where kubeadm writes it."""

_OURS = b"# written by devicecore kubelet\n"

_CHANGES = fcntl.DN_MULTISHOT | fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_MODIFY | fcntl.DN_RENAME | fcntl.DN_ATTRIB

_log = logging.getLogger(__name__)


def sink(
    options: NodeSettings, outside: Outside | None, wake: Callable[[], None], last_to_first: ExitStack
) -> LoggedSink:
    """Return a sink that publishes the node's status through `outside`, on an API server, or in a file.

    Raises SetUpError if the kubeconfig cannot be used.
    """
    server, node = options.server, outside.sink if outside else None
    if node is not None:
        return LoggedSink(node, wake, lambda: node.problem)
    if server is None:
        return LoggedSink(JsonFileSink(options.root / NODE_NAME), wake)
    from devicecore.adapters.kube_api import KubeApiSink

    published = KubeApiSink(
        options.name,
        server.access,
        strategy=server.strategy,
        keep_removed=server.keep_removed,
        beside_kubelet=server.beside_kubelet,
        pace=server.pace,
    )
    last_to_first.enter_context(published)
    # anything an earlier run left on the Node is removed, even if no plugin ever registers
    published.publish(NodeStatus())
    return LoggedSink(published, wake, lambda: published.problem, published.wait_until_published)


def start(
    options: NodeSettings,
    sink: LoggedSink,
    outside: Outside | None,
    wake: Callable[[], None],
    last_to_first: ExitStack,
    problem: Callable[[], str] = str,
) -> NodeEngine:
    """Start the manager, then the pod-resources API, which lists the manager's allocations.

    Pods come from `outside` if it has a source of pods, otherwise from manifests. `problem` returns why the process is
    not healthy, or an empty string. Raises SetUpError and StoreError.
    """
    root, metrics = options.root, serve_metrics(options.metrics_port, last_to_first, problem=problem)
    check_directory(root, allow_shared=options.allow_shared_directory)
    reporter = outside.pods if outside else None
    pods: PodFeed | None = reporter
    if options.manifests is not None:
        pods = ManifestFeed(options.manifests, root / PODS_NAME)

    def make_dra(observer: "DraObserver") -> DraParts:
        from devicecore_tools.node import dra

        return dra.make(options, pods, metrics, observer)

    claims = NodeClaims(make_dra, wake)
    managers = _managers(options) if pods is not None else None
    topology = options.topology if managers is None else managers.device_topology
    manager = _manager(options, sink, pods, metrics, claims, topology)
    observe = outside.publish if outside else None
    engine = NodeEngine(manager, pods, claims, wake, reporter=reporter, observe=observe, managers=managers)
    last_to_first.callback(engine.stop)
    engine.start()
    if outside is not None:
        outside.start()
    if (root / CLAIMS_NAME).exists() or options.deletes_slices:
        claims.start()
    server = PodResourcesServer(
        root / "pod-resources" / "kubelet.sock",
        engine.snapshot,
        sweep=manager.update_allocated_devices,
        observe=metrics.pod_resources_request if metrics else lambda _method, _version, _failed: None,
        allow_shared_directory=options.allow_shared_directory,
    )
    server.start()
    last_to_first.callback(server.stop)
    _log.info("started in %s, with %s from an earlier run", root, counted(manager.restored.allocations, "allocation"))
    for name, resource in sorted(manager.state.inventory.resources.items()):
        if resource.phase is Phase.AWAITED:
            _log.info("%s: waiting for its plugin, which was registered before the restart", name)
    return engine


def serve_metrics(
    port: int | None, last_to_first: ExitStack, host: str = "127.0.0.1", *, problem: Callable[[], str] = str
) -> "PrometheusMetrics | None":
    """Serve metrics and `/healthz` on a port.

    Without a port, return None, so the metrics library need not be installed.
    """
    if port is None:
        return None
    from devicecore.adapters.prometheus import PrometheusMetrics

    metrics = PrometheusMetrics()
    server = metrics.serve(port, host, problem)
    last_to_first.callback(server.stop)
    _log.info("metrics at %s", server.url)
    return metrics


def _manager(
    options: NodeSettings,
    sink: LoggedSink,
    pods: PodFeed | None,
    metrics: "PrometheusMetrics | None",
    claims: NodeClaims,
    topology: Topology,
) -> DeviceManager:
    """Create the device manager, and connect it to the metrics."""
    plugins = options.root / "device-plugins"
    transport = GrpcUnixTransport(
        plugins,
        plugins_registry=options.root / "plugins_registry",
        allow_shared_directory=options.allow_shared_directory,
        handlers=[claims.handler],
    )
    store: CheckpointStore = FileStore.in_directory(plugins)
    if metrics is not None:
        store = metrics.measured(store, CHECKPOINT_NAME)
    manager = DeviceManager(
        transport, store, sink, pods=pods, metrics=metrics, topology=topology, policy=options.policy
    )
    if metrics is not None:
        metrics.watch(
            state=lambda: manager.state, plugins=lambda: transport.plugin_sockets, sink_problem=lambda: sink.problem
        )
    return manager


def _managers(options: NodeSettings) -> NodeManagers | None:
    """Create the CPU and memory managers, and write their settings to the root directory for `doctor` and `fits`.

    Raises NumaError: the distribution is missing, or a kubelet would not start with these settings.
    """
    if (chosen := options.managers) is None:
        return None
    root = options.root
    stores = FileStore(root / CPU_FILE), FileStore(root / MEMORY_FILE)
    managers = NodeManagers(chosen.configuration, chosen.machine, *stores)
    config = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", **chosen.configuration}
    file = root / CONFIGURATION
    if not file.exists() or file.read_bytes().startswith(_OURS):  # a kubelet's own file is never overwritten
        DurableFile(file, 0o644).replace(_OURS + json.dumps(config, indent=1).encode() + b"\n")
    if chosen.machine is not None:
        DurableFile(root / MACHINE_FILE, 0o644).replace(json.dumps(described_machine(chosen.machine)).encode())
    return managers


@contextmanager
def watched(directory: Path, changed: signal.Signals) -> Iterator[None]:
    """Have the kernel send the signal `changed` when something in `directory` changes.

    On file systems that do not support this, changes are noticed at the next check.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, changed)
            fcntl.fcntl(descriptor, fcntl.F_NOTIFY, _CHANGES)
        yield
    finally:
        os.close(descriptor)
