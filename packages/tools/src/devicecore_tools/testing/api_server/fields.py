"""Merging objects field by field, and who owns which field, as Kubernetes' structured-merge-diff does.

Some API lists have items with keys, so they are really maps. `keyed` converts them to maps and `unkeyed`
converts them back, so that merging, applying and ownership only handle maps.

Law: a field belongs to the managers that last wrote it. No function in this module changes its arguments.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from attrs import frozen

from devicecore_tools.testing.api_server.causes import mapping_of, objects_in
from devicecore_tools.testing.api_server.status import ApiError, Cause, Json, copied

Keyed = Any  # a JSON value, possibly converted by `keyed`
FieldPath = tuple[str, ...]
Fields = frozenset[FieldPath]
Owner = tuple[str, str, str]
"""The field manager, its operation (`Apply` or `Update`), and the subresource through which it wrote."""

Owners = Mapping[Owner, Fields]

LISTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("claims", "containers", "env", "ephemeralContainers", "initContainers"), ("name",)),
    **dict.fromkeys(("resourceClaims", "resourceClaimStatuses", "schedulingGates", "volumes"), ("name",)),
    **dict.fromkeys(("spec.imagePullSecrets", ".secrets"), ("name",)),
    **dict.fromkeys(("addresses", "conditions"), ("type",)),
    **dict.fromkeys(("hostAliases", "podIPs"), ("ip",)),
    **dict.fromkeys(("ownerReferences", "reservedFor"), ("uid",)),
    **dict.fromkeys(("metadata.finalizers", "podCIDRs"), ()),  # the items are their own keys
    "ports": ("containerPort", "protocol"),
    "status.devices": ("device", "driver", "pool", "shareID"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
}
"""The key fields of each list's items.

A list is identified by its name, or also by its parent field if the name alone is ambiguous.
"""

_WHOLE: Iterable[str] = (
    *("configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef", "involvedObject", "regarding"),
    *("labelSelector", "nodeSelector", "related", "requiredDuringSchedulingIgnoredDuringExecution"),
    *("devices[].data", "imagePullSecrets[]", "ownerReferences[]", "secrets[]"),
)
"""The maps that each count as a single field."""

_ALWAYS: Iterable[str] = (
    *("metadata", "spec", "status", "devices", "pool", "resources"),
    *("nodeInfo", "daemonEndpoints", "kubeletEndpoint"),
)
"""The maps that always exist, even if empty.

A manager that fills such a map does not own it. `Items` with these names are not such maps.
"""

_OF_A_DEVICE = "conditions"
"""The device field in a claim's status that Go writes even if it is empty."""

_NEVER_EMPTY = "allocation"
"""The map in a claim's status that always contains the map `devices`, so it remains when its other fields are gone."""

MAX_FIELDS = 10_000
"""How many fields a request's `metadata.managedFields` may contain."""


class ItemKey(str):
    """The key of an item in a path: `k:` and a map, or `v:` and the item itself.

    Anything else in a path is a field name.
    """

    __slots__ = ()


class Items(dict[str, Any]):
    """A list of keyed items, stored as a map from key to item."""


class Emptied(dict[str, Any]):
    """A map or `Items` without its contents: a manager can own it as a field, but it adds nothing to the object."""


@frozen
class Whole:
    """A map that counts as a single field."""

    value: Json


def keyed(value: Keyed, name: str = "") -> Keyed:
    """Return a copy of `value` whose keyed lists are `Items`. Nulls are left out because null is not a field.

    A list stays a list if an item has no key, or if two items have the same key.
    """
    short = name.rpartition(".")[2]
    if isinstance(value, dict):
        if name in _WHOLE or short in _WHOLE:
            return Whole(copied(value))
        return {key: keyed(below, f"{short}.{key}") for key, below in value.items() if below is not None}
    keys = LISTS.get(name, LISTS.get(short))
    if not isinstance(value, list) or keys is None:
        return value
    items = Items({_key(item, keys): keyed(item, f"{short}[]") for item in value})
    return items if len(items) == len(value) and "" not in items else copied(value)


def unkeyed(value: Keyed) -> Keyed:
    """Return a copy of `value` in which `Items` are lists again."""
    if isinstance(value, Items):
        return [unkeyed(item) for item in value.values()]
    if isinstance(value, dict):
        return {key: unkeyed(below) for key, below in value.items() if not isinstance(below, Emptied)}
    return copied(value.value if isinstance(value, Whole) else value)


def _key(item: Keyed, keys: tuple[str, ...]) -> ItemKey:
    if not keys or not isinstance(item, dict):
        return ItemKey("v:" + json.dumps(item))
    found = {"protocol": "TCP", **item} if "protocol" in keys else item
    if keys[0] not in found:
        return ItemKey()
    named = {key: found[key] for key in keys if key in found}
    return ItemKey("k:" + json.dumps(named, separators=(",", ":"), sort_keys=True))


def fields_of(value: Keyed, above: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield every field that the manager of a `keyed` object owns: values, empty maps, and list items."""
    if not isinstance(value, dict):
        yield above
        return
    for key, below in value.items():
        yield from fields_of(below, (*above, key))
        if isinstance(value, Items) or (below == {} and not isinstance(below, Items)):
            yield (*above, key)


def _differences(old: Keyed, new: Keyed, path: FieldPath, *, inside: bool) -> Iterator[tuple[FieldPath, bool]]:
    """Yield each field in which two `keyed` objects differ, and whether it is gone. None is not a field.

    `inside` is whether both objects have the map that contains the field.
    """
    deep = isinstance(old, dict | None) and isinstance(new, dict | None) and bool(old or new)
    is_map = type(old if new is None else new) is dict
    # Go writes some fields even when they are null, because they have no `omitempty`. Such a field therefore exists
    # before it has items, and its first item changes the field instead of adding it.
    is_written = path[-1:] == ("containers",) or (path[-3:-2] == ("devices",) and path[-1] == _OF_A_DEVICE)
    is_always = inside and (not path or is_written or (is_map and path[-1] in _ALWAYS))
    both = is_always or (old is not None and new is not None)
    if deep:
        written = {_OF_A_DEVICE: None} if path[-2:-1] == ("devices",) and not both else {}
        for key in {**(old or {}), **(new or {}), **written}:
            yield from _differences((old or {}).get(key), (new or {}).get(key), (*path, key), inside=both)
    if not both or (not deep and not is_always and old != new):
        yield path, new is None


def changes(old: Json, new: Json) -> tuple[Fields, Fields]:
    """Return the fields of a `keyed` object that are new or changed, and the fields that are gone."""
    found = list(_differences(old, new, (), inside=True))
    return frozenset(path for path, gone in found if not gone), frozenset(path for path, gone in found if gone)


def applied(
    before: Json, sent: Json, owners: Owners, me: Owner, api_version: str, *, force: bool, free: Fields = frozenset()
) -> tuple[Json, Owners]:
    """Return the object and the owners that result from a server-side apply. Objects are `keyed`.

    Anything `me` applied before and no longer sends is deleted, unless another manager also owns it. Raises ApiError if
    another manager owns a field with a different value, the field is not `free`, and `force` is not set.
    """
    new = {**owners, me: frozenset(fields_of(sent))}
    after, removed = _merged(before, sent), frozenset[FieldPath]()
    if last := _named(owners.get(me, ())):
        # `Updater.prune` of structured-merge-diff, in its three steps: `RemoveItems` removes everything that `me`
        # applied last, along with everything below it. `addBackOwnedItems` restores what another manager or this
        # request owns, and `addBackDanglingItems` restores what was below a removed item if `me` had not applied it.
        whole = after
        every, owned = _named(fields_of(whole)), _named(path for paths in new.values() for path in paths)
        after = _without(whole, last)
        after = _without(whole, every - _named(fields_of(after)) - owned)
        removed = (every - _named(fields_of(after))) & last
        after = _without(whole, removed)
    changed, gone = changes(before, after)
    conflicts = [(owner, path) for owner in new if owner != me for path in new[owner] & changed if path not in free]
    if conflicts and not force:
        raise _apply_conflict(conflicts, api_version)
    # Go has not written the object yet, so even a field that it always writes, such as `status`, can be missing.
    return after, _kept(new, me, changed, gone | removed)


def updated(before: Json, after: Json, owners: Owners, me: Owner) -> Owners:
    """Return the owners after `me` wrote a whole `keyed` object: `me` owns the fields that it changed."""
    changed, gone = changes(before, after)
    return _kept({**owners, me: (owners.get(me, frozenset()) | changed) - gone}, me, changed, gone)


def _kept(owners: Owners, me: Owner, changed: Fields, gone: Fields) -> Owners:
    left = {owner: paths if owner == me else paths - changed - gone for owner, paths in owners.items()}
    return {owner: paths for owner, paths in left.items() if paths}


def _merged(old: Keyed, new: Keyed) -> Keyed:
    if new is None or not (isinstance(old, dict) and isinstance(new, dict) and (old or new)):
        return old if new is None else new
    order = _order(old, new) if isinstance(new, Items) else {**old, **new}
    return type(new)({key: _merged(old.get(key), new.get(key)) for key in order})


def _order(left: Json, right: Json) -> Iterable[str]:
    """Return the order of a merged list: the new list's order, with other items after the items they used to follow."""
    # `mergingWalker.visitListItems` of structured-merge-diff, branch by branch. Any simpler sort gives a different
    # order when the two lists disagree about the order of their common items.
    rest, new, result = deque(left), deque(right), dict[str, None]()
    shared = deque(key for key in right if key in left)
    while rest or new:
        if rest and new and rest[0] != new[0] and rest[0] in right and shared and shared[0] != rest[0]:
            rest.popleft()
        elif rest and rest[0] not in right:
            result[rest.popleft()] = None
        else:
            if rest and (rest[0] in result or (new and rest[0] == new[0])):
                rest.popleft()
            if new:
                key = new.popleft()
                result[key] = None
                if shared and shared[0] == key:
                    shared.popleft()
    return result


def _named(paths: Iterable[FieldPath]) -> Fields:
    """Return the fields, and their named ancestors (`Set.EnsureNamedFieldsAreMembers`)."""
    own = frozenset(paths)
    return frozenset(path for path in _with_above(own) if path in own or not isinstance(path[-1], ItemKey))


def _with_above(paths: Iterable[FieldPath]) -> set[FieldPath]:
    """Return the paths and all of their parents.

    Each path is visited once, because many long paths may share a prefix.
    """
    found = set[FieldPath]()
    for path in paths:
        above = path
        while above and above not in found:
            found.add(above)
            above = above[:-1]
    return found


def _without(value: Json, gone: Fields) -> Json:
    """Return a `keyed` object without the fields `gone`. Maps left without any fields become `Emptied`."""
    above = _with_above(gone)

    def left(value: Json, path: FieldPath) -> Json:
        kept = type(value)()
        for key, below in value.items():
            at = (*path, key)
            if at not in gone:
                remains = left(below, at) if at in above and isinstance(below, dict) else below
                kept[key] = remains if remains or remains is below or key == _NEVER_EMPTY else Emptied()
        return kept

    return left(value, ())


def _apply_conflict(conflicts: list[tuple[Owner, FieldPath]], api_version: str) -> ApiError:
    shown: dict[str, list[str]] = {}
    for (manager, operation, subresource), path in sorted(conflicts, key=lambda one: (one[0], _place(one[1]))):
        name = f'"{manager}"' + (f' with subresource "{subresource}"' if subresource else "")
        name += f" using {api_version}" if operation == "Update" else ""
        shown.setdefault(name, []).append("".join(map(_shown, path)))
    causes = [Cause(path, f"conflict with {name}") for name, paths in shown.items() for path in paths]
    text = f"1 conflict: {causes[0].kind}: {causes[0].field}"
    if len(causes) > 1:
        lists = ("\n- ".join([f"conflicts with {name}:", *paths]) for name, paths in shown.items())
        text = f"{len(causes)} conflicts: " + "\n".join(lists)
    return ApiError(409, "Conflict", f"Apply failed with {text}", tuple(causes))


def _place(path: FieldPath) -> list[tuple[bool, str]]:
    """Return a sort key that puts a map's plain fields before the fields of the maps that it contains."""
    return [(number < len(path), part) for number, part in enumerate(path, 1)]


def _shown(part: str) -> str:
    if not isinstance(part, ItemKey):
        return f".{part}"
    key = json.loads(part[2:])
    if part[:2] == "v:":
        return f"[={json.dumps(key)}]"
    return "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in key.items()) + "]"


def managed_fields(
    owners: Owners, api_version: str, before: Owners, earlier: Sequence[Json], *, now: str, writer: Owner | None
) -> list[Json]:
    """Return `metadata.managedFields` for the owners. `earlier` is the field's value for the owners `before`.

    The `writer`'s entry and every new entry get the time `now`. Every other entry keeps its time, if it had one.
    Without a `writer`, as after an apply that changed nothing, all entries keep their times.
    """
    entries = {_owner(entry): entry for entry in earlier}

    def time_of(owner: Owner) -> Json:
        if writer is not None and (owner == writer or owner not in entries):
            return {"time": now}
        return {name: text for name, text in entries.get(owner, {}).items() if name == "time"}

    return [
        {
            "manager": owner[0],
            "operation": owner[1],
            "apiVersion": api_version,
            **time_of(owner),
            "fieldsType": "FieldsV1",
            "fieldsV1": entries[owner]["fieldsV1"] if before.get(owner) == paths else _nested(paths),
            **({"subresource": owner[2]} if owner[2] else {}),
        }
        for owner, paths in sorted(owners.items())
    ]


def _owner(entry: Json) -> Owner:
    return str(entry.get("manager", "")), str(entry.get("operation", "")), str(entry.get("subresource", ""))


def owners_of(entries: object) -> Owners:
    """Return the owners listed in `metadata.managedFields`. Raises ValueError if the field is invalid."""
    named, left = dict[Owner, Fields](), MAX_FIELDS
    for entry in objects_in(entries):
        named[_owner(entry)] = frozenset(islice(_paths(mapping_of(entry.get("fieldsV1")), ()), left + 1))
        left -= len(named[_owner(entry)])
        if left < 0:
            raise ValueError(f"expected at most {MAX_FIELDS} fields in managedFields")
    return {owner: paths for owner, paths in named.items() if paths}


def _paths(nested: Json, above: FieldPath) -> Iterator[FieldPath]:
    for part, below in nested.items():
        is_item = part.startswith(("k:", "v:"))
        if is_item and not isinstance(json.loads(part[2:]), dict if part[0] == "k" else str):
            raise ValueError(f"expected the key of an item, got {part}")
        path = above if part == "." else (*above, ItemKey(part) if is_item else part.removeprefix("f:"))
        if path and not below:
            yield path
        yield from _paths(mapping_of(below), path)


def _nested(paths: Fields) -> Json:
    fields, ends = dict[str, Any](), list[Json]()
    for path in sorted(paths):
        level = fields
        for part in path:
            level = level.setdefault(part if isinstance(part, ItemKey) else f"f:{part}", {})
        ends.append(level)
    for level in filter(None, ends):
        level["."] = {}
    return fields
