"""The threads that publish a node's status on an API server and repair it.

Law: after any failure the sink tries again with the newest state, and `problem` says why the node does not show it.
"""

import logging
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus

from attrs import define, evolve, frozen

from devicecore.adapters.kube_api.access import Access, ApiServer, NodeNameError, Problem
from devicecore.adapters.kube_api.backoff import Backoff
from devicecore.adapters.kube_api.patches import NodeObject, PatchStrategy, Wanted, changes, render
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import NotStartedError, SinkError
from devicecore.domain.model import ResourceName
from devicecore.domain.names import is_dns_subdomain
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.system.background import SupervisedThread

_log = logging.getLogger(__name__)

_MAX_PATCHES = 4  # in one attempt: others write to the node too, and usually the second patch is accepted

_LAST_SECONDS = 1.0  # for a thread to end after its request was ended
_PASSWORD = re.compile(r"//[^/?#]*@")  # and the name before it, in a URL; logs must not have them


@frozen(kw_only=True)
class Pace:
    """How often a sink compares and writes the Node.

    Attributes:
        backoff: how long to wait after a failure.
        resync: seconds after which the Node is compared even if the watch shows no change.
        patches_per_second: patches in any second; what is published meanwhile is combined into the next one.
        clock: monotonic seconds, for the limit on patches.
    """

    backoff: Backoff = Backoff()
    resync: float = 300.0
    patches_per_second: int = 2
    clock: Callable[[], float] = time.monotonic


@define
class _State:
    """What is wanted, and what is known of the Node.

    Attributes:
        wanted: what the Node is to show.
        published: what it showed when it was last compared; None until then.
        version: its version when it was last seen; empty if it does not exist, None if it was not seen.
        last_seen: what the watch has seen since the publishing thread began to read.
        must_compare: whether the Node has to be compared now.
        is_missing: whether the API server said that there is no such Node.
        problem: why the Node does not show what is wanted.
    """

    wanted: Wanted
    published: Wanted | None
    version: str | None = None
    last_seen: NodeObject | None = None
    must_compare: bool = False
    is_missing: bool = False
    problem: SinkError | None = None

    @property
    def is_published(self) -> bool:
        """Whether the Node shows what is wanted, as far as is known."""
        return self.published == self.wanted


class KubeApiSink(HasLifecycle):
    """Publishes a node's device resources in the status of its Node object.

    A thread publishes what `publish` was given last, and tries again after a failure. Another thread watches the Node:
    if another writer recreates it or overwrites a value, the sink repairs it within seconds. Thread-safe. Use it as a
    context manager, or call `start` and `stop`; what was published before a stop is published again after a start.

    Args:
        node: the name of the Node object, which need not exist yet.
        access: where the API server and the credentials are, and how long to wait for them.
        strategy: how changes are written.
        keep_removed: keep a removed resource with 0, as a kubelet does; otherwise delete its key.
        beside_kubelet: whether a kubelet also writes this Node's status. A kubelet overwrites the allocatable of these
            resources with their capacity, so both get the number of healthy devices.
        leftovers: other resources that an earlier run may have published. Resources that `field_manager` has written
            are found in the Node and count as removed until a status names them.
        field_manager: our name in `metadata.managedFields`. No other writer of this Node may use it.
        pace: how often the Node is compared and written.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
        NodeNameError: no node can have that name.
    """

    def __init__(
        self,
        node: str,
        access: Access = Access(),
        *,
        strategy: PatchStrategy = PatchStrategy.JSON_PATCH,
        keep_removed: bool = True,
        beside_kubelet: bool = False,
        leftovers: Iterable[ResourceName] = (),
        field_manager: str = "devicecore",
        pace: Pace = Pace(),
    ) -> None:
        if not is_dns_subdomain(node):
            raise NodeNameError(node)
        server = access.connection().server  # files are read now, so that errors are raised
        self._name = f"node {node} at {_PASSWORD.sub('//***@', server)}"
        self._new_server = partial(ApiServer, node, access, field_manager)
        self._server, self._watched = self._new_server(), self._new_server(is_watch=True)
        # Apply deletes only keys that no other writer has ever written: the others take a second patch.
        is_apply = strategy is PatchStrategy.APPLY
        self._strategies = (strategy, PatchStrategy.STRATEGIC_MERGE) if is_apply else (strategy,)
        self._field_manager = field_manager
        self._gone = 0 if keep_removed else None
        self._beside_kubelet = beside_kubelet
        self._pace = pace
        self._patches = _Window(pace.patches_per_second, pace.clock)
        self._condition = threading.Condition()  # held while the state changes, never during a request
        leftover = Wanted().updated(NodeStatus(removed=tuple(leftovers)), self._gone)
        self._state = _State(leftover, leftover)
        self._closing = False
        self._has_status = False  # whether anything was published since the sink was made
        self._has_looked_for_leftovers = False  # used by the publishing thread only
        self._lifecycle = Lifecycle("the sink")
        self._publisher: threading.Thread | None = None
        self._watcher: SupervisedThread | None = None

    def stop(self, timeout: float = 5.0) -> None:
        """Stop, after a last attempt if something is not published yet. A second stop does nothing.

        After `timeout` seconds, the request that is under way is ended, and no further one is begun.
        """
        self._lifecycle.stop(partial(self._end, timeout))

    def _begin(self) -> None:
        self._server, self._watched = self._new_server(), self._new_server(is_watch=True)
        self._closing = False
        if self._has_status:
            self._state.published = self._state.version = None
        self._publisher = threading.Thread(target=self._work, name="devicecore-kube-api", daemon=True)
        self._publisher.start()
        self._watcher = SupervisedThread("devicecore-kube-api-watch", self._watch)
        self._watcher.start()

    def _end(self, timeout: float = 0.0) -> None:  # after a start that failed there is nothing to wait for
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        end = time.monotonic() + timeout
        self._watched.stop()
        if self._publisher is not None and self._publisher.ident is not None:
            self._publisher.join(timeout)
        problem = self._state.problem
        self._server.stop()
        if self._watcher is not None:
            self._watcher.stop(max(_LAST_SECONDS, end - time.monotonic()))
        if self._publisher is not None and self._publisher.ident is not None:
            self._publisher.join(_LAST_SECONDS)
        with self._condition:
            if not self._state.is_published:
                _log.error("stopped before all was published: %s", problem or f"no answer from {self._name}")

    def publish(self, status: NodeStatus) -> None:
        """Let a thread publish `status` as soon as possible; return at once, without waiting for the network.

        Raises:
            SinkError: this sink is not started.
        """
        try:
            self._lifecycle.check_running()
        except NotStartedError as error:
            raise SinkError(self._name, str(error)) from error
        if self._beside_kubelet:
            capacity = {name: status.allocatable.get(name, count) for name, count in status.capacity.items()}
            status = evolve(status, capacity=capacity)
        with self._condition:
            self._state.wanted = self._state.wanted.updated(status, self._gone)
            if not self._has_status:
                self._has_status, self._state.published = True, None
            self._condition.notify_all()

    @property
    def problem(self) -> SinkError | None:
        """Return why the node does not show what was published, or None if no problem is known."""
        return self._state.problem

    @property
    def is_published(self) -> bool:
        """Whether the node shows all that was published, as far as is known."""
        with self._condition:
            return self._state.is_published

    def wait_until_published(self, timeout: float) -> None:
        """Wait until the node shows all that was published.

        Raises:
            SinkError: it does not after `timeout` seconds, and why.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._state.is_published, timeout):
                raise self._state.problem or SinkError(self._name, f"no answer within {timeout:g} s")

    # --- the thread that publishes ------------------------------------------------------------------------------------

    def _work(self) -> None:
        failures, pause = 0, 0.0
        last: Problem | None = None
        while self._wait(failures, pause):
            is_last = self._closing
            try:
                wanted, node = self._reconcile()
            except Exception as error:  # noqa: BLE001 - no caller would notice the end of this thread
                problem = (
                    error if isinstance(error, Problem) else Problem(type(error), f"a bug in devicecore: {error!r}")
                )
                failures += 1
                pause = max(self._pace.backoff.delay(failures, random.random()), problem.pause)  # noqa: S311 - no secret
                if last is None or last.kind != problem.kind:
                    self._report(problem, bug=None if problem is error else error)
                last = problem
                self._failed(problem)
            else:
                failures, last = 0, None
                self._succeeded(wanted, node)
            if is_last:
                break
        self._server.disconnect()

    def _wait(self, failures: int, pause: float) -> bool:
        """Wait for work; return False if the sink is closed and everything is published."""
        state = self._state
        with self._condition:
            if failures:  # new statuses cause no additional requests to a server that fails
                self._condition.wait_for(lambda: self._closing or (state.is_missing and state.must_compare), pause)
            else:
                self._condition.wait_for(
                    lambda: self._closing or state.must_compare or not state.is_published,
                    self._pace.resync if self._has_status else None,
                )
            state.must_compare = False
            return not self._closing or not state.is_published

    def _reconcile(self) -> tuple[Wanted, NodeObject]:
        """Patch the node until it shows the wanted status; return that status and the node."""
        with self._condition:
            self._state.last_seen = None
        node = self._server.read()
        for left in reversed(range(_MAX_PATCHES)):
            try:
                return self._patch(node)
            except Problem as problem:
                if not (problem.is_stale and left):
                    raise
                before, node = node, self._server.read()
                if problem.kind == HTTPStatus.UNPROCESSABLE_ENTITY and node.version == before.version:
                    # The node has not changed, so a policy denies the patch. Soon it will deny it again.
                    raise evolve(problem, pause=self._pace.backoff.maximum) from None
        message = "unreachable: the last attempt returns or raises"
        raise AssertionError(message)

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
                raise Problem(kind="field manager", cause=str(error)) from error
            node = self._server.write(kind, body)
        if changes(wanted, node):
            cause = "the API server accepted the patch, but the node does not show it: does a webhook change it?"
            raise Problem(kind="ignored", cause=cause)
        return wanted, node

    def _newest(self, node: NodeObject) -> Wanted:
        """Return what is wanted now. The first call adds what an earlier run left on the node."""
        with self._condition:
            if not self._has_looked_for_leftovers:
                self._has_looked_for_leftovers = True
                self._state.wanted = self._state.wanted.with_leftovers(node.leftovers(self._field_manager), self._gone)
            return self._state.wanted

    def _wait_for_turn(self) -> None:
        """Wait until another patch is allowed; a sink that is closing does not wait."""
        with self._condition:
            while not self._closing and (seconds := self._patches.take()):
                self._condition.wait(seconds)

    def _report(self, problem: Problem, bug: Exception | None) -> None:
        if not self._closing:  # `stop` reports what was not published
            error = SinkError(self._name, problem.cause)
            _log.error("%s; the sink tries again until it succeeds", error, exc_info=bug)

    def _failed(self, problem: Problem) -> None:
        with self._condition:
            self._state.problem = SinkError(self._name, problem.cause)
            self._state.is_missing = problem.kind == HTTPStatus.NOT_FOUND
            if self._state.is_missing:
                self._state.published = None
                self._state.version = self._state.version or ""
            self._condition.notify_all()

    def _succeeded(self, wanted: Wanted, node: NodeObject) -> None:
        with self._condition:
            if self._state.problem:
                _log.warning("the status of %s is published again", self._name)
            state = self._state
            state.published, state.problem, state.version, state.is_missing = wanted, None, node.version, False
            seen = state.last_seen
            state.must_compare |= seen is not None and seen.version != node.version and bool(changes(wanted, seen))
            self._condition.notify_all()

    # --- the thread that watches --------------------------------------------------------------------------------------

    def _watch(self, stopping: threading.Event) -> None:
        """Watch the node, and let the other thread compare it when another writer has changed it."""
        failures, last = 0, None
        while not stopping.is_set():
            with self._condition:
                self._condition.wait_for(lambda: self._closing or self._state.version is not None)
                version = self._state.version or ""
            try:
                for kind, node in self._watched.watch(version):
                    self._seen(kind, node)
                    failures, last = 0, None
            except Problem as problem:
                failures += 1
                if problem.kind != last and not self._closing:
                    seconds = f"{self._pace.backoff.maximum:g} s"
                    _log.warning("cannot watch %s, so it is compared every %s: %s", self._name, seconds, problem)
                last = problem.kind
                self._lost_track()
            stopping.wait(self._pace.backoff.delay(failures + 1, random.random()))  # noqa: S311 - no secret
        self._watched.disconnect()

    def _seen(self, kind: str, node: NodeObject) -> None:
        with self._condition:
            self._state.version, self._state.last_seen = node.version, node
            # While something is being published, its own patch is seen; `_succeeded` decides about other changes.
            is_wrong = self._state.is_published and changes(self._state.wanted, node)
            if kind == "DELETED" or self._state.is_missing or is_wrong:
                self._state.must_compare = True
                self._condition.notify_all()

    def _lost_track(self) -> None:
        """Compare the node and then watch from its version: what happened meanwhile is not known."""
        with self._condition:
            self._state.version = "" if self._state.is_missing else None
            self._state.must_compare = True
            self._condition.notify_all()


class _Window:
    """Allows so many patches in any second. The caller holds a lock."""

    def __init__(self, per_second: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._taken: deque[float] = deque([float("-inf")] * per_second, maxlen=per_second)

    def take(self) -> float:
        """Take one and return 0; if none is left, return the seconds until one is."""
        now = self._clock()
        left = self._taken[0] + 1.0 - now
        if left > 0:
            return left
        self._taken.append(now)
        return 0.0
