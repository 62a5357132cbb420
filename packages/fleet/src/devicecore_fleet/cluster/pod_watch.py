"""The pods that a scheduler has bound to nodes: a list, and then a watch from its version.

Laws: A list counts only when it is whole. While the server is away, or refuses, nothing is said of any pod, so what was
known stays known. After `410 Gone`, or an event that cannot be read, the pods are listed anew, never from a cache that
may be older than what is known.
"""

import logging
import random
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

from devicecore.adapters.kube_api.access import Access, ApiServer, RequestError, check_node_name
from devicecore.adapters.kube_api.http import AnswerTooLargeError
from devicecore.adapters.kube_api.patches import Json
from devicecore.adapters.kube_api.publishing import Backoff
from devicecore.adapters.kube_api.requests import PODS, SENTENCES, pages
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.system.background import SupervisedThread

_SHORT = 1.0  # seconds; a server that ends watches sooner is left alone for a while
_LAST_SECONDS = 1.0  # for the thread to end after its request was ended

_log = logging.getLogger(__name__)


class PodHandler(Protocol):
    """What takes pods. One thread calls it; the objects are the handler's own."""

    def wants(self, node: str) -> bool:
        """Whether the pods of a node matter. Others are dropped."""

    def listed(self, pods: Sequence[Json]) -> None:
        """Take all pods there are. A pod that is not among them does not exist any more, or is bound to no node."""

    def seen(self, kind: str, pod: Json) -> None:
        """Take one change: `ADDED`, `MODIFIED` or `DELETED`, and the pod."""


class KubeApiPods(HasLifecycle):
    """Lists and watches pods, in one thread, and gives them to a handler. Use it as a context manager.

    Args:
        handler: takes the pods.
        access: where the API server and the credentials are, and how long to wait for them.
        node: the node whose pods are watched; None for the pods of all nodes.
        backoff: how long to wait after a failure.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
        NodeNameError: no node can have that name.
    """

    def __init__(
        self, handler: PodHandler, access: Access = Access(), *, node: str | None = None, backoff: Backoff = Backoff()
    ) -> None:
        if node is not None:
            check_node_name(node)
        self._access = access
        access.connection()  # files are read now, so that errors are raised
        self._handler = handler
        self._selector = "spec.nodeName!=" if node is None else f"spec.nodeName={node}"
        self._backoff = backoff
        self._lifecycle = Lifecycle("the watch of pods")
        self._lister = self._watched = ApiServer(access, SENTENCES)
        self._thread: SupervisedThread | None = None
        self._problem: RequestError | None = None

    @property
    def problem(self) -> str | None:
        """Why the pods are not known as they are now; None if no problem is known."""
        problem = self._problem
        return None if problem is None else f"the pods cannot be watched: {problem}"

    def _begin(self) -> None:
        self._lister, self._watched = (
            ApiServer(self._access, SENTENCES, is_watch=is_watch) for is_watch in (False, True)
        )
        self._thread = SupervisedThread("devicecore-pods", self._work)
        self._thread.start()

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.stop(0)  # before it can see that its request has ended, so that the end is expected
        self._lister.stop()
        self._watched.stop()
        if self._thread is not None:
            self._thread.stop(_LAST_SECONDS)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _work(self, stopping: threading.Event) -> None:
        version, first, failures = "", "", 0
        while not stopping.is_set():
            began = time.monotonic()
            pause = 0.0
            try:
                if not version:
                    version = self._list()
                first = version
                for kind, pod in self._watched.events(PODS, self._selector, version, _pod, bookmarks=True):
                    version = pod["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK" and self._handler.wants(_node(_whole(pod))):
                        self._handler.seen(kind, pod)
                    self._is_well()
                    failures = 0
                self._is_well()
                failures = failures + 1 if time.monotonic() - began < _SHORT else 0
            except RequestError as problem:
                if stopping.is_set():
                    break
                if problem.kind is AnswerTooLargeError and version != first:
                    continue  # a busy watch has reached its limit, and goes on in a new one
                if _is_lost(problem):
                    version = ""
                self._is_ill(problem)
                failures, pause = failures + 1, problem.pause
            if failures:
                delay = self._backoff.delay(failures, random.random())  # noqa: S311 - no secret
                stopping.wait(max(delay, pause))
        self._lister.disconnect()
        self._watched.disconnect()

    def _list(self) -> str:
        """Give all pods to the handler. Return the version of the list."""
        found: list[Json] = []
        version = ""
        try:
            for items, of_page in pages(self._lister.send, PODS, self._selector):
                version = of_page
                found += [pod for pod in map(_pod, items) if self._handler.wants(_node(_whole(pod)))]
        except ValueError as error:
            raise RequestError(str(error), kind="list") from error
        if not version:
            raise RequestError("expected the version of a list of pods, got none", kind="list")
        self._handler.listed(found)
        return version

    def _is_ill(self, problem: RequestError) -> None:
        if self._problem is None or self._problem.kind != problem.kind:
            if problem.kind == HTTPStatus.GONE:
                _log.info("the versions of pods are no longer known, so the pods are listed again: %s", problem)
            else:
                _log.error("the pods cannot be watched: %s; what is known of them stays", problem)
        self._problem = problem

    def _is_well(self) -> None:
        if self._problem is not None:
            self._problem = None
            _log.warning("the pods are watched again")


def _is_lost(problem: RequestError) -> bool:
    """Whether a watch cannot go on after its last event: versions are unknown, or the next event cannot be read."""
    kind = problem.kind
    if isinstance(kind, type):
        return issubclass(kind, ValueError | RecursionError) and not problem.is_unreachable
    return kind in (HTTPStatus.GONE, HTTPStatus.BAD_REQUEST, "pod", None)


def _pod(sent: Json) -> Json:
    """Return a pod without what nobody uses and much memory keeps. Raises ValueError if it has no version."""
    metadata = sent.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("resourceVersion"), str):
        message = "expected a pod with a version, got something else"
        raise ValueError(message)  # noqa: TRY004 - as for an answer that is no JSON
    metadata.pop("managedFields", None)
    return sent


def _whole(pod: Json) -> Json:
    """Return a pod that is more than a bookmark. Raises RequestError if it has no UID, name or containers."""
    metadata, spec = pod["metadata"], pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    is_named = isinstance(metadata.get("name"), str) and isinstance(metadata.get("uid"), str)
    if not is_named or not isinstance(containers, list) or not all(isinstance(one, dict) for one in containers):
        raise RequestError("expected a pod with a name, a UID and containers, got something else", kind="pod")
    return pod


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName") or "")
