"""A minimal client for a real API server."""

import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Self

import httpx2
from attrs import define, field, frozen

from tests.real_cluster.certificates import Pair
from tests.real_cluster.programs import wait_for

Json = Any

_CORE = {
    "Node": "nodes",
    "Namespace": "namespaces",
    "Pod": "pods",
    "Event": "events",
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "ServiceAccount": "serviceaccounts",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "PersistentVolume": "persistentvolumes",
    "ResourceQuota": "resourcequotas",
}
_NAMED = {
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "ResourceClaim": ("resource.k8s.io/v1", "resourceclaims"),
    "ResourceClaimTemplate": ("resource.k8s.io/v1", "resourceclaimtemplates"),
    "ResourceSlice": ("resource.k8s.io/v1", "resourceslices"),
    "DeviceClass": ("resource.k8s.io/v1", "deviceclasses"),
    "DeviceTaintRule": ("resource.k8s.io/v1", "devicetaintrules"),
    "RuntimeClass": ("node.k8s.io/v1", "runtimeclasses"),
    "Deployment": ("apps/v1", "deployments"),
    "DaemonSet": ("apps/v1", "daemonsets"),
    "Job": ("batch/v1", "jobs"),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "PriorityClass": ("scheduling.k8s.io/v1", "priorityclasses"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "StorageClass": ("storage.k8s.io/v1", "storageclasses"),
    "CSINode": ("storage.k8s.io/v1", "csinodes"),
    "CSIDriver": ("storage.k8s.io/v1", "csidrivers"),
    "CSIStorageCapacity": ("storage.k8s.io/v1", "csistoragecapacities"),
}
_WITHOUT_NAMESPACE = {
    "Node",
    "Namespace",
    "ResourceSlice",
    "DeviceClass",
    "DeviceTaintRule",
    "RuntimeClass",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "PriorityClass",
    "StorageClass",
    "CSINode",
    "CSIDriver",
    "PersistentVolume",
}


@frozen
class RefusedError(Exception):
    """The API server rejected a request. `status` is the HTTP status, and `answer` is the parsed response."""

    status: int
    answer: Json

    def __str__(self) -> str:
        return f"HTTP {self.status}: {self.answer.get('message') if isinstance(self.answer, dict) else self.answer}"


def path(kind: str, name: str = "", namespace: str = "default", subresource: str = "") -> str:
    """Return the path of an object, or of a kind's objects in a namespace (or in all, if `namespace` is empty)."""
    api, plural = ("api/v1", _CORE[kind]) if kind in _CORE else ("apis/" + _NAMED[kind][0], _NAMED[kind][1])
    inside = ["namespaces", namespace] if namespace and kind not in _WITHOUT_NAMESPACE else []
    return "/" + "/".join(part for part in (api, *inside, plural, name, subresource) if part)


@define
class Client:
    """Sends requests with the certificate of one identity."""

    _http: httpx2.Client = field(alias="http")

    @classmethod
    def of(cls, server: str, authority: str, pair: Pair) -> Self:
        """Return a client for the API server at the URL `server`, whose certificate authority is in a file."""
        context = ssl.create_default_context(cafile=authority)
        context.load_cert_chain(pair.certificate, pair.key)
        return cls(httpx2.Client(base_url=server, verify=context, timeout=30.0, trust_env=False))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def raw(
        self,
        method: str,
        where: str,
        body: Json = None,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Send one request and return the response, whatever its status. Raises OSError if there is no response."""
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {} if content is None else {"Content-Type": kind}
        try:
            return self._http.request(method, where, content=content, headers=headers, params=dict(query or {}))
        except httpx2.HTTPError as error:
            raise OSError(f"{method} {where}: {error!r}") from error

    def send(
        self,
        method: str,
        where: str,
        body: Json = None,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Send one request and return the parsed response. Raises RefusedError, or OSError if there is no response."""
        answer = self.raw(method, where, body, kind, query)
        parsed = answer.json() if answer.headers.get("Content-Type", "").startswith("application/json") else answer.text
        if answer.status_code >= httpx2.codes.BAD_REQUEST:
            raise RefusedError(answer.status_code, parsed)
        return parsed

    def get(self, kind: str, name: str, namespace: str = "default") -> Json:
        """Return an object, or None if there is no such object."""
        try:
            return self.send("GET", path(kind, name, namespace))
        except RefusedError as error:
            if error.status == httpx2.codes.NOT_FOUND:
                return None
            raise

    def list(self, kind: str, namespace: str = "", **query: str) -> list[Json]:
        """Return the objects of a kind. `query` may contain parameters such as `fieldSelector`."""
        found: list[Json] = self.send("GET", path(kind, "", namespace), query=query)["items"]
        return found

    def create(self, body: Json) -> Json:
        """Create an object, by default in the namespace `default`."""
        api = _NAMED.get(body["kind"], ("v1",))[0]
        where = path(body["kind"], "", body["metadata"].get("namespace", "default"))
        return self.send("POST", where, {"apiVersion": api, **body})

    def patch(self, kind: str, name: str, body: Json, namespace: str = "default", subresource: str = "") -> Json:
        """Change an object with a JSON merge patch."""
        where = path(kind, name, namespace, subresource)
        return self.send("PATCH", where, body, "application/merge-patch+json")

    def delete(self, kind: str, name: str, namespace: str = "default", grace: int | None = None) -> None:
        """Delete an object if it exists. `grace` is in seconds."""
        try:
            self.send("DELETE", path(kind, name, namespace), None if grace is None else {"gracePeriodSeconds": grace})
        except RefusedError as error:
            if error.status != httpx2.codes.NOT_FOUND:
                raise

    def wait_for_phase(self, pod: str, phase: str, namespace: str = "default") -> Json:
        """Wait until a pod is in a phase, and return the pod."""
        return self.wait("Pod", pod, f"to be {phase}", lambda one: one["status"].get("phase") == phase, namespace)

    def wait(
        self,
        kind: str,
        name: str,
        expected: str,
        look: Callable[[Json], object],
        namespace: str = "default",
        timeout: float = 60.0,
    ) -> Json:
        """Wait until `look` is true for an object, and return that object. `expected` describes the condition."""
        last: list[Json] = [None]

        def found() -> Json:
            last[0] = self.get(kind, name, namespace)
            return last[0] if last[0] is not None and look(last[0]) else None

        try:
            return wait_for(f"{kind} {name} {expected}", found, timeout)
        except Exception as error:
            shown = last[0] and {"status": last[0].get("status")}
            error.add_note(f"last seen: {json.dumps(shown)[:4000]}")
            raise
