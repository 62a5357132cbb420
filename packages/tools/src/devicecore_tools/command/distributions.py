"""Loads what other distributions add to the command `devicecore` through entry points.

Law: a missing distribution is reported in one sentence that names what to install.
"""

from importlib.util import find_spec
from typing import Any

import click

from devicecore.domain.text import foreign_text

GROUP = "devicecore.commands"
"""The entry point group in which a distribution registers commands: the name of each, and its click command."""


def names_of(group: str) -> dict[str, str]:
    """Return the entry points of a group, each with the name of its distribution."""
    from importlib.metadata import entry_points  # imported here because our own commands do not need it

    return {found.name: found.dist.name if found.dist else "" for found in entry_points(group=group)}


def entry_point(group: str, name: str, distribution: str | None = None) -> Any:  # noqa: ANN401 - the type depends on the group
    """Import and return an entry point, or return None if it is not found, or not in `distribution`.

    Any error during the import becomes a click.ClickException, because anyone may have written the distribution.
    """
    from importlib.metadata import entry_points

    for found in entry_points(group=group, name=name):
        owner = found.dist.name if found.dist else "another distribution"
        if distribution not in {None, owner} or find_spec(found.module.partition(".")[0]) is None:
            continue
        try:
            return found.load()
        except Exception as error:
            why = foreign_text(f"{type(error).__name__}: {error}")
            raise click.ClickException(f"{name} from {owner} cannot be imported: {why}") from error
    return None


def command_of(name: str) -> click.Command | None:
    """Import and return another distribution's command, or return None if no distribution has the command.

    Raises click.ClickException if the command cannot be imported, or is not a click command.
    """
    command = entry_point(GROUP, name)
    if command is None or isinstance(command, click.Command):
        return command
    raise click.ClickException(
        f"{name} from another distribution: expected a click.Command, got {type(command).__name__}"
    )


def fleet_entry_point(group: str, name: str, what: str) -> Any:  # noqa: ANN401 - the type depends on the group
    """Import and return an entry point of devicecore-fleet.

    If devicecore-fleet is not installed, raises a click.ClickException that says that `what` needs it.
    """
    found = entry_point(group, name, "devicecore-fleet")
    if found is None:
        raise click.ClickException(
            f"{what} needs the distribution devicecore-fleet: in a clone, pip install . ./packages/tools "
            "./packages/fleet; elsewhere, pip install devicecore-fleet"
        )
    return found
