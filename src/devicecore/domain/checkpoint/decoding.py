"""From a file to checkpoint data.

Law: `decode` takes any bytes, and gives what a kubelet would have read or raises a CheckpointError. Format 2 is decided
as `encoding/json` decodes into the kubelet's structs, quirks included; formats 1 and 0 are tried on what it refuses.

Go decodes *into* what is there. So every function here is told the old value and returns the new one: null changes no
string, number or struct; a repeated struct or map is merged; and a repeated list is decoded into its old elements.
"""

import re
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Generic, NoReturn, TypeAlias, TypeVar, cast

from attrs import define, evolve, field, frozen

from devicecore.domain.checkpoint.encoding import NEWEST, checksum
from devicecore.domain.checkpoint.entries import CheckpointData, PodDevicesEntry
from devicecore.domain.checkpoint.go_json import Json, Literal, Object, kind, parse, unparse
from devicecore.domain.checkpoint.plain_file import read_plain
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError

K = TypeVar("K")
T = TypeVar("T")

_UINT64 = range(2**64)
_UINT8 = range(2**8)
_INT64 = range(-(2**63), 2**63)
_TOO_LARGE = 2**64
_ONLY_STRINGS = {str}
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,20})")
_BASE64 = re.compile("[A-Za-z0-9+/]*={0,2}")


@frozen
class Decoded:
    """What a file says, and whether it is what was written.

    `stored` and `computed` are None in format 0, which has no checksum. `extra` holds, as JSON, the top-level fields
    that are not part of the format, such as the `BootID` of newer kubelets.
    """

    format: int
    data: CheckpointData
    stored: int | None = None
    computed: int | None = None
    extra: Mapping[str, str] = field(factory=dict)

    @property
    def valid(self) -> bool:
        """Whether the checksum is right, if there is one."""
        return self.stored == self.computed

    @cached_property
    def explanation(self) -> str:
        """What may have gone wrong, as far as can be told from the file; empty if nothing can."""
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
        """The data.

        Raises:
            CorruptCheckpointError: the checksum is wrong.
        """
        if self.stored != self.computed:
            raise CorruptCheckpointError(self.stored or 0, self.computed or 0, self.explanation)
        return self.data


def decode(blob: bytes) -> Decoded:
    """Read a file of any format; whether its checksum is right is in the answer.

    Raises:
        MalformedCheckpointError: it is not a checkpoint.
    """
    if plain := read_plain(blob):
        data, stored = plain
        if stored == checksum(data):
            return Decoded(NEWEST, data, stored, stored)
    value = parse(blob)
    try:
        if isinstance(value, list):
            return _decode_list(value)
        pairs = value if isinstance(value, Object) else ()
        extra = {name: unparse(item) for name, item in pairs if _field(_BY_NODE, name) is None}
        return evolve(_decode_file(value), extra=extra)
    except _RefusedError as refusal:
        raise MalformedCheckpointError(problem=f"{refusal.where.lstrip('.')}: {refusal.why}".lstrip(": ")) from None


def _decode_file(value: Json) -> Decoded:
    """As kubelets up to 1.29 did: what is no good as format 2 may be good as format 1.

    Readable as both are only files without a single device; what one of them says then is decided by its checksum.
    """
    try:
        newest = _decode_as(NEWEST, value, _BY_NODE)
    except _RefusedError as refusal:
        try:
            return _decode_as(1, value, _FLAT)
        except _RefusedError:
            raise refusal from None  # what is wrong with it as a file of today says more
    if newest.valid:
        return newest
    with suppress(_RefusedError):
        older = _decode_as(1, value, _FLAT)
        return older if older.valid else newest
    return newest


def _decode_as(format: int, value: Json, fields: "_Fields") -> Decoded:  # noqa: A002 - what else would one call it
    file = _into_struct(_File(), value, fields)
    entries = None if file.data.entries is None else tuple(entry.frozen() for entry in file.data.entries.items)
    data = CheckpointData(entries, file.data.registered)
    return Decoded(format, data, file.checksum, checksum(data, format))


def _decode_list(value: list[Json]) -> Decoded:
    entries = _into_slice(None, value, _Entry, _into_flat_entry, "[]PodDevicesEntry")
    return Decoded(0, CheckpointData(tuple(entry.frozen() for entry in entries.items) if entries else None, {}))


# --- Go's types, as functions from the old value and the JSON to the new value ---------------------------------------


@frozen
class _RefusedError(Exception):
    """What no Go type takes, and where it stands in the file."""

    why: str
    where: str = ""

    def under(self, place: str) -> "_RefusedError":
        return _RefusedError(self.why, place + self.where)


def _refuse(value: Json, wanted: str) -> NoReturn:
    raise _RefusedError(why=f"cannot use {kind(value)} as {wanted}")


def _into_string(old: str, value: Json) -> str:
    if isinstance(value, str):
        return value
    return old if value is None else _refuse(value, "string")


def _into_uint(old: int, value: Json, allowed: range) -> int:
    if value is None:
        return old
    if isinstance(value, Literal) and value.text.isdigit():  # in Go, even -0 is no uint
        number = _integer(value.text)
        if number in allowed:
            return number
    return _refuse(value, f"uint{allowed.stop.bit_length() - 1}")


def _integer(text: str) -> int:
    """A number that `strconv.ParseInt` can read, or one that is too large for anything."""
    digits = _INTEGER.fullmatch(text)
    return int(digits[1] + digits[2]) if digits else _TOO_LARGE


@frozen
class _Slice(Generic[T]):
    """A slice that is not nil. What is in the array behind its end comes to light when it grows again."""

    array: list[T] = field(factory=list)
    length: int = 0

    @property
    def items(self) -> list[T]:
        return self.array[: self.length]


def _into_slice(
    old: _Slice[T] | None, value: Json, zero: Callable[[], T], into: Callable[[T, Json], T], wanted: str
) -> _Slice[T] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        _refuse(value, wanted)
    array = old.array if old and value else []
    for index, item in enumerate(value):
        if index == len(array):
            array.append(zero())
        try:
            array[index] = into(array[index], item)
        except _RefusedError as refusal:
            raise refusal.under(place=f"[{index}]") from None
    return _Slice(array, len(value))


def _into_strings(old: _Slice[str] | None, value: Json) -> _Slice[str] | None:
    return _into_slice(old, value, str, _into_string, "[]string")


def _new_strings(value: Json) -> tuple[str, ...] | None:
    if isinstance(value, list) and set(map(type, value)) <= _ONLY_STRINGS:  # nearly always, and ten times faster
        return tuple(cast("list[str]", value))
    strings = _into_strings(None, value)
    return None if strings is None else tuple(strings.items)


def _into_bytes(old: "bytes | _Slice[int] | None", value: Json) -> "bytes | _Slice[int] | None":
    if isinstance(value, str):
        return _base64(value)
    array = _Slice(list(old), len(old)) if isinstance(old, bytes) else old
    return _into_slice(array, value, int, partial(_into_uint, allowed=_UINT8), "[]uint8")


def _base64(text: str) -> bytes:
    """`base64.StdEncoding`: padded, deaf to line ends and to the bits that padding leaves over."""
    text = text.replace("\r", "").replace("\n", "")
    if len(text) % 4 or not _BASE64.fullmatch(text):
        raise _RefusedError(why="illegal base64 data")
    return a2b_base64(text)


def _into_map(
    old: dict[K, tuple[str, ...] | None] | None, value: Json, key: Callable[[str], K], wanted: str
) -> dict[K, tuple[str, ...] | None] | None:
    if value is None:
        return None
    if not isinstance(value, Object):
        _refuse(value, wanted)
    merged = {} if old is None else old
    for name, item in value:
        try:
            merged[key(name)] = _new_strings(item)
        except _RefusedError as refusal:
            raise refusal.under(place=f"[{name[:40]}]") from None
    return merged


def _numa_node(name: str) -> int:
    node = _integer(name)
    if node not in _INT64:
        raise _RefusedError(why="the key is not an int64")
    return node


_Field: TypeAlias = tuple[str, Callable[..., object]]
_Fields: TypeAlias = Mapping[str, _Field]


def _fields(by_name: _Fields) -> _Fields:
    """The fields of a struct: attribute and decoder by name, and by the name as `_field` folds it."""
    return {**{name.lower(): known for name, known in by_name.items()}, **by_name}


def _field(fields: _Fields, name: str) -> _Field | None:
    """The exact name wins; else case does not matter. Two letters outside ASCII fold into it, one in `lower()`."""
    return fields.get(name) or fields.get(name.replace("\u017f", "s").lower())


def _into_struct(struct: T, value: Json, fields: _Fields) -> T:
    if value is None:
        return struct
    if not isinstance(value, Object):
        _refuse(value, "struct")
    for name, item in value:
        if known := _field(fields, name):
            attribute, into = known
            try:
                setattr(struct, attribute, into(getattr(struct, attribute), item))
            except _RefusedError as refusal:
                raise refusal.under(place=f".{name}") from None
    return struct


# --- the kubelet's structs, before anything is decoded into them ------------------------------------------------------


@define
class _Entry:
    pod_uid: str = ""
    container_name: str = ""
    resource_name: str = ""
    device_ids: "dict[int, tuple[str, ...] | None] | _Slice[str] | None" = None
    alloc_resp: "bytes | _Slice[int] | None" = None

    def frozen(self) -> PodDevicesEntry:
        flat, response = self.device_ids, self.alloc_resp
        # Kubelets up to 1.29 put the devices of format 1 on node 0.
        devices = {0: tuple(flat.items)} if isinstance(flat, _Slice) else flat
        response = bytes(response.items) if isinstance(response, _Slice) else response
        return PodDevicesEntry(self.pod_uid, self.container_name, self.resource_name, devices, response)


@define
class _Data:
    entries: _Slice[_Entry] | None = field(factory=_Slice)
    registered: dict[str, tuple[str, ...] | None] | None = field(factory=dict)


@define
class _File:
    data: _Data = field(factory=_Data)
    checksum: int = 0


def _entry_fields(into_devices: Callable[..., object]) -> _Fields:
    return _fields(
        {
            "PodUID": ("pod_uid", _into_string),
            "ContainerName": ("container_name", _into_string),
            "ResourceName": ("resource_name", _into_string),
            "DeviceIDs": ("device_ids", into_devices),
            "AllocResp": ("alloc_resp", _into_bytes),
        }
    )


def _file_fields(entry_fields: _Fields) -> _Fields:
    into_entry = partial(_into_struct, fields=entry_fields)
    into_entries = partial(_into_slice, zero=_Entry, into=into_entry, wanted="[]PodDevicesEntry")
    into_registered = partial(_into_map, key=str, wanted="map[string][]string")
    data_fields = _fields(
        {"PodDeviceEntries": ("entries", into_entries), "RegisteredDevices": ("registered", into_registered)}
    )
    return _fields(
        {
            "Data": ("data", partial(_into_struct, fields=data_fields)),
            "Checksum": ("checksum", partial(_into_uint, allowed=_UINT64)),
        }
    )


_FLAT_ENTRY = _entry_fields(_into_strings)
_into_flat_entry = partial(_into_struct, fields=_FLAT_ENTRY)
_FLAT = _file_fields(_FLAT_ENTRY)
_BY_NODE = _file_fields(_entry_fields(partial(_into_map, key=_numa_node, wanted="map[int64][]string")))
