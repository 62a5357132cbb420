"""`devicecore kubelet`: a stand-in for a kubelet, as a process."""

import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devicecore.cli.output import complain, console_on, print_json
from devicecore.cli.plugin import ENDING, ending_signals_held, numbers

if TYPE_CHECKING:
    from devicecore.adapters.prometheus import PrometheusMetrics
    from devicecore.cli.standin import StandIn, State
    from devicecore.manager import DeviceManager
    from devicecore.ports.sink import NodeStatusSink

STATE_NAME = "state.json"
"""The file in `--root` that always says what the live view shows."""

NODE_NAME = "node.json"
"""The node's status, where there is no API server."""

PODS_NAME = "pods.json"
"""Which pods run, for the next start."""

_INTERVAL = 1.0  # seconds between two turns
_QUIET = 3.0  # seconds without a change after which things are settled: plugins look for the kubelet once a second
_WRITING = 0.05  # seconds for who changes a manifest to finish
_EVENTS = 8
_WIDTH = 100  # columns of the view where there is no terminal
_CHANGED = signal.SIGIO  # sent by the kernel when a manifest changes, and by ourselves when the node's status does
_CHANGES = fcntl.DN_MULTISHOT | fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_MODIFY | fcntl.DN_RENAME | fcntl.DN_ATTRIB

_log = logging.getLogger(__name__)

_directory = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option(
    "--root", required=True, type=_directory, help="Where sockets and checkpoint are, as in /var/lib/kubelet."
)
@click.option("--manifests", type=_directory, help="A directory of pods, YAML or JSON, watched as for static pods.")
@click.option("--numa-nodes", metavar="N,N", default="0", callback=numbers, help="The machine's NUMA nodes.")
@click.option(
    "--topology-manager-policy",
    "policy",
    type=click.Choice(["none", "best-effort", "restricted", "single-numa-node"]),
    default="none",
    show_default=True,
    help="How NUMA nodes are used.",
)
@click.option(
    "--topology-manager-scope",
    "scope",
    type=click.Choice(["container", "pod"]),
    default="container",
    show_default=True,
    help="For each container, or for the pod as a whole.",
)
@click.option(
    "--allow-shared-directory",
    "shared",
    is_flag=True,
    help="Even if others may write into device-plugins, and so pass for a plugin.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve metrics there, for Prometheus.")
@click.option("--node-name", help="The Node object; by default this machine's name.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Publish to the API server of this kubeconfig.")
@click.option("--in-cluster", is_flag=True, help="Publish to the API server of the cluster we run in.")
@click.option(
    "--status-period",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="How often to look whose time is over.",
)
@click.option("--once", is_flag=True, help="Print what there is once things are settled, and exit.")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=15.0,
    show_default=True,
    help="With --once: how long to wait for plugins and pods.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one document with --once, else one line per change.")
def kubelet(
    *,
    root: Path,
    manifests: Path | None,
    numa_nodes: tuple[int, ...],
    policy: str,
    scope: str,
    shared: bool,
    metrics_port: int | None,
    node_name: str | None,
    kubeconfig: Path | None,
    in_cluster: bool,
    status_period: float,
    once: bool,
    wait: float,
    as_json: bool,
) -> int:
    """Stand in for a kubelet: plugins register, pods get devices, a checkpoint is kept.

    $ devicecore kubelet --root DIR --manifests DIR

    Plugins find the kubelet's socket in DIR/device-plugins, or put their own into DIR/plugins_registry. Pods are the
    manifests: one that appears is admitted, one that changes is replaced, one that goes is released. Who holds what is
    told on DIR/pod-resources/kubelet.sock, in DIR/state.json, and here. SIGTERM or SIGINT ends it; started again, it
    has everything.

    With --once, the exit status is 1 if a pod does not run, a manifest cannot be used, or a plugin is still waited for.
    Plugins look for a kubelet about once a second, so things are settled when nothing has changed for three seconds;
    --wait 0 waits for nobody.
    """
    if kubeconfig is not None and in_cluster:
        message = "--kubeconfig and --in-cluster exclude each other."
        raise click.UsageError(message)
    if len(set(numa_nodes)) != len(numa_nodes) or not numa_nodes:
        message = "--numa-nodes: each node once, and at least one."
        raise click.UsageError(message)
    name = node_name or socket.gethostname().lower()
    live = not once and not as_json and sys.stdout.isatty()
    topology = (numa_nodes, policy, scope)
    with _held_signals(), ExitStack() as last_to_first:
        events = last_to_first.enter_context(_logged(live=live))
        sink = _sink(root, name, last_to_first, kubeconfig=kubeconfig, in_cluster=in_cluster)
        metrics = _metrics(metrics_port, last_to_first)
        standin, manager = _assemble(
            root, manifests, sink, last_to_first, topology=topology, metrics=metrics, shared=shared
        )
        screen = last_to_first.enter_context(_screen(name, events, live=live, lines=as_json and not once))
        last_to_first.enter_context(_watched(manifests))

        def show(state: "State") -> None:
            _keep(root / STATE_NAME, state.to_json(name))
            screen(state)

        _run(standin, manager, show=show, events=events, period=status_period, patience=wait if once else None)
        if not once:
            return 0
        state = standin.state()
        if as_json:
            print_json(state.to_json(name))
        else:
            from devicecore.cli.kubelet_view import render

            console_on(sys.stdout, _WIDTH).print(render(state, name, ()))
        if not state.settled:
            complain("devicecore kubelet", f"not settled, still waiting for {'; '.join(state.waits_for)}")
        return 0 if state.settled and standin.all_is_well else 1


def _run(
    standin: "StandIn",
    manager: "DeviceManager",
    *,
    show: Callable[["State"], None],
    events: Iterable[str],
    period: float,
    patience: float | None,
) -> None:
    """Go on until a signal ends it or, with `patience`, things are settled or these seconds are over."""
    began = next_status = time.monotonic()
    seen: State | None = None
    told: tuple[str, ...] = ()
    quiet_since = began
    while True:
        now = time.monotonic()
        is_due = now >= next_status
        if is_due:
            manager.tick()
            next_status = now + period
        has_read_all = standin.turn(anew=is_due)
        state = standin.state()
        is_new = not state.is_like(seen)
        if is_new or tuple(events) != told:
            told = tuple(events)
            show(state)
        if is_new:
            seen, quiet_since = state, now
        pause = _INTERVAL if has_read_all else 0.0
        if patience is not None:
            end = began + patience
            if state.settled:
                end = min(end, quiet_since + _QUIET)
            if now >= end:
                return
            pause = min(pause, end - time.monotonic())
        if _ended_within(pause):
            return


def _ended_within(seconds: float) -> bool:
    """Wait for so long, or until something changes; whether a signal ends it all."""
    came = signal.sigtimedwait({*ENDING, _CHANGED}, max(seconds, 0))
    if came is not None and came.si_signo == _CHANGED:
        came = signal.sigtimedwait(ENDING, _WRITING)
    if came is None:
        return False
    _log.info("ended by %s", signal.Signals(came.si_signo).name)
    return True


def _ring() -> None:
    """Wake who waits for a change."""
    os.kill(os.getpid(), _CHANGED)


# --- what it is made of -----------------------------------------------------------------------------------------------


def _sink(
    root: Path, name: str, last_to_first: ExitStack, *, kubeconfig: Path | None, in_cluster: bool
) -> "NodeStatusSink":
    """Where the node's status goes: to an API server if there is one, else into a file."""
    from devicecore.adapters.file import JsonFileSink
    from devicecore.cli.standin import LoggedSink

    if kubeconfig is None and not in_cluster:
        return LoggedSink(JsonFileSink(root / NODE_NAME), _ring)
    from devicecore.adapters.kube_api import SERVICE_ACCOUNT, KubeApiSink

    if in_cluster and not Path(SERVICE_ACCOUNT).is_dir():  # the sink would go on to look for a kubeconfig
        message = f"--in-cluster: there is no service account in {SERVICE_ACCOUNT}."
        raise click.UsageError(message)
    published = KubeApiSink(name, kubeconfig=kubeconfig)
    last_to_first.callback(published.close)
    return LoggedSink(published, _ring)


def _assemble(
    root: Path,
    manifests: Path | None,
    sink: "NodeStatusSink",
    last_to_first: ExitStack,
    *,
    topology: tuple[tuple[int, ...], str, str],
    metrics: "PrometheusMetrics | None",
    shared: bool,
) -> "tuple[StandIn, DeviceManager]":
    """Put the adapters together, and start them: last of all the one that tells others."""
    from devicecore.adapters.file import FileStore
    from devicecore.adapters.grpc_unix import GrpcUnixTransport
    from devicecore.adapters.manifests import ManifestPods
    from devicecore.adapters.pod_resources import PodResourcesServer
    from devicecore.cli.standin import StandIn
    from devicecore.domain.model import NumaNode
    from devicecore.domain.topology import Policy, Scope, Topology
    from devicecore.manager import DeviceManager

    plugins = root / "device-plugins"
    numa_nodes, policy, scope = topology
    pods = None if manifests is None else ManifestPods(manifests, root / PODS_NAME)
    manager = DeviceManager(
        GrpcUnixTransport(plugins, plugins_registry=root / "plugins_registry", allow_shared_directory=shared),
        FileStore.in_directory(plugins),
        sink,
        pods=pods,
        metrics=metrics,
        topology=Topology(tuple(map(NumaNode, numa_nodes)), Policy(policy), Scope(scope)),
    )
    if metrics is not None:
        metrics.count_devices(lambda: manager.state)
    standin = StandIn(manager, pods)
    last_to_first.callback(standin.stop)
    manager.start()
    last_to_first.callback(manager.stop)
    told = PodResourcesServer(
        root / "pod-resources" / "kubelet.sock",
        standin.snapshot,
        sweep=manager.update_allocated_devices,
        observe=metrics.pod_resources_request if metrics else lambda _method, _version, _failed: None,
        allow_shared_directory=shared,
    )
    told.start()
    last_to_first.callback(told.stop)
    restored = manager.restored
    _log.info("started in %s, with %d allocations from before", root, restored.allocations)
    return standin, manager


def _metrics(port: int | None, last_to_first: ExitStack) -> "PrometheusMetrics | None":
    """What counts, and is served; whoever has no use for it need not have its library."""
    if port is None:
        return None
    from devicecore.adapters.prometheus import PrometheusMetrics

    metrics = PrometheusMetrics()
    server = metrics.serve(port)
    last_to_first.callback(server.close)
    _log.info("metrics at %s", server.url)
    return metrics


# --- signals ----------------------------------------------------------------------------------------------------------


@contextmanager
def _held_signals() -> Iterator[None]:
    """Let every signal wait that the main thread waits for: no other thread may be hit by one."""
    with ending_signals_held():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {_CHANGED})
        try:
            yield
        finally:
            while signal.sigtimedwait({_CHANGED}, 0) is not None:
                pass  # it would end the process now
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _watched(directory: Path | None) -> Iterator[None]:
    """Have the kernel say when something in `directory` changes, so that nobody waits for the next turn.

    Where it cannot, as on some file systems, the turns have to do.
    """
    if directory is None:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_NOTIFY, _CHANGES)
        yield
    finally:
        os.close(descriptor)


# --- what is seen -----------------------------------------------------------------------------------------------------


@contextmanager
def _logged(*, live: bool) -> Iterator[deque[str]]:
    """Have what happens logged: on standard error or, for the live view, as its last lines."""
    events: deque[str] = deque(maxlen=_EVENTS)
    handler = _Events(events) if live else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", None if not live else "%H:%M:%S"))
    logger = logging.getLogger("devicecore")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield events
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Events(logging.Handler):
    """Keeps the last lines."""

    def __init__(self, events: deque[str]) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        self._events.append(self.format(record).partition("\n")[0])


@contextmanager
def _screen(name: str, events: Iterable[str], *, live: bool, lines: bool) -> Iterator[Callable[["State"], None]]:
    """How to show a state: on the terminal, as a line of JSON, or not at all, since the log says it."""
    if lines:

        def print_line(state: "State") -> None:
            sys.stdout.write(json.dumps(state.to_json(name)) + "\n")
            sys.stdout.flush()

        yield print_line
    elif live:
        from rich.live import Live

        from devicecore.cli.kubelet_view import render

        with Live(console=console_on(sys.stdout), auto_refresh=False, screen=True) as view:
            yield lambda state: view.update(render(state, name, tuple(events)), refresh=True)
    else:
        yield lambda _: None


def _keep(path: Path, document: object) -> None:
    """Replace the file as a whole. A disk that is full is a line in the log."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(json.dumps(document, indent=1) + "\n")
        new.replace(path)
    except OSError as error:
        _log.error("cannot write %s: %s", path, error.strerror or error)
