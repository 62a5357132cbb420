"""Every claim source keeps the contract, and broken ones are caught."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from attrs import evolve, field, frozen

from devicecore.adapters.memory_dra import MemoryClaims
from devicecore.domain.dra.model import ClaimKey, ResourceClaim
from devicecore.testing.contracts import dra_claims as contract
from devicecore.testing.contracts.dra_claims import CLAIM_SOURCE, ClaimSourceHarness, MakeClaimSource

Check = Callable[[MakeClaimSource], None]


@frozen
class InMemory:
    """Claims are a dictionary."""

    source: MemoryClaims = field(factory=MemoryClaims)

    def put(self, claim: ResourceClaim) -> None:
        self.source.put(claim)

    def delete(self, key: ClaimKey) -> None:
        del self.source.claims[key]


@contextmanager
def in_memory() -> Iterator[ClaimSourceHarness]:
    yield InMemory()


@pytest.mark.parametrize("make", [in_memory])
@pytest.mark.parametrize("check", CLAIM_SOURCE)
def test_every_claim_source_keeps_the_contract(check: Check, make: MakeClaimSource) -> None:
    check(make)


class ForgetsShares(MemoryClaims):
    def get(self, key: ClaimKey) -> ResourceClaim:
        claim = super().get(key)
        return evolve(claim, allocation=tuple(evolve(row, share_id=None) for row in claim.allocation or ()))


class TakesEmptyForNone(MemoryClaims):
    def get(self, key: ClaimKey) -> ResourceClaim:
        claim = super().get(key)
        return evolve(claim, allocation=claim.allocation or None)


class ReadsOnce(MemoryClaims):
    def put(self, *claims: ResourceClaim) -> None:
        for claim in claims:
            self.first = getattr(self, "first", claim)
            super().put(self.first)


class KnowsNoNamespaces(MemoryClaims):
    def get(self, key: ClaimKey) -> ResourceClaim:
        return super().get(ClaimKey("default", key.name))


BROKEN: dict[Check, type[MemoryClaims]] = {
    contract.reads_every_field: ForgetsShares,
    contract.tells_no_allocation_from_an_empty_one: TakesEmptyForNone,
    contract.reads_what_was_written_last: ReadsOnce,
    contract.says_that_a_claim_does_not_exist: KnowsNoNamespaces,
}


@pytest.mark.parametrize("check", CLAIM_SOURCE)
def test_each_check_catches_a_source_that_breaks_its_sentence(check: Check) -> None:
    """A check that never fails checks nothing."""

    @contextmanager
    def broken() -> Iterator[ClaimSourceHarness]:
        yield InMemory(BROKEN[check]())

    with pytest.raises(AssertionError):
        check(broken)
