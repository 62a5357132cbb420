"""JSON as Go's `encoding/json` reads it.

Law: any bytes give either a value or a MalformedCheckpointError, and Go decides the same unless the text breaks a limit
(`json_size`, and those below). An object keeps all its pairs, because Go decodes a repeated key into the value of the
first one. A number keeps its text, because its field decides which numbers are allowed.
"""

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import NoReturn, TypeAlias

from attrs import frozen

from devicecore.domain.errors import MalformedCheckpointError
from devicecore.domain.json_size import size_problem

MAX_DEPTH = 10_000
"""Levels of nesting (Go: `maxNestingDepth` in encoding/json/scanner.go)."""

MAX_DEEP_MEMBERS = 100_000
"""Commas and brackets of a text that is nested deeper than Python calls. Such a text is read in Python, slowly."""

MAX_REPLACED = 1_000_000
"""Bytes that are no UTF-8. The same number of escapes is searched for halves of surrogate pairs."""

# Go replaces by U+FFFD every byte that is no UTF-8 (`surrogateescape` marks each of them), and every escaped surrogate
# without its other half. The last branch of the second pattern steps over escaped backslashes.
_UNDECODABLE = re.compile("[\udc80-\udcff]")
_LONE_SURROGATE = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|(\\.)", re.DOTALL
)
_PIECES = re.compile(r'[][{}]|"[^"\\]*(?:\\.[^"\\]*)*"?|[^][{}"]+', re.DOTALL)
_OPENERS, _CLOSERS = frozenset("[{"), frozenset("]}")
_STEPS = {**dict.fromkeys(_OPENERS, 1), **dict.fromkeys(_CLOSERS, -1)}
_CONSTANTS = frozenset("NI")  # with which NaN and Infinity begin, and nothing in JSON


@frozen
class Literal:
    """A number as it is written."""

    text: str


class Object(tuple[tuple[str, "Json"], ...]):
    """The pairs of a JSON object, in order, repetitions included."""

    __slots__ = ()


Json: TypeAlias = "bool | str | Literal | Object | list[Json] | None"


def parse(blob: bytes) -> Json:
    """Return the JSON value of `blob`. Raises MalformedCheckpointError if Go would refuse it, or if it is too large."""
    if not blob.strip():
        raise MalformedCheckpointError(problem="it is empty")
    if problem := size_problem(blob):
        raise MalformedCheckpointError(problem)
    if blob.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise MalformedCheckpointError(problem="not JSON: it begins with a byte-order mark")
    text = _decoded(blob)
    # Counting brackets is enough for all but huge files.
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise MalformedCheckpointError(problem="not JSON: exceeded max depth")
    try:
        return _parsed(text)
    except ValueError as error:
        raise MalformedCheckpointError(problem=f"not JSON: {error}") from None


def _parsed(text: str) -> Json:
    try:
        value: Json = _DECODER.decode(text)
    except RecursionError:
        members = text.count(",") + text.count("[") + text.count("{")
        if members > MAX_DEEP_MEMBERS:
            problem = f"nested deeply, expected at most {MAX_DEEP_MEMBERS:,} values, got {members:,}"
            raise ValueError(problem) from None
        value = _parsed_deeply(text)
    return value


def unparse(value: Json) -> str:
    """Return a parsed value of any depth as compact JSON."""
    written: list[str] = []
    todo: list[Json] = [value]
    while todo:
        match todo.pop():
            case Literal(text):
                written.append(text)
            case Object() as pairs:
                parts: list[Json] = []
                for name, item in pairs:
                    parts += [Literal(f"{',' * bool(parts)}{_quoted(name)}:"), item]
                todo += [Literal("}"), *reversed(parts), Literal("{")]
            case list(items):
                parts = []
                for item in items:
                    parts += [Literal("," * bool(parts)), item]
                todo += [Literal("]"), *reversed(parts), Literal("[")]
            case scalar:
                written.append(_quoted(scalar))
    return "".join(written)


def kind(value: Json) -> str:
    """Go's name for the type of `value`, for errors. Null has none here, because every Go type accepts it."""
    match value:
        case str():
            return "string"
        case Literal(text):
            return f"number {text[:40]}"
        case Object():
            return "object"
        case list():
            return "array"
        case _:
            return "bool"


def _quoted(scalar: "str | bool | None") -> str:
    return json.dumps(scalar, ensure_ascii=False)


def _decoded(blob: bytes) -> str:
    text = blob.decode("utf-8", "surrogateescape")
    if not text.isascii() and (undecodable := len(blob) - len(text.encode("utf-8", "ignore"))):
        _check_replaced("bytes that are no UTF-8", undecodable)
        text = _UNDECODABLE.sub("\ufffd", text)
    if "\\ud" in text or "\\uD" in text:
        _check_replaced("escapes beside surrogates", text.count("\\"))
        text = _LONE_SURROGATE.sub(lambda found: found[1] or found[2] or "\ufffd", text)
    return text


def _check_replaced(what: str, count: int) -> None:
    if count > MAX_REPLACED:
        problem = f"expected at most {MAX_REPLACED:,} {what}, got {count:,}"
        raise MalformedCheckpointError(problem)


def _refuse_constant(name: str) -> NoReturn:
    problem = f"Expecting value, not {name}"
    raise ValueError(problem)


def _decoder(constant: Callable[[str], Json]) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=Object, parse_int=Literal, parse_float=Literal, parse_constant=constant)


_DECODER = _decoder(_refuse_constant)


def _depth(text: str) -> int:
    return max(accumulate(_STEPS.get(found[0], 0) for found in _PIECES.finditer(text)))


# --- deep nesting: the standard library's parser recurses, Go's does not ---------------------------------------------


def _parsed_deeply(text: str) -> Json:
    """Parse one container after the other, the inner ones first, so that depth costs memory only.

    The parser sees `NaN`, which is no JSON, in the place of each container that is inside of another one.
    """
    levels: list[tuple[list[str], list[Json]]] = [([], [])]  # text and inner containers of what is open
    inside: list[Json] = []
    decoder = _decoder(lambda _: inside.pop())

    def closed() -> Json:
        parts, inside[:] = levels.pop()
        inside.reverse()
        try:
            value: Json = decoder.decode("".join(parts))
        except json.JSONDecodeError as error:
            raise ValueError(error.msg) from None  # its place is that in `parts`
        return value

    for piece in _PIECES.findall(text):
        if piece in _OPENERS:
            levels.append(([], []))
        elif piece[0] != '"' and not _CONSTANTS.isdisjoint(piece):
            _refuse_constant(piece.strip())
        levels[-1][0].append(piece)
        if piece in _CLOSERS and len(levels) > 1:
            value = closed()
            levels[-1][0].append("NaN")
            levels[-1][1].append(value)
    if len(levels) > 1:
        problem = "it ends in the middle"
        raise ValueError(problem)
    return closed()
