"""Watches the pods that a scheduler has bound to nodes, or Nodes: first a list, then a watch from the list's version.

Laws: a list counts only if it is complete. While the server is down or refuses requests, nothing is reported about any
object, so the known state remains. After `410 Gone`, `400 Bad Request`, an unreadable event, or the third refusal in a
row, the objects are listed again. A list that follows such a failure never comes from a cache that may be older than
the known state. An object with an invalid field is skipped.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Protocol

from devicecore.adapters.kube_api.access import Access, ApiResource, ApiServer, RequestError, check_node_name
from devicecore.adapters.kube_api.http import AnswerTooLargeError
from devicecore.adapters.kube_api.patches import Json
from devicecore.adapters.kube_api.publishing import Backoff
from devicecore.adapters.kube_api.requests import NODES, PODS, SENTENCES, pages, selectors
from devicecore.domain.text import foreign_text
from devicecore.runtime.background import SupervisedThread
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle

_SHORT = 1.0  # in seconds; if a server ends a watch sooner than this, the next watch has to wait
_LAST_SECONDS = 1.0  # seconds for the thread to end after its request was canceled
_BACKOFF = Backoff(0.5, 5.0)  # in seconds; the watch must resume soon after a server returns
_REFUSALS = 3  # after this many refusals in a row, the version itself may be the problem
_OF_CLIENT = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.TOO_MANY_REQUESTS,
)  # these statuses do not mean that the version is wrong

GRANT_SECONDS = 10.0
"""For how many seconds a missing permission is not an error, because the role or the server may be brand new."""

NOT_UNDERSTOOD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The errors that are raised for an object with a field of the wrong type, or with an unusable time or number."""

_log = logging.getLogger(__name__)


class ObjectHandler(Protocol):
    """Receives objects. Only one thread calls a handler, and the handler owns the objects."""

    def wants(self, found: Json) -> bool:
        """Return whether to keep an object, which is dropped otherwise."""

    def listed(self, objects: Sequence[Json]) -> None:
        """Take all selected objects. An object that is not in the list no longer exists or is no longer selected."""

    def seen(self, kind: str, found: Json) -> None:
        """Take one change, which is `ADDED`, `MODIFIED` or `DELETED`, and the object."""


class KubeApiWatch(HasLifecycle):
    """Lists and watches objects of one kind in one thread, and passes them to a handler. Use it as a context manager.

    Args:
        resource: the kind of the objects.
        handler: takes the objects.
        access: where the API server and the credentials are, and how long to wait for them.
        selected: the selectors, as returned by `selectors`.
        backoff: how long to wait after a failure.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
    """

    def __init__(
        self,
        resource: ApiResource,
        handler: ObjectHandler,
        access: Access,
        selected: Mapping[str, str],
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self._access = access
        access.connection()  # reads the credentials' files now, so that errors are raised here
        self._resource = resource
        self._handler = handler
        self._selected = selected
        self._backoff = backoff
        self._lifecycle = Lifecycle(f"the watch of {resource.plural}")
        self._lister = self._watched = ApiServer(access, SENTENCES)
        self._thread: SupervisedThread | None = None
        self._problem: RequestError | None = None
        self._forbidden_since = math.inf

    @property
    def problem(self) -> str | None:
        """Why the objects cannot be watched, or None if no problem is known."""
        problem = self._problem
        return None if problem is None else f"the {self._resource.plural} cannot be watched: {problem}"

    def _begin(self) -> None:
        self._lister, self._watched = (
            ApiServer(self._access, SENTENCES, is_watch=is_watch) for is_watch in (False, True)
        )
        self._thread = SupervisedThread(f"devicecore-{self._resource.plural}", self._work)
        self._thread.start()

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.stop(0)  # announced before the request ends, so that the end of the thread is not unexpected
        self._lister.stop()
        self._watched.stop()
        if self._thread is not None:
            self._thread.stop(_LAST_SECONDS)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _work(self, stopping: threading.Event) -> None:
        version, first, failures = "", "", 0
        while not stopping.is_set():
            began = time.monotonic()
            pause, has_news = 0.0, False
            try:
                if not version:
                    version = self._list()
                first = version
                for kind, one in self._watched.events(
                    self._resource, self._selected, version, _versioned, bookmarks=True
                ):
                    version = one["metadata"]["resourceVersion"]
                    has_news |= kind != "BOOKMARK"
                    if kind != "BOOKMARK" and self._wants(one):
                        self._see(kind, one)
                    self._note_success()
                    failures = 0
                self._note_success()
                # A busy server ends the watch of a slow client. That watch is resumed at once.
                failures = 0 if has_news or time.monotonic() - began >= _SHORT else failures + 1
            except RequestError as problem:
                if stopping.is_set():
                    break
                if problem.kind is AnswerTooLargeError and version != first:
                    continue  # the watch has reached its size limit; a new watch continues from there
                if _is_lost(problem, failures):
                    version = ""
                self._note_problem(problem)
                # A server that answers 410 is working, so its objects are listed soon.
                failures, pause = (0 if problem.kind == HTTPStatus.GONE else failures) + 1, problem.pause
            if failures:
                delay = self._backoff.delay(failures, random.random())  # noqa: S311 - no secret
                stopping.wait(max(delay, pause))
        self._lister.disconnect()
        self._watched.disconnect()

    def _list(self) -> str:
        """Pass all objects to the handler. Return the version of the list."""
        found: list[Json] = []
        version, fields, labels = "", *map(self._selected.get, ("fieldSelector", "labelSelector"))
        try:
            for items, of_page in pages(self._lister.send, self._resource, fields or "", labels or ""):
                version = of_page
                found += [one for one in map(_versioned, items) if self._wants(one)]
        except ValueError as error:
            raise RequestError(str(error), kind="list") from error
        if not version:
            raise RequestError(f"expected the version of a list of {self._resource.plural}, got none", kind="list")
        self._handler.listed(found)
        return version

    def _wants(self, found: Json) -> bool:
        return self._handler.wants(_whole(found, self._resource))

    def _see(self, kind: str, found: Json) -> None:
        try:
            self._handler.seen(kind, found)
        except NOT_UNDERSTOOD as error:
            skipped(self._resource.plural, found, error)

    def _note_problem(self, problem: RequestError) -> None:
        is_forbidden, now = problem.kind == HTTPStatus.FORBIDDEN, time.monotonic()
        self._forbidden_since = min(self._forbidden_since, now) if is_forbidden else math.inf
        if is_forbidden and now - self._forbidden_since < GRANT_SECONDS:
            _log.debug("the %s cannot be watched yet: %s", self._resource.plural, problem)
            return
        if self._problem is None or self._problem.kind != problem.kind:
            if problem.kind == HTTPStatus.GONE:
                text = "the version of the %s is no longer known, so they are listed again: %s"
                _log.info(text, self._resource.plural, problem)
            else:
                text = "the %s cannot be watched: %s; their last known state is used"
                _log.error(text, self._resource.plural, problem)
        self._problem = problem

    def _note_success(self) -> None:
        self._forbidden_since = math.inf
        if self._problem is not None:
            self._problem = None
            _log.warning("the %s are watched again", self._resource.plural)


class KubeApiPods(KubeApiWatch):
    """Watches the pods of one node, or of all nodes if `node` is None.

    Raises ApiAccessError, and NodeNameError if no node can have that name.
    """

    def __init__(
        self,
        handler: ObjectHandler,
        access: Access = Access(),
        *,
        node: str | None = None,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        if node is not None:
            check_node_name(node)
        selected = selectors("spec.nodeName!=" if node is None else f"spec.nodeName={node}", "")
        super().__init__(PODS, handler, access, selected, backoff)


class KubeApiNodes(KubeApiWatch):
    """Watches the Node with a given name, or the Nodes with a given label.

    Raises ApiAccessError, and NodeNameError if no Node can have that name.
    """

    def __init__(self, handler: ObjectHandler, access: Access, *, node: str = "", label: str = "") -> None:
        if node:
            check_node_name(node)
        super().__init__(NODES, handler, access, selectors(f"metadata.name={node}" if node else "", label))


def skipped(what: str, found: Json, error: Exception) -> None:
    """Log in one line that an object is invalid, and why."""
    metadata = found["metadata"]
    place = "/".join(str(one) for one in (metadata.get("namespace"), metadata.get("name")) if one)
    why = f"{type(error).__name__}: {foreign_text(str(error), 200)}"
    _log.error("%s %s is invalid and is skipped: %s", what, foreign_text(place), why)


def node_of(pod: Json) -> str:
    """Return the name of the node that a pod is bound to, or an empty string if it is unbound."""
    return str(pod["spec"].get("nodeName") or "")


def _is_lost(problem: RequestError, failures: int) -> bool:
    """Return whether a watch cannot continue after its last event: its version or the next event is unusable."""
    kind = problem.kind
    if isinstance(kind, type):
        return issubclass(kind, ValueError | RecursionError) and not problem.is_unreachable
    if kind in (HTTPStatus.GONE, HTTPStatus.BAD_REQUEST, "object", None):
        return True
    is_refused = isinstance(kind, int) and 400 <= kind < 500 and kind not in _OF_CLIENT
    return is_refused and failures + 1 >= _REFUSALS


def _versioned(sent: Json) -> Json:
    """Return an object without large unused fields. Raises ValueError if the object has no version."""
    metadata = sent.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("resourceVersion"), str):
        message = "expected an object with a version, got something else"
        raise ValueError(message)  # noqa: TRY004 - as for a response that is not JSON
    metadata.pop("managedFields", None)
    return sent


def _whole(found: Json, resource: ApiResource) -> Json:
    """Check and return an object that is not a bookmark.

    Raises RequestError if the UID, the name or the containers are missing.
    """
    metadata, spec = found["metadata"], found.get("spec")
    is_whole = isinstance(metadata.get("name"), str) and isinstance(metadata.get("uid"), str)
    if resource is PODS:
        containers = spec.get("containers") if isinstance(spec, dict) else None
        is_whole &= isinstance(containers, list) and all(isinstance(one, dict) for one in containers)
    if not is_whole:
        what = "a pod with a name, a UID and containers" if resource is PODS else "an object with a name and a UID"
        raise RequestError(f"expected {what}, got something else", kind="object")
    return found
