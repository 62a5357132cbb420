"""The differences between the data of two checkpoints.

Laws: a checkpoint does not differ from itself. If two checkpoints are compared in the opposite order, the result is the
reversed difference. The order of entries makes no difference, except among entries for the same container and resource,
although it changes the checksum.
"""

from collections.abc import Iterator, Mapping

from attrs import frozen

from devicecore.domain.checkpoint.entries import CheckpointData, PodDevicesEntry
from devicecore.domain.device_set import in_natural_order
from devicecore.domain.model import DeviceId

_Key = tuple[str, str, str]
"""The pod, the container and the resource of an entry."""

_Held = dict[_Key, set[DeviceId]]


@frozen
class Holding:
    """A device, and the container that holds it."""

    pod: str
    container: str
    resource: str
    device: str


@frozen
class Move:
    """A device that one container holds in the first checkpoint, and a different container in the second."""

    before: Holding
    after: Holding


@frozen
class ChangedEntry:
    """An entry that is in both checkpoints, with different answers from the plugin or different NUMA nodes."""

    pod: str
    container: str
    resource: str
    has_other_answer: bool
    has_other_numa_nodes: bool


@frozen
class ChangedRegistration:
    """A resource's registered devices that are in only one of the checkpoints.

    `was` says whether the first checkpoint contains the resource, and `is_now` whether the second does.
    """

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
        """The difference in the opposite direction: from the second checkpoint to the first."""
        moved = tuple(Move(move.after, move.before) for move in self.moved)
        registered = tuple(
            ChangedRegistration(one.resource, one.is_now, one.was, one.removed, one.added) for one in self.registered
        )
        return Difference(self.removed, self.added, moved, self.changed, registered, self.fields)


def difference(before: CheckpointData, after: CheckpointData, *, with_numa: bool = True) -> Difference:
    """Compare two checkpoints by pod, container, resource and device.

    If `with_numa` is true, NUMA nodes are compared, too. Formats 0 and 1 do not contain NUMA nodes.
    """
    these, those = _held(before), _held(after)
    removed, added = _without(these, those), _without(those, these)
    moved = tuple(_moves(removed, added))
    for move in moved:
        for lost, of in ((removed, move.before), (added, move.after)):
            lost[of.pod, of.container, of.resource].remove(DeviceId(of.device))
    extra, other_extra = before.extra.all, after.extra.all
    names = sorted({*extra, *other_extra})
    return Difference(
        tuple(_holdings(added)),
        tuple(_holdings(removed)),
        moved,
        tuple(_changed(_by_key(before), _by_key(after), with_numa=with_numa)),
        tuple(_registered(before.registered_devices or {}, after.registered_devices or {})),
        tuple(name for name in names if extra.get(name) != other_extra.get(name)),
    )


def _held(data: CheckpointData) -> _Held:
    result: _Held = {}
    for key, entry in _entries(data):
        ids = result.setdefault(key, set())
        for of_node in (entry.device_ids or {}).values():
            ids.update(map(DeviceId, of_node or ()))
    return result


def _without(held: _Held, other: _Held) -> _Held:
    return {key: left for key, ids in held.items() if (left := ids - other.get(key, set()))}


def _holdings(held: _Held) -> Iterator[Holding]:
    for key, ids in sorted(held.items()):
        yield from (Holding(*key, id_) for id_ in in_natural_order(ids))


def _entries(data: CheckpointData) -> Iterator[tuple[_Key, PodDevicesEntry]]:
    for entry in data.entries or ():
        yield (entry.pod_uid, entry.container_name, entry.resource_name), entry


def _by_key(data: CheckpointData) -> dict[_Key, PodDevicesEntry]:
    """Return the last entry for each container and resource, which is the one that a kubelet uses."""
    return dict(_entries(data))


def _moves(removed: _Held, added: _Held) -> Iterator[Move]:
    """Yield the devices that exactly one container has lost and exactly one other container has gained."""
    before, after = _only_holders(removed), _only_holders(added)
    for resource, old in sorted(before.items()):
        new = after.get(resource, {})
        pairs = {id_: (one, two) for id_, one in old.items() if one and (two := new.get(id_))}
        for id_ in in_natural_order(pairs):
            one, two = pairs[id_]
            yield Move(Holding(*one, id_), Holding(*two, id_))


def _only_holders(held: _Held) -> dict[str, dict[DeviceId, _Key | None]]:
    """Return the container of each device, by resource. The container is None if several containers hold the device."""
    result: dict[str, dict[DeviceId, _Key | None]] = {}
    for key, ids in held.items():
        holders = result.setdefault(key[2], {})
        for id_ in ids:
            holders[id_] = None if id_ in holders else key
    return result


def _changed(
    these: Mapping[_Key, PodDevicesEntry], those: Mapping[_Key, PodDevicesEntry], *, with_numa: bool
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
            added, removed = (
                tuple(in_natural_order([DeviceId(id_) for id_ in ids])) for ids in (after - before, before - after)
            )
            yield ChangedRegistration(resource, was, is_now, added, removed)
