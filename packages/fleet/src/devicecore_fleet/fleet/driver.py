"""The DRA driver of a virtual node.

Law: a claim gets the devices of its allocation, or an error, for example because another claim on the node holds one of
these devices.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from attrs import frozen

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.health import DraHealth, ReportedHealth
from devicecore.domain.dra.model import (
    AllocatedDevice,
    ClaimKey,
    ClaimRef,
    ClaimUid,
    DriverName,
    PreparedDevice,
    ResourceClaim,
)
from devicecore.domain.text import foreign_text
from devicecore.ports.claims import ClaimSource
from devicecore.ports.dra_driver import DraDriver
from devicecore_fleet.fleet.description import DriverDescription

_MAX_REMEMBERED = 128  # the maximum number of cached claims of a node


class RememberedClaims(ClaimSource):
    """Reads claims, and caches each claim until it is unprepared, so that a preparation reads a claim only once.

    Args:
        source: the source of claims.
    """

    def __init__(self, source: ClaimSource) -> None:
        self._source = source
        self._lock = Lock()
        self._read: dict[ClaimUid, ResourceClaim] = {}

    def get(self, key: ClaimKey) -> ResourceClaim:
        """Read the claim from the source, and cache it.

        Raises ClaimSourceError if the claim does not exist or cannot be read.
        """
        claim = self._source.get(key)
        with self._lock:
            self._read[claim.uid] = claim
            while len(self._read) > _MAX_REMEMBERED:  # the oldest claim is dropped, and read again if a driver needs it
                del self._read[next(iter(self._read))]
        return claim

    def of(self, ref: ClaimRef) -> ResourceClaim:
        """Return the claim from the cache, or read it if it is not cached.

        Raises ClaimSourceError if the claim does not exist or cannot be read.
        """
        with self._lock:
            claim = self._read.get(ref.uid)
        return claim or self.get(ref.key)

    def forget(self, ref: ClaimRef) -> None:
        """Drop the claim from the cache."""
        with self._lock:
            self._read.pop(ref.uid, None)


@frozen
class VirtualDriver(DraDriver):
    """A `DraDriver` whose devices do not exist.

    Args:
        description: the driver's name and devices.
        pool: the name of the devices' pool, which is the node's name.
        claims: the source of claims.
        prepared: returns the claims that the node knows.
    """

    description: DriverDescription
    pool: str
    claims: RememberedClaims
    prepared: Callable[[], ClaimCache]

    @property
    def name(self) -> DriverName:  # type: ignore[override]  # the protocol's attribute is never set here
        """The driver's name."""
        return self.description.name

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Return the devices of each claim's allocation."""
        return {ref.uid: self._prepare(ref) for ref in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Release the claims. There is nothing to undo, because nothing about claims is stored."""
        for ref in claims:
            self.claims.forget(ref)
        return {ref.uid: UnprepareResult() for ref in claims}

    def health(self, unhealthy: frozenset[str]) -> list[ReportedHealth]:
        """Return a health report on all devices, in which the devices in `unhealthy` are unhealthy."""
        return [
            ReportedHealth(self.pool, name, DraHealth.UNHEALTHY if name in unhealthy else DraHealth.HEALTHY)
            for name in self.description.names
        ]

    def _prepare(self, ref: ClaimRef) -> PrepareResult:
        claim = self.claims.of(ref)
        if claim.uid != ref.uid:
            return PrepareResult(error=f"expected UID {ref.uid}, got {foreign_text(claim.uid)}")
        if claim.allocation is None:
            return PrepareResult(error="the claim is not allocated")
        own = [one for one in claim.allocation if one.driver == self.name]
        for device in own:
            if problem := self._problem(ref, device):
                return PrepareResult(error=problem)
        return PrepareResult(tuple(self._prepared(ref, device) for device in own))

    def _problem(self, ref: ClaimRef, device: AllocatedDevice) -> str:
        place = foreign_text(f"{device.pool}/{device.device}")
        if device.pool != self.pool or device.device not in self.description.names:
            return f"{self.name} has no device {place}" + (
                "" if device.pool == self.pool else f"; its pool is {self.pool}"
            )
        if device.admin_access:
            return ""
        for other in self.prepared().claims.values():
            for held in other.drivers.get(self.name) or ():
                is_same = other.uid != ref.uid and (held.pool, held.name) == (device.pool, device.device)
                if is_same and (device.share_id is None or held.share_id in (None, device.share_id)):
                    return f"device {place} is prepared for ResourceClaim {other.key} ({other.uid})"
        return ""

    def _prepared(self, ref: ClaimRef, device: AllocatedDevice) -> PreparedDevice:
        share = f":{device.share_id}" if device.share_id else ""
        cdi_name = f"{self.name}/device={ref.uid}-{device.device}{share}"
        request = device.request.partition("/")[0]
        return PreparedDevice(device.pool, device.device, device.share_id, (request,), (cdi_name,))
