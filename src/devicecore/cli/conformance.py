"""`devicecore conformance`: put somebody's device plugin to the checks."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devicecore.cli.output import complain, json_option, print_json, printable

if TYPE_CHECKING:
    from devicecore.conformance import Check, Report, Result

_BY_HAND = 120.0  # seconds to start a plugin by hand
_SECONDS = click.FloatRange(min=0.1)
_STYLES = {"FAIL": "red", "ok": "green", "skip": "yellow"}


@click.command()
@click.option("--resource", default="", help="The resource to test; by default the first that registers.")
@click.option(
    "--socket-dir",
    "--dir",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Where the plugin looks for kubelet.sock, if it cannot be told; by default a new directory. "
    "All sockets in it are deleted.",
)
@click.option(
    "--registry",
    is_flag=True,
    help="The plugin does not call Register: it waits in the directory for a kubelet's plugin watcher.",
)
@click.option("--starting", type=_SECONDS, default=60.0, show_default=True, help="Seconds to the first registration.")
@click.option("--timeout", type=_SECONDS, default=10.0, show_default=True, help="Seconds for each answer.")
@click.option(
    "--returning",
    type=_SECONDS,
    default=40.0,
    show_default=True,
    help="Seconds for coming back to a kubelet that is there again.",
)
@click.option("--away", type=_SECONDS, default=3.0, show_default=True, help="Seconds that the kubelet stays away.")
@click.option(
    "--provoke-health", default="", metavar="COMMAND", help="A shell command that makes a device's health change."
)
@click.option(
    "--restart/--no-restart",
    default=True,
    show_default=True,
    help="Start the plugin again when it exits, as Kubernetes does.",
)
@click.option("--skip", multiple=True, metavar="CHECK", help="Leave a check out. May be given several times.")
@click.option("--list", "list_only", is_flag=True, help="Say what is checked, and check nothing.")
@click.option("--junit", type=click.Path(dir_okay=False), metavar="FILE", help="Write the report as JUnit XML too.")
@json_option
@click.argument("command", nargs=-1)
def conformance(
    *,
    resource: str,
    socket_dir: str | None,
    registry: bool,
    starting: float,
    timeout: float,
    returning: float,
    away: float,
    provoke_health: str,
    restart: bool,
    skip: tuple[str, ...],
    list_only: bool,
    junit: str | None,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Put a device plugin to the checks, in whatever language it is written.

    COMMAND starts it. In its words {dir} stands for the socket directory and {socket} for the kubelet's socket in it;
    the environment variables DEVICE_PLUGIN_PATH and KUBELET_SOCKET hold them too:

    $ devicecore conformance -- ./my-plugin --kubelet-dir {dir}

    A plugin whose directory is fixed is tested where that directory is free to be used, such as in a container:

    $ devicecore conformance --socket-dir /var/lib/kubelet/device-plugins -- ./my-plugin

    Without a COMMAND, the plugin is started by hand.

    Exit status 0 if no must-check failed, 1 if one did, 2 if the plugin cannot be run or the directory not be used.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it would tell of each of the ends that are brought about here
    from devicecore.conformance import CHECKS, Settings, reports, run

    known = {check.name for check in CHECKS}
    if unknown := sorted(set(skip) - known):
        message = f"--skip {unknown[0]}: there is no such check; --list names them."
        raise click.UsageError(message)
    checks = [check for check in CHECKS if check.name not in skip]
    if list_only:
        _print_list(checks, as_json=as_json)
        return 0
    if junit is not None:
        Path(junit).touch()  # to be told before, and not after, that this cannot be
    settings = Settings(
        resource=resource,
        first=starting if command else _BY_HAND,
        timeout=timeout,
        returning=returning,
        away=away,
        restart=restart,
        provoke_health=provoke_health,
    )
    report = run(
        command or None,
        settings=settings,
        directory=socket_dir,
        registry=registry,
        checks=checks,
        ready=lambda directory: None if command else _say_what_to_do(directory, registry=registry),
        told=lambda result: None if as_json else _print(result),
    )
    if junit is not None:
        Path(junit).write_text(reports.as_junit(report), encoding="utf-8")
    if as_json:
        print_json(reports.as_document(report))
    else:
        _print_end(report)
    return 0 if report.passed else 1


def _say_what_to_do(directory: Path, *, registry: bool) -> None:
    what = f"waits to be found in {directory}" if registry else f"registers at {directory}/kubelet.sock"
    complain(
        "devicecore conformance",
        f"start your plugin now, so that it {what}; you have {_BY_HAND:g} seconds",
    )


def _print(result: "Result") -> None:
    from devicecore.conformance.reports import line

    text = printable(line(result))
    word = text.split(maxsplit=1)[0]
    click.echo(click.style(word, fg=_STYLES[word]) + text[len(word) :])
    sys.stdout.flush()  # for whoever reads it from a pipe, and waits


def _print_end(report: "Report") -> None:
    from devicecore.conformance.reports import explanation, summary

    for result in report.results:
        if result.failed:
            click.echo("")
            for text in explanation(result):
                click.echo(printable(text))
    if not report.passed and report.output:
        click.echo("\nThe plugin's last output:")
        for text in report.output.splitlines():
            click.echo(f"  {printable(text)}")
    click.echo(f"\n{summary(report)}")


def _print_list(checks: "list[Check]", *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "name": check.name,
                    "severity": check.severity.value,
                    "done": check.done,
                    "expected": check.expected,
                    "clause": check.clause,
                }
                for check in checks
            ]
        )
        return
    for check in checks:
        click.echo(f"{check.severity.value:<6}  {check.name:<40}  {check.done}")
