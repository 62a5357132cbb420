"""From checkpoint data to the kubelet's file.

Law: equal data gives equal bytes, and they are the bytes a kubelet would write. The checksum is taken over the dump of
the data, never over the file, so that layout and escapes do not matter to it.
"""

from devicecore.domain.checkpoint.entries import CheckpointData
from devicecore.domain.checkpoint.fnv import OFFSET, fnv1a_32
from devicecore.domain.checkpoint.go_text import json_text, resource_dump, utf8

NEWEST = 2
"""The format of kubelets since 1.20: devices by NUMA node. Format 1 has them flat; format 0 is only ever read."""

BEFORE_ENTRIES = b"(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
BEFORE_REGISTERED = b" RegisteredDevices:(map[string][]string)"
NIL = b"<nil>"
AFTER_ENTRIES = b',"RegisteredDevices":'
AFTER_DATA = b'},"Checksum":%d}'


def encode(data: CheckpointData, format: int = NEWEST) -> bytes:  # noqa: A002 - what else would one call it
    """The file a kubelet would write for `data`: format 2, or 1 as kubelets before 1.20 did.

    Raises:
        UnencodableCheckpointError: a string is no Unicode text, or a NUMA node no 64-bit number.
    """
    _check(format)
    entries, registered = b"null", b"null"
    if data.entries is not None:
        fragments = [entry.json if format == NEWEST else entry.flat_json for entry in data.entries]
        entries = b"[%b]" % b",".join(fragments)
    if data.registered_devices is not None:
        registered = json_text(dict(sorted(data.registered_devices.items())))
    template = b'{"Data":{"PodDeviceEntries":%b,"RegisteredDevices":%b},"Checksum":%d}'
    return template % (entries, registered, checksum(data, format))


def dump(data: CheckpointData, format: int = NEWEST) -> bytes:  # noqa: A002 - as above
    """The text that is hashed: Go's dump of the data."""
    _check(format)
    entries = NIL
    if data.entries is not None:
        fragments = [entry.dump if format == NEWEST else entry.flat_dump for entry in data.entries]
        entries = b"[%b]" % b" ".join(fragments)
    return b"".join((BEFORE_ENTRIES, entries, BEFORE_REGISTERED, _registered_dump(data), b"}"))


def checksum(data: CheckpointData, format: int = NEWEST) -> int:  # noqa: A002 - as above
    """The checksum a kubelet would write for `data`."""
    return fnv1a_32(dump(data, format), OFFSET)


def _registered_dump(data: CheckpointData) -> bytes:
    if data.registered_devices is None:
        return NIL
    resources = [resource_dump(*item) for item in sorted(data.registered_devices.items())]
    return utf8(f"map[{' '.join(resources)}]")


def _check(format: int) -> None:  # noqa: A002 - as above
    if format not in (1, NEWEST):
        problem = f"format {format} cannot be written, only 1 and {NEWEST}"
        raise ValueError(problem)
