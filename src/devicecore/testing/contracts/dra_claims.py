"""The contract of `ClaimSource`.

Law: a claim is returned as last written, or an error says why it cannot be read.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from attrs import evolve

from devicecore.domain.dra.errors import ClaimSourceError
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, ClaimUid, DriverName, ResourceClaim
from devicecore.ports.claims import ClaimSource
from devicecore.testing.contracts.expect import Suite, expect, expect_error

__all__ = ["CLAIM_SOURCE", "ClaimSourceHarness", "MakeClaimSource"]

ALLOCATED_CLAIM = ResourceClaim(
    ClaimKey("default", "claim"),
    ClaimUid("uid-1"),
    "uid-of-pod",
    (
        AllocatedDevice(DriverName("gpu.example.com"), "pool", "gpu-0", "r/sub"),
        AllocatedDevice(DriverName("nic.example.com"), "pool", "nic-0", "s", "5e9f3a52-0000-4000-8000-000000000000"),
    ),
    frozenset({"uid-of-pod", "uid-of-other"}),
)


class ClaimSourceHarness(Protocol):
    """A claim source, and a way to write the claims that it reads."""

    @property
    def source(self) -> ClaimSource:
        """The source."""

    def put(self, claim: ResourceClaim) -> None:
        """Create a claim, or replace the claim with the same key."""

    def delete(self, key: ClaimKey) -> None:
        """Delete a claim."""


MakeClaimSource = Callable[[], AbstractContextManager[ClaimSourceHarness]]
"""Creates a source without claims."""

CLAIM_SOURCE: Suite[MakeClaimSource] = Suite()
"""The checks for every claim source."""


@CLAIM_SOURCE.check
def reads_every_field(make: MakeClaimSource) -> None:
    """UID, owner, allocation and reservations are returned as they were written."""
    with make() as harness:
        harness.put(ALLOCATED_CLAIM)
        expect("the claim", harness.source.get(ALLOCATED_CLAIM.key), ALLOCATED_CLAIM)


@CLAIM_SOURCE.check
def tells_no_allocation_from_an_empty_one(make: MakeClaimSource) -> None:
    """A claim without an allocation and a claim whose allocation has no results are told apart."""
    with make() as harness:
        for allocation in (None, ()):
            harness.put(evolve(ALLOCATED_CLAIM, owner="", allocation=allocation, reserved_for=frozenset()))
            expect("the allocation", harness.source.get(ALLOCATED_CLAIM.key).allocation, allocation)


@CLAIM_SOURCE.check
def reads_what_was_written_last(make: MakeClaimSource) -> None:
    """If a claim was deleted and recreated, the new claim is returned."""
    with make() as harness:
        harness.put(ALLOCATED_CLAIM)
        harness.source.get(ALLOCATED_CLAIM.key)
        harness.delete(ALLOCATED_CLAIM.key)
        harness.put(evolve(ALLOCATED_CLAIM, uid=ClaimUid("uid-2")))
        expect("the UID", harness.source.get(ALLOCATED_CLAIM.key).uid, ClaimUid("uid-2"))


@CLAIM_SOURCE.check
def says_that_a_claim_does_not_exist(make: MakeClaimSource) -> None:
    """The error for a missing claim has the specified cause, even if another namespace has a claim with this name."""
    with make() as harness:
        harness.put(ALLOCATED_CLAIM)
        for key in (ClaimKey("default", "other"), ClaimKey("other", "claim")):
            failed = expect_error(f"get {key}", ClaimSourceError, lambda: harness.source.get(key))  # noqa: B023 - called at once
            expect("the cause", failed.cause, f'resourceclaims.resource.k8s.io "{key.name}" not found')
