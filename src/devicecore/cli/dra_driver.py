"""`devicecore dra-driver`: play a DRA driver, for a real kubelet or for a test.

Law: SIGTERM or SIGINT ends the process, and its sockets are removed.
"""

import logging

import click

from devicecore.cli.options import numbers
from devicecore.cli.plugin import END_WITHIN, log_to_stderr
from devicecore.cli.signals import Signals

_log = logging.getLogger(__name__)


@click.group("dra-driver")
def dra_driver() -> None:
    """Play a DRA driver.

    Prepare ResourceClaims with devices that do not exist, for a kubelet.

    $ devicecore dra-driver simulated --name gpu.example.com --node worker-1
    """


@dra_driver.command()
@click.option("--name", required=True, help="The driver's name, such as gpu.example.com.")
@click.option("--node", required=True, envvar="NODE_NAME", help="The node's name, or $NODE_NAME: also the pool's name.")
@click.option("--count", type=click.IntRange(min=0), default=8, show_default=True, help="How many devices.")
@click.option(
    "--unhealthy", metavar="N,N-N", default="", callback=numbers, help="Devices that are unhealthy, by number."
)
@click.option("--kubeconfig", metavar="FILE", help="Where claims are read; by default as kubectl or a pod does.")
@click.option(
    "--registry",
    metavar="DIR",
    default="/var/lib/kubelet/plugins_registry",
    show_default=True,
    help="The kubelet's directory of registration sockets.",
)
@click.option(
    "--cdi-dir", metavar="DIR", default="/var/run/cdi", show_default=True, help="Where CDI files are written."
)
def simulated(
    *, name: str, node: str, count: int, unhealthy: tuple[int, ...], kubeconfig: str | None, registry: str, cdi_dir: str
) -> int:
    """Prepare ResourceClaims with devices that do not exist.

    The devices are dev-0, dev-1, and so on, in the pool NODE. A container with a claim gets an environment variable
    for each device, by CDI. The driver reads claims from the API server. It publishes no ResourceSlices: apply one of
    your own, so that the scheduler finds the devices. SIGTERM or Ctrl-C ends it, and removes its sockets.

    $ devicecore dra-driver simulated --name gpu.example.com --node worker-1 --count 4 --unhealthy 3
    """
    from devicecore.adapters.grpc_unix.dra import serve_driver
    from devicecore.adapters.kube_api.dra import KubeApiClaims
    from devicecore.domain.dra.health import DraHealth, ReportedHealth
    from devicecore.plugins.simulated_driver import SimulatedDriver

    log_to_stderr()
    devices = [f"dev-{number}" for number in range(count)]
    report = [
        ReportedHealth(node, device, DraHealth.UNHEALTHY if number in unhealthy else DraHealth.HEALTHY)
        for number, device in enumerate(devices)
    ]
    with KubeApiClaims(kubeconfig=kubeconfig) as claims:
        driver = SimulatedDriver(name, node, devices, claims, cdi_dir)
        with Signals(grace=END_WITHIN) as signals, serve_driver(driver, registry) as served:
            served.report(report)
            _log.info("serving %s on %s", name, served.registration)
            signals.wait_for_end()
            _log.info("%s", signals.ended_by)
    return 0
