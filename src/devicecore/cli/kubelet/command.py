"""The command `devicecore kubelet`: its options, and the loop of its main thread.

Law: SIGTERM or SIGINT ends the process within `END_WITHIN` seconds, even if a plugin hangs.
"""

import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import define, field

from devicecore.cli.options import numbers
from devicecore.cli.output import complain, console_on, print_json
from devicecore.cli.signals import Signals

if TYPE_CHECKING:
    from devicecore.cli.kubelet.pods import PodStarter
    from devicecore.cli.kubelet.screen import Screen, StateFile
    from devicecore.cli.kubelet.state import KubeletState, PodTexts
    from devicecore.cli.kubelet.status_log import LoggedSink

STATE_NAME = "state.json"
"""The file in `--root` that always has what the live view shows."""

END_WITHIN = 5.0
"""Seconds after SIGTERM or SIGINT until the process ends, even if something hangs."""

_INTERVAL = 1.0  # seconds between two looks at the manifests if nothing says that they have changed
_QUIET = 3.0  # seconds without a change after which things are settled: plugins look for the kubelet once a second
_ATTEMPTS = 1.0  # seconds beyond the time of --wait for attempts in progress
_PAUSE = 0.05  # seconds to wait for more changes before one is acted on
_SHARE = 10  # work with 10,000 pods takes the main thread long: after it, it rests so many times as long ...
_MAX_REST = 0.5  # ... but at most so many seconds, because new manifests wait meanwhile
_WIDTH = 100  # columns of the view where there is no terminal

MANIFEST_CHANGED = signal.SIGIO
"""What the kernel sends when something in the directory of manifests changes."""

_log = logging.getLogger(__name__)

_directory = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(short_help="Run a device manager in the place of a kubelet.")
@click.option(
    "--root", required=True, type=_directory, help="Where sockets and checkpoint are, as in /var/lib/kubelet."
)
@click.option(
    "--manifests",
    type=_directory,
    help="A directory of pods and ResourceClaims, YAML or JSON, watched as for static pods.",
)
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
    help="Even if other users may write to DIR or a directory in it, and so pass for a plugin.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve metrics there, for Prometheus.")
@click.option("--node-name", help="The Node object; by default this machine's name.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Publish to the API server of this kubeconfig, and read ResourceClaims there.",
)
@click.option("--context", metavar="NAME", help="With --kubeconfig: the context, if not the current one.")
@click.option("--in-cluster", is_flag=True, help="Publish to the API server of the cluster we run in.")
@click.option(
    "--beside-kubelet",
    is_flag=True,
    help="A kubelet also writes this Node: capacity and allocatable both are the healthy devices.",
)
@click.option(
    "--patch",
    type=click.Choice(["json-patch", "strategic-merge", "apply"]),
    default="json-patch",
    show_default=True,
    help="How the Node is changed, which decides who owns the values there.",
)
@click.option(
    "--keep-removed/--delete-removed",
    default=True,
    show_default=True,
    help="Whether a resource without a plugin stays on the Node with 0.",
)
@click.option(
    "--resync",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    help="How often to compare the Node, even if the watch shows no change.",
)
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
    context: str | None,
    in_cluster: bool,
    beside_kubelet: bool,
    patch: str,
    keep_removed: bool,
    resync: float,
    status_period: float,
    once: bool,
    wait: float,
    as_json: bool,
) -> int:
    """Run the device manager in a kubelet's place.

    Plugins and drivers register, pods get devices, and a checkpoint is kept.

    \b
    $ devicecore kubelet --root DIR --manifests DIR

    Plugins find the kubelet's socket in DIR/device-plugins, or put their own into DIR/plugins_registry. Pods are the
    manifests: a new one is admitted, a changed one is replaced, and the devices of one that is deleted are free again.
    DIR/pod-resources/kubelet.sock and DIR/state.json say which pod holds which device.

    DRA drivers put their sockets into DIR/plugins_registry. A pod that names ResourceClaims (spec.resourceClaims) runs
    when its drivers have prepared them. Claims are manifests too, with their status.allocation; one that is in no
    manifest is read from the API server. DIR/dra_manager_state has the claims that are prepared, as in a kubelet.

    On a terminal, a live view shows the same. Elsewhere, and with TERM=dumb, the log goes to standard error in plain
    lines. SIGTERM or Ctrl-C ends the command, at the latest after 5 seconds. Started again, it knows everything it
    knew before.

    With --once, the exit status is 1 if a pod does not run, a manifest cannot be used, the status cannot be published,
    or a plugin has not come. Plugins look for a kubelet about once a second, so things count as settled when nothing
    has changed for three seconds. --wait 0 waits for no plugin.
    """
    if kubeconfig is not None and in_cluster:
        message = "--kubeconfig and --in-cluster exclude each other."
        raise click.UsageError(message)
    if context is not None and kubeconfig is None:
        message = "--context needs --kubeconfig."
        raise click.UsageError(message)
    if len(set(numa_nodes)) != len(numa_nodes) or not numa_nodes:
        message = "--numa-nodes: name at least one node, and each node once."
        raise click.UsageError(message)
    from devicecore.cli.kubelet import assembly, screen
    from devicecore.cli.kubelet.state import PodTexts

    name = node_name or socket.gethostname().lower()
    live = not once and not as_json and screen.is_live_terminal()
    kind = screen.LiveScreen if live else screen.JsonLines if as_json and not once else screen.Screen
    # Signals first: every thread has to inherit that they are blocked.
    with Signals(MANIFEST_CHANGED, *kind.signals, grace=END_WITHIN) as signals, ExitStack() as last_to_first:
        events = last_to_first.enter_context(screen.logged(live=live))
        api = assembly.ApiSettings(kubeconfig, in_cluster, context, patch, keep_removed, beside_kubelet, resync)
        sink = assembly.sink(root, name, last_to_first, signals.wake, api)
        metrics = assembly.metrics(metrics_port, last_to_first)
        settings = assembly.KubeletSettings(root, name, manifests, numa_nodes, policy, scope, shared, api)
        starter = assembly.start(settings, sink, metrics, signals.wake, last_to_first)
        if manifests is not None:
            last_to_first.enter_context(assembly.watched(manifests, MANIFEST_CHANGED))
        shown = kind()
        last_to_first.callback(shown.close)
        file, texts = screen.StateFile(root / STATE_NAME), PodTexts()
        loop = _Loop(signals, starter, sink, shown, file, name, events, status_period, texts)
        loop.run(patience=wait if once else None)
        if once and not signals.ended_by:
            sink.wait(wait)
        if signals.ended_by:
            _log.info("%s", signals.ended_by)
        if shown.is_broken:
            raise BrokenPipeError
        return _print_result(loop.state(), name, as_json=as_json) if once else 0


def _rest(worked: float) -> float:
    """The seconds for which the main thread rests after work, so that other threads can run."""
    return min(_SHARE * worked, _MAX_REST)


def _print_result(state: "KubeletState", name: str, *, as_json: bool) -> int:
    """Print what `--once` has found; the exit status."""
    if as_json:
        print_json(state.to_json(name))
    else:
        from devicecore.cli.kubelet.view import render

        console_on(sys.stdout).print(render(state, name, (), _WIDTH, None), soft_wrap=True)
    if not state.is_settled:
        complain("devicecore kubelet", f"not settled, still waiting for {'; '.join(state.waits_for)}")
    if state.sink_problem:
        complain("devicecore kubelet", f"the node's status is not published: {state.sink_problem}")
    return 0 if state.is_settled and state.is_good else 1


@define(eq=False)
class _Loop:
    """What the main thread does until a signal ends the process."""

    signals: Signals
    starter: "PodStarter"
    sink: "LoggedSink"
    screen: "Screen"
    file: "StateFile"
    name: str
    events: Sequence[str]
    period: float
    pod_texts: "PodTexts"
    _seen: object = None
    _shown: object = None
    _next_tick: float = field(factory=time.monotonic)
    _next_poll: float = field(factory=time.monotonic)
    _next_show: float = field(factory=time.monotonic)
    _earliest_poll: float = 0.0
    _pause: float = _PAUSE

    def run(self, patience: float | None) -> None:
        """Go on until a signal ends it or, with `patience`, things are settled or so many seconds are over."""
        began = quiet_since = time.monotonic()
        while not self.signals.ended_by:
            self._work()
            now = time.monotonic()
            if self._version != self._seen:
                self._seen, quiet_since = self._version, now
            end = began + patience if patience is not None else float("inf")
            if patience is not None and self.state().is_settled:
                end = min(end, quiet_since + _QUIET)
            is_over = now >= end and (now >= end + _ATTEMPTS or not self.starter.is_busy)
            self._show_if_due(at_once=is_over)
            if is_over:
                return
            self._wait(min(end if now < end else now + _PAUSE, self._next_poll, self._next_tick))

    def state(self) -> "KubeletState":
        """The state now."""
        return self.starter.state(sink_problem=self.sink.problem)

    @property
    def _version(self) -> object:
        return self.starter.version, self.sink.problem

    def _work(self) -> None:
        now = time.monotonic()
        if now >= self._next_tick:
            self.starter.tick()
            self._next_tick = now + self.period
        if now >= self._next_poll:
            is_complete = self.starter.poll()
            ended = time.monotonic()
            self._earliest_poll = ended + _rest(ended - now) if is_complete else ended
            self._next_poll = max(self._earliest_poll, ended + _INTERVAL) if is_complete else ended
        self.starter.advance()
        self._pause = max(_PAUSE, _rest(time.monotonic() - now))

    def _show_if_due(self, *, at_once: bool) -> None:
        wanted = self._version, tuple(self.events)
        began = time.monotonic()
        if wanted == self._shown or (began < self._next_show and not at_once):
            return
        state = self.state()
        from devicecore.cli.kubelet.screen import Picture

        document = state.to_text(self.name, self.pod_texts)
        self.file.put(document)
        self.screen.show(Picture(state, self.name, document, tuple(self.events)))
        ended = time.monotonic()
        self._shown, self._next_show = wanted, ended + _SHARE * (ended - began)

    def _wait(self, until: float) -> None:
        """Wait for a change, and then a moment for others that come with it."""
        now = time.monotonic()
        if (self._version, tuple(self.events)) != self._shown:
            until = min(until, self._next_show)
        arrived = self.signals.wait(max(0.0, until - now))
        if MANIFEST_CHANGED in arrived:
            self._next_poll = min(self._next_poll, max(time.monotonic() + _PAUSE, self._earliest_poll))
        if self.screen.handle(arrived):
            self._shown, self._next_show = None, 0.0
        if time.monotonic() < until:  # something has woken us
            self.signals.wait_for_end(self._pause)
