"""A device checkpoint for `devicecore checkpoint`: its verdict, and the differences from another device checkpoint.

Law: the readable parts of a file are shown even if its checksum is wrong.
"""

import itertools
from collections.abc import Iterator

from attrs import frozen

from devicecore.domain.checkpoint import CheckpointData, FileReport
from devicecore.domain.checkpoint.decoding import decode
from devicecore_tools.checkpoint.difference import ChangedEntry, ChangedRegistration, Difference, Holding, difference
from devicecore_tools.command.checkpoint_claims import ClaimsFile, is_claims_file
from devicecore_tools.command.checkpoint_files import ExaminedFile, load
from devicecore_tools.command.checkpoint_holders import warnings_about
from devicecore_tools.doctor.look.formats import examine

_WITH_NUMA_NODES = 2  # the format that records NUMA nodes


@frozen
class DevicesFile(ExaminedFile):
    """A checkpoint with its verdict. `data` contains the readable parts, or is None if nothing can be read."""

    report: FileReport
    data: CheckpointData | None

    @classmethod
    def of(cls, file: str, blob: bytes | None) -> "DevicesFile":
        """Examine a checkpoint, and return it with its verdict."""
        report, data = examine(blob)
        if blob is not None and data is not None and decode(blob).is_foreign:
            data = None  # a kubelet reads other JSON as an empty checkpoint, which nobody wants to see or to compare
        return cls(file, () if data is None else warnings_about(data, report), report, data)

    @property
    def is_readable(self) -> bool:
        """Whether the entries of the file can be read."""
        return self.data is not None

    @property
    def facts(self) -> str:
        """A summary of a readable file, in parentheses: format, numbers of entries and resources, and checksum."""
        report = self.report
        entries = f"{report.entries} entr{'y' if report.entries == 1 else 'ies'}"
        resources = f"{report.resources} resource{'' if report.resources == 1 else 's'}"
        checksum = "no checksum" if report.stored is None else f"checksum {report.stored}"
        return f"(format {report.format}, {entries}, {resources}, {checksum})"

    @property
    def compared(self) -> dict[str, object]:
        """The verdict as JSON, without warnings."""
        from devicecore.system.json_values import to_json  # importing cattrs takes a long time

        return {"file": self.file, "kind": "devices", **to_json(self.report)}

    @property
    def document(self) -> dict[str, object]:
        """The verdict as JSON."""
        return {**self.compared, "warnings": self.warnings}

    def difference(self, after: "DevicesFile") -> tuple[Difference, list[str]]:
        """Return the changes from this file to `after`, and the lines of text that describe the changes."""
        with_numa = self.report.format == after.report.format == _WITH_NUMA_NODES
        found = difference(self.data or CheckpointData(), after.data or CheckpointData(), with_numa=with_numa)
        is_other_file = (self.report.format, self.report.stored) != (after.report.format, after.report.stored)
        return found, [*_lines(found), *([f"files: {self.facts} and {after.facts}"] if is_other_file else [])]


def examined(file: str) -> DevicesFile | ClaimsFile:
    """Examine a checkpoint of plugin devices or of claims, and return its verdict.

    Raises StoreError if the file cannot be read.
    """
    blob = load(file)
    return ClaimsFile.of(file, blob) if is_claims_file(file, blob) else DevicesFile.of(file, blob)


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
        return f"{one.resource}: resource removed: {', '.join(one.removed) or 'no devices'}"
    changes = [("added", one.added), ("removed", one.removed)]
    return f"{one.resource}: " + "; ".join(f"{name} {', '.join(ids)}" for name, ids in changes if ids)
