"""Text from outside: from plugins, drivers, manifests, files and servers.

Law: for any text, `foreign_text` returns one printable line of bounded length, and a second call changes nothing. So
the result can be logged, shown on a terminal and kept in a state file.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, takewhile

MAX_FOREIGN_TEXT = 1_000
"""The default limit on the length of an untrusted string, in characters."""


def counted(number: float, noun: str) -> str:
    """Return a number and a regular noun: `1 pod`, `2,000 pods`, `0.5 seconds`."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:,.10g}"
    return f"{text} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first `most` names and the number of the others: `a, b, c and 2 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def foreign_text(text: str, limit: int = MAX_FOREIGN_TEXT) -> str:
    """Limit and escape text from outside, of any length. `limit` is at least 40.

    A string that is printable and has at most `limit` characters is returned as it is. Otherwise, characters that are
    not printable (line feeds, terminal escapes, direction marks, lone surrogates) are escaped as in Python. Text that
    is too long is truncated, and ends with a note that says how many characters it had.
    """
    start = text[:limit]
    if not start.isprintable():
        start = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in start)
    if len(text) <= limit and len(start) <= limit:
        return start
    note = f"... ({len(text)} characters)"
    return start[: limit - len(note)] + note


def shortened(text: str, room: float, width_of: Callable[[str], float] = len) -> str:
    """Shorten a name to fit `room` by leaving out its middle, because related names differ most at their ends.

    `width_of` returns the width of a character, in the unit of `room`. The end of the name gets two thirds of the
    space.
    """
    widths = [width_of(letter) for letter in text]
    if sum(widths) <= room:
        return text
    left = room - width_of("\u2026")
    end = _fitting(reversed(widths), left * 2 / 3)
    start = _fitting(widths, left - sum(widths[len(widths) - end :]))
    return f"{text[:start]}\u2026{text[len(text) - end :]}" if left >= 0 else ""


def _fitting(widths: Iterable[float], room: float) -> int:
    return sum(1 for _ in takewhile(lambda width: width <= room, accumulate(widths)))
