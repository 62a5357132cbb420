"""The desired and the actual status of a Node, and two ways to write the difference.

Laws: A patch contains only keys that a status or the sink's `leftovers` named, or that this field manager wrote in an
earlier run. A patch names the version of the Node that it was computed for, so the API server refuses the patch if the
Node has changed since.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any

from attrs import field, frozen

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.model import ResourceName, is_extended_resource
from devicecore.domain.quantity import Quantity

Json = Any  # parsed JSON, which an API server sends and receives


class PatchType(Enum):
    """The media types of patches."""

    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


Counts = Mapping[ResourceName, int | None]
"""The count of each resource, or None if the key must be removed."""

Changes = Mapping[str, Mapping[ResourceName, str | None]]
"""The values to write into each map of the status. The value None removes the key."""

Path = tuple[str, ...]
"""The path to a field, such as `("status", "capacity", "example.com/gpu")`."""

SECTIONS = ("capacity", "allocatable")
"""The maps of a node's status that count resources."""


class PatchStrategy(Enum):
    """How a change is written. All strategies result in the same status; the owners in `metadata.managedFields` differ.

    With a merge, the last writer of a key owns it. With server-side apply, the field manager owns its keys until
    it no longer applies them, and another writer that applies a different value gets a conflict.
    """

    STRATEGIC_MERGE = "strategic-merge"
    APPLY = "apply"


@frozen
class Wanted:
    """The desired value of each key that we own."""

    capacity: Counts = field(factory=dict)
    allocatable: Counts = field(factory=dict)

    def updated(self, status: NodeStatus, gone: int | None) -> "Wanted":
        """Return the desired state after one more status.

        `gone` is the count for removed resources, or None to remove the key.
        """
        left = dict.fromkeys(status.removed, gone)
        allocatable = {**self.allocatable, **left, **status.allocatable}
        return Wanted({**self.capacity, **left, **status.capacity}, allocatable)

    def with_leftovers(self, leftovers: Mapping[str, Collection[ResourceName]], gone: int | None) -> "Wanted":
        """Return this state with keys that an earlier run wrote. Keys that are already in this state do not change."""
        capacity, allocatable = (dict.fromkeys(leftovers[section], gone) for section in SECTIONS)
        return Wanted({**capacity, **self.capacity}, {**allocatable, **self.allocatable})

    @property
    def sections(self) -> Iterator[tuple[str, Counts]]:
        """The counts for each map of the status."""
        return zip(SECTIONS, (self.capacity, self.allocatable), strict=True)


@frozen
class NodeObject:
    """A Node as an API server sent it, reduced to what this adapter uses.

    Attributes:
        name: the Node's name.
        version: the Node's `resourceVersion`.
        status: the maps in the Node's status, or None if the Node has no status.
        applied: the paths in the status that each field manager has applied.
        written: the paths in the status that each field manager has applied or written otherwise.
    """

    name: str
    version: str
    status: Mapping[str, Mapping[str, Json]] | None
    applied: Mapping[str, tuple[Path, ...]]
    written: Mapping[str, tuple[Path, ...]]

    @classmethod
    def parse(cls, sent: Json) -> "NodeObject":
        """Read a Node. Raises ValueError if the object is not a Node."""
        try:
            metadata, status = sent["metadata"], sent.get("status")
            applied: dict[str, tuple[Path, ...]] = {}
            written: dict[str, tuple[Path, ...]] = {}
            for entry in metadata.get("managedFields") or ():
                if entry.get("subresource") == "status":
                    manager, paths = str(entry.get("manager") or ""), tuple(_paths(entry.get("fieldsV1") or {}))
                    written[manager] = (*written.get(manager, ()), *paths)
                    if entry.get("operation") == "Apply":
                        applied[manager] = paths
            if status is not None:
                status = {name: dict(status[name]) for name in SECTIONS if status.get(name) is not None}
            return cls(str(metadata["name"]), str(metadata["resourceVersion"]), status, applied, written)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            problem = f"expected a Node, but reading the answer raised {type(error).__name__}: {error}"
            raise ValueError(problem) from error

    def leftovers(self, field_manager: str) -> dict[str, list[ResourceName]]:
        """Return the extended resources that a field manager wrote and that still exist, by status map."""
        paths = set(self.written.get(field_manager, ()))
        return {
            section: [
                ResourceName(name)
                for name in sorted(self.counts(section))
                if ("status", section, name) in paths and is_extended_resource(name)
            ]
            for section in SECTIONS
        }

    def counts(self, section: str) -> Mapping[str, Json]:
        """Return one map of the status, or an empty map if the status lacks it."""
        return (self.status or {}).get(section, {})


def changes(wanted: Wanted, node: NodeObject) -> Changes:
    """Return the differences between the desired state and the Node, which are empty if nothing has to change."""
    needed: dict[str, dict[ResourceName, str | None]] = {}
    for section, counts in wanted.sections:
        shown = node.counts(section)
        for name, count in sorted(counts.items()):
            if count is None and name in shown:
                needed.setdefault(section, {})[name] = None
            if count is not None and not equals(shown.get(name), count):
                needed.setdefault(section, {})[name] = str(count)
    return needed


def equals(quantity: object, count: int) -> bool:
    """Return whether a Kubernetes quantity such as "4", "4k" or "2Ki" equals `count`."""
    try:
        return Quantity.parse(str(quantity)).nanos == Quantity.of(count, binary=False).nanos
    except InvalidQuantityError:
        return False


def render(
    strategy: PatchStrategy, needed: Changes, wanted: Wanted, node: NodeObject, field_manager: str
) -> tuple[PatchType, Json]:
    """Return the patch that writes `needed` to `node`, so that the Node shows the `wanted` state.

    Raises ValueError if `field_manager` has applied other fields, which this patch would delete.
    """
    match strategy:
        case PatchStrategy.STRATEGIC_MERGE:
            return PatchType.STRATEGIC, {"metadata": {"resourceVersion": node.version}, "status": needed}
        case PatchStrategy.APPLY:
            return PatchType.APPLY, _apply_patch(wanted, node, field_manager)


def _apply_patch(wanted: Wanted, node: NodeObject, field_manager: str) -> Json:
    """Return a patch with the desired keys and those of an earlier run, because omitted keys are deleted."""
    applied = node.applied.get(field_manager, ())
    foreign = sorted(".".join(path) for path in applied if path[0] != "status" or not {*path[1:2]} <= {*SECTIONS})
    if foreign:
        problem = f"field manager {field_manager!r} has also applied {', '.join(foreign)}; choose a different one"
        raise ValueError(problem)
    status: dict[str, dict[str, Json]] = {}
    for section, counts in wanted.sections:
        shown = node.counts(section)
        earlier = [name for name in shown if ("status", section, name) in applied]
        ours = {name: count for name, count in counts.items() if count is not None}
        now = {str(name): shown[name] if equals(shown.get(name), count) else str(count) for name, count in ours.items()}
        kept = {name: shown[name] for name in earlier if ResourceName(name) not in counts}
        if kept or now:
            status[section] = {**kept, **now}
    metadata = {"name": node.name, "resourceVersion": node.version}
    applied_now = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    return {**applied_now, "status": status} if status else applied_now


def _paths(fields: Json, above: Path = ()) -> Iterator[Path]:
    """Yield the paths in a `fieldsV1`, except for paths inside lists."""
    for key, below in fields.items():
        if key.startswith("f:"):
            path = (*above, key.removeprefix("f:"))
            deeper = tuple(_paths(below, path))
            yield from deeper or (path,)
