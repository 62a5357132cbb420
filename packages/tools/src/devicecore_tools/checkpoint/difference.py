"""The differences between the data of two checkpoints.

Laws: A checkpoint does not differ from itself. If two checkpoints are compared in the opposite order, the result is the
reversed difference. The order of entries makes no difference here; it changes the checksum.
"""

from collections.abc import Iterator, Mapping

from attrs import frozen

from devicecore.domain.checkpoint.entries import CheckpointData, PodDevicesEntry
from devicecore.domain.device_set import natural_key


@frozen
class Holding:
    """One device that a container holds."""

    pod: str
    container: str
    resource: str
    device: str


@frozen
class Move:
    """A device that one container holds in the first checkpoint and another one in the second."""

    before: Holding
    after: Holding


@frozen
class ChangedEntry:
    """A container and resource in both, with a different answer from the plugin or different NUMA nodes of a device."""

    pod: str
    container: str
    resource: str
    has_other_answer: bool
    has_other_numa_nodes: bool


@frozen
class ChangedRegistration:
    """Registered devices of a resource that only one has. `was` and `is_now` say whether the resource is registered."""

    resource: str
    was: bool
    is_now: bool
    added: tuple[str, ...]
    removed: tuple[str, ...]


@frozen
class Difference:
    """What changes from the first checkpoint to the second. `fields` are the names of other fields that differ."""

    added: tuple[Holding, ...] = ()
    removed: tuple[Holding, ...] = ()
    moved: tuple[Move, ...] = ()
    changed: tuple[ChangedEntry, ...] = ()
    registered: tuple[ChangedRegistration, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def reversed(self) -> "Difference":
        """The same difference, seen from the second checkpoint."""
        moved = tuple(sorted((Move(move.after, move.before) for move in self.moved), key=_of_move))
        registered = tuple(
            ChangedRegistration(one.resource, one.is_now, one.was, one.removed, one.added) for one in self.registered
        )
        return Difference(self.removed, self.added, moved, self.changed, registered, self.fields)


def difference(before: CheckpointData, after: CheckpointData, *, with_numa: bool = True) -> Difference:
    """Compare two checkpoints by pod, container, resource and device.

    With `with_numa`, NUMA nodes are compared. They mean nothing in formats 0 and 1.
    """
    these, those = _holdings(before), _holdings(after)
    removed, added = these - those, those - these
    moved = tuple(sorted(_moves(removed, added), key=_of_move))
    removed -= {move.before for move in moved}
    added -= {move.after for move in moved}
    extra, other_extra = before.extra.all, after.extra.all
    names = sorted({*extra, *other_extra})
    return Difference(
        tuple(sorted(added, key=_of_holding)),
        tuple(sorted(removed, key=_of_holding)),
        moved,
        tuple(_changed(_by_key(before), _by_key(after), with_numa=with_numa)),
        tuple(_registered(before.registered_devices or {}, after.registered_devices or {})),
        tuple(name for name in names if extra.get(name) != other_extra.get(name)),
    )


def _holdings(data: CheckpointData) -> set[Holding]:
    return {
        Holding(*key, id_)
        for key, entry in _entries(data)
        for ids in (entry.device_ids or {}).values()
        for id_ in ids or ()
    }


def _entries(data: CheckpointData) -> Iterator[tuple[tuple[str, str, str], PodDevicesEntry]]:
    for entry in data.entries or ():
        yield (entry.pod_uid, entry.container_name, entry.resource_name), entry


def _by_key(data: CheckpointData) -> dict[tuple[str, str, str], PodDevicesEntry]:
    """Return the entry of each container and resource: the last one, as a kubelet reads it."""
    return dict(_entries(data))


def _moves(removed: set[Holding], added: set[Holding]) -> Iterator[Move]:
    """Return the devices that exactly one container no longer holds and exactly one container newly holds."""
    before, after = _by_device(removed), _by_device(added)
    for device, holdings in before.items():
        new = after.get(device, [])
        if len(holdings) == len(new) == 1:
            yield Move(holdings[0], new[0])


def _by_device(holdings: set[Holding]) -> dict[tuple[str, str], list[Holding]]:
    result: dict[tuple[str, str], list[Holding]] = {}
    for holding in holdings:
        result.setdefault((holding.resource, holding.device), []).append(holding)
    return result


def _changed(
    these: Mapping[tuple[str, str, str], PodDevicesEntry],
    those: Mapping[tuple[str, str, str], PodDevicesEntry],
    *,
    with_numa: bool,
) -> Iterator[ChangedEntry]:
    for key in sorted(these.keys() & those.keys()):
        before, after = these[key], those[key]
        other_answer = (before.alloc_resp or b"") != (after.alloc_resp or b"")
        nodes, other_nodes = _numa_nodes(before), _numa_nodes(after)
        common = nodes.keys() & other_nodes.keys()
        other_numa = with_numa and any(nodes[id_] != other_nodes[id_] for id_ in common)
        if other_answer or other_numa:
            yield ChangedEntry(*key, other_answer, other_numa)


def _numa_nodes(entry: PodDevicesEntry) -> dict[str, set[int]]:
    result: dict[str, set[int]] = {}
    for numa_node, ids in (entry.device_ids or {}).items():
        for id_ in ids or ():
            result.setdefault(id_, set()).add(numa_node)
    return result


def _registered(
    these: Mapping[str, tuple[str, ...] | None], those: Mapping[str, tuple[str, ...] | None]
) -> Iterator[ChangedRegistration]:
    for resource in sorted({*these, *those}):
        before, after = set(these.get(resource) or ()), set(those.get(resource) or ())
        was, is_now = resource in these, resource in those
        if before != after or was != is_now:
            added, removed = sorted(after - before, key=natural_key), sorted(before - after, key=natural_key)
            yield ChangedRegistration(resource, was, is_now, tuple(added), tuple(removed))


def _of_holding(holding: Holding) -> tuple[str, str, str, object]:
    return holding.pod, holding.container, holding.resource, natural_key(holding.device)


def _of_move(move: Move) -> tuple[str, object]:
    return move.before.resource, natural_key(move.before.device)
