"""The pods that a manifest describes: one or many documents, each a Pod or a List of pods.

Law: all of it counts or none of it. Limits count and requests do not, as in the device manager. A pod without
`metadata.uid` gets one made of its file's name and of all it says, so that a changed pod is a new pod (kubelet:
`applyDefaults`).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import chain

from devicecore.adapters.manifests.values import ManifestError, Value, blaming, documents
from devicecore.domain.model import Container, Pod, PodUid, is_container_resource, is_extended_resource


def read_pods(text: str, file: str) -> tuple[Pod, ...]:
    """The pods in a manifest. `file` is its name, for errors and for the UIDs of pods that have none.

    Raises:
        ManifestError: any of it cannot be used; also if there is no pod in it, as in a file that is being written.
    """
    with blaming(file):
        pods = tuple(chain.from_iterable(map(_pods_in, documents(text, file))))
    if not pods:
        raise ManifestError(file, None, "", "there is no pod in it")
    seen: set[str] = set()
    for name in unique_names(pods):
        if name in seen:
            raise ManifestError(file, None, "", f"{name} is in it twice")
        seen.add(name)
    return pods


def unique_names(pods: Iterable[Pod]) -> Iterator[str]:
    """What no two pods may have in common."""
    for pod in pods:
        yield f"pod {pod.namespace}/{pod.name}"
        yield f"uid {pod.uid}"


def _pods_in(document: Value, *, default: tuple[str, str] | None = None) -> Iterator[Pod]:
    kind, version = document["kind"], document["apiVersion"]
    said = kind.text(default and default[0]), version.text(default and default[1])
    if said in {("List", "v1"), ("PodList", "v1")}:
        # The items of a PodList may leave out what they are.
        for item in document["items"].sequence():
            yield from _pods_in(item, default=("Pod", "v1") if said[0] == "PodList" else None)
        return
    if said != ("Pod", "v1"):
        kind.refuse(f"it is a {said[0]} of {said[1]}, and not a Pod of v1")
    metadata, spec = document["metadata"], document["spec"]
    name = metadata["name"].text()
    namespace = metadata["namespace"].text("default")
    containers = _containers(spec["containers"])
    init_containers = _containers(spec["initContainers"])
    if not containers:
        spec["containers"].refuse("a pod has at least one container")
    names = [container.name for container in (*init_containers, *containers)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        spec.refuse(f"two containers are called {twice!r}")
    uid = metadata["uid"].text(_uid(document, namespace, name))
    yield Pod(PodUid(uid), name, namespace, containers, init_containers)


def _containers(value: Value) -> tuple[Container, ...]:
    containers = []
    for container in value.sequence():
        policy = container["restartPolicy"]
        restartable = policy.text("") == "Always"
        containers.append(Container(container["name"].text(), _limits(container["resources"]["limits"]), restartable))
    return tuple(containers)


def _limits(value: Value) -> dict[str, int]:
    """Limits as an API server lets them pass: only a scheduler and a kubelet round what they are given."""
    limits = {}
    for resource, limit in value.mapping().items():
        if not is_container_resource(resource):
            limit.refuse(f"{resource!r} is not a resource that a container can have, such as cpu or example.com/gpu")
        limits[resource] = limit.quantity(integer=is_extended_resource(resource))
    return limits


def _uid(document: Value, namespace: str, name: str) -> str:
    """As long as a kubelet's, which is an MD5 of the same things."""
    said = json.dumps([document.file, namespace, name, document.plain()], sort_keys=True)
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
