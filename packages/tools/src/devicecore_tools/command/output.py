"""The output of commands: text for people, or one JSON document for programs.

Law: text from a file cannot control the terminal, and output that does not go to a terminal has no colors.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from devicecore.domain.text import foreign_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_SENTENCE = 4_000
"""The maximum length of an error message."""

MAX_VALUE = 1_000_000
"""The maximum length of one value in a listing, such as the devices of a container."""

_UNFOLDED = sys.maxsize  # columns
_MAX_NAME = 60  # columns for names; a longer name gets its own line
_MIN_WIDTH = 20  # the minimum number of columns for a value, however narrow the terminal is
_PARTS = 10_000  # how many parts of a JSON document are written at once
_PIECE = re.compile(r"[^\s,=]*[\s,=]+|[^\s,=]+")


def complain(command: str, sentence: str) -> None:
    """Print an error on stderr."""
    sys.stderr.write(f"{command}: {foreign_text(sentence, MAX_SENTENCE)}\n")


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Make an OSError name the file `path`. The original error may name a temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"it cannot be written: {error.strerror}", str(path)) from error


def print_json(document: object) -> None:
    """Print a command's JSON document, which may contain attrs values."""
    # The document is written in pieces, because all its encoded parts together would take many times its own size.
    parts = json.JSONEncoder(indent=2, default=_json_of).iterencode(document)
    while piece := "".join(islice(parts, _PARTS)):
        sys.stdout.write(piece)
    sys.stdout.write("\n")


def _json_of(value: object) -> object:
    if not hasattr(type(value), "__attrs_attrs__"):  # like `attrs.has`, but without the slow import of attrs
        return str(value)
    from devicecore.system.json_values import to_json  # imported here because importing cattrs is slow

    return to_json(value)


def print_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print a title and, below it, names with their values in a separate column, wrapped only on terminals."""
    # Importing rich takes a tenth of a second, and text without colors does not need rich.
    console = console_on(sys.stdout) if sys.stdout.isatty() else None
    known = [(foreign_text(name), foreign_text(value, MAX_VALUE)) for name, value in pairs]
    indent = min(max((len(name) for name, _ in known), default=0), _MAX_NAME) + 4
    width = _UNFOLDED if console is None else console.width
    lines = []
    for name, value in known:
        text = textwrap.indent(fold(value, width - indent), " " * indent)
        rest = text[len(name) + 2 :] if len(name) <= _MAX_NAME else f"\n{text}"
        lines.append(f"  {name}{rest}")
    if console is None:
        sys.stdout.write("".join(f"{line}\n" for line in (foreign_text(title), *lines)))
        return
    console.print(foreign_text(title), style="bold", soft_wrap=True)
    for line in lines:
        console.print(line, soft_wrap=True)


@lru_cache(maxsize=64)  # cached, because findings of the same kind share long strings
def fold(text: str, width: int) -> str:
    """Break `text` into lines of at most `width`: after a comma, a space or a `=` if possible, otherwise anywhere.

    A width of less than `_MIN_WIDTH` counts as `_MIN_WIDTH`.
    """
    width = max(width, _MIN_WIDTH)
    if len(text) <= width:
        return text
    lines = [""]
    for piece in _PIECE.findall(text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        whole = lines[-1] + piece
        lines[-1:] = [whole[start : start + width] for start in range(0, len(whole.rstrip()) or 1, width)]
    return "\n".join(line.rstrip() for line in lines)


def console_on(file: TextIO) -> "Console":
    """Return a console that prints text unchanged, in color on terminals. The console wraps lines only on terminals."""
    from rich.console import Console

    width = None if file.isatty() else _UNFOLDED
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)
