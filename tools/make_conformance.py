"""Write the pages of `docs/conformance/` from the conformance checks; `make docs` runs this program."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from devicecore_tools.conformance import Check
from devicecore_tools.conformance.device_plugin import CHECKS, situations
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS
from devicecore_tools.conformance.dra.checks.situations import CELLS, FORMS, NO_CELL

from tools.conformance_documents import ROWS

FOLDER = Path(__file__).parents[1] / "docs" / "conformance"

_GROUPS = {"cdi": "CDI", "slices": "ResourceSlices"}
# the groups of driver checks that are on the page about claims
_CLAIMS = ("prepare", "unprepare", "cdi", "state", "situations")


def pages() -> dict[Path, str]:
    """Return the text of each page, by the page's path."""
    of_claims = [check for check in DRA_CHECKS if check.group in _CLAIMS]
    of_drivers = [check for check in DRA_CHECKS if check.group not in _CLAIMS]
    parts: tuple[tuple[str, str, Sequence[Check[Any]]], ...] = (
        ("device-plugins", "Checks for device plugins", CHECKS),
        ("drivers", "Checks for DRA drivers: registration, slices, health, process", of_drivers),
        ("claims", "Checks for DRA drivers: claims, CDI, state", of_claims),
    )
    made = {FOLDER / f"{name}.md": _page(title, checks) for name, title, checks in parts}
    tables = "\n".join([*_table(), *_plugins()])
    return made | {FOLDER / "situations.md": tables, FOLDER / "documents.md": "\n".join(_documents())}


def _documents() -> Iterator[str]:
    """Yield the lines of the page with the documented requirements and the checks for them."""
    yield "# What the documents ask for, and the checks for it\n"
    yield "The checks are on the pages [device-plugins.md](device-plugins.md), [drivers.md](drivers.md) and"
    yield "[claims.md](claims.md)."
    for document in dict.fromkeys(row.document for row in ROWS):
        yield f"\n## {document}\n\n| what | checks, or why there is none |\n|---|---|"
        for row in ROWS:
            if row.document == document:
                yield f"| {row.sentence} | {row.reason or ', '.join(f'`{name}`' for name in row.checks)} |"
    yield ""


def _plugins() -> Iterator[str]:
    """Yield the lines of the table of situations for device plugins."""
    columns = situations.COLUMNS
    yield "# Checks for device plugins: the table of situations\n"
    yield "Before each event, Allocate is called for single devices and for two devices together."
    yield "[device-plugins.md](device-plugins.md) describes the checks for other situations.\n"
    heads = [f"`{one.name.removesuffix('-{}')}`: {one.expected}" for one in columns]
    yield f"| event | {' | '.join(heads)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for event, cells in situations.CELLS.items():
        row = []
        for one in columns:
            name = one.name.format(event.ending)
            there = f"`{situations.KEPT_NAMES.get(name, name)}` (must)"
            row.append(there if one in cells else situations.WHY_NOT[event, one])
        yield f"| {event.name} | {' | '.join(row)} |"
    for name, texts in situations.OTHER_CELLS.items():
        yield f"| {name} | {' | '.join(texts)} |"
    yield ""


def _table() -> Iterator[str]:
    """Yield the lines of the page about situations: a row for each event and a column for each observation."""
    seen = list({one.name: one for _, cells in CELLS.values() for one in cells}.values())
    yield "# Checks for DRA drivers: the table of situations\n"
    yield f"Claims are prepared before each event: {', '.join(form.name for form in FORMS)}."
    yield "A cell names the check for what happens after the event, or says why there is none."
    yield "[claims.md](claims.md) and [drivers.md](drivers.md) describe the checks for other situations.\n"
    yield f"| event | {' | '.join(one.expected for one in seen)} |"
    yield "|---" * (len(seen) + 1) + "|"
    for (event, ending), (severity, cells) in CELLS.items():
        row = [
            f"`{one.name.format(ending)}` ({severity.value})" if one in cells else NO_CELL[event, one.name]
            for one in seen
        ]
        yield f"| {event.name} | {' | '.join(row)} |"
    for event in dict.fromkeys(event for event, _ in NO_CELL if event not in {one for one, _ in CELLS}):
        yield f"| {event.name} | {' | '.join(NO_CELL[event, one.name] for one in seen)} |"
    yield ""


def _page(title: str, checks: Sequence[Check[Any]]) -> str:
    introduction = f"# {title}\n\n[conformance.md](../conformance.md) explains the severities.\n"
    return "\n".join([introduction, *_entries(checks)])


def _entries(checks: Sequence[Check[Any]]) -> Iterator[str]:
    for group in dict.fromkeys(check.group for check in checks):
        if group:
            yield f"## {_GROUPS.get(group, group.capitalize())}\n"
        for check in checks:
            if check.group == group:
                yield from _entry(check, "###" if group else "##")


def _entry(check: Check[Any], level: str) -> Iterator[str]:
    yield f"{level} {check.name}\n"
    full = "" if check.is_core else " Only in a full run."
    yield f"**{check.severity.value}.** {check.done}{full}\n"
    yield f"* Expected: {check.expected}"
    yield f"* Because: {check.clause}"
    if check.found:
        yield f"* Found: {'; '.join(check.found)}"
    yield ""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
