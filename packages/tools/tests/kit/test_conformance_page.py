"""docs/conformance.md and its parts are what `make conformance` writes."""

from tools.make_conformance import DOCS, pages


def test_the_pages_of_all_checks_are_current() -> None:
    written = [DOCS / "conformance.md", *(DOCS / "conformance").iterdir()]
    assert {path: path.read_text(encoding="utf-8") for path in written} == pages(), "run `make conformance`"
