"""Checks of the checkpoint file, and of CDI devices and the files that define them.

Law: a file that was not read yields no finding.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from devicecore.domain.checkpoint import FileVerdict
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.account.dra import DraDevices
from devicecore_tools.doctor.account.precedence import Holders, OwnerState, believed_file
from devicecore_tools.doctor.findings.finding import Evidence, Found, described
from devicecore_tools.doctor.look.formats import FORMAT_2, kubelet_version, version_in
from devicecore_tools.doctor.look.names import by_number, name, names
from devicecore_tools.doctor.look.values import NO_DIRECTORY, Look, ReceiptSeen, Source, grouped

_CONVERTS = (1, 21)  # kubelets from this version to 1.29 read format 1 and put all devices on NUMA node 0
_NO_FORMAT_1 = (1, 30)
_MAX_FILES = 5  # the maximum number of files that a finding names


def unreadable_checkpoint(look: Look) -> Iterator[Found]:
    """Find out whether the checkpoint cannot be read at all."""
    file = look.checkpoint.value
    if file is not None and file.verdict.verdict is FileVerdict.MALFORMED and not file.unwritable:
        problem = foreign_text(file.verdict.problem, 300)
        sentence = f"The checkpoint cannot be read: {problem}."
        yield Found(sentence, (Evidence(Source.CHECKPOINT, f"{look.checkpoint.place}: {problem}"),))


def unwritable_checkpoint(look: Look) -> Iterator[Found]:
    """Find out whether the kubelet cannot write its checkpoint."""
    if why := look.unwritable:
        evidence = (Evidence(Source.CHECKPOINT, f"{look.checkpoint.place}: {why}"),)
        yield Found(f"The kubelet cannot write its checkpoint: {why}.", evidence)


def wrong_checksum(look: Look) -> Iterator[Found]:
    """Find out whether the checkpoint's checksum is wrong."""
    file = look.checkpoint.value
    if file is not None and file.verdict.verdict is FileVerdict.CHECKSUM:
        verdict = file.verdict
        sentence = f"The checkpoint was changed after it was written: {foreign_text(verdict.problem, 300)}."
        text = f"the file contains the checksum {verdict.stored}, but its data has {verdict.computed}"
        yield Found(sentence, (Evidence(Source.CHECKPOINT, text),))


def old_format(look: Look) -> Iterator[Found]:
    """Find out whether this kubelet no longer writes the checkpoint's format."""
    file = believed_file(look)
    if file is None or file.verdict.format in {None, 2}:
        return
    node, version = look.node.value, kubelet_version(look)
    if version is None or version < FORMAT_2:
        return  # `report.not_ruled_out` names an unknown version
    evidence = [Evidence(Source.CHECKPOINT, f"format {file.verdict.format}")]
    if node and version_in(node.kubelet_version):
        evidence.append(Evidence(Source.NODE, f"kubelet {foreign_text(node.kubelet_version, 60)}"))
    else:
        evidence.append(Evidence(Source.POD_RESOURCES, "the kubelet serves pod resources v1, so it is 1.20 or later"))
    sentence = f"The checkpoint has format {file.verdict.format}, which kubelets before 1.20 wrote."
    converts = file.verdict.format == 1 and _CONVERTS <= version < _NO_FORMAT_1
    following = _READS_IT if converts else ""
    yield Found(sentence, tuple(evidence), next=following)


_READS_IT = (
    "This kubelet still reads the file at its next start, but puts every device on NUMA node 0, and writes format 2 "
    "afterwards. A kubelet from 1.30 on would start without any allocation."
)


def unreadable_receipt(look: Look, holders: Holders) -> Iterator[Found]:
    """Find unreadable plugin answers in the checkpoint."""
    file = believed_file(look)
    if file is None:
        return
    for receipt in file.receipts:
        if receipt.problem:
            sentence = (
                f"In the checkpoint, the entry of {_entry(receipt)} has an answer from the plugin for "
                f"{name(receipt.resource)} that cannot be read."
            )
            problem = foreign_text(receipt.problem, 200)
            allocation = holders.entries.get((receipt.key, receipt.resource))
            devices = tuple(map(str, allocation.device_ids)) if allocation else ()
            evidence = (Evidence(Source.CHECKPOINT, f"AllocResp: {problem}"),)
            yield Found(sentence, evidence, str(receipt.resource), devices)


def duplicate_cdi_names(look: Look) -> Iterator[Found]:
    """Find devices that two CDI files in one directory define, or that one file defines twice."""
    specs = look.cdi.value.valid if look.cdi.value else ()
    places = grouped(((spec.directory, name), spec.file) for spec in specs for name in spec.names)
    by_files = grouped(((place, tuple(files)), name) for (place, name), files in places.items() if len(files) > 1)
    for (directory, files), devices in by_files.items():
        counts = Counter(files).items()
        shown = [f"{name(file)}{' twice' if count > 1 else ''}" for file, count in islice(counts, _MAX_FILES)]
        more = [counted(len(counts) - _MAX_FILES, "more file")] if len(counts) > _MAX_FILES else []
        where = " and ".join([*shown, *more])
        what = f"{counted(len(devices), 'CDI device')} in {name(directory)}"
        sentence = f"{what} {by_number(devices, 'is', 'are')} defined by {where}: {names(devices)}."
        yield Found(sentence, (Evidence(Source.CDI, f"{where}: {names(devices)}"),))


def unresolvable_cdi_names(look: Look, holders: Holders, dra: DraDevices) -> Iterator[Found]:
    """Find containers with a CDI device that no CDI file defines."""
    cdi = look.cdi.value
    if cdi is None or not cdi.is_complete:
        return
    for source, to, of, given in _given(look, holders, dra):
        missing = [device for device in given if device not in cdi.defined]
        if missing:
            ignored = [one for one in cdi.specs if one.problem and not {*one.names}.isdisjoint(missing)]
            broken = [one for one in cdi.specs if one.problem and not one.kind]
            because = "".join(f" Runtimes ignore {name(one.file)}: {one.problem}." for one in [*ignored, *broken][:1])
            sentence = f"No CDI file defines {names(missing)}, which {to} was given.{because}"
            there_are = f"{counted(len(cdi.valid), 'file')}, {counted(len(cdi.defined), 'device')}"
            evidence = (
                Evidence(source, f"the answer for {name(of)} names {names(missing)}"),
                Evidence(Source.CDI, NO_DIRECTORY if NO_DIRECTORY in look.cdi.notes else there_are),
            )
            yield Found(sentence, evidence, of, tuple(missing))


def _given(look: Look, holders: Holders, dra: DraDevices) -> Iterator[tuple[Source, str, str, tuple[str, ...]]]:
    """Yield the CDI devices of each container that may run, with the source, the container and the resource."""
    stale = [one.owner for one in holders.allocations if one.owner.state is OwnerState.STALE]
    gone = {(owner.uid, owner.container) for owner in stale}
    file = believed_file(look)
    receipts = file.receipts if file else ()
    for receipt in receipts:
        if (str(receipt.key.pod), receipt.key.container) not in gone:
            yield Source.CHECKPOINT, _entry(receipt), str(receipt.resource), receipt.cdi_devices
    prepared = look.claims.value.devices if look.claims.value else ()
    for one in prepared:
        owners = dra.devices[one.key].owners if one.key in dra.devices else ()
        living = [owner for owner in owners if owner.state is OwnerState.LIVE]
        if living and one.cdi_devices:
            yield Source.CLAIMS, described(living[0]), one.driver, one.cdi_devices


def _entry(receipt: ReceiptSeen) -> str:
    return f"container {name(receipt.key.container)} of pod {name(receipt.key.pod)}"
