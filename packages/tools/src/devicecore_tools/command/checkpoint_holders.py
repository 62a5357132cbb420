"""Holders in a checkpoint: who holds a device, which devices are free, and which entries cannot be right.

Law: the holders are computed from the file's data, which may be wrong even if the checksum is right.
"""

from collections.abc import Iterable, Iterator, Sequence

from devicecore.domain.checkpoint import CheckpointData, FileReport
from devicecore.domain.device_set import natural_key
from devicecore_tools.checkpoint.repair import devices_of, shared_devices
from devicecore_tools.doctor.look.formats import why_old

_MAX_NAMED = 10  # the maximum number of devices or pods in one warning


def free_devices(data: CheckpointData) -> dict[str, list[str]]:
    """Return the registered devices of each resource that no entry holds, in natural order."""
    held = {(entry.resource_name, id_) for entry in data.entries or () for id_ in devices_of(entry)}
    return {
        resource: [id_ for id_ in sorted(ids or (), key=natural_key) if (resource, id_) not in held]
        for resource, ids in (data.registered_devices or {}).items()
    }


def warnings_about(data: CheckpointData, report: FileReport) -> tuple[str, ...]:
    """Return warnings about an old format, devices that two pods hold, and held devices that are not registered.

    A kubelet accepts a file with these problems. A kubelet registers only healthy devices, so a device that became
    unhealthy while a pod held it is not registered either.
    """
    return (*filter(None, [why_old(report)]), *_shared(data), *_unregistered(data))


def _shared(data: CheckpointData) -> Iterator[str]:
    devices: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for shared in shared_devices(data.entries or ()):
        devices.setdefault((shared.resource, shared.pods), []).append(shared.device)
    for (resource, of_devices), ids in devices.items():
        yield f"{len(of_devices)} pods hold {_counted(ids)} of {resource}: {_named(of_devices)} hold {_named(ids)}"


def _unregistered(data: CheckpointData) -> Iterator[str]:
    registered = {resource: set(ids or ()) for resource, ids in (data.registered_devices or {}).items()}
    for entry in data.entries or ():
        resource = entry.resource_name
        missing = [id_ for id_ in devices_of(entry) if id_ not in registered.get(resource, ())]
        if missing:
            holder = f"container {entry.container_name} of pod {entry.pod_uid}"
            why = "are not registered as healthy" if resource in registered else "belong to an unregistered resource"
            if len(missing) == 1:
                why = why.replace("are", "is", 1).replace("belong", "belongs", 1)
            yield f"{holder} holds {_counted(missing)} of {resource} that {why}: {_named(missing)}"


def _counted(ids: Sequence[str]) -> str:
    return "1 device" if len(ids) == 1 else f"{len(ids)} devices"


def _named(ids: Iterable[str]) -> str:
    listed = list(ids)
    more = len(listed) - _MAX_NAMED
    return ", ".join(listed[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
