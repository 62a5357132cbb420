"""The health that drivers report for their devices (kubelet-dra.md 10).

Law: a health report counts for the duration of its `limit` on the manager's clock. After that, the device's health is
unknown. Only a report or the end of a stream changes what is stored.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import chain
from math import inf

from attrs import Attribute, field, frozen

from devicecore.domain.checks import checked
from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.devices import claim_devices
from devicecore.domain.dra.lookup import claim_key
from devicecore.domain.dra.model import ClaimKey, DriverName
from devicecore.domain.model import Container, ContainerClaim, Pod, PodUid

SECOND = 1_000_000_000
"""One second, in nanoseconds."""

DEFAULT_LIMIT = 30 * SECOND
"""The number of nanoseconds for which a report counts if the driver sets no limit."""

MAX_LIMIT = 2**63 - 1
"""The longest limit in nanoseconds, because the file stores limits as 64-bit numbers."""

MAX_MESSAGE = 1024
"""The maximum size of a driver's message in bytes. A longer message is truncated to 1021 bytes and `...`."""

MAX_SIZE_OF_DRIVER = 6_000_000
"""The maximum number of characters of names and messages kept for one driver.

Each device counts as 100 more characters. One report always stays below this limit.
"""

MAX_SIZE = 12_000_000
"""The maximum number of characters of names and messages kept for all drivers together."""

_ELLIPSIS = "..."
_SIZE_OF_DEVICE = 100


class DraHealth(Enum):
    """The health of a device that a driver serves."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


def _is_health(_: object, field: "Attribute[DraHealth]", value: DraHealth) -> None:
    checked(value, DraHealth, f"ReportedHealth.{field.name}")


@frozen
class ReportedHealth:
    """A device in a driver's report. `limit` is in seconds; 0 or less means the default."""

    pool: str
    device: str
    health: DraHealth = field(validator=_is_health)
    limit: int = 0
    message: str = ""


@frozen
class DeviceHealth:
    """The stored health of a device. `updated` is in nanoseconds since 1970, `limit` in nanoseconds."""

    pool: str
    device: str
    health: DraHealth = DraHealth.UNKNOWN
    updated: int = 0
    limit: int = DEFAULT_LIMIT
    message: str = ""

    @property
    def key(self) -> str:
        """The key of the device among the driver's devices."""
        return f"{self.pool}/{self.device}"

    def is_expired(self, now: int) -> bool:
        """Return whether the report no longer counts at `now` (nanoseconds since 1970)."""
        return now - self.updated > self.limit

    def differs_from(self, other: "DeviceHealth | None") -> bool:
        """Return whether this health differs from `other` in anything except the time."""
        if other is None:
            return True
        return (self.health, self.limit, self.message) != (other.health, other.limit, other.message)


@frozen
class HealthCache:
    """The health of all devices, by driver, and then by pool and device."""

    drivers: Mapping[DriverName, Mapping[str, DeviceHealth]] = {}
    # may lack drivers that have not reported
    _sizes: Mapping[DriverName, int] = field(factory=dict, eq=False, repr=False)

    def health(self, driver: DriverName, pool: str, device: str, now: int) -> tuple[DraHealth, str]:
        """Return the health and the message of a device (kubelet: `getHealth`)."""
        known = self.drivers.get(driver, {}).get(f"{pool}/{device}")
        if known is None or known.is_expired(now):
            return DraHealth.UNKNOWN, ""
        return known.health, known.message

    def unchanged_until(self, now: int) -> float:
        """Return when the first of the reports that count at `now` expires (nanoseconds since 1970), or infinity."""
        reports = chain.from_iterable(devices.values() for devices in self.drivers.values())
        return min((item.updated + item.limit for item in reports if not item.is_expired(now)), default=inf)

    def report(self, driver: DriverName, reported: Iterable[ReportedHealth], now: int) -> "HealthUpdate":
        """Store a driver's report. A device that the report omits keeps its health until its last report has expired.

        If the driver's devices together would take up too much space, the devices that the report omits are forgotten
        first, and their health becomes unknown.
        """
        before = self.drivers.get(driver, {})
        new = {item.key: item for item in (_stored(report, now) for report in reported)}
        expired = {
            key: DeviceHealth(item.pool, item.device, DraHealth.UNKNOWN, now, item.limit)
            for key, item in before.items()
            if key not in new and item.is_expired(now)
        }
        changed = [*(item for key, item in new.items() if item.differs_from(before.get(key))), *expired.values()]
        devices: Mapping[str, DeviceHealth] = {**before, **new, **expired}
        others = sum(size for name, size in self._all_sizes().items() if name != driver)
        room = min(MAX_SIZE_OF_DRIVER, MAX_SIZE - others)
        forgotten = 0
        if (size := _size(devices.values())) > room:
            kept, size = _fitting({**new, **devices}, room)
            forgotten, devices = len(devices) - len(kept), kept
        after = HealthCache({**self.drivers, driver: devices}, {**self._all_sizes(), driver: size})
        return HealthUpdate(after, frozenset((driver, item.pool, item.device) for item in changed), forgotten)

    def cleared(self, driver: DriverName) -> "HealthCache":
        """Return the cache without the devices of a driver, because its stream has ended."""
        left = {name: devices for name, devices in self.drivers.items() if name != driver}
        return HealthCache(left, {name: size for name, size in self._sizes.items() if name != driver})

    def _all_sizes(self) -> Mapping[DriverName, int]:
        if self._sizes.keys() == self.drivers.keys():
            return self._sizes
        return {name: _size(devices.values()) for name, devices in self.drivers.items()}


@frozen
class HealthUpdate:
    """The cache after a report, and the devices (driver, pool, device) whose health the report changed.

    `forgotten` is how many of the driver's devices were dropped because all of them together would have taken too much
    space.
    """

    cache: HealthCache
    changed: frozenset[tuple[DriverName, str, str]]
    forgotten: int = 0


def _size(devices: Iterable[DeviceHealth]) -> int:
    return sum(_SIZE_OF_DEVICE + len(item.pool) + len(item.device) + len(item.message) for item in devices)


def _fitting(devices: Mapping[str, DeviceHealth], room: int) -> tuple[dict[str, DeviceHealth], int]:
    """Return the devices that fit into `room` if they are added in order, and their total size."""
    fitting: dict[str, DeviceHealth] = {}
    size = 0
    for key, item in devices.items():
        more = _size([item])
        if size + more <= room:
            fitting[key] = item
            size += more
    return fitting, size


def _stored(report: ReportedHealth, now: int) -> DeviceHealth:
    limit = min(report.limit * SECOND, MAX_LIMIT) if report.limit > 0 else DEFAULT_LIMIT
    return DeviceHealth(report.pool, report.device, report.health, now, limit, _bounded(report.message))


def _bounded(message: str) -> str:
    text = message.encode(errors="replace")
    if len(text) <= MAX_MESSAGE:
        return message
    # As in Go, each byte of a character that is cut in two becomes U+FFFD.
    cut = text[: MAX_MESSAGE - len(_ELLIPSIS)].decode(errors="surrogateescape")
    return "".join("\ufffd" if "\udc80" <= letter <= "\udcff" else letter for letter in cut) + _ELLIPSIS


@frozen
class ClaimHealthChanged:
    """A driver reports that the health of a device has changed. `pods` use the claim with this device."""

    driver: DriverName
    pods: tuple[PodUid, ...]


def pods_to_notify(update: HealthUpdate, claims: ClaimCache) -> tuple[PodUid, ...]:
    """Return the sorted UIDs of the pods whose claims contain a device with changed health."""
    if not update.changed:
        return ()
    holding = (
        claim
        for claim in claims.claims.values()
        if any((driver, device.pool, device.name) in update.changed for driver, device in claim_devices(claim))
    )
    return tuple(sorted({pod for claim in holding for pod in claim.pods}))


# --- the status of a pod ---------------------------------------------------------------------------------------------


@frozen
class ClaimedDeviceHealth:
    """The health of one of a claim's devices.

    `resource_id` is the device's first CDI name, or the device's driver, pool and name if it has no CDI name.
    """

    resource_id: str
    health: DraHealth
    message: str = ""


@frozen
class ClaimHealth:
    """A container's devices of one claim (API: `allocatedResourcesStatus[]`).

    If `resources` is empty, the container has no device of the claim, and a kubelet removes the entry with this name
    from the status of the pod.
    """

    name: str
    resources: tuple[ClaimedDeviceHealth, ...]


def allocated_resources_status(
    claims: ClaimCache, health: HealthCache, pod: Pod, now: int
) -> dict[str, tuple[ClaimHealth, ...]]:
    """Return the health of the claimed devices of each container; init containers are left out.

    Kubelet: `UpdateAllocatedResourcesStatus`. Claims behind extended resources are not reported.
    """
    return {
        container.name: found
        for container in pod.containers
        if (found := tuple(_claim_healths(claims, health, pod, container, now)))
    }


def _claim_healths(
    claims: ClaimCache, health: HealthCache, pod: Pod, container: Container, now: int
) -> Iterable[ClaimHealth]:
    for named in dict.fromkeys(container.claims):
        claim = claims.claims.get(_key(pod, named))
        if claim is None:
            continue
        request = named.request.partition("/")[0]
        found: dict[str, ClaimedDeviceHealth] = {}
        for driver, device in claim_devices(claim):
            if device.serves(request):
                id_ = next(iter(device.cdi_ids or ()), f"{driver}/{device.pool}/{device.name}")
                found.setdefault(id_, ClaimedDeviceHealth(id_, *health.health(driver, device.pool, device.name, now)))
        name = f"claim:{named.name}/{named.request}" if named.request else f"claim:{named.name}"
        yield ClaimHealth(name, tuple(found.values()))


def _key(pod: Pod, named: ContainerClaim) -> ClaimKey:
    """Return the key of the claim that a container names: the one created for the entry, or the entry's own claim."""
    direct = next((entry.claim for entry in pod.claims if entry.name == named.name), None)
    return claim_key(pod, pod.generated_claims.get(named.name) or direct or "")
