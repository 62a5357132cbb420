"""JSON patches (RFC 6902) as kube-apiserver applies them.

Law: this module is less strict than the RFC wherever kube-apiserver is. A missing field is null for `copy`, `replace`
and `test`, an operation without a value uses null, and a negative index counts from the end of a list. No function in
this module changes its arguments.
"""

import json
import re
from collections.abc import Callable, Mapping

from devicecore.domain.text import foreign_text
from devicecore_tools.testing.api_server.status import ApiError, Json, JsonValue, bad_request, copied, generic

MAX_OPERATIONS = 10_000
"""The maximum number of operations in a patch, the same as kube-apiserver's."""

MAX_COPIED = 3 * 1024 * 1024
"""The maximum number of bytes that a patch may copy in total, the same as kube-apiserver's."""

_INDEX = re.compile(r"[+-]?[0-9]{1,9}")
_DECODING = "error decoding patch: json: cannot unmarshal"


def json_patched(document: Json, operations: JsonValue) -> Json:
    """Return the document after a JSON patch.

    Raises ApiError if the patch is malformed, is too large, or does not fit the document.
    """
    _refuse_unless_patch(operations)
    patched = _Document(copied(document))
    try:
        for operation in operations:
            patched.carry_out(operation)
    except (ValueError, RecursionError) as error:
        message = foreign_text(f"the server rejected our request: {error}")
        raise generic(422, "Invalid", message) from error
    if not isinstance(patched.value, dict):
        raise bad_request("the patch leaves no object")
    return patched.value


def _refuse_unless_patch(operations: JsonValue) -> None:
    if not isinstance(operations, list):
        kind = "object" if isinstance(operations, dict) else type(operations).__name__
        raise bad_request(f"{_DECODING} {kind} into Go value of type []handlers.jsonPatchOp")
    for operation in operations:
        if not isinstance(operation, dict) or any(
            not isinstance(operation.get(name), str | None) for name in ("op", "path", "from")
        ):
            raise bad_request(f"{_DECODING} {foreign_text(json.dumps(operation), 50)} into an operation")
    if len(operations) > MAX_OPERATIONS:
        told = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise ApiError(413, "RequestEntityTooLarge", f"Request entity is too large: {told}")


class _Document:
    """A document that a patch's operations modify."""

    def __init__(self, value: JsonValue) -> None:
        self.value = value
        self._copied = 0  # bytes

    def carry_out(self, operation: Json) -> None:
        """Apply one operation. Raises ValueError if the operation does not fit the document."""
        operate, path = _OPERATIONS.get(operation.get("op", "")), operation.get("path")
        if operate is None:
            raise ValueError(f"expected one of {', '.join(_OPERATIONS)} as op, got {operation.get('op')!r}")
        if path is None:
            raise ValueError("expected a path")
        operate(self, path, operation)

    def add(self, path: str, operation: Json) -> None:
        _insert(*self._place(path, is_new=True), copied(operation.get("value")))

    def remove(self, path: str, _: Json) -> None:
        above, key = self._place(path)
        if isinstance(above, dict) and key not in above:
            raise ValueError(f"{path} does not exist")
        del above[key]

    def replace(self, path: str, operation: Json) -> None:
        value = copied(operation.get("value"))
        if path:
            above, key = self._place(path)
            above[key] = value
        elif isinstance(value, dict | list):
            self.value = value
        else:
            raise ValueError("expected an object or a list in place of the whole document")

    def move(self, path: str, operation: Json) -> None:
        value = self._value_from(operation)
        self.remove(operation["from"], operation)
        _insert(*self._place(path, is_new=True), value)

    def copy(self, path: str, operation: Json) -> None:
        value = self._value_from(operation)
        above, key = self._place(path, is_new=True)
        self._copied += 0 if value is None else len(json.dumps(value))
        if self._copied > MAX_COPIED:
            raise ValueError(f"expected a JSON patch that copies at most {MAX_COPIED} bytes, got {self._copied}")
        _insert(above, key, copied(value))

    def test(self, path: str, operation: Json) -> None:
        actual = self._value(path) if path else self.value
        first, second = (json.dumps(one, sort_keys=True) for one in (actual, operation.get("value")))
        if first != second:
            raise ValueError(f"expected {foreign_text(second, 100)} at {path}, got {foreign_text(first, 100)}")

    def _value_from(self, operation: Json) -> JsonValue:
        if operation.get("from") is None:
            raise ValueError("expected a path in the field from")
        return self._value(operation["from"])

    def _value(self, path: str) -> JsonValue:
        return _below(*self._place(path))

    def _place(self, path: str, *, is_new: bool = False) -> tuple[JsonValue, str | int]:
        """Return the object or list that contains the target of a path, and the target's key or index.

        With `is_new`, the index is where a new item is inserted.
        """
        parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
        above = self.value
        for part in parts[:-1]:
            above = _below(above, _key(above, part))
            if not isinstance(above, dict | list):
                raise ValueError(f"{path} leads to nothing")  # noqa: TRY004 - a value in the patch, not an argument
        if not parts:
            raise ValueError("expected a path that starts with /")
        return above, _key(above, parts[-1], is_new=is_new)


_OPERATIONS: Mapping[str, Callable[[_Document, str, Json], None]] = {
    "add": _Document.add,
    "remove": _Document.remove,
    "replace": _Document.replace,
    "move": _Document.move,
    "copy": _Document.copy,
    "test": _Document.test,
}


def _key(above: JsonValue, part: str, *, is_new: bool = False) -> str | int:
    """Return the key or index that a path segment names.

    With `is_new`, the index after the last item is also valid, and may be written `-`.
    """
    if isinstance(above, dict):
        return part
    size = len(above) + is_new
    if is_new and part == "-":
        return len(above)
    number = int(part) if _INDEX.fullmatch(part) else size
    if not -size <= number < size:
        raise ValueError(f"expected an index below {size}, got {part}")
    return number + size if number < 0 else number


def _below(above: JsonValue, key: str | int) -> JsonValue:
    """Return the value at a key or index. A missing object key is null."""
    return above.get(key) if isinstance(above, dict) else above[key]


def _insert(above: JsonValue, key: str | int, value: JsonValue) -> None:
    if isinstance(above, dict):
        above[key] = value
    else:
        above.insert(key, value)
