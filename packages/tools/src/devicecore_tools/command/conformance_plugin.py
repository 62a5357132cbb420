"""`devicecore conformance plugin`: run the conformance checks on a device plugin.

Law: after SIGHUP, SIGINT or SIGTERM, none of the run's processes or temporary files remain.
"""

from pathlib import Path
from typing import Any

import click

from devicecore.domain.text import counted
from devicecore_tools.command.conformance_options import (
    choice_options,
    plugin_options,
    refuse_misspelled,
    report_options,
)
from devicecore_tools.command.output import complain


@click.command(context_settings={"allow_interspersed_args": False})  # options of COMMAND need no --
@plugin_options
@choice_options
@report_options
@click.argument("command", nargs=-1)
def plugin(
    *,
    command: tuple[str, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    list_only: bool,
    as_json: bool,
    junit: str | None,
    card: str | None,
    release: str,
    socket_dir: str | None,
    allow_shared_directory: bool,
    registry: bool,
    **settings: Any,  # noqa: ANN401 - click has converted each to the type of its field in Settings
) -> int:
    """Test a device plugin written in any language.

    COMMAND starts the plugin. In COMMAND, {dir} is replaced by the socket directory, and {socket} by the kubelet's
    socket in that directory. The environment variables DEVICE_PLUGIN_PATH and KUBELET_SOCKET are set to the same paths:

    \b
    $ devicecore conformance plugin -- ./my-plugin --device-plugin-path {dir}

    If the plugin's directory cannot be changed, test the plugin where that directory is unused, for example in a
    container:

    \b
    $ devicecore conformance plugin --socket-dir /var/lib/kubelet/device-plugins -- ./my-plugin

    Without COMMAND, start the plugin by hand.

    The exit status is 0 if no "must" check failed, 1 if one failed or was not decided, or if every check was skipped,
    and 2 if the plugin cannot be run, the directory cannot be used, or the --provoke-health command failed.
    """
    from devicecore_tools.command.conformance_report import Reporting, choose, print_list
    from devicecore_tools.conformance.device_plugin import CHECKS, Settings, run

    checks = choose(CHECKS, only, skip)
    if list_only:
        print_list(checks, as_json=as_json)
        return 0
    refuse_misspelled(command, ("dir", "socket"))
    if settings["undo_health"] and not settings["provoke_health"]:
        raise click.UsageError("--undo-health needs --provoke-health.")

    def say_what_to_do(directory: Path) -> None:
        what = f"it creates its socket in {directory}" if registry else f"it registers at {directory}/kubelet.sock"
        seconds = counted(settings["first"], "second")
        if not command:
            complain("devicecore conformance", f"start your plugin within {seconds}, so that {what}")

    reporting = Reporting(as_json=as_json, junit=junit, card=card, release=release, command=command)
    reporting.begin()
    return reporting.run(
        "device plugin",
        checks,
        lambda: run(
            command or None,
            settings=Settings(**settings, owns_children=True, excuses_load=True),
            directory=socket_dir,
            allow_shared_directory=allow_shared_directory,
            registry=registry,
            checks=checks,
            on_ready=say_what_to_do,
            on_result=reporting.show,
        ),
    )
