"""What `devicecore kubelet` reads from a DRA manager: whether to retry a pod, and what to show.

Law: no function of this module calls drivers or the API server, because the main thread calls these functions. From
    the library, this module imports only the domain.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.devices import claim_devices
from devicecore.domain.dra.drivers import DriverRegistry
from devicecore.domain.dra.errors import (
    ClaimFailedError,
    DraError,
    DriverCallError,
    PrepareError,
    SkippedClaimsError,
    UnknownClaimError,
)
from devicecore.domain.dra.health import HealthCache
from devicecore.domain.dra.lookup import claim_keys, wanted_requests
from devicecore.domain.dra.model import ClaimKey, DriverName, PreparedDevice, ResourceClaim
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import Container, Pod, PodUid
from devicecore_tools.node.state import (
    RUNNING,
    ClaimedDevice,
    ClaimsState,
    ClaimStage,
    ClaimState,
    ContainerClaimState,
    DriverState,
    PodState,
)

if TYPE_CHECKING:
    from devicecore.dra_manager import DraManager

# --- pods -------------------------------------------------------------------------------------------------------------


def are_entered(manager: "DraManager", pod: Pod) -> bool:
    """Return whether the pod is recorded in each of its claims."""
    try:
        keys = claim_keys(pod)
    except DraError:
        return False
    known = manager.claims.claims
    return all(key in known and pod.uid in known[key].pods for key in keys)


def is_of_driver(error: DeviceCoreError) -> bool:
    """Return whether a preparation failed because of a driver."""
    cause = error.cause if isinstance(error, PrepareError) else error
    return isinstance(cause, DriverCallError | ClaimFailedError | SkippedClaimsError | UnknownClaimError)


@frozen
class PreparationFacts:
    """Everything known here that the result of a preparation depends on.

    Attributes:
        claims: the pod's claims in manifests, each with a flag that says whether an older claim with that name
            still exists.
        served: for each driver, the instance that would be called, and whether it is connected.
        drivers: the drivers of the pod's claims; empty if unknown, in which case any driver may matter.
    """

    claims: tuple[object, ...]
    served: Mapping[DriverName, object]
    drivers: frozenset[DriverName]

    def is_like(self, later: "PreparationFacts") -> bool:
        """Return whether the pod's claims and drivers are the same in `later`."""
        drivers = later.drivers or {*self.served, *later.served}
        return self.claims == later.claims and all(
            self.served.get(driver) == later.served.get(driver) for driver in drivers
        )


def facts_of(manager: "DraManager | None", pod: Pod, claims: Mapping[ClaimKey, ResourceClaim]) -> PreparationFacts:
    """Return a pod's current facts. `claims` are the claims in manifests."""
    try:
        keys = claim_keys(pod)
    except DraError:
        return PreparationFacts((), {}, frozenset())
    cache, registry = (manager.claims, manager.drivers) if manager else (ClaimCache(), DriverRegistry())
    known, named = cache.claims, [claims.get(key) for key in keys]
    drivers = {driver for claim in cache.present(keys) for driver in claim.drivers}
    drivers |= {result.driver for claim in named if claim for result in claim.allocation or ()}
    chosen = [registry.choose(driver) for driver in registry.instances]
    return PreparationFacts(
        tuple(
            (claim, claim is not None and claim.key in known and known[claim.key].uid != claim.uid) for claim in named
        ),
        {instance.driver: (instance, instance in registry.connected) for instance in chosen},
        frozenset(drivers),
    )


_DeviceState = Callable[[DriverName, PreparedDevice], ClaimedDevice]

# --- what is shown ----------------------------------------------------------------------------------------------------


@frozen
class ClaimedHealth:
    """The health of all claimed devices (`found`).

    The value stays current until a claim changes, or a report arrives or expires. No report expires between the times
    `since` and `until`, in nanoseconds since 1970.
    """

    claims: ClaimCache
    health: HealthCache
    since: int
    until: float
    found: tuple[str, ...]

    @classmethod
    def of(cls, manager: "DraManager") -> "ClaimedHealth":
        """Return the current health."""
        claims, health, now = manager.claims, manager.health, manager.now
        found = tuple(
            health.health(driver, device.pool, device.name, now)[0].value
            for claim in claims.claims.values()
            for driver, device in claim_devices(claim)
        )
        return cls(claims, health, now, health.unchanged_until(now), found)

    def is_current(self, manager: "DraManager") -> bool:
        """Return whether the health found earlier is still current, without checking any device."""
        is_same = self.claims is manager.claims and self.health is manager.health
        return is_same and self.since <= manager.now <= self.until


def state_of(manager: "DraManager", pods: Iterable[PodState], leaving: Mapping[PodUid, str]) -> ClaimsState:
    """Return the current claims, drivers, and containers with claims.

    `pods` are the pods that name claims, and `leaving` maps each removed pod to the reason its claims have not been
    released yet.
    """
    device_state = partial(_device_state, manager.health, manager.now)
    states: dict[PodUid, PodState] = {}
    named: dict[ClaimKey, list[PodState]] = {}
    containers: dict[PodUid, dict[str, tuple[ContainerClaimState, ...]]] = {}
    for state in pods:
        pod = state.pod
        states[pod.uid] = state
        with suppress(DraError):  # the pod's claim does not exist yet; the pod already reports this as its reason
            for key in claim_keys(pod):
                named.setdefault(key, []).append(state)
            containers[pod.uid] = {
                container.name: _container_claims(manager, pod, container, device_state)
                for container in pod.in_start_order
            }
    known = manager.claims.claims
    claims = [
        _known_claim(info, [states[uid] for uid in sorted(info.pods) if uid in states], leaving, device_state)
        for info in known.values()
    ]
    claims += [
        ClaimState(
            key.namespace, key.name, None, ClaimStage.PENDING, users[0].reason, tuple(user.pod.uid for user in users)
        )
        for key, users in named.items()
        if key not in known
    ]
    drivers = [
        DriverState(name, tuple((one.endpoint, one.service, one in manager.drivers.connected) for one in instances))
        for name, instances in sorted(manager.drivers.instances.items())
    ]
    return ClaimsState(
        tuple(sorted(claims, key=lambda claim: (claim.namespace, claim.name))), tuple(drivers), containers
    )


def _device_state(health: HealthCache, now: int, driver: DriverName, device: PreparedDevice) -> ClaimedDevice:
    """Return the state of a device with its health at a time, in nanoseconds since 1970."""
    found, message = health.health(driver, device.pool, device.name, now)
    known = device.pool, device.name, device.share_id, device.requests or (), device.cdi_ids or ()
    return ClaimedDevice(driver, *known, found.value, message)


def _known_claim(
    info: ClaimInfo, users: list[PodState], leaving: Mapping[PodUid, str], state: _DeviceState
) -> ClaimState:
    """Return a claim in which pods are recorded. If all of these pods are gone, the claim is being released."""
    if not users:
        phase, reason = ClaimStage.RELEASING, next((leaving[uid] for uid in sorted(info.pods) if leaving.get(uid)), "")
    elif info.phase is ClaimPhase.PREPARED or any(user.phase == RUNNING for user in users):
        phase, reason = ClaimStage.PREPARED, ""
    else:
        phase, reason = ClaimStage.PENDING, users[0].reason
    devices = tuple(state(driver, device) for driver, device in claim_devices(info))
    return ClaimState(info.key.namespace, info.key.name, info.uid, phase, reason, tuple(sorted(info.pods)), devices)


def _container_claims(
    manager: "DraManager", pod: Pod, container: Container, state: _DeviceState
) -> tuple[ContainerClaimState, ...]:
    """Return a container's cached claims, each with the devices that the container gets through it."""
    found = []
    for key, requests in sorted(wanted_requests(pod, container).items()):
        claim = manager.claims.claims.get(key)
        if claim is not None:
            devices = [one for request in requests for one in claim_devices(claim) if one[1].serves(request)]
            found.append(ContainerClaimState(key.name, tuple(state(driver, device) for driver, device in devices)))
    return tuple(found)
