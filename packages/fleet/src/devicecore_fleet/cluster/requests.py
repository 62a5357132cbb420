"""Reads and writes objects of any kind on an API server.

Law: a method returns the server's answer or raises a `RequestError`.
"""

from http import HTTPStatus

from devicecore.adapters.kube_api.access import ANY, METADATA_ONLY, Access, ApiRequest, ApiResource, RequestError
from devicecore.adapters.kube_api.patches import Json, PatchType
from devicecore.adapters.kube_api.requests import MAX_IDLE, ApiServers, pages

_WRITTEN = {"fieldManager": "devicecore"}


class KubeApiRequests(ApiServers):
    """Reads and writes objects of any kind. Thread-safe. Use it as a context manager.

    Every method raises `RequestError` if the server refuses or does not answer, or if this object is not started.

    Args:
        access: where the API server and the credentials are, and how long to wait for them.
        connections: how many connections are kept open.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
    """

    def __init__(self, access: Access = Access(), connections: int = MAX_IDLE) -> None:
        super().__init__("the client of the API server", access, connections)

    def get(self, resource: ApiResource, name: str, namespace: str = "") -> dict[str, Json]:
        """Return the current object."""
        return self._send(ApiRequest(f"get {resource.plural}", "GET", resource.path(namespace, name)))

    def find(self, resource: ApiResource, name: str, namespace: str = "") -> dict[str, Json] | None:
        """Return the current object, or None if there is none.

        In the core group, a 404 counts only if it contains an API server's Status, because a different program may
        answer at the address.
        """
        try:
            return self.get(resource, name, namespace)
        except RequestError as error:
            if error.status != HTTPStatus.NOT_FOUND or not (resource.group or error.reason == "NotFound"):
                raise
            return None

    def list(
        self,
        resource: ApiResource,
        fields: str = "",
        *,
        labels: str = "",
        namespace: str = "",
        metadata_only: bool = False,
    ) -> list[Json]:
        """Return all objects that match both selectors, or only the metadata of these objects.

        The objects are in the given namespace, or in any namespace if `namespace` is empty.
        """
        accept = METADATA_ONLY if metadata_only else ANY
        found = pages(self._send, resource, fields, labels, namespace=namespace, accept=accept)
        return [one for items, _ in found for one in items]

    def create(self, resource: ApiResource, body: Json, namespace: str = "") -> dict[str, Json]:
        """Create an object. Return the object as the server has stored it."""
        path = resource.path(namespace)
        return self._send(ApiRequest(f"create {resource.plural}", "POST", path, _WRITTEN, body))

    def update(self, resource: ApiResource, body: Json, namespace: str = "") -> dict[str, Json]:
        """Replace an object if it still has the version in `body`. Return the object as the server has stored it."""
        path = resource.path(namespace, str(body["metadata"]["name"]))
        return self._send(ApiRequest(f"update {resource.plural}", "PUT", path, _WRITTEN, body))

    def patch(
        self, resource: ApiResource, name: str, body: Json, namespace: str = "", *, subresource: str = ""
    ) -> dict[str, Json]:
        """Change an object with a strategic merge patch. Return the object as the server has stored it."""
        path = resource.path(namespace, name, subresource)
        permission = "/".join(filter(None, (f"patch {resource.plural}", subresource)))
        return self._send(ApiRequest(permission, "PATCH", path, _WRITTEN, body, PatchType.STRATEGIC.value))

    def delete(
        self, resource: ApiResource, name: str, namespace: str = "", *, uid: str, grace: int | None = None
    ) -> None:
        """Delete the object with this UID, after `grace` seconds if given."""
        body: dict[str, Json] = {"preconditions": {"uid": uid}}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        self._send(ApiRequest(f"delete {resource.plural}", "DELETE", resource.path(namespace, name), {}, body))

    @property
    def sent(self) -> int:
        """The number of requests sent."""
        return self._sent

    @property
    def answered(self) -> float:
        """The time at which the latest answered request was started, in `time.monotonic` seconds.

        Answers that ask for a pause do not count. Before the first answer, the value is minus infinity.
        """
        return self._answered
