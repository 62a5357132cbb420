"""The claims of pods: a DRA manager that starts when it is needed, and the work that waits for drivers.

Laws: no module or file of dynamic resource allocation is loaded or written before a pod names a claim, a driver
registers, a file from an earlier run is found, or ResourceSlices must be deleted. Work for one pod's claims does
not delay other pods. The claims of a removed pod are released, and a failed release is retried.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from attrs import frozen

from devicecore.adapters.grpc_unix.watcher import PluginHandler, RegisteredPlugin
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import Pod, PodUid
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.node.claim_releases import ClaimReleases
from devicecore_tools.node.identity import Identity
from devicecore_tools.node.lanes import THREADS_OF_LONG, Lanes, Workers
from devicecore_tools.node.state import ClaimsState, PodState

if TYPE_CHECKING:
    from devicecore.domain.dra.health import ClaimHealth
    from devicecore.domain.dra.model import ClaimKey, ResourceClaim
    from devicecore.dra_manager import DraManager
    from devicecore.ports.dra_observer import DraObserver
    from devicecore.wire import podresources
    from devicecore_tools.node.dra_state import ClaimedHealth, PreparationFacts

_MAX_UID = 64  # maximum length of a UID in messages

_log = logging.getLogger(__name__)


@frozen
class DraParts:
    """A DRA manager that has not been started, the handler for its drivers, and what to close after it has stopped.

    Without sockets there is no handler. `deletes_slices` says whether the manager deletes ResourceSlices, in which
    case `NodeClaims` checks when a deletion is due.
    """

    manager: "DraManager"
    handler: PluginHandler | None
    closing: ExitStack
    deletes_slices: bool = False


class NodeClaims:
    """The ResourceClaims of the node's pods.

    Only one thread may use the object, except for `submit`, `prepare`, `is_of_driver`, `cdi_devices`, `are_entered`,
    `dynamic_resources`, `start`, `notify` and the handler.

    Args:
        make: a function that creates the DRA manager with an observer, called once, when the manager is first needed.
        wake: called from other threads when `advance` has something to do.
        workers: the threads that prepare claims, which several nodes may share; by default, the node's own threads.
        release_workers: the threads that release claims; by default, `workers`.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        make: "Callable[[DraObserver], DraParts]",
        wake: Callable[[], None] = lambda: None,
        *,
        workers: Workers | None = None,
        release_workers: Workers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._make = make
        self._wake = wake
        self._making = threading.Lock()  # held while the manager is created; the event loop may wait for this lock
        self._starting = threading.Lock()  # held while the manager starts or stops, which needs the event loop
        self._parts: DraParts | None = None
        self._is_stopped = False
        self._preparing = Lanes(THREADS_OF_LONG, workers)
        self._releasing = Lanes(THREADS_OF_LONG, release_workers or workers)
        self._preparing_unknown = Lanes(1, workers)  # for pods with unknown drivers: each may wait for any driver
        self._releases = ClaimReleases(lambda: self.manager, self._releasing, wake, clock)
        self._ticking = {"wipe": threading.Lock(), "reconcile": threading.Lock()}
        self._health: ClaimedHealth | None = None
        self._version = object()  # replaced when `state` may have changed
        self._users: tuple[object, frozenset[PodUid]] = (None, frozenset())
        self.manager: DraManager | None = None
        """The manager once it has started, or None before that. Any thread may read this attribute."""
        self.handler: FirstDriverHandler = FirstDriverHandler(self)
        """The handler that registers the drivers that the plugin watcher has found."""

    # --- start and stop -----------------------------------------------------------------------------------------------

    def parts(self) -> DraParts:
        """Return the manager with its parts. The manager may not have started yet.

        Raises DraStoppedError if the process is ending, and SetUpError if there are no credentials for the API server.
        """
        with self._making:
            if self._is_stopped:
                from devicecore.domain.dra.errors import DraStoppedError

                raise DraStoppedError
            if self._parts is None:
                self._parts = self._make(self.notify)
            return self._parts

    def start(self) -> "DraManager":
        """Return the manager, after starting it if necessary.

        Raises DraStoppedError if the process is ending, and DeviceCoreError if the manager cannot be started. After a
        failed start, the next call tries again.
        """
        with self._starting:
            parts = self.parts()
            if self.manager is None:
                parts.manager.start()
                self.manager = parts.manager
                restored = counted(parts.manager.restored.claims, "claim")
                _log.info("dynamic resource allocation started, with %s from an earlier run", restored)
                self._wake()
            return self.manager

    def stop(self) -> None:
        """Start no more work, and disconnect all drivers, so that calls in progress fail."""
        for lanes in (self._preparing, self._preparing_unknown, self._releasing):
            lanes.close()
        with self._making:
            self._is_stopped = True
        with self._starting:
            if self._parts is not None:
                self._parts.manager.stop()
                self._parts.closing.close()

    # --- what threads of attempts call --------------------------------------------------------------------------------

    def submit(self, pod: PodUid, facts: "PreparationFacts | None", work: Callable[[], None]) -> None:
        """Run `work` in another thread, which may wait for a pod's drivers.

        Pods with the same drivers share threads. If a driver hangs, the pods that wait for it take no threads from
        pods with other drivers. If a claim is stored only on the API server, its drivers are not known in advance.
        """
        if facts is not None and facts.drivers:
            self._preparing.submit(facts.drivers, work)
        else:
            self._preparing_unknown.submit(pod, work)

    def prepare(self, pod: Pod) -> None:
        """Prepare a pod's claims, which may take as long as the drivers take. Raises DeviceCoreError."""
        self.start().prepare(pod)

    def is_of_driver(self, error: DeviceCoreError) -> bool:
        """Return whether `prepare` failed during a call to a driver, as opposed to before the call."""
        from devicecore_tools.node.dra_state import is_of_driver

        return is_of_driver(error)

    def cdi_devices(self, pod: Pod, container: str) -> tuple[str, ...]:
        """Return the CDI names that a container gets through its claims.

        Raises DeviceCoreError if a claim is unknown.
        """
        return self.start().claim_devices(pod, container)

    def are_entered(self, pod: Pod) -> bool:
        """Return whether the pod was recorded in all of its claims, as is the case if its containers ran before."""
        if self.manager is None:
            return False
        from devicecore_tools.node.dra_state import are_entered

        return are_entered(self.manager, pod)

    def allocated_resources_status(self, pod: Pod) -> "Mapping[str, tuple[ClaimHealth, ...]]":
        """Return the known health of the devices that each container of a pod gets through its claims."""
        return self.manager.allocated_resources_status(pod) if self.manager else {}

    def dynamic_resources(self, pod: Pod, container: str) -> "Sequence[podresources.DynamicResource]":
        """Return a container's claims for the pod-resources API, or () if one of them is unknown, as in a kubelet."""
        if self.manager is None:
            return ()
        from devicecore.adapters.pod_resources.claims import to_dynamic_resources

        try:
            return to_dynamic_resources(self.manager.dynamic_resources(pod, container))
        except DeviceCoreError as error:
            _log.debug("the claims of pod %s are not listed: %s", pod.name, foreign_text(str(error)))
            return ()

    # --- what the main loop calls -------------------------------------------------------------------------------------

    def facts(self, pod: Pod, claims: "Mapping[ClaimKey, ResourceClaim]") -> "PreparationFacts":
        """Return what preparing a pod's claims depends on. `claims` are the claims in manifests."""
        from devicecore_tools.node.dra_state import facts_of

        return facts_of(self.manager, pod, claims)

    @property
    def users(self) -> frozenset[PodUid]:
        """The pods that are recorded in any claim."""
        cache = self.manager.claims if self.manager else None
        if cache is not None and cache is not self._users[0]:
            self._users = cache, cache.pods
        return self._users[1]

    @property
    def version(self) -> object:
        """A value that changes whenever `state` may have changed."""
        if self.manager is None:
            return self._version, self._releases.version
        claims, drivers = Identity(self.manager.claims), self.manager.drivers
        return self._version, self._releases.version, claims, drivers.instances, drivers.connected

    def release(self, pod: Pod) -> None:
        """Start releasing the claims of a removed pod."""
        self._releases.add(pod.uid, f"{pod.namespace}/{pod.name}")
        self.advance()

    def release_all_but(self, pods: Collection[PodUid]) -> None:
        """Start releasing the claims of all other pods, which were removed while this process was not running."""
        for uid in sorted(self.users.difference(pods)):
            self._releases.add(uid, f"with UID {foreign_text(uid, _MAX_UID)}")
        self.advance()

    def is_releasing(self, pod: PodUid) -> bool:
        """Return whether claims of a removed pod with this UID have not been released yet."""
        return pod in self._releases

    @property
    def next_due(self) -> float:
        """When `advance` has something to do even if nothing wakes the engine (monotonic seconds)."""
        return self._releases.next_due

    def advance(self) -> None:
        """Collect the results of releases, and start releases and deletions of ResourceSlices that are due."""
        self._delete_slices_if_due()
        self._releases.advance()

    def tick(self) -> None:
        """Tell the manager, in another thread, that time has passed. The manager may have to call drivers."""
        if self.manager is None:
            return
        self._tick("reconcile", self.manager.tick)
        from devicecore_tools.node.dra_state import ClaimedHealth

        before = self._health
        if before is None or not before.is_current(self.manager):
            self._health = ClaimedHealth.of(self.manager)
            if before is None or before.found != self._health.found:
                self._version = object()

    def state(self, pods: Iterable[PodState]) -> ClaimsState:
        """Return the current claims and drivers. `pods` are the pods that name claims."""
        if self.manager is None:
            return ClaimsState()
        from devicecore_tools.node.dra_state import state_of

        return state_of(self.manager, pods, self._releases.problems)

    def waits_for(self) -> Iterable[str]:
        """Return the releases that have not been completed yet."""
        return self._releases.waits_for()

    def _delete_slices_if_due(self) -> None:
        parts = self._parts if self.manager else None
        if parts is not None and parts.deletes_slices and parts.manager.drivers.due(self._clock()):
            self._tick("wipe", parts.manager.wipe_slices)

    def _tick(self, what: str, work: Callable[[], object]) -> None:
        lock = self._ticking[what]
        if not lock.acquire(blocking=False):
            return  # the previous call is still waiting for a driver or the API server

        def tick() -> None:
            before = self.version
            try:
                work()
            finally:
                lock.release()
                if self.version != before:
                    self._wake()

        self._releasing.submit(what, tick)

    def notify(self, _notification: object) -> None:
        """Record that `state` may have changed. This method is a `DraObserver`; any thread may call it."""
        self._version = object()
        self._wake()


class FirstDriverHandler:
    """Registers DRA drivers that the plugin watcher has found. The first driver starts the DRA manager."""

    type = "DRAPlugin"

    def __init__(self, claims: NodeClaims) -> None:
        self._claims = claims

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Check a driver's answer to GetInfo. Raises DeviceCoreError if the driver cannot be registered."""
        self._of_sockets().validate(name, endpoint, versions)

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> RegisteredPlugin:
        """Register the driver. Raises DeviceCoreError if the driver is refused, or the DRA manager cannot start."""
        await asyncio.to_thread(self._claims.start)
        registered = await self._of_sockets().register(name, endpoint, versions)
        self._claims.notify(None)
        return registered

    def _of_sockets(self) -> PluginHandler:
        handler = self._claims.parts().handler
        assert handler is not None, "only a transport that uses sockets finds drivers"  # noqa: S101 - for mypy
        return handler
