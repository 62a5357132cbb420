"""The Node of a node, and its Lease: made, kept true, and renewed.

Laws: A Node that was there and was deleted is not made again, as by a kubelet, because somebody wanted it gone; until
somebody else makes it, it is looked for once a minute, and has no Lease. After a Lease that was renewed late, the Node
is read again, because the node lifecycle controller may have written that it is not known whether the node is ready.
Nothing is sent unless `tick` or `publish` was called.
"""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from attrs import evolve

from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.requests import EVENTS, LEASES, NODES
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import SinkError
from devicecore.ports.sink import NodeStatusSink
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words import events
from devicecore_fleet.cluster.words.nodes import (
    HEARTBEAT,
    LEASE_NAMESPACE,
    NEVER,
    RENEW_SECONDS,
    NodeDescription,
    lease,
    next_report,
    node_object,
    node_patch,
    node_status,
)
from devicecore_fleet.cluster.words.patches import Json, version_of
from devicecore_fleet.cluster.writer import Writer

_LATE = timedelta(seconds=2 * RENEW_SECONDS)
_LOOKS = 3  # after a late Lease, one each tick: the controller may not have seen the new Lease at the first
_GONE_LOOK = timedelta(minutes=1)
_RIVALS = 3  # conflicts in a row: one may come from an answer that was lost

_log = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


class RegisteredNode(NodeStatusSink):
    """Registers one node and keeps its Node and Lease. Thread-safe.

    It is the sink of the node's device manager. Its owner calls `tick` every 10 seconds.

    Args:
        description: what the node is made of.
        writer: takes what is to be sent to the API server.
        wall: the time.
        changed: called after each answer of the server that says something new.
        heartbeat: how often the Node is read and its conditions are reported if nothing changes. None is never.
    """

    def __init__(
        self,
        description: NodeDescription,
        writer: Writer,
        wall: Callable[[], datetime] = utc_now,
        changed: Callable[[], None] = lambda: None,
        *,
        heartbeat: timedelta | None = HEARTBEAT,
    ) -> None:
        self._heartbeat = heartbeat
        self._writer = writer
        self._wall = wall
        self._changed = changed
        self._lock = threading.Lock()
        self._description = description
        self._status = NodeStatus()
        self._node: Json | None = None  # as the server has shown it last
        self._lease: Json | None = None
        self._renewed: datetime | None = None
        self._rivals = 0  # renewals in a row before which another process had renewed the Lease
        self._looks = 0  # how often the Node is still to be read again
        self._next_look: datetime | None = None  # for a Node that is gone
        self._next_report: datetime | None = None  # of the conditions; None if it is not known, or now
        self._problem: str | None = "the Node is not registered yet"

    @property
    def name(self) -> str:
        """The name of the Node."""
        return self._description.name

    @property
    def node(self) -> Json:
        """The Node as the server has shown it last, or as it will be made, with what this node wants to be allocatable.

        Its status has nothing else.
        """
        found = self._node or node_object(self._description, self._wall())
        with self._lock:
            mine, devices = self._description, self._status.allocatable
        shown = (found.get("status") or {}).get("allocatable") or {}
        sizes = {**shown, **mine.capacity, **mine.allocatable, **{str(name): str(n) for name, n in devices.items()}}
        return {**found, "status": {"allocatable": sizes}}

    @property
    def uid(self) -> str | None:
        """The UID of the Node; None if it is not registered."""
        node = self._node
        return None if node is None else str(node["metadata"]["uid"])

    @property
    def problem(self) -> SinkError | None:
        """Why the Node does not show what was published; None if it does."""
        problem = self._problem
        return None if problem is None else SinkError(f"node {self.name}", problem)

    def publish(self, status: NodeStatus) -> None:
        """Show the counts of devices on the Node. A resource that is removed stays with 0, as in a kubelet."""
        with self._lock:
            gone = dict.fromkeys({**self._status.capacity, **dict.fromkeys(status.removed)}, 0)
            self._status = NodeStatus({**gone, **status.capacity}, {**gone, **status.allocatable})
        self._writer.put(("node", self.name), self._write)

    def describe(self, description: NodeDescription) -> None:
        """Show another description of the same node, such as one with a problem."""
        with self._lock:
            self._description = evolve(description, name=self.name)
        self._writer.put(("node", self.name), self._write)

    def tick(self) -> None:
        """Renew the Lease, and report the conditions of the Node if that is due. This does not wait."""
        is_gone, due = self._next_look is not None, self._next_look or self._next_report
        if self._looks or due is None or self._wall() >= due:
            self._writer.put(("node", self.name), self._write)
        if self._node is not None and not is_gone:
            self._writer.put(("lease", self.name), self._renew, urgent=True)

    # --- what the writer calls ----------------------------------------------------------------------------------------

    def read(self, requests: KubeApiRequests) -> None:
        """Read the Node again. A Node that is gone stays as it was."""
        if (node := requests.find(NODES, self.name)) is not None:
            self._take(node)

    def _write(self, requests: KubeApiRequests) -> None:
        """Register the node, or send what its Node does not show yet."""
        try:
            node = self._node
            if node is None:
                node = self._register(requests)
                self._take(node)
                self._writer.put(("lease", self.name), self._renew, urgent=True)
            elif self._looks or self._next_look is not None or self._wall() >= (self._next_report or NEVER):
                node = requests.get(NODES, self.name)
                self._looks = max(0, self._looks - 1)
                self._take(node)
            self._next_look = None
            wanted = self._wanted()
            patch = node_patch(node, wanted, self._wall(), self._heartbeat)
            if patch is not None:
                node = requests.patch(NODES, self.name, patch, subresource="status")
                self._take(node)
            self._next_report = next_report(node, wanted, self._heartbeat)
        except RequestError as error:
            if error.reason == "NotFound":
                self._is_gone(error)
                return
            self._problem = str(error)
            self._changed()
            raise
        if self._problem is not None:
            self._problem = None
            self._changed()

    def _wanted(self) -> Json:
        with self._lock:
            return node_status(self._description, self._status)

    def _register(self, requests: KubeApiRequests) -> Json:
        """Return the Node, which is made if there is none."""
        now = self._wall()
        wanted = node_object(self._description, now)
        if (found := requests.find(NODES, self.name)) is not None:
            return self._adopt(requests, found, wanted)
        found = requests.create(NODES, wanted)
        self._say(requests, found, events.STARTING, now)
        return found

    def _adopt(self, requests: KubeApiRequests, found: Json, wanted: Json) -> Json:
        """Give the Node that is there the labels and annotations that it lacks. What others have changed stays.

        As by a kubelet, only its own labels (operating system, architecture, name) are put right, and taints stay.
        """
        own = node_object(evolve(self._description, labels={}), self._wall())["metadata"]["labels"]
        changes: Json = {}
        for part in ("labels", "annotations"):
            before = found["metadata"].get(part) or {}
            for key, value in wanted["metadata"][part].items():
                if key not in before or (part == "labels" and key in own and before[key] != value):
                    changes.setdefault(part, {})[key] = value
        keys = {one["key"] for one in (found.get("spec") or {}).get("taints") or ()}
        if lacking := [taint["key"] for taint in self._description.taints if taint["key"] not in keys]:
            _log.warning(
                "node %s was there before without the taint %s, so pods that do not tolerate it may be bound to it",
                self.name,
                ", ".join(lacking),
            )
        return requests.patch(NODES, self.name, {"metadata": changes}) if changes else found

    def _is_gone(self, error: RequestError) -> None:
        """Note that somebody has deleted the Node. It is looked for at the next tick, and then once a minute."""
        now = self._wall()
        self._next_look = now if self._next_look is None else now + _GONE_LOOK
        self._problem = str(error)
        self._changed()

    def _say(self, requests: KubeApiRequests, node: Json, said: events.Said, now: datetime) -> None:
        # A kubelet's events about its Node have its name as UID.
        event = events.event({**node, "kind": "Node"}, self.name, said, now)
        try:
            requests.create(EVENTS, event, event["metadata"]["namespace"])
        except RequestError as error:
            if error.is_passing:
                raise

    def _take(self, node: Json) -> None:
        before = self._node
        if before is None or node["metadata"]["uid"] != self.uid or version_of(node) > version_of(before):
            self._node = node
        self._changed()

    def _renew(self, requests: KubeApiRequests) -> None:
        """Renew the Lease, or make it."""
        if self._next_look is not None:
            return
        now = self._wall()
        try:
            if self._lease is None:
                self._lease = self._first_lease(requests, now)
            else:
                self._lease = requests.update(LEASES, lease(self.name, self.uid, now, self._lease), LEASE_NAMESPACE)
            self._rivals = 0
        except RequestError as error:
            self._lease = None  # another writer has changed or deleted it
            if error.status not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise
            self._note_rival(is_rival=error.status == HTTPStatus.CONFLICT)
            self._lease = self._first_lease(requests, now)
        if self._lease is None:
            return
        if self._renewed is not None and now - self._renewed > _LATE:
            self._looks = _LOOKS
            self._writer.put(("node", self.name), self._write)
        self._renewed = now

    def _note_rival(self, *, is_rival: bool) -> None:
        self._rivals = self._rivals + 1 if is_rival else 0
        if self._rivals == _RIVALS:
            _log.error(
                "another process renews the Lease of node %s: two kubelets of one name run each pod twice, so stop one",
                self.name,
            )

    def _first_lease(self, requests: KubeApiRequests, now: datetime) -> Json | None:
        """Make the Lease, or take the one there is. Return None if there is no Node to own it."""
        if (found := requests.find(LEASES, self.name, LEASE_NAMESPACE)) is not None:
            return requests.update(LEASES, lease(self.name, self.uid, now, found), LEASE_NAMESPACE)
        if self._renewed is not None:  # it was deleted, perhaps with its Node
            try:
                self._take(requests.get(NODES, self.name))
            except RequestError as missing:
                if missing.reason != "NotFound":
                    raise
                self._is_gone(missing)
                return None
        return requests.create(LEASES, lease(self.name, self.uid, now), LEASE_NAMESPACE)
