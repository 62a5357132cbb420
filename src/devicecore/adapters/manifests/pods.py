"""What is in a manifest: one or more documents, each a Pod, a ResourceClaim or a List of them.

Laws: All of a manifest is used, or nothing. Limits count and requests do not, as in the device manager. A pod
without `metadata.uid` gets a UID made of the file's name and of everything that the pod says, so a changed pod is a new
pod (kubelet: `applyDefaults`). Nothing of dynamic resource allocation is loaded before a manifest has a ResourceClaim
or a pod with claims.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.model import Container, Pod, PodUid, is_container_resource, is_extended_resource
from devicecore.domain.quantity import is_integer, whole_quantity
from devicecore.system.documents import DocumentError, Value, described, read_documents

if TYPE_CHECKING:
    from devicecore.adapters.manifests.claims import ManifestClaim

# As Kubernetes validates them. Names reach logs and terminals, so nothing else may be in them.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*", re.ASCII)
_UID = re.compile(r"[!-~]{1,253}", re.ASCII)


MAX_CONTAINERS = 1_000
"""Containers of one pod, init containers included. A large pod has some 20."""


MAX_OBJECTS = 500
"""Pods and claims of one manifest. A kubelet runs 110 pods unless it is told otherwise."""


class ManifestError(DocumentError):
    """A pod manifest that cannot be used. `line` counts from 1; `field` is the path to it, empty for the whole."""


@frozen
class Manifest:
    """A text and what is in it."""

    text: str
    pods: tuple[Pod, ...] = ()
    claims: "tuple[ManifestClaim, ...]" = ()

    def unique_names(self) -> Iterator[str]:
        """The names that no two objects may share."""
        for pod in self.pods:
            yield f"pod {pod.namespace}/{pod.name}"
            yield f"uid {pod.uid}"
        for one in self.claims:
            yield f"ResourceClaim {one.claim.key}"
            yield f"uid {one.claim.uid}"


def read_manifest(text: str, file: str) -> Manifest:
    """Return what is in a manifest.

    Args:
        text: YAML or JSON.
        file: the manifest's name, for errors and for the UIDs of pods that have none.

    Raises:
        ManifestError: something in the manifest cannot be used, or nothing is in it, as while it is being written.
    """
    pods: list[Pod] = []
    claims: list[ManifestClaim] = []
    for document in read_documents(text, file, error=ManifestError):
        for kind, item in _objects_in(document):
            if len(pods) + len(claims) == MAX_OBJECTS:
                problem = f"expected at most {MAX_OBJECTS} pods and claims in one file, got more: use several files"
                raise ManifestError(file, None, "", problem)
            if kind == _CLAIM:
                claims.append(_claim(item))
                continue
            pods.append(_pod(item))
    if not pods and not claims:
        raise ManifestError(file, None, "", "expected a pod or a ResourceClaim, got nothing")
    manifest = Manifest(text, tuple(pods), tuple(claims))
    seen: set[str] = set()
    for name in manifest.unique_names():
        if name in seen:
            raise ManifestError(file, None, "", f"{name} is in this file twice")
        seen.add(name)
    return manifest


def read_pods(text: str, file: str) -> tuple[Pod, ...]:
    """Return the pods in a manifest, at least one; the arguments are those of `read_manifest`.

    Raises:
        ManifestError: something in the manifest cannot be used, or no pod is in it.
    """
    pods = read_manifest(text, file).pods
    if not pods:
        raise ManifestError(file, None, "", "expected a pod, got nothing")
    return pods


_POD, _CLAIM = ("Pod", "v1"), ("ResourceClaim", "resource.k8s.io/v1")


def _objects_in(document: Value, *, default: tuple[str, str] | None = None) -> Iterator[tuple[tuple[str, str], Value]]:
    """The pods and claims of a document, each with its kind and API version."""
    kind, version = document["kind"], document["apiVersion"]
    found = kind.text(default and default[0]), version.text(default and default[1])
    if found in {("List", "v1"), ("PodList", "v1")}:
        # The items of a PodList may omit their kind. Only a List may hold further lists.
        for item in document["items"].sequence():
            yield from _objects_in(item, default=_POD if found[0] == "PodList" else None)
        return
    if found not in {_POD, _CLAIM}:
        kind.refuse(f"expected a Pod of v1 or a ResourceClaim of resource.k8s.io/v1, got {found[0]!r} of {found[1]!r}")
    yield found, document


def _pod(document: Value) -> Pod:
    """The pod of a document."""
    spec = document["spec"]
    name, namespace = _names(document)
    count = len(spec["initContainers"].sequence()) + len(spec["containers"].sequence())
    if count > MAX_CONTAINERS:
        spec.refuse(f"expected at most {MAX_CONTAINERS} containers, got {count}")
    init_containers, containers = _containers(spec["initContainers"]), _containers(spec["containers"])
    if not containers:
        spec["containers"].refuse("expected at least one container, got none")
    seen: set[str] = set()
    for container in (*init_containers, *containers):
        if container.name in seen:
            spec.refuse(f"two containers have the name {container.name!r}")
        seen.add(container.name)
    uid = PodUid(_checked_uid(document, default=_uid(document)))
    pod = Pod(uid, name=name, namespace=namespace, containers=containers, init_containers=init_containers)
    if not _names_claims(document):
        return pod
    from devicecore.adapters.manifests.claims import read_dra_pod  # noqa: PLC0415  # only claims load it

    return read_dra_pod(document, uid)


def _names_claims(document: Value) -> bool:
    """Whether a pod has anything to do with dynamic resource allocation."""
    spec = document["spec"]
    if spec["resourceClaims"].data or document["status"]["extendedResourceClaimStatus"].data:
        return True
    containers = (*spec["initContainers"].sequence(), *spec["containers"].sequence())
    return any(container["resources"]["claims"].data for container in containers)


def _claim(document: Value) -> "ManifestClaim":
    from devicecore.adapters.manifests.claims import default_uid, read_claim  # noqa: PLC0415  # only claims load it

    name, namespace = _names(document)
    uid = _checked_uid(document, default=default_uid(document, name, namespace))
    return read_claim(document, name, namespace, uid)


def _names(document: Value) -> tuple[str, str]:
    """The name and the namespace of an object."""
    metadata = document["metadata"]
    name = _matching(_NAME, metadata["name"], "a DNS name such as train-1")
    return name, _matching(_NAME, metadata["namespace"], "a DNS name such as default", default="default")


def _checked_uid(document: Value, *, default: str) -> str:
    return _matching(_UID, document["metadata"]["uid"], "printable characters without spaces", default=default)


def _matching(pattern: re.Pattern[str], value: Value, expected: str, *, default: str | None = None) -> str:
    text = value.text(default)
    if not pattern.fullmatch(text):
        value.refuse(f"expected {expected}, got {described(text)}")
    return text


def _containers(value: Value) -> tuple[Container, ...]:
    containers = []
    for container in value.sequence():
        name = _matching(_NAME, container["name"], "a DNS name such as main")
        restartable = container["restartPolicy"].text("") == "Always"
        containers.append(Container(name, _limits(container["resources"]["limits"]), restartable))
    return tuple(containers)


def _limits(value: Value) -> dict[str, int]:
    """Limits as an API server accepts them: it requires whole numbers of devices, and rounds nothing."""
    limits = {}
    for resource, limit in value.mapping().items():
        if not is_container_resource(resource):
            limit.refuse(f"expected a container resource such as cpu or example.com/gpu, got {described(resource)}")
        limits[resource] = _quantity(limit, integer=is_extended_resource(resource))
    return limits


def _quantity(value: Value, *, integer: bool) -> int:
    """The quantity, rounded up; with `integer`, a fraction is refused."""
    if isinstance(value.data, bool) or not isinstance(value.data, str | int | float):
        value.refuse(f"expected a quantity such as 2, 500m or 1.5Gi, got {described(value.data)}")
    text = str(value.data)
    try:
        count = whole_quantity(text)
        if integer and not is_integer(text):
            value.refuse(f"expected an integer, got {text}")
    except InvalidQuantityError as error:
        value.refuse(str(error), error)
    if count < 0:
        value.refuse(f"expected 0 or more, got {text}")
    return count


def _uid(document: Value) -> str:
    """A UID as long as a kubelet's, which is an MD5 of the same things."""
    metadata = document["metadata"]
    identity = [document.file, metadata["namespace"].text("default"), metadata["name"].text(), document.data]
    return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()
