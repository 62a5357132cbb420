"""A gate between a node and its API server.

The gate is closed if the node is partitioned or down, or if its Node may not be ours.

Law: while the gate is closed, none of the node's requests are started, and no events reach the node. When the gate
opens, the node's latest pending requests and the server's latest state pass through.
"""

from collections.abc import Callable, Hashable, Sequence
from threading import Lock

from devicecore.adapters.kube_api.patches import Json
from devicecore.domain.dra.errors import ClaimSourceError
from devicecore.domain.dra.model import ClaimKey, ResourceClaim
from devicecore.ports.claims import ClaimSource
from devicecore_fleet.cluster.object_watch import NOT_UNDERSTOOD, skipped
from devicecore_fleet.cluster.pods import PodReceiver
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.writer import Job, Writer


class NodeGate(Writer, PodReceiver, ClaimSource):
    """Stands between a node and the connection to the API server that all nodes share. Thread-safe.

    Args:
        writer: sends the requests of all nodes.
        claims: reads claims for all nodes, or None if nodes do not read claims through the gate.
        receiver: returns the receiver of the node's pods.
        is_closed: whether the gate is initially closed.
    """

    def __init__(
        self,
        writer: Writer,
        claims: ClaimSource | None,
        receiver: Callable[[], PodReceiver],
        *,
        is_closed: bool = False,
    ) -> None:
        self._writer = writer
        self._claims = claims
        self._receiver = receiver
        # There are three locks, taken in this order. The receiver holds its own lock while it calls `put`.
        self._deciding = Lock()  # held from the decision to open or close the gate until the gate is open or closed
        self._passing = Lock()  # held while pod events are passed on or kept
        self._lock = Lock()  # held while pending jobs change, so that no job is passed on after a newer one
        self._is_closed = is_closed
        self._is_listing = False  # set while pods are being listed: concurrent watch events are newer than the list
        self._start = 0  # how many times the node has restarted
        self._jobs: dict[Hashable, Job] = {}
        self._list: Sequence[Json] | None = None
        self._changes: dict[str, tuple[str, Json]] = {}  # the last event of each pod, by UID

    @property
    def is_closed(self) -> bool:
        """Whether nothing passes through."""
        return self._is_closed

    def decide(self, is_open: Callable[[], bool]) -> None:
        """Open or close the gate according to `is_open`.

        If two threads call this method, they evaluate `is_open` one after the other.
        """
        with self._deciding:
            if is_open():
                self.open()
            else:
                self.close()

    def close(self) -> None:
        """Close the gate: nothing passes through from now on. A request in progress is completed."""
        with self._passing, self._lock:
            self._is_closed = True

    def open(self) -> None:
        """Open the gate: everything passes through, starting with pending requests and events.

        If the gate is already open, this method does nothing.
        """
        with self._passing:
            if not self._is_closed:
                return
            if not self._is_listing:
                self._hand_on_pods()
            with self._lock:
                self._is_closed = False
                jobs, self._jobs = self._jobs, {}
                for key, job in jobs.items():
                    self._hand_on(key, job)

    def _hand_on_pods(self) -> None:
        listed, self._list = self._list, None
        changes, self._changes = self._changes, {}
        receiver = self._receiver()
        if listed is not None:
            receiver.listed(listed)
        for kind, pod in changes.values():
            try:
                receiver.seen(kind, pod)
            except NOT_UNDERSTOOD as error:
                skipped("pods", pod, error)

    def forget_jobs(self) -> None:
        """Forget the pending requests of the node, because the node starts over."""
        with self._lock:
            self._jobs.clear()
            self._start += 1

    def put(self, key: Hashable, job: Job) -> None:
        """Pass on a job. While the gate is closed, keep the job."""
        with self._lock:
            if self._is_closed:
                self._jobs[key] = job
            else:
                self._hand_on(key, job)

    def _hand_on(self, key: Hashable, job: Job) -> None:
        start = self._start

        def run(requests: KubeApiRequests) -> float | None:
            with self._lock:
                if start != self._start:
                    return None
                if self._is_closed:
                    self._jobs.setdefault(key, job)
                    return None
            return job(requests)

        self._writer.put(key, run)

    def catch_up(self, listing: Callable[[], Sequence[Json]]) -> None:
        """List the node's pods while they are being watched. Raises the errors that `listing` raises.

        Concurrent watch events are passed on after the list. Otherwise, a pod that was bound after the list was created
        would disappear, and a pod deleted after that would reappear.
        """
        with self._passing:
            self._is_listing = True
        pods = listing()
        with self._passing:
            if self._is_listing:  # otherwise, the watch has listed all pods in the meantime
                self._is_listing, self._list = False, pods
                if not self._is_closed:
                    self._hand_on_pods()

    def listed(self, pods: Sequence[Json]) -> None:
        """Pass on a list of pods.

        While the gate is closed, keep the list in place of everything that was kept before.
        """
        with self._passing:
            self._is_listing, self._list, self._changes = False, pods, {}
            if not self._is_closed:
                self._hand_on_pods()

    def seen(self, kind: str, pod: Json) -> None:
        """Pass on a change to a pod.

        While the gate is closed, keep the change in place of an earlier change to the same pod.
        """
        with self._passing:
            if self._is_closed or self._is_listing:
                self._changes[str(pod["metadata"].get("uid"))] = kind, pod
            else:
                self._receiver().seen(kind, pod)

    def get(self, key: ClaimKey) -> ResourceClaim:
        """Read a claim.

        Raises ClaimSourceError if the gate is closed, or the claim does not exist or cannot be read.
        """
        if self._is_closed or self._claims is None:
            raise ClaimSourceError("no connection: the node is separated from the API server")
        return self._claims.get(key)
