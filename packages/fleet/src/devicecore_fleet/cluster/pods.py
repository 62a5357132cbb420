"""Passes the pods of one cluster node from the API server to the engine, and their status back to the server.

Laws: a pod in a final phase is never admitted, and holds nothing. Nothing is released just because the server is down:
a pod is gone only if the server says so. A pod is shown as finished, and removed, only when its devices and claims have
been released. After every change on either side, the server's state is compared with the node's, and eventually becomes
correct. Two pods with the same name are different pods, because a pod is identified by its UID.

`records` describes how a pod without running containers starts and ends.
"""

import heapq
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol

from devicecore_tools.node.feed import PodFeed, PodReport, PodReporter
from devicecore_tools.node.outcome import Outcome, OutcomeKind, PodRefusal

from devicecore.adapters.kube_api.access import RequestError, compact
from devicecore.adapters.kube_api.requests import EVENTS, PODS
from devicecore.adapters.manifests import Changes, ManifestError
from devicecore.domain.model import ContainerKey, Pod, PodUid
from devicecore_fleet.cluster.object_watch import NOT_UNDERSTOOD, ObjectHandler, node_of, skipped
from devicecore_fleet.cluster.predicates import NodeRoom, unsuited
from devicecore_fleet.cluster.proofs import NodeReads, PodProofs
from devicecore_fleet.cluster.records import MIRROR, PodRecord, Stage, Step, check_types, reduced, uid_of
from devicecore_fleet.cluster.registration import RegisteredNode, utc_now
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words import events as words_of_events
from devicecore_fleet.cluster.words.events import Said
from devicecore_fleet.cluster.words.patches import Json, version_of
from devicecore_fleet.cluster.words.pods import FINAL, pod_status, status_patch
from devicecore_fleet.cluster.writer import Writer

if TYPE_CHECKING:
    from devicecore.domain.dra.model import ClaimKey, ResourceClaim

_MAX_EVENTS = 20  # the maximum number of pending events of one pod
_MAX_REPEATS = 5  # the maximum number of times in a row that a patch is resent because another writer has undone it
_CONFLICT_LOOK = 1.0  # in seconds; a busy server also answers Conflict
_LOOK_AGAIN = 30.0  # in seconds, for a pod that the server does not know, or whose status other writers keep changing
_log = logging.getLogger(__name__)


class ClusterPods(PodFeed, PodReporter):
    """The pods of one node. The watch, the engine and the writer may call this object from different threads.

    Args:
        node_name: the name of the node.
        writer: sends requests to the API server.
        wake: called when the engine has something to do.
        host_ips: the addresses of the node.
        node: returns the Node on which pods must fit, or None if the Node is unknown.
        clock: returns monotonic seconds.
        wall: returns the time for reports to the server.
        says: returns the behavior of a pod's containers, for a pod without an annotation that defines it.
        reads: reads the Nodes of several nodes; by default, this node reads its own Node.
    """

    def __init__(
        self,
        node_name: str,
        writer: Writer,
        wake: Callable[[], None] = lambda: None,
        *,
        host_ips: Sequence[str] = (),
        node: Callable[[], RegisteredNode | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = utc_now,
        says: Callable[[Json], str] = lambda _: "",
        reads: NodeReads | None = None,
    ) -> None:
        self._says = says
        self._node_name = node_name
        self._writer = writer
        self._wake = wake
        self._host_ips = tuple(host_ips)
        self._registered = node
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()  # held while records change, never during a request
        self._records: dict[PodUid, PodRecord] = {}
        self._changed: dict[PodUid, None] = {}  # the pods that the engine must process, in order of change
        self._ends: list[tuple[float, PodUid]] = []
        self._ran: set[PodUid] = set()
        self._room = NodeRoom()
        self._proofs = PodProofs(reads or NodeReads(), node)
        self._active: frozenset[PodUid] | None = frozenset()  # None if it has to be computed again
        self._is_listed = self._is_polled = self._is_ready = False

    # --- called by the watch -----------------------------------------------------------------------------------------

    def listed(self, pods: Sequence[Json]) -> None:
        """Take all pods of this node. Pods that are not listed are gone."""
        with self._lock:
            uids = {uid_of(pod) for pod in pods}
            for uid, record in self._records.items():
                if uid not in uids:
                    record.is_gone = True
                    self._changed[uid] = None
            # The oldest pod comes first, as in a kubelet.
            for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp"))):
                try:
                    self._take(pod)
                except NOT_UNDERSTOOD as error:
                    skipped("pods", pod, error)
            self._is_listed = True
        self._wake()

    def seen(self, kind: str, pod: Json) -> None:
        """Take one change: `ADDED`, `MODIFIED` or `DELETED`, and the pod."""
        with self._lock:
            if kind == "DELETED":
                record = self._records.get(uid_of(pod))
                if record is not None:
                    record.is_gone = True
                    self._changed[uid_of(pod)] = None
            else:
                self._take(pod)
            is_for_engine = bool(self._changed)
        if is_for_engine:
            self._wake()

    @property
    def objects(self) -> list[Json]:
        """The pods as last shown by the server, without unused fields."""
        with self._lock:
            return [record.object for record in self._records.values() if not record.is_gone]

    @property
    def is_listed(self) -> bool:
        """Whether the server has listed the pods of this node once."""
        return self._is_listed

    def _take(self, pod: Json) -> None:
        """Take a pod from the server, unless a newer version is known.

        Raises TypeError if a field has the wrong type.
        """
        uid = uid_of(pod)
        record = self._records.get(uid)
        if record is not None and version_of(pod) <= version_of(record.object):
            return  # for example, the watch shows a patch whose answer was already taken
        check_types(pod)
        if MIRROR in (pod["metadata"].get("annotations") or {}):
            return
        if record is None:
            record = self._records[uid] = PodRecord(reduced(pod), batch=self._proofs.seen(), says=self._says(pod))
            self._changed[uid] = None
            record.recall()
            if record.has_run:
                self._ran.add(uid)
                self._room.take(uid, record.object)
            elif record.phase not in FINAL and (node := self._node) is not None and unsuited(record.object, node):
                record.awaits_node = True  # the Node may have changed since it was read
                self._writer.put(("node of pod", self._node_name, uid), partial(self._read_node, uid))
        else:
            self._learn(uid, record, pod)
        if (record.report is not None or record.ended is not None) and not record.is_patching:
            self._put(uid)

    def _learn(self, uid: PodUid, record: PodRecord, pod: Json) -> bool:
        """Take a newer version of a pod. Return whether the engine must process the pod."""
        record.says = self._says(pod)
        is_decisive = record.take(pod)
        if is_decisive:
            self._changed[uid] = None
            self._room.recount(uid, record.object)
        return is_decisive

    # --- called by the engine ----------------------------------------------------------------------------------------

    @property
    def problems(self) -> tuple[ManifestError, ...]:
        """The invalid pods, by name."""
        with self._lock:
            found = [record.problem for record in self._records.values() if record.problem]
        return tuple(sorted(found, key=lambda problem: problem.file))

    @property
    def claims(self) -> "Mapping[ClaimKey, ResourceClaim]":
        """No claims, because the claims of these pods are on the API server."""
        return {}

    @property
    def keeps_refused(self) -> bool:
        """Whether a refused pod waits: it never does, because a controller creates a replacement elsewhere."""
        return False

    @property
    def next_poll(self) -> float:
        """When containers change next, in monotonic seconds.

        The value is 0 if pods have changed, and infinity if no change of a container is planned.
        """
        with self._lock:
            if self._changed:
                return 0.0
            return self._ends[0][0] if self._ends else math.inf

    def active_pods(self) -> frozenset[PodUid]:
        """Return the UIDs of the pods that the engine must run."""
        with self._lock:
            if self._active is None:
                records = self._records.items()
                self._active = frozenset(uid for uid, record in records if record.is_given)
            return self._active

    def sources_ready(self) -> bool:
        """Return whether the server has listed all pods once and the pods that ran before have been tried."""
        return self._is_ready

    def running_containers(self) -> Collection[ContainerKey]:
        """Return no containers, because the engine knows from the checkpoint which pods have devices."""
        return ()

    def has_run(self, pod: PodUid) -> bool:
        """Return whether a pod already had running containers when the server first showed the pod."""
        return pod in self._ran

    def object_of(self, pod: PodUid) -> Mapping[str, object]:
        """Return a pod as stored on the server, or an empty object if the pod is gone."""
        with self._lock:
            record = self._records.get(pod)
            return {} if record is None else record.object

    def refusal(self, pod: Pod, devices: Mapping[str, int]) -> PodRefusal | None:
        """Return why a pod that has its devices may not run on this node.

        If the pod may run, count its requests and return None.
        """
        with self._lock:
            record, node = self._records.get(pod.uid), self._node
            if record is None:
                return None  # the pod is gone
            refusal = None if node is None else self._room.refusal(pod.uid, record.object, node, devices)
            if refusal is None:
                self._room.take(pod.uid, record.object)
            return refusal

    @property
    def _node(self) -> Json | None:
        registered = self._registered()
        return None if registered is None else registered.node

    def mark_running(self, pod: PodUid) -> None:
        """Do nothing, because the pod's status shows that it is running."""

    def mark_ready(self) -> None:
        """Record that the engine has tried the pods of the first list."""
        self._is_ready = self._is_polled

    def poll(self) -> Changes:
        """Return the changes for the engine: which pods to run, and which to release."""
        added: list[Pod] = []
        removed: list[Pod] = []
        problems: list[ManifestError] = []
        with self._lock:
            now = self._clock()
            while self._ends and self._ends[0][0] <= now:
                self._changed[heapq.heappop(self._ends)[1]] = None
            changed, self._changed = self._changed, {}
            for uid in changed:
                record = self._records.get(uid)
                if record is not None:
                    before, problem = record.pod, record.problem
                    try:
                        step = self._take_step(uid, record, now)
                    except NOT_UNDERSTOOD as error:
                        skipped("pods", record.object, error)
                        continue
                    if step in (Step.RELEASE, Step.REPLACE) and (gone := before or record.pod) is not None:
                        removed.append(gone)
                    if step in (Step.RUN, Step.REPLACE) and record.pod is not None:
                        added.append(record.pod)
                    if record.problem is not None and record.problem is not problem:
                        problems.append(record.problem)
            if changed:
                self._active = None
            self._is_polled = self._is_listed
        return Changes(tuple(added), tuple(removed), tuple(problems))

    def _take_step(self, uid: PodUid, record: PodRecord, now: float) -> Step:
        """Do whatever a pod needs now. Return what the engine must do."""
        planned = record.end_at
        step = record.next_step(now, self._wall())
        self._await_end(uid, record, planned)
        if record.is_gone:
            del self._records[uid]
            self._ran.discard(uid)
            self._room.free(uid)
        elif step is Step.RELEASE:
            self._room.free(uid)  # this comes first, so that the next pod to get these devices also finds free capacity
            self._say(record, *record.leave(self._wall()))
            self._put(uid)
        else:
            if step is Step.COMPARE:
                self._put(uid)
            if not record.is_leaving:
                self._look(uid, record, now)
        return step

    def _look(self, uid: PodUid, record: PodRecord, now: float) -> None:
        """Update the containers of a pod, and schedule the next update."""
        planned = record.change_at
        self._say(record, *record.look(now, self._wall()))
        if record.change_at != planned and record.change_at < math.inf:
            heapq.heappush(self._ends, (record.change_at, uid))

    def _await_end(self, uid: PodUid, record: PodRecord, planned: float) -> None:
        """Schedule an update of the pod for when its containers exit, unless this update is already scheduled."""
        if record.end_at != planned and record.end_at < math.inf:
            heapq.heappush(self._ends, (record.end_at, uid))

    def report(self, pod: Pod, report: PodReport) -> None:
        """Take the engine's report on a pod."""
        with self._lock:
            record = self._records.get(pod.uid)
            if record is None or record.is_leaving or report == record.report:
                return
            before, record.report, outcome = record.report, report, report.outcome
            record.start_time = record.start_time or self._wall()
            if outcome.kind is OutcomeKind.RUNS:
                record.started = record.started or self._wall()
            if (before is None or outcome.kind is OutcomeKind.RUNS) and record.ended is None:
                planned = record.end_at
                record.plan_end(self._clock(), self._wall())
                self._await_end(pod.uid, record, planned)
                self._look(pod.uid, record, self._clock())
            if before is None or _told(before.outcome) != _told(outcome):
                self._say(record, *_said(outcome, record.containers))
            self._put(pod.uid)

    def released(self, pod: PodUid) -> None:
        """Record that a removed pod no longer holds anything."""
        with self._lock:
            self._room.free(pod)
            record = self._records.get(pod)
            if record is not None and record.stage is Stage.LEAVING:
                record.stage = Stage.RELEASED
                self._put(pod)

    def _say(self, record: PodRecord, *said: Said) -> None:
        now, places = self._wall(), max(0, _MAX_EVENTS - len(record.events))
        # An event's name contains its time, so each event gets a different time.
        record.events += [(one, now + timedelta(microseconds=number)) for number, one in enumerate(said)][:places]
        if said:
            key = "event", self._node_name, uid_of(record.object)
            self._writer.put(key, partial(self._send_events, record))

    # --- called by the writer ----------------------------------------------------------------------------------------

    def _read_node(self, uid: PodUid, requests: KubeApiRequests) -> None:
        """Read the Node, so that no pod is refused because of an outdated Node."""
        if (registered := self._registered()) is not None:
            registered.read(requests)
        with self._lock:
            if (record := self._records.get(uid)) is not None:
                record.awaits_node = False
                self._changed[uid] = None
        self._wake()

    def _put(self, uid: PodUid) -> None:
        self._writer.put(("pod", self._node_name, uid), partial(self._write, uid))

    def _write(self, uid: PodUid, requests: KubeApiRequests) -> float | None:
        """Send anything that the server does not show yet. Return how many seconds to wait before comparing again."""
        with self._lock:
            record = self._records.get(uid)
            if record is None or record.is_gone:
                return None
        if not self._proofs.holds(record.batch, requests):
            return _CONFLICT_LOOK
        with self._lock:
            shown, facts = record.object, record.facts(self._wall(), self._host_ips)
            removes = record.is_deleting and record.stage is Stage.RELEASED
        place = {"name": record.name, "namespace": record.namespace}
        wanted = pod_status(shown, facts) if facts is not None else None
        patch = status_patch(shown, wanted, self._wall()) if wanted is not None else None
        try:
            if patch is not None:
                is_repeated = (sent := hash(compact(wanted))) == record.last_wanted
                if is_repeated and record.repeats == _MAX_REPEATS:  # otherwise two writers would overload the server
                    record.repeats = 0
                    return _LOOK_AGAIN
                self._patch(uid, record, patch, requests)
                record.repeats, record.last_wanted = record.repeats + 1 if is_repeated else 0, sent
            if removes:
                requests.delete(PODS, uid=uid, grace=0, **place)
                record.stage = Stage.REMOVED
        except RequestError as error:
            # Other writers are changing the pod, or another pod has its name. The watch will show that.
            if error.reason == "Conflict" or (error.reason == "Invalid" and "metadata.uid" in error.message):
                record.conflicts += 1
                return _CONFLICT_LOOK if record.conflicts <= _MAX_REPEATS else _LOOK_AGAIN
            if error.reason == "NotFound":
                return _LOOK_AGAIN
            raise
        record.conflicts = 0
        return None

    def _send_events(self, record: PodRecord, requests: KubeApiRequests) -> float | None:
        """Send the events of a pod, even if the pod is gone. An event that the server refuses is not sent again."""
        if not self._proofs.holds(record.batch, requests):
            return _CONFLICT_LOOK
        while record.events:
            said, then = record.events[0]
            event = words_of_events.event(record.object, self._node_name, said, then)
            try:
                requests.create(EVENTS, event, event["metadata"]["namespace"])
            except RequestError as error:
                if error.status is None or error.is_passing:
                    raise
                _log.debug("an event was refused: %s", error)
            with self._lock:
                record.events = record.events[1:]
        return None

    def _patch(self, uid: PodUid, record: PodRecord, patch: Json, requests: KubeApiRequests) -> None:
        """Send a patch, and take the server's answer to it, because the watch may be late.

        If the watch has already shown the change, the answer is ignored.
        """
        with self._lock:
            record.is_patching, answer, version = True, None, version_of(record.object)
        try:
            answer = requests.patch(PODS, record.name, patch, record.namespace, subresource="status")
        finally:
            with self._lock:
                record.is_patching, is_for_engine = False, False
                if answer is not None and uid_of(answer) == uid:
                    version = version_of(answer)
                if version_of(record.object) > version:  # in the meantime, the watch has shown a later change
                    self._put(uid)
                elif answer is not None and version > version_of(record.object):
                    is_for_engine = self._learn(uid, record, answer)
        if is_for_engine:
            self._wake()


class PodReceiver(Protocol):
    """Accepts the pods of one node: either `ClusterPods`, or a filter in front of `ClusterPods`."""

    def listed(self, pods: Sequence[Json]) -> None:
        """Take all pods of the node."""

    def seen(self, kind: str, pod: Json) -> None:
        """Take one change: `ADDED`, `MODIFIED` or `DELETED`, and the pod."""


class NodePods(ObjectHandler):
    """Passes the pods of a watch to the nodes that they are bound to. `nodes` may change while the watch runs."""

    def __init__(self, nodes: Mapping[str, PodReceiver]) -> None:
        self._nodes = nodes

    def wants(self, found: Json) -> bool:
        """Return whether a pod is bound to one of the nodes."""
        return node_of(found) in self._nodes

    def listed(self, objects: Sequence[Json]) -> None:
        """Pass each node all of its pods."""
        of_node: dict[str, list[Json]] = {node: [] for node in tuple(self._nodes)}
        for pod in objects:
            of_node.get(node_of(pod), []).append(pod)
        for node, found in of_node.items():
            if (receiver := self._nodes.get(node)) is not None:
                receiver.listed(found)

    def seen(self, kind: str, found: Json) -> None:
        """Pass a changed pod to its node."""
        if (receiver := self._nodes.get(node_of(found))) is not None:
            receiver.seen(kind, found)


def _told(outcome: Outcome) -> tuple[OutcomeKind, str]:
    return outcome.kind, outcome.kubelet_message


def _said(outcome: Outcome, containers: Sequence[str]) -> Iterator[Said]:
    """Yield the events that a kubelet sends for an outcome."""
    if outcome.refusal is not None:
        yield words_of_events.refused(outcome.refusal.reason, outcome.kubelet_message)
    elif outcome.kind in (OutcomeKind.CLAIMS_FAILED, OutcomeKind.CLAIM_UNUSABLE):
        yield words_of_events.not_prepared(outcome.kubelet_message)
    elif outcome.is_start_failure:
        error = f"Error: {outcome.kubelet_message}"
        yield from (Said("Failed", error, is_warning=True, container=name) for name in containers[:1])
