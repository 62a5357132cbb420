"""The ResourceSlices of one node's drivers.

Laws: anything that the API server already shows, for example after a restart, is not written again. The slices of
drivers that are gone, or that the node does not have, are deleted when the DRA manager says so. A slice that is not
owned by a Node with this name is left alone.
"""

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from threading import Lock

from attrs import define, field

from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.patches import Json
from devicecore.adapters.kube_api.requests import SLICES
from devicecore.domain.dra.model import DriverName
from devicecore.domain.dra.objects import slice_of
from devicecore.domain.dra.slices import DevicePool, StoredSlice, canonical, changes
from devicecore.domain.errors import DocumentError
from devicecore.ports.slices import ResourceSlices
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.writer import Writer
from devicecore_fleet.fleet.description import DriverDescription, GroupDescription

_MAX_ATTEMPTS = 5  # the maximum number of attempts in a row, if other clients write at the same time
_AGAIN = 1.0  # seconds until the next attempt if the Node does not exist yet, or others keep writing
_OVERTAKEN = (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND)


@define(eq=False)
class _Driver:
    """The slices of one driver.

    `wanted` contains the devices to be published, or is None. `attempted` contains the devices that were last written.
    """

    description: DriverDescription
    wanted: DevicePool | None = None
    attempted: DevicePool | None = None
    generation: int = 1
    returned: dict[str, str] = field(factory=dict)


class StoredSlices:
    """The slices of all nodes on the API server when the fleet starts: one list for a thousand nodes.

    Args:
        wants: returns whether a node belongs to the fleet.
    """

    def __init__(self, wants: Callable[[str], bool]) -> None:
        self._wants = wants
        self._lock = Lock()  # held while the slices are listed, so that they are listed only once
        self._of_node: dict[str, list[StoredSlice]] | None = None
        self._taken: set[str] = set()

    def take(self, node: str, requests: KubeApiRequests) -> list[StoredSlice]:
        """Return a node's slices, and forget them. Later calls for the same node query the server.

        Raises RequestError if the server refuses or does not answer.
        """
        with self._lock:
            if self._of_node is None:
                found: dict[str, list[StoredSlice]] = {}
                for one in _owned(requests.list(SLICES)):
                    if self._wants(one.node):
                        found.setdefault(one.node, []).append(one)
                self._of_node = found
            if node not in self._taken:
                self._taken.add(node)
                return self._of_node.pop(node, [])
        return list(_owned(requests.list(SLICES, f"spec.nodeName={node}")))


def _owned(bodies: Iterable[Json]) -> Iterator[StoredSlice]:
    """Yield the slices that are owned by the Node of their own node."""
    for body in bodies:
        owners = body["metadata"].get("ownerReferences") or ()
        node = (body.get("spec") or {}).get("nodeName")
        if any(one.get("kind") == "Node" and one.get("name") == node for one in owners):
            yield _stored(body)


def _stored(body: Json) -> StoredSlice:
    try:
        return slice_of(body)
    except DocumentError as error:
        raise RequestError(f"a ResourceSlice cannot be read: {error}") from error


class NodeSlices(ResourceSlices):
    """Publishes and deletes the slices of a node, as a job of a writer. Thread-safe.

    Args:
        node: the node's name.
        group: the node's group.
        jobs: sends the requests.
        stored: the slices that were on the API server when the fleet started.
        uid: returns the UID of the Node, or None before it exists.
    """

    def __init__(
        self, node: str, group: GroupDescription, jobs: Writer, stored: StoredSlices, uid: Callable[[], str | None]
    ) -> None:
        self._node = node
        self._jobs = jobs
        self._stored = stored
        self._known: dict[str, StoredSlice] | None = None  # as last shown by the server, or None if unknown
        self._uid = uid
        self._lock = Lock()  # held while the desired state changes
        self._drivers = {one.name: _Driver(one) for one in group.drivers}
        self._wipes = self._wiped = 0  # requested and finished deletions of other drivers' slices

    def publish(self, driver: DriverName, unhealthy: frozenset[str]) -> None:
        """Show a driver's healthy devices on the API server."""
        known = self._drivers[driver]
        devices = [one for one in known.description.published(self._node) if one.name not in unhealthy]
        self._want(driver, DevicePool(driver, self._node, self._node, devices, known.description.counters))

    def delete(self, driver: DriverName | None) -> None:
        """Delete the slices of `driver` or, if it is None, those of all drivers that are not on the node.

        Unlike after a kubelet's restart, the slices of the node's own drivers stay, because those drivers publish at
        once.
        """
        if driver in self._drivers and driver is not None:
            self._want(driver, None)
            return
        self._wipes += 1
        self._submit()

    def _want(self, driver: DriverName, pool: DevicePool | None) -> None:
        with self._lock:
            if self._drivers[driver].wanted == pool and self._drivers[driver].attempted == pool:
                return
            self._drivers[driver].wanted = pool
        self._submit()

    def _submit(self) -> None:
        self._jobs.put(("slices", self._node), self._write)

    # --- the job, which one thread does at a time ---------------------------------------------------------------------

    def _write(self, requests: KubeApiRequests) -> float | None:
        """Write until the API server shows the desired slices.

        Return the number of seconds until the next attempt, or None if nothing is left to write.
        """
        uid = self._uid()
        if uid is None:
            return _AGAIN
        for _ in range(_MAX_ATTEMPTS):
            if self._known is None:
                self._known = {one.name: one for one in self._stored.take(self._node, requests)}
            wipes = self._wipes
            if not self._write_others(requests) | self._write_own(requests, uid):
                self._wiped = wipes
                return None
        return _AGAIN

    def _write_others(self, requests: KubeApiRequests) -> bool:
        others = [one for one in self._shown() if one.driver not in self._drivers] if self._wipes > self._wiped else []
        for one in others:
            self._delete(requests, one)
        return bool(others)

    def _write_own(self, requests: KubeApiRequests, uid: str) -> bool:
        has_written = False
        for name, driver in self._drivers.items():
            with self._lock:
                wanted = driver.wanted
            if wanted is None and driver.attempted is not None:
                own = [one for one in self._shown() if one.driver == name]
                for one in own:
                    self._delete(requests, one)
                has_written |= bool(own)
                driver.attempted = driver.attempted if own else None
            elif wanted is not None:
                if driver.attempted is not None and driver.attempted != wanted:
                    driver.generation += 1
                    driver.returned.clear()
                driver.attempted = wanted
                has_written |= self._write_driver(requests, driver, wanted, uid)
        return has_written

    def _shown(self) -> list[StoredSlice]:
        return list(self._known.values()) if self._known is not None else []

    def _write_driver(self, requests: KubeApiRequests, driver: _Driver, wanted: DevicePool, uid: str) -> bool:
        stored = self._shown()
        needed = changes(wanted, uid, stored, least_generation=driver.generation, returned=driver.returned)
        driver.generation = needed.generation
        for write, bodies in ((requests.create, needed.create), (requests.update, needed.update)):
            for body in bodies:
                try:
                    written = _stored(write(SLICES, dict(body)))
                except RequestError as error:
                    self._overtaken(error)
                    continue
                if self._known is not None:
                    self._known[written.name] = written
                sent, kept = canonical(slice_of(body).devices), canonical(written.devices)
                if sent != kept:  # the server may have added defaults and dropped unknown fields
                    driver.returned[sent] = kept
        for one in needed.delete:
            self._delete(requests, one)
        return bool(needed)

    def _delete(self, requests: KubeApiRequests, one: StoredSlice) -> None:
        try:
            requests.delete(SLICES, one.name, uid=one.uid)
        except RequestError as error:
            self._overtaken(error)
        if self._known is not None:
            self._known.pop(one.name, None)

    def _overtaken(self, error: RequestError) -> None:
        """Make the next attempt query the server. Raise `error` unless it says that another client wrote first."""
        self._known = None
        if error.status not in _OVERTAKEN:
            raise error
