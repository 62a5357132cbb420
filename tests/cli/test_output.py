"""What is printed fits, and loses nothing."""

from hypothesis import given
from hypothesis import strategies as st

from devicecore.cli.output import fold, printable


@given(st.text("ab,= ", max_size=200), st.integers(1, 60))
def test_folded_text_fits_and_is_whole(text: str, width: int) -> None:
    """No line is longer than the width, or 20, and only spaces at the ends of lines are lost."""
    lines = fold(text, width).split("\n")
    assert [line for line in lines if len(line) > max(width, 20)] == []
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@given(st.text())
def test_printable_text_has_nothing_invisible_in_it(text: str) -> None:
    """Control characters, line ends and lone surrogates are escaped; what can be seen stays as it is."""
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()
