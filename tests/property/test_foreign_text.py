"""Untrusted text is bounded and escaped before anyone sees it. Numbers are shown with nouns that agree with them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore.domain.text import MAX_FOREIGN_TEXT, counted, foreign_text, listed


@given(st.text(alphabet=st.characters()), st.integers(40, 200))
@example("\x1b[31m\nforged: line\u2028\u202e", 200)
@example("\ud800" * 1000, 40)
@example("a" * 39 + "\U0010ffff", 40)
def test_foreign_text_is_one_printable_line_of_bounded_length(text: str, limit: int) -> None:
    shown = foreign_text(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert foreign_text(shown, limit) == shown


@given(st.text(max_size=MAX_FOREIGN_TEXT).filter(str.isprintable))
def test_a_short_printable_text_stays_as_it_is(text: str) -> None:
    assert foreign_text(text) == text


def test_a_text_that_was_cut_says_how_long_it_was() -> None:
    assert foreign_text("x" * 12_000_000).endswith("x... (12000000 characters)")


def test_a_character_that_is_not_printable_is_spelled_as_python_spells_it() -> None:
    assert foreign_text("a\nb\x1b[0m\u2028") == r"a\nb\x1b[0m\u2028"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 pods"), (1, "1 pod"), (2_000, "2,000 pods"), (0.5, "0.5 pods"), (2.0, "2 pods")]
)
def test_a_number_is_shown_with_its_noun(number: float, text: str) -> None:
    assert counted(number, "pod") == text


@pytest.mark.parametrize(
    ("names", "most", "text"),
    [
        ([], 3, ""),
        (["a"], 3, "a"),
        (["a", "b", "c"], 3, "a, b, c"),
        (["a", "b", "c", "d"], 3, "a, b, c and 1 more"),
        (["a"] * 2_001, 1, "a and 2,000 more"),
    ],
)
def test_only_the_first_of_many_names_are_listed_and_the_rest_are_counted(
    names: list[str], most: int, text: str
) -> None:
    assert listed(names, most) == text
