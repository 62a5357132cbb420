"""Merge patches and strategic merge patches.

Law: a strategic merge patch merges a list of keyed items by their keys, in the order that the patch requests, or else
in the patch's own order. Every other list is replaced, except for finalizers, which are merged. No function in this
module changes its arguments.
"""

import json
from collections import deque
from collections.abc import Mapping
from functools import partial

from devicecore.domain.text import foreign_text
from devicecore_tools.testing.api_server.causes import list_of
from devicecore_tools.testing.api_server.fields import LISTS
from devicecore_tools.testing.api_server.status import ApiError, Json, JsonValue, bad_request, copied

MERGE_KEYS: Mapping[str, str] = {
    **{
        name.rpartition(".")[2]: keys[0]
        for name, keys in LISTS.items()
        if keys and name not in ("claims", "status.devices")
    },
    "hostIPs": "ip",
}
"""The lists that have a `patchMergeKey` in the kinds that `kinds` lists, with that key.

Lists of container statuses have no such key.
"""

SETS = frozenset({"finalizers"})
"""The string lists that are merged."""

_DIRECTIVE, _RETAIN, _ORDER, _DELETE = "$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/"


def merged(document: JsonValue, change: JsonValue) -> JsonValue:
    """Return the document after a merge patch (RFC 7386): null deletes, maps are merged, anything else is replaced."""
    if not isinstance(change, dict):
        return copied(change)
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategically_merged(document: Json, change: Json) -> Json:
    """Return the document after a strategic merge patch.

    Raises ApiError if the patch breaks the rules of its directives.
    """
    if _has_directive(change):
        return _replaced(change)
    retained = change.get(_RETAIN, [*document, *change])
    kept = {one for one in retained if isinstance(one, str)} if isinstance(retained, list) else set[str]()
    sent = {name for name, value in change.items() if value is not None and not _is_instruction(name)}
    if not isinstance(retained, list) or sent - kept:
        raise bad_request("Invalid patch format of retainKeys")
    result = {name: value for name, value in document.items() if name in kept}
    for name, value in change.items():
        if name.startswith(_DELETE):
            of = name.removeprefix(_DELETE)
            if isinstance(value, list) and isinstance(result.get(of), list):
                deleted = {json.dumps(one) for one in value}
                result[of] = [one for one in result[of] if json.dumps(one) not in deleted]
    result |= {
        name: _merged(name, result.get(name), value) for name, value in change.items() if not _is_instruction(name)
    }
    result = {name: value for name, value in result.items() if value is not None or name not in change}
    for name, order in change.items():
        if name.startswith(_ORDER):
            _put_in_order(result, document, change, name.removeprefix(_ORDER), order)
    return result


def _is_instruction(name: str) -> bool:
    """Return whether a name in a patch is a directive rather than a field."""
    return name.startswith("$")


def _refuse_unless_list(name: str, value: object) -> None:
    if not isinstance(value, list):
        raise _unfit(f"expected a list as {name} of the patch, got {json.dumps(value)}")


def _put_in_order(result: Json, document: Json, change: Json, name: str, order: JsonValue) -> None:
    _refuse_unless_list(_ORDER + name, order)
    items, before = change.get(name, []), list_of(document.get(name))
    _refuse_unless_list(name, items)
    if not (items or before) and (name in change or name in document):
        raise _unfit("no elements in any of the given slices")
    wanted, named = [_identity(name, item) for item in order], _named(name, items)
    of_patch = {*named}
    if [one for one in wanted if one in of_patch] != named:
        raise _unfit(f"The order in patch list: {named} doesn't match $setElementOrder list: {wanted}")
    if isinstance(result.get(name), list):
        result[name] = _ordered(name, result[name], wanted, before)


def _merged(name: str, before: JsonValue, value: JsonValue) -> JsonValue:
    """Return the value of one field after the patch, or None if the patch deletes the field."""
    if isinstance(value, dict) and isinstance(before, dict):
        return strategically_merged(before, value)
    if isinstance(value, list) and isinstance(before, list):
        return _merged_list(name, before, value) if name in MERGE_KEYS or name in SETS else value
    return None if _has_directive(value) else _added(value)


def _has_directive(value: JsonValue) -> bool:
    """Return whether part of a patch contains a directive about the existing value."""
    return isinstance(value, dict) and _DIRECTIVE in value


def _replaced(change: Json) -> Json:
    """Return the map that replaces an existing one when a patch contains a directive."""
    _refuse_unknown(change)
    if change[_DIRECTIVE] == "delete":
        return {}
    return {name: value for name, value in change.items() if name != _DIRECTIVE}


def _refuse_unknown(change: Json) -> None:
    if change[_DIRECTIVE] not in ("replace", "delete"):
        shown = " ".join(f"{name}:{change[name]}" for name in sorted(change))
        raise _unfit(f"unknown patch type: {change[_DIRECTIVE]} in map: map[{shown}]")


def _unfit(message: str) -> ApiError:
    """Return the error for a patch that does not fit the object.

    In kube-apiserver, this error is an internal error without a reason.
    """
    return ApiError(500, "", foreign_text(message, 1000))


def _added(value: JsonValue) -> JsonValue:
    """Return a new value without directives and nulls."""
    if isinstance(value, list):
        return [_added(one) for one in value if not _has_directive(one)]
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if one is not None and not _has_directive(one)}
        return {name: _added(one) for name, one in kept.items() if not _is_instruction(name)}
    return value


def _identity(name: str, item: JsonValue) -> str:
    """Return the key of an item in the list `name`, as JSON.

    In a list without a merge key, items are their own keys.
    """
    key = MERGE_KEYS.get(name)
    if key is None:
        return json.dumps(item, sort_keys=True)
    if not isinstance(item, dict) or key not in item:
        raise _unfit(f"map: {item} does not contain declared merge key: {key}")
    return json.dumps(item[key], sort_keys=True)


def _merged_list(name: str, before: list[JsonValue], items: list[JsonValue]) -> list[JsonValue]:
    key = partial(_identity, name)
    new, directives = list[JsonValue](), list[Json]()
    for item in items:
        (directives if _has_directive(item) else new).append(item)
    for one in directives:
        _refuse_unknown(one)
    if any(one[_DIRECTIVE] == "replace" for one in directives):
        return new
    deleted = {key(one) for one in directives}
    result = [one for one in before if key(one) not in deleted]
    places = {key(one): number for number, one in reversed([*enumerate(result)])}
    for item in new:
        place = places.setdefault(key(item), len(result))
        if place == len(result):
            result.append(item)
        elif isinstance(item, dict):
            result[place] = strategically_merged(result[place], item)
    return _ordered(name, result, _named(name, items), before)


def _named(name: str, items: list[JsonValue]) -> list[str]:
    """Return the keys of a patch's items that are not directives."""
    return [_identity(name, item) for item in items if not _has_directive(item)]


def _ordered(name: str, merged: list[JsonValue], wanted: list[str], before: list[JsonValue]) -> list[JsonValue]:
    """Return the merged list in the order of the patch.

    Items that the patch does not name come last, unless they preceded an item that the patch names.
    """
    key = partial(_identity, name)
    ranks = {one: number for number, one in reversed([*enumerate(wanted)])}
    old = {key(one): number for number, one in reversed([*enumerate(before)])}
    keyed = [(key(item), item) for item in merged]
    known = deque(sorted((pair for pair in keyed if pair[0] in ranks), key=lambda pair: ranks[pair[0]]))
    others = deque(pair for pair in keyed if pair[0] not in ranks)
    result = []
    while known and others:
        first, other = known[0][0], others[0][0]
        is_behind = first in old and other in old and old[other] < old[first]
        result.append((others if is_behind else known).popleft())
    return [item for _, item in (*result, *known, *others)]
