"""Turns a file into checkpoint data.

Law: for any bytes within the limits of `go_json`, `decode` returns what a kubelet would read, or raises a
CheckpointError. For any other bytes, `decode` raises a CheckpointError. Format 2 is decoded as `encoding/json` decodes
it into the kubelet's structs. If that fails, formats 1 and 0 are tried.
"""

import re
from binascii import a2b_base64
from collections.abc import Callable
from functools import cached_property, partial

from attrs import Factory, define, evolve, frozen

from devicecore.domain.checkpoint import go_values as go
from devicecore.domain.checkpoint.encoding import NEWEST, checksum
from devicecore.domain.checkpoint.entries import MAX_RESPONSE_TEXT, CheckpointData, ExtraFields, PodDevicesEntry
from devicecore.domain.checkpoint.go_json import Json, Object, parse, unparse
from devicecore.domain.checkpoint.plain_file import read_plain
from devicecore.domain.checks import checked
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError

_UINT64 = range(2**64)
_UINT8 = range(2**8)
_BASE64 = re.compile("[A-Za-z0-9+/]*={0,2}")


@frozen
class Decoded:
    """The content of a file, and whether the file's checksum is right.

    `stored` and `computed` are None in format 0, which has no checksum. `is_foreign` means that the file lacks the
    member Data, which every checkpoint has; a kubelet reads such a file as empty.
    """

    format: int
    data: CheckpointData
    stored: int | None = None
    computed: int | None = None
    is_foreign: bool = False

    @property
    def valid(self) -> bool:
        """Whether the checksum is right; always true for format 0, which has no checksum."""
        return self.stored == self.computed

    @cached_property
    def explanation(self) -> str:
        """The probable cause of a wrong checksum, or an empty string if the file shows no cause."""
        if self.valid or self.stored is None:
            return ""
        if self.is_foreign:
            return "this is not a checkpoint: expected the members Data and Checksum"
        if not self.stored:
            return "the file has no checksum"
        if self.stored >> 32:
            return "a checksum cannot have more than 32 bits"
        other = 1 if self.format == NEWEST else NEWEST
        if self.stored == checksum(self.data, other):
            return f"it is the checksum of the same data in format {other}"
        return ""

    def verified(self) -> CheckpointData:
        """Return the data. Raises CorruptCheckpointError if the checksum is wrong."""
        if self.stored != self.computed:
            raise CorruptCheckpointError(self.stored or 0, self.computed or 0, self.explanation)
        return self.data


def decode(blob: bytes) -> Decoded:
    """Read a file of any format, even if its checksum is wrong: `Decoded.valid` says whether it is right.

    Raises MalformedCheckpointError if the file is not a checkpoint.
    """
    if plain := read_plain(checked(blob, bytes, "the checkpoint's content")):
        data, stored = plain
        computed = checksum(data)
        if stored == computed or data.entries:  # only a file without entries can be in either format
            return Decoded(NEWEST, data, stored, computed)
    value = parse(blob)
    try:
        if isinstance(value, list):
            return _decode_list(value)
        found = _decode_file(value)
        known = [go.attribute_called(_File, name) for name, _ in value] if isinstance(value, Object) else []
        is_foreign = all(one is None or one[0] != "data" for one in known)
        return evolve(found, data=evolve(found.data, extra=extra_fields(value)), is_foreign=is_foreign)
    except go.RefusedError as refusal:
        raise MalformedCheckpointError(problem=str(refusal)) from None


def extra_fields(value: Json) -> ExtraFields:
    """Return the fields that a kubelet ignores. If a name is repeated, its first position and last value count."""
    places: dict[str, dict[str, str]] = {}
    fields: tuple[dict[str, str], ...] = ({}, {}, {})
    place = 0
    for name, item in value if isinstance(value, Object) else ():
        known = go.attribute_called(_File, name)
        if known is None:
            places.setdefault(name, fields[place])[name] = unparse(item)
        else:
            place = 2 if known[0] == "checksum" else max(place, 1)
    return ExtraFields(*fields)


def is_entry_field(name: str) -> bool:
    """Return whether a kubelet reads an entry's field of this name."""
    return go.attribute_called(_FlatEntry, name) is not None


def decode_entry(value: Json, *, is_flat: bool = False) -> tuple[int, PodDevicesEntry]:
    """Read one entry. Return the format and the entry. With `is_flat`, only format 1 is tried.

    If no format fits, the function raises the RefusedError from the format that was tried first.
    """
    refusal: go.RefusedError | None = None
    for number, entry in ((1, _FlatEntry),) if is_flat else ((NEWEST, _Entry), (1, _FlatEntry)):
        try:
            return number, go.into_struct(entry(), value).frozen()
        except go.RefusedError as error:
            refusal = refusal or error
    raise refusal or go.RefusedError(why="there is no format")


def decode_registered(name: str, value: Json) -> tuple[str, ...] | None:
    """Read the registered devices of one resource. Raises RefusedError if the value is not a list of names."""
    return (_into_registered(None, Object(((name, value),))) or {}).get(name)


def _decode_file(value: Json) -> Decoded:
    """Try format 2, then format 1, as kubelets up to 1.29 did.

    Only a file without devices is readable in both formats; its checksum then decides.
    """
    found: list[Decoded] = []
    refusals: list[go.RefusedError] = []
    for number, empty in ((NEWEST, _File()), (1, _FlatFile())):
        try:
            found.append(_decode_as(number, value, empty))
        except go.RefusedError as refusal:
            refusals.append(refusal)
        if found and found[-1].valid:
            return found[-1]
    if not found:
        raise refusals[0]  # nearly every file is in format 2, so the problem found there is the most helpful one
    return found[0]


def _decode_as(format: int, value: Json, empty: "_File") -> Decoded:  # noqa: A002 - the parameter of `encode`
    file = go.into_struct(empty, value)
    entries = None if file.data.entries is None else tuple(entry.frozen() for entry in file.data.entries.items)
    data = CheckpointData(entries, file.data.registered)
    return Decoded(format, data, file.checksum, checksum(data, format))


def _decode_list(value: list[Json]) -> Decoded:
    entries = _into_flat_entries(None, value)
    return Decoded(0, CheckpointData(tuple(entry.frozen() for entry in entries.items) if entries else None, {}))


# --- fields of types that occur only in a checkpoint ------------------------------------------------------------------


def _into_bytes(old: bytes | go.Slice[int] | None, value: Json) -> bytes | go.Slice[int] | None:
    if isinstance(value, str):
        return _base64(value)
    array = go.Slice(list(old), len(old)) if isinstance(old, bytes) else old
    return go.into_slice(array, value, int, partial(go.into_uint, allowed=_UINT8), "[]uint8")


def _base64(text: str) -> bytes:
    """Decode as `base64.StdEncoding` does: line ends, and unused bits before the required padding, are ignored."""
    if len(text) > MAX_RESPONSE_TEXT:
        raise go.RefusedError(why=f"expected at most {MAX_RESPONSE_TEXT:,} characters, got {len(text):,}")
    text = text.replace("\r", "").replace("\n", "")
    if len(text) % 4 or not _BASE64.fullmatch(text):
        raise go.RefusedError(why="illegal base64 data")
    return a2b_base64(text)


def _numa_node(name: str) -> int:
    node = go.integer(name)
    if node not in go.INT64:
        raise go.RefusedError(why="the key is not an int64")
    return node


# --- the kubelet's structs, before anything is decoded into them ------------------------------------------------------


_Devices = dict[int, tuple[str, ...] | None] | go.Slice[str] | None
_into_by_numa_node = partial(go.into_map, key=_numa_node, new=go.new_strings, wanted="map[int64][]string")
_into_registered = partial(go.into_map, key=str, new=go.new_strings, wanted="map[string][]string")


@define
class _Entry:
    pod_uid: str = go.member("PodUID", go.into_string, "")
    container_name: str = go.member("ContainerName", go.into_string, "")
    resource_name: str = go.member("ResourceName", go.into_string, "")
    device_ids: _Devices = go.member("DeviceIDs", _into_by_numa_node, None)
    alloc_resp: bytes | go.Slice[int] | None = go.member("AllocResp", _into_bytes, None)

    def frozen(self) -> PodDevicesEntry:
        flat, response = self.device_ids, self.alloc_resp
        # Kubelets up to 1.29 put the devices of format 1 on NUMA node 0.
        devices = {0: tuple(flat.items)} if isinstance(flat, go.Slice) else flat
        response = bytes(response.items) if isinstance(response, go.Slice) else response
        return PodDevicesEntry(self.pod_uid, self.container_name, self.resource_name, devices, response)


@define
class _FlatEntry(_Entry):
    device_ids: _Devices = go.member("DeviceIDs", go.into_strings, None)


_Entries = go.Slice[_Entry] | None
_Registered = dict[str, tuple[str, ...] | None] | None
_into_entries: Callable[[_Entries, Json], _Entries] = go.into_structs(_Entry, "[]PodDevicesEntry")
_into_flat_entries: Callable[[_Entries, Json], _Entries] = go.into_structs(_FlatEntry, "[]PodDevicesEntry")


_NO_ENTRIES: _Entries = Factory(go.Slice[_Entry])
_NO_REGISTERED: _Registered = Factory(dict)


@define
class _Data:
    entries: _Entries = go.member("PodDeviceEntries", _into_entries, _NO_ENTRIES)
    registered: _Registered = go.member("RegisteredDevices", _into_registered, _NO_REGISTERED)


@define
class _FlatData(_Data):
    entries: _Entries = go.member("PodDeviceEntries", _into_flat_entries, _NO_ENTRIES)


@define
class _File:
    data: _Data = go.member("Data", go.into_struct, Factory(_Data))
    checksum: int = go.member("Checksum", partial(go.into_uint, allowed=_UINT64), 0)


@define
class _FlatFile(_File):
    data: _Data = go.member("Data", go.into_struct, Factory(_FlatData))
