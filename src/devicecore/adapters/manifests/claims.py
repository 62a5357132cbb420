"""The part of a manifest that is about dynamic resource allocation: ResourceClaims, and the claims that pods name.

This module is loaded with the first manifest that contains a ResourceClaim. Law: as in a kubelet, only the pods in a
claim's `status.reservedFor` may use the claim. Without that field, every pod in the manifests that names the claim may
use it, because there is no scheduler to reserve the claim for pods.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress

from attrs import evolve, frozen

from devicecore.domain.documents import Value
from devicecore.domain.dra.errors import DraError
from devicecore.domain.dra.lookup import claim_keys
from devicecore.domain.dra.model import ClaimKey, ClaimUid, ResourceClaim
from devicecore.domain.dra.objects import resource_claim_of
from devicecore.domain.model import Pod


@frozen
class ManifestClaim:
    """A ResourceClaim from a manifest, and whether the manifest says which pods may use it."""

    claim: ResourceClaim
    is_reserved: bool


def read_claim(document: Value, uid: str) -> ManifestClaim:
    """Return the ResourceClaim in a document, with this UID. Raises DocumentError if a field has the wrong type."""
    is_reserved = document["status"]["reservedFor"].data is not None
    _check_allocation(document)
    return ManifestClaim(resource_claim_of(document, uid=ClaimUid(uid)), is_reserved)


def _check_allocation(claim: Value) -> None:
    """Refuse an allocation that is in the wrong place, or a result without a driver, a pool or a device.

    Usually, a scheduler writes the allocation. In a manifest, the author does, and a misplaced one would be ignored.
    """
    places = "status.allocation", "status.allocation.devices", "status.allocation.devices.results"
    for place in places:
        *path, name = place.split(".")
        for field, one in _at(claim, path).mapping().items():
            if field.casefold().startswith(name[:5]) and field != name:
                one.refuse(f"there is no such field; expected {name!r}")
    if claim["spec"]["allocation"].data is not None:
        claim["spec"]["allocation"].refuse(f"there is no such field; expected {places[0]}")
    allocation = claim["status"]["allocation"]
    if "results" in allocation.mapping():
        allocation["results"].refuse(f"there is no such field; expected {places[2]}")
    for result in allocation["devices"]["results"].sequence():
        for name in ("driver", "pool", "device"):
            if not result[name].text(""):
                result[name].refuse("it is missing; a device has a driver, a pool and a name (device)")


def _at(value: Value, path: Iterable[str]) -> Value:
    for name in path:
        value = value[name]
    return value


def default_uid(document: Value) -> str:
    """Return a UID for a claim that has none. The UID changes with the allocation, which makes the claim a new claim.

    Changed reservations or a different file do not make the claim a new claim.
    """
    metadata = document["metadata"]
    identity = [metadata["namespace"].text("default"), metadata["name"].text(), document["status"]["allocation"].data]
    return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()


def claims_in_force(claims: Iterable[ManifestClaim], pods: Iterable[Pod]) -> dict[ClaimKey, ResourceClaim]:
    """Return the claims by key. A claim without reservations is reserved for the pods that name it."""
    users: dict[ClaimKey, set[str]] = {}
    for pod in pods:
        with suppress(DraError):  # the pod waits, because the entry has no claim yet
            for key in claim_keys(pod):
                users.setdefault(key, set()).add(pod.uid)
    return {
        one.claim.key: one.claim
        if one.is_reserved
        else evolve(one.claim, reserved_for=frozenset(users.get(one.claim.key, ())))
        for one in claims
    }
