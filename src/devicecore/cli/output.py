"""What commands print: text for people, one JSON document for programs.

Law: a file's content cannot play tricks on a terminal, and what is not read on one has neither colour nor folds.
"""

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ParamSpec, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

_UNFOLDED = sys.maxsize  # columns
_LEAST_WIDTH = 20  # on a terminal that is too narrow for anything
_PIECE = re.compile(r"[^\s,=]*[\s,=]+|[^\s,=]+")


def complain(who: str, sentence: str) -> None:
    """Say on stderr what is wrong."""
    sys.stderr.write(f"{who}: {printable(sentence)}\n")


def print_json(document: object) -> None:
    """Print the one document of a command."""
    sys.stdout.write(f"{json.dumps(document, indent=2, default=str)}\n")


def json_option(function: Callable[P, R]) -> Callable[P, R]:
    """Give a command the option `--json`, and its function the argument `as_json`."""
    import click

    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")(function)


def printable(text: str) -> str:
    """`text` with everything that is not a visible character escaped as Python does."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def print_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print a title and, below it, names with their values in a column of their own."""
    console = console_on(sys.stdout)
    known = [(printable(name), printable(value)) for name, value in pairs]
    indent = max((len(name) for name, _ in known), default=0) + 4
    console.print(printable(title), style="bold", soft_wrap=True)
    for name, value in known:
        text = textwrap.indent(fold(value, console.width - indent), " " * indent)
        console.print(f"  {name}{text[len(name) + 2 :]}", soft_wrap=True)


def fold(text: str, width: int) -> str:
    """Break `text` into lines of at most `width`: after a comma, a space or a `=` if there is one, else anywhere."""
    width = max(width, _LEAST_WIDTH)
    if len(text) <= width:
        return text
    lines = [""]
    for piece in _PIECE.findall(text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        whole = lines[-1] + piece
        lines[-1:] = [whole[start : start + width] for start in range(0, len(whole.rstrip()) or 1, width)]
    return "\n".join(line.rstrip() for line in lines)


def console_on(file: TextIO, unfolded: int = _UNFOLDED) -> "Console":
    """A console that prints what it is told as it is told, in colour on terminals that have it.

    `unfolded` is how many columns there are where there is no terminal.
    """
    from rich.console import Console

    width = None if file.isatty() else unfolded
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)
