"""What commands print: text for people, one JSON document for programs.

Law: a file's content cannot play tricks on a terminal, and what is not read on one has neither colour nor folds.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

_UNFOLDED = 10_000  # columns
_NARROW = 120
_HALF_A_UID = 18


def complain(who: str, sentence: str) -> None:
    """Say on stderr what is wrong."""
    sys.stderr.write(f"{who}: {printable(sentence)}\n")


def print_json(document: object) -> None:
    """Print the one document of a command."""
    sys.stdout.write(f"{json.dumps(document, indent=2)}\n")


def json_option(function: Callable[P, R]) -> Callable[P, R]:
    """Give a command the option `--json`, and its function the argument `as_json`."""
    import click

    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")(function)


def printable(text: str) -> str:
    """`text` with everything that is not a visible character escaped as Python does."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under `headings`, folded to fit the terminal; what is not read on one is as wide as it is."""
    from rich.table import Table
    from rich.text import Text

    console = stdout_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        folded = heading == "POD" and console.width < _NARROW
        table.add_column(heading, overflow="fold", max_width=_HALF_A_UID if folded else None)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        sys.stdout.write(f"{line.rstrip()}\n")


def stdout_console() -> "Console":
    """The terminal, if standard output is one."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _UNFOLDED)
