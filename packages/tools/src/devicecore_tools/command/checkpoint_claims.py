"""`devicecore checkpoint` for `dra_manager_state`, the kubelet's file of prepared ResourceClaims.

Law: a file is known by its content, and by its name only if the content does not say what it is.
"""

from collections.abc import Iterator
from pathlib import PurePath

import click
from attrs import frozen

from devicecore.domain.checkpoint import FileVerdict
from devicecore.domain.dra.state_file import FILE_NAME, ClaimEntry, StateReport, entries_of, judge
from devicecore.domain.errors import MalformedCheckpointError
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.checkpoint.claims import (
    StateDifference,
    claim_of,
    claim_warnings,
    is_file_of_claims,
    named_device,
)
from devicecore_tools.command.output import MAX_VALUE, print_pairs


@frozen
class ClaimsFile:
    """A file of claims, judged. `entries` are those that can be read, also of a bad file; None for none."""

    file: str
    report: StateReport
    entries: tuple[ClaimEntry, ...] | None
    warnings: tuple[str, ...]

    @property
    def is_ok(self) -> bool:
        """Whether a kubelet can use it."""
        return self.report.verdict is FileVerdict.OK

    @property
    def sentence(self) -> str:
        """The verdict for people."""
        verdict = self.report.verdict.value
        if self.report.problem:
            return f"{verdict}: {self.report.problem}"
        count = len(self.entries or ())
        return f"{verdict} (ResourceClaims, {count} entr{'y' if count == 1 else 'ies'}, checksum {self.report.stored})"

    def document(self, shown: tuple[ClaimEntry, ...] | None = None) -> dict[str, object]:
        """Return the verdict as JSON; with `shown`, these entries and not only their number."""
        report = self.report
        return {
            "file": self.file,
            "kind": "claims",
            "verdict": report.verdict.value,
            "stored": report.stored,
            "computed": report.computed,
            "entries": [entry.json for entry in shown]
            if shown is not None
            else None
            if self.entries is None
            else len(self.entries),
            "problem": report.problem,
            "warnings": list(self.warnings),
        }


def is_claims_file(path: str, blob: bytes | None) -> bool:
    """Return whether a file is one of claims: by its content, or else by its name."""
    by_content = None if blob is None else is_file_of_claims(blob)
    return PurePath(path).name.startswith(FILE_NAME) if by_content is None else by_content


def examine_claims(path: str, blob: bytes | None) -> ClaimsFile:
    """Judge a file of claims."""
    report = judge(blob)
    entries = None if report.entries is None else tuple(report.entries)
    if blob is not None and entries is None:
        try:
            entries = entries_of(blob)
        except MalformedCheckpointError:
            entries = None  # the verdict has the reason
    return ClaimsFile(path, report, entries, tuple(claim_warnings(entries or ())))


def entries_with(found: ClaimsFile, pods: tuple[str, ...]) -> tuple[ClaimEntry, ...]:
    """Return the entries that one of these pods uses, or all of them if none is named."""
    return tuple(entry for entry in found.entries or () if not pods or not set(pods).isdisjoint(entry.pods or ()))


def print_claims(found: ClaimsFile, shown: tuple[ClaimEntry, ...]) -> None:
    """Print claims for people."""
    click.echo(foreign_text(f"{found.file}: {found.sentence}", MAX_VALUE))
    for entry in shown:
        pairs = [("pods", ", ".join(sorted(entry.pods or ())) or "none")]
        for driver, devices in sorted((entry.drivers or {}).items()):
            listed = [named_device(driver, device).removeprefix(f"{driver}: ") for device in devices or ()]
            if skips := entry.skips.get(driver):
                listed.append(f"needs no {', '.join(sorted(skips))}")
            pairs += [(driver, device) for device in listed or ["not prepared"]]
        click.echo()
        print_pairs(f"claim {claim_of(entry)} ({entry.uid})", pairs)


def lines_of(found: StateDifference) -> Iterator[str]:
    """Return a difference, a line for each thing that differs."""
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


def counted_claims(found: ClaimsFile) -> str:
    """Count and checksum of a file that can be read."""
    return f"({counted(len(found.entries or ()), 'claim')}, checksum {found.report.stored})"
