"""The content of a checkpoint: which container holds which devices, and which devices are registered.

Law: the values are those of the kubelet's structs. Nil (None) and empty differ in every field, and lists keep
their order.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from attrs import field, frozen

from devicecore.domain.go_text import (
    JsonObject,
    base64_text,
    bytes_dump,
    json_text,
    numa_dump,
    numa_json,
    strings_dump,
    utf8,
    with_escapes,
)

MAX_RESPONSE_TEXT = 6 * 1024 * 1024
"""The maximum length of an answer to Allocate in base64.

A kubelet accepts gRPC messages of at most 4 MiB, which are shorter than this even in base64.
"""

DevicesPerNuma = Mapping[int, tuple[str, ...] | None]
"""Device ids by NUMA node (kubelet: `DevicesPerNUMA`).

A device on two NUMA nodes is listed under both nodes, and a device on no node is listed under `NO_TOPOLOGY`.
"""


@frozen
class PodDevicesEntry:
    """The devices of one resource that a container holds, and the plugin's answer (kubelet: `PodDevicesEntry`)."""

    pod_uid: str = ""
    container_name: str = ""
    resource_name: str = ""
    device_ids: DevicesPerNuma | None = None
    alloc_resp: bytes | None = None

    @property
    def flat_device_ids(self) -> tuple[str, ...] | None:
        """The devices as format 1 lists them: each device once, in the order of the devices' lowest NUMA nodes."""
        if self.device_ids is None:
            return None
        if len(self.device_ids) == 1:  # an entry that was read from format 1 is written again unchanged
            return next(iter(self.device_ids.values()))
        by_numa_node = (ids or () for _, ids in sorted(self.device_ids.items()))
        return tuple(dict.fromkeys(chain.from_iterable(by_numa_node)))

    @property
    def json(self) -> JsonObject:
        """The entry as written in a file of format 2."""
        return {
            "PodUID": self.pod_uid,
            "ContainerName": self.container_name,
            "ResourceName": self.resource_name,
            "DeviceIDs": numa_json(self.device_ids),
            "AllocResp": base64_text(self.alloc_resp),
        }

    @property
    def dump(self) -> str:
        """The entry as written in the dump of format 2."""
        return self._dump(f"(checkpoint.DevicesPerNUMA){numa_dump(self.device_ids)}")

    @property
    def flat_json(self) -> JsonObject:
        """The entry as written in a file of format 1."""
        return {**self.json, "DeviceIDs": self.flat_device_ids}

    @property
    def flat_dump(self) -> str:
        """The entry as written in the dump of format 1."""
        return self._dump(f"([]string){strings_dump(self.flat_device_ids)}")

    def _dump(self, device_ids: str) -> str:
        return (
            f"{{PodUID:(string){self.pod_uid} ContainerName:(string){self.container_name} ResourceName:(string)"
            f"{self.resource_name} DeviceIDs:{device_ids} AllocResp:([]uint8){bytes_dump(self.alloc_resp)}}}"
        )


@frozen
class ExtraFields:
    """Fields of the file other than `Data` and `Checksum`, for example a `BootID`, as JSON by name.

    The checksum does not cover them. These fields are written back where they were found: before `Data`, between `Data`
    and `Checksum`, or at the end.
    """

    before_data: Mapping[str, str] = field(factory=dict)
    before_checksum: Mapping[str, str] = field(factory=dict)
    at_end: Mapping[str, str] = field(factory=dict)

    @property
    def all(self) -> dict[str, str]:
        """All extra fields, in order."""
        return {**self.before_data, **self.before_checksum, **self.at_end}

    def file(self, data: Sequence[bytes], checksum: int) -> bytes:
        """Return the whole file, given the JSON of its data in pieces."""
        if not (self.before_data or self.before_checksum or self.at_end):
            return b"".join([b'{"Data":', *data, b',"Checksum":%d}' % checksum])
        start = b"".join([member + b"," for member in _members(self.before_data)])
        middle = b"".join([b"," + member for member in _members(self.before_checksum)])
        end = b"".join([b"," + member for member in _members(self.at_end)])
        return b"".join([b'{%b"Data":' % start, *data, b'%b,"Checksum":%d%b}' % (middle, checksum, end)])


def _members(fields: Mapping[str, str]) -> list[bytes]:
    return [json_text(name) + b":" + with_escapes(utf8(value)) for name, value in fields.items()]


@frozen
class CheckpointData:
    """All data of a checkpoint (kubelet: `checkpointData`), including fields that the format does not define.

    `registered_devices` contains the healthy devices by resource. For a kubelet without pods, `entries` is None.
    """

    entries: tuple[PodDevicesEntry, ...] | None = None
    registered_devices: Mapping[str, tuple[str, ...] | None] | None = None
    extra: ExtraFields = field(factory=ExtraFields)
