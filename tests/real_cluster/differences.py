"""The differences between two JSON documents, as paths that the tables in docs/ can name.

An example of a path is `status.conditions[Ready].reason`. A list item is named by a field such as `type` or `name`, or
else by `[]`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

Json = Any

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAMES = ("type", "name", "resourceID", "key", "containerPort")
_MISSING = object()


@frozen
class Difference:
    """A path at which two documents differ, and the documents' values there."""

    path: str
    ours: Json
    real: Json

    @property
    def is_only_real(self) -> bool:
        """Whether only Kubernetes has a value at the path."""
        return self.ours is _MISSING

    @property
    def is_only_ours(self) -> bool:
        """Whether only devicecore has a value at the path."""
        return self.real is _MISSING

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.ours)} here, {_shown(self.real)} in Kubernetes"


def differences(ours: Json, real: Json, path: str = "") -> Iterator[Difference]:
    """Yield all differences between two documents."""
    if isinstance(ours, dict) and isinstance(real, dict):
        for key in sorted({*ours, *real}):
            below = f"{path}.{key}" if path else str(key)
            yield from differences(ours.get(key, _MISSING), real.get(key, _MISSING), below)
    elif isinstance(ours, list) and isinstance(real, list):
        first, second = _keyed(ours), _keyed(real)
        for key in sorted({*first, *second}, key=str):
            shown = "" if isinstance(key, int) else key
            yield from differences(first.get(key, _MISSING), second.get(key, _MISSING), f"{path}[{shown}]")
    elif ours != real:
        yield Difference(path, ours, real)


def _keyed(items: list[Json]) -> dict[str | int, Json]:
    """Return a list's items by name, or by number if the items have no distinct names."""
    for name in _NAMES:
        if items and all(isinstance(one, dict) and name in one for one in items):
            found = {str(one[name]): one for one in items}
            if len(found) == len(items):
                return dict(found.items())
    return dict(enumerate(items))


def _shown(value: Json) -> str:
    return "nothing" if value is _MISSING else repr(value)


def is_listed(path: str, rows: Mapping[str, str]) -> bool:
    """Return whether a table row names the path or a part of the document that contains it."""
    return any(re.fullmatch(_pattern(row) + r"([.\[].*)?", path) for row in rows)


def _pattern(row: str) -> str:
    return re.escape(row).replace(r"\[\]", r"\[[^\]]*\]")


def owned(managed_fields: list[Json]) -> dict[str, list[str]]:
    """Return the paths that each manager owns, by manager, operation and subresource."""
    found: dict[str, set[str]] = {}
    for one in managed_fields:
        key = " ".join(filter(None, (one["manager"], one["operation"], one.get("subresource"))))
        found.setdefault(key, set()).update(_owned(one["fieldsV1"], ""))
    return {key: sorted(paths) for key, paths in found.items()}


def _owned(fields: Json, path: str) -> Iterator[str]:
    """Yield the paths in a managedFields entry below which no other path is owned."""
    below = {key: value for key, value in fields.items() if key != "."}
    if not below and path:
        yield path
    for key, value in below.items():
        kind, _, rest = key.partition(":")
        if kind == "f":
            yield from _owned(value, f"{path}.{rest}" if path else rest)
        else:
            named = re.findall(r'"(?:type|name)":"([^"]*)"', rest)
            yield from _owned(value, f"{path}[{named[0] if named else ''}]")
