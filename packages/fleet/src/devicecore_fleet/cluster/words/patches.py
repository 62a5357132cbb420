"""Strategic merge patches as a kubelet computes them: the difference between two objects.

Law: the patch turns the current object into the desired object, and contains only fields that differ. The patch between
equal objects is empty. A field whose value is null counts as missing.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

Json = dict[str, Any]

_DIGITS = 19  # the maximum number of digits of a version, which is a 63-bit number

KEYS: Mapping[str, str] = {
    **dict.fromkeys(("conditions", "addresses"), "type"),
    **dict.fromkeys(("podIPs", "hostIPs"), "ip"),
}
"""The lists in a status that are merged, with the field that identifies an item. A patch replaces all other lists."""


def difference(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json:
    """Return the strategic merge patch that turns `before` into `wanted`.

    Fields that only `before` contains are kept.
    """
    patch: Json = {}
    for name, value in wanted.items():
        old = before.get(name)
        if _same(old, value):
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            patch[name] = difference(old, {**dict.fromkeys(old), **value})
        elif isinstance(value, list) and isinstance(old, list) and old and name in KEYS:
            patch[f"$setElementOrder/{name}"] = [{KEYS[name]: item[KEYS[name]]} for item in value]
            if items := _items(KEYS[name], old, value):
                patch[name] = items
        else:
            patch[name] = value
    return patch


def _items(key: str, before: Sequence[Json], wanted: Sequence[Json]) -> list[Json]:
    """Return a patch for each item that differs, with the item's key."""
    known = {item[key]: item for item in before}
    changed = [
        {**difference(old, {**dict.fromkeys(old), **item}), key: item[key]} if old is not None else item
        for item in wanted
        if not _same(old := known.get(item[key]), item)
    ]
    gone = known.keys() - {item[key] for item in wanted}
    return changed + [{"$patch": "delete", key: name} for name in known if name in gone]


def _same(one: object, other: object) -> bool:
    """Return whether two values are the same to an API server, which leaves out nulls."""
    if one == other:  # fast, and nearly always enough
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(one.get(name), other.get(name)) for name in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return False


def version_of(found: Json) -> int:
    """Return the version of an object. An object's resource version only increases (KEP-5504)."""
    version = str(found["metadata"].get("resourceVersion") or "")
    return int(version) if version.isdecimal() and len(version) <= _DIGITS else 0


@lru_cache(64)  # cached, because the same few times occur repeatedly in a status
def written(time: datetime) -> str:
    """Return a time in the form of `metav1.Time`."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_transitions(before: Sequence[Json], wanted: Sequence[Json], now: datetime) -> list[Json]:
    """Return the desired conditions with `lastTransitionTime`, copied from `before` if the status is the same."""
    known = {item["type"]: item for item in before}
    found = []
    for item in wanted:
        old = known.get(item["type"], {})
        since = old.get("lastTransitionTime") if old.get("status") == item["status"] else None
        found.append({**item, "lastTransitionTime": since or written(now)})
    return found
