"""The content of a manifest: one or more documents, each a Pod, a ResourceClaim or a List of them.

Laws: A manifest is used completely or not at all. Limits count and requests do not, as in the device manager. A pod
without `metadata.uid` gets a UID derived from the file's name and the whole pod, so a changed pod is a new pod
(kubelet: `applyDefaults`). No code for dynamic resource allocation is loaded before a manifest contains a ResourceClaim
or a pod with claims.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from attrs import frozen

from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Pod, PodUid, is_container_resource, is_extended_resource
from devicecore.domain.names import is_dns_label, is_dns_subdomain
from devicecore.domain.objects import pod_of
from devicecore.system.arguments import checks_arguments
from devicecore.system.documents import read_documents

if TYPE_CHECKING:
    from devicecore.adapters.manifests.claims import ManifestClaim

_UID = re.compile(r"[!-~]{1,253}", re.ASCII)


MAX_CONTAINERS = 1_000
"""The maximum number of containers of one pod, including init containers. A large pod has about 20."""


MAX_OBJECTS = 500
"""The maximum number of pods and claims in one manifest. A kubelet runs at most 110 pods by default."""


class ManifestError(DocumentError):
    """A manifest that cannot be used.

    `line` counts from 1; `field` is the path to the value, empty for the whole manifest.
    """


@frozen
class Manifest:
    """The text and the parsed content of a manifest."""

    text: str
    pods: tuple[Pod, ...] = ()
    claims: "tuple[ManifestClaim, ...]" = ()

    def unique_names(self) -> Iterator[str]:
        """Yield the names that no two objects may share."""
        for pod in self.pods:
            yield f"pod {pod.namespace}/{pod.name}"
            yield f"uid {pod.uid}"
        for one in self.claims:
            yield f"ResourceClaim {one.claim.key}"
            yield f"uid {one.claim.uid}"


def read_manifest(text: str, file: str) -> Manifest:
    """Parse a manifest, which is YAML or JSON.

    `file` names the manifest in errors, and pods without a UID get one derived from this name.

    Raises ManifestError if something in the manifest cannot be used, or if the manifest is empty, as a file may be
    while it is being written.
    """
    pods: list[Pod] = []
    claims: list[ManifestClaim] = []
    for document in read_documents(text, file, error=ManifestError):
        for kind, item in objects_in(document):
            if len(pods) + len(claims) == MAX_OBJECTS:
                problem = f"expected at most {MAX_OBJECTS} pods and claims in one file, got more: use several files"
                raise ManifestError(file, None, "", problem)
            if kind == "ResourceClaim":
                claims.append(_claim(item))
            elif kind == "Pod":
                pods.append(read_pod(item))
                for entry in item["spec"]["resourceClaims"].sequence():
                    _check_entry(entry)
            else:
                version = item["apiVersion"].data
                item["kind"].refuse(
                    f"expected a v1 Pod or a resource.k8s.io/v1 ResourceClaim, got {kind!r} of {version!r}"
                    f"{template_hint(kind)}"
                )
    if not pods and not claims:
        raise ManifestError(file, None, "", "expected a pod or a ResourceClaim, got nothing")
    manifest = Manifest(text, tuple(pods), tuple(claims))
    seen: set[str] = set()
    for name in manifest.unique_names():
        if name in seen:
            raise ManifestError(file, None, "", f"{name} is in this file twice")
        seen.add(name)
    return manifest


@checks_arguments()
def read_pods(text: str, file: str) -> tuple[Pod, ...]:
    """Return the pods in a manifest, at least one.

    Args:
        text: YAML or JSON.
        file: the manifest's name. This name appears in errors, and pods without a UID get one derived from the name.

    Raises:
        ManifestError: something in the manifest is unusable, or the manifest contains no pod.
    """
    manifest = read_manifest(text, file)
    if not manifest.pods:
        raise ManifestError(file, None, "", "expected a pod, got a ResourceClaim; also pass its pod")
    return manifest.pods


def pod_objects(text: str, file: str) -> list[object]:
    """Return the Pod objects in a manifest, unchanged and in order."""
    documents = read_documents(text, file, error=ManifestError)
    return [item.data for document in documents for kind, item in objects_in(document) if kind == "Pod"]


def objects_in(document: Value, *, default: tuple[str, str] | None = None) -> Iterator[tuple[str, Value]]:
    """Yield the objects in a document, including the members of lists, each with its kind.

    `default` is the kind and the API version of an object that states neither. Raises the document's kind of error for
    an object without a kind or an API version, and for an object whose API version is not the one that `_VERSIONS`
    lists for its kind.
    """
    kind, version = document["kind"], document["apiVersion"]
    if default is None and kind.data is None:
        kind.refuse("it is missing; expected a Kubernetes object, such as a Pod (apiVersion: v1, kind: Pod)")
    found = kind.text(default and default[0]), version.text(default and default[1])
    if found in {("List", "v1"), ("PodList", "v1")}:
        # The items of a PodList may omit their kind. Only a List may contain other lists.
        for item in document["items"].sequence():
            yield from objects_in(item, default=("Pod", "v1") if found[0] == "PodList" else None)
        return
    expected = _VERSIONS.get(found[0])
    if expected is not None and found[1] != expected:
        version.refuse(f"expected {expected} for a {found[0]}, got {found[1]!r}")
    yield found[0], document


_VERSIONS = {"Pod": "v1", "ResourceClaim": "resource.k8s.io/v1"}
"""The API version of each kind that a manifest may contain."""


def template_hint(kind: str) -> str:
    """Return a hint about the pod template of an object that creates pods, or about the spelling of a kind.

    The hint is an empty string for other kinds.
    """
    if kind not in _MAKES_PODS:
        meant = get_close_matches(kind.lower(), _BY_LOWER_CASE, 1, _SIMILAR)
        spelled = _BY_LOWER_CASE[meant[0]] if meant else kind
        return f"; write it as {spelled}" if spelled != kind else ""
    template = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
    return (
        f". Its pods are created from {template}: write it as a Pod, or use one of its pods: kubectl get pod "
        "NAME -o yaml"
    )


_MAKES_PODS = {"CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"}
_BY_LOWER_CASE = {kind.lower(): kind for kind in (*_MAKES_PODS, "Pod", "ResourceClaim", "ResourceClaimTemplate")}


def read_pod(document: Value) -> Pod:
    """Return the pod that an object describes. Raises the document's kind of error if the object is unusable."""
    _refuse_misspelled(document, ("apiVersion", "kind", "metadata", "spec", "status"))
    _check_names(document)
    spec = document["spec"]
    _refuse_misspelled(spec, ("containers", "initContainers", "resourceClaims"))
    init_containers, containers = spec["initContainers"].sequence(), spec["containers"].sequence()
    count = len(init_containers) + len(containers)
    if count > MAX_CONTAINERS:
        spec.refuse(f"expected at most {MAX_CONTAINERS} containers, got {count}")
    if not containers:
        spec["containers"].refuse("expected at least one container, got none")
    _refuse_misplaced(spec, "spec.containers[].resources")
    for resource, limit in spec["resources"]["limits"].mapping().items():
        if is_extended_resource(resource):
            limit.refuse("a pod as a whole has no limit for devices; write it into spec.containers[].resources")
    claims = _different([entry["name"] for entry in spec["resourceClaims"].sequence()], "entries")
    for container in (*init_containers, *containers):
        _check_container(container, claims)
    _different([container["name"] for container in (*init_containers, *containers)], "containers")
    return pod_of(document, uid=PodUid(_checked_uid(document, default=_uid(document))))


def _refuse_misspelled(value: Value, fields: tuple[str, ...]) -> None:
    """Refuse an object with a field whose name resembles one of `fields`.

    kubectl refuses every field that a Pod does not have. Without this check, a pod with `resource:` requests no device
    and fits everywhere.
    """
    for name, one in value.mapping().items():
        meant = get_close_matches(name, fields, 1, _SIMILAR) if name not in fields else []
        if meant:
            one.refuse(f"there is no such field; expected {meant[0]!r}")


def _refuse_misplaced(value: Value, place: str) -> None:
    """Refuse an object that itself contains a field of `resources`, because the pod would request no device."""
    for name in ("limits", "requests", "claims"):
        if name in value.mapping():
            value[name].refuse(f"there is no such field; write it into {place}")


def _check_entry(entry: Value) -> None:
    """Check an entry of `spec.resourceClaims`, which names either a claim or a template."""
    names = ("resourceClaimName", "resourceClaimTemplateName")
    _refuse_misspelled(entry, names)
    given = [name for name in names if entry[name].data is not None]
    if len(given) != 1:
        entry.refuse(f"expected either {' or '.join(names)}, got {' and '.join(given) or 'neither'}")


_SIMILAR = 0.8  # with a lower limit, two fields of a Pod would match: resources and resourceClaims


def _different(names: list[Value], what: str) -> frozenset[str]:
    """Return the names, which must be unique."""
    seen: set[str] = set()
    for name in names:
        if name.text() in seen:
            name.refuse(f"two {what} have the name {name.text()!r}")
        seen.add(name.text())
    return frozenset(seen)


def _check_container(container: Value, claims: frozenset[str]) -> None:
    """Check what an API server would check: it requires whole numbers of devices, and rounds nothing."""
    _check_name(container["name"], is_dns_label, "main")
    _refuse_misspelled(container, ("resources",))
    resources = container["resources"]
    _refuse_misplaced(container, "resources")
    _refuse_misspelled(resources, ("limits", "requests", "claims"))
    for resource, limit in resources["limits"].mapping().items():
        if not is_container_resource(resource):
            limit.refuse(f"expected a container resource such as cpu or example.com/gpu, got {described(resource)}")
        limit.quantity(whole=is_extended_resource(resource))
    for claim in resources["claims"].sequence():
        if claim["name"].text() not in claims:
            claim["name"].refuse("expected the name of an entry in spec.resourceClaims")


def _claim(document: Value) -> "ManifestClaim":
    from devicecore.adapters.manifests.claims import default_uid, read_claim  # noqa: PLC0415  # only claims load it

    _check_names(document)
    return read_claim(document, _checked_uid(document, default=default_uid(document)))


def _check_names(document: Value) -> None:
    """Check the name and the namespace of an object."""
    metadata = document["metadata"]
    if metadata["name"].data is None and metadata["generateName"].data is not None:
        metadata["generateName"].refuse("expected `name`: only an API server generates names")
    _check_name(metadata["name"], is_dns_subdomain, "train-1")
    if metadata["namespace"].data is not None:
        _check_name(metadata["namespace"], is_dns_label, "default")


def _check_name(value: Value, is_name: Callable[[str], bool], example: str) -> None:
    """Check a name as Kubernetes does. Names reach logs and terminals, so names with other characters are refused."""
    if not is_name(value.text()):
        value.refuse(f"expected a DNS name such as {example}, got {described(value.data)}")


def _checked_uid(document: Value, *, default: str) -> str:
    value = document["metadata"]["uid"]
    uid = value.text(default)
    if not _UID.fullmatch(uid):
        value.refuse(f"expected printable characters without spaces, got {described(uid)}")
    return uid


def _uid(document: Value) -> str:
    """Return a UID that is as long as a kubelet's, which is an MD5 hash of similar input."""
    metadata = document["metadata"]
    identity = [document.file, metadata["namespace"].text("default"), metadata["name"].text(), document.data]
    return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()
