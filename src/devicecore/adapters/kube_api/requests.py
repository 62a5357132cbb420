"""Requests to an API server from several threads, for objects of any kind.

Law: a request that waits for the server does not delay other requests.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from devicecore.adapters.kube_api.access import (
    ANY,
    Access,
    ApiRequest,
    ApiResource,
    ApiServer,
    RequestError,
    causes,
    connection_of,
)
from devicecore.adapters.kube_api.http import AnswerTooLargeError
from devicecore.adapters.kube_api.patches import Json
from devicecore.domain.errors import NotStartedError
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle

MAX_IDLE = 8
"""The number of connections to keep for later calls."""

PAGE = 500
"""Objects per page of a list, as many as a kubelet requests."""

MAX_PAGES = 1_000
"""The maximum number of pages of one list, because the server could keep sending pages."""

SENTENCES = {
    404: "there is no such object",
    409: "another client has changed the object",
    422: "the request is invalid, or a policy refuses it",
}
"""What each HTTP status of a refusal means, for objects of any kind."""


NODES = ApiResource("", "v1", "nodes")
PODS = ApiResource("", "v1", "pods")
EVENTS = ApiResource("", "v1", "events")
LEASES = ApiResource("coordination.k8s.io", "v1", "leases")
CLAIMS = ApiResource("resource.k8s.io", "v1", "resourceclaims")
CLASSES = ApiResource("resource.k8s.io", "v1", "deviceclasses")
SLICES = ApiResource("resource.k8s.io", "v1", "resourceslices")


class ApiServers(HasLifecycle):
    """Connections to one API server: each call in progress has its own connection. A stop aborts the requests.

    At most `idle` connections are kept for later calls.
    """

    def __init__(self, name: str, access: Access, idle: int = MAX_IDLE) -> None:
        connection_of(access)
        self._access = access
        self._most_idle = idle
        self._lock = threading.Lock()  # held while the two lists change, never during a request
        self._idle: list[ApiServer] = []
        self._used: list[ApiServer] = []
        self._answered = float("-inf")
        self._sent = 0
        self._lifecycle = Lifecycle(name)

    def _begin(self) -> None:
        pass  # each call connects if needed

    def _end(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            used = tuple(self._used)
        for server in used:
            server.stop()
        for server in idle:
            server.disconnect()

    def _send(self, request: ApiRequest) -> dict[str, Json]:
        """Send a request, and return the object in the answer. Raises RequestError, also if `start` was not called."""
        began = time.monotonic()
        try:
            self._lifecycle.check_running()
            server = self._take()
            try:
                answer = server.send(request)
            finally:
                self._give_back(server)
        except NotStartedError as error:
            raise RequestError(str(error)) from error
        except RequestError as error:
            if not error.is_outage:
                self._answered = began
            raise
        if not isinstance(answer, dict):
            message = f"expected an object in the answer to {request.permission!r}, got something else"
            raise RequestError(message)
        self._answered = began
        return answer

    def _take(self) -> ApiServer:
        with self._lock:
            server = self._idle.pop() if self._idle else ApiServer(self._access, SENTENCES)
            if not self._lifecycle.is_running:
                server.stop()
            self._used.append(server)
            self._sent += 1
        return server

    def _give_back(self, server: ApiServer) -> None:
        with self._lock:
            self._used.remove(server)
            is_kept = self._lifecycle.is_running and len(self._idle) < self._most_idle
            if is_kept:
                self._idle.append(server)
        if not is_kept:
            server.disconnect()


def all_of(server: ApiServer, resource: ApiResource, fields: str = "", *, page: int = PAGE) -> tuple[list[Json], str]:
    """Return the objects that a field selector matches, and the version of the list.

    All pages together may take twice as long as one answer. Raises RequestError.
    """

    def answer() -> tuple[list[Json], str]:
        found: list[Json] = []
        version = ""
        for items, version in pages(server.answer, resource, fields, page=page):  # noqa: B007 - of the last page
            found += items
        return found, version

    return server.ask(ApiRequest(f"list {resource.plural}", "GET", resource.path()), answer)


def pages(
    send: Callable[[ApiRequest], Json],
    resource: ApiResource,
    fields: str,
    labels: str = "",
    *,
    namespace: str = "",
    page: int = PAGE,
    accept: str = ANY,
) -> Iterator[tuple[list[Json], str]]:
    """Yield the objects that both selectors match, page by page, each page with the version of the list.

    An empty namespace selects the objects in all namespaces. If a page is too large, smaller pages are requested.

    Raises RequestError if an answer is not a list, or the list has too many pages.
    """
    query = {"limit": str(page), **selectors(fields, labels)}
    for _ in range(MAX_PAGES):
        try:
            path = resource.path(namespace)
            answer = send(ApiRequest(f"list {resource.plural}", "GET", path, query, accept=accept))
        except (AnswerTooLargeError, RequestError) as error:
            if page == 1 or not any(isinstance(one, AnswerTooLargeError) for one in causes(error)):
                raise
            page //= 2
            query["limit"] = str(page)
            continue
        items, version, token = _page_of(answer)
        yield items, version
        if not token:
            return
        query["continue"] = token
    message = f"a list of {resource.plural} has more than {MAX_PAGES} pages"
    raise RequestError(message)


def selectors(fields: str, labels: str) -> dict[str, str]:
    """Return the parameters to list or watch the objects that both selectors match.

    An empty selector matches all objects.
    """
    return {name: one for name, one in (("fieldSelector", fields), ("labelSelector", labels)) if one}


def _page_of(answer: Json) -> tuple[list[Json], str, str]:
    """Return a page's objects, the list's version, and the token for the next page, which is empty on the last page.

    Raises RequestError if the answer is not a list.
    """
    metadata = answer.get("metadata") if isinstance(answer, Mapping) else None
    items = answer.get("items") if isinstance(answer, Mapping) else None
    if not isinstance(metadata, Mapping) or not isinstance(items, list | None):
        message = "expected a list of objects, got something else"
        raise RequestError(message)
    objects = [one for one in items or () if isinstance(one, dict)]
    return objects, str(metadata.get("resourceVersion") or ""), str(metadata.get("continue") or "")
