"""The faults of Kubernetes' allocator, and the releases that have them.

Law: an answer for a release never names a fault that the release does not have. docs/claims.md shows the smallest case
of each fault.
"""

import re
from collections.abc import Iterable
from enum import Enum


class KubernetesFault(Enum):
    """A fault of Kubernetes' allocator. The value is what docs/claims.md calls the cause."""

    REJECT = "k/k#140436:reject"
    CAPACITY_REJECT = "k/k#140436:capacity-reject"
    UNDO_SHARED = "k/k#140436:undo-shared"
    POOL_NAMES = "k/k#140435"
    DISTINCT = "k/k#140438"
    SHARE_IDS = "k/k#140433"
    ADMIN_COUNTERS = "k/k#140729"
    ADMIN_BLOCKS = "admin-blocks-normal"
    ADMIN_CONSUMES = "admin-consumes-capacity"
    ALL_ERROR = "all-constraint-error"
    ALL_SKIPS = "all-skips-full-shared"
    ALL_SKIPS_POLICY = "all-skips-disallowed-amount"
    SHARES_IGNORED = "k/k#140798"
    CAPACITY_NAMES = "k/k#140650"
    FOREIGN_COUNTERS = "counters-of-other-nodes"
    OVER_COMMITTED = "over-committed-counter"

    @property
    def sentence(self) -> str:
        """What a scheduler with this fault does."""
        return _SENTENCES[self]


_SENTENCES = {
    KubernetesFault.REJECT: "a device that it rejects keeps its counters",
    KubernetesFault.CAPACITY_REJECT: "a device that it rejects for its capacity keeps its counters",
    KubernetesFault.UNDO_SHARED: "a shared device that it gives back keeps its counters",
    KubernetesFault.POOL_NAMES: "it confuses the counters of pools with the same name",
    KubernetesFault.DISTINCT: "it compares distinct attributes with only one device of each request",
    KubernetesFault.SHARE_IDS: "it counts the counters of a shared device twice",
    KubernetesFault.ADMIN_COUNTERS: "it requires free counters for admin access",
    KubernetesFault.ADMIN_BLOCKS: "admin access keeps the device from the other claims of the pod",
    KubernetesFault.ADMIN_CONSUMES: "admin access consumes capacity",
    KubernetesFault.ALL_ERROR: "it stops at a constraint that all devices violate, and tries no alternative",
    KubernetesFault.ALL_SKIPS: "for a request for all devices, it leaves out devices with too little capacity",
    KubernetesFault.ALL_SKIPS_POLICY: "for a request for all devices, it leaves out devices whose policy does "
    "not allow the amount",
    KubernetesFault.SHARES_IGNORED: "it allocates a device that has become unshareable while others have shares of it",
    KubernetesFault.CAPACITY_NAMES: "it does not find a capacity by its name with the driver's domain",
    KubernetesFault.FOREIGN_COUNTERS: "it also checks the counters of other nodes' pools, "
    "and one of those pools is unusable",
    KubernetesFault.OVER_COMMITTED: "an overcommitted counter blocks its whole pool",
}

ALL_FAULTS = frozenset(KubernetesFault)

Cause = tuple[KubernetesFault, ...]
"""The one or two faults that together explain an answer, or none if an explanation would need more than two."""


def names_of(causes: Iterable[Cause]) -> tuple[str, ...]:
    """Return the names that docs/claims.md uses for the causes."""
    return tuple(" + ".join(fault.value for fault in cause) or "several faults together" for cause in causes)


_ROLLBACK = frozenset({KubernetesFault.REJECT, KubernetesFault.CAPACITY_REJECT, KubernetesFault.UNDO_SHARED})
_MENDED_IN_1_37 = _ROLLBACK | {
    KubernetesFault.POOL_NAMES,
    KubernetesFault.DISTINCT,
    KubernetesFault.SHARE_IDS,
    KubernetesFault.ALL_SKIPS,
    KubernetesFault.FOREIGN_COUNTERS,
}
_MENDED_IN_1_38 = _MENDED_IN_1_37 | {KubernetesFault.SHARES_IGNORED, KubernetesFault.CAPACITY_NAMES}
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


class Release(Enum):
    """A release of Kubernetes whose allocator differs from the previous release's.

    The value is the release's usual name.
    """

    V1_36_2 = "1.36.2"
    V1_36_3 = "1.36.3"
    V1_37 = "1.37"
    V1_38 = "1.38"

    @property
    def is_before_1_37(self) -> bool:
        """Whether the release is older than 1.37."""
        return self in (Release.V1_36_2, Release.V1_36_3)

    @property
    def faults(self) -> frozenset[KubernetesFault]:
        """The faults of the release's allocator with the default feature gates."""
        mended = {
            Release.V1_36_2: frozenset[KubernetesFault](),
            Release.V1_36_3: _ROLLBACK,
            Release.V1_37: _MENDED_IN_1_37,
            Release.V1_38: _MENDED_IN_1_38,
        }
        return ALL_FAULTS - mended[self]

    @classmethod
    def of(cls, version: str) -> "Release | None":
        """Return the release whose allocator a version such as `v1.36.1` has, or None if `version` is not a version.

        Versions before 1.36 count as 1.36.2, and those after 1.38, which are unknown, as 1.38. For 1.38, only the
        sources of the first beta are known.
        """
        match = _VERSION.match(version)
        if match is None:
            return None
        major, minor, patch = (int(part or 0) for part in match.groups())
        if (major, minor) >= (1, 37):
            return cls.V1_37 if (major, minor) == (1, 37) else cls.V1_38
        return cls.V1_36_3 if (major, minor, patch) >= (1, 36, 3) else cls.V1_36_2
