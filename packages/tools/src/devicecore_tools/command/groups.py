"""Groups of commands.

Law: a misspelled command is answered by the one that is meant.
"""

from collections.abc import Sequence
from difflib import get_close_matches

import click

from devicecore.domain.text import foreign_text


class Group(click.Group):
    """A group of commands that answers a misspelled command with the one that is meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and the rest of the arguments. Raises click.UsageError if there is none."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            # click has a suggestion since 8.4 only, and knows no command that is imported when it is called.
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
    """Return the command that is most like a name: one that begins with it, or is spelled nearly so, or None."""
    begins = [one for one in commands if len(name) > 1 and one.startswith(name)]
    return next(iter(begins or get_close_matches(name, commands, 1)), None)
