"""Merging objects field by field, and who owns which field.

Some lists of the API have items with keys, so they are maps in fact. `keyed` makes maps of them and `unkeyed` makes
lists again, so that merging, applying and ownership handle maps only.

Law: a field belongs to the managers that wrote it last. Nothing here changes its arguments.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from devicecore_tools.testing.api_server.status import ApiError, Json, copied

FieldPath = tuple[str, ...]
Owner = tuple[str, str]
"""The field manager and its operation, `Apply` or `Update`."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    "addresses": ("type",),
    "conditions": ("type",),
    "devices": ("driver", "pool", "device", "shareID"),  # of a claim's status; those of a slice have none of these
    "ownerReferences": ("uid",),
    "reservedFor": ("uid",),
}
_KEY = "k:"


def keyed(value: Any, name: str = "") -> Any:  # noqa: ANN401 - JSON
    """Return a copy of `value` whose lists with keys are maps from key to item."""
    if isinstance(value, dict):
        return {key: keyed(below, key) for key, below in value.items()}
    keys = _KEYS.get(name)
    if not isinstance(value, list):
        return value
    if not keys or not all(isinstance(item, dict) and item.keys() & {*keys} for item in value):
        return copied(value)
    return {_key(item, keys): keyed(item) for item in value} if value else []


def unkeyed(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a copy of `value` whose maps that `keyed` has made are lists again."""
    if not isinstance(value, dict):
        return copied(value)
    if value and all(key.startswith(_KEY) for key in value):
        return [unkeyed(item) for item in value.values()]
    return {key: unkeyed(below) for key, below in value.items()}


def _key(item: Json, keys: tuple[str, ...]) -> str:
    return _KEY + json.dumps({key: item[key] for key in keys if key in item}, separators=(",", ":"), sort_keys=True)


def leaves(value: Any, above: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:  # noqa: ANN401 - JSON
    """Every field of a `keyed` object that is no map, or an empty one, with its path. Null is no field."""
    if isinstance(value, dict) and (value or not above):
        for key, below in value.items():
            yield from leaves(below, (*above, key))
    elif value is not None:
        yield above, value


def applied(
    before: Json, sent: Json, owners: Mapping[FieldPath, set[Owner]], manager: str, *, force: bool
) -> tuple[Json, dict[FieldPath, set[Owner]]]:
    """Server-side apply on `keyed` objects: the object and the owners afterwards.

    What `manager` applied before and no longer sends is deleted, unless another manager owns it, too. Raises ApiError
    if another manager owns a field with another value, and `force` is not set.
    """
    after, me = copied(before), (manager, "Apply")
    changed = {path: set(holders) for path, holders in owners.items()}
    old, new = dict(leaves(before)), dict(leaves(sent))
    conflicts = []
    for path, value in new.items():
        others = changed.get(path, set()) - {me}
        if others and value != {} and old.get(path) != value:
            conflicts.append((path, others))
            others = set()
        changed[path] = {*others, me}
        _set(after, path, value)
    if conflicts and not force:
        raise _apply_conflict(conflicts)
    for path in [path for path, holders in changed.items() if me in holders and path not in new]:
        changed[path] -= {me}
        if not changed[path]:
            del changed[path]
            _delete(after, path)
    return after, changed


def _apply_conflict(conflicts: list[tuple[FieldPath, set[Owner]]]) -> ApiError:
    texts = [f'conflict with "{min(owners)[0]}": .{".".join(path)}' for path, owners in conflicts]
    plural = "conflict" if len(texts) == 1 else "conflicts"
    return ApiError(409, "Conflict", f"Apply failed with {len(texts)} {plural}: {', '.join(texts)}")


def updated_owners(
    before: Json, after: Json, owners: Mapping[FieldPath, set[Owner]], manager: str
) -> dict[FieldPath, set[Owner]]:
    """The owners after `manager` wrote a whole `keyed` object: the fields that it changed are its own."""
    old, new = dict(leaves(before)), dict(leaves(after))
    kept = {path: set(holders) for path, holders in owners.items() if path in new}
    return kept | {path: {(manager, "Update")} for path in new if path not in old or old[path] != new[path]}


def managed_fields(
    owners: Mapping[FieldPath, set[Owner]], api_version: str, earlier: Sequence[Json], now: str
) -> list[Json]:
    """Return `metadata.managedFields`. What lies in the status is an entry of its own.

    An entry that is among the `earlier` ones keeps its time; the others get the time `now`.
    """
    entries: dict[tuple[str, str, str], Json] = {}
    for path, holders in sorted(owners.items()):
        subresource = "status" if path[0] == "status" else ""
        for manager, operation in holders:
            fields = entries.setdefault((manager, operation, subresource), {})
            _set(fields, tuple(part if part.startswith(_KEY) else f"f:{part}" for part in path), {})
    listed: list[Json] = [
        {
            "manager": manager,
            "operation": operation,
            "apiVersion": api_version,
            "time": now,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
            **({"subresource": subresource} if subresource else {}),
        }
        for (manager, operation, subresource), fields in sorted(entries.items())
    ]
    return [next((one for one in earlier if {**one, "time": now} == entry), entry) for entry in listed]


def _set(document: Json, path: FieldPath, value: Any) -> None:  # noqa: ANN401 - JSON
    *above, last = path
    for part in above:
        if not isinstance(document.get(part), dict):
            document[part] = {}
        document = document[part]
    if value != {} or not document.get(last):  # an empty map is merged with what is there
        document[last] = copied(value)


def _delete(document: Json, path: FieldPath) -> None:
    """Delete a field, and what has no fields afterwards, such as an item of a list. Fields of others in it stay."""
    first, *below = path
    found = document.get(first)
    if below and isinstance(found, dict):
        _delete(found, tuple(below))
    if found == {} or not (below or isinstance(found, dict)):
        document.pop(first, None)
