"""The Node object of a node, and its Lease: creates, corrects and renews them.

Laws: unless the user wants to adopt it, a Node that devicecore did not create is refused and left unchanged, and so is
a Node whose Lease someone else holds. But if the holder is a devicecore process that may have ended, the node waits for
the Lease. As in a kubelet, a deleted Node is not recreated, because someone wanted it gone. Until someone recreates the
Node, the node looks for it once a minute and renews no Lease. A recreated Node is judged like a Node that existed at
the start. If others change the Node's status, as the node lifecycle controller does after an outage, the status is
corrected when the watch shows the change, but at most once between two ticks. Nothing is sent unless `tick`, `doubt`,
`publish`, `seen`, `read` or `delete` was called.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus

from attrs import evolve

from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.requests import EVENTS, LEASES, NODES
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import SinkError
from devicecore.ports.sink import NodeStatusSink
from devicecore_fleet.cluster.object_watch import ObjectHandler
from devicecore_fleet.cluster.process import Process
from devicecore_fleet.cluster.refusals import log_refused
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words import events
from devicecore_fleet.cluster.words.leases import (
    LEASE_NAMESPACE,
    LEASE_SECONDS,
    RENEW_SECONDS,
    Held,
    held,
    holder_of,
    lease,
    seconds_left,
)
from devicecore_fleet.cluster.words.nodes import (
    HEARTBEAT,
    LABEL,
    NEVER,
    NodeDescription,
    foreign_node,
    next_report,
    node_object,
    node_patch,
    node_status,
)
from devicecore_fleet.cluster.words.patches import Json, version_of
from devicecore_fleet.cluster.writer import Job, Writer

_REPLACED_LOOK = 1.0  # seconds until a Node that was replaced after the last read is read again
_GONE_LOOK = timedelta(minutes=1)

NOTHING: Mapping[str, Mapping[str, str | None]] = {}
"""No changes to labels and annotations."""

_log = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


class RegisteredNodes(ObjectHandler):
    """Passes the Nodes that a watch shows to the nodes of this process.

    `seen_by` contains a receiver for each Node name. A receiver gets None if the watch no longer shows the Node.
    """

    def __init__(self, seen_by: Mapping[str, Callable[[Json | None], None]]) -> None:
        self._seen_by = seen_by

    def wants(self, found: Json) -> bool:
        """Return whether a Node belongs to one of the nodes."""
        return found["metadata"]["name"] in self._seen_by

    def listed(self, objects: Sequence[Json]) -> None:
        """Pass each node its Node, or None if there is none."""
        found = {one["metadata"]["name"]: one for one in objects}
        for name, seen in tuple(self._seen_by.items()):  # nodes may be added and removed in the meantime
            seen(found.get(name))

    def seen(self, kind: str, found: Json) -> None:
        """Pass a changed Node to its node."""
        if (seen := self._seen_by.get(found["metadata"]["name"])) is not None:
            seen(None if kind == "DELETED" else found)


class RegisteredNode(NodeStatusSink):
    """Registers one node and maintains its Node and Lease. Thread-safe.

    This object is the sink of the node's device manager. The owner of this object first publishes the devices with
    which the Node is to be created, and then calls `tick` every 10 seconds.

    Args:
        description: describes the Node.
        writer: sends requests to the API server.
        wall: returns the time.
        changed: called after each answer from the server that changes something.
        process: the process that holds the Lease; by default, this process.
        heartbeat: how often the Node is read and its conditions are reported if nothing changes, or None for never.
        refused: called with the node's name and the reason if the node is refused.
        first: the removal of an earlier node with the same name, which is finished before this node is registered.
        changes: labels and annotations to set on an existing Node, or to remove if the value is None.
        is_free: returns whether it is certain that neither a Node nor a Lease has this name.
    """

    def __init__(
        self,
        description: NodeDescription,
        writer: Writer,
        wall: Callable[[], datetime] = utc_now,
        changed: Callable[[], None] = lambda: None,
        *,
        process: Process | None = None,
        heartbeat: timedelta | None = HEARTBEAT,
        refused: Callable[[str, str], None] = log_refused,
        first: Job | None = None,
        changes: Mapping[str, Mapping[str, str | None]] = NOTHING,
        is_free: Callable[[KubeApiRequests], bool] = lambda _: False,
    ) -> None:
        self._is_free = is_free
        self._refused = refused
        self._first = first
        self._changes = changes
        self._process = process or Process()
        self._heartbeat = heartbeat
        self._writer = writer
        self._wall = wall
        self._changed = changed
        self._lock = threading.Lock()  # held while the fields that say whether the Node is ours change
        self._description = description
        self._status = NodeStatus()
        self._node: Json | None = None  # the Node as last shown by the server
        self._lease: Json | None = None
        self._awaited: tuple[int, datetime] | None = None  # the awaited Lease: its version, and the start of the wait
        self._wait: float | None = None  # seconds until the awaited Lease is read again
        self._refusal: str | None = None
        self._has_begun = False  # whether `tick` was called
        self._must_read = False  # whether the Node must be read again
        self._is_doubted = False  # the watch has shown a different Node, or none, and the Node has not been read since
        self._is_overwritten = False  # whether others have changed the Node, so that the next tick corrects it
        self._may_repair = True  # whether the Node may be corrected at once: once between two ticks
        self._next_look: datetime | None = None  # when to look again for a deleted Node
        self._next_report: datetime | None = None  # the next report of the conditions, or None if unknown or due
        self._problem: str | None = "the Node is not registered yet"

    @property
    def name(self) -> str:
        """The name of the Node."""
        return self._description.name

    @property
    def node(self) -> Json:
        """The Node as last shown by the server, or as it will be created, with this node's desired allocatable.

        The status of the returned Node contains nothing but allocatable.
        """
        found = self._node or node_object(self._description, self._wall())
        mine, devices = self._description, self._status.allocatable
        shown = (found.get("status") or {}).get("allocatable") or {}
        sizes = {**shown, **mine.capacity, **mine.allocatable, **{str(name): str(n) for name, n in devices.items()}}
        return {**found, "status": {"allocatable": sizes}}

    @property
    def uid(self) -> str | None:
        """The UID of the Node, or None if it is not registered."""
        node = self._node
        return None if node is None else str(node["metadata"]["uid"])

    @property
    def is_ours(self) -> bool:
        """Whether the Node exists and may be changed because devicecore created it or was told to adopt it."""
        with self._lock:
            is_there = self._node is not None and self._next_look is None
            return is_there and not self._is_doubted and self._refusal is None

    @property
    def is_gone(self) -> bool:
        """Whether the Node existed and someone has deleted it."""
        return self._next_look is not None

    @property
    def refusal(self) -> str | None:
        """Why the Node is left alone until this process or this node restarts, or None if the Node is not refused."""
        return self._refusal

    @property
    def unsent(self) -> Mapping[str, Mapping[str, str | None]]:
        """The changes to labels and annotations that the Node does not show yet."""
        return self._changes

    @property
    def problem(self) -> SinkError | None:
        """Why the Node does not show what was published, or None if the Node shows it."""
        problem = self._problem
        return None if problem is None else SinkError(f"node {self.name}", problem)

    def publish(self, status: NodeStatus) -> None:
        """Show the device counts on the Node. As in a kubelet, a removed resource stays, with a count of 0."""
        with self._lock:
            gone = dict.fromkeys({**self._status.capacity, **dict.fromkeys(status.removed)}, 0)
            self._status = NodeStatus({**gone, **status.capacity}, {**gone, **status.allocatable})
        if self._has_begun:
            self._writer.put(("node", self.name), self._write)

    def tick(self) -> None:
        """Register the node, renew its Lease, and report the Node's conditions if this is due.

        This method does not wait.
        """
        self._has_begun = True
        if self._refusal is not None:
            return
        due = self._next_look or self._next_report
        if self._must_read or self._is_overwritten or due is None or self._wall() >= due:
            self._writer.put(("node", self.name), self._write)
        self._may_repair = True
        if self.is_ours:
            self._writer.put(("lease", self.name), self._renew)

    def doubt(self) -> None:
        """Assume that the Node is not ours until it has been read again, which happens soon.

        This method does not wait.
        """
        with self._lock:
            self._is_doubted = self._must_read = True
        self._changed()
        if self._refusal is None:
            self._writer.put(("node", self.name), self._write)

    def seen(self, found: Json | None) -> None:
        """Take the Node that the watch shows, or None if the watch no longer shows a Node.

        This method does not wait.
        """
        node = self._node
        if node is None or self._refusal is not None:
            return  # the node has to be registered first
        if found is None or found["metadata"]["uid"] != self.uid:
            if self._next_look is None:
                self.doubt()
            return
        if version_of(found) <= version_of(node):
            return
        self._take(found)
        if node_patch(found, self._wanted(), self._wall(), None) is not None:
            self._is_overwritten = True
            if self._may_repair:
                self._may_repair = False
                self._writer.put(("node", self.name), self._write)

    # --- called by the writer ----------------------------------------------------------------------------------------

    def read(self, requests: KubeApiRequests) -> bool:
        """Read the Node again, and return whether the registered Node still exists.

        Call `doubt` if the Node is gone.
        """
        if (node := requests.find(NODES, self.name)) is not None and node["metadata"]["uid"] == self.uid:
            if self._node is None or version_of(node) > version_of(self._node):  # otherwise, nothing has changed
                self._take(node)
            return True
        if self._node is not None and self._next_look is None:
            self.doubt()
        return False

    def delete(self, requests: KubeApiRequests) -> float | None:
        """Delete the Node, unless it was refused or is not ours. Return how many seconds to wait before retrying.

        A Node that was created by an unanswered request is also ours. This method must not run during another job for
        the Node, because that job could create a Node that nobody deletes.
        """
        if self._refusal is not None:
            return None
        if (wait := self._finish_first(requests)) is not None:
            return wait
        self._wait = None
        found = requests.find(NODES, self.name)
        if found is None or not self._may_delete(requests, found):
            return self._wait
        try:
            requests.delete(NODES, self.name, uid=found["metadata"]["uid"])
        except RequestError as error:
            if error.status not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise
            return _REPLACED_LOOK
        return None

    def _may_delete(self, requests: KubeApiRequests, found: Json) -> bool:
        """Return whether a Node is ours, or would be if it were registered."""
        if found["metadata"]["uid"] == self.uid:
            return True
        if foreign_node(found, self._description):
            return False
        held_by = requests.find(LEASES, self.name, LEASE_NAMESPACE)
        return held_by is None or not self._yield_to_holder(held_by, waits=True)

    def _finish_first(self, requests: KubeApiRequests) -> float | None:
        """Finish the removal of the earlier node with this name. Return how many seconds to wait before retrying."""
        if self._first is not None:
            if (wait := self._first(requests)) is not None:
                return wait
            self._first = None
        return None

    def _write(self, requests: KubeApiRequests) -> float | None:
        """Register the node, or send anything that its Node does not show yet.

        Return how many seconds to wait before retrying.
        """
        if self._refusal is not None:
            return None
        try:
            if (wait := self._finish_first(requests)) is not None:
                return wait
            if (node := self._current(requests)) is None:
                return self._wait
            self._is_overwritten, wanted = False, self._wanted()
            patch = node_patch(node, wanted, self._wall(), self._heartbeat)
            if patch is not None:  # the UID protects someone else's new Node with this name
                patch["metadata"] = {"uid": node["metadata"]["uid"]}
                node = requests.patch(NODES, self.name, patch, subresource="status")
                self._take(node)
            self._next_report = next_report(node, wanted, self._heartbeat)
        except RequestError as error:
            if error.reason == "NotFound":
                self._note_gone(error)
                return None
            # Someone may have created a Node with this name.
            self._must_read |= error.status == HTTPStatus.CONFLICT or "metadata.uid" in error.message
            self._problem = str(error)
            self._changed()
            raise
        if self._problem is not None:
            self._problem = None
            self._changed()
        return None

    def _current(self, requests: KubeApiRequests) -> Json | None:
        """Return the Node, and create or read it first if necessary. Return None if the Node is not ours."""
        node, is_gone = self._node, self._next_look is not None
        must_read = self._must_read or self._is_doubted or is_gone or self._wall() >= (self._next_report or NEVER)
        if node is not None and not must_read:
            return node
        self._must_read = False
        try:
            is_free = node is None and self._is_free(requests)
            found = None if is_free else self._found(requests)
            is_new = found is None or node is None or found["metadata"]["uid"] != node["metadata"]["uid"]
            if is_new and node is not None:
                with self._lock:
                    self._is_doubted = True
                self._changed()
            if found is not None and self._refuse_foreign(found):
                return None
            if is_new:
                self._lease = None if is_free else requests.find(LEASES, self.name, LEASE_NAMESPACE)
                found = self._registered(requests, found)
        except RequestError as error:
            self._must_read |= node is not None and error.reason != "NotFound"
            raise
        if found is None:
            return None
        was_ours = self.is_ours
        with self._lock:
            self._is_doubted = self._must_read  # the watch may have shown a different Node during the read
            self._next_look = None
            if is_new:
                self._node = found
        self._take(found)
        if not was_ours:
            self._writer.put(("lease", self.name), self._renew)
        return found

    def _found(self, requests: KubeApiRequests) -> Json | None:
        """Return the current Node, or None if there is none. If a Node was known before, a missing Node is an error."""
        return requests.find(NODES, self.name) if self._node is None else requests.get(NODES, self.name)

    def _wanted(self) -> Json:
        return node_status(self._description, self._status)

    def _registered(self, requests: KubeApiRequests, found: Json | None) -> Json | None:
        """Make a Node ours, and return it.

        Create the Node if it is missing. Return None if someone else holds its Lease.
        """
        if not self._description.adopts and self._lease is not None and self._yield_to_holder(self._lease, waits=True):
            return None
        now = self._wall()
        wanted = node_object(self._description, now, self._status)
        if found is not None:
            return self._adopt(requests, found, wanted)
        found = requests.create(NODES, wanted)
        self._changes = NOTHING
        self._writer.put(("event", self.name), partial(self._say, found, events.STARTING, now))
        return found

    def _refuse_foreign(self, found: Json) -> bool:
        """Refuse a Node that devicecore did not create. Return whether the Node was refused."""
        why = "" if self._description.adopts else foreign_node(found, self._description)
        if why:
            self._refuse(f"it exists and devicecore did not create it: {why}")
        return bool(why)

    def _yield_to_holder(self, found: Json, *, waits: bool) -> bool:
        """Leave the Node alone if someone else holds its Lease. Return whether the Lease is held by someone else.

        The Node is refused, unless `waits` is set and the Lease may expire. If the holder is alive, it renews the Lease
        during this wait.
        """
        self._wait, now, version = None, self._wall(), version_of(found)
        who = held(found, self.name, self._process.identity, self._process.has_ended, now)
        before, since = self._awaited or (version, now)
        left = LEASE_SECONDS - (now - since).total_seconds()
        if who is Held.BY_US or (who is Held.UNKNOWN and version == before and left <= 0):
            self._awaited = None
            return False
        if who is Held.BY_OTHERS or version != before or not waits:
            self._refuse(holder_of(found, self.name), "Stop that process first, or choose another name")
            return True
        self._awaited, self._wait = (version, since), min(RENEW_SECONDS, left, seconds_left(found, now))
        self._problem = f"{holder_of(found, self.name)}, and is taken over unless that process renews it"
        self._changed()
        return True

    def _refuse(self, why: str, cure: str = "Choose another name, or take it over with --adopt") -> None:
        refusal = f"{why}. The Node is left unchanged. {cure}"
        with self._lock:
            self._refusal = self._problem = refusal
        self._refused(self.name, refusal)
        self._changed()

    def _adopt(self, requests: KubeApiRequests, found: Json, wanted: Json) -> Json:
        """Add the labels and annotations that the existing Node lacks, and apply `changes`.

        Everything else that others have written is kept.

        The fleet label is not added, because users select Nodes by this label when they delete the Nodes of fleets. As
        in a kubelet, only the kubelet's own labels (operating system, architecture, name) are corrected, and taints
        stay.
        """
        own = node_object(evolve(self._description, labels={}), self._wall())["metadata"]["labels"]
        changes: Json = {}
        for part in ("labels", "annotations"):
            before = found["metadata"].get(part) or {}
            if changed := {key: text for key, text in self._changes.get(part, {}).items() if before.get(key) != text}:
                changes[part] = changed
            for key, value in wanted["metadata"][part].items():
                if key == LABEL:
                    continue
                if key not in before or (part == "labels" and key in own and before[key] != value):
                    changes.setdefault(part, {})[key] = value
        keys = {one["key"] for one in (found.get("spec") or {}).get("taints") or ()}
        if lacking := [taint["key"] for taint in self._description.taints if taint["key"] not in keys]:
            _log.warning(
                "node %s already existed without the taint %s, so pods that do not tolerate it may be bound to it",
                self.name,
                ", ".join(lacking),
            )
        if changes:
            found = requests.patch(NODES, self.name, {"metadata": {**changes, "uid": found["metadata"]["uid"]}})
        self._changes = NOTHING
        return found

    def _note_gone(self, error: RequestError) -> None:
        """Record that someone has deleted the Node. The Node is read again at the next tick, and then once a minute."""
        now = self._wall()
        with self._lock:
            self._next_look = now if self._next_look is None else now + _GONE_LOOK
        self._problem = str(error)
        self._changed()

    def _say(self, node: Json, said: events.Said, now: datetime, requests: KubeApiRequests) -> None:
        # In a kubelet's events about its Node, the UID is the Node's name.
        event = events.event({**node, "kind": "Node"}, self.name, said, now)
        try:
            requests.create(EVENTS, event, event["metadata"]["namespace"])
        except RequestError as error:
            if error.is_passing:
                raise

    def _take(self, node: Json) -> None:
        """Take the current Node from the server, unless a newer version is known.

        The versions of a replacement Node are newer than all versions of the Node that it replaced.
        """
        with self._lock:
            if self._node is not None and version_of(node) > version_of(self._node):
                self._node = node
        self._changed()

    def _renew(self, requests: KubeApiRequests) -> None:
        """Renew or create the Lease, but only for a Node that is known to be ours."""
        if not self.is_ours:
            return
        before = self._lease
        try:
            self._lease = self._lease_anew(requests)
        except RequestError as error:
            if error.status not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise
            # Another writer has created, changed or deleted the Lease, or an answer was lost.
            self._lease = requests.find(LEASES, self.name, LEASE_NAMESPACE)
            if self._lease is None:
                if before is None:
                    raise  # the namespace of Leases does not exist yet
                self.doubt()  # the Node may be gone, too
            elif not self._yield_to_holder(self._lease, waits=False):
                self._lease = self._lease_anew(requests)

    def _lease_anew(self, requests: KubeApiRequests) -> Json:
        wanted = lease(self.name, self._process.identity, self.uid, self._wall(), self._lease)
        if self._lease is None:
            return requests.create(LEASES, wanted, LEASE_NAMESPACE)
        return requests.update(LEASES, wanted, LEASE_NAMESPACE)
