"""The tree of commands.

Law: a command is imported when it is called or completed, so `devicecore --help` imports none. Importing a command
loads neither gRPC nor rich nor protobuf.
"""

from importlib import import_module
from importlib.util import find_spec

import click

from devicecore_tools.command.distributions import GROUP, command_of, fleet_entry_point, names_of
from devicecore_tools.command.groups import Group

COMMANDS = {
    "api-server": ("api_server:api_server", "Serve an API server for tests, without a cluster."),
    "checkpoint": ("checkpoint:checkpoint", "Examine, repair and compare a kubelet's checkpoints."),
    "conformance": ("conformance:conformance", "Check a device plugin or a DRA driver written in any language."),
    "demo": ("demo.command:demo", "See the device manager at work on this machine."),
    "doctor": ("doctor:doctor", "Read a node, and say what is wrong with its devices."),
    "dra-driver": ("dra_driver:dra_driver", "Run a DRA driver that needs no hardware."),
    "fits": ("fits:fits", "Say whether POD fits on a node, and which devices it would get."),
    "kubelet": ("kubelet.command:kubelet", "Run a device manager in place of a kubelet."),
    "nodes": ("nodes:nodes", "Show the devices of each node, and which pods hold them."),
    # Importing plugin_directory adds its command to the group `plugin`.
    "plugin": ("plugin_directory:plugin", "Run a device plugin that needs no hardware."),
    "why": ("why:why", "Explain why a pod or a claim was refused or waits."),
}
"""The module and the summary of each command, by the command's name. Summaries fit into 80 columns."""


WITHOUT_GRPC = frozenset({"checkpoint", "doctor", "fits", "nodes", "why"})
"""The commands that devicecore.pyz, the single file without gRPC, can run."""

FLEET = {"fleet": "Run many nodes in one process, without machines."}
"""The commands of devicecore-fleet, with their summaries.

These commands are listed even if devicecore-fleet is not installed.
"""


class _CommandTree(Group):
    """A group that knows the names and summaries of its commands, and imports each command only when it is used."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command with this name, or return None if there is no such command."""
        try:
            return self._command(cmd_name)
        except click.ClickException:
            if ctx.resilient_parsing:  # the other commands must still be completed in a shell
                return None
            raise

    @staticmethod
    def _command(cmd_name: str) -> click.Command | None:
        command: click.Command | None
        if cmd_name in FLEET:
            command = fleet_entry_point(GROUP, cmd_name, "this command")
            return command
        if cmd_name not in COMMANDS:
            return command_of(cmd_name)
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(f"devicecore_tools.command.{module}"), name)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, including the commands of other distributions."""
        del ctx
        return sorted({*COMMANDS, *FLEET, *names_of(GROUP)})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command, as click does, but without importing the commands."""
        said = {name: f"A command of {other}." for name, other in names_of(GROUP).items()} | FLEET
        said |= {name: summary for name, (_, summary) in COMMANDS.items()}
        known = self.list_commands(ctx)
        can_run = [name for name in known if name in WITHOUT_GRPC] if find_spec("grpc") is None else known
        for title, names in (("Commands", can_run), ("Commands that need an installation", {*known} - {*can_run})):
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, said[name]) for name in sorted(names)])


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - how click calls it
    if wanted:
        from importlib import metadata

        try:
            click.echo(f"devicecore {metadata.version('devicecore')}")
        except metadata.PackageNotFoundError:
            click.echo("devicecore, not installed")
        context.exit()


@click.group(
    cls=_CommandTree,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def devicecore() -> None:
    """Run, test and examine the device manager of a Kubernetes node.

    Start with a demonstration on this machine, which takes a few seconds:

    \b
    $ devicecore demo

    The exit status is 0 if all is well, 1 if something is wrong, 2 for wrong usage or unusable input, 3 if there is too
    little information to decide, and 4 if only a bug in Kubernetes prevents success. Every listing has --json.
    """
