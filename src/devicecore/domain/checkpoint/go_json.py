"""JSON as Go's `encoding/json` reads it.

Law: any bytes result in either a value or a MalformedCheckpointError, and Go makes the same decision unless the text
exceeds a limit (`json_size`, and the limits below). An object keeps all its pairs, because Go decodes a repeated key
into the value of the first pair with this key. A number keeps its text, because its field decides which numbers are
allowed.
"""

import json
import re
from collections.abc import Generator, Iterable
from operator import itemgetter
from typing import NoReturn, TypeAlias

from attrs import frozen

from devicecore.domain.checks import checked
from devicecore.domain.errors import MalformedCheckpointError
from devicecore.domain.json_size import size_problem

MAX_DEPTH = 10_000
"""The maximum number of levels of nesting (Go: `maxNestingDepth` in encoding/json/scanner.go)."""

MAX_DEEP_MEMBERS = 100_000
"""The maximum number of commas and opening brackets in a text that is nested more deeply than Python calls may be.

Text that is nested this deeply is read slowly, in Python.
"""

MAX_REPLACED = 1_000_000
"""The maximum number of bytes that are not UTF-8, and of escapes that are searched for lone surrogates."""

# Go replaces with U+FFFD every byte that is not UTF-8 (`surrogateescape` marks each of them), and every escaped
# surrogate without its other half. The last branch of the second pattern steps over escaped backslashes.
_UNDECODABLE = re.compile("[\udc80-\udcff]")
_LONE_SURROGATE = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|(\\.)", re.DOTALL
)
_SPACES = re.compile(r"[ \t\n\r]*")
_OPENERS = tuple("[{")
_SECOND = itemgetter(1)


@frozen
class Literal:
    """A number in the form in which it is written."""

    text: str


class Object(tuple[tuple[str, "Json"], ...]):
    """The pairs of a JSON object, in order, including repetitions."""

    __slots__ = ()


_CONTAINERS = {list, Object}
_LIST, _END_LIST, _OBJECT, _END_OBJECT, _COMMA = map(Literal, "[]{},")

Json: TypeAlias = "bool | str | Literal | Object | list[Json] | None"


def parse(blob: bytes) -> Json:
    """Return the JSON value of `blob`.

    Raises MalformedCheckpointError if Go would refuse `blob`, or if `blob` is too large.
    """
    if not checked(blob, bytes, "the checkpoint's content").strip():
        raise MalformedCheckpointError(problem="it is empty")
    if problem := size_problem(blob):
        raise MalformedCheckpointError(problem)
    if blob.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise MalformedCheckpointError(problem="not JSON: it starts with a byte-order mark")
    text = _decoded(blob)
    try:
        value = _parsed(text)
    except ValueError as error:
        raise MalformedCheckpointError(problem=f"not JSON: {error}") from None
    # For all but huge files, counting brackets is enough.
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise MalformedCheckpointError(problem="not JSON: exceeded max depth")
    return value


def _parsed(text: str) -> Json:
    try:
        value: Json = _DECODER.decode(text)
    except RecursionError:
        members = text.count(",") + text.count("[") + text.count("{")
        if members > MAX_DEEP_MEMBERS:
            problem = f"expected at most {MAX_DEEP_MEMBERS:,} values in deeply nested text, got {members:,}"
            raise ValueError(problem) from None
        value = _DeepParser(text).parse()
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
                todo.append(_END_OBJECT)
                for name, item in reversed(pairs[1:]):
                    todo += [item, Literal(f",{_quoted(name)}:")]
                for name, item in pairs[:1]:
                    todo += [item, Literal(f"{_quoted(name)}:")]
                todo.append(_OBJECT)
            case list(items):
                todo.append(_END_LIST)
                for item in reversed(items[1:]):
                    todo += [item, _COMMA]
                todo += [*items[:1], _LIST]
            case scalar:
                written.append(_quoted(scalar))
    return "".join(written)


def kind(value: Json) -> str:
    """Return Go's name for the type of `value`, for errors. Null has no name here, because every Go type accepts it."""
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
        _check_replaced("bytes that are not UTF-8", undecodable)
        text = _UNDECODABLE.sub("\ufffd", text)
    if "\\ud" in text or "\\uD" in text:
        _check_replaced("escapes in a text with surrogates", text.count("\\"))
        text = _LONE_SURROGATE.sub(lambda found: found[1] or found[2] or "\ufffd", text)
    return text


def _check_replaced(what: str, count: int) -> None:
    if count > MAX_REPLACED:
        problem = f"expected at most {MAX_REPLACED:,} {what}, got {count:,}"
        raise MalformedCheckpointError(problem)


def _refuse_constant(name: str) -> NoReturn:
    problem = f"Expecting value, not {name}"
    raise ValueError(problem)


_DECODER = json.JSONDecoder(
    object_pairs_hook=Object, parse_int=Literal, parse_float=Literal, parse_constant=_refuse_constant
)


def _depth(value: Json) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [item for container in level for item in _items(container) if type(item) in _CONTAINERS]
    return depth


def _items(container: Json) -> Iterable[Json]:
    if isinstance(container, Object):
        return map(_SECOND, container)
    # A large file consists mostly of lists of strings.
    return container if isinstance(container, list) and not _CONTAINERS.isdisjoint(map(type, container)) else ()


# --- deep nesting: the standard library's parser recurses, Go's does not ---------------------------------------------

_Step: TypeAlias = "Generator[_Step, Json, Json]"


class _DeepParser:
    """A recursive descent parser whose calls are generators in a list, so that depth costs only memory."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def parse(self) -> Json:
        calls, value = [self.value()], None
        while calls:
            try:
                calls.append(calls[-1].send(value))
                value = None
            except StopIteration as returned:
                calls.pop()
                value = returned.value
            if len(calls) > MAX_DEPTH:
                self.refuse("exceeded max depth")
        if self.peek():
            self.refuse("Extra data")
        return value

    def value(self) -> _Step:
        match self.peek():
            case "[":
                items: list[Json] = []
                more = self.opened("]")
                while more:
                    items.append((yield self.value()) if self.peek() in _OPENERS else self.scalar())
                    more = self.take(",]") == ","
                return items
            case "{":
                pairs: list[tuple[str, Json]] = []
                more = self.opened("}")
                while more:
                    name = self.name()
                    pairs.append((name, (yield self.value()) if self.peek() in _OPENERS else self.scalar()))
                    more = self.take(",}") == ","
                return Object(pairs)
            case _:
                return self.scalar()

    def peek(self) -> str:
        """Return the next character after whitespace, or an empty string at the end."""
        if space := _SPACES.match(self.text, self.at):
            self.at = space.end()
        return self.text[self.at : self.at + 1]

    def take(self, expected: str) -> str:
        found = self.peek()
        if not found or found not in expected:
            self.refuse(f"Expecting one of {expected}")
        self.at += 1
        return found

    def opened(self, closer: str) -> bool:
        """Step into a container. If the container is empty, step out again and return False."""
        self.at += 1
        if self.peek() != closer:
            return True
        self.at += 1
        return False

    def scalar(self) -> Json:
        value: Json
        value, self.at = _DECODER.raw_decode(self.text, self.at)
        return value

    def name(self) -> str:
        if self.peek() != '"':
            self.refuse("Expecting property name")
        name = self.scalar()
        self.take(":")
        return str(name)

    def refuse(self, problem: str) -> NoReturn:
        raise json.JSONDecodeError(problem, self.text, self.at)
