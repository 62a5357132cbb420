"""Write the pages of the conformance checks, `docs/conformance/`, from the checks; `make docs` calls it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from devicecore_tools.conformance import Check
from devicecore_tools.conformance.device_plugin import CHECKS
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS

FOLDER = Path(__file__).parents[1] / "docs" / "conformance"

_GROUPS = {"cdi": "CDI", "slices": "ResourceSlices"}
_CLAIMS = ("prepare", "unprepare", "cdi", "state")  # the groups that have a page of their own


def pages() -> dict[Path, str]:
    """Return the text of each page by its path."""
    of_claims = [check for check in DRA_CHECKS if check.group in _CLAIMS]
    of_drivers = [check for check in DRA_CHECKS if check.group not in _CLAIMS]
    parts: tuple[tuple[str, str, Sequence[Check[Any]]], ...] = (
        ("device-plugins", "Checks of device plugins", CHECKS),
        ("drivers", "Checks of DRA drivers: registration, slices, health, process", of_drivers),
        ("claims", "Checks of DRA drivers: claims, CDI, state", of_claims),
    )
    return {FOLDER / f"{name}.md": _page(title, checks) for name, title, checks in parts}


def _page(title: str, checks: Sequence[Check[Any]]) -> str:
    introduction = f"# {title}\n\n[conformance.md](../conformance.md) says what the words mean.\n"
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
    full = "" if check.is_core else " Made only in a full run."
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
