"""The claims that a pod uses, and the requests that its containers name (kubelet-dra.md 4.2, 4.3.1, 5).

Law: these functions read only the pod, so a pod is prepared, started and released with the same claims.
"""

from collections.abc import Iterator

from devicecore.domain.dra.errors import ClaimNotCreatedError, NoClaimReferenceError
from devicecore.domain.dra.model import ClaimKey
from devicecore.domain.model import Container, Pod, PodClaim, is_extended_resource

_IMPLICIT = "deviceclass.resource.kubernetes.io/"


def claim_name(pod: Pod, entry: PodClaim) -> str | None:
    """Return the name of the claim for a pod's entry, or None if no claim is needed (kubelet: `resourceclaim.Name`).

    Raises ClaimNotCreatedError if the claim generated from a template does not exist yet, and
    NoClaimReferenceError if the entry names neither a claim nor a template.
    """
    if entry.claim is not None:
        return entry.claim
    if entry.template is None:
        raise NoClaimReferenceError(pod.namespace, pod.name, entry.name)
    if entry.name not in pod.generated_claims:
        raise ClaimNotCreatedError(pod.namespace, pod.name)
    return pod.generated_claims[entry.name]


def pod_claims(pod: Pod) -> Iterator[PodClaim]:
    """Yield the claim entries of a pod in order.

    The claim for the pod's extended resources comes last; the entry of this claim has no name.
    """
    yield from pod.claims
    if pod.extended_claim:
        yield PodClaim("", pod.extended_claim.claim)


def claim_key(pod: Pod, name: str) -> ClaimKey:
    """Return the key of a claim that the pod names: claims are in the pod's namespace."""
    return ClaimKey(pod.namespace, name)


def claim_keys(pod: Pod) -> tuple[ClaimKey, ...]:
    """Return the keys of the claims that a pod uses, each once. The errors are the same as for `claim_name`."""
    names = [claim_name(pod, entry) for entry in pod_claims(pod)]
    return tuple(dict.fromkeys(claim_key(pod, name) for name in names if name is not None))


def wanted_requests(pod: Pod, container: Container) -> dict[ClaimKey, tuple[str, ...]]:
    """Return the requests that a container names, by claim (kubelet: `GetResources`).

    An empty request means the whole claim. The errors are the same as for `claim_name`.
    """
    wanted: dict[ClaimKey, tuple[str, ...]] = {}
    for entry in pod.claims:
        requests = tuple(claim.request for claim in container.claims if claim.name == entry.name)
        name = claim_name(pod, entry) if requests else None
        if name is not None:
            wanted[claim_key(pod, name)] = wanted.get(claim_key(pod, name), ()) + requests
    extended = extended_requests(pod, container)
    if pod.extended_claim and extended:
        key = claim_key(pod, pod.extended_claim.claim)
        wanted[key] = wanted.get(key, ()) + extended
    return wanted


def extended_requests(pod: Pod, container: Container) -> tuple[str, ...]:
    """Return the requests of the extended claim that serve what a container requests."""
    mappings = pod.extended_claim.mappings if pod.extended_claim else ()
    return tuple(
        mapping.request
        for mapping in mappings
        if mapping.container == container.name
        and container.requests.get(mapping.resource, container.limits.get(mapping.resource, 0))
        and (mapping.resource.startswith(_IMPLICIT) or is_extended_resource(mapping.resource))
    )
