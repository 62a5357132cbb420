"""Publishes a DRA driver's devices as ResourceSlices of its node, and repairs the slices.

Law: the publisher writes nothing while the slices are correct, and deletes nothing when it is stopped: the driver's
next instance takes the slices over, and a kubelet deletes them if the driver does not return.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from http import HTTPStatus

from devicecore.adapters.kube_api.access import (
    Access,
    ApiRequest,
    ApiServer,
    RequestError,
    check_node_name,
    connection_of,
    node_sentences,
)
from devicecore.adapters.kube_api.patches import Json
from devicecore.adapters.kube_api.publishing import ApiPublisher, Backoff
from devicecore.adapters.kube_api.requests import NODES, SLICES, all_of, selectors
from devicecore.domain.dra.errors import SlicePublishError
from devicecore.domain.dra.model import DriverName
from devicecore.domain.dra.objects import slice_of
from devicecore.domain.dra.slices import DevicePool, PublishedDevice, SliceChanges, canonical, changes
from devicecore.domain.text import foreign_text
from devicecore.runtime.background import bounded_backoff
from devicecore.runtime.lifecycle import Lifecycle
from devicecore.system.arguments import checks_arguments

_log = logging.getLogger(__name__)

_SETTLE = 0.2  # seconds to wait for more changes by others, because a wipe deletes one slice after another
_MAX_REPAIR_PAUSE = 30.0  # seconds between two repairs if another client keeps changing the slices
_REPAIRS_FORGOTTEN = 300.0  # seconds after which a repair no longer lengthens the pauses before later repairs
_MAX_ATTEMPTS = 5  # attempts in a row if other clients write at the same time
_CHUNK = 100  # slices per page of a list
_SENTENCES = {
    404: "the API server has no ResourceSlices of resource.k8s.io/v1, or a slice was deleted in the meantime",
    409: "other clients keep changing the ResourceSlices",
    422: "a ResourceSlice is invalid, or a policy refuses it",
}


class KubeApiSlicePublisher(ApiPublisher[SlicePublishError, DevicePool, None]):
    """Publishes the devices of one driver on one node. Thread-safe.

    Use it as a context manager, or call `start` and `stop`. Devices published before a stop are published again after a
    start.

    A thread publishes the last devices passed to `publish`, and tries again after a failure. Another thread watches the
    slices: if a kubelet deletes the slices, or another client changes them, they are written again within seconds.

    Args:
        driver: the driver's name.
        node: the name of the Node object, which becomes the owner of the slices. Nothing is published before the Node
            exists.
        access: where the API server and the credentials are, and how long to wait for them.
        pool: the pool's name; by default, the node's name.
        backoff: how long to wait after a failure.
        resync: seconds after which the slices are compared even if the watch shows no change.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
        NodeNameError: the node name is invalid.
        InvalidPoolError: the name of the driver or pool is invalid.
    """

    @checks_arguments("access")
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
        check_node_name(node)
        empty = DevicePool(DriverName(driver), node, node if pool is None else pool, ())
        connection_of(access)
        new = partial(ApiServer, access)
        super().__init__(
            Lifecycle("the publisher of slices"),
            f"the pool of {driver}",
            empty,
            thread="devicecore-slices",
            new_servers=lambda: (new(_SENTENCES, is_watch=True), new(node_sentences(node)), new(_SENTENCES)),
            error_of=partial(SlicePublishError, driver),
            backoff=backoff,
            resync=resync,
        )
        self._selector = f"spec.driver={driver},spec.nodeName={node}"
        # Used by the publishing thread only:
        self._generation = 1  # the lowest generation that may be written
        self._returned: dict[str, str] = {}
        self._attempted: DevicePool | None = None
        self._repairs: list[float] = []  # recent times at which changes by others were repaired, in monotonic seconds

    @checks_arguments("devices")
    def publish(self, devices: Iterable[PublishedDevice], counters: Iterable[Mapping[str, object]] = ()) -> None:
        """Make a thread publish these devices, and remove all others. The call does not wait for the network.

        Args:
            devices: all devices of the pool.
            counters: the sets of counters that the devices consume, as in `DevicePool`.

        Raises:
            InvalidPoolError: two devices have the same name.
            SlicePublishError: this publisher is not started.
        """
        self._check_running()
        empty = self._wanted
        wanted = DevicePool(empty.driver, empty.node, empty.name, devices, tuple(counters))
        with self._lock:
            self._want(wanted)

    # --- the thread that publishes ------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        if is_repair := self.is_published:
            now = time.monotonic()
            self._repairs = [made for made in self._repairs if now - made < _REPAIRS_FORGOTTEN]
            pause = bounded_backoff(len(self._repairs) + 1, _SETTLE, _MAX_REPAIR_PAUSE)
            self._wait(pause, lambda: not self.is_published)
        nodes, server = self._servers
        with self._lock:
            wanted, is_repair = self._wanted, is_repair and self.is_published
            self._must_compare = False
            self._published = None
        if self._attempted not in (None, wanted):
            self._generation += 1
            self._returned.clear()
        self._attempted = wanted
        for left in reversed(range(_MAX_ATTEMPTS)):
            node_uid = nodes.read(ApiRequest("get nodes", "GET", NODES.path(name=wanted.node)), _uid_of)
            listed, version = all_of(server, SLICES, self._selector, page=_CHUNK)
            stored = [slice_of(one) for one in listed]
            needed = changes(wanted, node_uid, stored, least_generation=self._generation, returned=self._returned)
            self._generation = needed.generation
            if not needed:
                break
            if not left:
                raise RequestError(_SENTENCES[409], HTTPStatus.CONFLICT)
            if is_repair:
                is_repair = False
                self._repairs.append(time.monotonic())
                _log.info("the ResourceSlices of %s were changed or deleted, so they are written again", wanted.driver)
            self._write(needed)
        self._succeeded(wanted, version)

    def _write(self, needed: SliceChanges) -> None:
        """Make the changes. If another client was faster, leave the change to the next attempt."""
        for body in needed.create:
            self._try(ApiRequest("create resourceslices", "POST", SLICES.path(), body=body))
        changed: tuple[Json, ...] = needed.update
        for body in changed:
            path = SLICES.path(name=body["metadata"]["name"])
            self._try(ApiRequest("update resourceslices", "PUT", path, body=body))
        for one in needed.delete:
            # Without preconditions, the request could delete slices that another instance has just written.
            conditions = {"preconditions": {"uid": one.uid, "resourceVersion": one.version}}
            self._try(ApiRequest("delete resourceslices", "DELETE", SLICES.path(name=one.name), body=conditions))

    def _try(self, request: ApiRequest) -> None:
        try:
            written = self._servers[-1].send(request)
        except RequestError as error:
            if error.kind not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise
            return
        if request.method != "DELETE":
            # A slice contains either devices or counter sets, and a server may return either in a different form.
            sent, kept = (canonical(slice_of(one).devices) for one in (request.body, written))
            if sent != kept:
                _log.info("the API server has changed some published devices of %s", self._wanted.driver)
                self._returned[sent] = kept

    # --- the thread that watches --------------------------------------------------------------------------------------

    def _events(self, version: str) -> Iterable[tuple[str, None]]:
        # It does not matter what has changed, because all slices are compared.
        yield from self._watched.events(SLICES, selectors(self._selector, ""), version, lambda _: None)
        self._lost_track()  # the version of a list is older than the versions of the events that follow it

    def _seen(self, _kind: str, _found: None) -> None:
        self._compare()


def _uid_of(node: Json) -> str:
    """Return the UID of a Node. Raises ValueError if the Node has no UID."""
    metadata = node.get("metadata") if isinstance(node, dict) else None
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if not isinstance(uid, str) or not uid:
        message = f"expected the UID of a node, got {foreign_text(repr(uid))}"
        raise ValueError(message)
    return uid
