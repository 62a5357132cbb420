"""Groups of commands.

Law: a misspelled command is answered by the one that is meant.
"""

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
            meant = get_close_matches(name, self.list_commands(ctx), 1)
            hint = f"Did you mean {meant[0]!r}?" if meant else f"To list the commands, run: {ctx.command_path} --help"
            ctx.fail(f"No such command {foreign_text(name)!r}. {hint}")
        return super().resolve_command(ctx, args)
