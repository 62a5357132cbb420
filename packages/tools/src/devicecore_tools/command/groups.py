"""Groups of commands.

Law: the error for a misspelled command names the closest command.
"""

from collections.abc import Sequence
from difflib import get_close_matches

import click

from devicecore.domain.text import foreign_text


class Group(click.Group):
    """A group of commands that suggests the closest command for a misspelled one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and the rest of the arguments.

        Raises click.UsageError if there is no such command.
        """
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            # Before 8.4, click does not suggest commands, and no version knows commands that are imported only when
            # called.
            ctx.fail(f"No such command {foreign_text(name)!r}. {self._hint(ctx, args)}")
        return super().resolve_command(ctx, args)

    def _hint(self, ctx: click.Context, args: list[str]) -> str:
        name, *others = args
        commands = self.list_commands(ctx)
        if name == "help":
            about = [one for one in others if one in commands][:1]
            return f"To show the help, run: {' '.join([ctx.command_path, *about])} --help"
        if name == "version":
            return f"To print the version, run: {ctx.find_root().command_path} --version"
        meant = meant_command(name, commands)
        return f"Did you mean {meant!r}?" if meant else f"To list the commands, run: {ctx.command_path} --help"


def meant_command(name: str, commands: Sequence[str]) -> str | None:
    """Return the command closest to a name: one that starts with it or is spelled similarly, or None."""
    begins = [one for one in commands if len(name) > 1 and one.startswith(name)]
    return next(iter(begins or get_close_matches(name, commands, 1)), None)
