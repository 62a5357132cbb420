"""The claims that a pod uses, and the requests that its containers name (kubelet-dra.md 4.2, 4.3.1, 5).

Law: these functions read only the pod, so a pod is prepared, started and released with the same claims.
"""

from collections.abc import Iterator

from devicecore.domain.dra.errors import ClaimNotCreatedError, NoClaimReferenceError
from devicecore.domain.dra.model import ClaimKey, DraContainer, DraPod, ExtendedClaim, PodClaim
from devicecore.domain.model import is_extended_resource

_IMPLICIT = "deviceclass.resource.kubernetes.io/"


def claim_name(pod: DraPod, entry: PodClaim) -> str | None:
    """The name of the claim for an entry of the pod; None if it needs no claim (kubelet: `resourceclaim.Name`).

    Raises:
        ClaimNotCreatedError: the claim of a template does not exist yet.
        NoClaimReferenceError: the entry names neither a claim nor a template.
    """
    if entry.claim is not None:
        return entry.claim
    if entry.template is None:
        raise NoClaimReferenceError(pod.namespace, pod.name, entry.name)
    if entry.name not in pod.generated:
        raise ClaimNotCreatedError(pod.namespace, pod.name)
    return pod.generated[entry.name]


def pod_claims(pod: DraPod) -> Iterator[PodClaim]:
    """The entries of a pod in order. The claim behind its extended resources comes last; its entry has no name."""
    yield from pod.claims
    if pod.extended:
        yield PodClaim("", pod.extended.claim)


def claim_keys(pod: DraPod) -> tuple[ClaimKey, ...]:
    """The claims that a pod uses, each once.

    Raises:
        ClaimNotCreatedError: the claim of a template does not exist yet.
        NoClaimReferenceError: an entry names neither a claim nor a template.
    """
    names = [claim_name(pod, entry) for entry in pod_claims(pod)]
    return tuple(dict.fromkeys(pod.key(name) for name in names if name is not None))


def wanted_requests(pod: DraPod, container: DraContainer) -> dict[ClaimKey, tuple[str, ...]]:
    """The requests that a container names, by claim (kubelet: `GetResources`). An empty one is the claim as a whole.

    Raises:
        ClaimNotCreatedError: the claim of a template does not exist yet.
        NoClaimReferenceError: an entry names neither a claim nor a template.
    """
    wanted: dict[ClaimKey, tuple[str, ...]] = {}
    for entry in pod.claims:
        requests = tuple(claim.request for claim in container.claims if claim.name == entry.name)
        name = claim_name(pod, entry) if requests else None
        if name is not None:
            wanted[pod.key(name)] = wanted.get(pod.key(name), ()) + requests
    extended = extended_requests(pod.extended, container)
    if pod.extended and extended:
        key = pod.key(pod.extended.claim)
        wanted[key] = wanted.get(key, ()) + extended
    return wanted


def extended_requests(extended: ExtendedClaim | None, container: DraContainer) -> tuple[str, ...]:
    """The requests of the extended claim that serve what a container asks for."""
    mappings = extended.mappings if extended else ()
    return tuple(
        mapping.request
        for mapping in mappings
        if mapping.container == container.name
        and container.requests.get(mapping.resource)
        and (mapping.resource.startswith(_IMPLICIT) or is_extended_resource(mapping.resource))
    )
