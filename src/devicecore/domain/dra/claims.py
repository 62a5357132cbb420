"""The claims that pods of this node have asked to prepare: which pods use them, and what drivers answered.

Law: a claim is in the cache from before its first driver is asked until after its last driver has released it. Only
`leave` and `remove` take a pod out of a claim: the pod that they are called for.
"""

from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from enum import Enum

from attrs import field, frozen

from devicecore.domain.dra.answer_size import size_in_file
from devicecore.domain.dra.answers import PREPARE, UNPREPARE
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, ClaimRef, ClaimUid, DriverName, PreparedDevice
from devicecore.domain.model import PodUid

Devices = tuple[PreparedDevice, ...]

ALL_CALLS = "*"
"""What stands for all calls in `skipNodeOperations`."""

_CALLS = frozenset({PREPARE, UNPREPARE})


class ClaimPhase(Enum):
    """What a manager knows of a claim since its start. It is not saved: after a restart every claim is `ENTERED`."""

    ENTERED = "entered"
    """Not every driver has answered."""
    PREPARED = "prepared"
    """Every driver has answered."""
    UNCERTAIN = "uncertain"
    """Every driver has answered, but one may have released the claim since. All are asked again before the next use."""


def skipped_calls(allocation: Iterable[AllocatedDevice]) -> dict[DriverName, frozenset[str]]:
    """Return the calls that no device of a driver needs, by driver. Drivers that need all calls are left out."""
    found: dict[DriverName, frozenset[str]] = {}
    for result in allocation:
        own = _CALLS if ALL_CALLS in result.skips else result.skips & _CALLS
        found[result.driver] = found.get(result.driver, own) & own
    return {driver: skips for driver, skips in found.items() if skips}


@frozen
class ClaimInfo:
    """A claim as this node knows it (kubelet: `ClaimInfo`).

    `drivers` has the drivers of the claim's allocation, each with the devices that it answered; None before its answer.
    `answered` are the drivers that have answered in the attempts to prepare the claim that are under way. `calls`
    counts the calls to prepare it since the start, so that a release notices if there was another one. `skips` has for
    a driver the calls that none of its devices needs; `*` stands for all of them (KEP-5945, since Kubernetes 1.37).
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
        """Return whether `driver` has to be asked before a pod may use the claim."""
        missing = self.phase is not ClaimPhase.PREPARED and driver in self.drivers and driver not in self.answered
        return missing and not self.skips_call(driver, PREPARE)

    def skips_call(self, driver: DriverName, method: str) -> bool:
        """Return whether no device of `driver` needs this call."""
        return not {method, ALL_CALLS}.isdisjoint(self.skips.get(driver, ()))

    def has_entry_of(self, other: "ClaimInfo | None") -> bool:
        """Return whether the file has the same for both."""
        return other is not None and self.uid == other.uid and self.pods == other.pods and self.drivers == other.drivers

    def is_left_to(self, pod: PodUid | None) -> bool:
        """Return whether no pod except `pod` uses the claim; if `pod` is None, whether no pod uses it."""
        return not self.pods or self.pods == {pod}


@frozen
class ClaimCache:
    """All claims of the node. Each method that changes something returns a new cache.

    Caches with the same `entries` have the same file: they differ only in what is not saved, such as phases.
    """

    claims: Mapping[ClaimKey, ClaimInfo] = field(factory=dict)
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
        """Return a cache of these claims. Of two claims with one key, the last counts."""
        return cls({claim.key: claim for claim in claims})

    def of_pod(self, pod: PodUid) -> tuple[ClaimKey, ...]:
        """Return the claims that a pod uses."""
        return tuple([key for key, claim in self.claims.items() if pod in claim.pods])

    def by_pod(self, pods: Collection[PodUid]) -> dict[PodUid | None, list[ClaimKey]]:
        """The claims that each of `pods` uses, and under None those that no pod uses; what would be empty is left out.

        The manager leaves no claim without a pod behind, but a file may have some.
        """
        found: dict[PodUid | None, list[ClaimKey]] = {}
        for key, claim in self.claims.items():
            for pod in claim.pods or (None,):
                if pod is None or pod in pods:
                    found.setdefault(pod, []).append(key)
        return found

    def in_use(self) -> dict[str, int]:
        """Return how many claims are prepared, by driver; `<any>` counts each of them once (kubelet-dra.md 13)."""
        prepared = [claim for claim in self.claims.values() if claim.is_prepared]
        drivers = sorted(driver for claim in prepared for driver in claim.drivers)
        return {"<any>": len(prepared), **{driver: drivers.count(driver) for driver in dict.fromkeys(drivers)}}

    @property
    def pods(self) -> frozenset[PodUid]:
        """The pods that use a claim."""
        return frozenset().union(*(claim.pods for claim in self.claims.values()))

    def size_of(self, driver: DriverName) -> int:
        """Return the bytes of the file that the answers of a driver take up (see `answer_size`)."""
        return self._sizes.get(driver, 0)

    def put(self, *changed: ClaimInfo) -> "ClaimCache":
        """Return the cache with these claims added, or replacing the claims with their keys."""
        if not changed:
            return self
        claims = _ChangedClaims(self.claims, {claim.key: claim for claim in changed})
        if all(claim.has_entry_of(self.claims.get(claim.key)) for claim in changed):
            return ClaimCache(claims, self.entries, self._sizes)
        sizes = dict(self._sizes)
        for claim in changed:
            _resize(sizes, self.claims.get(claim.key), claim)
        return ClaimCache(claims, sizes=sizes)

    def without(self, keys: Collection[ClaimKey]) -> "ClaimCache":
        """Return the cache without these claims."""
        if not keys:
            return self
        claims, sizes = joined(self.claims).copy(), dict(self._sizes)
        for key in keys:
            _resize(sizes, claims.pop(key, None), None)
        return ClaimCache(claims, sizes=sizes)

    def present(self, keys: Iterable[ClaimKey]) -> tuple[ClaimInfo, ...]:
        """Return the claims with these keys; keys without a claim are left out."""
        return tuple(self.claims[key] for key in keys if key in self.claims)


def _resize(sizes: dict[DriverName, int], before: ClaimInfo | None, after: ClaimInfo | None) -> None:
    """Change the sizes of drivers by what a claim has more or less than before. Equal objects are not measured."""
    old, new = (claim.drivers if claim else {} for claim in (before, after))
    if old is new:
        return
    for driver in (*new, *(old.keys() - new.keys())):
        if (was := old.get(driver)) is not (devices := new.get(driver)):
            sizes[driver] = sizes.get(driver, 0) - size_in_file(was) + size_in_file(devices)
            if not sizes[driver]:
                del sizes[driver]


def joined(claims: Mapping[ClaimKey, ClaimInfo]) -> dict[ClaimKey, ClaimInfo]:
    """Return claims as one dict, which nobody may change."""
    if isinstance(claims, _ChangedClaims):
        return claims.joined()
    return claims if isinstance(claims, dict) else dict(claims)


class _ChangedClaims(Mapping[ClaimKey, ClaimInfo]):
    """Claims of which a few were added or replaced. They are joined with the others when a reader needs all of them.

    A preparation changes its claims four times, and reads all claims only for its two saves.
    """

    __slots__ = ("changed", "others")

    def __init__(self, before: Mapping[ClaimKey, ClaimInfo], changed: Mapping[ClaimKey, ClaimInfo]) -> None:
        self.changed, self.others = changed, before
        if isinstance(before, _ChangedClaims):
            self.changed = {**before.changed, **changed}  # before `_others`, because another thread may join them now
            self.others = before.others

    def joined(self) -> dict[ClaimKey, ClaimInfo]:
        if self.changed:
            claims = joined(self.others).copy()  # `dict()` takes seven times as long if entries were removed
            claims.update(self.changed)
            self.others, self.changed = claims, {}  # in this order, so that another thread finds every claim
        return joined(self.others)

    def __getitem__(self, key: ClaimKey) -> ClaimInfo:
        found = self.changed.get(key)
        return self.others[key] if found is None else found

    def __iter__(self) -> Iterator[ClaimKey]:
        return iter(self.joined())

    def __len__(self) -> int:
        return len(self.joined())

    def __repr__(self) -> str:
        return repr(self.joined())

    def values(self) -> ValuesView[ClaimInfo]:
        return self.joined().values()

    def items(self) -> ItemsView[ClaimKey, ClaimInfo]:
        return self.joined().items()
