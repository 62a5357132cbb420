"""Text from outside: plugins, drivers, manifests, files, servers.

Law: for any text, `foreign_text` returns one printable line of bounded length, and a second call changes nothing. So
the result can be logged, shown on a terminal, and kept in a state file.
"""

MAX_FOREIGN_TEXT = 1_000
"""Characters that are kept of a foreign text unless the caller gives another limit."""


def counted(number: float, noun: str) -> str:
    """Return a number and a regular noun: `1 pod`, `2,000 pods`, `0.5 seconds`."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:,.10g}"
    return f"{text} {noun}{'' if number == 1 else 's'}"


def foreign_text(text: str, limit: int = MAX_FOREIGN_TEXT) -> str:
    """Bound and escape a text from outside.

    Args:
        text: any string, of any length.
        limit: the most characters that the result may have; at least 40, which leaves room for the note below.

    Returns:
        `text` itself if it is printable and short enough. Otherwise characters that are not printable (line feeds,
        terminal escapes, direction marks, lone surrogates) are escaped as Python does, and what is too long is cut
        and ends with a note of how many characters there were.
    """
    if len(text) <= limit and text.isprintable():
        return text
    start = text[:limit]
    if not start.isprintable():
        start = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in start)
    if len(text) <= limit and len(start) <= limit:
        return start
    note = f"... ({len(text)} characters)"
    return start[: limit - len(note)] + note
