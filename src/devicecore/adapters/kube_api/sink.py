"""Publishes a node's status on an API server, and repairs it.

Law: a patch writes the newest status, and names the version of the Node that it was computed for.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus

from attrs import evolve, field, frozen

from devicecore.adapters.kube_api.access import (
    Access,
    ApiRequest,
    ApiServer,
    RequestError,
    check_node_name,
    connection_of,
    node_sentences,
)
from devicecore.adapters.kube_api.patches import Json, NodeObject, PatchStrategy, PatchType, Wanted, changes, render
from devicecore.adapters.kube_api.publishing import ApiPublisher, Backoff
from devicecore.adapters.kube_api.requests import NODES, selectors
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checks import is_seconds, one_of
from devicecore.domain.errors import SinkError
from devicecore.domain.model import ResourceName
from devicecore.runtime.lifecycle import Lifecycle
from devicecore.system.arguments import checks_arguments, checks_fields

_MAX_PATCHES = 4  # tries per attempt: others also write to the Node, and usually the second try succeeds
_PASSWORD = re.compile(r"//[^/?#]*@")  # the password and user name in a URL, which logs must not contain


@checks_fields
@frozen(kw_only=True)
class Pace:
    """How often a sink compares and writes the Node.

    Attributes:
        backoff: how long to wait after a failure.
        resync: seconds after which the Node is compared even if the watch shows no change.
        patches_per_second: the maximum number of patches in any second. Statuses published in the meantime are combined
            into the next patch.
        clock: returns monotonic seconds, used to limit patches.
    """

    backoff: Backoff = Backoff()
    resync: float = field(default=300.0, validator=is_seconds)
    patches_per_second: int = 2
    clock: Callable[[], float] = time.monotonic


class KubeApiSink(ApiPublisher[SinkError, Wanted, NodeObject]):
    """Publishes a node's device resources in the status of its Node object.

    A thread publishes the last status passed to `publish`, and tries again after a failure. Another thread watches the
    Node: if another writer recreates it or overwrites a value, the sink repairs it within seconds. Thread-safe. Use it
    as a context manager, or call `start` and `stop`; a status published before a stop is published again after a start.

    Args:
        node: the name of the Node object, which need not exist yet.
        access: where the API server and the credentials are, and how long to wait for them.
        strategy: how changes are written.
        keep_removed: whether to keep a removed resource at 0, as a kubelet does; otherwise its key is deleted.
        beside_kubelet: whether a kubelet also writes this Node's status. A kubelet overwrites the allocatable of the
            published resources with their capacity, so the sink sets both to the number of healthy devices.
        leftovers: other resources that an earlier run may have published. Resources that `field_manager` has written
            are found in the Node and count as removed until a status names them.
        field_manager: our name in `metadata.managedFields`. No other writer of this Node may use the same field
            manager.
        pace: how often the Node is compared and written.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
        NodeNameError: the node name is invalid.
        ValueError: there is no such strategy.
    """

    @checks_arguments("access")
    def __init__(
        self,
        node: str,
        access: Access = Access(),
        *,
        strategy: PatchStrategy = PatchStrategy.STRATEGIC_MERGE,
        keep_removed: bool = True,
        beside_kubelet: bool = False,
        leftovers: Iterable[ResourceName] = (),
        field_manager: str = "devicecore",
        pace: Pace = Pace(),
    ) -> None:
        check_node_name(node)
        strategy = one_of(strategy, PatchStrategy, "KubeApiSink: strategy")
        server = connection_of(access).server
        place = f"node {node} at {_PASSWORD.sub('//***@', server)}"
        new = partial(ApiServer, access, node_sentences(node))
        self._node = node
        self._gone = 0 if keep_removed else None
        super().__init__(
            Lifecycle("the sink"),
            place,
            Wanted().updated(NodeStatus(removed=tuple(leftovers)), self._gone),
            thread="devicecore-kube-api",
            new_servers=lambda: (new(is_watch=True), new()),
            error_of=partial(SinkError, place),
            backoff=pace.backoff,
            resync=pace.resync,
        )
        # Apply deletes only keys that no other writer has ever written. Deleting other keys takes a second patch.
        is_apply = strategy is PatchStrategy.APPLY
        self._strategies = (strategy, PatchStrategy.STRATEGIC_MERGE) if is_apply else (strategy,)
        self._field_manager = field_manager
        self._beside_kubelet = beside_kubelet
        self._patches = _Window(pace.patches_per_second, pace.clock)
        # the Node that the watch has seen since the publishing thread started to read the Node
        self._last_seen: NodeObject | None = None
        self._has_looked_for_leftovers = False  # used by the publishing thread only

    def publish(self, status: NodeStatus) -> None:
        """Make a thread publish `status` as soon as possible. The call does not wait for the network.

        Raises:
            SinkError: this sink is not started.
        """
        self._check_running()
        if self._beside_kubelet:
            capacity = {name: status.allocatable.get(name, count) for name, count in status.capacity.items()}
            status = evolve(status, capacity=capacity)
        with self._lock:
            self._want(self._wanted.updated(status, self._gone))

    # --- the thread that publishes ------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        self._last_seen = None
        node = self._read()
        for left in reversed(range(_MAX_PATCHES)):
            try:
                wanted, shown = self._patch(node)
            except RequestError as error:
                if error.kind not in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY) or not left:
                    raise
                before, node = node, self._read()
                if error.kind == HTTPStatus.UNPROCESSABLE_ENTITY and node.version == before.version:
                    # The Node has not changed, so a policy denied the patch, and would probably deny it again.
                    raise evolve(error, pause=self._backoff.maximum) from None
            else:
                self._succeeded(wanted, shown.version)
                return

    def _read(self) -> NodeObject:
        request = ApiRequest("get nodes", "GET", NODES.path(name=self._node))
        return self._servers[0].read(request, NodeObject.parse)

    def _write(self, kind: PatchType, body: Json) -> NodeObject:
        query = {"fieldManager": self._field_manager, **({"force": "true"} if kind is PatchType.APPLY else {})}
        path = NODES.path(name=self._node, subresource="status")
        request = ApiRequest("patch nodes/status", "PATCH", path, query, body, kind.value)
        return self._servers[0].read(request, NodeObject.parse)

    def _succeeded(self, wanted: Wanted, version: str) -> None:
        with self._lock:
            super()._succeeded(wanted, version)
            seen = self._last_seen
            self._must_compare |= seen is not None and seen.version != version and bool(changes(wanted, seen))

    def _patch(self, node: NodeObject) -> tuple[Wanted, NodeObject]:
        wanted = self._newest(node)
        for strategy in self._strategies:
            if not changes(wanted, node):
                return wanted, node
            self._wait_for_turn()
            wanted = self._newest(node)
            needed = changes(wanted, node)
            if not needed:
                return wanted, node
            try:
                kind, body = render(strategy, needed, wanted, node, self._field_manager)
            except ValueError as error:
                raise RequestError(str(error), kind="field manager") from error
            node = self._write(kind, body)
        if changes(wanted, node):
            cause = "the API server accepted the patch, but the node does not show it: does a webhook change the node?"
            raise RequestError(cause, kind="ignored")
        return wanted, node

    def _newest(self, node: NodeObject) -> Wanted:
        """Return the current desired state. The first call adds the keys that an earlier run left on the Node."""
        with self._lock:
            if not self._has_looked_for_leftovers:
                self._has_looked_for_leftovers = True
                self._wanted = self._wanted.with_leftovers(node.leftovers(self._field_manager), self._gone)
            return self._wanted

    def _wait_for_turn(self) -> None:
        """Wait until another patch is allowed; a sink that is closing does not wait."""
        with self._lock:
            while not self._closing and (seconds := self._patches.take()):
                self._condition.wait(seconds)

    def _failed(self, problem: RequestError) -> None:
        with self._lock:
            super()._failed(problem)
            self._is_missing = problem.kind == HTTPStatus.NOT_FOUND
            if self._is_missing:
                self._published, self._version = None, self._version or ""

    # --- the thread that watches --------------------------------------------------------------------------------------

    def _events(self, version: str) -> Iterable[tuple[str, NodeObject]]:
        return self._watched.events(NODES, selectors(f"metadata.name={self._node}", ""), version, NodeObject.parse)

    def _seen(self, kind: str, found: NodeObject) -> None:
        with self._lock:
            self._version, self._last_seen = found.version, found
            # While something is being published, the watch shows our own patch. `_reconcile` handles other changes.
            if kind == "DELETED" or self._is_missing or (self.is_published and changes(self._wanted, found)):
                self._compare()


class _Window:
    """Limits how many patches are sent in any second. The caller must hold a lock."""

    def __init__(self, per_second: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._taken: deque[float] = deque([float("-inf")] * per_second, maxlen=per_second)

    def take(self) -> float:
        """Use up one patch and return 0. If no patch is left, return the seconds until the next one is available."""
        now = self._clock()
        left = self._taken[0] + 1.0 - now
        if left > 0:
            return left
        self._taken.append(now)
        return 0.0
