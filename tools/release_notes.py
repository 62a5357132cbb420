"""Print the changelog's entries for a release: `python -m tools.release_notes v1.2.3`.

The release workflow runs this program before it publishes anything.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def notes(tag: str) -> str:
    """Return the entries of CHANGELOG.md for a release tag.

    Raises:
        SystemExit: the tag does not match the sources' version, or the changelog has no entries for that version.
    """
    version = re.findall(
        r'^__version__ = "(.*)"$', (ROOT / "src/devicecore/__init__.py").read_text("utf-8"), re.MULTILINE
    )
    if [tag] != [f"v{one}" for one in version]:
        sys.exit(f"expected the tag v{', '.join(version)}, the version of the sources, got {tag}")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(
        rf"^## \[{re.escape(version[0])}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None or not found[1].strip():
        sys.exit(f"expected `## [{version[0]}] - YYYY-MM-DD` with entries in CHANGELOG.md")
    return f"{found[1].strip()}\n"


if __name__ == "__main__":
    sys.stdout.write(notes(*sys.argv[1:2]))
