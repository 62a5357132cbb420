"""What is printed fits, and loses nothing."""

from hypothesis import given
from hypothesis import strategies as st

from devicecore.cli.output import fold


@given(st.text("ab,= ", max_size=200), st.integers(1, 60))
def test_folded_text_fits_and_is_whole(text: str, width: int) -> None:
    """No line is longer than the width, or 20, and only spaces at the ends of lines are lost."""
    lines = fold(text, width).split("\n")
    assert [line for line in lines if len(line) > max(width, 20)] == []
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
