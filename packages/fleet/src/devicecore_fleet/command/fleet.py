"""The command `devicecore fleet`, and the loop of its main thread.

Law: SIGTERM or SIGINT ends the process within `END_WITHIN` seconds, and leaves Nodes and pods on the API server as they
are.
"""

import fnmatch
import json
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import define, field
from devicecore_tools.command.collector import rare_collector
from devicecore_tools.command.groups import Group, meant_command
from devicecore_tools.command.kubelet import screen as screens
from devicecore_tools.command.options import ExistingDirectory, address, json_option
from devicecore_tools.command.output import print_json
from devicecore_tools.command.service import Service
from devicecore_tools.command.signals import Signals

from devicecore.domain.text import foreign_text
from devicecore_fleet.command.control import FleetSocket, Order, send_command
from devicecore_fleet.fleet.views import NodeView, Totals

if TYPE_CHECKING:
    from rich.text import Text

    from devicecore_fleet.fleet.fleet import Fleet

END_WITHIN = 10.0
"""The process ends at most this many seconds after SIGTERM or SIGINT, even if something hangs."""

CONTROL = "DEVICECORE_FLEET"
"""The environment variable that contains the path of the socket for commands."""

_REST_FACTOR = 10  # the view rests for this many times as long as drawing took, which is long with 1,000 nodes
_LEAST_REST = 0.2  # seconds between two frames
_MOST_REST = 5.0

_log = logging.getLogger(__name__)


class _RunsByDefault(Group):
    """A command group in which `fleet FILE` means `fleet run FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with `run` as the command if the first word is not a command."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            meant = meant_command(args[0], [*self.commands])
            if (meant or args[0].isalpha()) and not Path(args[0]).exists():
                hint = f"Did you mean {meant!r}?" if meant else f"The commands are {', '.join(sorted(self.commands))}."
                ctx.fail(f"there is neither a command nor a file {foreign_text(args[0])!r}. {hint}")
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunsByDefault)
def fleet() -> None:
    """Run many virtual nodes in one process, without machines.

    Each node has the real device managers, so pods get devices, are refused, and fail as on a real machine. No
    containers run.

    \b
    $ devicecore fleet shapes dgx-h100 > fleet.yaml
    $ devicecore fleet fleet.yaml --kubeconfig ~/.kube/config
    $ devicecore fleet do --control fleet.sock dgx-003 unhealthy gpu-3
    """


_file = click.Path(path_type=Path)
_existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)


class _FleetFile(click.Path):
    """The type of an argument that names a fleet's file. The name is converted to a `Path`."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return `value` as a path, or fail if there is no such file."""
        from devicecore_fleet.fleet.reading import shapes as known_shapes

        name = os.fspath(value)
        if not Path(name).exists() and name in known_shapes():
            write = f"devicecore fleet shapes {name} > {name}.yaml"
            self.fail(f"expected a file, got {name}, the name of a shape. To write its file, run: {write}", param, ctx)
        return super().convert(value, param, ctx)


@fleet.command()
@click.argument("file", type=_FleetFile(exists=True, dir_okay=False, path_type=Path))
@click.option("--kubeconfig", type=_existing_file, help="The API server, and the credentials of the fleet.")
@click.option("--context", metavar="NAME", help="With --kubeconfig: the context to use, if not the current one.")
@click.option("--in-cluster", is_flag=True, help="Use the API server and the service account of this pod.")
@click.option(
    "--root",
    type=ExistingDirectory(),
    help="Keep checkpoints in this directory. Without --root, a restart allocates devices again.",
)
@click.option(
    "--control",
    type=_file,
    metavar="SOCKET",
    envvar=CONTROL,
    help=f"Accept commands at this socket, by default at ${CONTROL}.",
)
@click.option(
    "--nodes", metavar="PATTERN", default="*", help="Show only nodes whose names match this pattern, such as 'dgx-00*'."
)
@click.option(
    "--taint/--no-taint",
    "taints",
    default=True,
    show_default=True,
    help="Repel ordinary pods, which would only appear to run.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve metrics for Prometheus on this port.")
@click.option(
    "--metrics-host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="The address at which to serve metrics.",
)
@click.option(
    "--node-ip", metavar="ADDRESS", callback=address, help="The address of all nodes; by default this machine's."
)
@click.option("--adopt", is_flag=True, help="Take over existing Nodes that devicecore did not create.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON whenever a node changes.")
def run(
    *,
    file: Path,
    control: Path | None,
    nodes: str,
    as_json: bool,
    in_cluster: bool,
    **settings: Any,  # noqa: ANN401 - the fields of FleetSettings
) -> int:
    """Run the nodes that FILE describes.

    The nodes register with the API server, run the pods that a scheduler sends them, and report what a kubelet would.
    On a terminal, a live view shows nodes as rows and devices as cells. SIGTERM or Ctrl-C stops the fleet: Nodes and
    pods stay, and a restarted fleet continues with them.

    \b
    $ devicecore fleet run fleet.yaml --kubeconfig ~/.kube/config --root /var/lib/fleet
    """
    if in_cluster == (settings["kubeconfig"] is not None):
        raise click.UsageError("name the API server with either --kubeconfig or --in-cluster.")
    return _run(file, control, nodes, settings, as_json=as_json)


@fleet.command()
@click.option(
    "--control",
    type=_file,
    metavar="SOCKET",
    envvar=CONTROL,
    show_envvar=True,
    required=True,
    help="The socket of the running fleet, which was started with the same --control.",
)
@click.argument("nodes")
@click.argument("words", metavar="COMMAND...", nargs=-1)
def do(control: Path, nodes: str, words: tuple[str, ...]) -> int:
    """Cause or end a fault on nodes, or add and remove nodes.

    NODES is a name or a pattern such as 'dgx-*'.

    \b
    unhealthy DEVICE   healthy DEVICE        the health of a device
    plugin-gone RESOURCE   plugin-back RESOURCE
    driver-gone NAME   driver-back NAME
    partition   heal                         separate the node from the API server
    down   up   reboot                       stop and start the node

    The following commands change the set of nodes:

    \b
    add GROUP=N     add nodes of a group: `dgx` is the group of dgx-{number:03}
    remove NODES    stop nodes and delete their Node objects
    reload          read the file again, and run the nodes it describes

    The exit status is 1 if no node could execute the command.

    \b
    $ devicecore fleet do --control fleet.sock 'dgx-*' plugin-gone nvidia.com/gpu
    """
    sentences, obeyed = send_command(control, nodes, words)
    for sentence in sentences:
        click.echo(sentence)
    return 0 if obeyed else 1


@fleet.command()
@click.argument("name", required=False)
@json_option
def shapes(name: str | None, *, as_json: bool) -> int:
    """Print a file to start from, or list the available files.

    \b
    $ devicecore fleet shapes dgx-h100 > fleet.yaml
    """
    from devicecore_fleet.fleet.reading import shapes as known_shapes

    known = known_shapes()
    if name is not None and name not in known:
        raise click.BadParameter(f"expected one of {', '.join(known)}, got {name!r}.", param_hint="NAME")
    if name is not None and as_json:
        raise click.UsageError("--json is only for the list of names: a file is YAML.")
    if as_json:
        print_json(list(known))
    else:
        click.echo(known[name] if name is not None else "\n".join(known), nl=name is None)
    return 0


def _run(file: Path, control: Path | None, nodes: str, settings: Mapping[str, Any], *, as_json: bool) -> int:
    from devicecore_fleet.fleet.reading import read_fleet

    description = read_fleet(file)
    from devicecore_fleet.fleet import assembly  # after `read_fleet`, so that errors in the file come first

    live = not as_json and screens.is_live_terminal()
    kind = screens.LiveScreen if live else screens.JsonLines if as_json else screens.Screen
    # Signals are blocked first, because every thread has to inherit the signal mask.
    reloading = () if _has_terminal() else (signal.SIGHUP,)
    with (
        Signals(*kind.signals, *reloading, grace=END_WITHIN) as signals,
        rare_collector(),
        ExitStack() as last_to_first,
    ):
        log_lines = last_to_first.enter_context(screens.logged(live=live))
        running: list[Fleet] = []
        if control is not None:  # A second fleet must exit before it registers nodes.
            last_to_first.enter_context(FleetSocket(control, _ordered(running)))
        chosen, service = assembly.FleetSettings(**settings), Service()
        started = assembly.start(
            description, chosen, signals.wake, last_to_first, lambda: read_fleet(file), service.problem
        )
        running.append(started)
        last_to_first.callback(running.clear)
        shown = kind()
        last_to_first.callback(shown.close)
        service.ready()
        _Loop(signals, started, shown, nodes, as_json, log_lines, service).run()
        service.stopping()
        _log.info("%s", signals.ended_by)
        if shown.is_broken:
            raise BrokenPipeError
    return 0


def _has_terminal() -> bool:
    """Return whether this process belongs to a terminal, which sends SIGHUP when the terminal is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _ordered(running: "Sequence[Fleet]") -> Order:
    """Return a function that sends commands to the fleet. The fleet must be running when the function is called."""

    def order(nodes: str, words: Sequence[str]) -> tuple[Sequence[str], int]:
        for one in tuple(running):
            answer = one.command(nodes, words)
            return answer.sentences, answer.obeyed
        return ["the fleet is starting or ending"], 0

    return order


@define(eq=False)
class _Loop:
    """The main thread's loop until a signal ends the process."""

    signals: Signals
    fleet: "Fleet"
    screen: screens.Screen
    nodes: str
    as_json: bool
    log_lines: Sequence[str]
    service: Service
    _shown: object = None
    _next_show: float = 0.0
    _printed: dict[str, NodeView] = field(factory=dict)

    def run(self) -> None:
        """Loop until a signal arrives."""
        while not self.signals.ended_by:
            due = min(self.fleet.step(), self.service.alive())
            self._show_if_due()
            if self._is_outdated:
                due = min(due, self._next_show)
            arrived = self.signals.wait(max(0.0, min(due - time.monotonic(), _MOST_REST)))
            if self.screen.handle(arrived):
                self._shown, self._next_show = None, 0.0
            if signal.SIGHUP in arrived:
                answer = self.fleet.command_now("reload", ())
                if not answer.obeyed:
                    _log.error("%s", " ".join(answer.sentences))

    @property
    def _wanted(self) -> object:
        """The values that a frame depends on."""
        return self.fleet.version, tuple(self.log_lines)

    @property
    def _is_outdated(self) -> bool:
        """Whether the view shown, if any, is out of date."""
        return type(self.screen) is not screens.Screen and self._wanted != self._shown

    def _show_if_due(self) -> None:
        wanted, began = self._wanted, time.monotonic()
        if not self._is_outdated or began < self._next_show:
            return
        pictures = self._pictures(list(self.fleet.views()))
        for picture in pictures:
            self.screen.show(picture)
        ended = time.monotonic()
        rest = min(max(_LEAST_REST, _REST_FACTOR * (ended - began)), _MOST_REST)
        self._shown, self._next_show = wanted, ended + rest

    def _pictures(self, views: list[NodeView]) -> list[screens.Picture]:
        """Return a frame for the view of the fleet, or, with --json, a line for each node that has changed."""
        log_lines = tuple(self.log_lines)
        shown = [view for view in views if fnmatch.fnmatchcase(view.name, self.nodes)]

        def draw(width: int, height: int) -> "Text":
            from devicecore_fleet.command.view import render_fleet

            return render_fleet(Totals.of(views), shown, log_lines, width, height)

        if not self.as_json:
            return [screens.Picture("", draw)]
        before, self._printed = self._printed, {view.name: view for view in shown}
        changed = [view for view in shown if before.get(view.name) != view]
        return [screens.Picture(json.dumps(view.as_json()), draw) for view in changed]
