"""Publishes the devices of a DRA driver as ResourceSlices of its node, and repairs them.

Laws: after any failure the publisher tries again with the newest devices, and `problem` says why they are not
published. It writes nothing while the slices are right, and deletes nothing when it is stopped: the next instance of
the driver takes them over, and a kubelet deletes those of a driver that stays away.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus

from devicecore.adapters.kube_api.access import Access, ApiRequest, ApiServer, NodeNameError, Problem
from devicecore.adapters.kube_api.backoff import Backoff
from devicecore.adapters.kube_api.patches import Json
from devicecore.adapters.kube_api.requests import NODES, SLICES, all_of
from devicecore.domain.dra.errors import SlicePublishError
from devicecore.domain.dra.model import DriverName
from devicecore.domain.dra.objects import slice_of
from devicecore.domain.dra.slices import DevicePool, PublishedDevice, SliceChanges, canonical, changes
from devicecore.domain.errors import NotStartedError
from devicecore.domain.names import is_dns_subdomain
from devicecore.domain.text import foreign_text
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.system.background import SupervisedThread, bounded_backoff

_log = logging.getLogger(__name__)

_LAST_SECONDS = 1.0  # for a thread to end after its request was ended
_SETTLE = 0.2  # seconds in which changes by others are awaited together, because a wipe deletes one slice after another
_MAX_REPAIR_PAUSE = 30.0  # seconds between two repairs if another client keeps changing the slices
_REPAIRS_FORGOTTEN = 300.0  # seconds after a repair at which the pause begins anew
_MAX_ATTEMPTS = 5  # in a row, if other clients write at the same time
_CHUNK = 100  # slices of a list
_SENTENCES = {
    404: "the API server has no ResourceSlices of resource.k8s.io/v1, or one was deleted meanwhile",
    409: "others keep changing the ResourceSlices",
    422: "a ResourceSlice is refused as invalid or by a policy",
}


class KubeApiSlicePublisher(HasLifecycle):
    """Publishes the devices of one driver on one node. Thread-safe.

    Use it as a context manager, or call `start` and `stop`. What was published before a stop is published again after a
    start.

    A thread publishes what `publish` was given last, and tries again after a failure. Another thread watches: if a
    kubelet deletes the slices, or another client changes them, they are written again within seconds.

    Args:
        driver: the driver's name.
        node: the name of the Node object, which becomes the owner of the slices. Nothing is published before it exists.
        access: where the API server and the credentials are, and how long to wait for them.
        pool: the pool's name; without it, the node's.
        backoff: how long to wait after a failure.
        resync: seconds after which the slices are compared even if the watch shows no change.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
        NodeNameError: no node can have that name.
        InvalidPoolError: no driver or no pool can have that name.
    """

    def __init__(
        self,
        driver: str,
        node: str,
        access: Access = Access(),
        *,
        pool: str | None = None,
        backoff: Backoff = Backoff(),
        resync: float = 300.0,
    ) -> None:
        if not is_dns_subdomain(node):
            raise NodeNameError(node)
        self._empty = DevicePool(DriverName(driver), node, node if pool is None else pool, ())
        access.connection()  # files are read now, so that errors are raised
        self._new_server = partial(ApiServer, node, access, "devicecore")
        self._node, self._server, self._watched = self._new_servers()
        self._selector = f"spec.driver={driver},spec.nodeName={node}"
        self._backoff = backoff
        self._resync = resync
        self._condition = threading.Condition()  # held while the fields below change, never during a request
        self._wanted: DevicePool | None = None
        self._published: DevicePool | None = None
        self._seen_version: str | None = None  # of the list that was compared last; the watch begins there
        self._is_changed = self._closing = False
        self._problem: SlicePublishError | None = None
        # Used by the publishing thread only:
        self._generation = 1  # the lowest that may be written
        self._returned: dict[str, str] = {}
        self._attempted: DevicePool | None = None
        self._repairs: list[float] = []  # when slices were written again that others had changed, in monotonic seconds
        self._lifecycle = Lifecycle("the publisher of slices")
        self._publisher = self._new_publisher()
        self._watcher = self._new_watcher()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop publishing; the slices stay. A second stop does nothing.

        Args:
            timeout: seconds for the request that is under way, after which it is ended.
        """
        self._lifecycle.stop(partial(self._end, timeout))

    def _new_servers(self) -> tuple[ApiServer, ApiServer, ApiServer]:
        new = self._new_server
        return new(), new(sentences=_SENTENCES), new(is_watch=True, sentences=_SENTENCES)

    def _new_publisher(self) -> SupervisedThread:
        return SupervisedThread("devicecore-slices", self._work)

    def _new_watcher(self) -> SupervisedThread:
        return SupervisedThread("devicecore-slices-watch", self._watch)

    def _begin(self) -> None:
        self._node, self._server, self._watched = self._new_servers()
        self._closing = False
        self._published = self._seen_version = None
        self._publisher, self._watcher = self._new_publisher(), self._new_watcher()
        self._publisher.start()
        self._watcher.start()

    def _end(self, timeout: float = 0.0) -> None:
        threads = (self._publisher, self._watcher)
        for thread in threads:
            thread.stop(0)  # before they can see that we are closing, so that their end is expected
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._watched.stop()
        if not self._publisher.stop(timeout):
            self._server.stop()
            self._node.stop()
        for thread in threads:
            thread.stop(max(_LAST_SECONDS, timeout))

    def publish(self, devices: Iterable[PublishedDevice]) -> None:
        """Let a thread publish these devices, and no others; return at once, without waiting for the network.

        Raises:
            InvalidPoolError: two devices have the same name.
            SlicePublishError: this publisher is not started.
        """
        empty = self._empty
        try:
            self._lifecycle.check_running()
        except NotStartedError as error:
            raise SlicePublishError(empty.driver, str(error)) from error
        wanted = DevicePool(empty.driver, empty.node, empty.name, devices)
        with self._condition:
            self._wanted = wanted
            self._condition.notify_all()

    @property
    def problem(self) -> SlicePublishError | None:
        """Return why the API server does not have what was published, or None if no problem is known."""
        return self._problem

    def wait_until_published(self, timeout: float) -> None:
        """Wait until the API server has the devices that were published last.

        Raises:
            SlicePublishError: it does not have them after `timeout` seconds, and why.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._published == self._wanted, timeout):
                raise self._problem or SlicePublishError(self._empty.driver, f"no answer within {timeout:g} s")

    # --- the thread that publishes ------------------------------------------------------------------------------------

    def _work(self, stopping: threading.Event) -> None:
        failures = 0
        last: object = None
        self._wait(None, lambda: self._wanted is not None)
        while not stopping.is_set() and not self._closing:
            try:
                self._reconcile()
            except Problem as problem:
                failures += 1
                self._failed(problem, is_new=problem.kind != last)
                last = problem.kind
                self._wait(max(self._backoff.delay(failures, random.random()), problem.pause))  # noqa: S311 - no secret
            else:
                if failures:
                    _log.info("the ResourceSlices of %s are published", self._empty.driver)
                failures, last = 0, None
                self._wait_for_work()
        self._node.disconnect()
        self._server.disconnect()

    def _reconcile(self) -> None:
        """Write until the API server shows the wanted devices.

        Raises:
            Problem: it does not.
        """
        with self._condition:
            wanted, is_repair = self._wanted or self._empty, self._published == self._wanted
            self._is_changed = False
            self._published = None
        if self._attempted is not None and self._attempted != wanted:
            self._generation += 1
            self._returned.clear()
        self._attempted = wanted
        for left in reversed(range(_MAX_ATTEMPTS)):
            node_uid = self._node.ask("get nodes", self._node_uid)
            listed, version = all_of(self._server, SLICES, self._selector, page=_CHUNK)
            stored = [slice_of(one) for one in listed]
            needed = changes(wanted, node_uid, stored, least_generation=self._generation, returned=self._returned)
            self._generation = needed.generation
            if not needed:
                break
            if not left:
                raise Problem(HTTPStatus.CONFLICT, _SENTENCES[409])
            if is_repair:
                is_repair = False
                self._repairs.append(time.monotonic())
                _log.info("the ResourceSlices of %s were changed or deleted, so they are written again", wanted.driver)
            self._write(needed)
        with self._condition:
            self._published, self._problem, self._seen_version = wanted, None, version
            self._condition.notify_all()

    def _node_uid(self) -> str:
        node = self._node.answer(ApiRequest("get nodes", "GET", NODES.path(name=self._empty.node)))
        metadata = node.get("metadata") if isinstance(node, dict) else None
        uid = metadata.get("uid") if isinstance(metadata, dict) else None
        if not isinstance(uid, str) or not uid:
            message = f"expected the UID of a node, got {foreign_text(repr(uid))}"
            raise ValueError(message)
        return uid

    def _write(self, needed: SliceChanges) -> None:
        """Make the changes; those that another client has overtaken are left to the next attempt.

        Raises:
            Problem: a change is refused, or its result is not known.
        """
        for body in needed.create:
            self._try(ApiRequest("create resourceslices", "POST", SLICES.path(), body=body))
        changed: tuple[Json, ...] = needed.update
        for body in changed:
            path = SLICES.path(name=body["metadata"]["name"])
            self._try(ApiRequest("update resourceslices", "PUT", path, body=body))
        for one in needed.delete:
            # Without preconditions, this could delete what another instance has just written.
            conditions = {"preconditions": {"uid": one.uid, "resourceVersion": one.version}}
            self._try(ApiRequest("delete resourceslices", "DELETE", SLICES.path(name=one.name), body=conditions))

    def _try(self, request: ApiRequest) -> None:
        try:
            written = self._server.send(request)
        except Problem as problem:
            if problem.kind not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise
            return
        if request.method != "DELETE":
            sent, kept = canonical(request.body["spec"]["devices"]), canonical(slice_of(written).devices)
            if sent != kept:
                _log.info("the API server has changed devices of %s that were published", self._empty.driver)
                self._returned[sent] = kept

    def _failed(self, problem: Problem, *, is_new: bool) -> None:
        error = SlicePublishError(self._empty.driver, problem.cause)
        if is_new and not self._closing:
            _log.error("%s; this is tried again until it succeeds", error)
        with self._condition:
            self._problem = error
            self._condition.notify_all()

    def _wait(self, seconds: float | None, until: Callable[[], bool] = lambda: False) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._closing or until(), seconds)

    def _wait_for_work(self) -> None:
        """Wait until there are other devices to publish, or slices were changed, or it is time to compare them."""

        def has_new_devices() -> bool:
            return self._published != self._wanted

        self._wait(self._resync, lambda: self._is_changed or has_new_devices())
        now = time.monotonic()
        self._repairs = [made for made in self._repairs if now - made < _REPAIRS_FORGOTTEN]
        self._wait(bounded_backoff(len(self._repairs) + 1, _SETTLE, _MAX_REPAIR_PAUSE), has_new_devices)

    # --- the thread that watches --------------------------------------------------------------------------------------

    def _watch(self, stopping: threading.Event) -> None:
        """Watch the slices, and let the other thread compare them when one was changed."""
        failures = 0
        while not stopping.is_set():
            with self._condition:
                self._condition.wait_for(lambda: self._closing or self._seen_version is not None)
                version, self._seen_version = self._seen_version or "", None
            if self._closing:
                break
            try:
                for _ in self._watched.events(SLICES.path(), "watch resourceslices", self._selector, version, _ignore):
                    self._wake()
                failures = 0
            except Problem as problem:
                failures += 1
                if failures == 1 and not self._closing:
                    seconds = f"{self._backoff.maximum:g} s"
                    _log.warning("cannot watch ResourceSlices, so they are compared every %s: %s", seconds, problem)
                self._wait(self._backoff.delay(failures, random.random()))  # noqa: S311 - no secret
            self._wake()  # what happens before the next watch is not known otherwise
        self._watched.disconnect()

    def _wake(self) -> None:
        with self._condition:
            self._is_changed = True
            self._condition.notify_all()


def _ignore(_: object) -> None:
    """What has changed does not matter: all slices are compared."""
