"""The options of `devicecore conformance plugin` and `driver`, grouped by use.

Law: the defaults are taken from the settings of `devicecore_tools.conformance`.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

import click

from devicecore.domain.text import foreign_text
from devicecore_tools.command.options import Target, extended_resource, json_option, option_group, seconds_option

_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_LATE = "A check for which no time is left is not decided; if its severity is must, the exit status is 1."


_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")  # not a shell's ${name}
_ALIKE = 0.7  # a word that is less similar than this to every placeholder may be meant literally


def refuse_misspelled(texts: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a word in braces that is almost a placeholder. Raises click.UsageError, which names the placeholder."""
    for name in (name for text in texts for name in _PLACEHOLDER.findall(text) if name not in known):
        if meant := get_close_matches(name, known, 1, _ALIKE):
            message = f"{{{name}}}: there is no such placeholder. Did you mean {{{meant[0]}}}?"
            raise click.UsageError(message)


def _below_plugins(context: click.Context, option: click.Parameter, text: str) -> str:
    """Read a path below the plugins directory. An empty string is returned unchanged."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\0" in text:
        message = f"{foreign_text(text)!r}: expected a path below {{plugins}}, such as my-driver, without '..'."
        raise click.BadParameter(message, context, option)
    return text


plugin_options = option_group(
    click.option(
        "--resource",
        default="",
        metavar="NAME",
        callback=extended_resource,
        help="The resource to test, such as example.com/gpu; by default the first one that registers.",
    ),
    click.option(
        "--socket-dir",
        "--dir",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="The directory where the plugin looks for kubelet.sock, if it cannot be changed; by default a new "
        "directory. All sockets in this directory are deleted.",
    ),
    click.option(
        "--allow-shared-directory", is_flag=True, help="Accept a --socket-dir that is writable by its group or others."
    ),
    click.option(
        "--registry",
        is_flag=True,
        help="The plugin does not call Register, but waits in the directory for the kubelet's plugin watcher.",
    ),
    seconds_option("--starting", 60.0, "How many seconds the plugin may take for its first registration.", "first"),
    seconds_option("--timeout", 10.0, "How many seconds each answer may take."),
    seconds_option(
        "--returning",
        20.0,
        "How many seconds the plugin may take to register again after a kubelet restart that deletes all sockets.",
    ),
    seconds_option(
        "--noticing",
        8.0,
        "How many seconds the plugin may take to register again after its stream was closed, or after only "
        "kubelet.sock was recreated.",
    ),
    seconds_option("--away", 6.5, "How many seconds the kubelet stays down."),
    seconds_option("--grace", 10.0, "How many seconds the plugin may take to exit after SIGTERM."),
    seconds_option(
        "--budget",
        300.0,
        "The time limit in seconds for the run after the first registration, and for that registration itself. "
        f"{_LATE}",
    ),
    click.option(
        "--provoke-health",
        default="",
        metavar="COMMAND",
        help="A shell command that changes the health of one device, not of all. "
        "In the command, {dir} is replaced by the socket directory.",
    ),
    click.option("--undo-health", default="", metavar="COMMAND", help="A shell command that undoes --provoke-health."),
    click.option(
        "--restart/--no-restart",
        default=True,
        show_default=True,
        help="Restart the plugin when it exits, as Kubernetes does.",
    ),
)
"""Adds to a command the options for a device plugin: the directory, and the fields of `Settings`."""

driver_options = option_group(
    click.option("--full", is_flag=True, help="Run all checks, in up to five minutes."),
    click.option("--node", default="conformance-node", show_default=True, help="The name of the Node object."),
    click.option(
        "--registry-dir",
        type=_DIRECTORY,
        help="Where the driver creates its registration socket, if this cannot be changed; by default a new directory. "
        "Files that the run adds there are deleted.",
    ),
    click.option("--plugins-dir", type=_DIRECTORY, help="The kubelet's plugins directory, if it cannot be changed."),
    click.option("--cdi-dir", type=_DIRECTORY, help="Where the driver writes CDI files, if this cannot be changed."),
    click.option(
        "--data-dir",
        default="",
        metavar="NAME",
        callback=_below_plugins,
        help="A directory below {plugins} that must exist when the driver starts. "
        "The directory is created before each start.",
    ),
    click.option(
        "--env",
        multiple=True,
        metavar="NAME=VALUE",
        help="An environment variable of the driver, with placeholders. May be repeated.",
    ),
    click.option(
        "--claims",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=(
            "A file with a ResourceClaim or ResourceClaimTemplate, whose spec the checks use for their claims, and "
            "with other objects that the driver needs, such as a DeviceClass or CustomResourceDefinition."
        ),
    ),
    click.option(
        "--device-class",
        default="",
        help="The DeviceClass for the claims; by default one that selects all devices of the driver.",
    ),
    click.option(
        "--provoke-devices",
        default="",
        metavar="COMMAND",
        help="A shell command that adds or removes devices. "
        "Placeholders such as {plugins} are replaced in the command.",
    ),
    click.option(
        "--undo-devices", default="", metavar="COMMAND", help="A shell command that undoes --provoke-devices."
    ),
    seconds_option(
        "--starting",
        30.0,
        "How many seconds the driver may take to register and publish its devices for the first time.",
    ),
    seconds_option("--returning", 30.0, "How many seconds the driver may take to register again after a restart."),
    seconds_option("--timeout", 45.0, "How many seconds a call to prepare or unprepare claims may take."),
    seconds_option("--grace", 30.0, "How many seconds the driver may take to exit after SIGTERM."),
    seconds_option(
        "--budget",
        None,
        "How many seconds the run may take; by default 120 (with --full 290), or up to four times as many on a "
        "busy machine. If calls for a claim take more than a second, their duration is added. "
        f"{_LATE}",
    ),
)
"""Adds to a command the options for a DRA driver: the fields of `DriverTestSettings`, and `full`."""

choice_options = option_group(
    click.option(
        "--only",
        multiple=True,
        metavar="CHECK",
        help="Run only this check, or those that match a pattern such as 'gives-*'. May be repeated.",
    ),
    click.option(
        "--skip",
        multiple=True,
        metavar="CHECK",
        help="Leave out this check, or those that match a pattern. May be repeated.",
    ),
    click.option("--list", "list_only", is_flag=True, help="List the checks without running them."),
)
"""Adds to a command the options that choose checks: the arguments of `choose`, and `list_only`."""

report_options = option_group(
    click.option("--junit", type=Target(), metavar="FILE", help="Also write the report as JUnit XML."),
    click.option(
        "--card",
        type=Target(),
        metavar="FILE",
        help="Also write a scorecard: one HTML page, and next to it a badge with the same name and the extension .svg.",
    ),
    click.option("--release", default="", metavar="TEXT", help="The tested version, such as v1.2.3, for the reports."),
    json_option,
)
"""Adds to a command the options that say where reports go: the fields of `Reporting`."""
