"""`devicecore checkpoint` for `dra_manager_state`, the kubelet's file of prepared ResourceClaims.

Law: a file is recognized by its content, and by its name only if the content is ambiguous.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath

import click
from attrs import frozen

from devicecore.domain.dra.state_file import FILE_NAME, ClaimEntry, StateReport, entries_of, judge
from devicecore.domain.errors import MalformedCheckpointError
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.checkpoint.claims import (
    StateDifference,
    claim_of,
    claim_warnings,
    is_file_of_claims,
    named_device,
    state_difference,
)
from devicecore_tools.command.checkpoint_files import ExaminedFile
from devicecore_tools.command.output import MAX_VALUE, print_json, print_pairs


@frozen
class ClaimsFile(ExaminedFile):
    """A claim checkpoint with its verdict. `entries` is None if the entries cannot be read."""

    report: StateReport
    entries: tuple[ClaimEntry, ...] | None

    @classmethod
    def of(cls, file: str, blob: bytes | None) -> "ClaimsFile":
        """Examine a claim checkpoint, and return it with its verdict."""
        report = judge(blob)
        entries = None if report.entries is None else tuple(report.entries)
        if blob is not None and entries is None:
            with suppress(MalformedCheckpointError):  # the verdict gives the reason
                entries = entries_of(blob)
        return cls(file, tuple(claim_warnings(entries or ())), report, entries)

    @property
    def is_readable(self) -> bool:
        """Whether the entries of the file can be read."""
        return self.entries is not None

    @property
    def facts(self) -> str:
        """A summary of a readable file, in parentheses: the number of entries, and the checksum."""
        count = len(self.entries or ())
        return f"(ResourceClaims, {count} entr{'y' if count == 1 else 'ies'}, checksum {self.report.stored})"

    @property
    def document(self) -> dict[str, object]:
        """The verdict as JSON, with the number of entries."""
        return self._with(None if self.entries is None else len(self.entries))

    def difference(self, after: "ClaimsFile") -> tuple[StateDifference, list[str]]:
        """Return the changes from this file to `after`, and the lines of text that describe the changes."""
        found = state_difference(self.entries or (), after.entries or ())
        counts = (
            f"({counted(len(one.entries or ()), 'claim')}, checksum {one.report.stored})" for one in (self, after)
        )
        is_other_file = self.report.stored != after.report.stored
        return found, [*_lines(found), *([f"files: {' and '.join(counts)}"] if is_other_file else [])]

    def show(self, pods: tuple[str, ...], *, as_json: bool) -> None:
        """Print the entries for the claims of these pods, or all entries if no pod is named."""
        users = set(pods)
        shown = [one for one in self.entries or () if not users or not users.isdisjoint(one.pods or ())]
        if as_json:
            print_json(self._with([entry.json for entry in shown]))
            return
        click.echo(foreign_text(f"{self.file}: {self.sentence}", MAX_VALUE))
        for entry in shown:
            pairs = [("pods", ", ".join(sorted(entry.pods or ())) or "none")]
            for driver, devices in sorted((entry.drivers or {}).items()):
                listed = [named_device(driver, device).removeprefix(f"{driver}: ") for device in devices or ()]
                if skips := entry.skips.get(driver):
                    listed.append(f"needs no {', '.join(sorted(skips))}")
                pairs += [(driver, device) for device in listed or ["not prepared"]]
            click.echo()
            print_pairs(f"claim {claim_of(entry)} ({entry.uid})", pairs)

    def _with(self, entries: object) -> dict[str, object]:
        return {
            "file": self.file,
            "kind": "claims",
            "verdict": self.report.verdict.value,
            "stored": self.report.stored,
            "computed": self.report.computed,
            "entries": entries,
            "problem": self.report.problem,
            "warnings": list(self.warnings),
        }


def is_claims_file(path: str, blob: bytes | None) -> bool:
    """Return whether a file is a claim checkpoint, by its content, or by its name if the content is ambiguous."""
    by_content = None if blob is None else is_file_of_claims(blob)
    return PurePath(path).name.startswith(FILE_NAME) if by_content is None else by_content


def _lines(found: StateDifference) -> Iterator[str]:
    yield from (f"removed: claim {claim}" for claim in found.removed)
    yield from (f"added: claim {claim}" for claim in found.added)
    for one in found.changed:
        for what, listed in (
            ("pods removed", one.removed_pods),
            ("pods added", one.added_pods),
            ("devices removed", one.removed_devices),
            ("devices added", one.added_devices),
        ):
            if listed:
                yield f"changed: claim {one.claim}: {what}: {'; '.join(listed)}"
