"""The three kinds of patches: JSON patches, merge patches and strategic merge patches.

Law: a strategic merge patch merges a list whose items have a key by that key, in the order that it asks for, or in its
own. Every other list is replaced. Nothing here changes its arguments.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from jsonpatch import JsonPatch, JsonPatchException
from jsonpointer import JsonPointerException, resolve_pointer

from devicecore.domain.text import foreign_text
from devicecore_tools.testing.api_server.causes import list_of
from devicecore_tools.testing.api_server.fields import LISTS
from devicecore_tools.testing.api_server.status import ApiError, Json, bad_request, copied

MAX_OPERATIONS = 10_000
"""Operations of a JSON patch. kube-apiserver has the same limit."""

MAX_COPIED = 3 * 1024 * 1024
"""Bytes that the operations of a JSON patch copy together. kube-apiserver has the same limit."""

MERGE_KEYS: Mapping[str, str] = {
    **{
        name.rpartition(".")[2]: keys[0]
        for name, keys in LISTS.items()
        if keys and name not in ("claims", "status.devices")
    },
    "hostIPs": "ip",
}
"""The lists of the kinds in `kinds` that have a `patchMergeKey`, with that key. Statuses of containers have none."""

SETS = frozenset({"finalizers"})
"""The lists of texts that are merged."""

_DIRECTIVE, _RETAIN, _ORDER, _DELETE = "$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/"


def merged(document: Any, change: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the document after a merge patch (RFC 7386): null deletes, maps are merged, all else is replaced."""
    if not isinstance(change, dict):
        return copied(change)
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def json_patched(document: Json, operations: Any) -> Json:  # noqa: ANN401 - JSON
    """Return the document after a JSON patch (RFC 6902).

    Raises ApiError if the patch is none, is too large, or an operation does not fit the document.
    """
    try:
        result = _with_operations(document, operations)
    except (JsonPatchException, JsonPointerException, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ApiError(422, "Invalid", foreign_text(f"the server rejected our request: {error}")) from error
    if not isinstance(result, dict):
        raise bad_request("the patch leaves no object")
    return result


def _with_operations(document: Json, operations: Any) -> Any:  # noqa: ANN401 - JSON
    """Carry out one operation after the other, because each may copy all that those before it have copied."""
    if not isinstance(operations, list):
        kind = "object" if isinstance(operations, dict) else type(operations).__name__
        message = f"error decoding patch: json: cannot unmarshal {kind} into Go value of type []handlers.jsonPatchOp"
        raise bad_request(message)
    listed = JsonPatch(operations).patch
    if len(listed) > MAX_OPERATIONS:
        raise ValueError(f"the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(listed)}")
    result, size = copied(document), 0
    for operation in listed:
        if operation["op"] == "copy":
            size += len(json.dumps(resolve_pointer(result, operation["from"])))
            if size > MAX_COPIED:
                raise ValueError(f"expected at most {MAX_COPIED} bytes that a JSON patch copies, got {size}")
        result = JsonPatch([_like_in_go(result, operation)]).apply(result, in_place=True)
    return result


def _like_in_go(document: Json, operation: Json) -> Json:
    """Return the operation, but `add` for a `replace` of a field that is not there, as kube-apiserver reads it."""
    if operation["op"] != "replace" or not operation["path"]:
        return operation
    parent = resolve_pointer(document, operation["path"].rpartition("/")[0])
    return {**operation, "op": "add"} if isinstance(parent, dict) else operation


def strategically_merged(document: Json, change: Json) -> Json:
    """Return the document after a strategic merge patch.

    Raises ApiError if the patch breaks the rules of its directives.
    """
    if _is_whole(change):
        return {name: _added(value) for name, value in change.items() if not name.startswith("$")}
    if change.get(_DIRECTIVE) == "delete":
        return {}
    retained = change.get(_RETAIN, list(document))
    _refuse_unless_list(_RETAIN, retained)
    result = {name: value for name, value in document.items() if name in retained}
    for name, value in change.items():
        if name.startswith(_DELETE):
            of = name.removeprefix(_DELETE)
            if isinstance(value, list) and isinstance(result.get(of), list):
                result[of] = [one for one in result[of] if one not in value]
    result |= {name: _merged(name, result.get(name), value) for name, value in change.items() if name[:1] != "$"}
    result = {name: value for name, value in result.items() if value is not None or name not in change}
    for name, order in change.items():
        if name.startswith(_ORDER):
            _put_in_order(result, document, change, name.removeprefix(_ORDER), order)
    return result


def _refuse_unless_list(name: str, value: object) -> None:
    if not isinstance(value, list):
        raise bad_request(f"expected a list as {name} of the patch, got {foreign_text(json.dumps(value), 50)}")


def _put_in_order(result: Json, document: Json, change: Json, name: str, order: Any) -> None:  # noqa: ANN401 - JSON
    _refuse_unless_list(_ORDER + name, order)
    items = change.get(name, [])
    _refuse_unless_list(name, items)
    wanted, named = [_identity(name, item) for item in order], _named(name, items)
    if [one for one in wanted if one in named] != named:
        raise bad_request(f"The order in patch list: {named} doesn't match $setElementOrder list: {wanted}")
    if isinstance(result.get(name), list):
        result[name] = _ordered(name, result[name], wanted, list_of(document.get(name)))


def _merged(name: str, before: Any, value: Any) -> Any:  # noqa: ANN401 - JSON
    """The value of one field after the patch. None deletes it."""
    if isinstance(value, dict):
        return strategically_merged(before if isinstance(before, dict) else {}, value)
    if isinstance(value, list) and (name in MERGE_KEYS or name in SETS):
        return _merged_list(name, list_of(before), value)
    return _added(value)


def _is_whole(change: Json) -> bool:
    """Whether a patch of a map replaces it."""
    directive = change.get(_DIRECTIVE)
    if directive not in (None, "merge", "replace", "delete"):
        raise bad_request(f"Unknown patch type: {directive!r}")
    return directive == "replace"


def _added(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A value that is new, without directives and without nulls."""
    if isinstance(value, list):
        return [_added(one) for one in value]
    if isinstance(value, dict):
        return {name: _added(one) for name, one in value.items() if one is not None and not name.startswith("$")}
    return value


def _identity(name: str, item: Any) -> object:  # noqa: ANN401 - JSON
    """Return the key of an item of the list `name`. In a list without a merge key, items are their own keys."""
    key = MERGE_KEYS.get(name)
    if key is None:
        return item
    if not isinstance(item, dict) or key not in item:
        raise bad_request(f"map: {item} does not contain declared merge key: {key}")
    return item[key]


def _merged_list(name: str, before: list[Any], items: list[Any]) -> list[Any]:
    key = partial(_identity, name)
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in items):
        return [_added(item) for item in items if not (isinstance(item, dict) and item.get(_DIRECTIVE))]
    result = list(before)
    for item in items:
        place = next((number for number, one in enumerate(result) if key(one) == key(item)), None)
        if isinstance(item, dict) and item.get(_DIRECTIVE) == "delete":
            result = [one for one in result if key(one) != key(item)]
        elif place is None:
            result.append(_added(item))
        elif isinstance(item, dict):
            result[place] = strategically_merged(result[place], item)
    return _ordered(name, result, _named(name, items), before)


def _named(name: str, items: list[Any]) -> list[object]:
    """The keys of the items of a patch that are no directives."""
    return [_identity(name, item) for item in items if not (isinstance(item, dict) and item.get(_DIRECTIVE))]


def _ordered(name: str, merged: list[Any], wanted: list[object], before: list[Any]) -> list[Any]:
    """Return the merged list in the order of the patch.

    Items that the patch does not name come last, unless they stood in front of a named one before.
    """
    key = partial(_identity, name)
    old = [key(item) for item in before]
    known = sorted((item for item in merged if key(item) in wanted), key=lambda item: wanted.index(key(item)))
    others = [item for item in merged if key(item) not in wanted]
    result = []
    while known and others:
        first, other = key(known[0]), key(others[0])
        is_behind = first in old and other in old and old.index(other) < old.index(first)
        result.append((others if is_behind else known).pop(0))
    return [*result, *known, *others]
