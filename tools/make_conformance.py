"""Writes docs/conformance.md, the list of all conformance checks, from the checks themselves: `make conformance`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from devicecore_tools.conformance import Check
from devicecore_tools.conformance.device_plugin import CHECKS
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS

PAGE = Path(__file__).parents[1] / "docs" / "conformance.md"

_GROUPS = {"cdi": "CDI", "slices": "ResourceSlices"}

INTRODUCTION = """\
# What the conformance checks check, and why

`make conformance` writes this page from the checks themselves. [test-your-plugin.md](test-your-plugin.md) and
[test-your-dra-driver.md](test-your-dra-driver.md) say how to run them.

* **must**: Kubernetes cannot work with the plugin or driver, or containers get devices of others. A run with such a
  failure has failed.
* **should**: it works until something happens that does happen on real nodes.
* **info**: good to know.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *_suite("Device plugins", CHECKS), *_suite("DRA drivers", DRA_CHECKS)])


def _suite(title: str, checks: Sequence[Check[Any]]) -> Iterator[str]:
    yield f"## {title}\n"
    for group in dict.fromkeys(check.group for check in checks):
        if group:
            yield f"### {_GROUPS.get(group, group.capitalize())}\n"
        for check in checks:
            if check.group == group:
                yield from _entry(check, "####" if group else "###")


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
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
