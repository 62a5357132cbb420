"""`devicecore conformance`: run the conformance checks over a device plugin or a DRA driver.

Law: the exit status is 0 only if a check was made, none of severity "must" failed, and the time sufficed for these.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devicecore.domain.text import counted
from devicecore_tools.command.conformance_dra import (
    DRA_SETTINGS,
    dra_checks,
    dra_options,
    dra_run,
    ending_cleanly,
    refuse_options_of_the_other_kind,
)
from devicecore_tools.command.conformance_options import choice_options, plugin_options, report_options
from devicecore_tools.command.output import complain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from devicecore_tools.command.conformance_report import Reporting
    from devicecore_tools.conformance import Check
    from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest


@click.command(short_help="Check a device plugin or a DRA driver in any language.")
@plugin_options
@dra_options
@choice_options
@report_options
@click.argument("command", nargs=-1)
def conformance(
    *,
    command: tuple[str, ...],
    dra: bool,
    full: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    list_only: bool,
    as_json: bool,
    junit: str | None,
    card: str | None,
    release: str,
    **options: Any,  # noqa: ANN401 - click passes the value of each option
) -> int:
    """Test a device plugin or a DRA driver, in any language.

    Runs the conformance checks of docs/conformance.md over it. Each says what it expects, and what happened instead.

    COMMAND starts the plugin. In COMMAND, {dir} is replaced by the socket directory and {socket} by the kubelet's
    socket in it. The environment variables DEVICE_PLUGIN_PATH and KUBELET_SOCKET are set to the same paths:

    \b
    $ devicecore conformance -- ./my-plugin --device-plugin-path {dir}

    A plugin whose directory is fixed is tested where that directory is free, for example in a container:

    \b
    $ devicecore conformance --socket-dir /var/lib/kubelet/device-plugins -- ./my-plugin

    Without COMMAND, start the plugin by hand.

    With --dra, COMMAND starts a DRA driver, which finds a small API server, and the directories of a kubelet and of
    CDI files. {kubeconfig}, {node}, {registry}, {plugins}, {cdi} and {pod_uid} are replaced in it; KUBECONFIG,
    NODE_NAME, CDI_ROOT, KUBELET_REGISTRAR_DIRECTORY_PATH and KUBELET_PLUGINS_DIRECTORY_PATH are set:

    \b
    $ devicecore conformance --dra -- ./my-driver --kubeconfig {kubeconfig} --cdi-root {cdi}

    Exit status 0 if no check of severity must failed, 1 if one failed, if no time was left for one, or if every check
    was skipped, 2 if the plugin cannot be run or the directory cannot be used.
    """
    refuse_options_of_the_other_kind(dra=dra)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC would log every connection that the checks cut
    from devicecore_tools.command.conformance_report import Reporting, choose, print_list
    from devicecore_tools.conformance.device_plugin import CHECKS

    known: Sequence[Check[Any]] = dra_checks(full=full, named=bool(only)) if dra else CHECKS
    checks = choose(known, only, skip)
    if list_only:
        print_list(checks, as_json=as_json)
        return 0
    reporting = Reporting(as_json=as_json, junit=junit, card=card, release=release)
    dra_settings = {name: options.pop(name) for name in DRA_SETTINGS}
    if dra:
        return dra_run(command, dra_settings, checks, reporting, full=full)
    return _plugin_run(command, checks, reporting, **options)


def _plugin_run(
    command: tuple[str, ...],
    checks: "Sequence[Check[PluginUnderTest]]",
    reporting: "Reporting",
    *,
    socket_dir: str | None,
    allow_shared_directory: bool,
    registry: bool,
    **settings: Any,  # noqa: ANN401 - click made each of the type that its field of Settings has
) -> int:
    """Run the checks over a device plugin, and return the exit status.

    SIGINT, SIGTERM and SIGHUP end the run, after everything was ended and removed.
    """
    from devicecore_tools.conformance.device_plugin import Settings, run

    if settings["undo_health"] and not settings["provoke_health"]:
        message = "--undo-health needs --provoke-health."
        raise click.UsageError(message)

    def say_what_to_do(directory: Path) -> None:
        if not command:
            _say_what_to_do(directory, settings["first"], registry=registry)

    reporting.begin()
    with ending_cleanly():
        report = run(
            command or None,
            settings=Settings(**settings, owns_children=True),
            directory=socket_dir,
            allow_shared_directory=allow_shared_directory,
            registry=registry,
            checks=checks,
            on_ready=say_what_to_do,
            on_result=reporting.show,
        )
    return reporting.end(report)


def _say_what_to_do(directory: Path, seconds: float, *, registry: bool) -> None:
    what = f"it makes its socket in {directory}" if registry else f"it registers at {directory}/kubelet.sock"
    complain("devicecore conformance", f"start your plugin within {counted(seconds, 'second')}, so that {what}")
