"""The command `devicecore kubelet`, and the loop of its main thread.

Law: SIGTERM or SIGINT ends the process within `END_WITHIN` seconds, even if a plugin hangs.
"""

import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
from attrs import define, field, frozen

from devicecore_tools.command.distributions import fleet_entry_point
from devicecore_tools.command.kubelet import screen as screens
from devicecore_tools.command.kubelet.options import cluster_settings, joins_cluster, kubelet_options, node_settings
from devicecore_tools.command.output import complain, console_on, print_json
from devicecore_tools.command.service import Service
from devicecore_tools.command.signals import Signals
from devicecore_tools.node.settings import ClusterSettings, NodeSettings
from devicecore_tools.node.status_log import LoggedSink

if TYPE_CHECKING:
    from rich.text import Text

    from devicecore_tools.node.engine import NodeEngine
    from devicecore_tools.node.feed import Outside
    from devicecore_tools.node.state import KubeletState, PodTexts

STATE_NAME = "state.json"
"""The file in `--root` that contains the state that the live view shows."""

END_WITHIN = 5.0
"""The process ends at most this many seconds after SIGTERM or SIGINT, even if something hangs."""

IN_CLUSTER = "devicecore.kubelet"
"""The group of the entry point `cluster`, which makes a node part of a cluster, as `Outside` describes."""

_INTERVAL = 1.0  # polling interval in seconds for manifests, if no notification comes
_QUIET = 3.0  # after how many seconds without a change the state is settled: plugins look for the kubelet once a second
_ATTEMPTS = 1.0  # for how many seconds after --wait the attempts in progress may continue
_PAUSE = 0.05  # seconds to wait for more changes before acting on a change
# After each round of work, which takes long with 10,000 pods, the main thread rests for this many times as long.
_REST_FACTOR = 10
_MAX_REST = 0.5  # the maximum duration of a rest in seconds, because new manifests may be waiting
_WIDTH = 100  # the width of the view without a terminal, in columns

Begin = Callable[[NodeSettings, ClusterSettings, Callable[[], None], ExitStack], "Outside"]
"""The type of the function that the entry point `cluster` names."""

MANIFEST_CHANGED = signal.SIGIO
"""The signal that the kernel sends when something in the directory of manifests changes."""

_log = logging.getLogger(__name__)


@frozen
class _Options:
    """What to show, and when the command ends. Times are in seconds."""

    once: bool
    wait: float
    as_json: bool
    status_period: float


@click.command(short_help="Run a device manager in place of a kubelet.")
@kubelet_options
def kubelet(*, once: bool, wait: float, as_json: bool, status_period: float, **node: Any) -> int:  # noqa: ANN401 - the options of node_settings
    """Run the device manager in place of a kubelet.

    Plugins and drivers register, pods get devices, and a checkpoint is kept.

    \b
    $ devicecore kubelet --root DIR --manifests DIR

    Plugins find the kubelet's socket in DIR/device-plugins, or put their own sockets into DIR/plugins_registry. Pods
    are given as manifests: a new pod is admitted, a changed pod is replaced, and a deleted pod frees its devices.
    DIR/pod-resources/kubelet.sock and DIR/state.json show which pod holds which device.

    DRA drivers put their sockets into DIR/plugins_registry. A pod that names ResourceClaims (spec.resourceClaims) runs
    once the drivers have prepared them. Claims are also given as manifests, which must include status.allocation. A
    claim that is in no manifest is read from the API server. DIR/dra_manager_state contains the prepared claims, as in
    a kubelet.

    On a terminal, a live view shows what state.json contains. Elsewhere, and with TERM=dumb, the log goes to standard
    error in plain lines. SIGTERM or Ctrl-C stops the command within 5 seconds. After a restart, the command knows
    everything that it knew before.

    With --once, the exit status is 1 if a pod does not run, a manifest cannot be used, the status cannot be published,
    or a plugin did not register. Plugins look for a kubelet about once a second, so the state counts as settled once
    nothing has changed for three seconds. With --wait 0, the command does not wait for plugins.
    """
    begin = None
    if joins_cluster(node):  # before anything else, because this imports all other modules
        begin = fleet_entry_point(IN_CLUSTER, "cluster", "a node of a cluster")
    settings, cluster = node_settings(**node), cluster_settings(**node)
    return _run(settings, cluster, begin, _Options(once, wait, as_json, status_period))


def _run(settings: NodeSettings, chosen: ClusterSettings | None, begin: "Begin | None", options: _Options) -> int:
    from devicecore_tools.node import assembly
    from devicecore_tools.node.state import PodTexts

    live = not options.once and not options.as_json and screens.is_live_terminal()
    kind = screens.LiveScreen if live else screens.JsonLines if options.as_json and not options.once else screens.Screen
    # Signals are blocked first, because every thread has to inherit the signal mask.
    with Signals(MANIFEST_CHANGED, *kind.signals, grace=END_WITHIN) as signals, ExitStack() as last_to_first:
        log_lines = last_to_first.enter_context(screens.logged(live=live))
        service = Service()
        cluster = None
        if begin is not None and chosen is not None:
            cluster = begin(settings, chosen, signals.wake, last_to_first)
        sink = assembly.sink(settings, cluster, signals.wake, last_to_first)
        engine = assembly.start(settings, sink, cluster, signals.wake, last_to_first, service.problem)
        if settings.manifests is not None:
            last_to_first.enter_context(assembly.watched(settings.manifests, MANIFEST_CHANGED))
            if not any(one.is_file() for one in settings.manifests.iterdir()):
                _log.info("%s contains no files yet; its subdirectories are not read", settings.manifests)
        elif cluster is None:
            _log.warning("no pods are read: name a directory of manifests with --manifests")
        shown = kind()
        last_to_first.callback(shown.close)
        file = screens.StateFile(settings.root / STATE_NAME)
        loop = _Loop(signals, engine, sink, shown, settings.name, options, log_lines, file, PodTexts(), service)
        service.ready()
        loop.run()
        service.stopping()
        if options.once and not signals.ended_by:
            sink.wait(options.wait)
        if signals.ended_by:
            _log.info("%s", signals.ended_by)
        if shown.is_broken:
            raise BrokenPipeError
        return _print_result(loop.state(), settings.name, as_json=options.as_json) if options.once else 0


def _rest(worked: float) -> float:
    """Return how many seconds the main thread rests after work, so that other threads can run."""
    return min(_REST_FACTOR * worked, _MAX_REST)


def _print_result(state: "KubeletState", name: str, *, as_json: bool) -> int:
    """Print the state at the end of a run with `--once`. Return the exit status."""
    if as_json:
        print_json(state.to_json(name))
    else:
        from devicecore_tools.command.kubelet.view import render

        console_on(sys.stdout).print(render(state, name, (), _WIDTH, None), soft_wrap=True)
    if not state.is_settled:
        complain("devicecore kubelet", f"the state has not settled: still waiting for {'; '.join(state.waits_for)}")
    if state.sink_problem:
        complain("devicecore kubelet", f"the node's status is not published: {state.sink_problem}")
    return 0 if state.is_settled and state.is_good else 1


@define(eq=False)
class _Loop:
    """The main thread's loop, until a signal ends the process."""

    signals: Signals
    engine: "NodeEngine"
    sink: LoggedSink
    screen: screens.Screen
    name: str
    options: _Options
    log_lines: Sequence[str]
    file: screens.StateFile
    pod_texts: "PodTexts"
    service: Service
    _seen: object = None
    _shown: object = None
    _next_tick: float = field(factory=time.monotonic)
    _next_poll: float = field(factory=time.monotonic)
    _next_show: float = field(factory=time.monotonic)
    _earliest_poll: float = 0.0
    _pause: float = _PAUSE

    def run(self) -> None:
        """Run until a signal arrives or, with --once, until the state is settled or the --wait seconds have passed."""
        began = quiet_since = time.monotonic()
        patience = self.options.wait if self.options.once else math.inf
        while not self.signals.ended_by:
            self._work()
            report = self.service.alive()
            now = time.monotonic()
            if self._version != self._seen:
                self._seen, quiet_since = self._version, now
            end = began + patience
            if self.options.once and self.state().is_settled:
                end = min(end, quiet_since + _QUIET)
            is_over = now >= end and (now >= end + _ATTEMPTS or not self.engine.is_busy)
            self._show_if_due(at_once=is_over)
            if is_over:
                return
            until = end if now < end else now + _PAUSE
            self._wait(min(until, self._next_poll, self.engine.next_poll, self._next_tick, report))

    def state(self) -> "KubeletState":
        """Return the current state."""
        return self.engine.state(sink_problem=self.sink.problem)

    @property
    def _version(self) -> object:
        return self.engine.version, self.sink.problem

    def _work(self) -> None:
        now = time.monotonic()
        if now >= self._next_tick:
            self.engine.tick()
            self._next_tick = now + self.options.status_period
        if now >= min(self._next_poll, self.engine.next_poll):
            is_complete = self.engine.poll()
            ended = time.monotonic()
            self._earliest_poll = ended + _rest(ended - now) if is_complete else ended
            self._next_poll = max(self._earliest_poll, ended + _INTERVAL) if is_complete else ended
        self.engine.advance()
        self._pause = max(_PAUSE, _rest(time.monotonic() - now))

    def _show_if_due(self, *, at_once: bool) -> None:
        wanted = self._version, tuple(self.log_lines)
        began = time.monotonic()
        if wanted == self._shown or (began < self._next_show and not at_once):
            return
        state = self.state()
        name, log_lines = self.name, tuple(self.log_lines)

        def draw(width: int, height: int) -> "Text":
            from devicecore_tools.command.kubelet.view import render

            return render(state, name, log_lines, width, height)

        document = state.to_text(self.name, self.pod_texts)
        self.file.put(document)
        self.screen.show(screens.Picture(document, draw))
        ended = time.monotonic()
        self._shown, self._next_show = wanted, ended + _REST_FACTOR * (ended - began)

    def _wait(self, until: float) -> None:
        """Wait for a change, and then for a short time, because more changes often follow."""
        now = time.monotonic()
        if (self._version, tuple(self.log_lines)) != self._shown:
            until = min(until, self._next_show)
        arrived = self.signals.wait(max(0.0, until - now))
        if MANIFEST_CHANGED in arrived:
            self._next_poll = min(self._next_poll, max(time.monotonic() + _PAUSE, self._earliest_poll))
        if self.screen.handle(arrived):
            self._shown, self._next_show = None, 0.0
        if time.monotonic() < until:  # a signal or another thread has ended the wait
            self.signals.wait_for_end(self._pause)
