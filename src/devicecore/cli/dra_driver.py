"""`devicecore dra-driver`: play a DRA driver, for a real kubelet or for a test.

Law: SIGTERM or SIGINT ends the process, and its sockets are removed.
"""

import logging
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devicecore.cli.options import numbers
from devicecore.cli.plugin import END_WITHIN, log_to_stderr
from devicecore.cli.signals import Signals
from devicecore.domain.text import foreign_text

if TYPE_CHECKING:
    from devicecore.domain.dra.slices import PublishedDevice
    from devicecore.ports.claims import ClaimSource

_log = logging.getLogger(__name__)


@click.group("dra-driver")
def dra_driver() -> None:
    """Play a DRA driver.

    Offer devices that do not exist to a kubelet and a scheduler.

    $ devicecore dra-driver simulated --name gpu.example.com --node worker-1
    """


@dra_driver.command()
@click.option("--name", required=True, help="The driver's name, such as gpu.example.com.")
@click.option("--node", required=True, envvar="NODE_NAME", help="The node's name, or $NODE_NAME.")
@click.option("--pool", metavar="NAME", help="The name of the pool of devices; by default the node's.")
@click.option("--count", type=click.IntRange(min=0), default=8, show_default=True, help="How many devices.")
@click.option("--numa-nodes", metavar="N,N-N", default="", callback=numbers, help="NUMA nodes of the devices, in turn.")
@click.option(
    "--unhealthy", metavar="N,N-N", default="", callback=numbers, help="Devices that are unhealthy, by number."
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="The API server, where claims are read and devices are published; by default as kubectl or a pod finds it.",
)
@click.option(
    "--manifests",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Read claims from the manifests of `devicecore kubelet`, and publish nothing: no API server is needed.",
)
@click.option(
    "--registry",
    metavar="DIR",
    default="/var/lib/kubelet/plugins_registry",
    show_default=True,
    help="The kubelet's directory of registration sockets.",
)
@click.option(
    "--plugin-dir",
    metavar="DIR",
    default="/var/lib/kubelet/plugins",
    show_default=True,
    help="Where the driver makes a directory of its own, with its socket and what it notes of claims.",
)
@click.option(
    "--cdi-dir", metavar="DIR", default="/var/run/cdi", show_default=True, help="Where CDI files are written."
)
@click.option(
    "--pod-uid",
    metavar="UID",
    envvar="POD_UID",
    default="",
    help="Name the sockets after this pod, or $POD_UID, so that two instances can run during a rolling update.",
)
def simulated(
    *,
    name: str,
    node: str,
    pool: str | None,
    count: int,
    numa_nodes: tuple[int, ...],
    unhealthy: tuple[int, ...],
    kubeconfig: str | None,
    manifests: str | None,
    registry: str,
    plugin_dir: str,
    cdi_dir: str,
    pod_uid: str,
) -> int:
    """Prepare ResourceClaims with devices that do not exist.

    The devices are dev-0, dev-1, and so on. The driver publishes them as ResourceSlices, and writes these again if
    they are deleted or changed. A container with a claim gets an environment variable for each device, by CDI.

    A claim may have parameters: {"apiVersion": "simulated.devicecore/v1", "kind": "DeviceConfig", "env": {"A": "b"}}
    adds the variable A.

    SIGTERM or Ctrl-C ends the driver and removes its sockets. The ResourceSlices stay for its next instance.

    $ devicecore dra-driver simulated --name gpu.example.com --node worker-1 --count 4 --unhealthy 3
    """
    from devicecore.adapters.grpc_unix.dra import serve_driver
    from devicecore.domain.dra.health import DraHealth, ReportedHealth
    from devicecore.plugins.simulated_driver import SimulatedDriver, published

    if missing := [number for number in unhealthy if number >= count]:
        message = f"--unhealthy {missing[0]}: the devices are numbered from 0, and there are {count}."
        raise click.UsageError(message)
    if not re.fullmatch("[A-Za-z0-9-]{0,64}", pod_uid):
        message = f"--pod-uid: expected at most 64 letters, digits and '-', got {foreign_text(pod_uid)!r}."
        raise click.UsageError(message)
    log_to_stderr()
    pool = pool or node
    devices = [f"dev-{number}" for number in range(count)]
    report = [
        ReportedHealth(pool, device, DraHealth.UNHEALTHY if number in unhealthy else DraHealth.HEALTHY)
        for number, device in enumerate(devices)
    ]
    directory, instance = Path(plugin_dir) / name, f"-{pod_uid}" if pod_uid else ""
    with ExitStack() as last_to_first:
        if manifests is not None:
            claims, publish = _from_manifests(manifests)
        else:
            claims, publish = _from_api_server(name, node, pool, kubeconfig, last_to_first)
        driver = SimulatedDriver(
            name, pool, devices, claims, state_directory=directory / "claims", cdi_directory=cdi_dir
        )
        with (
            Signals(grace=END_WITHIN) as signals,
            driver.running(pod_uid),
            serve_driver(
                driver,
                registry,
                endpoint=directory / f"dra{instance}.sock",
                socket_name=f"{name}{instance}-reg.sock",
                wait_for_registry=True,
            ) as served,
        ):
            served.report(report)
            publish(published(devices, numa_nodes))
            _log.info("serving %s on %s", name, served.registration)
            signals.wait_for_end()
            _log.info("%s", signals.ended_by)
    return 0


Publish = Callable[[Iterable["PublishedDevice"]], None]


def _from_manifests(directory: str) -> "tuple[ClaimSource, Publish]":
    """Claims of manifests, and nowhere to publish."""
    from devicecore.adapters.manifests.claims import ManifestClaims

    return ManifestClaims(directory), lambda _devices: None


def _from_api_server(
    name: str, node: str, pool: str, kubeconfig: str | None, last_to_first: ExitStack
) -> "tuple[ClaimSource, Publish]":
    """Claims of the API server, and ResourceSlices there."""
    from devicecore.adapters.kube_api.dra import KubeApiClaims
    from devicecore.adapters.kube_api.slices import KubeApiSlicePublisher

    slices = last_to_first.enter_context(KubeApiSlicePublisher(name, node, pool=pool, kubeconfig=kubeconfig))
    return last_to_first.enter_context(KubeApiClaims(kubeconfig=kubeconfig)), slices.publish
