"""What a Node object is to show, what it shows, and the three ways to write the difference down.

Law: a patch names keys that are ours and no others; and it carries the version of the node it was made for, so that
it is refused where that is no longer the one there is.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from attrs import evolve, field, frozen
from lightkube.types import PatchType
from lightkube.utils.quantity import parse_quantity

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.model import ResourceName

Json = Any  # what an API server sends, until it is a `NodeObject`; and what it is sent

Counts = Mapping[ResourceName, int | None]
"""How many of each resource; None where the key is to go."""

Changes = Mapping[str, Mapping[ResourceName, str | None]]
"""What to write into each map of the status that needs it; None where the key is to go."""

SECTIONS = ("capacity", "allocatable")
"""The maps of a node's status in which resources are counted."""


class PatchStrategy(Enum):
    """How a change is written. All bring about the same; they differ in who then owns a key (`metadata.managedFields`).

    With the first two it is whoever wrote last. With server-side apply it is the field manager until it no longer
    applies the key, and whoever else applies another value is told of the conflict.
    """

    JSON_PATCH = "json-patch"
    STRATEGIC_MERGE = "strategic-merge"
    APPLY = "apply"


@frozen
class Wanted:
    """What the node is to show, for every key that is ours."""

    capacity: Counts = field(factory=dict)
    allocatable: Counts = field(factory=dict)

    def updated(self, status: NodeStatus, removed: Iterable[ResourceName], gone: int | None) -> "Wanted":
        """What is wanted after another status; `gone` is what becomes of `removed`."""
        left = dict.fromkeys(removed, gone)
        return evolve(
            self,
            capacity={**self.capacity, **left, **status.capacity},
            allocatable={**self.allocatable, **left, **status.allocatable},
        )

    @property
    def sections(self) -> Iterator[tuple[str, Counts]]:
        """The counts for each map of the status."""
        return zip(SECTIONS, (self.capacity, self.allocatable), strict=True)


@frozen
class NodeObject:
    """A Node as an API server sent it, as far as it concerns us.

    `held` are the maps of its status, those that are there; None if it has no status. `applied` are, by field manager,
    the paths in the status that it has applied.
    """

    name: str
    version: str
    held: Mapping[str, Mapping[str, Json]] | None
    applied: Mapping[str, tuple[tuple[str, ...], ...]]

    @classmethod
    def parse(cls, sent: Json) -> "NodeObject":
        """Read a Node.

        Raises:
            ValueError: it is none.
        """
        try:
            metadata, status = sent["metadata"], sent.get("status")
            applied = {
                str(entry["manager"]): tuple(_paths(entry.get("fieldsV1") or {}))
                for entry in metadata.get("managedFields") or ()
                if (entry.get("operation"), entry.get("subresource")) == ("Apply", "status")
            }
            held = None
            if status is not None:
                held = {name: dict(status[name]) for name in SECTIONS if status.get(name) is not None}
            return cls(str(metadata["name"]), str(metadata["resourceVersion"]), held, applied)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"what answers there sent no Node: {type(error).__name__} {error}"
            raise ValueError(problem) from error

    def counts(self, section: str) -> Mapping[str, Json]:
        """One map of the status, empty if there is none."""
        return (self.held or {}).get(section, {})


def changes(wanted: Wanted, node: NodeObject) -> Changes:
    """What the node lacks; only the maps and the keys in which it lacks anything."""
    needed: dict[str, dict[ResourceName, str | None]] = {}
    for section, counts in wanted.sections:
        held = node.counts(section)
        for name, count in sorted(counts.items()):
            if count is None and name in held:
                needed.setdefault(section, {})[name] = None
            if count is not None and not equals(held.get(name), count):
                needed.setdefault(section, {})[name] = str(count)
    return needed


def equals(quantity: object, count: int) -> bool:
    """Whether a Kubernetes quantity such as "4", "4k" or "2Ki" is that number: one is as good as the other."""
    text = str(quantity)
    if text == str(count):
        return True
    try:
        return parse_quantity(re.sub(r"E(?=[-+]?\d)", "e", text)) == count  # 4E3 is one too; lightkube reads 4e3 only
    except ValueError:
        return False


def render(
    strategy: PatchStrategy, needed: Changes, wanted: Wanted, node: NodeObject, field_manager: str
) -> tuple[PatchType, Json]:
    """The patch that brings `needed` into `node`, so that it shows what is `wanted`.

    Raises:
        ValueError: `field_manager` has applied fields that are none of our business, and that we would delete.
    """
    match strategy:
        case PatchStrategy.JSON_PATCH:
            return PatchType.JSON, _json_patch(needed, node)
        case PatchStrategy.STRATEGIC_MERGE:
            return PatchType.STRATEGIC, {"metadata": {"resourceVersion": node.version}, "status": needed}
        case PatchStrategy.APPLY:
            return PatchType.APPLY, _apply_patch(wanted, node, field_manager)


def _json_patch(needed: Changes, node: NodeObject) -> Json:
    # A `test` of the version that fails is an invalid patch to an API server; writing an old version is a conflict.
    operations: list[Json] = [{"op": "replace", "path": "/metadata/resourceVersion", "value": node.version}]

    def add(path: str, value: Json) -> None:
        operations.append({"op": "add", "path": path, "value": value})

    if node.held is None:
        add("/status", {})
    for section, counts in needed.items():
        if section not in (node.held or {}):
            add(f"/status/{section}", {})
        for name, count in counts.items():
            path = f"/status/{section}/{name.replace('~', '~0').replace('/', '~1')}"
            if count is None:
                operations.append({"op": "remove", "path": path})
            else:
                add(path, count)
    return operations


def _apply_patch(wanted: Wanted, node: NodeObject, field_manager: str) -> Json:
    """All that we apply: what is wanted, and what an earlier run has applied, which left out would be deleted."""
    applied = node.applied.get(field_manager, ())
    foreign = sorted(".".join(path) for path in applied if path[0] != "status" or not {*path[1:2]} <= {*SECTIONS})
    if foreign:
        problem = f"field manager {field_manager!r} has also applied {', '.join(foreign)}: choose another one"
        raise ValueError(problem)
    status: dict[str, dict[str, Json]] = {}
    for section, counts in wanted.sections:
        held = node.counts(section)
        earlier = [name for name in held if ("status", section, name) in applied]
        ours = {name: count for name, count in counts.items() if count is not None}
        now = {str(name): held[name] if equals(held.get(name), count) else str(count) for name, count in ours.items()}
        kept = {name: held[name] for name in earlier if ResourceName(name) not in counts}
        if kept or now:
            status[section] = {**kept, **now}
    metadata = {"name": node.name, "resourceVersion": node.version}
    applied_now = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    return {**applied_now, "status": status} if status else applied_now


def _paths(fields: Json, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths in a `fieldsV1`; of lists only that they are there."""
    for key, below in fields.items():
        if key.startswith("f:"):
            path = (*above, key.removeprefix("f:"))
            deeper = tuple(_paths(below, path))
            yield from deeper or (path,)
