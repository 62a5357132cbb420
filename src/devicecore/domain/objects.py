"""Turns API objects into pods, whether they come from the API server, a kubelet or a manifest.

Law: any parsed JSON results in a pod or in an error that names the field. Every source of pods uses this function, so
an object results in the same pod no matter where it was read.
"""

from devicecore.domain.checks import repeated
from devicecore.domain.documents import Value, check_kind
from devicecore.domain.model import Container, ContainerClaim, ExtendedClaim, Pod, PodClaim, PodUid, RequestMapping
from devicecore.domain.text import foreign_text


def pod_of(manifest: object, *, uid: PodUid | None = None) -> Pod:
    """Return a pod of API version v1.

    Args:
        manifest: parsed JSON, or a `Value` of a document.
        uid: a UID to use instead of the manifest's. If `uid` is given, the manifest need not contain a UID.

    Raises:
        DocumentError: the manifest is a different kind of object, a field has the wrong type, a name or UID is missing,
            or two containers have the same name.
    """
    pod = Value.of(manifest, "Pod")
    check_kind(pod, "Pod")
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    init_containers, containers = spec["initContainers"].sequence(), spec["containers"].sequence()
    if twice := repeated(one["name"].text() for one in (*init_containers, *containers)):
        spec["containers"].refuse(f"expected containers with different names, got {foreign_text(twice, 100)} twice")
    return Pod(
        uid or PodUid(metadata["uid"].text()),
        name=metadata["name"].text(),
        namespace=metadata["namespace"].text("default"),
        containers=[_container(one) for one in containers],
        init_containers=[_container(one) for one in init_containers],
        claims=[
            PodClaim(
                entry["name"].text(),
                entry["resourceClaimName"].text("") or None,
                entry["resourceClaimTemplateName"].text("") or None,
            )
            for entry in spec["resourceClaims"].sequence()
        ],
        generated_claims={
            entry["name"].text(): entry["resourceClaimName"].text("") or None
            for entry in status["resourceClaimStatuses"].sequence()
        },
        extended_claim=_extended_claim(status["extendedResourceClaimStatus"]),
    )


def _container(container: Value) -> Container:
    resources = container["resources"]
    limits = {name: amount.quantity() for name, amount in resources["limits"].mapping().items()}
    requests = {name: amount.quantity() for name, amount in resources["requests"].mapping().items()}
    return Container(
        container["name"].text(),
        limits,
        container["restartPolicy"].text("") == "Always",
        claims=[ContainerClaim(one["name"].text(), one["request"].text("")) for one in resources["claims"].sequence()],
        requests={name: count for name, count in requests.items() if count != limits.get(name)},
    )


def _extended_claim(status: Value) -> ExtendedClaim | None:
    if status.data is None:
        return None
    mappings = [
        RequestMapping(row["containerName"].text(), row["resourceName"].text(), row["requestName"].text(""))
        for row in status["requestMappings"].sequence()
    ]
    return ExtendedClaim(status["resourceClaimName"].text(), mappings)
