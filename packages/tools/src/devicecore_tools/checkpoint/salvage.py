"""Reads the intact parts of a file that a kubelet cannot read.

Law: for a file that `decode` accepts, `salvage` returns the same data, with nothing unreadable. For any other file,
`salvage` either raises an error, or each entry and each registered resource is in the data or listed as unreadable.
"""

from collections.abc import Iterator

from attrs import evolve, frozen

from devicecore.domain.checkpoint.decoding import decode, decode_entry, decode_registered, extra_fields, is_entry_field
from devicecore.domain.checkpoint.encoding import NEWEST
from devicecore.domain.checkpoint.entries import CheckpointData, PodDevicesEntry
from devicecore.domain.checkpoint.go_json import Json, Object, parse
from devicecore.domain.checkpoint.go_values import RefusedError
from devicecore.domain.checkpoint.plain_file import read_plain
from devicecore.domain.errors import MalformedCheckpointError

MAX_UNREADABLE = 1_000
"""The maximum number of unreadable parts.

With more unreadable parts, the file is not a checkpoint, or nothing in it can be trusted.
"""


@frozen
class Unreadable:
    """A part of a file that cannot be read, such as `entry 3` (counted from 1), and the reason."""

    place: str
    problem: str


@frozen
class Salvaged:
    """The readable parts of a file, their format, and what could not be read."""

    format: int
    data: CheckpointData
    unreadable: tuple[Unreadable, ...] = ()


@frozen
class IgnoredField:
    """A field that a kubelet ignores: its name, the first place where it occurs, and how often it occurs."""

    name: str
    place: str
    count: int = 1


def ignored_fields(blob: bytes) -> tuple[IgnoredField, ...]:
    """Return the fields within `Data` and its entries that a kubelet ignores.

    `encode` does not write these fields back.

    Raises MalformedCheckpointError if `blob` is not JSON.
    """
    if read_plain(blob):
        return ()
    value = parse(blob)
    data = _member(value, "data")
    listed = value if isinstance(value, list) else _member(data, "poddeviceentries")
    places = [("Data", name) for name in _names(data) if name.lower() not in _DATA_FIELDS]
    entries = listed if isinstance(listed, list) else []
    for number, item in enumerate(entries, start=1):
        places += [(f"entry {number}", name) for name in _names(item) if not is_entry_field(name)]
    found: dict[str, IgnoredField] = {}
    for place, name in places:
        before = found.get(name, IgnoredField(name, place, 0))
        found[name] = evolve(before, count=before.count + 1)
    return tuple(found.values())


_DATA_FIELDS = frozenset({"poddeviceentries", "registereddevices"})


def _names(value: Json) -> Iterator[str]:
    return (name for name, _ in value) if isinstance(value, Object) else iter(())


def salvage(blob: bytes) -> Salvaged:
    """Read a file of any format. If the file cannot be read as a whole, read each entry and each resource individually.

    Raises MalformedCheckpointError if the file is not JSON, if its entries are not a list, if it has neither entries
    nor registered resources, if none of its entries can be read, or if more than `MAX_UNREADABLE` parts cannot be read.
    """
    try:
        found = decode(blob)
    except MalformedCheckpointError as error:
        return _salvaged(parse(blob), error)
    return Salvaged(found.format, found.data)


def _salvaged(value: Json, refusal: MalformedCheckpointError) -> Salvaged:
    is_list = isinstance(value, list)
    listed = value if is_list else _member(_member(value, "data"), "poddeviceentries")
    resources = _member(_member(value, "data"), "registereddevices")
    if not isinstance(listed, list | None) or (listed is None and not isinstance(resources, Object)):
        raise refusal
    entries: list[tuple[int, PodDevicesEntry]] = []
    unreadable: list[Unreadable] = []
    for number, item in enumerate(listed or (), start=1):
        try:
            entries.append(decode_entry(item, is_flat=is_list))
        except RefusedError as problem:
            unreadable.append(Unreadable(f"entry {number}", str(problem)))
    if unreadable and not entries:
        raise refusal
    registered: dict[str, tuple[str, ...] | None] = {}
    listed_resources = resources if isinstance(resources, Object) else ()
    for name, item in listed_resources:
        try:
            registered[name] = decode_registered(name, item)
        except RefusedError as problem:
            unreadable.append(Unreadable(f"registered devices of {name}", str(problem)))
    if len(unreadable) > MAX_UNREADABLE:
        too_many = f"expected at most {MAX_UNREADABLE:,} parts that cannot be read, got {len(unreadable):,}"
        raise MalformedCheckpointError(too_many)
    if resources is not None and not isinstance(resources, Object):
        unreadable.append(Unreadable("registered devices", "expected an object"))
    if not unreadable:
        unreadable.append(Unreadable("the file as a whole", refusal.problem))  # for example, the checksum is a string
    kept = tuple(entry for _, entry in entries)
    data = CheckpointData(kept or None, registered, extra_fields(value))
    return Salvaged(_format(entries, is_list=is_list), data, tuple(unreadable))


def _format(entries: list[tuple[int, PodDevicesEntry]], *, is_list: bool) -> int:
    """Return the newest format among the entries with devices.

    A file that is a list has format 0. An entry without devices can be read as format 1 or 2.
    """
    if is_list:
        return 0
    return max((number for number, entry in entries if entry.device_ids), default=NEWEST)


def _member(value: Json, name: str) -> Json:
    """Return an object's last member whose lowercase name is `name`, or None if there is none."""
    members = reversed(value if isinstance(value, Object) else ())
    return next((item for key, item in members if key.lower() == name), None)
