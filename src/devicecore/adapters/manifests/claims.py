"""The part of a manifest that is about dynamic resource allocation: ResourceClaims, and the claims that pods name.

It is loaded with the first manifest that has any. Law: a claim that says who may use it (`status.reservedFor`) is for
these pods only, as in a kubelet. A claim that does not say so is for every pod of the manifests that names it, because
no scheduler is there to reserve it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

from attrs import evolve, frozen

from devicecore.domain.dra.errors import DraError, InvalidObjectError
from devicecore.domain.dra.lookup import claim_keys
from devicecore.domain.dra.model import ClaimKey, ResourceClaim
from devicecore.domain.dra.objects import pod_of, resource_claim_of
from devicecore.domain.model import Pod, PodUid
from devicecore.system.documents import Value

T = TypeVar("T")

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")  # of a path such as `status.reservedFor[0].uid`


@frozen
class ManifestClaim:
    """A ResourceClaim of a manifest, and whether its manifest says which pods may use it."""

    claim: ResourceClaim
    is_reserved: bool


def read_claim(document: Value, name: str, namespace: str, uid: str) -> ManifestClaim:
    """Return the ResourceClaim of a document. Its name, namespace and UID are checked already.

    Raises:
        DocumentError: a field has the wrong type.
    """
    metadata = {**document["metadata"].data, "name": name, "namespace": namespace, "uid": uid}
    claim = _converted(document, resource_claim_of, {**document.data, "metadata": metadata})
    return ManifestClaim(claim, is_reserved=document["status"]["reservedFor"].data is not None)


def default_uid(document: Value, name: str, namespace: str) -> str:
    """Return the UID of a claim that has none: it changes with the allocation, because another one is another claim.

    Reservations come and go without making it another claim, and so does the file that it is in.
    """
    identity = [namespace, name, document["status"]["allocation"].data]
    return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()


def read_dra_pod(document: Value, uid: PodUid) -> Pod:
    """Return what the DRA manager uses of a pod that names claims.

    Raises:
        DocumentError: a field has the wrong type, or a container names a claim that the pod does not have.
    """
    metadata = {**document["metadata"].data, "uid": uid}
    pod = _converted(document, pod_of, {**document.data, "metadata": metadata})
    entries = [entry.name for entry in pod.claims]
    for number, name in enumerate(entries):
        if name in entries[:number]:
            document["spec"]["resourceClaims"].sequence()[number]["name"].refuse(f"two entries have the name {name!r}")
    for kind in ("initContainers", "containers"):
        for container in document["spec"][kind].sequence():
            for claim in container["resources"]["claims"].sequence():
                if claim["name"].text() not in entries:
                    claim["name"].refuse("expected the name of an entry of spec.resourceClaims")
    return pod


def claims_in_force(claims: Iterable[ManifestClaim], pods: Iterable[Pod]) -> dict[ClaimKey, ResourceClaim]:
    """Return the claims by key; one without reservations is reserved for the pods that name it."""
    users: dict[ClaimKey, set[str]] = {}
    for pod in pods:
        with suppress(DraError):  # an entry without a claim: the pod waits for it
            for key in claim_keys(pod):
                users.setdefault(key, set()).add(pod.uid)
    return {
        one.claim.key: one.claim
        if one.is_reserved
        else evolve(one.claim, reserved_for=frozenset(users.get(one.claim.key, ())))
        for one in claims
    }


def _converted(document: Value, convert: Callable[[object], T], data: Mapping[str, object]) -> T:
    try:
        return convert(data)
    except InvalidObjectError as error:
        return _at(document, error.field).refuse(error.problem, error)


def _at(document: Value, path: str) -> Value:
    """The value at a path, or the deepest one on the way there that exists."""
    value = document
    for step in _STEP.finditer(path):
        name, number = step.groups()
        if isinstance(value.data, dict) and name is not None:
            value = value[name]
        elif isinstance(value.data, list) and number is not None:
            value = value.sequence()[int(number)]
    return value
