"""`devicecore conformance`: run the conformance checks over a device plugin."""

import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devicecore.cli.output import complain, json_option, print_json
from devicecore.domain.text import foreign_text

if TYPE_CHECKING:
    from devicecore.conformance import Check, Report, Result

_FAILED = 1
_CANNOT_RUN = 2
_SECONDS = click.FloatRange(min=0.1)
_STYLES: dict[str, dict[str, Any]] = {
    "FAIL": {"fg": "red", "bold": True},
    "ok": {"fg": "green"},
    "skip": {"fg": "yellow"},
}
_INDENT = 14  # columns of a result's text below its first line
_LABEL = 10  # columns of `expected: `


@click.command()
@click.option("--resource", default="", help="The resource to test; by default the first that registers.")
@click.option(
    "--socket-dir",
    "--dir",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="The directory in which the plugin looks for kubelet.sock, if that is fixed; by default a new directory. "
    "All sockets in it are deleted.",
)
@click.option(
    "--allow-shared-directory", is_flag=True, help="Accept a --socket-dir that its group or others can write to."
)
@click.option(
    "--registry",
    is_flag=True,
    help="The plugin does not call Register: it waits in the directory for the kubelet's plugin watcher.",
)
@click.option(
    "--starting",
    type=_SECONDS,
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="Seconds until the plugin registers first.",
)
@click.option(
    "--timeout", type=_SECONDS, metavar="SECONDS", default=10.0, show_default=True, help="Seconds for every answer."
)
@click.option(
    "--returning",
    type=_SECONDS,
    metavar="SECONDS",
    default=20.0,
    show_default=True,
    help="Seconds until the plugin registers again after a kubelet restart that deletes all sockets.",
)
@click.option(
    "--noticing",
    type=_SECONDS,
    metavar="SECONDS",
    default=8.0,
    show_default=True,
    help="Seconds until it registers again after a cut stream, or a new kubelet.sock alone.",
)
@click.option(
    "--away",
    type=_SECONDS,
    metavar="SECONDS",
    default=3.0,
    show_default=True,
    help="Seconds for which the kubelet is away.",
)
@click.option(
    "--grace",
    type=_SECONDS,
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Seconds until the plugin ends after SIGTERM.",
)
@click.option(
    "--provoke-health",
    default="",
    metavar="COMMAND",
    help="A shell command that changes the health of a device. {dir} in it is replaced by the socket directory.",
)
@click.option("--undo-health", default="", metavar="COMMAND", help="A shell command that undoes --provoke-health.")
@click.option(
    "--restart/--no-restart",
    default=True,
    show_default=True,
    help="Start the plugin again when it exits, as Kubernetes does.",
)
@click.option("--only", multiple=True, metavar="CHECK", help="Make only this check. Can be given several times.")
@click.option("--skip", multiple=True, metavar="CHECK", help="Leave out this check. Can be given several times.")
@click.option("--list", "list_only", is_flag=True, help="List the checks and make none.")
@click.option("--junit", type=click.Path(dir_okay=False), metavar="FILE", help="Also write the report as JUnit XML.")
@json_option
@click.argument("command", nargs=-1)
def conformance(
    *,
    resource: str,
    socket_dir: str | None,
    allow_shared_directory: bool,
    registry: bool,
    starting: float,
    timeout: float,
    returning: float,
    noticing: float,
    away: float,
    grace: float,
    provoke_health: str,
    undo_health: str,
    restart: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    list_only: bool,
    junit: str | None,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Run the conformance checks over a device plugin, in any language.

    COMMAND starts the plugin. In COMMAND, {dir} is replaced by the socket directory and {socket} by the kubelet's
    socket in it. The environment variables DEVICE_PLUGIN_PATH and KUBELET_SOCKET are set to the same paths:

    $ devicecore conformance -- ./my-plugin --kubelet-dir {dir}

    A plugin whose directory is fixed is tested where that directory is free, for example in a container:

    $ devicecore conformance --socket-dir /var/lib/kubelet/device-plugins -- ./my-plugin

    Without COMMAND, start the plugin by hand.

    Exit status 0 if no check of severity must failed, 1 if one failed, 2 if the plugin cannot be run or the directory
    cannot be used.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC would log every connection that the checks cut
    from devicecore.conformance import reports
    from devicecore.conformance.device_plugin import CHECKS, Settings, run

    checks = _choose(CHECKS, only, skip)
    if list_only:
        _print_list(checks, as_json=as_json)
        return 0
    if undo_health and not provoke_health:
        message = "--undo-health needs --provoke-health."
        raise click.UsageError(message)
    if junit is not None:
        Path(junit).touch()  # fail now, not after all checks
    settings = Settings(
        resource=resource,
        first=starting,
        timeout=timeout,
        returning=returning,
        noticing=noticing,
        away=away,
        grace=grace,
        restart=restart,
        provoke_health=provoke_health,
        undo_health=undo_health,
    )
    report = run(
        command or None,
        settings=settings,
        directory=socket_dir,
        allow_shared_directory=allow_shared_directory,
        registry=registry,
        checks=checks,
        on_ready=lambda directory: None if command else _say_what_to_do(directory, starting, registry=registry),
        on_result=lambda result: None if as_json else _print(result),
    )
    if junit is not None:
        Path(junit).write_text(reports.as_junit(report), encoding="utf-8")
    if as_json:
        print_json(reports.as_document(report))
    else:
        _print_end(report)
    if report.cannot_run:
        return _CANNOT_RUN
    return 0 if report.passed else _FAILED


def _choose(checks: "tuple[Check[Any], ...]", only: tuple[str, ...], skip: tuple[str, ...]) -> "list[Check[Any]]":
    known = {check.name for check in checks}
    for option, names in (("--only", only), ("--skip", skip)):
        if unknown := sorted(set(names) - known):
            message = f"{option} {unknown[0]}: there is no such check; --list lists the checks."
            raise click.UsageError(message)
    return [check for check in checks if (not only or check.name in only) and check.name not in skip]


def _say_what_to_do(directory: Path, seconds: float, *, registry: bool) -> None:
    from devicecore.conformance.model import counted

    what = f"it makes its socket in {directory}" if registry else f"it registers at {directory}/kubelet.sock"
    complain("devicecore conformance", f"start your plugin within {counted(seconds, 'second')}, so that {what}")


def _width() -> int:
    """Return the columns of the terminal; output to files and pipes is not folded."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _fold(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, max(width, 20), break_on_hyphens=False) or [""])


def _print(result: "Result") -> None:
    from devicecore.conformance.reports import WORDS, head

    word = WORDS[result.verdict]
    start = head(result)
    line = f"{start}  {result.actual}"
    if len(line) > _width():
        line = f"{start.rstrip()}\n{textwrap.indent(_fold(result.actual, _width() - _INDENT), ' ' * _INDENT)}"
    click.echo(click.style(word, **_STYLES[word]) + line[len(word) :])
    sys.stdout.flush()  # a reader at the end of a pipe gets each result at once


def _print_end(report: "Report") -> None:
    from devicecore.conformance.model import counted
    from devicecore.conformance.reports import explanation, summary

    if report.not_made:
        number = sum(result.actual == report.not_made for result in report.results)
        click.echo(f"\n{counted(number, 'more check')} {report.not_made}.")
    for result in () if report.not_made else report.failures:
        click.echo(f"\n{click.style(f'{result.name} ({result.severity.value})', bold=True)}")
        for label, text in explanation(result):
            folded = textwrap.indent(_fold(text, _width() - _LABEL - 3), " " * (_LABEL + 3))
            click.echo(f"  {label:<{_LABEL}} {folded.lstrip()}")
    if report.failures and report.output:
        click.echo("\nThe plugin's last output:")
        for text in report.output.splitlines():
            click.echo(f"  {foreign_text(text)}")
    end = _fold(summary(report), _width())
    click.echo("\n" + (click.style(end, fg="red") if not report.passed else end))


def _print_list(checks: "list[Check[Any]]", *, as_json: bool) -> None:
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
