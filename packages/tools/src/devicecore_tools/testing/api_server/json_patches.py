"""JSON patches (RFC 6902) as kube-apiserver carries them out.

Law: where kube-apiserver is not as strict as the RFC, it is the same here. A field that is not there is null for
`copy`, `replace` and `test`, an operation without a value has null, and a negative index counts from the end of a list.
Nothing here changes its arguments.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from devicecore.domain.text import foreign_text
from devicecore_tools.testing.api_server.status import NOTHING, ApiError, Json, bad_request, copied

MAX_OPERATIONS = 10_000
"""Operations of a patch. kube-apiserver has the same limit."""

MAX_COPIED = 3 * 1024 * 1024
"""Bytes that the operations of a patch copy together. kube-apiserver has the same limit."""

Value = Any  # of JSON
_INDEX = re.compile(r"[+-]?[0-9]{1,9}")
_DECODING = "error decoding patch: json: cannot unmarshal"


def json_patched(document: Json, operations: Value) -> Json:
    """Return the document after a JSON patch.

    Raises ApiError if the patch is none, is too large, or an operation does not fit the document.
    """
    _refuse_unless_patch(operations)
    patched = _Document(copied(document))
    try:
        for operation in operations:
            patched.carry_out(operation)
    except (ValueError, RecursionError) as error:
        message = foreign_text(f"the server rejected our request: {error}")
        raise ApiError(422, "Invalid", message, about=NOTHING) from error
    if not isinstance(patched.value, dict):
        raise bad_request("the patch leaves no object")
    return patched.value


def _refuse_unless_patch(operations: Value) -> None:
    if not isinstance(operations, list):
        kind = "object" if isinstance(operations, dict) else type(operations).__name__
        raise bad_request(f"{_DECODING} {kind} into Go value of type []handlers.jsonPatchOp")
    for operation in operations:
        named = [operation.get(name) for name in ("op", "path", "from")] if isinstance(operation, dict) else [operation]
        if any(not isinstance(one, str | None) for one in named) or not isinstance(operation, dict):
            raise bad_request(f"{_DECODING} {foreign_text(json.dumps(operation), 50)} into an operation")
    if len(operations) > MAX_OPERATIONS:
        told = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise ApiError(413, "RequestEntityTooLarge", f"Request entity is too large: {told}")


class _Document:
    """A document that the operations of a patch change."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._copied = 0  # bytes

    def carry_out(self, operation: Json) -> None:
        """Carry out one operation. Raises ValueError if it does not fit."""
        way, path = _WAYS.get(operation.get("op", "")), operation.get("path")
        if way is None:
            raise ValueError(f"expected one of {', '.join(_WAYS)} as op, got {operation.get('op')!r}")
        if path is None:
            raise ValueError("expected a path")
        way(self, path, operation)

    def add(self, path: str, operation: Json) -> None:
        above, key = self._place(path)
        _insert(above, key, copied(operation.get("value")))

    def remove(self, path: str, _: Json) -> None:
        above, key = self._place(path)
        if isinstance(above, dict) and key not in above:
            raise ValueError(f"{path} is not there")
        del above[key if isinstance(above, dict) else _index(above, key)]

    def replace(self, path: str, operation: Json) -> None:
        value = copied(operation.get("value"))
        if path:
            above, key = self._place(path)
            above[key if isinstance(above, dict) else _index(above, key)] = value
        elif isinstance(value, dict | list):
            self.value = value
        else:
            raise ValueError("expected an object or a list in the place of the whole")

    def move(self, path: str, operation: Json) -> None:
        value = self._value_from(operation)
        self.remove(operation["from"], operation)
        above, key = self._place(path)
        _insert(above, key, value)

    def copy(self, path: str, operation: Json) -> None:
        value = self._value_from(operation)
        above, key = self._place(path)
        self._copied += 0 if value is None else len(json.dumps(value))
        if self._copied > MAX_COPIED:
            raise ValueError(f"expected at most {MAX_COPIED} bytes that a JSON patch copies, got {self._copied}")
        _insert(above, key, copied(value))

    def test(self, path: str, operation: Json) -> None:
        actual = self._value(path) if path else self.value
        first, second = (json.dumps(one, sort_keys=True) for one in (actual, operation.get("value")))
        if first != second:
            raise ValueError(f"expected {foreign_text(second, 100)} at {path}, got {foreign_text(first, 100)}")

    def _value_from(self, operation: Json) -> Value:
        if operation.get("from") is None:
            raise ValueError("expected a path as from")
        return self._value(operation["from"])

    def _value(self, path: str) -> Value:
        above, key = self._place(path)
        return above.get(key) if isinstance(above, dict) else above[_index(above, key)]

    def _place(self, path: str) -> tuple[Value, str]:
        """Return the object or list that has the last part of a path, and that part."""
        parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
        above = self.value
        for part in parts[:-1]:
            above = above.get(part) if isinstance(above, dict) else above[_index(above, part)]
            if not isinstance(above, dict | list):
                raise ValueError(f"{path} leads to nothing")  # noqa: TRY004 - of the patch, not of an argument
        if not parts:
            raise ValueError("expected a path that begins with /")
        return above, parts[-1]


_WAYS: Mapping[str, Callable[[_Document, str, Json], None]] = {
    "add": _Document.add,
    "remove": _Document.remove,
    "replace": _Document.replace,
    "move": _Document.move,
    "copy": _Document.copy,
    "test": _Document.test,
}


def _index(items: list[Value], key: str, size: int | None = None) -> int:
    """Return which item of a list a part of a path names. `size` is how many there can be."""
    size = len(items) if size is None else size
    number = int(key) if _INDEX.fullmatch(key) else size
    if not -size <= number < size:
        raise ValueError(f"expected an index below {size}, got {key}")
    return number + size if number < 0 else number


def _insert(above: Value, key: str, value: Value) -> None:
    if isinstance(above, dict):
        above[key] = value
    else:
        above.insert(len(above) if key == "-" else _index(above, key, len(above) + 1), value)
