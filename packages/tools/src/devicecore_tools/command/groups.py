"""Groups of commands.

Law: the error for a misspelled command names the closest command, no option takes the next option as its value, no
source is ignored because its option was given twice, no option is ignored because another one is missing, and no two
options write the same file. If the context's `obj` is a list, each command's name is appended to it before the command
is imported.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from devicecore.domain.text import foreign_text


class Group(click.Group):
    """A group of commands that suggests the closest command for a misspelled one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and the rest of the arguments.

        Raises click.UsageError if there is no such command, or if an option is given without its value.
        """
        name = args[0]
        if isinstance(ctx.obj, list):
            ctx.obj.append(name)
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            # Before 8.4, click does not suggest commands, and no version knows commands that are imported only when
            # called.
            ctx.fail(f"No such command {foreign_text(name)!r}. {self._hint(ctx, args)}")
        resolved, command, others = super().resolve_command(ctx, args)
        if isinstance(command, click.Command) and not isinstance(command, click.Group) and not ctx.resilient_parsing:
            context = click.Context(command, parent=ctx, info_name=resolved)
            _refuse_option_as_value(context, others)
            _refuse_second_source(context, others)
            try:
                given = command.make_parser(context).parse_args([*others])[0]
            except click.UsageError:
                pass  # click reports this error when it runs the command
            else:
                of_help = command.get_help_option(context)
                if of_help is None or of_help.name not in given:
                    _refuse_useless_option(context, given)
                    _refuse_unreadable_name(context, given)
                    _refuse_shared_target(context, given)
                    _explain_wait(context, given)
        return resolved, command, others

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


def _refuse_option_as_value(context: click.Context, args: Sequence[str]) -> None:
    """Raise click.UsageError if an option that needs a value is followed by an option, which click takes as the value.

    Without this check, `--html --root DIR` would write a file called `--root`.
    """
    takes_value = {
        name: one
        for one in context.command.params
        if isinstance(one, click.Option) and not one.is_flag and not one.count
        for name in one.opts
    }
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            return
        if arg in takes_value and (value := next(rest, "")).startswith("--"):
            metavar = takes_value[arg].make_metavar(context)
            hint = f"If this is the value, write {arg}={value}." if arg.startswith("--") else ""
            shown = foreign_text(value)
            raise click.UsageError(f"{arg}: expected {metavar}, got {shown!r}. {hint}".rstrip(), context)


def _refuse_second_source(context: click.Context, args: Sequence[str]) -> None:
    """Raise click.UsageError if an option that names one source is given twice.

    click would use only the last one, and the answer would not say that the first one was not read.
    """
    from devicecore_tools.command.options import SOURCE  # the list of commands does not need this import

    options = {name: one for one in context.command.params if isinstance(one, click.Option) for name in one.opts}
    given: dict[str | None, str] = {}
    rest = iter(args)
    for arg in rest:
        if arg == "--" or not (arg.startswith("-") or context.allow_interspersed_args):
            return
        name, is_joined, value = arg.partition("=")
        option = options.get(name)
        if option is None or option.is_flag or option.count:
            continue
        value = value if is_joined else next(rest, "")
        if option.type is SOURCE and not option.multiple and given.setdefault(option.name, value) != value:
            both = f"{foreign_text(given[option.name])} and {foreign_text(value)}"
            what = "directory" if option.metavar == "DIR" else str(option.metavar).lower()
            raise click.UsageError(f"{name} was given twice: {both}. Give only one {what}.", context)


_NEEDS = re.compile("With (--[a-z-]+): ")


def _refuse_useless_option(context: click.Context, given: Mapping[str, object]) -> None:
    """Raise click.UsageError if an option was given without the option that its help names: "With --X: ..."."""
    names = {name: option.name for option in context.command.params for name in option.opts}
    for option in context.command.params:
        needs = _NEEDS.match((isinstance(option, click.Option) and option.help) or "")
        if needs is not None and option.name in given and names[needs[1]] not in given:
            flag = option.secondary_opts[0] if given[option.name] is False else _longest(option)
            raise click.UsageError(f"{flag} needs {needs[1]}.", context)


def _refuse_unreadable_name(context: click.Context, given: Mapping[str, object]) -> None:
    """Raise click.UsageError for the name of a file that is a URL, or whose ~ the shell has not replaced.

    A shell leaves --kubeconfig=~/config as it is, and kubectl, unlike this command, reads from a URL.
    """
    from devicecore_tools.command.options import Place

    for option in context.command.params:
        found = given.get(option.name or "") if isinstance(option.type, click.Path | Place) else None
        for name in found if isinstance(found, list | tuple) else [found]:
            if not isinstance(name, str) or os.path.lexists(name):
                continue
            prefix = "" if isinstance(option, click.Argument) else f"{_longest(option)}: "
            if name.startswith(("http://", "https://")):
                advice = "expected the name of a file, got a URL. First write its content to a file with curl."
                raise click.UsageError(f"{prefix}{foreign_text(name)}: {advice}", context)
            if name.startswith("~/") and "HOME" in os.environ:
                advice = f"the shell has not replaced ~ here. Write {foreign_text(os.path.expanduser(name))}."  # noqa: PTH111 - a string
                raise click.UsageError(f"{prefix}{foreign_text(name)}: {advice}", context)


def _refuse_shared_target(context: click.Context, given: Mapping[str, object]) -> None:
    """Raise click.UsageError if two options name the same file to write."""
    from devicecore_tools.command.options import Target

    targets: dict[Path, str] = {}
    for option in context.command.params:
        name = given.get(option.name or "")
        if isinstance(option.type, Target) and isinstance(name, str):
            this = _longest(option)
            other = targets.setdefault(Path(name).absolute(), this)
            if other != this:
                raise click.UsageError(f"{other} and {this} name the same file: {foreign_text(name)}.", context)


def _explain_wait(context: click.Context, given: Mapping[str, object]) -> None:
    """Say that the command waits for input if `-` stands for standard input, which is a terminal."""
    from devicecore_tools.command.options import Place

    for option in context.command.params:
        found = given.get(option.name or "")
        reads = isinstance(option.type, Place) or "MESSAGE" in (option.metavar or "")
        is_named = reads and "-" in (found if isinstance(found, list | tuple) else [found])
        if is_named and not sys.stdin.closed and sys.stdin.isatty():
            sys.stderr.write(f"{context.command_path}: reading standard input; to end it, press Ctrl-D\n")
            return


def _longest(option: click.Parameter) -> str:
    return max(option.opts, key=len)


def meant_command(name: str, commands: Sequence[str]) -> str | None:
    """Return the command closest to a name: one that starts with it or is spelled similarly, or None."""
    begins = [one for one in commands if len(name) > 1 and one.startswith(name)]
    return next(iter(begins or get_close_matches(name, commands, 1)), None)
