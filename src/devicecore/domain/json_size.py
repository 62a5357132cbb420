"""The cost of reading a JSON text, estimated before the text is read.

Law: a text without a `size_problem` is read in bounded time and in less than 500 MB of memory, including the text
itself. `FileStore` examines large files with the same function before it writes them, so that they can be read again.

Values are counted by the commas and opening brackets in the text, so commas and brackets inside strings also count. The
bracket of an object counts twice, because an object takes twice the memory of a list. A null counts as two more values,
because Go turns it into a whole struct.
"""

from attrs import frozen

MAX_BYTES = 64 * 1024 * 1024
"""The maximum size of a JSON text in bytes.

A checkpoint with 50,000 allocated devices takes 3 MiB, and a list of 5,000 pods takes 30 MiB.
"""

MAX_OF_OWNER = 4 * 1024 * 1024
"""The number of bytes that one driver or device plugin may take up in a state file.

This is an eighth of the most that a store writes, so a single driver or plugin cannot fill the file at the expense of
the others.
"""

MAX_MEMORY = 420_000_000
"""The number of bytes of memory that reading may take, not counting the 40 MB of a Python process with all imports."""

_BELOW_ASTRAL = bytes(range(0xF0))  # in UTF-8, a character beyond U+FFFF starts with a different byte


@frozen
class Reader:
    """The cost of reading a JSON text for one kind of reader.

    `max_values` is how many values the reader can read in time, `value_bytes` is the memory that a value takes, and
    `copies` is how many copies of all strings exist at once.
    """

    max_values: int
    value_bytes: int
    copies: int


STATE = Reader(1_000_000, value_bytes=200, copies=5)
"""State files, read as Go reads them: keys keep their order, and numbers keep their text. In a measurement, a value
took 188 bytes.

Each of 50,000 devices in separate entries counts as ten values. Some of the copies are made to compute the checksum.
"""

OBJECTS = Reader(3_500_000, value_bytes=100, copies=2)
"""API objects, read into dicts. A pod of 6 KiB counts as about 400 values."""


def share_of_file(text: bytes, escapes: int = 0) -> int:
    """Return how many bytes a JSON text counts as in a state file. `escapes` is the number of bytes that escaping adds.

    The number of values is also limited. A text with many values counts as more bytes than it has, so that it uses up
    the same share of both limits.
    """
    return max(len(text) + escapes, _values(text) * (MAX_BYTES // 2 // STATE.max_values))


def near_limit(what: str, before: int, after: int, file: str) -> str:
    """Return a warning if `what` has just grown beyond half of `MAX_OF_OWNER` in a state file."""
    if not before <= MAX_OF_OWNER // 2 < after:
        return ""
    return f"{what}: {after:,} bytes in {file}; more than {MAX_OF_OWNER:,} bytes are refused"


def size_problem(text: bytes, reader: Reader = STATE) -> str:
    """Return why a JSON text is too large to be read, or an empty string if it is not."""
    if len(text) > MAX_BYTES:
        return f"expected at most {MAX_BYTES:,} bytes, got {len(text):,}"
    values = _values(text)
    room = MAX_MEMORY - _bytes_of_text(text, reader)
    if room < 0:
        return f"{len(text):,} bytes with characters beyond ASCII take too much memory"
    limit = min(reader.max_values, room // reader.value_bytes)
    return f"expected at most {limit:,} values, got {values:,}" if values > limit else ""


def memory_of(text: bytes, reader: Reader) -> int:
    """Return how many bytes of memory reading a JSON text takes, including the text itself."""
    return _bytes_of_text(text, reader) + _values(text) * reader.value_bytes


def _bytes_of_text(text: bytes, reader: Reader) -> int:
    return len(text) * (1 + reader.copies * _character_bytes(text))


def _values(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + 2 * (text.count(b"{") + text.count(b"null"))


def _character_bytes(text: bytes) -> int:
    """Return how many bytes Python uses for each character of a string whose widest character is that of `text`."""
    if text.isascii() and b"\\u" not in text:
        return 1
    is_astral = b"\\ud" in text or b"\\uD" in text or bool(text.translate(None, _BELOW_ASTRAL))
    return 4 if is_astral else 2
