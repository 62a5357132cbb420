"""`devicecore dra-driver`: a DRA driver that needs no hardware, for a real kubelet, `devicecore kubelet` or a test.

Law: SIGTERM or SIGINT ends the process. Unless something hangs, its sockets are removed.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import define

from devicecore.domain.dra.health import DraHealth, ReportedHealth
from devicecore.domain.dra.slices import PublishedDevice
from devicecore.domain.names import is_dns_subdomain
from devicecore.domain.text import counted, foreign_text
from devicecore.ports.claims import ClaimSource
from devicecore_tools.command.groups import Group
from devicecore_tools.command.options import MAX_DEVICES, numbers, path_option, refuse_missing_devices
from devicecore_tools.command.plugin import END_WITHIN, log_serving, log_to_stderr, obey_input
from devicecore_tools.command.signals import Signals
from devicecore_tools.command.unhealthy_file import UnhealthyFile

if TYPE_CHECKING:
    from devicecore.plugins.simulated_driver import SimulatedDriver

_MAX_COUNT = 10_000
_MAX_NAME = 63  # the maximum length of a driver's name in a ResourceSlice and in a claim's allocation
_MAX_NODE = 253

MAX_PARTS = 32
"""The maximum number of parts of a device: NVIDIA's GPUs have at most seven."""

_log = logging.getLogger(__name__)


@click.group("dra-driver", cls=Group)
def dra_driver() -> None:
    """Run a DRA driver that needs no hardware.

    The driver offers simulated devices to a kubelet and a scheduler.

    \b
    $ devicecore dra-driver simulated --name gpu.example.com --node worker-1
    """


def _numa_nodes(context: click.Context, option: click.Parameter, text: str) -> tuple[int | tuple[int, ...], ...]:
    """Read numbers and ranges as `numbers` does. A plus joins several numbers for one device."""
    found: list[int | tuple[int, ...]] = []
    if text:
        for word in text.split(","):
            several = numbers(context, option, word.replace("+", ","))
            found += [several] if "+" in word else several
    return tuple(found)


@dra_driver.command()
@click.option("--name", required=True, help="The driver's name, such as gpu.example.com.")
@click.option("--node", required=True, envvar="NODE_NAME", help="The node's name; by default $NODE_NAME.")
@click.option("--pool", metavar="NAME", help="The name of the device pool; by default the node's name.")
@click.option("--count", type=click.IntRange(0, MAX_DEVICES), default=8, show_default=True, help="How many devices.")
@click.option(
    "--numa-nodes",
    metavar="N,N-N,N+N",
    default="",
    callback=_numa_nodes,
    help="The NUMA nodes to which devices are assigned in turn; 0+1 for a device that is attached to both.",
)
@click.option(
    "--unhealthy", metavar="N,N-N", default="", callback=numbers, help="Devices that are unhealthy, by number."
)
@path_option(
    "--kubeconfig",
    "FILE",
    "The API server to read claims from and publish devices to; by default the one that kubectl or a pod would use.",
)
@click.option(
    "--manifests",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Read claims from the manifests of `devicecore kubelet`, and publish nothing: no API server is needed.",
)
@path_option(
    "--registry",
    "DIR",
    "The kubelet's directory of registration sockets.",
    default="/var/lib/kubelet/plugins_registry",
    show_default=True,
)
@path_option(
    "--plugin-dir",
    "DIR",
    "Where the driver creates its own directory, with its socket and its records of claims.",
    default="/var/lib/kubelet/plugins",
    show_default=True,
)
@path_option("--cdi-dir", "DIR", "Where CDI files are written.", default="/var/run/cdi", show_default=True)
@click.option(
    "--pod-uid",
    metavar="UID",
    envvar="POD_UID",
    default="",
    help="The UID of the pod (by default $POD_UID) that the sockets are named after, so that two instances can run "
    "during a rolling update.",
)
@click.option(
    "--parts",
    type=click.IntRange(0, MAX_PARTS),
    default=0,
    metavar="N",
    help="Also publish N parts of each device, as with MIG: a scheduler allocates either the device or its parts.",
)
@path_option(
    "--unhealthy-file",
    "FILE",
    "A file, such as a mounted ConfigMap, that lists the unhealthy devices by name or number; it is read again when it "
    "changes.",
)
@click.option("--commands", is_flag=True, help="Read commands from standard input.")
def simulated(**options: Any) -> int:  # noqa: ANN401 - click passes the value of each option
    """Prepare ResourceClaims with simulated devices.

    The devices are dev-0, dev-1, and so on. Once a kubelet has registered the driver, the driver publishes the devices
    as ResourceSlices, and restores the slices if they are deleted or changed. Through CDI, a container with a claim
    gets an environment variable for each device.

    A claim may have parameters. For example, these parameters add the variable A:

    \b
    {"apiVersion": "simulated.devicecore/v1", "kind": "DeviceConfig", "env": {"A": "b"}}

    SIGTERM or Ctrl-C ends the driver and removes its sockets. The ResourceSlices stay for the next instance.

    \b
    $ devicecore dra-driver simulated --name gpu.example.com --node worker-1 --count 4 --unhealthy 3

    With --commands, lines on standard input change devices: `unhealthy 3`, `healthy 3`, or `count 6`. The driver exits
    when its standard input is closed, which also happens when the program that started it exits.
    """
    refuse_missing_devices("--unhealthy", options["unhealthy"], options["count"])
    if not is_dns_subdomain(options["name"], _MAX_NAME):
        name = foreign_text(options["name"])
        message = f"--name: expected a DNS name of at most {_MAX_NAME} characters in lower case, got {name!r}."
        raise click.UsageError(message)
    for option in ("node", "pool"):
        text = options[option] or options["node"]
        # the name of a pool may consist of several DNS names, separated by slashes
        if not all(is_dns_subdomain(part, _MAX_NODE) for part in (text.split("/") if option == "pool" else [text])):
            message = f"--{option}: expected a name that consists of a-z, 0-9, '-' and '.', got {foreign_text(text)!r}."
            raise click.UsageError(message)
    if options["manifests"] and options["kubeconfig"]:
        raise click.UsageError("--manifests and --kubeconfig cannot be used together.")
    if not re.fullmatch("[A-Za-z0-9-]{0,64}", options["pod_uid"]):
        message = f"--pod-uid: expected at most 64 letters, digits and '-', got {foreign_text(options['pod_uid'])!r}."
        raise click.UsageError(message)
    log_to_stderr()
    # signals have to be blocked before other threads start
    with Signals(grace=END_WITHIN) as signals, ExitStack() as last_to_first:
        if options["manifests"]:
            claims, publish = _from_manifests(options["manifests"])
        else:
            claims, publish = _from_api_server(options, last_to_first)
        _serve(options, claims, publish, signals)
    return 0


def _serve(options: Mapping[str, Any], claims: ClaimSource, publish: "Publish", signals: Signals) -> None:
    """Serve the driver until a signal arrives or standard input is closed."""
    from devicecore.adapters.grpc_unix.dra import serve_driver
    from devicecore.plugins.simulated_driver import SimulatedDriver, counters, published

    name, pod_uid, directory = options["name"], options["pod_uid"], Path(options["plugin_dir"], options["name"])
    instance = f"-{pod_uid}" if pod_uid else ""
    pool, cdi = options["pool"] or options["node"], options["cdi_dir"]
    driver = SimulatedDriver(name, pool, (), claims, state_directory=directory / "claims", cdi_directory=cdi)
    with (
        driver.running(pod_uid),
        serve_driver(
            driver,
            options["registry"],
            endpoint=directory / f"dra{instance}.sock",
            socket_name=f"{name}{instance}-reg.sock",
            wait_for_registry=True,
        ) as served,
    ):

        def offer(devices: Sequence[str]) -> None:
            # Until the kubelet knows the driver, it would refuse pods that were scheduled because of published devices.
            parts = options["parts"]
            rows = published(devices, options["numa_nodes"], parts)
            served.when_registered(lambda: publish(rows, counters(devices, parts)))

        offered = _Offered(driver, served.report, offer, options["parts"])
        offered.show(options["count"], frozenset(options["unhealthy"]))
        if options["unhealthy_file"] is not None:
            UnhealthyFile(options["unhealthy_file"], offered.make_unhealthy).follow()
        if options["commands"]:
            obey_input(offered.obey, signals)
        log_serving(name, served.registration, "--registry")
        signals.wait_for_end()
        _log.info("%s", signals.ended_by)


Publish = Callable[[Iterable["PublishedDevice"], Iterable[Mapping[str, object]]], None]


@define
class _Offered:
    """A driver's devices. When the devices change, they are published again, and their health is reported again."""

    driver: "SimulatedDriver"
    report: Callable[[Sequence[ReportedHealth]], object]
    publish: Callable[[Sequence[str]], object]
    parts: int = 0
    unhealthy: frozenset[int] = frozenset()
    count: int = 0

    def show(self, count: int, unhealthy: frozenset[int]) -> None:
        """Offer `count` devices, some of them unhealthy."""
        from devicecore.plugins.simulated_driver import parts_of

        devices = tuple(f"dev-{number}" for number in range(count))
        health = {
            name: DraHealth.UNHEALTHY if number in unhealthy else DraHealth.HEALTHY
            for number, device in enumerate(devices)
            for name in (device, *parts_of(device, self.parts))
        }
        self.count, self.unhealthy = count, unhealthy
        self.driver.devices = tuple(health)
        self.report([ReportedHealth(self.driver.pool, *pair) for pair in health.items()])
        self.publish(devices)

    def make_unhealthy(self, words: frozenset[str]) -> str:
        """Make these devices unhealthy and all others healthy. Return a sentence that says what was done."""
        numbers = {word: word.removeprefix("dev-") for word in words}
        known = {word: int(text) for word, text in numbers.items() if text.isdecimal() and int(text) < self.count}
        self.show(self.count, frozenset(known.values()))
        unknown = sorted(words - known.keys())
        there = f"the driver has {counted(self.count, 'device')}, numbered from 0"
        rest = f"; there is no device {foreign_text(', '.join(unknown))}: {there}" if unknown else ""
        return f"unhealthy: {', '.join(f'dev-{number}' for number in sorted(known.values())) or 'none'}{rest}"

    def obey(self, words: list[str]) -> str:
        """Execute a line. Return a sentence that says what was done."""
        count = self.count
        match words:
            case ["count", text] if text.isdecimal() and int(text) <= _MAX_COUNT:
                self.show(int(text), self.unhealthy)
                return counted(int(text), "device")
            case ["healthy" | "unhealthy" as health, device]:
                text = device.removeprefix("dev-")
                if not text.isdecimal() or int(text) >= count:
                    return f"there is no device {device}: the driver has {counted(count, 'device')}, numbered from 0"
                rest = self.unhealthy - {int(text)}
                self.show(count, rest | {int(text)} if health == "unhealthy" else rest)
                return f"dev-{int(text)} is {health}"
            case _:
                return f"expected `healthy N`, `unhealthy N` or `count N`, got {' '.join(words)!r}"


def _from_manifests(directory: str) -> tuple[ClaimSource, Publish]:
    """Read claims from manifests, and publish nothing."""
    from devicecore.adapters.manifests.claim_source import ManifestClaims

    return ManifestClaims(directory), lambda _devices, _counters: None


def _from_api_server(options: Mapping[str, Any], last_to_first: ExitStack) -> tuple[ClaimSource, Publish]:
    """Read claims from the API server, and publish ResourceSlices there."""
    from devicecore.adapters.kube_api import Access, ApiAccessError
    from devicecore.adapters.kube_api.dra import KubeApiClaims
    from devicecore.adapters.kube_api.slices import KubeApiSlicePublisher

    access = Access(options["kubeconfig"])
    try:
        slices = KubeApiSlicePublisher(
            options["name"], options["node"], access, pool=options["pool"] or options["node"]
        )
        last_to_first.enter_context(slices)
        return last_to_first.enter_context(KubeApiClaims(access)), slices.publish
    except ApiAccessError as error:
        if options["kubeconfig"]:
            raise
        message = f"{error}. Without an API server, pass the directory with the claims: --manifests DIR"
        raise click.UsageError(message) from None
