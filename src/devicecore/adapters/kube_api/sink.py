"""The thread that brings a node's status to an API server, and never gives up."""

import logging
import random
import re
import threading
from collections.abc import Iterable
from os import PathLike
from types import TracebackType
from typing import Self

from attrs import frozen
from lightkube.config.kubeconfig import SERVICE_ACCOUNT

from devicecore.adapters.kube_api.access import Access, ApiServer, NodeNameError, Problem
from devicecore.adapters.kube_api.patches import PatchStrategy, Wanted, changes, render
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import SinkError
from devicecore.domain.model import ResourceName

_log = logging.getLogger(__name__)

_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_READS = 4  # of the node in one attempt: others write to it too, and mostly the second time it fits


@frozen
class Backoff:
    """How long to wait between attempts: `first` seconds, then twice as long each time, up to `longest`."""

    first: float = 0.5
    longest: float = 30.0

    def delay(self, failures: int, luck: float) -> float:
        """Seconds after so many failures in a row. `luck`, from 0 to 1, keeps a thousand nodes from coming at once."""
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 60)) * (0.5 + luck / 2)


class KubeApiSink:
    """Publishes a node's device resources in the status of its Node object.

    A thread of its own does the work. Whatever goes wrong, it tries again after a while, with what was published last;
    what is wrong is said once in the log, and in `problem`. Thread-safe. Close it, or use it as a context manager.

    Args:
        node: the name of the Node object, which need not exist yet.
        kubeconfig: where the API server is, and who we are. Without it: the service account of the pod we run in, then
            `$KUBECONFIG`, then `~/.kube/config`. It is read again when credentials have expired.
        context: which context of the kubeconfig, if not its current one.
        strategy: how changes are written.
        keep_removed: keep a removed resource with 0, as a kubelet does; otherwise delete it.
        leftovers: resources that an earlier run may have left on the node: taken for removed until a status names them.
        field_manager: who we are in `metadata.managedFields`. Nobody else may apply under this name.
        timeout: seconds after which a connection, or an answer on it, is given up.
        backoff: how long to wait after a failure.
        resync: seconds after which to see whether the node still shows what was published.
        service_account: the directory of the pod's service account.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
        NodeNameError: no node can have that name.
    """

    def __init__(
        self,
        node: str,
        *,
        kubeconfig: str | PathLike[str] | None = None,
        context: str | None = None,
        strategy: PatchStrategy = PatchStrategy.JSON_PATCH,
        keep_removed: bool = True,
        leftovers: Iterable[ResourceName] = (),
        field_manager: str = "devicecore",
        timeout: float = 10.0,
        backoff: Backoff = Backoff(),
        resync: float = 300.0,
        service_account: str | PathLike[str] = SERVICE_ACCOUNT,
    ) -> None:
        if not _NODE_NAME.fullmatch(node):
            raise NodeNameError(node)
        access = Access(kubeconfig, context, service_account, timeout)
        with access.connect() as client:  # nothing is sent: it is now that whoever made a mistake wants to hear of it
            self._name = f"node {node} at {client.config.cluster.server}"
        self._server = ApiServer(node, access, field_manager)
        # Not applying a key deletes it only if nobody else has ever written it: what is left takes a second patch.
        self._strategies = (strategy, PatchStrategy.STRATEGIC_MERGE) if strategy is PatchStrategy.APPLY else (strategy,)
        self._field_manager = field_manager
        self._gone = 0 if keep_removed else None
        self._leftovers = tuple(leftovers)
        self._backoff = backoff
        self._resync = resync
        self._state = threading.Condition()  # held while the fields below change, never while the server is asked
        self._wanted = Wanted()
        self._published = Wanted()
        self._problem: SinkError | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def publish(self, status: NodeStatus) -> None:
        """Have `status` brought to the API server: at once, or as soon as it can be.

        Raises:
            SinkError: this sink is closed.
        """
        with self._state:
            if self._closing:
                raise SinkError(self._name, "this sink is closed")
            self._wanted = self._wanted.updated(status, (*self._leftovers, *status.removed), self._gone)
            self._leftovers = ()
            self._state.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="devicecore-kube-api", daemon=True)
                self._thread.start()

    @property
    def problem(self) -> SinkError | None:
        """Why the node does not show what was published; None if nothing is known to be wrong."""
        return self._problem

    def wait_until_published(self, timeout: float) -> None:
        """Wait until the node shows all that was published.

        Raises:
            SinkError: it does not, `timeout` seconds later; and why.
        """
        with self._state:
            if not self._state.wait_for(lambda: self._published == self._wanted, timeout):
                raise self._problem or SinkError(self._name, f"no answer within {timeout:g} seconds")

    def close(self, timeout: float = 5.0) -> None:
        """Stop, after a last attempt if something is not published yet. Closing twice is no error.

        After `timeout` seconds it returns in any case, and no further request is begun.
        """
        with self._state:
            self._closing = True
            self._state.notify_all()
            thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(timeout)
        self._server.stopped = True
        with self._state:
            if self._published != self._wanted:
                _log.error("closed before all was published: %s", self._problem or f"no answer from {self._name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        failures, pause = 0, 0.0
        last: Problem | None = None
        while attempt := self._wait(failures, pause):
            wanted, is_last = attempt
            try:
                self._reconcile(wanted)
            except Exception as error:  # noqa: BLE001 - a thread that ends is noticed by nobody
                problem = (
                    error if isinstance(error, Problem) else Problem(type(error), f"a bug in devicecore: {error!r}")
                )
                failures += 1
                pause = max(self._backoff.delay(failures, random.random()), problem.pause)  # noqa: S311 - no secret
                if last is None or last.kind != problem.kind:
                    self._say(problem, bug=None if problem is error else error)
                with self._state:
                    self._problem = SinkError(self._name, problem.cause)
                last = problem
            else:
                failures, last = 0, None
                self._succeeded(wanted)
            if is_last:
                break
        self._server.disconnect()

    def _wait(self, failures: int, pause: float) -> tuple[Wanted, bool] | None:
        """Wait for work: what to bring about, and whether this is the last attempt. None if there is nothing left."""
        with self._state:
            if failures:  # what is published meanwhile waits as well: a server in trouble is not asked the more for it
                self._state.wait_for(lambda: self._closing, pause)
            else:
                self._state.wait_for(lambda: self._closing or self._published != self._wanted, self._resync)
            if self._closing and self._published == self._wanted:
                return None
            return self._wanted, self._closing

    def _reconcile(self, wanted: Wanted) -> None:
        for left in reversed(range(_READS)):
            try:
                self._reconcile_once(wanted)
            except Problem as problem:
                if not (problem.is_stale and left):
                    raise
            else:
                return

    def _reconcile_once(self, wanted: Wanted) -> None:
        node = self._server.read()
        for strategy in self._strategies:
            needed = changes(wanted, node)
            if not needed:
                return
            try:
                kind, body = render(strategy, needed, wanted, node, self._field_manager)
            except ValueError as error:
                raise Problem(kind="field manager", cause=str(error)) from error
            node = self._server.write(kind, body)
        if changes(wanted, node):
            cause = "it took the patch, but does not show it: does a webhook change it?"
            raise Problem(kind="ignored", cause=cause)

    def _say(self, problem: Problem, bug: Exception | None) -> None:
        if not self._closing:  # else `close` has the last word
            error = SinkError(self._name, problem.cause)
            _log.error("%s; it is tried again until it succeeds", error, exc_info=bug)

    def _succeeded(self, wanted: Wanted) -> None:
        with self._state:
            if self._problem:
                _log.warning("the status of %s is published again", self._name)
            self._published, self._problem = wanted, None
            self._state.notify_all()
