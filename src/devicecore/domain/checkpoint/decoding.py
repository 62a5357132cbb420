"""From a file to checkpoint data.

Law: for any bytes within the limits of `go_json`, `decode` returns what a kubelet would read, or raises a
CheckpointError; it raises one for all others. Format 2 is decoded as
`encoding/json` decodes it into the kubelet's structs. If that refuses a file, formats 1 and 0 are tried.
"""

import re
from binascii import a2b_base64
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial

from attrs import define, evolve, field, frozen

from devicecore.domain.checkpoint.encoding import NEWEST, checksum
from devicecore.domain.checkpoint.entries import MAX_RESPONSE_TEXT, CheckpointData, ExtraFields, PodDevicesEntry
from devicecore.domain.checkpoint.go_json import Json, Object, parse, unparse
from devicecore.domain.checkpoint.go_values import (
    INT64,
    Field,
    Fields,
    RefusedError,
    Slice,
    field_called,
    fields_of,
    integer,
    into_map,
    into_slice,
    into_string,
    into_strings,
    into_struct,
    into_uint,
    new_strings,
)
from devicecore.domain.checkpoint.plain_file import read_plain
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError

_UINT64 = range(2**64)
_UINT8 = range(2**8)
_BASE64 = re.compile("[A-Za-z0-9+/]*={0,2}")


@frozen
class Decoded:
    """The content of a file, and whether its checksum is right.

    `stored` and `computed` are None in format 0, which has no checksum.
    """

    format: int
    data: CheckpointData
    stored: int | None = None
    computed: int | None = None

    @property
    def valid(self) -> bool:
        """Whether the checksum is right, if there is one."""
        return self.stored == self.computed

    @cached_property
    def explanation(self) -> str:
        """The probable cause of a wrong checksum, if the file shows one; else empty."""
        if self.valid or self.stored is None:
            return ""
        if not self.stored:
            return "the file has no checksum"
        if self.stored >> 32:
            return "no checksum has more than 32 bits"
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

    Raises:
        MalformedCheckpointError: it is not a checkpoint.
    """
    if plain := read_plain(blob):
        data, stored = plain
        computed = checksum(data)
        if stored == computed or data.entries:  # only a file without entries can be one of format 1 as well
            return Decoded(NEWEST, data, stored, computed)
    value = parse(blob)
    try:
        if isinstance(value, list):
            return _decode_list(value)
        found = _decode_file(value)
        return evolve(found, data=evolve(found.data, extra=extra_fields(value)))
    except RefusedError as refusal:
        raise MalformedCheckpointError(problem=str(refusal)) from None


def extra_fields(value: Json) -> ExtraFields:
    """Return the fields that a kubelet ignores. If a name is repeated, its first place and its last value count."""
    places: dict[str, dict[str, str]] = {}
    fields: tuple[dict[str, str], ...] = ({}, {}, {})
    place = 0
    for name, item in value if isinstance(value, Object) else ():
        known = field_called(_BY_NUMA_NODE, name)
        if known is None:
            places.setdefault(name, fields[place])[name] = unparse(item)
        else:
            place = 2 if known is _CHECKSUM else max(place, 1)
    return ExtraFields(*fields)


def is_entry_field(name: str) -> bool:
    """Return whether a kubelet reads the field of an entry that has this name."""
    return field_called(_FLAT_ENTRY, name) is not None


def decode_entry(value: Json, *, is_flat: bool = False) -> tuple[int, PodDevicesEntry]:
    """Read one entry. Return the format it is in, and the entry. With `is_flat`, only format 1 is tried.

    Raises:
        RefusedError: it is in neither format. The error is that of format 2, unless `is_flat` is set.
    """
    refusal: RefusedError | None = None
    for number, fields in ((1, _FLAT_ENTRY),) if is_flat else ((NEWEST, _ENTRY), (1, _FLAT_ENTRY)):
        try:
            return number, into_struct(_Entry(), value, fields).frozen()
        except RefusedError as error:
            refusal = refusal or error
    raise refusal or RefusedError(why="there is no format")


def decode_registered(name: str, value: Json) -> tuple[str, ...] | None:
    """Read the registered devices of one resource. Raises RefusedError if it is no list of names."""
    return (_into_registered(None, Object(((name, value),))) or {}).get(name)


def _decode_file(value: Json) -> Decoded:
    """Try format 2, then format 1, as kubelets up to 1.29 did.

    Only a file without devices is readable as both; then its checksum decides.
    """
    try:
        newest = _decode_as(NEWEST, value, _BY_NUMA_NODE)
    except RefusedError as refusal:
        try:
            return _decode_as(1, value, _FLAT)
        except RefusedError:
            raise refusal from None  # nearly every file has format 2, so its problem helps most
    if newest.valid:
        return newest
    with suppress(RefusedError):
        older = _decode_as(1, value, _FLAT)
        return older if older.valid else newest
    return newest


def _decode_as(format: int, value: Json, fields: "Fields") -> Decoded:  # noqa: A002 - the word of `encode`
    file = into_struct(_File(), value, fields)
    entries = None if file.data.entries is None else tuple(entry.frozen() for entry in file.data.entries.items)
    data = CheckpointData(entries, file.data.registered)
    return Decoded(format, data, file.checksum, checksum(data, format))


def _decode_list(value: list[Json]) -> Decoded:
    entries = into_slice(None, value, _Entry, _into_flat_entry, "[]PodDevicesEntry")
    return Decoded(0, CheckpointData(tuple(entry.frozen() for entry in entries.items) if entries else None, {}))


# --- the types of fields that only this file has ----------------------------------------------------------------------


def _into_bytes(old: "bytes | Slice[int] | None", value: Json) -> "bytes | Slice[int] | None":
    if isinstance(value, str):
        return _base64(value)
    array = Slice(list(old), len(old)) if isinstance(old, bytes) else old
    return into_slice(array, value, int, partial(into_uint, allowed=_UINT8), "[]uint8")


def _base64(text: str) -> bytes:
    """`base64.StdEncoding`: padded; line ends and the unused bits before the padding are ignored."""
    if len(text) > MAX_RESPONSE_TEXT:
        raise RefusedError(why=f"expected at most {MAX_RESPONSE_TEXT:,} characters, got {len(text):,}")
    text = text.replace("\r", "").replace("\n", "")
    if len(text) % 4 or not _BASE64.fullmatch(text):
        raise RefusedError(why="illegal base64 data")
    return a2b_base64(text)


def _numa_node(name: str) -> int:
    node = integer(name)
    if node not in INT64:
        raise RefusedError(why="the key is not an int64")
    return node


# --- the kubelet's structs, before anything is decoded into them ------------------------------------------------------


@define
class _Entry:
    pod_uid: str = ""
    container_name: str = ""
    resource_name: str = ""
    device_ids: "dict[int, tuple[str, ...] | None] | Slice[str] | None" = None
    alloc_resp: "bytes | Slice[int] | None" = None

    def frozen(self) -> PodDevicesEntry:
        flat, response = self.device_ids, self.alloc_resp
        # Kubelets up to 1.29 put the devices of format 1 on NUMA node 0.
        devices = {0: tuple(flat.items)} if isinstance(flat, Slice) else flat
        response = bytes(response.items) if isinstance(response, Slice) else response
        return PodDevicesEntry(self.pod_uid, self.container_name, self.resource_name, devices, response)


@define
class _Data:
    entries: Slice[_Entry] | None = field(factory=Slice)
    registered: dict[str, tuple[str, ...] | None] | None = field(factory=dict)


@define
class _File:
    data: _Data = field(factory=_Data)
    checksum: int = 0


def _entry_fields(into_devices: Callable[..., object]) -> Fields:
    return fields_of(
        {
            "PodUID": ("pod_uid", into_string),
            "ContainerName": ("container_name", into_string),
            "ResourceName": ("resource_name", into_string),
            "DeviceIDs": ("device_ids", into_devices),
            "AllocResp": ("alloc_resp", _into_bytes),
        }
    )


_into_registered = partial(into_map, key=str, new=new_strings, wanted="map[string][]string")


def _file_fields(entry_fields: Fields) -> Fields:
    into_entry = partial(into_struct, fields=entry_fields)
    into_entries = partial(into_slice, zero=_Entry, into=into_entry, wanted="[]PodDevicesEntry")
    data_fields = fields_of(
        {"PodDeviceEntries": ("entries", into_entries), "RegisteredDevices": ("registered", _into_registered)}
    )
    return fields_of(
        {
            "Data": ("data", partial(into_struct, fields=data_fields)),
            "Checksum": _CHECKSUM,
        }
    )


_CHECKSUM: Field = ("checksum", partial(into_uint, allowed=_UINT64))
_FLAT_ENTRY = _entry_fields(into_strings)
_into_flat_entry = partial(into_struct, fields=_FLAT_ENTRY)
_FLAT = _file_fields(_FLAT_ENTRY)
_ENTRY = _entry_fields(partial(into_map, key=_numa_node, new=new_strings, wanted="map[int64][]string"))
_BY_NUMA_NODE = _file_fields(_ENTRY)
