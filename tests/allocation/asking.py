"""The devices that one claim gets on node n1 from a few slices, given as API objects."""

from collections.abc import Iterable, Sequence
from typing import Any

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceClass,
    Held,
    NoAllocation,
    Release,
    TargetNode,
    allocate,
    claim_of,
    slice_of,
)

Json = Any


def what_a_claim_gets(
    slices: Iterable[Json], requests: Sequence[Json], held: Iterable[Held], release: Release = Release.V1_37
) -> DeviceAllocation | NoAllocation:
    """Allocate a claim with these requests, which can use the class `any`."""
    claim = claim_of({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})
    return allocate([claim], TargetNode("n1"), map(slice_of, slices), held, [DeviceClass("any")], release=release)
