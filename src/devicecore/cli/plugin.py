"""`devicecore plugin`: play a device plugin, for a kubelet or for whoever tests one."""

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from devicecore.plugins.simulated import SimulatedPlugin

_log = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., object])

_NUMBER = re.compile("[0-9]{1,9}")
ENDING = {signal.SIGINT, signal.SIGTERM}


def numbers(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """Read whole numbers, separated by commas."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(_NUMBER.fullmatch(word) for word in words):
        message = f"{text!r} is not a list of numbers such as 0,1."
        raise click.BadParameter(message, context, option)
    return tuple(map(int, words))


def socket_dir_option(command: Command) -> Command:
    """Add the option `--socket-dir`."""
    return click.option(
        "--socket-dir",
        default="/var/lib/kubelet/device-plugins",
        show_default=True,
        metavar="DIR",
        help="Where the kubelet's socket is, and the plugin's will be.",
    )(command)


@click.group()
def plugin() -> None:
    """Play a device plugin.

    $ devicecore plugin simulated --resource example.com/gpu
    """


@plugin.command()
@click.option("--resource", required=True, envvar="resourcename", help="Extended resource name, or $resourcename.")
@click.option("--count", type=click.IntRange(min=0), default=10, show_default=True, help="How many devices.")
@socket_dir_option
@click.option("--endpoint", metavar="NAME", help="The plugin's socket in it; by default made of the resource.")
@click.option(
    "--numa-nodes", metavar="N,N", default="", callback=numbers, help="Attach the devices to these NUMA nodes in turn."
)
@click.option(
    "--unhealthy", metavar="N,N", default="", callback=numbers, help="Which devices are unhealthy at first, by number."
)
@click.option(
    "--variable",
    metavar="NAME",
    help="Where a container finds its devices; by default NVIDIA_VISIBLE_DEVICES/RESOURCE.",
)
@click.option("--commands", is_flag=True, help="Obey lines on standard input.")
def simulated(
    *,
    resource: str,
    count: int,
    socket_dir: str,
    endpoint: str | None,
    numa_nodes: tuple[int, ...],
    unhealthy: tuple[int, ...],
    variable: str | None,
    commands: bool,
) -> int:
    """Offer devices that do not exist to a kubelet.

    The devices of example.com/gpu are example.com/gpu-0, example.com/gpu-1, and so on. Where there is no kubelet yet,
    the plugin waits; when the kubelet restarts, it registers again. SIGTERM or SIGINT ends it.

    $ devicecore plugin simulated --resource example.com/gpu --count 4 --unhealthy 3

    With --commands, lines on standard input change devices: `unhealthy example.com/gpu-3`, or `healthy 3` for short.
    The plugin ends with its input, and so with the program that started it.
    """
    from devicecore.adapters.grpc_unix import serve_plugin
    from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

    if missing := [number for number in unhealthy if number >= count]:
        message = f"--unhealthy {missing[0]}: there are only {count} devices, numbered from 0."
        raise click.UsageError(message)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    devices = simulated_devices(resource, count, numa_nodes=numa_nodes, unhealthy=unhealthy)
    offered = SimulatedPlugin(resource, devices, variable)
    with ending_signals_held(), serve_plugin(offered, socket_dir, endpoint=endpoint) as served:
        _log.info("serving %d devices of %s on %s", count, resource, served.socket)
        if commands:
            threading.Thread(target=_obey_standard_input, args=(offered,), daemon=True).start()
        ended_by = signal.sigwait(ENDING)
        _log.info("ended by %s", signal.Signals(ended_by).name)
    return 0


@contextmanager
def ending_signals_held() -> Iterator[None]:
    """Let SIGTERM and SIGINT wait until somebody waits for them: every thread started in here inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obey_standard_input(plugin: "SimulatedPlugin") -> None:
    # A buffered reader would be locked while it waits, and Python waits for that lock when it exits.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        for line in lines:
            if words := line.decode(errors="replace").split():
                _log.info("%s", _obey(plugin, words))
    os.kill(os.getpid(), signal.SIGTERM)  # the process as a whole, where the main thread waits for it


def _obey(plugin: "SimulatedPlugin", words: list[str]) -> str:
    """Do what a line says; what came of it."""
    from devicecore.domain.errors import DeviceRefusedError
    from devicecore.domain.model import Health

    match words:
        case ["healthy" | "unhealthy" as wanted, device]:
            name = f"{plugin.resource}-{device}" if device.isdigit() else device
            try:
                plugin.set_health(name, Health(wanted.capitalize()))
            except DeviceRefusedError as error:
                return str(error)
            return f"{name} is {wanted}"
        case _:
            return f"no command: {' '.join(words)!r}; there are `healthy ID` and `unhealthy ID`"
