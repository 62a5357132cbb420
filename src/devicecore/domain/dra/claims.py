"""The claims that are to be prepared for this node's pods: which pods use them, and what the drivers answered.

Law: a claim is in the cache from before its first driver is asked until after its last driver has released it. Only
`leave`, `leave_shared` and `remove` remove pods from a claim, and only the pods that they are called for.
"""

from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from enum import Enum
from itertools import chain

from attrs import field, frozen

from devicecore.domain.dra.answer_size import size_in_file
from devicecore.domain.dra.answers import PREPARE, UNPREPARE
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, ClaimRef, ClaimUid, DriverName, PreparedDevice
from devicecore.domain.model import PodUid

Devices = tuple[PreparedDevice, ...]

ALL_CALLS = "*"
"""The value in `skipNodeOperations` that stands for all calls."""

_CALLS = frozenset({PREPARE, UNPREPARE})


class ClaimPhase(Enum):
    """What a manager has learned about a claim since the manager was started.

    The phase is not saved: after a restart, every claim is `ENTERED`.
    """

    ENTERED = "entered"
    """Not every driver has answered."""
    PREPARED = "prepared"
    """Every driver has answered."""
    UNCERTAIN = "uncertain"
    """Every driver has answered, but a driver may have released the claim since then.

    All drivers are called again before the next use.
    """


def skipped_calls(allocation: Iterable[AllocatedDevice]) -> dict[DriverName, frozenset[str]]:
    """Return the calls that none of a driver's devices need, by driver. Drivers that need all calls are left out."""
    found: dict[DriverName, frozenset[str]] = {}
    for result in allocation:
        own = _CALLS if ALL_CALLS in result.skips else result.skips & _CALLS
        found[result.driver] = found.get(result.driver, own) & own
    return {driver: skips for driver, skips in found.items() if skips}


@frozen
class ClaimInfo:
    """A claim as this node knows it (kubelet: `ClaimInfo`).

    `drivers` contains the drivers of the claim's allocation, each with the devices it returned, or None before its
    answer. `answered` contains the drivers that have answered in the current attempts to prepare the claim. `calls`
    counts the calls to prepare the claim since the start, so that a release notices a new call. `skips` contains, for
    each driver, the calls that none of its devices need; `*` means all of them (KEP-5945, since Kubernetes 1.37).
    """

    key: ClaimKey
    uid: ClaimUid
    pods: frozenset[PodUid] = frozenset()
    drivers: Mapping[DriverName, Devices | None] = field(factory=dict)
    phase: ClaimPhase = ClaimPhase.ENTERED
    answered: frozenset[DriverName] = frozenset()
    calls: int = 0
    skips: Mapping[DriverName, frozenset[str]] = field(factory=dict)

    @property
    def ref(self) -> ClaimRef:
        """The claim as the manager names it to drivers."""
        return ClaimRef(self.key, self.uid)

    @property
    def is_prepared(self) -> bool:
        """Whether every driver has answered since the start (kubelet: `prepared`)."""
        return self.phase is not ClaimPhase.ENTERED

    def must_ask(self, driver: DriverName) -> bool:
        """Return whether `driver` has to be called before a pod may use the claim."""
        missing = self.phase is not ClaimPhase.PREPARED and driver in self.drivers and driver not in self.answered
        return missing and not self.skips_call(driver, PREPARE)

    def skips_call(self, driver: DriverName, method: str) -> bool:
        """Return whether no device of `driver` needs this call."""
        return not {method, ALL_CALLS}.isdisjoint(self.skips.get(driver, ()))

    def has_entry_of(self, other: "ClaimInfo | None") -> bool:
        """Return whether this claim and `other` would be written to the file in the same way."""
        return other is not None and self.uid == other.uid and self.pods == other.pods and self.drivers == other.drivers

    def is_left_to(self, pod: PodUid | None) -> bool:
        """Return whether no pod except `pod` uses the claim, or no pod at all if `pod` is None."""
        return not self.pods or self.pods == {pod}


_IN_BLOCK = 256  # claims per block; changing one claim copies its block


class ClaimBlock(dict[ClaimKey, ClaimInfo]):
    """Some claims by key. A block never changes after its table has been created."""

    _pods: frozenset[PodUid] | None = None

    @property
    def pods(self) -> frozenset[PodUid]:
        """The pods that use the claims of this block."""
        if self._pods is None:
            self._pods = frozenset().union(*[claim.pods for claim in self.values()])
        return self._pods


class ClaimTable(Mapping[ClaimKey, ClaimInfo]):
    """Claims by key, in order of arrival, in immutable blocks.

    After a change to one claim, a table shares nearly all blocks with the previous table. A change therefore costs
    nearly the same for any number of claims, and a writer can tell which blocks it has already written.
    """

    __slots__ = ("blocks",)

    def __init__(self, blocks: Iterable[ClaimBlock] = ()) -> None:
        self.blocks: tuple[ClaimBlock, ...] = tuple(blocks)
        """The claims, at most `_IN_BLOCK` in one block. No block is empty."""

    def put(self, changed: Iterable[ClaimInfo]) -> "ClaimTable":
        """Return the table with `changed` added. Added claims replace claims with the same keys."""
        blocks = list(self.blocks)
        own: dict[int, ClaimBlock] = {}  # blocks copied by this call
        for claim in changed:
            place = self._place(claim.key, blocks)
            if place is None:
                if not blocks or len(blocks[-1]) == _IN_BLOCK:
                    blocks.append(ClaimBlock())
                place = len(blocks) - 1
            if place not in own:
                blocks[place] = own[place] = ClaimBlock(blocks[place])
            own[place][claim.key] = claim
        return ClaimTable(blocks)

    def without(self, keys: Iterable[ClaimKey]) -> "ClaimTable":
        """Return the table without the claims with these keys."""
        gone: dict[int, set[ClaimKey]] = {}
        for key in keys:
            if (place := self._place(key, self.blocks)) is not None:
                gone.setdefault(place, set()).add(key)
        blocks: list[ClaimBlock] = []
        for place, block in enumerate(self.blocks):
            if place in gone:
                block = ClaimBlock({key: block[key] for key in block if key not in gone[place]})  # noqa: PLW2901 - a copy
            if blocks and len(blocks[-1]) + len(block) <= _IN_BLOCK // 2:
                blocks[-1] = ClaimBlock({**blocks[-1], **block})  # avoids many blocks of one claim each
            elif block:
                blocks.append(block)
        return ClaimTable(blocks)

    @staticmethod
    def _place(key: ClaimKey, blocks: Sequence[ClaimBlock]) -> int | None:
        for place in reversed(range(len(blocks))):  # newest first, because most changes affect new claims
            if key in blocks[place]:
                return place
        return None

    def __getitem__(self, key: ClaimKey) -> ClaimInfo:
        place = self._place(key, self.blocks)
        if place is None:
            raise KeyError(key)
        return self.blocks[place][key]

    def __iter__(self) -> Iterator[ClaimKey]:
        return chain.from_iterable(self.blocks)

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def __repr__(self) -> str:
        return repr(dict(self.items()))

    def values(self) -> ValuesView[ClaimInfo]:
        """Return the claims in order."""
        return self._joined().values()

    def items(self) -> ItemsView[ClaimKey, ClaimInfo]:
        """Return the keys and claims in order."""
        return self._joined().items()

    def _joined(self) -> dict[ClaimKey, ClaimInfo]:
        joined: dict[ClaimKey, ClaimInfo] = {}
        for block in self.blocks:
            joined.update(block)  # `update` does not hash the keys again
        return joined


@frozen
class ClaimCache:
    """All claims of the node. Each method that changes something returns a new cache.

    Caches with the same `entries` result in the same file: they differ only in unsaved data, such as phases.
    """

    claims: ClaimTable = field(factory=ClaimTable)
    entries: object = field(factory=object, eq=False, repr=False)
    _sizes: Mapping[DriverName, int] = field(eq=False, repr=False)

    @_sizes.default
    def _measured(self) -> Mapping[DriverName, int]:
        sizes: dict[DriverName, int] = {}
        for claim in self.claims.values():
            _resize(sizes, None, claim)
        return sizes

    @classmethod
    def of(cls, claims: Iterable[ClaimInfo]) -> "ClaimCache":
        """Return a cache that contains `claims`. If two claims have the same key, the last one counts."""
        return cls(ClaimTable().put(claims))

    def of_pod(self, pod: PodUid) -> tuple[ClaimKey, ...]:
        """Return the keys of the claims that a pod uses."""
        blocks = [block for block in self.claims.blocks if pod in block.pods]
        return tuple([key for block in blocks for key, claim in block.items() if pod in claim.pods])

    def by_pod(self, pods: Collection[PodUid]) -> dict[PodUid | None, list[ClaimKey]]:
        """Return the keys of the claims that each of `pods` uses, and of the unused claims under None.

        Pods without claims are left out. The manager never leaves a claim without pods, but a file may contain claims
        without pods.
        """
        found: dict[PodUid | None, list[ClaimKey]] = {}
        for key, claim in self.claims.items():
            for pod in claim.pods or (None,):
                if pod is None or pod in pods:
                    found.setdefault(pod, []).append(key)
        return found

    def in_use(self) -> dict[str, int]:
        """Return how many claims are prepared, by driver; `<any>` counts each claim once (kubelet-dra.md 13)."""
        prepared = [claim for claim in self.claims.values() if claim.is_prepared]
        drivers = sorted(driver for claim in prepared for driver in claim.drivers)
        return {"<any>": len(prepared), **{driver: drivers.count(driver) for driver in dict.fromkeys(drivers)}}

    @property
    def pods(self) -> frozenset[PodUid]:
        """The pods that use a claim."""
        return frozenset().union(*(block.pods for block in self.claims.blocks))

    def size_of(self, driver: DriverName) -> int:
        """Return how many bytes of the file a driver's answers take up (see `answer_size`)."""
        return self._sizes.get(driver, 0)

    def put(self, *changed: ClaimInfo) -> "ClaimCache":
        """Return the cache with `changed` added. Added claims replace claims with the same keys.

        If two claims have the same key, the last one counts.
        """
        if not changed:
            return self
        last = {claim.key: claim for claim in changed}.values()
        claims = self.claims.put(last)
        if all(claim.has_entry_of(self.claims.get(claim.key)) for claim in last):
            return ClaimCache(claims, self.entries, self._sizes)
        sizes = dict(self._sizes)
        for claim in last:
            _resize(sizes, self.claims.get(claim.key), claim)
        return ClaimCache(claims, sizes=sizes)

    def without(self, keys: Collection[ClaimKey]) -> "ClaimCache":
        """Return the cache without these claims."""
        if not keys:
            return self
        sizes = dict(self._sizes)
        for claim in self.present(dict.fromkeys(keys)):
            _resize(sizes, claim, None)
        return ClaimCache(self.claims.without(keys), sizes=sizes)

    def present(self, keys: Iterable[ClaimKey]) -> tuple[ClaimInfo, ...]:
        """Return the claims with these keys; keys without a claim are left out."""
        return tuple(self.claims[key] for key in keys if key in self.claims)


def _resize(sizes: dict[DriverName, int], before: ClaimInfo | None, after: ClaimInfo | None) -> None:
    """Update the size of each driver's answers after a claim has changed. Unchanged objects are not measured."""
    old, new = (claim.drivers if claim else {} for claim in (before, after))
    if old is new:
        return
    for driver in (*new, *(old.keys() - new.keys())):
        if (was := old.get(driver)) is not (devices := new.get(driver)):
            sizes[driver] = sizes.get(driver, 0) - size_in_file(was) + size_in_file(devices)
            if not sizes[driver]:
                del sizes[driver]
