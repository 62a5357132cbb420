"""The output fits the terminal, and nothing is lost."""

import contextlib
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from attrs import frozen
from devicecore_tools.command.output import fold, print_json, print_pairs
from hypothesis import given
from hypothesis import strategies as st


@given(st.text("ab,= ", max_size=200), st.integers(1, 60))
def test_folded_text_fits_and_is_whole(text: str, width: int) -> None:
    """No line is longer than the width or 20, whichever is larger, and only spaces at the ends of lines are lost."""
    lines = fold(text, width).split("\n")
    assert [line for line in lines if len(line) > max(width, 20)] == []
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_nothing_is_folded_that_does_not_go_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs("title", [("name", "word " * 100)])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_long_name_does_not_move_all_values_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    """Values next to a name of 1,000 characters would be folded into so many lines that 1 MB becomes 50 MB."""
    print_pairs("title", [("n" * 900, "a " * 10_000), ("short", "value")])
    said = capsys.readouterr().out
    assert len(said) < 200_000
    assert said.split("\n")[1] == "  " + "n" * 900
    assert said.endswith(f"\n  short{' ' * 57}value\n")


@frozen
class Named:
    name: str
    error: ValueError


def test_values_and_errors_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"all": (Named("a", ValueError("b")),)})
    assert capsys.readouterr().out == json.dumps({"all": [{"name": "a", "error": "b"}]}, indent=2) + "\n"


@pytest.mark.slow
def test_a_large_json_document_is_printed_without_its_whole_text_in_memory() -> None:
    document = ["device"] * 200_000  # 2.6 MB as JSON
    with Path(os.devnull).open("w", encoding="ascii") as nothing, contextlib.redirect_stdout(nothing):
        tracemalloc.start()
        try:
            print_json(document)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 2_000_000
