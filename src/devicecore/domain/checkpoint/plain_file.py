"""Reads a kubelet's usual file several times faster than `decoding` does.

Law: `read_plain` returns the same result as the rules of `decoding`, or leaves the file to them.

JSON libraries accept more than Go does, and keep only the last value of a repeated key. So `read_plain` encodes the
values again, and accepts them only if that reproduces the file's bytes: then the library has ignored nothing.
"""

import json
from binascii import a2b_base64
from collections.abc import Callable, Iterable
from contextlib import suppress

from devicecore.domain.checkpoint.entries import MAX_RESPONSE_TEXT, CheckpointData, PodDevicesEntry
from devicecore.domain.checkpoint.go_values import MAX_ITEMS
from devicecore.domain.errors import UnencodableCheckpointError
from devicecore.domain.go_text import json_text
from devicecore.domain.json_size import size_problem

_loads: Callable[[bytes], object] = json.loads
with suppress(ImportError):  # on a platform for which there is no wheel
    import orjson

    _loads = orjson.loads

_FILE = ["Data", "Checksum"]
_DATA = ["PodDeviceEntries", "RegisteredDevices"]
_ENTRY = ["PodUID", "ContainerName", "ResourceName", "DeviceIDs", "AllocResp"]
_ONLY_STRINGS = {str}
_NUMA_NODES = {str(numa_node): numa_node for numa_node in range(-1, 64)}
_CHECKSUMS = range(1 << 32)


def read_plain(blob: bytes) -> tuple[CheckpointData, int] | None:
    """Return the data and the checksum in a usual file of format 2, or None for any other file."""
    if size_problem(blob):
        return None
    try:
        file = _loads(blob)
        data, checksum = _object(file, _FILE)
        entries, registered = _object(data, _DATA)
        if type(checksum) is not int or checksum not in _CHECKSUMS or json_text(file) != blob:
            return None
        read = None if entries is None else _entries(entries)
        return CheckpointData(read, {name: _strings(ids) for name, ids in _items(registered)}), checksum
    except (ValueError, KeyError, RecursionError, UnencodableCheckpointError):
        return None


def _entries(value: object) -> tuple[PodDevicesEntry, ...]:
    """Return all entries, column by column."""
    if value == []:
        return ()
    if len(_list(value)) > MAX_ITEMS:
        raise ValueError
    columns = zip(*[_object(entry, _ENTRY) for entry in _list(value)], strict=True)
    pods, containers, resources, device_ids, responses = map(list, columns)
    return tuple(
        map(
            PodDevicesEntry,
            _strings(pods),
            _strings(containers),
            _strings(resources),
            [
                {_NUMA_NODES[numa_node]: _strings(ids) for numa_node, ids in _items(by_numa_node)}
                for by_numa_node in device_ids
            ],
            [_bytes(response) for response in _strings(responses)],
        )
    )


def _object(value: object, names: list[str]) -> Iterable[object]:
    """Return the values of an object with exactly these keys in this order."""
    if isinstance(value, dict) and list(value) == names:
        return value.values()
    raise ValueError


def _items(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        return value.items()
    raise ValueError


def _list(value: object) -> list[object]:
    if isinstance(value, list):
        return value
    raise ValueError


def _bytes(text: str) -> bytes:
    if len(text) > MAX_RESPONSE_TEXT:
        raise ValueError
    data = a2b_base64(text, strict_mode=True)
    if 4 * (len(data) + text[-2:].count("=")) != 3 * len(text):  # before Python 3.13 there may be too much padding
        raise ValueError
    return data


def _strings(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and set(map(type, value)) <= _ONLY_STRINGS:
        return tuple(value)
    raise ValueError
