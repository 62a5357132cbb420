"""The pods of a manifest: one or more documents, each a Pod or a List of pods.

Laws: All pods of a manifest are used, or none. Limits count and requests do not, as in the device manager. A pod
without `metadata.uid` gets a UID made of the file's name and of everything that the pod says, so a changed pod is a new
pod (kubelet: `applyDefaults`).
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.model import Container, Pod, PodUid, is_container_resource, is_extended_resource
from devicecore.domain.quantity import is_integer, whole_quantity
from devicecore.system.documents import DocumentError, Value, described, read_documents

# As Kubernetes validates them. Names reach logs and terminals, so nothing else may be in them.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*", re.ASCII)
_UID = re.compile(r"[!-~]{1,253}", re.ASCII)


MAX_CONTAINERS = 1_000
"""Containers of one pod, init containers included. A large pod has some 20."""


class ManifestError(DocumentError):
    """A pod manifest that cannot be used. `line` counts from 1; `field` is the path to it, empty for the whole."""


def read_pods(text: str, file: str) -> tuple[Pod, ...]:
    """Return the pods in a manifest.

    Args:
        text: YAML or JSON.
        file: the manifest's name, for errors and for the UIDs of pods that have none.

    Raises:
        ManifestError: something in the manifest cannot be used, or no pod is in it, as while it is being written.
    """
    documents = read_documents(text, file, error=ManifestError)
    pods = tuple(pod for document in documents for pod in _pods_in(document))
    if not pods:
        raise ManifestError(file, None, "", "expected a pod, got nothing")
    seen: set[str] = set()
    for name in unique_names(pods):
        if name in seen:
            raise ManifestError(file, None, "", f"{name} is in this file twice")
        seen.add(name)
    return pods


def unique_names(pods: Iterable[Pod]) -> Iterator[str]:
    """The names that no two pods may share."""
    for pod in pods:
        yield f"pod {pod.namespace}/{pod.name}"
        yield f"uid {pod.uid}"


def _pods_in(document: Value, *, default: tuple[str, str] | None = None) -> Iterator[Pod]:
    kind, version = document["kind"], document["apiVersion"]
    found = kind.text(default and default[0]), version.text(default and default[1])
    if found in {("List", "v1"), ("PodList", "v1")}:
        # The items of a PodList may omit their kind. Only a List may hold further lists.
        for item in document["items"].sequence():
            yield from _pods_in(item, default=("Pod", "v1") if found[0] == "PodList" else None)
        return
    if found != ("Pod", "v1"):
        kind.refuse(f"expected a Pod of v1, got {found[0]!r} of {found[1]!r}")
    metadata, spec = document["metadata"], document["spec"]
    name = _matching(_NAME, metadata["name"], "a DNS name such as train-1")
    namespace = _matching(_NAME, metadata["namespace"], "a DNS name such as default", default="default")
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
    uid = _matching(_UID, metadata["uid"], "printable characters without spaces", default=_uid(document))
    yield Pod(PodUid(uid), name=name, namespace=namespace, containers=containers, init_containers=init_containers)


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
