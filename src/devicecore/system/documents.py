"""YAML and JSON from outside, read as plain values: pod manifests and kubeconfigs.

Laws: any text is read or refused in bounded time and memory, because the size, the number of values and the nesting are
limited. An alias counts as all the values that it stands for. Scalars mean what they mean to Kubernetes
(sigs.k8s.io/yaml): `yes` is true, `010` is 8, and `1:30` is a string.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import attrs
import yaml

from devicecore.domain.documents import Document, Value, described
from devicecore.domain.errors import DocumentError

MAX_DOCUMENT_SIZE = 1024 * 1024
"""The maximum size of a text with documents: of a file in bytes, and of a string in characters.

An API server accepts objects of up to 1.5 MiB; a large pod takes about 20 KiB.
"""

MAX_VALUES = 50_000
"""The maximum number of values, including keys. Every 64 characters of a value count as one more value.

A large pod contains about 1,000 values.
"""

MAX_DEPTH = 100
"""The maximum depth of nesting. A pod has about 10 levels."""

_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CHARACTERS_PER_VALUE = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_TAG_DIRECTIVE = re.compile(r"^%TAG", re.MULTILINE)
_CORE_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_MAX_NUMBER_LENGTH = 100  # the maximum number of characters of a number; a longer scalar is a string
_BITS = 64
_MAX_INTEGER_LENGTH = 19  # an integer with fewer characters has at most 64 bits
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False),
}

Data = Any  # a JSON value: dict, list, str, int, float, bool or None


def read_documents(
    text: str, file: str, *, error: type[DocumentError] = DocumentError, unique_keys: bool = False
) -> list[Value]:
    """Return the non-empty documents in a string: YAML, or JSON values one after another.

    `file` is the name used in errors. If an object in YAML has a key twice, the last value counts, as for a kubelet.
    With `unique_keys`, such an object is refused, as by kubectl and an API server. Raises `error`, a DocumentError, if
    the text is not YAML or is too large.
    """
    whole = Value(None, Document(file, error=error))
    if len(text) > MAX_DOCUMENT_SIZE:
        whole.refuse(f"expected at most {MAX_DOCUMENT_SIZE} characters, got {len(text)}")
    try:
        found = _json_documents(text) or _yaml_documents(text, unique_keys=unique_keys)
        _check_size(found)
    except _RefusedError as refused:
        raise error(file, refused.line, "", refused.problem + _of_template(text, refused.line)) from refused
    except yaml.MarkedYAMLError as refused:
        line = refused.problem_mark.line + 1 if refused.problem_mark else None
        # Since PyYAML 6.0.4, libyaml itself rejects nesting of 1,000 levels, possibly before it reports even the first
        # level.
        problem = _TOO_DEEP if refused.problem == "exceeded maximum nesting depth" else refused.problem
        before = text.split("\n", line)[line - 1] if line and line <= text.count("\n") + 1 else ""
        explained = _explained(problem or "it is not YAML", before)
        raise error(file, line, "", explained + _of_template(text, line)) from refused
    except yaml.YAMLError as refused:  # the error for a character that YAML does not allow
        raise error(file, None, "", " ".join(str(refused).split())) from refused
    return [Value(data, Document(file, line, error)) for line, data in found if data is not None]


_HINTS = {
    "mapping values are not allowed": "a second colon on this line needs quotes, or the indentation is wrong",
    "did not find expected key": "the indentation of this line differs from that of the lines before it",
    "did not find expected '-' indicator": "the items of a list need the same indentation",
    "could not find expected ':'": "expected `key: value`, with a space after the colon",
    "found a tab character": "YAML allows only spaces for indentation",
    "found unexpected end of stream": "a quote or a bracket is not closed",
}
"""The mistakes behind libyaml's messages."""


def _explained(problem: str, line: str) -> str:
    """Return libyaml's message with advice."""
    if problem == "found character that cannot start any token":
        if "\t" in line[: len(line) - len(line.lstrip())]:
            return f"{problem}: a tab indents this line, but YAML allows only spaces"
        return f"{problem}: put text that starts with @, ` or % in quotes"
    return next((f"{problem}: {hint}" for said, hint in _HINTS.items() if problem.startswith(said)), problem)


_TEMPLATE = re.compile(r"^[^'\"#\n]*\{\{", re.MULTILINE)


def _of_template(text: str, line: int | None) -> str:
    """Return advice if `{{` outside quotes comes before the mistake, as in a Helm chart's templates."""
    before = "\n".join(text.split("\n", line)[:line]) if line else ""
    return "; {{ begins a placeholder of Helm: run helm template first" if _TEMPLATE.search(before) else ""


def text_of(data: bytes, file: str, *, error: type[DocumentError] = DocumentError) -> str:
    """Return the text of a file, without a byte order mark. Raises `error`, with the line, if `data` is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as refused:
        line = 1 + data.count(b"\n", 0, refused.start)
        raise error(file, line, "", why_not_text(data)) from None


def why_not_text(data: bytes, otherwise: str = "expected UTF-8 text, got other bytes") -> str:
    """Return what is wrong with data that is not text: it is compressed, or `otherwise`."""
    return "it is compressed: run gunzip first" if data.startswith(_GZIP) else otherwise


_GZIP = b"\x1f\x8b"


class _RefusedError(Exception):
    """The reason why a string is refused, without the file name."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


def _refuse(problem: str, line: int | None = None) -> NoReturn:
    raise _RefusedError(problem, line)


def _check_size(documents: list[tuple[int | None, Data]]) -> None:
    """Count values level by level, so that the values behind aliases are counted before they are visited."""
    level: list[Data] = [data for _, data in documents]
    depth, values = 0, len(level)
    while level:
        if depth > MAX_DEPTH:
            _refuse(_TOO_DEEP)
        for one in level:
            if isinstance(one, dict):
                values += 2 * len(one) + sum(map(len, one)) // _CHARACTERS_PER_VALUE
            elif isinstance(one, list):
                values += len(one)
            elif isinstance(one, str):
                values += len(one) // _CHARACTERS_PER_VALUE
        if values > MAX_VALUES:
            _refuse(f"it has more than {MAX_VALUES} values")
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
        ]
        depth += 1


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json_documents(text: str) -> list[tuple[int | None, Data]]:
    """Return the values in a string of JSON, or no values if the string has to be read, or refused, as YAML."""
    # JSON is not read as YAML, because YAML allows neither tabs for indentation nor half of a surrogate pair.
    decoder = json.JSONDecoder(parse_int=_json_integer, parse_float=_json_number, parse_constant=_refuse_constant)
    documents: list[tuple[int | None, Data]] = []
    at = _end_of_space(text, 0)
    if text[at : at + 1] != "{":
        return []
    while at < len(text):
        if len(documents) == MAX_VALUES:
            _refuse(f"it has more than {MAX_VALUES} values")
        try:
            data, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        documents.append((None, data))
        at = _end_of_space(text, at)
    return documents


def _end_of_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return found.end() if found else start


def _json_integer(text: str) -> int | float | str:
    return int(text) if len(text) < _MAX_INTEGER_LENGTH else _json_number(text)


def _json_number(text: str) -> int | float | str:
    number = _number(text)
    return text if number is None else number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity, which only Python accepts as JSON


# --- YAML -------------------------------------------------------------------------------------------------------------


class _Mapping(dict[str, Data]):
    """An object, with the line of each value."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}


class _Sequence(list[Data]):
    """A list, with the line of each item."""

    def __init__(self) -> None:
        self.lines: list[int] = []


def _yaml_documents(text: str, *, unique_keys: bool) -> list[tuple[int | None, Data]]:
    if directive := _TAG_DIRECTIVE.search(text):  # libyaml takes 6 s for 60,000 directives
        line = text.count("\n", 0, directive.start()) + 1
        _refuse("%TAG directives are not supported", line)
    return list(_Composer(yaml.parse(text, Loader=_LOADER), unique_keys).documents())


_UNFINISHED: Data = object()  # stands for the value of an anchor until the end of the value has been read


@attrs.define
class _Composer:
    """Turns parser events into values.

    PyYAML's own composer has no limits, and copies what `<<` merges again and again.
    """

    events: Iterator[yaml.Event]
    unique_keys: bool
    anchors: dict[str, Data] = attrs.field(factory=dict)
    values: int = 0
    depth: int = 0

    def documents(self) -> Iterator[tuple[int, Data]]:
        """Yield the documents, each with the number of its first line."""
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors = {}
                yield self._next()

    def _next(self) -> tuple[int, Data]:
        """Return the next value and its line."""
        event = next(self.events)
        return _line(event), self._value(event)

    def _value(self, event: yaml.Event) -> Data:
        self._count(1, event)
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(anchor, event)
        if anchor is not None:
            self.anchors[anchor] = _UNFINISHED
        if isinstance(event, yaml.ScalarEvent):
            data = _scalar(event)
        else:
            self.depth += 1
            if self.depth > MAX_DEPTH:
                _refuse(_TOO_DEEP, _line(event))
            data = self._mapping() if isinstance(event, yaml.MappingStartEvent) else self._sequence()
            self.depth -= 1
        if anchor is not None:
            self.anchors[anchor] = data
        return data

    def _alias(self, anchor: str | None, event: yaml.Event) -> Data:
        if anchor not in self.anchors:
            _refuse(f"*{anchor} refers to an anchor that does not occur before it", _line(event))
        if self.anchors[anchor] is _UNFINISHED:
            _refuse(f"*{anchor} is part of itself", _line(event))
        return self.anchors[anchor]

    def _sequence(self) -> _Sequence:
        items = _Sequence()
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._value(event))
            items.lines.append(_line(event))
        return items

    def _mapping(self) -> _Mapping:
        own, merged = _Mapping(), _Mapping()
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._value(event)
            if isinstance(key, dict | list):
                _refuse("expected a string as a key, got " + described(key), _line(event))
            line, value = self._next()
            if isinstance(event, yaml.ScalarEvent):
                if event.implicit[0] and event.value == "<<":
                    self._merge(value, merged, event)
                    continue
                key = event.value
            name = str(key)
            if self.unique_keys and name in own:
                _refuse(f"expected each key once, got {described(name)} a second time", _line(event))
            own[name], own.lines[name] = value, line
        if merged:
            for name in merged.keys() - own.keys():
                own[name], own.lines[name] = merged[name], merged.lines[name]
        return own

    def _merge(self, value: Data, into: _Mapping, event: yaml.Event) -> None:
        """Add the keys that a mapping lacks. If several sources have a key, the first source takes precedence."""
        for source in value if isinstance(value, _Sequence) else [value]:
            if not isinstance(source, _Mapping):
                _refuse("expected an object after <<, got " + described(source), _line(event))
            self._count(1 + len(source), event)
            for name in source.keys() - into.keys():
                into[name], into.lines[name] = source[name], source.lines[name]

    def _count(self, values: int, event: yaml.Event) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            _refuse(f"it has more than {MAX_VALUES} values", _line(event))


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _scalar(event: yaml.ScalarEvent) -> Data:
    """Return the value of a scalar as go-yaml resolves it."""
    text, tag = str(event.value), event.tag
    if tag is None and event.implicit[0]:
        return _resolved(text)
    if tag is not None and tag.removeprefix(_CORE_TAG) in {"bool", "float", "int", "null"}:
        return _resolved(text)
    return text


def _resolved(text: str) -> Data:
    if text in _WORDS:
        return _WORDS[text]
    number = _number(text.replace("_", "")) if text[0] in "0123456789+-." else None
    return text if number is None else number


def _number(text: str) -> int | float | None:
    """Return the number that a string represents: a 64-bit integer or a finite float.

    For other strings, return None.
    """
    if len(text) > _MAX_NUMBER_LENGTH:
        return None
    if matched := _INTEGER.fullmatch(text):
        sign, *digits = matched.groups()
        base, number = next((base, one) for base, one in zip((16, 2, 8, 10), digits, strict=True) if one)
        value = int(sign + number, base)
        if value.bit_length() <= _BITS:
            return value
    if _FLOAT.fullmatch(text):
        real = float(text)
        return real if math.isfinite(real) else None
    return None
