"""Removes wrong and outdated entries and devices from checkpoint data, and nothing else.

Laws: repairing repaired data changes nothing. Each removed device or entry is listed with its reason. If two pods with
remaining entries hold a device, the device is removed from one of them only if the caller said which pod keeps it.
"""

from collections.abc import Callable, Collection, Iterator
from enum import Enum

from attrs import evolve, frozen

from devicecore.domain.checkpoint.entries import CheckpointData, PodDevicesEntry
from devicecore.domain.device_set import in_natural_order
from devicecore.domain.model import DeviceId


class DropReason(Enum):
    """Why an entry, or some of its devices, is dropped."""

    UNREADABLE_ANSWER = "the plugin's answer in this entry cannot be read"
    REPLACED = "a later entry for the same container and resource replaces this entry"
    POD_GONE = "the pod is gone or has ended"
    SECOND_OWNER = "another pod keeps the device"


@frozen
class Dropped:
    """An entry that was dropped, or devices that were removed from an entry because another pod keeps them."""

    reason: DropReason
    pod: str
    container: str
    resource: str
    devices: tuple[str, ...]


@frozen
class SharedDevice:
    """A device that several pods hold, although a kubelet gives a device to only one pod.

    `pods` are in the order of their entries.
    """

    resource: str
    device: str
    pods: tuple[str, ...]


@frozen
class Repaired:
    """The repaired data, what was dropped, and the devices for which the caller has not said which pod keeps them."""

    data: CheckpointData
    dropped: tuple[Dropped, ...] = ()
    undecided: tuple[SharedDevice, ...] = ()


def repaired(
    data: CheckpointData,
    is_readable: Callable[[bytes], bool],
    *,
    pods: Collection[str] | None = None,
    keep: Collection[str] = (),
) -> Repaired:
    """Drop the entries that a kubelet ignores, entries of pods that are gone, and devices that another pod keeps.

    A kubelet ignores an entry whose answer it cannot read (`is_readable`), and an entry that is replaced by a later
    entry for the same container and resource. Containers of one pod may share devices. `pods` are the UIDs of all pods
    on the node that have not ended, or None if they are not known. Pods in `keep` keep the devices that other pods also
    hold.
    """
    entries: tuple[PodDevicesEntry, ...] = data.entries or ()
    reasons = list(_reasons(entries, is_readable, pods))
    dropped = [
        _dropped(entry, reason, devices_of(entry)) for entry, reason in zip(entries, reasons, strict=True) if reason
    ]
    entries = tuple(entry for entry, reason in zip(entries, reasons, strict=True) if not reason)
    shared = shared_devices(entries)
    decided = {(one.resource, one.device): winner for one in shared if (winner := _winner(one, keep)) is not None}
    kept: list[PodDevicesEntry] = []
    for entry in entries:
        lost = {
            id_ for id_ in devices_of(entry) if decided.get((entry.resource_name, id_), entry.pod_uid) != entry.pod_uid
        }
        left = _without(entry, lost) if lost else entry
        if lost:
            dropped.append(_dropped(entry, DropReason.SECOND_OWNER, lost))
        if left is not None:
            kept.append(left)
    undecided = tuple(one for one in shared if (one.resource, one.device) not in decided)
    result = evolve(data, entries=tuple(kept) or None) if dropped else data  # a kubelet without entries writes null
    return Repaired(result, tuple(dropped), undecided)


def shared_devices(entries: Collection[PodDevicesEntry]) -> tuple[SharedDevice, ...]:
    """Return the devices that more than one pod holds."""
    first: dict[str, dict[str, str]] = {}  # for each resource and device, the first pod that holds the device
    shared: dict[tuple[str, str], dict[str, None]] = {}
    for entry in entries:
        holders = first.setdefault(entry.resource_name, {})
        for id_ in devices_of(entry):
            if (pod := holders.setdefault(id_, entry.pod_uid)) != entry.pod_uid:
                shared.setdefault((entry.resource_name, id_), {pod: None})[entry.pod_uid] = None
    return tuple(SharedDevice(*device, tuple(pods)) for device, pods in shared.items())


def devices_of(entry: PodDevicesEntry) -> tuple[str, ...]:
    """Return the devices of an entry, each once, in natural order."""
    return tuple(in_natural_order({DeviceId(id_) for ids in (entry.device_ids or {}).values() for id_ in ids or ()}))


def _reasons(
    entries: Collection[PodDevicesEntry], is_readable: Callable[[bytes], bool], pods: Collection[str] | None
) -> Iterator[DropReason | None]:
    readable = [is_readable(entry.alloc_resp or b"") for entry in entries]
    last = {_key(entry): number for number, entry in enumerate(entries) if readable[number]}
    for number, entry in enumerate(entries):
        if not readable[number]:
            yield DropReason.UNREADABLE_ANSWER
        elif last[_key(entry)] != number:
            yield DropReason.REPLACED
        elif pods is not None and entry.pod_uid not in pods:
            yield DropReason.POD_GONE
        else:
            yield None


def _key(entry: PodDevicesEntry) -> tuple[str, str, str]:
    return entry.pod_uid, entry.container_name, entry.resource_name


def _winner(shared: SharedDevice, keep: Collection[str]) -> str | None:
    kept = [pod for pod in shared.pods if pod in keep]
    return kept[0] if len(kept) == 1 else None


def _without(entry: PodDevicesEntry, lost: Collection[str]) -> PodDevicesEntry | None:
    """Return the entry without the devices in `lost`, or None if no device is left."""
    left = {
        numa_node: tuple(id_ for id_ in ids or () if id_ not in lost)
        for numa_node, ids in (entry.device_ids or {}).items()
    }
    left = {numa_node: ids for numa_node, ids in left.items() if ids}
    return evolve(entry, device_ids=left) if left else None


def _dropped(entry: PodDevicesEntry, reason: DropReason, devices: Collection[str]) -> Dropped:
    return Dropped(reason, *_key(entry), tuple(in_natural_order({DeviceId(id_) for id_ in devices})))
