"""Writes the checkpoint after every change, at a cost proportional to the new entries.

Law: `CheckpointWriter().file(state) == encode(checkpoint_of(state))`, whatever sequence of states a writer has written:
a file does not depend on the writer's earlier files.

Entries are kept as text in blocks of several pods, in the order of the ledger. A new pod is appended to the last block.
If pods are removed, only their blocks are joined again. The blocks after them are hashed again, because the hash of the
text before them has changed, unless a block remembers its effect for the new hash (`HashedText`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isqrt
from operator import attrgetter, is_

from attrs import define, field

from devicecore.domain.checkpoint.encoding import AFTER_ENTRIES, BEFORE_ENTRIES, BEFORE_REGISTERED, NIL
from devicecore.domain.checkpoint.entries import ExtraFields
from devicecore.domain.checkpoint.fnv import HashedText, before, fnv1a_32
from devicecore.domain.checkpoint.state import entry_of
from devicecore.domain.go_text import json_text, strings_dump, utf8
from devicecore.domain.inventory import DeviceReport, Inventory
from devicecore.domain.ledger import Allocation
from devicecore.domain.model import PodUid, ResourceName
from devicecore.domain.node_state import NodeState

_FEW_PODS = 16  # every block can hold at least this many pods

# In a block, a separator precedes every entry. Hashing starts in the state from which hashing a space leads to the
# state after "[".
_START = before(b" ", fnv1a_32(BEFORE_ENTRIES + b"["))
# A "]" follows the entries. Without entries, hashing starts in the state from which hashing "]" leads to the state
# after nil.
_WITHOUT_ENTRIES = before(b"]", fnv1a_32(BEFORE_ENTRIES + NIL))

_OfPod = tuple[Allocation, ...]

# Objects of the private classes do not change after construction. The classes are not frozen, because creating a frozen
# object takes twice as long.


@define(eq=False)
class _PodText:
    """The entries of one pod, each preceded by its separator, as in the file (`json`) and as in the dump."""

    allocations: _OfPod
    json: bytes
    dump: bytes

    @classmethod
    def of(cls, allocations: _OfPod) -> "_PodText":
        json: list[bytes] = []
        dump: list[bytes] = []
        for allocation in allocations:
            entry = entry_of(allocation)
            json += (b",", json_text(entry.json))
            dump.append(utf8(f" {entry.dump}"))
        return cls(allocations, b"".join(json), b"".join(dump))

    def updated(self, ledger: Mapping[PodUid, _OfPod]) -> "_PodText | None":
        """Return the text of the same pod in `ledger`. Return None if one of the pod's allocations no longer exists."""
        allocations = ledger.get(self.allocations[0].key.pod, ())
        if allocations is self.allocations:
            return self
        if not _starts_with(allocations, self.allocations):
            return None
        more = _PodText.of(allocations[len(self.allocations) :])
        return _PodText(allocations, self.json + more.json, self.dump + more.dump)


_JSON: Callable[[_PodText], bytes] = attrgetter("json")
_DUMP: Callable[[_PodText], bytes] = attrgetter("dump")


@define(eq=False)
class _Block:
    """The entries of at least one pod: the text of each pod, and the joined JSON of all pods.

    `start` is the hash of the dump before the block, and `end` is the hash after it. `dump` is computed when the hash
    is needed for a different start.
    """

    pods: tuple[_PodText, ...]
    json: bytes
    start: int
    end: int
    dump: HashedText | None = None

    @classmethod
    def of(cls, pods: Iterable[_PodText], start: int) -> "_Block":
        pods = tuple(pods)
        return cls(pods, b"".join(map(_JSON, pods)), start, fnv1a_32(b"".join(map(_DUMP, pods)), start))

    def followed_by(self, pods: Sequence[_PodText]) -> "_Block":
        """Return the block with `pods` appended. Only their text is hashed."""
        json = b"".join([self.json, *map(_JSON, pods)])
        return _Block((*self.pods, *pods), json, self.start, fnv1a_32(b"".join(map(_DUMP, pods)), self.end))

    def starting_at(self, start: int) -> "_Block":
        """Return this block as it is when the dump before it has the hash `start`."""
        if start == self.start:
            return self
        dump = self.dump or HashedText(tuple(map(_DUMP, self.pods)))
        return _Block(self.pods, self.json, start, dump.hash(start), dump)


@define(eq=False)
class _Entries:
    """All entries: the contents of the ledger, and the text of the entries in blocks."""

    pods: list[_OfPod] = field(factory=list)
    blocks: list[_Block] = field(factory=list)

    def updated(self, ledger: Mapping[PodUid, _OfPod]) -> "_Entries":
        """Return the entries of `ledger`. Objects shared with the last ledger are not rendered again."""
        pods, rendered = [*ledger.values()], len(self.pods)
        new = pods[rendered:]
        del pods[rendered:]  # not a copy, because copying thousands of pods takes as long as comparing them
        is_longer = pods == self.pods  # compares by identity first
        pods += new
        blocks = [*self.blocks]
        if not is_longer:
            blocks, rendered = self._kept_blocks(ledger, pods)
            new = pods[rendered:]
        _append(blocks, [_PodText.of(allocations) for allocations in new])
        return _Entries(pods, blocks)

    def _kept_blocks(self, ledger: Mapping[PodUid, _OfPod], pods: list[_OfPod]) -> tuple[list[_Block], int]:
        """Return the blocks for the first pods in `ledger`, and the number of these pods.

        Changed blocks are recreated.
        """
        blocks: list[_Block] = []
        few = _room(len(self.blocks)) // 2
        start = place = 0
        for block in self.blocks:
            end = start + len(block.pods)
            texts: Sequence[_PodText] = block.pods
            is_same = self.pods[start:end] == pods[place : place + len(texts)]
            if not is_same:
                texts = [text for text in [pod.updated(ledger) for pod in block.pods] if text]
                if [text.allocations for text in texts] != pods[place : place + len(texts)]:
                    break  # the ledger has the pods in a different order
            start, place = end, place + len(texts)
            if blocks and len(blocks[-1].pods) + len(texts) <= few:
                texts, is_same = [*blocks.pop().pods, *texts], False
            if texts:
                hashed = blocks[-1].end if blocks else _START
                blocks.append(block.starting_at(hashed) if is_same else _Block.of(texts, hashed))
        return blocks, place

    @property
    def json(self) -> list[bytes]:
        """The text of the entries in the file, in pieces."""
        if not self.blocks:
            return [b"null"]  # a kubelet without pods writes null, not []
        first, *others = self.blocks
        return [b"[", first.json[1:], *[block.json for block in others], b"]"]

    @property
    def hash(self) -> int:
        """The hash of the dump up to the last entry."""
        return self.blocks[-1].end if self.blocks else _WITHOUT_ENTRIES


@define(eq=False)
class _DevicesText:
    """The healthy devices of one resource in the file (`json`) and in the dump."""

    report: DeviceReport
    json: bytes
    dump: bytes

    @classmethod
    def of(cls, name: ResourceName, report: DeviceReport) -> "_DevicesText":
        ids = report.healthy_ids
        return cls(report, json_text(name) + b":" + json_text(ids), utf8(f"{name}:{strings_dump(ids)}"))


@define(eq=False)
class _Resources:
    """The devices of all resources by name, with everything that follows the entries."""

    inventory: Inventory | None = None
    devices: Mapping[ResourceName, _DevicesText] = field(factory=dict)
    json: bytes = b""
    dump: HashedText = field(factory=partial(HashedText, ()))

    def updated(self, inventory: Inventory) -> "_Resources":
        """Return the registered devices. Reports that are also in the last inventory are not rendered again."""
        if inventory is self.inventory:
            return self
        devices = {
            name: self._rendered(name, resource.report)
            for name, resource in sorted(inventory.resources.items())
            if resource.report is not None
        }
        if self.inventory is not None and _are_same_objects(self.devices.values(), devices.values()):
            return _Resources(inventory, devices, self.json, self.dump)
        json = AFTER_ENTRIES + b"{" + b",".join([text.json for text in devices.values()]) + b"}"
        dump = b" ".join([text.dump for text in devices.values()])
        return _Resources(inventory, devices, json, HashedText((b"]" + BEFORE_REGISTERED + b"map[", dump, b"]}")))

    def _rendered(self, name: ResourceName, report: DeviceReport) -> _DevicesText:
        text = self.devices.get(name)
        return text if text is not None and text.report is report else _DevicesText.of(name, report)


@define(eq=False, repr=False)
class CheckpointWriter:
    """Renders the file for one state after another, and remembers the state it wrote last.

    The writer compares objects by identity first, and by value only if they are not identical. A writer belongs to the
    object that saves, and is not thread-safe. `extra` goes into every file.
    """

    extra: ExtraFields = field(factory=ExtraFields)
    _entries: _Entries = field(factory=_Entries, init=False)
    _resources: _Resources = field(factory=_Resources, init=False)

    def file(self, state: NodeState) -> bytes:
        """Return the file of format 2 that a kubelet would write for `state`. Raises UnencodableCheckpointError."""
        entries = self._entries.updated(state.ledger.allocations)
        resources = self._resources.updated(state.inventory)
        self._entries, self._resources = entries, resources
        checksum = resources.dump.hash(entries.hash)
        return self.extra.file([b'{"PodDeviceEntries":', *entries.json, resources.json, b"}"], checksum)

    def __repr__(self) -> str:
        pods, resources = len(self._entries.pods), len(self._resources.devices)
        return f"<CheckpointWriter: last wrote {pods} pods, {resources} resources>"


def _append(blocks: list[_Block], texts: Sequence[_PodText]) -> None:
    """Append to the last block while that block has space, and then to new blocks."""
    if blocks and (room := _room(len(blocks)) - len(blocks[-1].pods)) > 0:
        blocks[-1] = blocks[-1].followed_by(texts[:room])
        texts = texts[room:]
    many = 2 * isqrt(len(texts)) if texts else 0
    while texts:
        room = max(_room(len(blocks) + 1), many)
        blocks.append(_Block.of(texts[:room], blocks[-1].end if blocks else _START))
        texts = texts[room:]


def _room(blocks: int) -> int:
    """Return how many pods fit into each block if there are `blocks` blocks.

    The result grows with the number of blocks, so that neither many blocks nor long ones make a change expensive.
    """
    return max(_FEW_PODS, 4 * (blocks + 1))


def _are_same_objects(first: Iterable[object], second: Iterable[object]) -> bool:
    """Return whether both sequences contain the same objects in the same order."""
    first, second = tuple(first), tuple(second)
    return len(first) == len(second) and all(map(is_, first, second))


def _starts_with(whole: _OfPod, start: _OfPod) -> bool:
    return len(whole) >= len(start) and all(map(is_, start, whole))
