"""The tree of commands.

Law: importing the tree loads neither gRPC nor rich nor protobuf, so `--help` takes no time.
"""

import click

from devicecore.cli.checkpoint import checkpoint
from devicecore.cli.conformance import conformance
from devicecore.cli.demo.command import demo
from devicecore.cli.doctor import doctor
from devicecore.cli.dra_driver import dra_driver
from devicecore.cli.fits import fits
from devicecore.cli.kubelet.command import kubelet
from devicecore.cli.plugin import plugin
from devicecore.cli.plugin_directory import directory
from devicecore.cli.why import why


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - how click calls it
    if wanted:
        from importlib import metadata

        try:
            click.echo(f"devicecore {metadata.version('devicecore')}")
        except metadata.PackageNotFoundError:
            click.echo("devicecore, not installed")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def devicecore() -> None:
    """Run, test and examine the device manager of a Kubernetes node.

    Start with a demonstration on this machine, which takes a few seconds:

    \b
    $ devicecore demo

    The exit status is 0 if all is well, 1 for a negative finding, and 2 for wrong usage or something that cannot be
    used. Every listing has --json.
    """


devicecore.add_command(demo)
devicecore.add_command(kubelet)
devicecore.add_command(plugin)
plugin.add_command(directory)
devicecore.add_command(dra_driver)
devicecore.add_command(conformance)
devicecore.add_command(checkpoint)
devicecore.add_command(doctor)
devicecore.add_command(why)
devicecore.add_command(fits)
