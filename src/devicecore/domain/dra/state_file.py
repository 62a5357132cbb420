"""Reads and writes the kubelet's claims file, `dra_manager_state` (kubelet-dra.md 9).

Laws: equal claims in the same order result in equal bytes, which are the bytes that a kubelet would write. Any bytes
within the limits of `go_json` result in what a kubelet since 1.32 would have read, or in a `CheckpointError` if the
kubelet would have refused to start. `judge` calls such a file `OK` if and only if a kubelet would start with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from zlib import crc32

from attrs import define, evolve, field, frozen

from devicecore.domain.checkpoint import go_values as go
from devicecore.domain.checkpoint.go_json import Json, Object, parse
from devicecore.domain.checkpoint.verdict import FileVerdict
from devicecore.domain.dra.answer_size import devices_json
from devicecore.domain.dra.claims import ClaimBlock, ClaimCache, ClaimInfo
from devicecore.domain.dra.model import ClaimKey, ClaimUid, DriverName, PreparedDevice
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError
from devicecore.domain.go_text import json_text
from devicecore.domain.model import PodUid

FILE_NAME = "dra_manager_state"
"""The kubelet's name for the file, which is in the kubelet's root directory."""

_UINT32 = range(2**32)
_LIST = "state.ClaimInfoStateList"
_DATA = b'{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":%b}'
_FILE = b'{"Data":"%b","Checksum":%d}'
_EMPTY = _DATA % b"null"

# The text before the claims. For a file of several megabytes, `%` takes 50 times as long as joining.
_START = b'{"Data":"%b[' % _DATA.removesuffix(b"%b}").replace(b'"', b'\\"')
_CHECKSUM_OF_START = crc32(_DATA.removesuffix(b"%b}") + b"[")


@frozen
class ClaimEntry:
    """A claim in the form of the claims file. A list or an object may be null, which is None here."""

    uid: str = ""
    name: str = ""
    namespace: str = ""
    pods: tuple[str, ...] | None = None
    drivers: Mapping[str, tuple[PreparedDevice, ...] | None] | None = None
    skips: Mapping[str, frozenset[str]] = field(factory=dict)

    @classmethod
    def of(cls, claim: ClaimInfo) -> "ClaimEntry":
        """Return the entry for one of the node's claims."""
        key, skips = claim.key, {str(name): operations for name, operations in claim.skips.items()}
        return cls(claim.uid, key.name, key.namespace, tuple(claim.pods), dict(claim.drivers.items()), skips)

    @property
    def claim(self) -> ClaimInfo:
        """The claim of this entry. If the pods or the drivers are null in the file, they are empty here."""
        drivers = {DriverName(name): devices for name, devices in (self.drivers or {}).items()}
        pods = frozenset(map(PodUid, self.pods or ()))
        skips = {DriverName(name): operations for name, operations in self.skips.items()}
        return ClaimInfo(ClaimKey(self.namespace, self.name), ClaimUid(self.uid), pods, drivers, skips=skips)

    @property
    def json(self) -> dict[str, object]:
        """The entry as a JSON object with sorted maps."""
        nothing: dict[str, object] = {}
        pods = None if self.pods is None else dict.fromkeys(sorted(self.pods), nothing)
        drivers = (
            None
            if self.drivers is None
            else {name: _devices(list_, self.skips.get(name)) for name, list_ in sorted(self.drivers.items())}
        )
        return {
            "ClaimUID": self.uid,
            "ClaimName": self.name,
            "Namespace": self.namespace,
            "PodUIDs": pods,
            "DriverState": drivers,
        }


def _devices(devices: tuple[PreparedDevice, ...] | None, skips: frozenset[str] | None) -> dict[str, object]:
    skipped = {"SkipNodeOperations": sorted(skips)} if skips else {}  # kubelets before 1.37 do not write the field
    return {"Devices": devices_json(devices), **skipped}


# --- writing ---------------------------------------------------------------------------------------------------------


def encode(entries: Iterable[ClaimEntry] | None) -> bytes:
    """Return the file that a kubelet would write for these entries.

    If `entries` is None, the file is the one that a kubelet writes before its first claim.

    Raises UnencodableCheckpointError if a string is not Unicode text.
    """
    if entries is None:
        return _seal(_EMPTY)
    return _file(json_text(entry.json) for entry in entries)


def _file(entries: Iterable[bytes]) -> bytes:
    return _seal(_DATA % (b"[%b]" % b",".join(entries)))


def _seal(data: bytes) -> bytes:
    return _FILE % (_escaped(data), crc32(data))


def _escaped(data: bytes) -> bytes:
    # The data is JSON that already has Go's escapes, so only backslashes and quotes need escaping here.
    return data.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


_Texts = Mapping[ClaimKey, tuple[ClaimInfo, bytes, bytes]]


@define
class _Block:
    """A block of claims as written to the file: the text of each claim, and all texts joined.

    The checksum is computed from `joined`. `escaped` is the same text with the file's escapes: escaping thousands of
    claims again for each save would cost more than the rest of the save.
    """

    claims: ClaimBlock
    texts: _Texts
    joined: bytes
    escaped: bytes
    _sum: tuple[tuple[int, bytes], int] = ((-1, b""), 0)

    def checksum(self, before: int, separator: bytes) -> int:
        """Return the checksum up to the end of this block, given the checksum `before` the block's separator."""
        if self._sum[0] != (before, separator):
            self._sum = (before, separator), crc32(self.joined, crc32(separator, before))
        return self._sum[1]


class StateWriter:
    """Encodes one cache after another. Only blocks of claims that are new since the last file are processed."""

    def __init__(self) -> None:
        self._blocks: tuple[_Block, ...] = ()

    def encode(self, cache: ClaimCache) -> bytes:
        """Return the file for `cache`. Raises UnencodableCheckpointError if a string is not Unicode text."""
        former = {id(block.claims): block for block in self._blocks}
        kept = [former.pop(id(claims), None) for claims in cache.claims.blocks]
        texts: dict[ClaimKey, tuple[ClaimInfo, bytes, bytes]] = {}
        for block in former.values():  # the texts of blocks that have changed or are gone
            texts.update(block.texts)
        blocks = [block or self._block(claims, texts) for claims, block in zip(cache.claims.blocks, kept, strict=True)]
        checksum = _CHECKSUM_OF_START
        for number, block in enumerate(blocks):
            checksum = block.checksum(checksum, b"," if number else b"")
        self._blocks = tuple(blocks)
        # Allocating a string of several megabytes costs more than all the preceding steps, so the text is joined only
        # once.
        pieces = [block.escaped for block in blocks] or [b""]
        pieces[0] = _START + pieces[0]
        pieces[-1] += b']}","Checksum":%d}' % crc32(b"]}", checksum)
        return b",".join(pieces)

    def _block(self, claims: ClaimBlock, former: _Texts) -> _Block:
        texts = {
            key: former[key] if key in former and former[key][0] is claim else (claim, *self._render(claim))
            for key, claim in claims.items()
        }
        _, joined, escaped = zip(*texts.values(), strict=True)
        return _Block(claims, texts, b",".join(joined), b",".join(escaped))

    def _render(self, claim: ClaimInfo) -> tuple[bytes, bytes]:
        # This is a copy, because the JSON library's result may keep alive a buffer that is several times as large.
        text = bytes(memoryview(json_text(ClaimEntry.of(claim).json)))
        return text, _escaped(text)


# --- reading ---------------------------------------------------------------------------------------------------------


@frozen
class DecodedState:
    """The entries of a file, with the stored checksum and the computed one."""

    entries: tuple[ClaimEntry, ...]
    stored: int
    computed: int

    @property
    def cache(self) -> ClaimCache:
        """The claims. If two entries have the same key, the last one counts."""
        return ClaimCache.of(entry.claim for entry in self.entries)


def decode(blob: bytes) -> DecodedState:
    """Read a file.

    Raises MalformedCheckpointError if the file is not a claims file, and CorruptCheckpointError if its checksum is
    wrong. The checksum is checked before the claims are read.
    """
    data, stored = _sealed(parse(blob))
    computed = crc32(data)
    if stored != computed:
        raise CorruptCheckpointError(stored, computed, _explain(data, stored))
    return DecodedState(_entries(data), stored, computed)


@frozen
class StateReport:
    """A verdict on a file, with its reasons. Unknown values are None, and `problem` is empty if nothing is wrong."""

    verdict: FileVerdict
    stored: int | None = None
    computed: int | None = None
    entries: Sequence[ClaimEntry] | None = None
    problem: str = ""


def judge(blob: bytes | None) -> StateReport:
    """Examine a file without using it. `None` means that the file does not exist. The function raises no errors."""
    if blob is None:
        return StateReport(FileVerdict.ABSENT, problem="there is no claims file")
    try:
        found = decode(blob)
    except MalformedCheckpointError as error:
        return StateReport(FileVerdict.MALFORMED, problem=error.problem)
    except CorruptCheckpointError as error:
        return StateReport(FileVerdict.CHECKSUM, error.stored, error.computed, problem=str(error))
    return StateReport(FileVerdict.OK, found.stored, found.computed, found.entries)


def entries_of(blob: bytes) -> tuple[ClaimEntry, ...]:
    """Return the entries of a file without checking its checksum, for read-only tools.

    A file from a kubelet before 1.32 is also read (kubelet-dra.md 9.4). A file from a kubelet up to 1.30 contains each
    driver's CDI names and no devices, so a driver's names are shown as those of one unnamed device. Raises
    MalformedCheckpointError if the file is not a claims file.
    """
    document = parse(blob)
    data = _struct(_Sealed(), document).data.encode()
    if data != _EMPTY:
        del document  # a large file should not be in memory twice
        return _entries(data)
    former = _struct(_FormerFile(), document)
    return tuple(entry.frozen() for entry in former.entries.items) if former.entries else ()


def _sealed(document: Json) -> tuple[bytes, int]:
    """Return the data of a file, as bytes, and the checksum stored in it."""
    file = _struct(_File(), document)
    # `parse` has replaced lone surrogates, so encoding does not fail.
    return file.data.encode(), file.checksum


def _entries(data: bytes) -> tuple[ClaimEntry, ...]:
    read = _struct(_Data(), parse(data))
    return tuple(entry.frozen() for entry in read.entries.items) if read.entries else ()


def _struct(struct: go.S, value: Json) -> go.S:
    try:
        return go.into_struct(struct, value)
    except go.RefusedError as refusal:
        raise MalformedCheckpointError(problem=str(refusal)) from None


def _explain(data: bytes, stored: int) -> str:
    if data == _EMPTY:
        return "it is a file from a kubelet before 1.32, or it has no data"
    return "the file has no checksum" if not stored else ""


def _tuple(strings: go.Slice[str] | None) -> tuple[str, ...] | None:
    return None if strings is None else tuple(strings.items)


def _into_optional_string(old: str | None, value: Json) -> str | None:
    return None if value is None else go.into_string(old or "", value)


@define
class _Nothing:
    """Go's `struct{}`, the value of a set."""


def _into_operations(_: frozenset[str], value: Json) -> frozenset[str]:
    """Read a list of names, or a set as Go writes one.

    The field is alpha, so if it has an unexpected form, no operation is skipped.
    """
    names = value if isinstance(value, list) else [name for name, _ in value] if isinstance(value, Object) else []
    return frozenset(name for name in names if isinstance(name, str))


@define
class _Device:
    pool: str = go.member("PoolName", go.into_string, "")
    name: str = go.member("DeviceName", go.into_string, "")
    share_id: str | None = go.member("ShareID", _into_optional_string, None)
    requests: go.Slice[str] | None = go.member("RequestNames", go.into_strings, None)
    cdi_ids: go.Slice[str] | None = go.member("CDIDeviceIDs", go.into_strings, None)

    def frozen(self) -> PreparedDevice:
        return PreparedDevice(self.pool, self.name, self.share_id, _tuple(self.requests), _tuple(self.cdi_ids))


@define
class _DriverState:
    devices: go.Slice[_Device] | None = go.member("Devices", go.into_structs(_Device, "[]state.Device"), None)
    skips: frozenset[str] = go.member("SkipNodeOperations", _into_operations, frozenset())


_into_pods = go.into_map_of(_Nothing, "sets.Set[string]")
_into_driver_states = go.into_map_of(_DriverState, "map[string]state.DriverState")
_into_cdi_names = partial(go.into_map, key=str, new=go.new_strings, wanted="map[string][]string")


@define
class _Entry:
    uid: str = go.member("ClaimUID", go.into_string, "")
    name: str = go.member("ClaimName", go.into_string, "")
    namespace: str = go.member("Namespace", go.into_string, "")
    pods: dict[str, _Nothing] | None = go.member("PodUIDs", _into_pods, None)
    drivers: dict[str, _DriverState] | None = go.member("DriverState", _into_driver_states, None)

    def frozen(self) -> ClaimEntry:
        drivers = None
        if self.drivers is not None:
            drivers = {
                name: None if state.devices is None else tuple(device.frozen() for device in state.devices.items)
                for name, state in self.drivers.items()
            }
        skips = {name: state.skips for name, state in (self.drivers or {}).items() if state.skips}
        pods = None if self.pods is None else tuple(self.pods)
        return ClaimEntry(self.uid, self.name, self.namespace, pods, drivers, skips)


@define
class _FormerEntry(_Entry):
    cdi_names: dict[str, tuple[str, ...] | None] | None = go.member("CDIDevices", _into_cdi_names, None)

    def frozen(self) -> ClaimEntry:
        entry = super().frozen()
        if entry.drivers is not None or self.cdi_names is None:
            return entry
        named = {name: (PreparedDevice("", "", cdi_ids=ids),) for name, ids in self.cdi_names.items()}
        return evolve(entry, drivers=named)


@define
class _FormerFile:
    entries: go.Slice[_FormerEntry] | None = go.member("entries", go.into_structs(_FormerEntry, _LIST), None)


@define
class _Data:
    kind: str = go.member("kind", go.into_string, "")
    api_version: str = go.member("apiVersion", go.into_string, "")
    entries: go.Slice[_Entry] | None = go.member("ClaimInfoStateList", go.into_structs(_Entry, _LIST), None)


@define
class _Sealed:
    data: str = go.member("Data", go.into_string, _EMPTY.decode())


@define
class _File(_Sealed):
    checksum: int = go.member("Checksum", partial(go.into_uint, allowed=_UINT32), crc32(_EMPTY))
