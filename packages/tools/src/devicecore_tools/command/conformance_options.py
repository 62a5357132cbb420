"""The options of `devicecore conformance`, in the groups in which they are used.

Law: each default is that of the settings of `devicecore_tools.conformance`.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from devicecore_tools.command.options import Seconds, extended_resource, with_options
from devicecore_tools.command.output import json_option

P = ParamSpec("P")
R = TypeVar("R")

_SECONDS = Seconds(min=0.1)

_PLUGIN = (
    click.option(
        "--resource",
        default="",
        metavar="NAME",
        callback=extended_resource,
        help="The resource to test, such as example.com/gpu; by default the first that registers.",
    ),
    click.option(
        "--socket-dir",
        "--dir",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="The directory in which the plugin looks for kubelet.sock, if that is fixed; by default a new directory. "
        "All sockets in it are deleted.",
    ),
    click.option(
        "--allow-shared-directory", is_flag=True, help="Accept a --socket-dir that its group or others can write to."
    ),
    click.option(
        "--registry",
        is_flag=True,
        help="The plugin does not call Register: it waits in the directory for the kubelet's plugin watcher.",
    ),
    click.option(
        "--starting",
        "first",
        type=_SECONDS,
        metavar="SECONDS",
        default=60.0,
        show_default=True,
        help="Seconds until the plugin registers first.",
    ),
    click.option(
        "--timeout", type=_SECONDS, metavar="SECONDS", default=10.0, show_default=True, help="Seconds for every answer."
    ),
    click.option(
        "--returning",
        type=_SECONDS,
        metavar="SECONDS",
        default=20.0,
        show_default=True,
        help="Seconds until the plugin registers again after a kubelet restart that deletes all sockets.",
    ),
    click.option(
        "--noticing",
        type=_SECONDS,
        metavar="SECONDS",
        default=8.0,
        show_default=True,
        help="Seconds until it registers again after a cut stream, or a new kubelet.sock alone.",
    ),
    click.option(
        "--away",
        type=_SECONDS,
        metavar="SECONDS",
        default=3.0,
        show_default=True,
        help="Seconds for which the kubelet is away.",
    ),
    click.option(
        "--grace",
        type=_SECONDS,
        metavar="SECONDS",
        default=10.0,
        show_default=True,
        help="Seconds until the plugin ends after SIGTERM.",
    ),
    click.option(
        "--provoke-health",
        default="",
        metavar="COMMAND",
        help="A shell command that changes the health of a device. {dir} in it is replaced by the socket directory.",
    ),
    click.option("--undo-health", default="", metavar="COMMAND", help="A shell command that undoes --provoke-health."),
    click.option(
        "--restart/--no-restart",
        default=True,
        show_default=True,
        help="Start the plugin again when it exits, as Kubernetes does.",
    ),
)

_BUDGET = click.option(
    "--budget",
    type=_SECONDS,
    metavar="SECONDS",
    default=300.0,
    show_default="300; with --dra 55, and 290 with --full",
    help="How many seconds the run may take. For a device plugin they begin with its first registration. Checks for "
    "which no time is left are skipped; if one of severity must is among them, the exit status is 1.",
)

_CHOICE = (
    _BUDGET,
    click.option(
        "--only",
        multiple=True,
        metavar="CHECK",
        help="Make only this check, or those of a pattern such as 'gives-*'. May be repeated.",
    ),
    click.option(
        "--skip", multiple=True, metavar="CHECK", help="Leave out this check, or those of a pattern. May be repeated."
    ),
    click.option("--list", "list_only", is_flag=True, help="List the checks and make none."),
)

_FILE = click.Path(dir_okay=False)
_REPORTS = (
    click.option("--junit", type=_FILE, metavar="FILE", help="Also write the report as JUnit XML."),
    click.option(
        "--card",
        type=_FILE,
        metavar="FILE",
        help="Also write a score card: one HTML page, and beside it a badge with the same name and the ending .svg.",
    ),
    click.option("--release", default="", metavar="TEXT", help="The tested version, such as v1.2.3, for the reports."),
    json_option,
)


def plugin_options(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options of a device plugin: the directory, and the fields of its `Settings`."""
    return with_options(command, _PLUGIN)


def choice_options(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options that choose checks: the arguments of `choose`, and `list_only`."""
    return with_options(command, _CHOICE)


def report_options(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options that say where reports go: the fields of `Reporting`."""
    return with_options(command, _REPORTS)
