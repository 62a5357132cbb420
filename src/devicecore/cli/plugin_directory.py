"""`devicecore plugin directory`: every file below a folder is a device."""

import logging
import signal
import sys

import click

from devicecore.cli.plugin import ENDING, ending_signals_held, socket_dir_option

_log = logging.getLogger(__name__)


@click.command()
@click.option("--resource", required=True, help="Extended resource name.")
@socket_dir_option
@click.option(
    "--registry",
    metavar="DIR",
    help="Put the socket here instead, for the kubelet's plugin watcher (its plugins_registry).",
)
@click.option("--endpoint", metavar="NAME", help="The plugin's socket; by default made of the resource.")
@click.option(
    "--variable", default="DEVICES", show_default=True, metavar="NAME", help="Where a container finds its devices."
)
@click.option("--mount", metavar="DIR", help="Mount the files into containers, read-only, in this directory.")
@click.argument("path", type=click.Path(file_okay=False))
def directory(
    *,
    resource: str,
    socket_dir: str,
    registry: str | None,
    endpoint: str | None,
    variable: str,
    mount: str | None,
    path: str,
) -> int:
    """Offer the files below PATH to a kubelet: each is a device.

    A file that appears or goes is reported within a second. SIGTERM or SIGINT ends it.

    $ devicecore plugin directory --resource example.com/gopher /etc/gophers
    """
    import os
    from collections.abc import Sequence

    from devicecore.adapters.grpc_unix import serve_plugin
    from devicecore.domain.container_options import ContainerAllocateResponse
    from devicecore.domain.model import DeviceId
    from devicecore.plugins import responses
    from devicecore.plugins.directory import DirectoryPlugin

    def answer(devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        listed = responses.environment_list(devices, variable)
        if mount is None:
            return listed
        return responses.together(listed, responses.mounts(devices, os.path.abspath(path), mount))  # noqa: PTH100 - as typed, links kept

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    offered = DirectoryPlugin(resource, path, answer)
    with ending_signals_held(), serve_plugin(offered, socket_dir, registry=registry, endpoint=endpoint) as served:
        _log.info("serving %d files below %s as %s on %s", len(offered.devices()), path, resource, served.socket)
        ended_by = signal.sigwait(ENDING)
        _log.info("ended by %s", signal.Signals(ended_by).name)
    return 0
