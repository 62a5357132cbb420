"""YAML and JSON as values that know where they stand.

Law: whatever a text says, what is wrong with it is a `ManifestError` with its line and its field. No text keeps us busy
for long: how deep it nests and how many values it has, aliases counted as often as they are used, is limited.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import yaml
from attrs import Factory, define, frozen

from devicecore.domain.errors import DeviceCoreError, InvalidQuantityError
from devicecore.domain.quantity import is_integer, whole_quantity

_DEEPEST = 100  # levels of nesting; libyaml's composer overflows its stack on very many
_MOST_VALUES = 100_000  # in one file
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@frozen
class ManifestError(DeviceCoreError, ValueError):
    """A pod manifest that cannot be used. `line` counts from 1; `field` is the path to it, empty for the whole."""

    file: str
    line: int | None
    field: str
    problem: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.field}: {self.problem}" if self.field else f"{where}: {self.problem}"


@contextmanager
def blaming(file: str) -> Iterator[None]:
    """Make what YAML or Python has to say against the values of `file` a mistake in it.

    Raises:
        ManifestError: there is one.
    """
    try:
        yield
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ManifestError(file, line, "", error.problem or "it is not YAML") from error
    except yaml.YAMLError as error:  # a character that YAML does not have
        raise ManifestError(file, None, "", " ".join(str(error).split())) from error
    except RecursionError as error:
        raise ManifestError(file, None, "", "something in it is a part of itself") from error


def documents(text: str, file: str) -> "Iterator[Value]":
    """The documents of `file`, to be found and read while `blaming` it. None of them is without a value."""
    reading = _Reading(file)
    for part in _json_parts(text) or [text]:
        _check_depth(part, file)
        for node in yaml.compose_all(part, Loader=_LOADER):
            value = Value(reading, node, "")
            if value.plain() is not None:  # nothing stands between two `---`; this counts what does
                yield value


@define
class _Reading:
    """What the values of one file have in common."""

    file: str
    constructor: yaml.constructor.SafeConstructor = Factory(yaml.constructor.SafeConstructor)
    values: int = 0


class Value:
    """A value in a manifest, which knows where it stands; perhaps one that is not there."""

    def __init__(self, reading: _Reading, node: yaml.Node | None, field: str, line: int | None = None) -> None:
        self._reading = reading
        self._node = None if node is not None and node.tag == "tag:yaml.org,2002:null" else node
        self._field = field
        self._line = line if node is None else node.start_mark.line + 1

    @property
    def file(self) -> str:
        """The name of the file it is in."""
        return self._reading.file

    def refuse(self, problem: str, cause: Exception | None = None) -> NoReturn:
        """Say what is wrong here."""
        raise ManifestError(self.file, self._line, self._field, problem) from cause

    def __getitem__(self, key: str) -> "Value":
        dotted = f"{self._field}.{key}" if self._field else key
        return self.mapping().get(key) or Value(self._reading, None, dotted, self._line)

    def mapping(self) -> dict[str, "Value"]:
        """Its values by key; none if it is not there."""
        if self._node is None:
            return {}
        if not isinstance(self._node, yaml.MappingNode):
            self.refuse("it has to be an object")
        self._reading.constructor.flatten_mapping(self._node)  # `<<: *other`
        values: dict[str, Value] = {}
        for key, value in self._node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.refuse("a key has to be a text")
            name = f"[{key.value}]" if "/" in key.value else f".{key.value}"
            values[key.value] = Value(self._reading, value, (self._field + name).removeprefix("."))
        return values

    def sequence(self) -> list["Value"]:
        """Its items; none if it is not there."""
        if self._node is None:
            return []
        if not isinstance(self._node, yaml.SequenceNode):
            self.refuse("it has to be a list")
        return [Value(self._reading, item, f"{self._field}[{at}]") for at, item in enumerate(self._node.value)]

    def text(self, default: str | None = None) -> str:
        """The text it is; `default` if it is not there."""
        value = default if self._node is None else self._scalar()
        if value is None:
            self.refuse("it is missing")
        if not isinstance(value, str) or (value == "" and default is None):
            self.refuse(f"it has to be a text, and is {value!r}")
        return value or default or ""

    def quantity(self, *, integer: bool) -> int:
        """The quantity it is, which has to be an `integer` or is rounded up."""
        value = self._scalar()
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self.refuse("it has to be a quantity such as 2, 500m or 1.5Gi")
        try:
            count = whole_quantity(str(value))
            if integer and not is_integer(str(value)):
                self.refuse(f"it must be an integer, and is {value}")
        except InvalidQuantityError as error:
            self.refuse(str(error), error)
        if count < 0:
            self.refuse(f"it has to be 0 or more, and is {value}")
        return count

    def plain(self) -> Any:  # noqa: ANN401 - what JSON can hold
        """It, as JSON has it."""
        self._reading.values += 1
        if self._reading.values > _MOST_VALUES:
            raise ManifestError(self.file, self._line, "", f"it has more than {_MOST_VALUES} values")
        if isinstance(self._node, yaml.MappingNode):
            return {key: value.plain() for key, value in self.mapping().items()}
        if isinstance(self._node, yaml.SequenceNode):
            return [item.plain() for item in self.sequence()]
        return self._scalar()

    def _scalar(self) -> str | int | float | bool | None:
        if self._node is None:
            return None
        if not isinstance(self._node, yaml.ScalarNode):
            self.refuse("it has to be one value")
        if self._node.tag.rpartition(":")[2] in {"int", "float", "bool"}:
            try:
                value: int | float | bool = self._reading.constructor.construct_object(self._node)
            except (ValueError, IndexError, KeyError) as error:
                self.refuse(f"{self._node.value!r} is not a value", error)
            return value
        return str(self._node.value)  # a timestamp is one too, as in JSON


def _json_parts(text: str) -> list[str]:
    """The documents of a text that is JSON, each on its old lines; none if it is not JSON."""
    parts = []
    decoder = json.JSONDecoder()
    start = end = len(text) - len(text.lstrip())
    if text[start : start + 1] != "{":
        return []
    while start < len(text):
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return []  # so YAML will have something to say about it
        # JSON may be indented with tabs, YAML may not; a tab inside a JSON string is written \t.
        parts.append("\n" * text.count("\n", 0, start) + text[start:end].replace("\t", " "))
        start = end + len(text[end:]) - len(text[end:].lstrip())
    return parts


def _check_depth(text: str, file: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                line = event.start_mark.line + 1 if event.start_mark else None
                raise ManifestError(file, line, "", f"it is nested deeper than {_DEEPEST} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
