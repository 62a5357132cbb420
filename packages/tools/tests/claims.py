"""Manifests with one ResourceClaim, for tests of pods and DRA drivers."""

from collections.abc import Mapping
from typing import Any

DRIVER = "gpu.example.com"


def claim(name: str = "shared", driver: str = DRIVER, device: str = "dev-0", **status: object) -> dict[str, Any]:
    """Return a ResourceClaim with a device on node `n1` allocated to it."""
    result = {"request": "gpu", "driver": driver, "pool": "n1", "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "status": {"allocation": {"devices": {"results": [result]}}, **status},
    }


def pod(
    name: str, claim_name: str = "shared", *, limits: Mapping[str, int] | None = None, **entry: str
) -> dict[str, Any]:
    """Return a pod with a claim. `entry` replaces the claim's name in the pod's entry for the claim."""
    resources = {"claims": [{"name": "mine"}], "limits": limits or {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}"},
        "spec": {
            "resourceClaims": [{"name": "mine", **(entry or {"resourceClaimName": claim_name})}],
            "containers": [{"name": "main", "image": "i", "resources": resources}],
        },
    }
