"""The Node of a node, and its Lease: made, kept true, and renewed.

Laws: A Node that devicecore has not made is refused and left as it is, unless its user wants to adopt it; so is one
whose Lease somebody else holds. A Node that was there and was deleted is not made again, as by a kubelet, because
somebody wanted it gone; until it is there again, it is looked for once a minute, and has no Lease. What others write
into the status of the Node, such as the node lifecycle controller after an outage, is put right when the watch shows
it, at most once between two ticks. Nothing is sent unless `tick`, `look`, `publish` or `seen` was called.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from attrs import evolve

from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.requests import EVENTS, LEASES, NODES
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import SinkError
from devicecore.ports.sink import NodeStatusSink
from devicecore_fleet.cluster.object_watch import ObjectHandler
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words import events
from devicecore_fleet.cluster.words.nodes import (
    HEARTBEAT,
    LABEL,
    LEASE_NAMESPACE,
    NEVER,
    NodeDescription,
    foreign_lease,
    foreign_node,
    lease,
    next_report,
    node_object,
    node_patch,
    node_status,
)
from devicecore_fleet.cluster.words.patches import Json, version_of
from devicecore_fleet.cluster.writer import Writer

_GONE_LOOK = timedelta(minutes=1)
_RIVALS = 3  # conflicts in a row: one may come from an answer that was lost

_log = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


class RegisteredNodes(ObjectHandler):
    """Hands the Nodes of a watch to the nodes of this process.

    `seen_by` has what takes the Node of each name; None stands for a Node that the watch shows no more.
    """

    def __init__(self, seen_by: Mapping[str, Callable[[Json | None], None]]) -> None:
        self._seen_by = seen_by

    def wants(self, found: Json) -> bool:
        """Whether this is one of the nodes."""
        return found["metadata"]["name"] in self._seen_by

    def listed(self, objects: Sequence[Json]) -> None:
        """Tell each node its Node."""
        found = {one["metadata"]["name"]: one for one in objects}
        for name, seen in self._seen_by.items():
            seen(found.get(name))

    def seen(self, kind: str, found: Json) -> None:
        """Tell a node what has become of its Node."""
        self._seen_by[found["metadata"]["name"]](None if kind == "DELETED" else found)


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
        self._rivals = 0  # renewals in a row before which another process had renewed the Lease
        self._refusal: str | None = None
        self._must_read = False  # whether the Node is to be read again
        self._is_doubted = False  # the watch has shown another Node, or none, and the Node was not read since
        self._is_overwritten = False  # by others, and it is put right at the next tick
        self._may_repair = True  # at once: not twice between two ticks
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
    def is_ours(self) -> bool:
        """Whether the Node is there, and may be changed: devicecore has made it, or was told to adopt it."""
        is_there = self._node is not None and self._next_look is None and not self._is_doubted
        return is_there and self._refusal is None

    @property
    def refusal(self) -> str | None:
        """Why the Node is left alone until this process or this node starts again. It is None if it is not."""
        return self._refusal

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
        if self._refusal is not None:
            return
        is_gone, due = self._next_look is not None, self._next_look or self._next_report
        if self._must_read or self._is_overwritten or due is None or self._wall() >= due:
            self._writer.put(("node", self.name), self._write)
        self._may_repair = True
        if self._node is not None and not is_gone:
            self._writer.put(("lease", self.name), self._renew)

    def look(self) -> None:
        """Read the Node again: what the watch has shown may have been missed. This does not wait."""
        self._must_read = True
        if self._refusal is None:
            self._writer.put(("node", self.name), self._write)

    def seen(self, found: Json | None) -> None:
        """Take the Node as the watch shows it, or None if it shows it no more. This does not wait."""
        node = self._node
        if node is None or self._refusal is not None:
            return  # it is registered first
        if found is None or found["metadata"]["uid"] != self.uid:
            if self._next_look is None:
                self._doubt()
            return
        if version_of(found) <= version_of(node):
            return
        self._take(found)
        if node_patch(found, self._wanted(), self._wall(), None) is not None:
            self._is_overwritten = True
            if self._may_repair:
                self._may_repair = False
                self._writer.put(("node", self.name), self._write)

    # --- what the writer calls ----------------------------------------------------------------------------------------

    def read(self, requests: KubeApiRequests) -> bool:
        """Read the Node again. Return whether it is the one that is registered; if not, nothing passes until it is."""
        if (node := requests.find(NODES, self.name)) is not None and node["metadata"]["uid"] == self.uid:
            self._take(node)
            return True
        if self._node is not None and self._next_look is None:
            self._doubt()
        return False

    def _write(self, requests: KubeApiRequests) -> None:
        """Register the node, or send what its Node does not show yet."""
        if self._refusal is not None:
            return
        try:
            if (node := self._current(requests)) is None:
                return
            self._is_overwritten, wanted = False, self._wanted()
            patch = node_patch(node, wanted, self._wall(), self._heartbeat)
            if patch is not None:  # with the UID, so that a Node that somebody makes of this name is not changed
                patch["metadata"] = {"uid": node["metadata"]["uid"]}
                node = requests.patch(NODES, self.name, patch, subresource="status")
                self._take(node)
            self._next_report = next_report(node, wanted, self._heartbeat)
        except RequestError as error:
            if error.reason == "NotFound":
                self._is_gone(error)
                return
            # Somebody may have made a Node of this name.
            self._must_read |= error.status == HTTPStatus.CONFLICT or "metadata.uid" in error.message
            self._problem = str(error)
            self._changed()
            raise
        if self._problem is not None:
            self._problem = None
            self._changed()

    def _current(self, requests: KubeApiRequests) -> Json | None:
        """Return the Node, which is made or read again if it must be. Return None if it is refused."""
        if (node := self._node) is None:
            if (node := self._register(requests)) is None:
                return None
            self._take(node)
            self._writer.put(("lease", self.name), self._renew)
        elif self._must_read or self._next_look is not None or self._wall() >= (self._next_report or NEVER):
            self._must_read = False
            node = requests.get(NODES, self.name)
            if self._refuse_node(node):
                return None
            with self._lock:
                self._is_doubted = self._must_read  # the watch may have shown another one while this was read
            self._next_look = None
            self._take(node)
        return node

    def _doubt(self) -> None:
        """Take it that the Node is not ours until it is read again."""
        with self._lock:
            self._is_doubted = self._must_read = True
        self._changed()
        self.look()

    def _wanted(self) -> Json:
        with self._lock:
            return node_status(self._description, self._status)

    def _register(self, requests: KubeApiRequests) -> Json | None:
        """Return the Node, which is made if there is none. Return None if it, or the Lease, is of somebody else."""
        self._lease = requests.find(LEASES, self.name, LEASE_NAMESPACE)
        found = requests.find(NODES, self.name)
        if (found is not None and self._refuse_node(found)) or self._refuse_lease(self._lease):
            return None
        now = self._wall()
        wanted = node_object(self._description, now)
        if found is not None:
            return self._adopt(requests, found, wanted)
        found = requests.create(NODES, wanted)
        self._say(requests, found, events.STARTING, now)
        return found

    def _refuse_node(self, found: Json) -> bool:
        """Whether a Node is left alone, because devicecore has not made it."""
        why = "" if self._description.adopts else foreign_node(found, self._description)
        return self._refuse(f"it exists and devicecore has not made it: {why}" if why else "")

    def _refuse_lease(self, found: Json | None) -> bool:
        """Whether a Node is left alone, because somebody else holds its Lease."""
        is_foreign = found is not None and not self._description.adopts
        return self._refuse(foreign_lease(found, self._description) if found is not None and is_foreign else "")

    def _refuse(self, why: str) -> bool:
        if why:
            self._refusal = f"{why}. Nothing of it is changed. Choose another name, or take it over with --adopt"
            self._problem = self._refusal
            _log.error("node %s is refused: %s", self.name, self._refusal)
            self._changed()
        return bool(why)

    def _adopt(self, requests: KubeApiRequests, found: Json, wanted: Json) -> Json:
        """Give the Node that is there the labels and annotations that it lacks. What others have changed stays.

        The label of a fleet is not added, because by it users delete the Nodes that fleets have made. As by a kubelet,
        only its own labels (operating system, architecture, name) are put right, and taints stay.
        """
        own = node_object(evolve(self._description, labels={}), self._wall())["metadata"]["labels"]
        changes: Json = {}
        for part in ("labels", "annotations"):
            before = found["metadata"].get(part) or {}
            for key, value in wanted["metadata"][part].items():
                if key == LABEL:
                    continue
                if key not in before or (part == "labels" and key in own and before[key] != value):
                    changes.setdefault(part, {})[key] = value
        keys = {one["key"] for one in (found.get("spec") or {}).get("taints") or ()}
        if lacking := [taint["key"] for taint in self._description.taints if taint["key"] not in keys]:
            _log.warning(
                "node %s was there before without the taint %s, so pods that do not tolerate it may be bound to it",
                self.name,
                ", ".join(lacking),
            )
        if not changes:
            return found
        return requests.patch(NODES, self.name, {"metadata": {**changes, "uid": found["metadata"]["uid"]}})

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
        if self._next_look is not None or self._refusal is not None:
            return
        now = self._wall()
        try:
            self._lease = self._lease_anew(requests, now)
            self._rivals = 0
        except RequestError as error:
            self._lease = None
            if error.status not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise
            # Another writer has made, changed or deleted it.
            self._note_rival(is_rival=error.status == HTTPStatus.CONFLICT)
            self._lease = requests.find(LEASES, self.name, LEASE_NAMESPACE)
            if self._refuse_lease(self._lease) or (self._lease is None and not self._is_there(requests)):
                return
            self._lease = self._lease_anew(requests, now)

    def _lease_anew(self, requests: KubeApiRequests, now: datetime) -> Json:
        wanted = lease(self._description, self.uid, now, self._lease)
        if self._lease is None:
            return requests.create(LEASES, wanted, LEASE_NAMESPACE)
        return requests.update(LEASES, wanted, LEASE_NAMESPACE)

    def _is_there(self, requests: KubeApiRequests) -> bool:
        """Whether the Node is there, of which the Lease was deleted."""
        try:
            found = requests.get(NODES, self.name)
        except RequestError as missing:
            if missing.reason != "NotFound":
                raise
            self._is_gone(missing)
            return False
        if self._refuse_node(found):
            return False
        self._take(found)
        return True

    def _note_rival(self, *, is_rival: bool) -> None:
        self._rivals = self._rivals + 1 if is_rival else 0
        if self._rivals == _RIVALS:
            _log.error(
                "another process renews the Lease of node %s: two kubelets of one name run each pod twice, so stop one",
                self.name,
            )
