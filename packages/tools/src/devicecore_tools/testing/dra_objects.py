"""DRA objects on a test's API server: what drivers publish, and claims for the published devices.

Law: a claim is created the way a scheduler leaves it, with published devices allocated to it that no other claim holds.
Nothing here selects by attributes: a test names the devices or gives their number. Only a claim for named devices
tolerates taints.
"""

from collections.abc import Iterator, Sequence

from attrs import frozen

from devicecore.domain.checks import checked
from devicecore.domain.dra.errors import ClaimSourceError
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, DriverName, ResourceClaim
from devicecore.domain.dra.objects import resource_claim_of, slice_of
from devicecore.domain.dra.slices import StoredSlice
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.testing.api_server.server import LocalApiServer
from devicecore_tools.testing.api_server.status import ApiError, Json
from devicecore_tools.testing.dra_pools import SliceDevice, pools_of

REQUEST = "devices"
"""The request name in the claims created here."""


@frozen
class DevicesTakenError(DeviceCoreError):
    """The requested devices are not published, other claims hold them, or they are tainted."""

    driver: str
    wanted: str
    free: tuple[str, ...]
    is_published: bool = True

    def __str__(self) -> str:
        if not self.is_published:
            return (
                f"expected {self.wanted} of {self.driver} for a claim, but {self.driver} has published no device: "
                "wait for its ResourceSlices with wait_for_devices, or call publish"
            )
        free = ", ".join(self.free) or "none"
        return f"expected {self.wanted} of {self.driver} for a claim, but only these are available: {free}"


@frozen
class ServerClaims:
    """A `ClaimSource`: the ResourceClaims on an API server in this process."""

    server: LocalApiServer

    def get(self, key: ClaimKey) -> ResourceClaim:
        """Return the current claim. Raises ClaimSourceError if there is no such claim."""
        try:
            return resource_claim_of(self.server.get("ResourceClaim", key.name, key.namespace))
        except ApiError as error:
            raise ClaimSourceError(error.message) from error


@frozen
class ServerSlices:
    """The `ResourceSlices` of one node on an API server in this process."""

    server: LocalApiServer
    node: str

    def delete(self, driver: DriverName | None) -> None:
        """Delete the slices of one driver on this node, or of all drivers."""
        for one in stored_slices(self.server, self.node):
            if driver in (None, one.driver):
                self.server.delete("ResourceSlice", one.name)


def stored_slices(server: LocalApiServer, node: str) -> Iterator[StoredSlice]:
    """Yield the ResourceSlices of a node."""
    for one in map(slice_of, server.objects("ResourceSlice")):
        if one.node == node:
            yield one


def published(server: LocalApiServer, node: str, driver: str) -> tuple[SliceDevice, ...]:
    """Return the devices that a scheduler sees: the devices in the newest generation of each complete pool."""
    specs = ((one, one["spec"]) for one in server.objects("ResourceSlice"))
    slices = [one for one, spec in specs if (spec.get("nodeName"), spec["driver"]) == (node, driver)]
    return tuple(device for pool in pools_of(slices) if pool.is_complete for device in pool.devices)


def choose(
    server: LocalApiServer, node: str, driver: str, count: int, names: Sequence[str] | None
) -> list[tuple[str, str]]:
    """Return the pools and names of devices that no claim holds.

    Without names, tainted devices are left out, as by a scheduler.

    Raises:
        DevicesTakenError: there are too few devices, or a named device is not available.
        TypeError: the count is not an integer.
    """
    checked(count, int, "claim: count")
    held = {(row.driver, row.pool, row.device) for row in _allocated(server)}
    listed = published(server, node, driver)
    free = [one.key for one in listed if (driver, *one.key) not in held and (names is not None or not one.is_tainted)]
    chosen = free[:count] if names is None else [device for device in free if device[1] in names]
    if len(chosen) < (count if names is None else len(names)):
        wanted = counted(count, "device") if names is None else "devices " + ", ".join(names)
        raise DevicesTakenError(driver, foreign_text(wanted), tuple(name for _, name in free), bool(listed))
    return chosen


def _allocated(server: LocalApiServer) -> Iterator[AllocatedDevice]:
    for claim in map(resource_claim_of, server.objects("ResourceClaim")):
        yield from claim.allocation or ()


def create_claim(
    server: LocalApiServer,
    name: str,
    driver: str,
    devices: Sequence[tuple[str, str]],
    parameters: object = None,
    *,
    tolerates: bool = False,
) -> ResourceClaim:
    """Create a ResourceClaim in the namespace `default`, with devices allocated to it, given by pool and name.

    With `tolerates`, the claim tolerates all taints.

    Raises:
        ApiError: the server refuses the claim.
    """
    results = [{"request": REQUEST, "driver": driver, "pool": pool, "device": device} for pool, device in devices]
    exactly: Json = {"deviceClassName": driver.lower(), "allocationMode": "ExactCount", "count": max(1, len(devices))}
    if tolerates:
        exactly["tolerations"] = [{"operator": "Exists"}]
    allocation: Json = {"devices": {"results": results}}
    if parameters is not None:
        opaque = {"driver": driver, "parameters": parameters}
        allocation["devices"]["config"] = [{"source": "FromClaim", "requests": [], "opaque": opaque}]
    body = {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}},
        "status": {"allocation": allocation},
    }
    return resource_claim_of(server.create(body))


def reserve(server: LocalApiServer, claim: ClaimKey, pod: str, uid: str) -> None:
    """Reserve a claim for a pod, as a scheduler does."""

    def add(body: Json) -> None:
        consumers = body.setdefault("status", {}).setdefault("reservedFor", [])
        if uid not in [consumer["uid"] for consumer in consumers]:
            consumers.append({"resource": "pods", "name": pod, "uid": uid})

    server.change("ResourceClaim", claim.name, add, claim.namespace)


def release(server: LocalApiServer, claim: ClaimKey, uid: str) -> None:
    """Remove a reservation, as the controller does once the pod has ended. It is not an error if the claim is gone."""

    def remove(body: Json) -> None:
        consumers = body.get("status", {}).get("reservedFor", [])
        body.setdefault("status", {})["reservedFor"] = [one for one in consumers if one["uid"] != uid]

    try:
        server.change("ResourceClaim", claim.name, remove, claim.namespace)
    except ApiError as error:
        if error.code != 404:
            raise
