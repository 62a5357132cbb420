"""Turns checkpoint data into the kubelet's file.

Law: equal data results in equal bytes, which are the bytes that a kubelet would write. The checksum covers a dump of
the data, not the file, so layout and escapes do not change it.
"""

from collections.abc import Iterator
from functools import reduce

from devicecore.domain.checkpoint.entries import CheckpointData, PodDevicesEntry
from devicecore.domain.checkpoint.fnv import OFFSET, fnv1a_32
from devicecore.domain.go_text import json_text, resource_dump, utf8

NEWEST = 2
"""The format of kubelets since 1.20: devices by NUMA node. Format 1 has a flat list; format 0 can only be read."""

BEFORE_ENTRIES = b"(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
BEFORE_REGISTERED = b" RegisteredDevices:(map[string][]string)"
NIL = b"<nil>"
AFTER_ENTRIES = b',"RegisteredDevices":'


_PORTION = 128  # entries rendered at a time, so that intermediate texts stay in the processor's cache
# bytes of the answers in entries rendered at a time; in the dump, each byte takes up to four characters
_PORTION_BYTES = 1_000_000


def encode(data: CheckpointData, format: int = NEWEST) -> bytes:  # noqa: A002 - the kubelet's word
    """Return the file that a kubelet would write for `data`: in format 2, or in format 1, as kubelets before 1.20 did.

    Unknown fields that `decode` found are written back where they were in the file.

    Raises:
        UnencodableCheckpointError: a string is not Unicode text, or a NUMA node is not a 64-bit number.
    """
    entries, registered = b"null", b"null"
    if data.entries is not None:
        rendered = [
            json_text([entry.json if format == NEWEST else entry.flat_json for entry in portion])[1:-1]
            for portion in _portions(data.entries)
        ]
        entries = b"[%b]" % b",".join(rendered)
    if data.registered_devices is not None:
        registered = json_text(dict(sorted(data.registered_devices.items())))
    fields = b'{"PodDeviceEntries":%b,"RegisteredDevices":%b}' % (entries, registered)
    return data.extra.file([fields], checksum(data, format))


def dump(data: CheckpointData, format: int = NEWEST) -> bytes:  # noqa: A002 - as above
    """Return Go's dump of the data, which is hashed."""
    return b"".join(_dump(data, format))


def checksum(data: CheckpointData, format: int = NEWEST) -> int:  # noqa: A002 - as above
    """Return the checksum that a kubelet would write for `data`."""
    return reduce(lambda state, piece: fnv1a_32(piece, state), _dump(data, format), OFFSET)


def _dump(data: CheckpointData, format: int) -> Iterator[bytes]:  # noqa: A002 - as above
    if format not in (1, NEWEST):
        problem = f"format {format} cannot be written, only 1 and {NEWEST}"
        raise ValueError(problem)
    yield BEFORE_ENTRIES
    if data.entries is None:
        yield NIL
    else:
        before = "["
        for portion in _portions(data.entries):
            fragments = [entry.dump if format == NEWEST else entry.flat_dump for entry in portion]
            yield utf8(before + " ".join(fragments))
            before = " "
        yield b"]" if data.entries else b"[]"
    yield BEFORE_REGISTERED
    yield _registered_dump(data)
    yield b"}"


def _portions(entries: tuple[PodDevicesEntry, ...]) -> Iterator[tuple[PodDevicesEntry, ...]]:
    start = size = 0
    for end, entry in enumerate(entries):
        if end - start == _PORTION or size > _PORTION_BYTES:
            yield entries[start:end]
            start, size = end, 0
        size += len(entry.alloc_resp or b"")
    if start < len(entries):
        yield entries[start:]


def _registered_dump(data: CheckpointData) -> bytes:
    if data.registered_devices is None:
        return NIL
    resources = [resource_dump(*item) for item in sorted(data.registered_devices.items())]
    return utf8(f"map[{' '.join(resources)}]")
