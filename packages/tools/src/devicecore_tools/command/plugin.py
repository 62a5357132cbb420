"""`devicecore plugin`: device plugins that need no hardware, for a real kubelet, `devicecore kubelet` or a test.

Law: SIGTERM or SIGINT ends the process within `END_WITHIN` seconds. Unless something hangs, the plugin's socket is
removed.
"""

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import evolve, frozen

from devicecore.domain.model import Health
from devicecore.domain.text import counted, foreign_text
from devicecore.ports.plugin import DevicePlugin
from devicecore_tools.command.groups import Group
from devicecore_tools.command.kubelet.screen import LineHandler
from devicecore_tools.command.options import (
    MAX_DEVICES,
    extended_resource,
    numbers,
    option_group,
    path_option,
    refuse_missing_devices,
)
from devicecore_tools.command.signals import Signals
from devicecore_tools.command.unhealthy_file import UnhealthyFile

if TYPE_CHECKING:
    from devicecore.adapters.grpc_unix import ServedPlugin
    from devicecore.plugins.simulated import SimulatedPlugin

END_WITHIN = 10.0
"""The process ends at most this many seconds after SIGTERM or SIGINT, even if something hangs."""

_DEFAULT_DIRECTORY = "/var/lib/kubelet/device-plugins"

_log = logging.getLogger(__name__)


@frozen
class Place:
    """The paths of a plugin's socket and the kubelet's socket."""

    directory: str
    kubelet_socket: str

    def serve(
        self, plugin: DevicePlugin, *, endpoint: str | None = None, registry: str | None = None
    ) -> "ServedPlugin":
        """Serve `plugin` in this directory. If the directory does not exist yet, wait for it in the background."""
        from devicecore.adapters.grpc_unix import serve_plugin

        return serve_plugin(
            plugin, self.directory, registry=registry, endpoint=endpoint, kubelet_socket=self.kubelet_socket
        )


place_options = option_group(
    path_option(
        "--socket-dir",
        "DIR",
        "The directory for the plugin's socket; by default $DEVICE_PLUGIN_PATH, or else the directory of the kubelet's "
        f"socket, or else {_DEFAULT_DIRECTORY}.",
        envvar="DEVICE_PLUGIN_PATH",
    ),
    path_option(
        "--kubelet-socket",
        "PATH",
        "The kubelet's socket; by default $KUBELET_SOCKET, or else kubelet.sock in --socket-dir.",
        envvar="KUBELET_SOCKET",
    ),
)
"""Adds `--socket-dir` and `--kubelet-socket` to a command, whose function gets `socket_dir` and `kubelet_socket`."""


def place_of(context: click.Context, socket_dir: str | None, kubelet_socket: str | None) -> Place:
    """Return the place that the options name, or else the environment."""
    from_environment = click.core.ParameterSource.ENVIRONMENT
    if context.get_parameter_source("kubelet_socket") is from_environment and (
        socket_dir and context.get_parameter_source("socket_dir") is not from_environment
    ):
        kubelet_socket = None
    _refuse_other_place(kubelet_socket)
    directory = socket_dir or (str(Path(kubelet_socket).parent) if kubelet_socket else _DEFAULT_DIRECTORY)
    return Place(directory, str(Path(kubelet_socket).absolute()) if kubelet_socket else "kubelet.sock")


def _refuse_other_place(kubelet_socket: str | None) -> None:
    """Raise click.UsageError for a file or a directory, because a plugin would wait there forever for a kubelet."""
    if kubelet_socket and (Path(kubelet_socket).is_dir() or Path(kubelet_socket).is_file()):
        what = "directory" if Path(kubelet_socket).is_dir() else "file"
        raise click.UsageError(
            f"--kubelet-socket: {foreign_text(kubelet_socket)} is a {what}; expected a socket, such as "
            f"{_DEFAULT_DIRECTORY}/kubelet.sock."
        )


def log_to_stderr() -> None:
    """Log with timestamps to standard error."""
    stderr = sys.stderr

    def write(line: str) -> None:
        stderr.write(f"{line}\n")
        stderr.flush()

    logging.basicConfig(level=logging.INFO, handlers=[LineHandler(write)])
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # httpx2 logs each request


def log_serving(what: str, socket: str, options: str) -> None:
    """Log that `what` is served at `socket`, or what has to happen first. `options` may name a different directory."""
    directory = Path(socket).parent
    if directory.is_dir():
        _log.info("serving %s on %s", what, socket)
        return
    _log.warning("waiting for %s before serving %s: start the kubelet, or correct %s", directory, what, options)


DIRECTORY_OPTIONS = "--socket-dir or --kubelet-socket"
"""The options that determine where a plugin's socket is, for messages."""


@click.group(cls=Group)
def plugin() -> None:
    """Run a device plugin that needs no hardware.

    The plugin offers simulated devices or files to a real kubelet or to `devicecore kubelet`.

    \b
    $ devicecore plugin simulated --resource example.com/gpu
    """


@plugin.command()
@click.option(
    "--resource",
    required=True,
    metavar="NAME",
    envvar="resourcename",
    callback=extended_resource,
    help="The extended resource, such as example.com/gpu; by default $resourcename.",
)
@click.option("--count", type=click.IntRange(0, MAX_DEVICES), default=10, show_default=True, help="How many devices.")
@click.option(
    "--prefix",
    metavar="TEXT",
    help="How device ids start; by default, the part of the resource's name after the slash.",
)
@place_options
@click.option(
    "--endpoint", metavar="NAME", help="The name of the plugin's socket; by default derived from the resource."
)
@click.option(
    "--numa-nodes",
    metavar="N,N-N",
    default="",
    callback=numbers,
    help="The NUMA nodes to which devices are assigned in turn.",
)
@click.option(
    "--unhealthy", metavar="N,N-N", default="", callback=numbers, help="Devices that start out unhealthy, by number."
)
@click.option(
    "--variable",
    metavar="NAME",
    help="The environment variable that lists a container's devices; for example.com/gpu, the default is "
    "EXAMPLE_COM_GPU_DEVICES.",
)
@path_option(
    "--unhealthy-file",
    "FILE",
    "A file, such as a mounted ConfigMap, that lists the unhealthy devices by id or number; it is read again when it "
    "changes.",
)
@click.option("--commands", is_flag=True, help="Read commands from standard input.")
@click.pass_context
def simulated(
    context: click.Context,
    *,
    resource: str,
    count: int,
    prefix: str | None,
    socket_dir: str | None,
    kubelet_socket: str | None,
    endpoint: str | None,
    numa_nodes: tuple[int, ...],
    unhealthy: tuple[int, ...],
    variable: str | None,
    unhealthy_file: str | None,
    commands: bool,
) -> int:
    """Offer simulated devices to a kubelet.

    The devices of example.com/gpu are gpu-0, gpu-1, and so on. If there is no kubelet yet, or not even its directory,
    the plugin waits. When the kubelet restarts, the plugin registers again. SIGTERM or Ctrl-C ends the plugin.

    \b
    $ devicecore plugin simulated --resource example.com/gpu --count 4 --unhealthy 3

    With --commands, lines on standard input change devices: `unhealthy gpu-3`, or `healthy 3` for short. The plugin
    exits when its standard input is closed, which also happens when the program that started it exits.
    """
    from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

    place = place_of(context, socket_dir, kubelet_socket)
    refuse_missing_devices("--unhealthy", unhealthy, count)
    names = prefix or resource.rpartition("/")[2]
    devices = simulated_devices(names, count, numa_nodes=numa_nodes, unhealthy=unhealthy)
    log_to_stderr()
    offered = SimulatedPlugin(resource, devices, variable)
    obeyed = _Commands(offered, names)
    with Signals(grace=END_WITHIN) as signals, ExitStack() as last_to_first:
        if unhealthy_file is not None:
            # read the file before the kubelet sees the devices
            UnhealthyFile(unhealthy_file, obeyed.make_unhealthy).follow()
        served = last_to_first.enter_context(place.serve(offered, endpoint=endpoint))
        log_serving(f"{counted(count, 'device')} of {resource}", served.socket, DIRECTORY_OPTIONS)
        if commands:
            obey_input(obeyed.obey, signals)
        signals.wait_for_end()
        _log.info("%s", signals.ended_by)
    return 0


def obey_input(obey: Callable[[list[str]], str], signals: Signals) -> None:
    """Execute commands from standard input in a thread, and tell the process to exit when the input ends.

    `obey` executes a line, split into words, and returns a sentence that says what was done.
    """

    def run() -> None:
        # A buffered reader would hold a lock while it waits, and Python waits for that lock at exit.
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
            for line in lines:
                if words := line.decode(errors="replace").split():
                    _log.info("%s", obey(words))
        signals.end("ended because standard input was closed")

    threading.Thread(target=run, name="devicecore-commands", daemon=True).start()


@frozen
class _Commands:
    """Executes commands from standard input."""

    plugin: "SimulatedPlugin"
    prefix: str

    def obey(self, words: list[str]) -> str:
        """Execute a line, split into words, and return a sentence that says what was done."""
        match words:
            case ["healthy" | "unhealthy" as wanted, device]:
                ids = [known.id for known in self.plugin.devices()]
                id_ = next((id_ for id_ in self._meant(device) if id_ in ids), None)
                if id_ is None:
                    return f"there is no device {self._meant(device)[-1]}: {_known(ids)}"
                self.plugin.set_health(id_, Health(wanted.capitalize()))
                return f"{id_} is {wanted}"
            case _:
                return f"expected `healthy ID` or `unhealthy ID`, got {' '.join(words)!r}"

    def make_unhealthy(self, words: frozenset[str]) -> str:
        """Make these devices unhealthy and all others healthy. Return a sentence that says what was done."""
        devices = self.plugin.devices()
        ids = [known.id for known in devices]
        wanted = {id_ for word in words for id_ in self._meant(word) if id_ in ids}
        self.plugin.set_devices(
            evolve(one, health=Health.UNHEALTHY if one.id in wanted else Health.HEALTHY) for one in devices
        )
        unknown = sorted(word for word in words if not wanted.intersection(self._meant(word)))
        rest = f"; there is no device {foreign_text(', '.join(unknown))}: {_known(ids)}" if unknown else ""
        return f"unhealthy: {', '.join(sorted(wanted)) or 'none'}{rest}"

    def _meant(self, device: str) -> list[str]:
        """Return the ids that a word may mean.

        An id may be the word itself, the part of the word after the last `/`, or, for a number, the id with that
        number.
        """
        return [device, device.rpartition("/")[2], *([f"{self.prefix}-{device}"] if device.isdigit() else [])]


def _known(ids: Sequence[str]) -> str:
    if not ids:
        return "there are no devices"
    return f"the only device is {ids[0]}" if len(ids) == 1 else f"the {len(ids)} devices are {ids[0]} to {ids[-1]}"
