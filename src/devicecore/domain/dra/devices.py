"""The devices that a container gets from its claims (kubelet-dra.md 5, 12).

Law: these functions read only the cache and the pod. A container gets the devices that serve its requests, and no other
devices from its claims.
"""

from collections.abc import Mapping

from attrs import frozen

from devicecore.domain.dra.claims import ClaimCache, ClaimInfo
from devicecore.domain.dra.errors import ClaimInfoError, ClaimInformationError
from devicecore.domain.dra.lookup import claim_key, claim_name, wanted_requests
from devicecore.domain.dra.model import ClaimKey, DriverName, PreparedDevice
from devicecore.domain.model import Container, Pod


def container_devices(cache: ClaimCache, pod: Pod, container: Container) -> tuple[PreparedDevice, ...]:
    """Return the devices of a container by claim, request and driver, each device once for each request that it serves.

    Raises ClaimInfoError if the container names a claim that no pod has asked to prepare, and DraError if the claim for
    one of the pod's entries is not known.
    """
    found: list[PreparedDevice] = []
    for key, requests in sorted(wanted_requests(pod, container).items()):
        claim = cache.claims.get(key)
        if claim is None:
            raise ClaimInfoError(key.namespace, key.name)
        found += [device for request in requests for _, device in claim_devices(claim) if device.serves(request)]
    return tuple(found)


def cdi_ids(cache: ClaimCache, pod: Pod, container: Container) -> tuple[str, ...]:
    """Return the CDI names that the kubelet passes to the container runtime (kubelet: `GetResources`).

    The errors are the same as for `container_devices`.
    """
    return tuple(id_ for device in container_devices(cache, pod, container) for id_ in device.cdi_ids or ())


def claim_devices(claim: ClaimInfo) -> tuple[tuple[DriverName, PreparedDevice], ...]:
    """Return the devices of a claim, sorted by driver name."""
    return tuple((driver, device) for driver, devices in sorted(claim.drivers.items()) for device in devices or ())


@frozen
class DynamicResource:
    """A container's claim as the pod-resources API shows it: all devices of the claim, not only those of a request."""

    claim: ClaimKey
    devices: tuple[tuple[DriverName, PreparedDevice], ...]


def dynamic_resources(cache: ClaimCache, pod: Pod, container: Container) -> tuple[DynamicResource, ...]:
    """Return the claims of a container (kubelet: `GetContainerClaimInfos`).

    The errors are the same as for `container_devices`, but with ClaimInformationError instead of ClaimInfoError.
    """
    named = {claim.name for claim in container.claims}
    names = (claim_name(pod, entry) for entry in pod.claims if entry.name in named)
    found = [_dynamic_resource(cache.claims, claim_key(pod, name)) for name in names if name is not None]
    if pod.extended_claim and any(mapping.container == container.name for mapping in pod.extended_claim.mappings):
        found.append(_dynamic_resource(cache.claims, claim_key(pod, pod.extended_claim.claim), is_extended=True))
    return tuple(found)


def _dynamic_resource(
    claims: Mapping[ClaimKey, ClaimInfo], key: ClaimKey, *, is_extended: bool = False
) -> DynamicResource:
    if key not in claims:
        raise ClaimInformationError(key.namespace, key.name, is_extended)
    return DynamicResource(key, claim_devices(claims[key]))
