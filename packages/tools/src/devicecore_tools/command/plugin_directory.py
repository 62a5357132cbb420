"""`devicecore plugin directory`: every file below a directory is a device.

Law: the command starts, waits and exits as `devicecore plugin simulated` does.
"""

import logging
from collections.abc import Sequence

import click

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.model import DeviceId
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.command.options import extended_resource, path_option
from devicecore_tools.command.plugin import (
    DIRECTORY_OPTIONS,
    END_WITHIN,
    log_serving,
    log_to_stderr,
    place_of,
    place_options,
    plugin,
)
from devicecore_tools.command.signals import Signals

_log = logging.getLogger(__name__)


@plugin.command()
@click.option(
    "--resource",
    required=True,
    metavar="NAME",
    callback=extended_resource,
    help="The extended resource, such as example.com/gopher.",
)
@place_options
@path_option(
    "--registry",
    "DIR",
    "Put the plugin's socket in this directory instead, where a kubelet looks for plugins (its plugins_registry).",
)
@click.option(
    "--endpoint", metavar="NAME", help="The name of the plugin's socket; by default derived from the resource."
)
@click.option(
    "--variable",
    default="DEVICES",
    show_default=True,
    metavar="NAME",
    help="The environment variable that lists a container's devices.",
)
@click.option("--mount", metavar="DIR", help="Mount the files into containers, read-only, in this directory.")
@click.argument("path", type=click.Path(file_okay=False))
@click.pass_context
def directory(
    context: click.Context,
    *,
    resource: str,
    socket_dir: str | None,
    kubelet_socket: str | None,
    registry: str | None,
    endpoint: str | None,
    variable: str,
    mount: str | None,
    path: str,
) -> int:
    """Offer the files below PATH to a kubelet: each file is a device.

    A new or deleted file is reported within a second. If there is no kubelet yet, or not even its directory, the plugin
    waits. SIGTERM or Ctrl-C ends the plugin.

    \b
    $ devicecore plugin directory --resource example.com/gopher /etc/gophers
    """
    import os

    from devicecore.plugins import responses
    from devicecore.plugins.directory import DirectoryPlugin

    def answer(devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        listed = responses.environment_list(devices, variable)
        if mount is None:
            return listed
        return responses.together(listed, responses.mounts(devices, os.path.abspath(path), mount))  # noqa: PTH100 - as typed, links kept

    if mount is not None and not os.path.isabs(mount):  # noqa: PTH117 - a directory in a container
        raise click.UsageError(f"--mount: expected an absolute path in the container, got {foreign_text(mount)!r}.")
    if registry is not None and (socket_dir or kubelet_socket):
        raise click.UsageError(f"--registry and {DIRECTORY_OPTIONS} cannot be used together.")
    place = place_of(context, socket_dir, kubelet_socket)
    log_to_stderr()
    offered = DirectoryPlugin(resource, path, answer)
    with Signals(grace=END_WITHIN) as signals, place.serve(offered, endpoint=endpoint, registry=registry) as served:
        files = counted(len(offered.devices()), "file")
        try:
            os.scandir(path).close()
        except OSError as error:
            _log.warning("%s cannot be read, so there are no devices until it can be: %s", path, error.strerror)
        log_serving(f"{files} below {path} as {resource}", served.socket, DIRECTORY_OPTIONS)
        signals.wait_for_end()
        _log.info("%s", signals.ended_by)
    return 0
