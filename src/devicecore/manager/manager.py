"""`DeviceManager`, the object that a program holds: it starts and stops the parts, and receives the transport's events.

Law: an event or call from a run that is over changes nothing.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from devicecore.domain import container_options
from devicecore.domain.admission import Admitted, Verdict
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checkpoint import CheckpointWriter
from devicecore.domain.checks import (
    check_adapter,
    check_callable,
    check_seconds,
    checked,
    expected,
    items,
    repeated,
    tuple_of,
)
from devicecore.domain.container_options import ContainerOptions
from devicecore.domain.errors import ManagerNotStartedError, ManagerStoppedError
from devicecore.domain.events import DevicesReported, Event, PluginRegistered, RegistrationRequested
from devicecore.domain.health import changed_health
from devicecore.domain.inventory import DeviceReport
from devicecore.domain.model import Pod, PodUid, ResourceName, is_extended_resource
from devicecore.domain.node_state import NodeState
from devicecore.domain.notifications import Allocated, Notification
from devicecore.domain.text import counted, foreign_text
from devicecore.domain.topology import Hints, Topology
from devicecore.manager.active_pods import ActivePods
from devicecore.manager.admissions import Admissions
from devicecore.manager.affinities import Affinities
from devicecore.manager.plugins import Plugins
from devicecore.manager.publisher import Publisher
from devicecore.manager.restoring import Restored, restored
from devicecore.manager.turns import AdmissionTurns, Affinity
from devicecore.ports.context import Runs
from devicecore.ports.hints import HintProvider
from devicecore.ports.metrics import Metrics
from devicecore.ports.observer import Observer
from devicecore.ports.pods import PodSource
from devicecore.ports.policy import AllocationPolicy
from devicecore.ports.sink import NodeStatusSink
from devicecore.ports.store import CheckpointStore
from devicecore.ports.transport import PluginTransport
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.lifecycle import Lifecycle
from devicecore.runtime.observers import Observers
from devicecore.runtime.run import Run
from devicecore.runtime.saved_state import SavedState
from devicecore.runtime.saver_thread import SaverThread

_log = logging.getLogger(__name__)


class DeviceManager(Runs):
    """Allocates devices to containers, and remembers which container has which devices: the kubelet's device manager.

    Thread-safe. Use it as a context manager, or call `start` and `stop`. In a fork of the process that started the
    manager, methods that only read the state work, and the others raise `ForkedError`. Methods that change something
    raise `ManagerNotStartedError` before the first start, and `evict` and `tick` raise `ManagerStoppedError` after a
    stop.

    Args:
        transport: connects the manager to plugins.
        store: where the checkpoint is kept.
        sink: where capacity and allocatable are published.
        pods: knows which pods are active; without `pods`, a pod is active while it holds devices.
        metrics: counts registrations, and measures Allocate calls and admissions.
        topology: the machine's NUMA nodes and the policy for them.
        hint_providers: other components with NUMA preferences, such as a CPU manager, in the order in which they are
            called.
        observers: notified of allocations, releases and health changes.
        policy: chooses which of the possible devices a container gets; by default, the kubelet's order decides.
        admission_budget: how many seconds all plugins together may take for one admission.
        clock: returns monotonic seconds.
        saver: performs the saves that no call waits for. Managers may share a saver; without a saver, each run has its
            own thread.

    Raises:
        TypeError: an argument has the wrong type, such as a sink instead of the store, or a class instead of an object.
        ValueError: the budget is negative.
    """

    def __init__(
        self,
        transport: PluginTransport,
        store: CheckpointStore,
        sink: NodeStatusSink,
        *,
        pods: PodSource | None = None,
        metrics: Metrics | None = None,
        topology: Topology = Topology(),
        hint_providers: Sequence[HintProvider] = (),
        observers: Iterable[Observer] = (),
        policy: AllocationPolicy | None = None,
        admission_budget: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        saver: SaverThread | None = None,
    ) -> None:
        check_adapter("DeviceManager: transport", transport, PluginTransport)
        check_adapter("DeviceManager: store", store, CheckpointStore)
        check_adapter("DeviceManager: sink", sink, NodeStatusSink)
        check_adapter("DeviceManager: pods", pods, PodSource, optional=True)
        check_adapter("DeviceManager: metrics", metrics, Metrics, optional=True)
        checked(topology, Topology, "DeviceManager: topology")
        for provider in items(hint_providers, "DeviceManager: hint_providers"):
            check_adapter("DeviceManager: hint_providers", provider, HintProvider)
        if policy is not None:
            check_callable("DeviceManager: policy", policy, "the choice")
        check_seconds("DeviceManager: admission_budget", admission_budget)
        check_callable("DeviceManager: clock", clock)
        if saver is not None:
            checked(saver, SaverThread, "DeviceManager: saver")
        self._transport = transport
        self._metrics = metrics
        self._clock = clock
        self._state = state = CurrentState(NodeState())
        self._observers = Observers[Notification](observers)
        self._writer = CheckpointWriter()
        self._saver = SavedState(store, state, self._writer.file, saver=saver)
        self._publisher = Publisher(sink, state)
        self._turns = AdmissionTurns(state)
        self._plugins = Plugins(transport, state, metrics, clock)
        self._pods = ActivePods(pods, state, self._turns, self._observers)
        self._affinities = Affinities(topology, hint_providers, state, self._turns)
        self._admissions = Admissions(
            state=state,
            turns=self._turns,
            plugins=self._plugins,
            saver=self._saver,
            pods=self._pods,
            affinities=self._affinities,
            observers=self._observers,
            policy=policy,
            budget=admission_budget,
            clock=clock,
        )
        self._lifecycle = Lifecycle("the device manager", ManagerNotStartedError, ManagerStoppedError)
        self.restored: Restored = Restored()
        """What the last start found in the store."""

    def __repr__(self) -> str:
        inventory, ledger = self.state.inventory, self.state.ledger
        return (
            f"<DeviceManager {'running' if self._state.run else 'stopped'}: "
            f"{counted(len(inventory.resources), 'resource')}, "
            f"{counted(sum(inventory.status().capacity.values()), 'device')}, "
            f"{counted(len(ledger.allocations), 'pod')} with devices>"
        )

    # --- starting and stopping ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Restore the saved state, then accept registrations (kubelet: `Start`, kubelet.md 2.2).

        An unusable checkpoint is set aside, never overwritten, and `restored` reports it. A second start only waits
        for the first one. A start after a stop is a restart.

        Raises:
            StoreError: there is an unusable checkpoint, and it cannot be set aside.
            SetUpError: the transport cannot start.
            ManagerStoppedError: `stop` was called in the meantime, so the manager is not running.
            CalledFromInsideError: the call comes from inside a start, the store, the sink or an event of the transport.
        """
        self._check_call("start")
        # Start the transport first, because it claims the directory, and only the owner may read the checkpoint. Events
        # wait until the checkpoint is restored. A stop does not wait for reads from the store, because a disk may hang.
        if self._lifecycle.start(self._begin, self._end, after=self._restore):
            self._publisher.publish()

    def _begin(self) -> None:
        self._transport.start(partial(self._on_event, self._lifecycle.check_started()))

    def _restore(self) -> None:
        run = self._lifecycle.check_started()
        self._pods.begin()
        state, found = restored(run, self._saver, self._plugins, self._clock())
        self._writer.extra = found.extra
        self._saver.begin(run, state)
        self.restored = found
        self._observers.notify(Allocated(allocation.key.pod, allocation) for allocation in state.ledger)
        run.is_restored.set()

    def stop(self) -> None:
        """Stop the manager, and disconnect all plugins.

        Every answered admission is already saved. Stopping the manager twice is not an error.

        A save in progress finishes first. Admissions in progress are refused, because nothing is saved after the stop:
        the store may soon belong to another manager.

        Raises:
            CalledFromInsideError: the call comes from inside a start, the store, the sink or an event of the transport,
                and would deadlock.
        """
        self._check_call("stop")
        self._lifecycle.stop(self._end)

    def _end(self) -> None:
        self._saver.end()
        self._lifecycle.check_started().is_restored.set()
        self._transport.stop()

    def _check_call(self, method: str) -> None:
        self._publisher.check_call(method)
        self._saver.check_call(method)

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> NodeState:
        """The current state: what plugins report, and which containers hold which devices.

        The state is an immutable value.
        """
        return self._state.value

    @property
    def status(self) -> NodeStatus:
        """The current capacity and allocatable (kubelet: `GetCapacity`, kubelet.md 3.6)."""
        return self.state.inventory.status()

    def wait_for(self, condition: Callable[[NodeState], object], timeout: float) -> NodeState:
        """Wait until `condition` returns a true value for the state, and return that state.

        `condition` is called for the current state, and again after changes, in this thread and without any lock, so it
        may call the manager. A state that is soon replaced may be skipped.

        Raises:
            TimeoutError: the condition was not met within `timeout` seconds.
        """
        self._lifecycle.check_process()
        return self._state.wait_for(condition, timeout)

    def options(self, pod: Pod, container: str) -> ContainerOptions | None:
        """Return the settings that a container needs for its devices, or None if it has no devices.

        This method changes nothing.

        Raises:
            ContainerNotFoundError: the pod has no such container. This error is also a KeyError.
            UnreadableReceiptError: a plugin's answer cannot be read.
        """
        checked(pod, Pod, "DeviceManager.options")
        key = pod.key(pod.container(container))
        allocations = self.state.ledger.of_container(key)
        if not allocations:
            return None
        return container_options.merge({one.resource: self._plugins.read(one.receipt) for one in allocations})

    def topology_hints(self, pod: Pod, container: str | None = None) -> Hints:
        """Return hints for one container or for the whole pod (kubelet: `GetTopologyHints`, `GetPodTopologyHints`).

        This method changes nothing: pods that are no longer active count until `update_allocated_devices` or the next
        admission.

        Raises:
            ContainerNotFoundError: the pod has no such container. This error is also a KeyError.
        """
        checked(pod, Pod, "DeviceManager.topology_hints")
        return self._affinities.hints(pod, None if container is None else pod.container(container))

    def sanitize_allocatable(self, pod: PodUid, allocatable: Mapping[ResourceName, int]) -> dict[ResourceName, int]:
        """Return `allocatable`, raised to the number of devices in use unless `pod` holds no devices.

        Kubelet: `UpdatePluginResources`.
        """
        checked(pod, str, "DeviceManager.sanitize_allocatable: the uid of a pod")
        given: object = allocatable
        if not isinstance(given, Mapping):
            wanted = "a mapping of resource names to counts"
            raise TypeError(expected("DeviceManager.sanitize_allocatable: allocatable", wanted, given))
        return self.state.sanitize_allocatable(pod, allocatable)

    # --- acting -------------------------------------------------------------------------------------------------------

    def admit(self, pod: Pod, *, affinity: Affinity = None) -> Verdict:
        """Allocate devices to all containers of a pod, or to none of them.

        A pod that already holds devices keeps them. `affinity` contains the NUMA nodes that the caller has chosen for
        every container; without `affinity`, the topology policy chooses. If a pod is admitted although it has a limit
        whose name no resource can have, such as `gpu`, the method issues a RuntimeWarning.

        Returns:
            `Admitted` with the devices, which are in the checkpoint; `Refused` with the error, if the pod cannot run
            here; or `NotReady`, if a plugin has not sent its list since the restart and the caller should try again
            later. Of these results, only `Admitted` counts as true. A failing plugin or store does not raise an error
            here: the pod is refused.

        Raises:
            TypeError: `pod` is not a `Pod`, or `affinity` is not an iterable of numbers.
            CalledFromInsideError: the call comes from inside an admission of the same pod, or from inside the store.
        """
        checked(pod, Pod, "DeviceManager.admit")
        if affinity is not None:
            tuple_of(affinity, int, "DeviceManager.admit: affinity")
        self._lifecycle.check_started()
        began = self._clock()
        verdict = self._admissions.admit(pod, pod.in_start_order, affinity)
        if self._metrics:
            failed = self._affinities.is_failure(admitted=isinstance(verdict, Admitted))
            self._metrics.topology_manager_admission(self._clock() - began, failed=failed)
        if isinstance(verdict, Admitted) and verdict.unhandled:
            names = sorted({name for _, name in verdict.unhandled if not is_extended_resource(name)})
            if names:  # an API server refuses such a pod, and a kubelet would start it without a device
                problem = f"pod {pod.uid} gets no {', '.join(map(repr, names))}: a device's resource name has a domain"
                warnings.warn(f"{problem}, such as example.com/gpu", RuntimeWarning, stacklevel=2)
        return verdict

    def allocate(self, pod: Pod, container: str, *, affinity: Affinity = None) -> Verdict:
        """Allocate all devices that one container requests, or none (kubelet: `Allocate`, kubelet.md 5.2).

        With the scope `pod`, the NUMA nodes chosen for the pod's first container are used for the others.

        Raises:
            ContainerNotFoundError: the pod has no such container. This error is also a KeyError.
            CalledFromInsideError: the call comes from inside an admission of the same pod, or from inside the store.
        """
        checked(pod, Pod, "DeviceManager.allocate")
        if affinity is not None:
            tuple_of(affinity, int, "DeviceManager.allocate: affinity")
        self._lifecycle.check_started()
        return self._admissions.admit(pod, (pod.container(container),), affinity)

    def start_container(self, pod: Pod, container: str) -> ContainerOptions | None:
        """Prepare the start of a container. Return the settings that the container needs, or None if it has no devices.

        Call this method before each start. The method calls PreStartContainer on each plugin that requires that call.
        If the pod is active and the container has no allocation yet, its devices are allocated now. See kubelet.md 7.1
        (kubelet: `GetDeviceRunContainerOptions`). If the container starts without devices that it requests, the method
        issues a RuntimeWarning.

        Raises:
            ContainerNotFoundError: the pod has no such container. This error is also a KeyError.
            NoDevicesAllocatedError: a plugin requires PreStartContainer, and the container has none of the plugin's
                devices.
            PluginError: a plugin does not answer, or its answer cannot be read.
            AdmissionError: the container has no allocation, and the devices cannot be allocated now.
            StoreError: the container has no allocation, and the checkpoint cannot be saved.
        """
        checked(pod, Pod, "DeviceManager.start_container")
        self._lifecycle.check_started()
        wanted = pod.container(container)
        key = pod.key(wanted)
        requests = [resource for resource, size in self.state.requests(pod, wanted) if size]
        for resource in requests:
            self._plugins.pre_start(key, resource)
        missed = [resource for resource in requests if self.state.ledger.allocation(key, resource) is None]
        if missed and self._pods.is_active(pod.uid):
            verdict = self.allocate(pod, container)
            if not isinstance(verdict, Admitted):
                raise verdict.error
        elif missed:  # a kubelet starts the container anyway, but a caller that forgot `admit` would see only None
            without = f"pod {pod.uid} holds no {', '.join(missed)}"
            warnings.warn(f"{without}: call admit(pod) first, unless the pod has ended", RuntimeWarning, stacklevel=2)
        options = self.options(pod, container)
        for conflict in options.conflicts if options else ():
            _log.error("container %s of pod %s: %s", container, pod.uid, conflict)
        return options

    def evict(self, pods: Iterable[PodUid]) -> None:
        """Free the devices of pods that are no longer active, and remove these pods from the checkpoint.

        `evict` saves the checkpoint, so it takes as long as saving takes. While the store is busy with another save,
        `evict` waits for at most a second and leaves its change to the next save.

        Raises:
            ManagerNotStartedError: the manager was never started. No pod is forgotten.
            ManagerStoppedError: the manager is stopped. No pod is forgotten.
            TypeError: `pods` is a single UID, or contains an item that is not a UID.
        """
        uids = tuple(map(PodUid, tuple_of(pods, str, "DeviceManager.evict: the uids of pods, such as [pod.uid]")))
        self._lifecycle.check_started()
        self._state.current_run()
        self._turns.end_abandoned()
        self._pods.forget(uids)
        self._saver.save()

    def update_allocated_devices(self) -> None:
        """Forget the pods that the pod source no longer lists (kubelet: `UpdateAllocatedDevices`, kubelet.md 5.3).

        Raises:
            ManagerNotStartedError: the manager was never started. After a stop, this method raises no error, but does
                nothing.
        """
        self._lifecycle.check_started()
        self._turns.end_abandoned()
        if self._pods.sweep():
            self._saver.save()

    def tick(self) -> NodeStatus:
        """Do the work that is due, and return the current capacity and allocatable.

        Call this method every 10 seconds, as often as a kubelet calls `GetCapacity`.

        A resource that has had no connected plugin for longer than the grace period is removed. The returned status
        lists that resource in `removed`, as do later ones until the removal has been published. Changes are saved and
        published, including those that failed before (kubelet.md 3.6).
        """
        self._lifecycle.check_started()
        self._state.current_run()
        self._turns.end_abandoned()
        now = self._clock()
        before, _ = self._state.replace(lambda state: state.expire(now)[1])
        removed, _ = before.expire(now)
        if removed or self._saver.is_behind:
            self._saver.request()
        return self._publisher.publish(removed)

    # --- events -------------------------------------------------------------------------------------------------------

    def _on_event(self, run: Run, event: Event) -> None:
        if isinstance(event, RegistrationRequested):
            if self._metrics:
                self._metrics.device_plugin_registration(event.resource)
            return
        run.is_restored.wait()
        self._lifecycle.call("an event of the PluginTransport", self._apply, run, event)

    def _apply(self, run: Run, event: Event) -> None:
        now = self._clock()
        before, after = self._state.replace(lambda state: state.apply(event, now) if self._state.run is run else state)
        if not isinstance(event, PluginRegistered):  # a registration by itself does not change the checkpoint
            self._saver.request()
        self._publisher.publish()
        if isinstance(event, DevicesReported) and after is not before:
            old, new = (state.inventory.last_report(event.plugin.resource) for state in (before, after))
            if new and len(new.devices) < len(event.devices):
                _log_repeated(event, old, new)
            if self._observers.exist:
                self._observers.notify(changed_health(event.plugin.resource, old, new, after.ledger))


def _log_repeated(event: DevicesReported, old: DeviceReport | None, new: DeviceReport) -> None:
    """Log that a list contains an id twice, which a kubelet accepts, unless the list before it was the same."""
    twice = repeated(event.devices.ids)
    if twice is not None and (old is None or old.devices.states != new.devices.states):
        _log.warning(
            "%s lists device %s twice, so it counts once, with its last health and NUMA nodes: give each device a "
            "different id",
            event.plugin.resource,
            foreign_text(twice, 100),
        )
