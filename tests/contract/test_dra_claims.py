"""Every claim source meets the contract, and broken ones are caught."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attrs import evolve, field, frozen
from devicecore_tools.testing.api_server import ApiError, LocalApiServer

from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.dra import KubeApiClaims
from devicecore.adapters.memory_dra import MemoryClaims
from devicecore.domain.dra.model import ClaimKey, ClaimUid, ResourceClaim
from devicecore.testing.contracts import dra_claims as contract
from devicecore.testing.contracts.dra_claims import CLAIM_SOURCE, ClaimSourceHarness, MakeClaimSource

Check = Callable[[MakeClaimSource], None]


@frozen
class InMemory:
    """Keeps claims in a dictionary."""

    source: MemoryClaims = field(factory=MemoryClaims)

    def put(self, claim: ResourceClaim) -> None:
        self.source.put(claim)

    def delete(self, key: ClaimKey) -> None:
        del self.source.claims[key]


def in_memory() -> AbstractContextManager[ClaimSourceHarness]:
    return nullcontext(InMemory())


@frozen
class OnApiServer:
    """Stores claims on an API server, which creates its own UIDs; `get` replaces these with the UIDs given to `put`."""

    server: LocalApiServer
    claims: KubeApiClaims
    uids: dict[str, ClaimUid] = field(factory=dict)

    @property
    def source(self) -> "OnApiServer":
        return self

    def get(self, key: ClaimKey) -> ResourceClaim:
        claim = self.claims.get(key)
        return evolve(claim, uid=self.uids[claim.uid])

    def put(self, claim: ResourceClaim) -> None:
        with suppress(ApiError):
            self.delete(claim.key)
        created = self.server.create(manifest_of(claim))
        self.uids[created["metadata"]["uid"]] = claim.uid

    def delete(self, key: ClaimKey) -> None:
        self.server.delete("ResourceClaim", key.name, key.namespace)


def manifest_of(claim: ResourceClaim) -> dict[str, Any]:
    """Return a claim's manifest as the scheduler and the controllers would leave it."""
    exactly = {"deviceClassName": "gpu.example.com"}
    requests = [{"name": "r", "firstAvailable": [{"name": "sub", **exactly}]}, {"name": "s", "exactly": exactly}]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": claim.owner, "controller": True}
    consumers = [{"resource": "pods", "name": f"pod-{uid}", "uid": uid} for uid in sorted(claim.reserved_for)]
    status: dict[str, Any] = {"reservedFor": consumers} if consumers else {}
    if claim.allocation is not None:
        rows = [
            {"request": row.request, "driver": row.driver, "pool": row.pool, "device": row.device}
            | ({"shareID": row.share_id} if row.share_id else {})
            for row in claim.allocation
        ]
        status["allocation"] = {"devices": {"results": rows}}
    return {
        "kind": "ResourceClaim",
        "metadata": {
            "name": claim.key.name,
            "namespace": claim.key.namespace,
            "ownerReferences": [owner] if claim.owner else [],
        },
        "spec": {"devices": {"requests": requests}},
        "status": status,
    }


@contextmanager
def on_api_server() -> Iterator[ClaimSourceHarness]:
    with (
        TemporaryDirectory() as directory,
        LocalApiServer() as server,
        KubeApiClaims(Access(server.kubeconfig(Path(directory) / "config"))) as claims,
    ):
        yield OnApiServer(server, claims)


@pytest.mark.parametrize("make", [in_memory, on_api_server])
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
    """A check that cannot fail tests nothing."""
    with pytest.raises(AssertionError):
        check(lambda: nullcontext(InMemory(BROKEN[check]())))
