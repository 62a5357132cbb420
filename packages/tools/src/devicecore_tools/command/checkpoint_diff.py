"""`devicecore checkpoint diff`: what differs between two files.

Law: the exit status is 0 only if both files say the same.
"""

import itertools
from collections.abc import Iterable, Iterator

import click

from devicecore.domain.checkpoint import Decoded, FileReport, FileVerdict, decode, judge
from devicecore.domain.text import foreign_text
from devicecore_tools.checkpoint.claims import StateDifference, state_difference
from devicecore_tools.checkpoint.difference import ChangedEntry, ChangedRegistration, Difference, Holding, difference
from devicecore_tools.command.checkpoint_claims import (
    ClaimsFile,
    counted_claims,
    examine_claims,
    is_claims_file,
    lines_of,
)
from devicecore_tools.command.checkpoint_files import facts, load, path_of
from devicecore_tools.command.options import PLACE, json_option
from devicecore_tools.command.output import MAX_VALUE, complain, print_json

_COMMAND = "devicecore checkpoint diff"
_DIFFERENT = 1
_UNUSABLE = 2
_WITH_NUMA_NODES = 2  # the format that has NUMA nodes


@click.command()
@json_option
@click.argument("before", type=PLACE)
@click.argument("after", type=PLACE)
def diff(*, as_json: bool, before: str, after: str) -> int:
    """Compare two checkpoints by pod, container, resource and device.

    Says which devices containers hold in AFTER only (added), in BEFORE only (removed), or in both but another
    container (moved); where NUMA nodes, the plugin's answer or the registered devices differ; and whether format and
    checksum do. NUMA nodes are compared if both files have format 2, because the older formats have none. If only the
    checksum differs, the entries are in another order, or a file was changed by hand.

    Of two files dra_manager_state, says which claims only one has, and which have other pods or devices.

    BEFORE and AFTER are files for `checkpoint verify`. A file with a wrong checksum is compared, with a warning. The
    exit status is 0 if nothing differs, 1 if something does, and 2 if a file cannot be read.

    \b
    $ devicecore checkpoint diff /backup/kubelet_internal_checkpoint /var/lib/kubelet/device-plugins
    """
    from devicecore.system.json_values import to_json

    files = path_of(before), path_of(after)
    blobs = tuple(map(load, files))
    kinds = {is_claims_file(file, blob) for file, blob in zip(files, blobs, strict=True)}
    if len(kinds) > 1:
        message = f"{files[0]} and {files[1]} cannot be compared: one has devices of plugins, one has ResourceClaims."
        raise click.UsageError(message)
    if True in kinds:
        return _diff_claims([examine_claims(*one) for one in zip(files, blobs, strict=True)], as_json=as_json)
    (first, report), (second, other_report) = map(_read, files, blobs)
    if first is None or second is None:
        if as_json:
            print_json({"files": list(map(_file, files, (report, other_report)))})
        return _UNUSABLE
    with_numa = report.format == other_report.format == _WITH_NUMA_NODES
    found = difference(first.data, second.data, with_numa=with_numa)
    is_other_file = (report.format, report.stored) != (other_report.format, other_report.stored)
    if as_json:
        print_json({"files": list(map(_file, files, (report, other_report))), **to_json(found)})
    else:
        _print_lines(
            [*_lines(found), *([f"files: {facts(report)} and {facts(other_report)}"] if is_other_file else [])]
        )
    return _DIFFERENT if is_other_file or found != Difference() else 0


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(foreign_text(line, MAX_VALUE))


def _diff_claims(files: list[ClaimsFile], *, as_json: bool) -> int:
    from devicecore.system.json_values import to_json

    before, after = files
    for one in files:
        if not one.is_ok:
            complain(_COMMAND, f"{'' if one.entries is None else 'warning: '}{one.file}: {one.report.problem}")
    documents = [one.document() for one in files]
    if before.entries is None or after.entries is None:
        if as_json:
            print_json({"files": documents})
        return _UNUSABLE
    found = state_difference(before.entries, after.entries)
    is_other_file = before.report.stored != after.report.stored
    if as_json:
        print_json({"files": documents, **to_json(found)})
    else:
        both = f"files: {counted_claims(before)} and {counted_claims(after)}"
        _print_lines([*lines_of(found), *([both] if is_other_file else [])])
    return _DIFFERENT if is_other_file or found != StateDifference() else 0


def _read(file: str, blob: bytes | None) -> tuple[Decoded | None, FileReport]:
    report = judge(blob)
    is_readable = report.verdict in {FileVerdict.OK, FileVerdict.CHECKSUM}
    if report.verdict is not FileVerdict.OK:
        complain(_COMMAND, f"{'warning: ' if is_readable else ''}{file}: {report.problem}")
    return decode(blob or b"") if is_readable else None, report


def _file(file: str, report: FileReport) -> dict[str, object]:
    from devicecore.system.json_values import to_json

    return {"file": file, "kind": "devices", **to_json(report)}


def _lines(found: Difference) -> Iterator[str]:
    yield from _of_holdings("removed", found.removed)
    yield from _of_holdings("added", found.added)
    for move in found.moved:
        device = f"{move.before.resource}: {move.before.device}"
        yield f"moved: {device}: from {_container(move.before)} to {_container(move.after)}"
    for changed in found.changed:
        yield f"changed: {_container(changed)}: {changed.resource}: {_what(changed)}"
    for one in found.registered:
        yield f"registered: {_registration(one)}"
    for name in found.fields:
        yield f"field {name}: differs"


def _of_holdings(title: str, holdings: tuple[Holding, ...]) -> Iterator[str]:
    grouped = itertools.groupby(holdings, lambda one: (one.pod, one.container, one.resource))
    for (_, _, resource), group in grouped:
        listed = list(group)
        yield f"{title}: {_container(listed[0])}: {resource}: {', '.join(one.device for one in listed)}"


def _container(held: Holding | ChangedEntry) -> str:
    return f"container {held.container} of pod {held.pod}"


def _what(changed: ChangedEntry) -> str:
    differing = [(changed.has_other_answer, "the plugin's answer"), (changed.has_other_numa_nodes, "the NUMA nodes")]
    return f"{' and '.join(name for differs, name in differing if differs)} differ"


def _registration(one: ChangedRegistration) -> str:
    if not one.was:
        return f"{one.resource}: new resource: {', '.join(one.added) or 'no devices'}"
    if not one.is_now:
        return f"{one.resource}: resource is gone: {', '.join(one.removed) or 'no devices'}"
    changes = [("added", one.added), ("removed", one.removed)]
    return f"{one.resource}: " + "; ".join(f"{name} {', '.join(ids)}" for name, ids in changes if ids)
