"""`DraManager`, the object that a program holds: it starts and stops the parts, and receives the transport's events.

Law: an event or call from a run that is over changes nothing. Each part checks, while it holds its lock, whether the
run is over.
"""

import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeVar

from devicecore.domain.checks import check_adapter, check_callable, checked
from devicecore.domain.dra import devices, health
from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.devices import DynamicResource
from devicecore.domain.dra.drivers import DriverEvent, DriverRegistry, HealthReported, has_stopped_reporting
from devicecore.domain.dra.errors import (
    ClaimInfoError,
    DraNotStartedError,
    DraStoppedError,
    PrepareError,
    SliceError,
    TurnTimeoutError,
    UnprepareError,
)
from devicecore.domain.dra.health import ClaimHealth, ClaimHealthChanged, HealthCache
from devicecore.domain.dra.model import DriverName
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import Pod, PodUid
from devicecore.dra_manager.clock import steady_time_ns
from devicecore.dra_manager.driver_list import DriverList
from devicecore.dra_manager.health_record import HealthRecord
from devicecore.dra_manager.preparation import TURN_PATIENCE, Preparation, PreparedPod
from devicecore.dra_manager.release import Release
from devicecore.dra_manager.saved_claims import RestoredClaims, SavedClaims
from devicecore.ports.claims import ClaimSource
from devicecore.ports.context import Runs
from devicecore.ports.dra_metrics import DraMetrics
from devicecore.ports.dra_observer import DraObserver
from devicecore.ports.drivers import DriverTransport
from devicecore.ports.pods import PodSource
from devicecore.ports.slices import ResourceSlices
from devicecore.ports.store import CheckpointStore
from devicecore.runtime.lifecycle import Lifecycle
from devicecore.runtime.measuring import measured
from devicecore.runtime.observers import Observers
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run
from devicecore.runtime.saver_thread import SaverThread
from devicecore.runtime.turns import Turns

T = TypeVar("T")

RECONCILE_PERIOD = 60.0
"""Seconds between two releases of vanished pods' claims."""


class DraManager(Runs):
    """Prepares claims for pods, and remembers which pod uses which claim: the kubelet's DRA manager.

    Thread-safe. Use it as a context manager, or call `start` and `stop`. In a fork of the process that started the
    manager, methods that only read the state work, and the others raise `ForkedError`. `tick`, `reconcile` and
    `wipe_slices` raise `DraNotStartedError` before the first start, and `DraStoppedError` after a stop.

    Args:
        transport: connects the manager to drivers.
        claims: the source of ResourceClaims.
        store: where the claims are kept.
        pods: knows which pods are active; without `pods`, `reconcile` releases nothing.
        slices: deletes the ResourceSlices of vanished drivers; without `slices`, none are deleted.
        health_store: where device health is kept; without a store, a restart forgets the health.
        metrics: measures `prepare` and `unprepare`.
        observers: notified of the health of claimed devices.
        fail_on_warnings: whether `prepare` fails if a driver returns devices that were not allocated, requests that the
            claim does not contain, or malformed CDI names, all of which a kubelet accepts.
        clock: returns monotonic seconds.
        wall_clock: returns nanoseconds since 1970; by default, a clock that ignores changes to the machine's clock.
        saver: saves the health of devices; managers may share a saver. Without a saver, each run has its own thread.

    Raises:
        TypeError: an argument has the wrong type, such as a store instead of the claims, or a class instead of an
            object.
    """

    def __init__(
        self,
        transport: DriverTransport,
        claims: ClaimSource,
        store: CheckpointStore,
        *,
        pods: PodSource | None = None,
        slices: ResourceSlices | None = None,
        health_store: CheckpointStore | None = None,
        metrics: DraMetrics | None = None,
        observers: Iterable[DraObserver] = (),
        fail_on_warnings: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = steady_time_ns,
        saver: SaverThread | None = None,
    ) -> None:
        check_adapter("DraManager: transport", transport, DriverTransport)
        check_adapter("DraManager: claims", claims, ClaimSource)
        check_adapter("DraManager: store", store, CheckpointStore)
        check_adapter("DraManager: pods", pods, PodSource, optional=True)
        check_adapter("DraManager: slices", slices, ResourceSlices, optional=True)
        check_adapter("DraManager: health_store", health_store, CheckpointStore, optional=True)
        check_adapter("DraManager: metrics", metrics, DraMetrics, optional=True)
        checked(fail_on_warnings, bool, "DraManager: fail_on_warnings")
        check_callable("DraManager: clock", clock)
        check_callable("DraManager: wall_clock", wall_clock)
        if saver is not None:
            checked(saver, SaverThread, "DraManager: saver")
        self._transport = transport
        self._pods = pods
        self._metrics = metrics
        self._clock = clock
        self._observers = Observers[ClaimHealthChanged](observers)
        self._turns: Turns[Hashable] = Turns("a call to a driver")
        self._saved = SavedClaims(store)
        self._drivers = DriverList(slices, clock)
        self._health = HealthRecord(health_store, wall_clock, saver)
        self._preparation = Preparation(
            self._saved, self._turns, self._drivers, transport, claims, fail_on_warnings=fail_on_warnings
        )
        self._release = Release(self._saved, self._turns, self._drivers, transport)
        self._lifecycle = Lifecycle("the DRA manager", DraNotStartedError, DraStoppedError)
        self._next_reconcile = 0.0
        self.restored: RestoredClaims = RestoredClaims()
        """What the last start found in the store."""

    # --- start and stop -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Restore the saved claims, then accept registrations (kubelet-dra.md 0).

        An unusable file is set aside, and `restored` reports it. A second start only waits for the first one. A start
        after a stop is a restart: it begins without drivers, because drivers register again.

        Raises:
            StoreError: the claims file can be neither used nor set aside.
            SetUpError: the transport cannot start.
            DraStoppedError: `stop` was called in the meantime, so the manager is not running.
            CalledFromInsideError: the call comes from inside a start, a store or an event of the transport.
        """
        self._check_call("start")
        # Start the transport first: if it cannot start, the files stay as they are. Events wait until the files are
        # read. A stop does not wait for reads from the stores, because a disk may hang.
        self._lifecycle.start(self._begin, self._end, after=self._restore)

    def _begin(self) -> None:
        self._transport.start(partial(self._on_event, self._lifecycle.check_started()))

    def _restore(self) -> None:
        run = self._lifecycle.check_started()
        self.restored = self._saved.begin(run)
        self._health.begin(run)
        self._drivers.begin(run)
        self._next_reconcile = self._clock()
        run.is_restored.set()

    def stop(self) -> None:
        """Stop the manager, and disconnect all drivers. The results of calls that have returned are already saved.

        Stopping the manager twice is not an error.

        A call to `prepare` or `unprepare` that is in progress fails once its driver has answered, because nothing is
        saved after a stop.

        Raises:
            CalledFromInsideError: the call comes from inside a start, a store or an event of the transport, and would
                deadlock.
        """
        self._check_call("stop")
        self._lifecycle.stop(self._end)

    def _end(self) -> None:
        self._saved.end()
        self._health.end()
        self._drivers.end()
        self._lifecycle.check_started().is_restored.set()
        self._transport.stop()

    def _check_call(self, method: str) -> None:
        self._saved.check_call(method)
        self._health.check_call(method)

    # --- the state, as values -------------------------------------------------------------------------------------

    @property
    def claims(self) -> ClaimCache:
        """The claims that the pods on this node use."""
        return self._saved.cache

    @property
    def drivers(self) -> DriverRegistry:
        """The drivers that are registered."""
        return self._drivers.registry

    @property
    def health(self) -> HealthCache:
        """The health that drivers have reported for their devices."""
        return self._health.cache

    @property
    def now(self) -> int:
        """The wall-clock time to pass to `health`, in nanoseconds since 1970."""
        return self._health.now

    # --- pods ---------------------------------------------------------------------------------------------------------

    def prepare(self, pod: Pod) -> PreparedPod:
        """Prepare the claims of a pod.

        Call this method before the pod's first container starts (kubelet: `PrepareResources`).

        A claim that is prepared for another pod is not prepared again. On return, everything is saved.

        Raises:
            TypeError: `pod` is not a `Pod`.
            PrepareError: a claim was not prepared. It is safe to try again; the pod uses the claims until `unprepare`.
        """
        checked(pod, Pod, "DraManager.prepare")
        self._lifecycle.check_process()
        with self._measured("PrepareResources"):
            try:
                return self._in_turn(pod.uid, "prepare", partial(self._preparation.prepare, pod))
            except DeviceCoreError as error:
                raise PrepareError(error) from error

    def unprepare(self, pod: PodUid) -> None:
        """Release the claims that a pod uses.

        Call this method after the pod's last container has ended (kubelet: `UnprepareResources`).

        Drivers are called for the claims that no other pod uses. A pod without claims is not an error.

        Raises:
            TypeError: `pod` is not a UID but, for example, a `Pod`.
            UnprepareError: a claim was not released, and the pod still uses it. It is safe to try again.
        """
        checked(pod, str, "DraManager.unprepare: the uid of a pod")
        self._lifecycle.check_process()
        with self._measured("UnprepareResources"):
            try:
                self._in_turn(pod, "unprepare", partial(self._release.release, pod))
            except DeviceCoreError as error:
                raise UnprepareError(error) from error

    def _in_turn(self, pod: PodUid, method: str, work: Callable[[], T]) -> T:
        turn = self._turns.begin((pod,), OpenCall(), TURN_PATIENCE, method)
        if turn is None:
            raise TurnTimeoutError(TURN_PATIENCE)
        try:
            return work()
        finally:
            self._turns.end(turn)

    def claim_devices(self, pod: Pod, container: str) -> tuple[str, ...]:
        """Return the CDI names for a container.

        Call this method before each start of the container (kubelet: `GetResources`).

        This method calls no driver.

        Raises:
            KeyError: the pod has no such container.
            ClaimInfoError: the container names a claim that no pod has asked to prepare.
            DraError: the claim for one of the pod's entries is not known.
        """
        checked(pod, Pod, "DraManager.claim_devices")
        try:
            return devices.cdi_ids(self.claims, pod, pod.container(container))
        except ClaimInfoError as error:  # a kubelet's own words, which do not say what to do
            error.add_note("The claim is not prepared for this pod: call prepare(pod) first.")
            raise

    def dynamic_resources(self, pod: Pod, container: str) -> tuple[DynamicResource, ...]:
        """Return the claims of a container as the pod-resources API shows them (kubelet: `GetContainerClaimInfos`).

        Raises:
            KeyError: the pod has no such container.
            ClaimInformationError: the container names a claim that no pod has asked to prepare.
            DraError: the claim for one of the pod's entries is not known.
        """
        checked(pod, Pod, "DraManager.dynamic_resources")
        return devices.dynamic_resources(self.claims, pod, pod.container(container))

    def allocated_resources_status(self, pod: Pod) -> dict[str, tuple[ClaimHealth, ...]]:
        """Return the health of claimed devices by container (kubelet: `UpdateAllocatedResourcesStatus`).

        If a claimed request has no devices, its entry has no `resources`: then remove the entry with the same name from
        the pod's status. Init containers are left out.
        """
        checked(pod, Pod, "DraManager.allocated_resources_status")
        return health.allocated_resources_status(self.claims, self.health, pod, self._health.now)

    def might_need_unprepare(self, pod: PodUid) -> bool:
        """Return whether the pod still uses a claim, that is, whether `unprepare` has yet to succeed."""
        checked(pod, str, "DraManager.might_need_unprepare: the uid of a pod")
        return bool(self.claims.of_pod(pod))

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do the work that is due: delete the slices of removed drivers, and release the claims of inactive pods.

        Call this method every 10 seconds. This method waits for the drivers and the API server that it calls. Work that
        fails is logged and tried again later.
        """
        self.wipe_slices()
        now = self._clock()
        if now >= self._next_reconcile:
            self._next_reconcile = now + RECONCILE_PERIOD
            self.reconcile()

    def reconcile(self) -> dict[PodUid | None, DeviceCoreError]:
        """Release the claims of pods that are no longer active, and claims that no pod uses (kubelet-dra.md 7).

        Nothing is released before all sources of pods are ready. The result contains the errors by pod; None stands for
        claims that no pod uses. Errors are also logged.
        """
        self._lifecycle.check_started()
        run = self._saved.run()
        if self._pods is None or not self._pods.sources_ready():
            return {}
        # Read the claims before the active pods, so that a pod that starts to use a claim in between does not count as
        # inactive.
        using = self.claims.pods
        return self._release.release_all(run, using - frozenset(self._pods.active_pods()))

    def wipe_slices(self) -> dict[DriverName | None, SliceError]:
        """Carry out the deletions of ResourceSlices that are due (kubelet-dra.md 11).

        The result contains the errors by driver; None stands for all drivers. A failed deletion is tried again later.
        """
        self._lifecycle.check_started()
        return self._drivers.wipe_slices(self._saved.run())

    # --- events -------------------------------------------------------------------------------------------------------

    def _on_event(self, run: Run, event: DriverEvent) -> None:
        run.is_restored.wait()
        self._lifecycle.call("an event of the DriverTransport", self._apply, run, event)

    def _apply(self, run: Run, event: DriverEvent) -> None:
        driver = event.instance.driver
        before, after = self._drivers.apply(run, event)
        if has_stopped_reporting(before, after, event):
            self._health.clear(run, driver)
        elif isinstance(event, HealthReported) and after.is_registered(event.instance):
            update = self._health.report(run, driver, event.devices)
            if pods := health.pods_to_notify(update, self.claims):
                self._observers.notify([ClaimHealthChanged(driver, pods)])

    def _measured(self, operation: str) -> AbstractContextManager[None]:
        if (metrics := self._metrics) is None:
            return nullcontext()
        return measured(self._clock, lambda seconds, failed: metrics.dra_operation(operation, seconds, failed=failed))
