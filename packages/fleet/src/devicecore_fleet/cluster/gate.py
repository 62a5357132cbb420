"""A gate between a node and its API server: a partition, a node that is down, or a Node that is not known to be ours.

Law: while the gate is closed, no request of the node is begun and no event reaches it. What the node wanted to send
last, and what the server has said last, passes when the gate opens.
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
    """Stands between a node and what connects all nodes with the API server. Thread-safe.

    Args:
        writer: sends the requests of all nodes.
        claims: reads claims for all nodes, or None if they are read elsewhere.
        receiver: returns who takes the pods of the node.
        is_closed: whether it is closed at first.
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
        # Three locks, in this order: the receiver has a lock of its own, which it holds while it calls `put`.
        self._deciding = Lock()  # held from the question whether it is to be open until it is
        self._passing = Lock()  # held while events are handed on
        self._lock = Lock()  # held while the jobs that wait change, so that no job is handed on after a newer one
        self._is_closed = is_closed
        self._is_listing = False  # pods are listed, and what the watch shows meanwhile is newer than the list
        self._start = 0  # how often the node has started again
        self._jobs: dict[Hashable, Job] = {}
        self._list: Sequence[Json] | None = None
        self._changes: dict[str, tuple[str, Json]] = {}  # the last of each pod, by UID

    @property
    def is_closed(self) -> bool:
        """Whether nothing passes."""
        return self._is_closed

    def decide(self, is_open: Callable[[], bool]) -> None:
        """Open or close by what `is_open` returns now. Of two calls in two threads, the second asks later."""
        with self._deciding:
            if is_open():
                self.open()
            else:
                self.close()

    def close(self) -> None:
        """Let nothing pass from now on. A request that is under way ends."""
        with self._passing, self._lock:
            self._is_closed = True

    def open(self) -> None:
        """Let everything pass, and first what has waited. This does nothing if the gate is open."""
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
        """Forget what the node wanted to send and has not begun: it starts over."""
        with self._lock:
            self._jobs.clear()
            self._start += 1

    def put(self, key: Hashable, job: Job) -> None:
        """Hand a job on, or keep it while the gate is closed."""
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
        """List the pods of the node while they are watched. Raises what `listing` raises.

        What the watch shows meanwhile is handed on after the list. Otherwise a pod that was bound after the list was
        made would be gone, and one that was deleted would be back.
        """
        with self._passing:
            self._is_listing = True
        pods = listing()
        with self._passing:
            if self._is_listing:  # otherwise the watch has listed all pods meanwhile
                self._is_listing, self._list = False, pods
                if not self._is_closed:
                    self._hand_on_pods()

    def listed(self, pods: Sequence[Json]) -> None:
        """Pass on a list, or keep it in place of everything kept before."""
        with self._passing:
            self._is_listing, self._list, self._changes = False, pods, {}
            if not self._is_closed:
                self._hand_on_pods()

    def seen(self, kind: str, pod: Json) -> None:
        """Hand a change on, or keep it in place of an earlier one of the pod."""
        with self._passing:
            if self._is_closed or self._is_listing:
                self._changes[str(pod["metadata"].get("uid"))] = kind, pod
            else:
                self._receiver().seen(kind, pod)

    def get(self, key: ClaimKey) -> ResourceClaim:
        """Read a claim. Raises ClaimSourceError if the gate is closed, there is no such claim, or it cannot be read."""
        if self._is_closed or self._claims is None:
            raise ClaimSourceError("no connection: the node is separated from the API server")
        return self._claims.get(key)
