"""The DRA driver of a virtual node."""

from devicecore_fleet.fleet.description import DriverDescription
from devicecore_fleet.fleet.driver import RememberedClaims, VirtualDriver

from devicecore.adapters.memory_dra import MemoryClaims
from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, ClaimUid, DriverName, ResourceClaim


def test_a_device_of_another_pool_is_refused_with_the_name_of_the_pool() -> None:
    name, claims = DriverName("gpu.example.com"), MemoryClaims()
    rows = (AllocatedDevice(name, "node-1", "dev-0", "r"),)
    claim = ResourceClaim(ClaimKey("default", "claim"), ClaimUid("u"), "", rows)
    claims.put(claim)
    driver = VirtualDriver(DriverDescription(name, ()), "worker-1", RememberedClaims(claims), ClaimCache)
    answer = driver.prepare([claim.ref])[claim.uid]
    assert answer.error == "gpu.example.com has no device node-1/dev-0; its pool is worker-1"
