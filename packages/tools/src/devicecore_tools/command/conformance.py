"""`devicecore conformance`: run the conformance checks on a device plugin or a DRA driver.

Law: the exit status of a run is 0 only if a check was run, and every check of severity "must" had enough time and did
not fail.
"""

import os
from shutil import which
from typing import TextIO

import click

from devicecore.domain.text import foreign_text
from devicecore_tools.command.conformance_driver import driver
from devicecore_tools.command.conformance_faults import faults
from devicecore_tools.command.conformance_plugin import plugin
from devicecore_tools.command.groups import Group

MAX_CARD = 16 * 1024 * 1024
"""The maximum number of characters that are read from a scorecard."""


class _Kinds(Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, or None if there is none."""
        if cmd_name == "dra":  # `dra` means `driver`, but click would not suggest it
            ctx.fail("No such command 'dra'. Did you mean 'driver'?")
        return super().get_command(ctx, cmd_name)

    def _hint(self, ctx: click.Context, args: list[str]) -> str:
        program = foreign_text(args[0])
        if "/" in program or which(program):
            kinds = (f"{ctx.command_path} {kind} -- {program}" for kind in ("plugin", "driver"))
            return f"Say what to check: {' or '.join(kinds)}"
        return super()._hint(ctx, args)


@click.group(cls=_Kinds, short_help="Check a device plugin or a DRA driver written in any language.")
def conformance() -> None:
    """Test a device plugin or a DRA driver written in any language.

    The conformance checks are described in docs/conformance.md. Each failure says what was expected and what happened
    instead.

    \b
    $ devicecore conformance plugin -- ./my-plugin --device-plugin-path {dir}
    $ devicecore conformance driver -- ./my-driver --kubeconfig {kubeconfig} --cdi-root {cdi}
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC would log every connection that the checks close


@conformance.command()
@click.argument("old", type=click.File(encoding="utf-8", errors="replace"))
@click.argument("new", type=click.File(encoding="utf-8", errors="replace"))
def compare(*, old: TextIO, new: TextIO) -> int:
    """Compare two scorecards, and print what has changed.

    \b
    $ devicecore conformance compare v1.html v2.html

    The exit status is 1 if a "must" check fails on the second card but did not on the first. The exit status is also 1
    if a "must" check on the first card was not run or not decided on the second card, because the check might now fail.
    So compare only cards from runs with the same --only, --skip and --full.
    """
    from devicecore_tools.conformance.card import NOT_MADE, differences, title_of

    pages = old.read(MAX_CARD), new.read(MAX_CARD)
    for what, file, page in zip(("old", "new"), (old, new), pages, strict=True):
        title = title_of(page)
        if not title:
            raise click.UsageError(
                f"{foreign_text(file.name)}: expected a scorecard, the page that `devicecore conformance --card FILE` "
                "writes, got a different file."
            )
        click.echo(foreign_text(f"{what}: {title}"))
    found = differences(*pages)
    for name, severity, before, after in found:
        click.echo(foreign_text(f"{severity:<6}  {name:<40}  {before} -> {after}"))
    if not found:
        click.echo("no check has a different verdict")
    return int(
        any(severity == "must" and after in {"failed", "undecided", NOT_MADE} for _, severity, _, after in found)
    )


conformance.add_command(plugin)
conformance.add_command(driver)
conformance.add_command(faults)
