"""What other distributions add to the command `devicecore`: they name it in groups of entry points.

Law: what is missing is one sentence with the distribution to install.
"""

from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import click


def names_of(group: str) -> dict[str, str]:
    """Return the entry points of a group, each with the name of its distribution."""
    return {found.name: found.dist.name if found.dist else "" for found in entry_points(group=group)}


def entry_point(group: str, name: str) -> Any:  # noqa: ANN401 - what the group says
    """Return what an entry point names, imported. Return None if there is no such distribution."""
    for found in entry_points(group=group, name=name):
        if find_spec(found.module.partition(".")[0]) is not None:
            return found.load()
    return None


def fleet_entry_point(group: str, name: str, what: str) -> Any:  # noqa: ANN401 - what the group says
    """Return what an entry point of devicecore-fleet names, imported.

    Raises click.ClickException if it is not installed: `what` needs it.
    """
    found = entry_point(group, name)
    if found is None:
        raise click.ClickException(
            f"{what} needs the distribution devicecore-fleet: in a clone, pip install . ./packages/tools "
            "./packages/fleet; elsewhere, pip install devicecore-fleet"
        )
    return found
