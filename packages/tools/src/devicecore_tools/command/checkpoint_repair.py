"""`devicecore checkpoint repair`: write a new file without the entries that cannot be right.

Law: everything that is dropped is listed. If two pods hold a device and the user does not say which of them keeps it,
nothing is written.
"""

import codecs
from collections.abc import Sequence

import click

from devicecore.domain.checkpoint import FileVerdict, encode, judge
from devicecore.domain.errors import MalformedCheckpointError, UnreadableReceiptError
from devicecore.domain.model import Receipt
from devicecore.domain.text import foreign_text
from devicecore.domain.text import listed as named
from devicecore_tools.checkpoint.repair import DropReason, Repaired, repaired
from devicecore_tools.checkpoint.salvage import Salvaged, salvage
from devicecore_tools.command.checkpoint_claims import is_claims_file
from devicecore_tools.command.checkpoint_files import (
    NEGATIVE,
    UNUSABLE,
    load,
    lost_fields,
    path_of,
    refuse_to_overwrite,
    write_new,
)
from devicecore_tools.command.node_sources import given_pods
from devicecore_tools.command.options import PLACE, SOURCE, json_option
from devicecore_tools.command.output import MAX_VALUE, complain, print_json
from devicecore_tools.doctor.account.precedence import why_incomplete
from devicecore_tools.doctor.look.formats import examine, why_old_format
from devicecore_tools.doctor.look.values import PodSeen

_COMMAND = "devicecore checkpoint repair"
_OR = "Name all pods on the node, including those in kube-system, or add --force"


@click.command()
@json_option
@click.option(
    "--keep",
    "keep",
    multiple=True,
    metavar="UID",
    help="The pod with this UID keeps the devices that other pods also hold. May be repeated.",
)
@click.option(
    "--pods",
    "pods_file",
    metavar="PODS",
    type=SOURCE,
    help="All pods on the node: a file with the output of the kubelet's /pods or `kubectl get pods -A -o json`. "
    "Entries of other pods, and of pods that have ended, are dropped. - is standard input.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Overwrite NEWFILE if it exists; FILE itself is never overwritten. Drop entries even if PODS may not include "
    "all pods on the node.",
)
@click.argument("file", type=PLACE)
@click.argument("new_file", metavar="NEWFILE", type=PLACE)
def repair(
    *, as_json: bool, keep: tuple[str, ...], pods_file: str | None, force: bool, file: str, new_file: str
) -> int:
    """Write a new file without the entries that cannot be right.

    FILE is the same as for `checkpoint verify`, and is not modified. NEWFILE gets the same data with a correct
    checksum, in the same format (format 1 if FILE has format 0), without:

    \b
    * entries and resources that cannot be read
    * entries with an unreadable answer from the plugin, which a kubelet ignores
    * entries replaced by a later entry for the same container and resource
    * entries of pods that are gone or have ended (--pods)
    * devices of a pod that another pod keeps (--keep)
    * fields within Data that this version does not know, such as those of a newer kubelet

    The command lists everything that it drops. If two pods hold the same device, FILE does not show which of them
    really has it. Unless --keep names one of them, both are listed, nothing is written, and the exit status is 1. Find
    out which pod has the device, and name that pod with --keep. The other pod loses only this device. Delete the other
    pod before the kubelet starts, because its containers may still use the device.

    A list of pods does not prove that a pod is gone if the list is empty, if it contains none of FILE's pods, if it
    shows no node with pods from two namespaces, or if all its pods share a label, as if they had been chosen with a
    selector. In these cases, nothing is written, and the exit status is 1, unless you add --force.

    The exit status is also 1 if nothing in FILE can be read, and 2 if there is no FILE. If the checksum was wrong, the
    data was changed after the kubelet wrote it: compare NEWFILE with what is running on the node before you use it.

    To use NEWFILE, stop the kubelet, replace FILE with it, and start the kubelet.

    \b
    $ devicecore checkpoint repair /var/lib/kubelet/device-plugins repaired
    $ kubectl get pods -A -o json | devicecore checkpoint repair --pods - /var/lib/kubelet repaired
    $ devicecore checkpoint repair --keep 0f6d9a4e-1b7c-4e0c-9c55-6b4b8f2f7f10 /var/lib/kubelet repaired
    """
    if file == pods_file == "-":
        raise click.UsageError("FILE and --pods cannot both be standard input.")
    file = path_of(file)
    refuse_to_overwrite(file, new_file, force=force)
    blob = load(file)
    if blob is None:
        return _refused(file, "there is no checkpoint", as_json=as_json, status=UNUSABLE)
    blob, marked = blob.removeprefix(codecs.BOM_UTF8), blob
    if is_claims_file(file, blob):
        problem = "it contains ResourceClaims, and only device checkpoints can be repaired"
        return _refused(file, problem, as_json=as_json)
    try:
        found = salvage(blob)
    except MalformedCheckpointError as error:
        return _refused(file, f"its entries cannot be read: {error.problem}", as_json=as_json)
    if problem := _why_no_checkpoint(blob, found):
        return _refused(file, problem, as_json=as_json)
    listed = None if pods_file is None else given_pods(pods_file)[0].value or ()
    pods = None if listed is None else _living(listed)
    known = {entry.pod_uid for entry in found.data.entries or () if pods is None or entry.pod_uid in pods}
    if unknown := sorted(set(keep) - known):
        given = "" if pods is None else ", or the pod is not in --pods or has ended"
        uids = (
            f"UIDs that can be kept: {foreign_text(named(sorted(known), 10), 1_000)}" if known else "No pod can be kept"
        )
        message = f"--keep {unknown[0]}: no entry in {file} belongs to a pod with this UID{given}. {uids}."
        raise click.UsageError(message)
    lost = ["a byte-order mark, which stops a kubelet from reading the file"] * (blob != marked) + lost_fields(blob)
    result = repaired(found.data, _is_readable, pods=pods, keep=keep)
    if listed is not None and not force and (why := _why_not_gone(listed, found, result)):
        return _refused(file, f"{pods_file} does not show that pods are gone, because {why}. {_OR}", as_json=as_json)
    if not result.undecided:
        write_new(new_file, encode(result.data, max(found.format, 1)))
    if as_json:
        print_json(_document(file, new_file, found, result, lost))
    else:
        _print(new_file, marked, found, result, lost)
    return NEGATIVE if result.undecided else 0


def _why_no_checkpoint(blob: bytes, found: Salvaged) -> str:
    """Return why a file without usable entries may not be a checkpoint at all, or "" if it is a checkpoint."""
    if found.unreadable or found.data.entries or found.data.registered_devices:
        return ""
    report = examine(blob)[0]
    if report.verdict is FileVerdict.CHECKSUM:
        return "it has no entries, no registered devices and no correct checksum, so it may not be a checkpoint at all"
    return report.problem


def _refused(file: str, problem: str, *, as_json: bool, status: int = NEGATIVE) -> int:
    if as_json:
        print_json({"file": file, "written": None, "problem": problem})
    else:
        complain(_COMMAND, f"{file}: {problem}; nothing is written")
    return status


def _living(pods: Sequence[PodSeen]) -> set[str]:
    """Return the UIDs under which a kubelet may know the pods that have not ended."""
    return {uid for seen in pods if not seen.has_ended for uid in (seen.pod.uid, *seen.other_uids)}


def _why_not_gone(pods: Sequence[PodSeen], found: Salvaged, result: Repaired) -> str:
    """Return why a list does not prove that the pods of dropped entries are gone, or an empty string if it does."""
    ended = {uid for seen in pods if seen.has_ended for uid in (seen.pod.uid, *seen.other_uids)}
    dropped = {one.pod for one in result.dropped if one.reason is DropReason.POD_GONE}
    return why_incomplete(pods, {one.pod_uid for one in found.data.entries or ()}) if dropped - ended else ""


def _is_readable(answer: bytes) -> bool:
    from devicecore.wire.conversion import read_receipt

    try:
        read_receipt(Receipt(answer))
    except UnreadableReceiptError:
        return False
    return True


def _document(file: str, new_file: str, found: Salvaged, result: Repaired, lost: list[str]) -> dict[str, object]:
    from devicecore.system.json_values import to_json

    return {
        "file": file,
        "written": None if result.undecided else new_file,
        "format": max(found.format, 1),
        "entries": len(result.data.entries or ()),
        "unreadable": [to_json(one) for one in found.unreadable],
        "dropped": [to_json(one) for one in result.dropped],
        "lost": lost,
        "undecided": [to_json(one) for one in result.undecided],
        "problem": "several pods hold one device: use --keep to name the pod that keeps it" if result.undecided else "",
    }


def _print(new_file: str, blob: bytes, found: Salvaged, result: Repaired, lost: list[str]) -> None:
    verdict = judge(blob)
    warnings = (verdict.problem, why_old_format(max(found.format, 1)))
    for warning in filter(None, warnings):
        complain(_COMMAND, f"warning: {warning}")
    for unreadable in found.unreadable:
        _echo(f"dropped: {unreadable.place}: {unreadable.problem}")
    for dropped in result.dropped:
        where = f"container {dropped.container} of pod {dropped.pod}: {dropped.resource}"
        _echo(f"dropped: {where}: {', '.join(dropped.devices) or 'no devices'}: {dropped.reason.value}")
    for field in lost:
        _echo(f"lost: {field}")
    for shared in result.undecided:
        held = f"{len(shared.pods)} pods hold {shared.device} of {shared.resource}"
        _echo(f"undecided: {held}: {', '.join(shared.pods)}")
    if result.undecided:
        complain(_COMMAND, "nothing is written: use --keep UID to name the pod that keeps each device")
        return
    count = len(found.unreadable) + len(result.dropped) + len(lost)
    what = "nothing was dropped" if not count else f"{count} dropped, as listed above"
    entries = len(result.data.entries or ())
    _echo(f"wrote {new_file}: {entries} entr{'y' if entries == 1 else 'ies'}, {what}")


def _echo(line: str) -> None:
    click.echo(foreign_text(line, MAX_VALUE))
