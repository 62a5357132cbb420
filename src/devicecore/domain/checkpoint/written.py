"""Checkpoints in the making: what is rendered and hashed already is neither rendered nor hashed again.

Law: `encode_written` gives, byte for byte, what `encode` gives for the same data. How the data came about never shows.

Entries stand in blocks, in their order. A block is rendered once, and a `Passage` remembers what hashing it does. One
entry more makes a new last block out of the text of the old one; entries that go leave all other blocks as they are.
What stands behind them meets another state, though, and is hashed again unless it has met the like of it before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from math import isqrt

from attrs import frozen

from devicecore.domain.checkpoint.encoding import AFTER_DATA, AFTER_ENTRIES, BEFORE_ENTRIES, BEFORE_REGISTERED, NIL
from devicecore.domain.checkpoint.entries import PodDevicesEntry
from devicecore.domain.checkpoint.fnv import Passage, before, fnv1a_32
from devicecore.domain.checkpoint.go_text import Strings, json_text, strings_dump, utf8

_FEW_PODS = 16  # have room in any block

# In a block, every entry is behind its separator. So hashing starts where a space leads to what "[" leads to.
_START = before(b" ", fnv1a_32(BEFORE_ENTRIES + b"["))
# And behind the entries, a "]" leads to what their absence leads to.
_WITHOUT_ENTRIES = before(b"]", fnv1a_32(BEFORE_ENTRIES + NIL))


_Text = tuple[bytes, bytes]
"""The entries of one pod, each behind its separator: in the file, and in the dump."""


@frozen(eq=False)
class _Block:
    """The entries of some pods, at least of one: of each pod, and of all together."""

    pods: Mapping[str, _Text]
    json: bytes
    dump: Passage

    @classmethod
    def of(cls, pods: Mapping[str, _Text]) -> "_Block":
        return cls(
            pods, b"".join([json for json, _ in pods.values()]), Passage(tuple([dump for _, dump in pods.values()]))
        )

    def adding(self, pod: str, text: _Text) -> "_Block":
        """With an entry of a pod more, behind those it has, else behind all."""
        json, dump = text
        if pod in self.pods:
            before = self.pods[pod]
            return _Block.of({**self.pods, pod: (before[0] + json, before[1] + dump)})
        return _Block({**self.pods, pod: text}, self.json + json, self.dump.followed_by(dump))


@frozen(eq=False)
class _Row:
    """Blocks in their order. They are hashed when somebody asks, which is when a file is made."""

    blocks: tuple[_Block, ...] = ()

    @cached_property
    def hash(self) -> int:
        """The hash of the dump up to their end."""
        state = _START
        for block in self.blocks:
            state = block.dump.hash(state)
        return state


@frozen(eq=False)
class WrittenEntries:
    """The entries of a checkpoint: pods in the order in which they came, and each pod's entries likewise."""

    _front: _Row = _Row()
    _last: _Block | None = None

    @classmethod
    def of(cls, entries: Iterable[PodDevicesEntry]) -> "WrittenEntries":
        """Render them all."""
        pods: dict[str, _Text] = {}
        for entry in entries:
            json, dump = pods.get(entry.pod_uid, (b"", b""))
            more_json, more_dump = _text(entry)
            pods[entry.pod_uid] = json + more_json, dump + more_dump
        uids = tuple(pods)
        room = max(_FEW_PODS, 2 * isqrt(len(uids)))
        portions = [uids[start : start + room] for start in range(0, len(uids), room)]
        return cls._joining([_Block.of({uid: pods[uid] for uid in portion}) for portion in portions])

    @classmethod
    def _joining(cls, blocks: Sequence[_Block]) -> "WrittenEntries":
        return cls(_Row(tuple(blocks[:-1])), blocks[-1]) if blocks else cls()

    @property
    def _blocks(self) -> tuple[_Block, ...]:
        return (*self._front.blocks, self._last) if self._last else ()

    def adding(self, entry: PodDevicesEntry) -> "WrittenEntries":
        """With one entry more, behind those its pod has, else behind all."""
        front, last, pod, text = self._front.blocks, self._last, entry.pod_uid, _text(entry)
        for place, block in enumerate(front):
            if pod in block.pods:
                changed = block.adding(pod, text)
                return WrittenEntries(_Row((*front[:place], changed, *front[place + 1 :])), last)
        if last and (len(last.pods) < _room(len(front) + 1) or pod in last.pods):
            return WrittenEntries(self._front, last.adding(pod, text))
        return WrittenEntries(_Row(self._blocks), _Block.of({pod: text}))

    def without(self, gone: Collection[str]) -> "WrittenEntries":
        """Without what some pods have."""
        blocks: list[_Block] = []
        few = _room(len(self._blocks)) // 2
        for block in self._blocks:
            left = block
            if not block.pods.keys().isdisjoint(gone):
                left = _Block.of({pod: text for pod, text in block.pods.items() if pod not in gone})
            if blocks and len(blocks[-1].pods) + len(left.pods) <= few:
                left = _Block.of({**blocks.pop().pods, **left.pods})
            blocks.append(left)
        return self._joining([block for block in blocks if block.pods])

    def json(self) -> list[bytes]:
        """What the file says of them, in pieces."""
        if not self._last:
            return [b"null"]  # a kubelet without pods writes no []
        first, *others = self._blocks
        return [b"[", first.json[1:], *[block.json for block in others], b"]"]

    def hash(self) -> int:
        """The hash of the dump up to the last of them."""
        return self._last.dump.hash(self._front.hash) if self._last else _WITHOUT_ENTRIES


@frozen(eq=False)
class WrittenDevices:
    """A list of device ids as the file has it, and as the dump has it."""

    json: bytes
    dump: bytes

    @classmethod
    def of(cls, ids: Strings) -> "WrittenDevices":
        """Render them."""
        return cls(json_text(ids), utf8(strings_dump(ids)))


@frozen(eq=False)
class WrittenResources:
    """The devices of all resources: in the file, in pieces, and in the dump, each with what stands around them."""

    json: tuple[bytes, ...]
    dump: Passage

    @classmethod
    def of(cls, registered: Mapping[str, WrittenDevices]) -> "WrittenResources":
        """Put them together.

        Raises:
            UnencodableCheckpointError: a resource's name is no Unicode text.
        """
        json, dump = [AFTER_ENTRIES + b"{"], [b"]" + BEFORE_REGISTERED + b"map["]
        comma, space = b"", b""
        for name, devices in sorted(registered.items()):
            json += (comma + json_text(name) + b":", devices.json)
            dump += (space + utf8(name) + b":", devices.dump)
            comma, space = b",", b" "
        return cls((*json, b"}"), Passage((*dump, b"]}")))


def encode_written(entries: WrittenEntries, resources: WrittenResources) -> bytes:
    """The file of format 2 that a kubelet would write."""
    checksum = resources.dump.hash(entries.hash())
    return b"".join([b'{"Data":{"PodDeviceEntries":', *entries.json(), *resources.json, AFTER_DATA % checksum])


def _room(blocks: int) -> int:
    """For how many pods each of so many blocks has room: so many that blocks and pods in one both grow slowly."""
    return max(_FEW_PODS, 4 * (blocks + 1))


def _text(entry: PodDevicesEntry) -> _Text:
    return b"," + json_text(entry.json), utf8(f" {entry.dump}")
