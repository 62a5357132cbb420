"""docs/conformance.md is what `make conformance` writes."""

from tools.make_conformance import PAGE, page


def test_the_page_of_all_checks_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make conformance`"
