"""What a kubelet checkpoints: which container holds which devices, and which devices are registered.

Law: these are values of Go. Nil (None) and empty differ in every field, and lists keep their order.
"""

from collections.abc import Mapping
from itertools import chain

from attrs import frozen

from devicecore.domain.checkpoint.go_text import (
    JsonObject,
    Strings,
    base64_text,
    bytes_dump,
    numa_dump,
    numa_json,
    strings_dump,
)

DevicesPerNuma = Mapping[int, tuple[str, ...] | None]
"""Device ids by NUMA node (kubelet: `DevicesPerNUMA`). On two, a device is under both; on none, under `NO_TOPOLOGY`."""


@frozen
class PodDevicesEntry:
    """Who holds which devices of one resource, and what the plugin answered (kubelet: `PodDevicesEntry`)."""

    pod_uid: str = ""
    container_name: str = ""
    resource_name: str = ""
    device_ids: DevicesPerNuma | None = None
    alloc_resp: bytes | None = None

    @property
    def flat_device_ids(self) -> tuple[str, ...] | None:
        """The devices as format 1 lists them, without NUMA nodes: each once, by the lowest node it is on."""
        if self.device_ids is None:
            return None
        if len(self.device_ids) == 1:  # as a format 1 file is read, and so it is written again unchanged
            return next(iter(self.device_ids.values()))
        by_node = (ids or () for _, ids in sorted(self.device_ids.items()))
        return tuple(dict.fromkeys(chain.from_iterable(by_node)))

    @property
    def json(self) -> JsonObject:
        """What a file of format 2 says of it."""
        return self._json(numa_json(self.device_ids))

    @property
    def dump(self) -> str:
        """What the dump of format 2 says of it."""
        return self._dump(f"(checkpoint.DevicesPerNUMA){numa_dump(self.device_ids)}")

    @property
    def flat_json(self) -> JsonObject:
        """What a file of format 1 says of it."""
        return self._json(self.flat_device_ids)

    @property
    def flat_dump(self) -> str:
        """What the dump of format 1 says of it."""
        return self._dump(f"([]string){strings_dump(self.flat_device_ids)}")

    def _json(self, device_ids: Mapping[str, Strings | None] | Strings | None) -> JsonObject:
        return {
            "PodUID": self.pod_uid,
            "ContainerName": self.container_name,
            "ResourceName": self.resource_name,
            "DeviceIDs": device_ids,
            "AllocResp": base64_text(self.alloc_resp),
        }

    def _dump(self, device_ids: str) -> str:
        return (
            f"{{PodUID:(string){self.pod_uid} ContainerName:(string){self.container_name} ResourceName:(string)"
            f"{self.resource_name} DeviceIDs:{device_ids} AllocResp:([]uint8){bytes_dump(self.alloc_resp)}}}"
        )


@frozen
class CheckpointData:
    """All that is in a checkpoint (kubelet: `checkpointData`).

    `registered_devices` holds the healthy devices by resource. A kubelet without pods has None for `entries`.
    """

    entries: tuple[PodDevicesEntry, ...] | None = None
    registered_devices: Mapping[str, tuple[str, ...] | None] | None = None
