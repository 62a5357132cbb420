"""`devicecore checkpoint`: examine and repair the file in which a kubelet keeps which pod has which devices.

Law: no command changes the file that it is given.
"""

import click
from attrs import frozen

from devicecore.domain.checkpoint import CheckpointData, FileReport, FileVerdict, examine
from devicecore.domain.errors import StoreError
from devicecore.domain.text import foreign_text
from devicecore_tools.command.checkpoint_claims import (
    ClaimsFile,
    entries_with,
    examine_claims,
    is_claims_file,
    print_claims,
)
from devicecore_tools.command.checkpoint_convert import convert
from devicecore_tools.command.checkpoint_diff import diff
from devicecore_tools.command.checkpoint_files import facts, load, path_of
from devicecore_tools.command.checkpoint_holders import warnings_about
from devicecore_tools.command.checkpoint_repair import repair
from devicecore_tools.command.options import PLACE, json_option
from devicecore_tools.command.output import MAX_SENTENCE, complain, print_json

_NEGATIVE = 1
_UNUSABLE = 2

_strict_option = click.option("--strict", is_flag=True, help="Exit with status 1 if there is a warning.")


@click.group(short_help="Examine, repair and compare a kubelet's checkpoints.")
def checkpoint() -> None:
    """Examine, repair and compare a kubelet's checkpoint.

    The checkpoint says which pod has which devices.

    \b
    $ devicecore checkpoint verify /var/lib/kubelet/device-plugins

    verify, show and diff also take dra_manager_state, the kubelet's file of prepared ResourceClaims.

    \b
    $ devicecore checkpoint show /var/lib/kubelet/dra_manager_state

    No command changes the file that it is given: repair and convert write a new one.
    """


checkpoint.add_command(repair)
checkpoint.add_command(diff)
checkpoint.add_command(convert)


@checkpoint.command()
@json_option
@_strict_option
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=PLACE)
def verify(*, as_json: bool, strict: bool, files: tuple[str, ...]) -> int:
    """Say whether a kubelet can use a checkpoint.

    The verdict on each FILE is ok, checksum (the data was changed after it was written), malformed or absent. A
    directory stands for the kubelet_internal_checkpoint in it or in its device-plugins, and - for standard input. The
    exit status is 1 if a verdict is not ok.

    A device that two pods hold, or that a pod holds and no plugin has registered as healthy, gives a warning: a kubelet
    accepts such a file. With --strict, the exit status is 1 then as well.

    FILE may be a dra_manager_state, which is known by its content. There, a device of two claims, a claim without pods
    and a claim with two entries give warnings. A file of a kubelet before 1.32 has the verdict checksum, because later
    kubelets refuse it.

    \b
    $ devicecore checkpoint verify --json /backup/*/kubelet_internal_checkpoint
    """
    status = 0
    reports: list[_Examined] = []
    for file in files:
        path = path_of(file)
        try:
            blob = load(path)
        except StoreError as error:
            complain("devicecore checkpoint verify", str(error))
            status = _UNUSABLE
        else:
            reports.append(_examined_any(path, blob))
    if as_json:
        print_json([report.document for report in reports])
    for report in () if as_json else reports:
        for line in (report.sentence, *(f"warning: {warning}" for warning in report.warnings)):
            click.echo(foreign_text(f"{report.file}: {line}", MAX_SENTENCE))
    is_negative = any(not report.is_ok or (strict and report.warnings) for report in reports)
    return status or (_NEGATIVE if is_negative else 0)


@checkpoint.command()
@json_option
@_strict_option
@click.option(
    "--resource", "resources", multiple=True, metavar="NAME", help="Show only this resource. May be repeated."
)
@click.option("--pod", "pods", multiple=True, metavar="UID", help="Show only the pod with this UID. May be repeated.")
@click.option("--free", "free_only", is_flag=True, help="Show only the registered devices that no pod holds.")
@click.argument("file", type=PLACE)
def show(
    *, as_json: bool, strict: bool, resources: tuple[str, ...], pods: tuple[str, ...], free_only: bool, file: str
) -> int:
    """Show which container has which devices.

    Shows the devices of each container by NUMA node, and what else its plugins gave it; then the devices that are
    registered. FILE is one for `checkpoint verify`, and the warnings are the same. If the verdict is not ok, what can
    be read is shown, with exit status 1. Of a dra_manager_state, shows each claim with its pods and devices.

    \b
    $ devicecore checkpoint show /var/lib/kubelet/device-plugins
    $ devicecore checkpoint show --resource example.com/gpu --free /var/lib/kubelet/device-plugins
    """
    from devicecore_tools.command.checkpoint_show import Filter, document, print_checkpoint

    if free_only and pods:
        raise click.UsageError("--free and --pod exclude each other: a free device has no pod.")
    file = path_of(file)
    blob = load(file)
    if is_claims_file(file, blob):
        if resources or free_only:
            raise click.UsageError(f"--resource and --free are for devices of plugins, and {file} has ResourceClaims.")
        return _show_claims(examine_claims(file, blob), pods, as_json=as_json, strict=strict)
    report, found, warnings = _examined(blob)
    is_readable, data = found is not None, found or CheckpointData()
    shown = Filter(resources, pods, free_only)
    if as_json:
        print_json(document(file, report, data, shown))
    elif is_readable:
        said = "ok" if report.verdict is FileVerdict.OK else "the checksum is wrong"
        click.echo(foreign_text(f"{file}: {said} {facts(report)}", MAX_SENTENCE))
        print_checkpoint(report, data, shown)
    for warning in () if as_json else warnings:
        complain("devicecore checkpoint show", f"warning: {warning}")
    if report.verdict is not FileVerdict.OK:
        complain("devicecore checkpoint show", f"{file}: {report.problem}")
        return _NEGATIVE
    return _NEGATIVE if strict and warnings else 0


def _show_claims(found: ClaimsFile, pods: tuple[str, ...], *, as_json: bool, strict: bool) -> int:
    shown = entries_with(found, pods)
    if as_json:
        print_json(found.document(shown))
    else:
        print_claims(found, shown)
        for warning in found.warnings:
            complain("devicecore checkpoint show", f"warning: {warning}")
    if not found.is_ok:
        complain("devicecore checkpoint show", f"{found.file}: {found.report.problem}")
    return _NEGATIVE if not found.is_ok or (strict and found.warnings) else 0


@frozen
class _Examined:
    """A verdict on a file of either kind."""

    file: str
    sentence: str
    document: dict[str, object]
    warnings: tuple[str, ...]
    is_ok: bool


def _examined_any(file: str, blob: bytes | None) -> _Examined:
    from devicecore.system.json_values import to_json

    if is_claims_file(file, blob):
        claims = examine_claims(file, blob)
        return _Examined(file, claims.sentence, claims.document(), claims.warnings, claims.is_ok)
    report, _, warnings = _examined(blob)
    document = {"file": file, "kind": "devices", **to_json(report), "warnings": warnings}
    return _Examined(file, _sentence(report), document, warnings, report.verdict is FileVerdict.OK)


def _examined(blob: bytes | None) -> tuple[FileReport, CheckpointData | None, tuple[str, ...]]:
    """Return the verdict on a file, what can be read of it, and the warnings about that."""
    report, data = examine(blob)
    return report, data, () if data is None else warnings_about(data, report)


def _sentence(report: FileReport) -> str:
    verdict = report.verdict.value
    return f"{verdict}: {report.problem}" if report.problem else f"{verdict} {facts(report)}"
