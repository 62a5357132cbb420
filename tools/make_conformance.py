"""Writes docs/conformance.md and its parts, the list of all conformance checks, from the checks: `make conformance`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from devicecore_tools.conformance import Check, Severity
from devicecore_tools.conformance.device_plugin import CHECKS
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS

DOCS = Path(__file__).parents[1] / "docs"

_GROUPS = {"cdi": "CDI", "slices": "ResourceSlices"}
_CLAIMS = ("prepare", "unprepare", "cdi", "state")  # the groups that have a page of their own

INTRODUCTION = """\
# What the conformance checks check, and why

`make conformance` writes this page and its parts from the checks. [test-your-plugin.md](test-your-plugin.md) and
[test-your-dra-driver.md](test-your-dra-driver.md) say how to run them.

* **must**: Kubernetes cannot work with the plugin or driver, or containers get devices of others. A run with such a
  failure has failed.
* **should**: it works until something happens that does happen on real nodes.
* **info**: good to know.

| part | checks | must | should | info |
|---|---|---|---|---|
"""


def pages() -> dict[Path, str]:
    """Return the text of each page by its path."""
    all_checks: tuple[tuple[str, str, Sequence[Check[Any]]], ...] = (
        ("device-plugins", "Checks of device plugins", CHECKS),
        ("drivers", "Checks of DRA drivers: registration, slices, health, process", DRA_CHECKS),
        ("claims", "Checks of DRA drivers: claims, CDI, state", DRA_CHECKS),
    )
    parts = [(name, title, [one for one in checks if page_of(one) == name]) for name, title, checks in all_checks]
    written = {DOCS / "conformance" / f"{name}.md": _page(title, checks) for name, title, checks in parts}
    contents = "\n".join(["```{toctree}", ":hidden:", "", *(f"conformance/{name}" for name, *_ in parts), "```"])
    return {DOCS / "conformance.md": f"{INTRODUCTION}{''.join(_row(*part) for part in parts)}\n{contents}\n", **written}


def page_of(check: Check[Any]) -> str:
    """Return the name of the page that has a check."""
    if check in CHECKS:
        return "device-plugins"
    return "claims" if check.group in _CLAIMS else "drivers"


def _row(name: str, title: str, checks: Sequence[Check[Any]]) -> str:
    counts = [sum(check.severity is severity for check in checks) for severity in Severity]
    return f"| [{title}](conformance/{name}.md) | {len(checks)} | {' | '.join(map(str, counts))} |\n"


def _page(title: str, checks: Sequence[Check[Any]]) -> str:
    return "\n".join(
        [f"# {title}\n\n[conformance.md](../conformance.md) says what the words mean.\n", *_entries(checks)]
    )


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
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
