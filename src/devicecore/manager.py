"""The device manager: the order of effects, and the locks.

Laws: an admission that fails leaves everything as it was; one that succeeds is durable before it is answered. No port
is called while the state lock is held, and whoever reads `node` has a consistent picture without any lock.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from attrs import evolve, field, frozen

from devicecore.domain import container_options
from devicecore.domain.admission import Admitted, NotReady, Refused, Verdict
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checkpoint import CheckpointData, CheckpointWriter, decode, restore
from devicecore.domain.container_options import ContainerOptions
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import (
    AdmissionTimeoutError,
    CheckpointError,
    DeviceCoreError,
    EndpointNotFoundError,
    ManagerStoppedError,
    NoDevicesAllocatedError,
    NoHealthyDevicesError,
    PluginCallError,
    PluginStoppedError,
    SinkError,
    StoreError,
    TopologyAffinityError,
    UnreadableReceiptError,
    UnregisteredDeviceError,
)
from devicecore.domain.events import DevicesReported, Event, PluginRegistered, RegistrationRequested
from devicecore.domain.health import pods_with_news
from devicecore.domain.inventory import Phase, Plugin
from devicecore.domain.model import Container, ContainerKey, DeviceId, NumaNode, Pod, PodUid, Receipt, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.notifications import Allocated, HealthChanged, Notification, Released
from devicecore.domain.selection import AskPlugin, Chosen, ResourceRequest
from devicecore.domain.topology import Hints, Policy, Scope, Topology, container_hints, merge, pod_hints
from devicecore.ports.hints import HintProvider
from devicecore.ports.metrics import Metrics
from devicecore.ports.observer import Observer
from devicecore.ports.pods import PodSource
from devicecore.ports.sink import NodeStatusSink
from devicecore.ports.store import CheckpointStore
from devicecore.ports.transport import PluginTransport

_log = logging.getLogger(__name__)

Affinity = Collection[NumaNode] | None
"""NUMA nodes that somebody has settled on; None if nobody has an opinion."""


@frozen
class Restored:
    """What a manager found in its store when it started.

    `format` is that of the checkpoint (0, 1 or 2), None if there was none that could be used. Then `problem` says why
    and `set_aside` where the unusable one was put. `skipped` are entries whose receipt cannot be read.
    """

    format: int | None = None
    allocations: int = 0
    skipped: tuple[str, ...] = ()
    problem: DeviceCoreError | None = None
    set_aside: str | None = None


class DeviceManager:
    """Hands out devices, and remembers who has which: the kubelet's device manager behind ports.

    Thread-safe. Use it as a context manager, or call `start` and `stop`.

    Args:
        transport: the way to the plugins.
        store: where the checkpoint is kept.
        sink: who hears about capacity and allocatable.
        pods: what is known of pods; without it, a pod is active from its admission until `evict`.
        metrics: who counts registrations and the duration of Allocate calls.
        topology: the machine's NUMA nodes and the policy for them.
        hint_providers: who else has a say in NUMA nodes, in the order in which they are asked.
        observers: who hears of allocations, releases and health.
        admission_budget: seconds that all plugins together may take for one admission.
        clock: monotonic seconds.
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
        admission_budget: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._store = store
        self._sink = sink
        self._pods = pods
        self._metrics = metrics
        self._topology = topology
        self._hint_providers = tuple(hint_providers)
        self._observers = tuple(observers)
        self._budget = admission_budget
        self._clock = clock
        self._node = NodeState()
        self._life: threading.Event | None = None  # one from each start to its stop; set when it knows what was saved
        self._state = threading.Lock()  # held while `_node` is replaced, never while a port is called
        self._replaced = threading.Condition(self._state)
        self._watchers = 0  # that wait for it
        self._saving = threading.Lock()  # held while the store is called, so that no older node is saved last
        self._publishing = threading.Lock()  # held while the sink is called, so that no older status is published last
        self._writer = CheckpointWriter()  # used while `_saving` is held
        self._saved: NodeState | None = None
        self._published = NodeStatus()
        self._removed: tuple[ResourceName, ...] = ()  # not yet published
        self._running: frozenset[ContainerKey] = frozenset()
        self._turn = threading.RLock()  # a pod source that is asked under it may ask back
        self._turn_ended = threading.Condition(self._turn)
        self._in_line = 0  # that wait for it
        self._admitting: set[PodUid] = set()
        self._settled: dict[PodUid, Affinity] = {}  # of pods as a whole that hold devices, or are in admission
        self.restored = Restored()
        """What was found in the store at the last start."""

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Restore what was saved, then take registrations (kubelet: `Start`, kubelet.md 2.2).

        A checkpoint that cannot be used is set aside, never overwritten; `restored` tells. Starting twice is once;
        after a stop it is a restart.

        Raises:
            StoreError: there is an unusable checkpoint, and it cannot be set aside.
            SetUpError: the transport cannot start.
        """
        if self._life:
            return
        life = threading.Event()
        # The transport first: whose directory it is, may read what is in it. Its events wait for what was saved.
        self._transport.start(partial(self._on_event, life))
        try:
            self._running = frozenset(self._pods.running_containers()) if self._pods else frozenset()
            self._restore(life)
            self._tell(Allocated(held.key.pod, held) for held in self._node.ledger)
        except BaseException:
            life.set()
            self.stop()
            raise
        life.set()
        self._publish()

    def stop(self) -> None:
        """Let go of all plugins. What was answered is already saved. Stopping twice is no error.

        Admissions that are under way are refused: from here on nothing is saved, for the store may be another's soon.
        """
        with self._saving, self._state:
            self._life = None
        self._transport.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def state(self) -> NodeState:
        """All that is known now, as a value."""
        return self._node

    def wait_for(self, condition: Callable[[NodeState], object], timeout: float) -> NodeState:
        """Wait until `condition` holds of `node`, which it is asked after every change; that node.

        Raises:
            TimeoutError: it did not hold within `timeout` seconds.
        """
        with self._state:
            self._watchers += 1
            try:
                if self._replaced.wait_for(lambda: condition(self._node), timeout):
                    return self._node
            finally:
                self._watchers -= 1
        message = f"what was waited for did not come about within {timeout:g} seconds"
        raise TimeoutError(message)

    # --- pods ---------------------------------------------------------------------------------------------------------

    def admit(self, pod: Pod, *, affinity: Affinity = None) -> Verdict:
        """Give all containers of a pod their devices, or none of them any.

        A pod that is already here keeps what it has. `affinity` are NUMA nodes that somebody else has settled on for
        every container; without it the topology policy decides.
        """
        began = self._clock()
        verdict = self._admit(pod, pod.in_start_order, affinity)
        if self._metrics:
            is_aligned = self._topology.policy is Policy.NONE or isinstance(verdict, Admitted)
            self._metrics.topology_manager_admission(self._clock() - began, failed=not is_aligned)
        return verdict

    def allocate(self, pod: Pod, container: str, *, affinity: Affinity = None) -> Verdict:
        """Give one container of a pod its devices, or none at all (kubelet: `Allocate`, kubelet.md 5.2).

        With the scope `pod`, what was settled for the first container of the pod holds for those after it.

        Raises:
            KeyError: the pod has no such container.
        """
        return self._admit(pod, (pod.container(container),), affinity)

    def evict(self, pods: Iterable[PodUid]) -> None:
        """Forget pods that are no longer active: their devices are free, and the checkpoint no longer names them.

        Raises:
            ManagerStoppedError: nothing is forgotten, for the manager is not started.
            TypeError: it is one uid, not several.
        """
        if isinstance(pods, str):  # whose letters would be pods that nobody knows
            message = f"evict takes the uids of several pods: evict([{pods!r}])"
            raise TypeError(message)
        if self._life is None:
            raise ManagerStoppedError
        self._forget(tuple(pods))
        self._save_or_log()

    def update_allocated_devices(self) -> None:
        """Forget the pods that the pod source no longer lists (kubelet: `UpdateAllocatedDevices`, kubelet.md 5.3)."""
        if self._sweep():
            self._save_or_log()

    def container_options(self, pod: Pod, container: str) -> ContainerOptions | None:
        """What a container is to be given, asked before each of its starts; None if it has no devices.

        Plugins that want to know of the start are told. A container of an active pod that missed its allocation gets
        it now (kubelet: `GetDeviceRunContainerOptions`, kubelet.md 7.1).

        Raises:
            KeyError: the pod has no such container.
            NoDevicesAllocatedError: a plugin wants to know of the start of a container that it gave no devices.
            PluginError: a plugin does not answer, or its answer cannot be read.
            AdmissionError: the container missed its allocation, and cannot have it now.
            StoreError: the same, for it cannot be saved.
            ManagerStoppedError: the same, for the manager is not started.
        """
        wanted = pod.container(container)
        key = pod.key(wanted)
        requests = [resource for resource, size in self._node.requests(pod, wanted) if size]
        for resource in requests:
            self._pre_start(key, resource)
        missed = [resource for resource in requests if self._node.ledger.allocation(key, resource) is None]
        if missed and self._is_active(pod.uid):
            verdict = self.allocate(pod, container)
            if not isinstance(verdict, Admitted):
                raise verdict.error
        held = self._node.ledger.of_container(key)
        if not held:
            return None
        options = container_options.merge({held.resource: self._transport.read(held.receipt) for held in held})
        for conflict in options.conflicts:
            _log.error("container %s of pod %s: %s", container, pod.uid, conflict)
        return options

    # --- the node -----------------------------------------------------------------------------------------------------

    def capacity(self) -> NodeStatus:
        """Capacity and allocatable now; a resource whose plugin has been away too long is in `removed` once.

        Call it from time to time, as a kubelet does every 10 seconds: that is when time passes here. What changed is
        published (kubelet: `GetCapacity`, kubelet.md 3.6).
        """
        now = self._clock()
        with self._state:
            removed, node = self._node.expire(now)
            self._set(node)
        if removed:
            self._save_or_log()
        return self._publish(removed)

    def sanitize_allocatable(self, pod: PodUid, allocatable: Mapping[ResourceName, int]) -> dict[ResourceName, int]:
        """`allocatable` raised to what is in use, if `pod` holds devices (kubelet: `UpdatePluginResources`)."""
        return self._node.sanitize_allocatable(pod, allocatable)

    def topology_hints(self, pod: Pod, container: str | None = None) -> Hints:
        """Hints for one container, or for the pod as a whole (kubelet: `GetTopologyHints`, `GetPodTopologyHints`).

        Raises:
            KeyError: the pod has no such container.
        """
        self.update_allocated_devices()
        return self._hints(pod, None if container is None else pod.container(container))

    def _sweep(self) -> bool:
        """Forget the pods that are no longer active; whether there were any. Saving that is the caller's business."""
        if self._life is None or self._pods is None or not self._pods.sources_ready():
            return False
        # Before asking who is active: a pod admitted since then is not in it.
        held = self._node.ledger.allocations.keys()
        with self._turn:
            listed = self._pods.active_pods()
            admitting = frozenset(self._admitting)
        active = listed if isinstance(listed, AbstractSet) else frozenset(listed)
        if held <= active:
            return False
        gone = [pod for pod in held if pod not in active and pod not in admitting]
        if gone:
            self._forget(gone)
        return bool(gone)

    def _forget(self, gone: Sequence[PodUid]) -> None:
        """Free what pods hold. It is told before it is so, hence before it is saved and before anybody gets it next."""
        told = [held for pod in gone for held in self._node.ledger.of_pod(pod)]
        self._tell(Released(held.key.pod, held) for held in told)
        before, _ = self._replace(lambda node: node.evict(gone))
        with self._turn:
            for pod in self._settled.keys() & {*gone} - self._admitting:
                del self._settled[pod]
        late = [held for pod in gone for held in before.ledger.of_pod(pod) if held not in told]
        self._tell(Released(held.key.pod, held) for held in late)

    # --- admission ----------------------------------------------------------------------------------------------------

    def _admit(self, pod: Pod, containers: Sequence[Container], affinity: Affinity) -> Verdict:
        self._begin_turn(pod.uid)
        try:
            return self._admit_alone(pod, containers, affinity)
        finally:
            self._end_turn(pod.uid)

    def _admit_alone(self, pod: Pod, containers: Sequence[Container], affinity: Affinity) -> Verdict:
        is_saved = not self._sweep()
        node = self._node  # what it knows now decides which requests are ours, to the end of the admission
        unhandled = node.unhandled(pod)
        transaction = _Transaction(pod, self._life, self._clock() + self._budget)
        at: Container | None = None
        try:
            self._check_alive(transaction)
            settle = self._settler(pod, containers, affinity)
            for at in containers:
                nodes = settle(at)  # only now that its turn has come: earlier ones have taken devices
                for resource, size in node.requests(pod, at):
                    demand = ResourceRequest(pod.key(at), resource, size, nodes, self._is_already_running(pod, at))
                    self._allocate(transaction, demand)
            is_saved |= self._commit(transaction)
        except BaseException as error:
            self._release(transaction)
            if isinstance(error, StoreError) or not is_saved:  # the store may hold what it could not make durable
                self._save_or_log()
            if isinstance(error, DeviceCoreError):
                return self._verdict(error, at)
            raise
        if not is_saved:
            self._save_or_log()
        return Admitted(self._node.ledger.of_pod(pod.uid), unhandled)

    def _settler(
        self, pod: Pod, containers: Sequence[Container], affinity: Affinity
    ) -> Callable[[Container], Affinity]:
        """What settles on the NUMA nodes of a container of `pod`, of which `containers` are admitted now."""
        policy, scope = self._topology.policy, self._topology.scope
        if affinity is not None or policy is Policy.NONE:
            return lambda _: affinity
        if scope is Scope.CONTAINER:
            return lambda container: self._settle(pod, container)
        if pod.uid not in self._settled or len(containers) == len(pod.in_start_order):
            self._settled[pod.uid] = self._settle(pod, None)
        settled = self._settled[pod.uid]
        return lambda _: settled

    def _settle(self, pod: Pod, container: Container | None) -> Affinity:
        hints = [self._hints(pod, container)]
        hints += [provider.topology_hints(pod, container) for provider in self._hint_providers]
        best, admitted = merge(self._topology, hints)
        if not admitted:
            raise TopologyAffinityError(pod.uid, container.name if container else None)
        return best.mask and tuple(best.mask)

    def _hints(self, pod: Pod, container: Container | None) -> Hints:
        node, numa_nodes = self._node, self._topology.numa_nodes
        if container is None:
            return pod_hints(pod, node.inventory, node.ledger, numa_nodes)
        return container_hints(pod, container, node.inventory, node.ledger, numa_nodes)

    def _allocate(self, transaction: "_Transaction", demand: ResourceRequest) -> None:
        """Reserve devices and have the plugin prepare them."""
        devices = self._reserve(transaction, demand)
        if not devices:
            return
        began = self._clock()
        try:
            plugin = self._plugin(demand.resource).id
            receipt = self._transport.allocate(plugin, tuple(devices), timeout=self._time_left(transaction))
        finally:
            if self._metrics:
                self._metrics.device_plugin_alloc_duration(demand.resource, self._clock() - began)
        transaction.receipts.append(receipt)

    def _reserve(self, transaction: "_Transaction", demand: ResourceRequest) -> DeviceSet:
        """Choose devices and reserve them in one step, asking the plugin in between if that is what it takes."""
        preferred: Sequence[DeviceId] | None = None
        while True:
            with self._state:
                self._check_alive(transaction)
                # Decided anew after the plugin was asked: others may have taken devices meanwhile.
                decision = self._node.devices_to_allocate(transaction.pod, demand)
                if isinstance(decision, AskPlugin) and preferred is not None:
                    decision = decision.answer(preferred)
                if isinstance(decision, Chosen):
                    if decision.devices:
                        self._set(self._node.reserve(transaction.pod, demand, decision.devices))
                        transaction.reserved.append(demand)
                    return decision.devices
            with _a_stopped_plugin_fails(demand.resource, "GetPreferredAllocation"):
                preferred = self._transport.get_preferred_allocation(
                    self._plugin(demand.resource).id,
                    tuple(decision.candidates),
                    tuple(decision.must_include),
                    decision.size,
                    timeout=self._time_left(transaction),
                )

    def _commit(self, transaction: "_Transaction") -> bool:
        """Turn the reservations into allocations: on disk first, then here. Whether there was anything to save."""
        if not transaction.reserved:
            return False
        self._time_left(transaction)  # what comes too late is not taken

        def confirmed(node: NodeState) -> NodeState:
            for demand, receipt in zip(transaction.reserved, transaction.receipts, strict=True):
                node = node.confirm(demand.key, demand.resource, receipt)
            return node

        with self._saving:
            self._check_alive(transaction)
            before = self._node
            after = confirmed(before)
            self._save(after)
            _, after = self._replace(lambda node: after if node is before else confirmed(node))
        if self._observers:
            self._tell_allocated(transaction, after)
        return True

    def _tell_allocated(self, transaction: "_Transaction", after: NodeState) -> None:
        pod = transaction.pod.uid
        demanded = {(demand.key, demand.resource) for demand in transaction.reserved}
        given = [held for held in after.ledger.allocations[pod] if (held.key, held.resource) in demanded]
        self._tell(Allocated(pod, held) for held in given)
        left = self._node.ledger.of_pod(pod)
        # Who evicts a pod while it is being admitted may have told of the end before the beginning was.
        self._tell(Released(pod, held) for held in given if held not in left)

    def _release(self, transaction: "_Transaction") -> None:
        def released(node: NodeState) -> NodeState:
            if self._life is not transaction.life:
                return node  # it began anew, without reservations
            ledger = node.ledger
            for demand in transaction.reserved:
                ledger = ledger.release(demand.key, demand.resource)
            return evolve(node, ledger=ledger)

        self._replace(released)

    def _verdict(self, error: DeviceCoreError, at: Container | None) -> Refused | NotReady:
        container = at.name if at else None
        if isinstance(error, UnregisteredDeviceError | NoHealthyDevicesError):
            resource = self._node.inventory.resources.get(ResourceName(error.resource))
            if resource and (resource.phase in {Phase.AWAITED, Phase.REGISTERED}):
                return NotReady(error, resource.name, container)
        return Refused(error, container)

    def _begin_turn(self, pod: PodUid) -> None:
        """One admission at a time for one pod, and none of its devices swept until `_end_turn`."""
        with self._turn:
            while pod in self._admitting:
                self._in_line += 1
                try:
                    self._turn_ended.wait()
                finally:
                    self._in_line -= 1
            self._admitting.add(pod)

    def _end_turn(self, pod: PodUid) -> None:
        with self._turn:
            self._admitting.remove(pod)
            if pod not in self._node.ledger.allocations:
                self._settled.pop(pod, None)
            if self._in_line:
                self._turn_ended.notify_all()

    def _plugin(self, resource: ResourceName) -> Plugin:
        known = self._node.inventory.resources.get(resource)
        plugin = known.plugin if known else None
        if plugin is None:
            raise EndpointNotFoundError(resource)
        return plugin

    def _pre_start(self, key: ContainerKey, resource: ResourceName) -> None:
        known = self._node.inventory.resources.get(resource)
        if known and known.plugin is None:
            return  # not back since the restart: a kubelet does not know its options then, and goes on (kubelet.md 7.2)
        plugin = self._plugin(resource)
        if not plugin.options.pre_start_required:
            return
        allocation = self._node.ledger.allocation(key, resource)
        if allocation is None:
            raise NoDevicesAllocatedError(key.pod, key.container, resource)
        with _a_stopped_plugin_fails(resource, "PreStartContainer"):
            self._transport.pre_start_container(plugin.id, tuple(allocation.devices))

    def _is_active(self, pod: PodUid) -> bool:
        return pod in (self._pods.active_pods() if self._pods else self._node.ledger.allocations)

    def _is_already_running(self, pod: Pod, container: Container) -> bool:
        """Whether the container runs from before a restart, and not all pods are known again (kubelet.md 4.5).

        So does an init container that has ended, since one after it runs; a kubelet refuses the pod (#138446).
        """
        if not self._running or self._pods is None or self._pods.sources_ready():
            return False
        if pod.key(container) in self._running:
            return True
        later = pod.in_start_order[pod.in_start_order.index(container) + 1 :]
        return pod.is_reusable(container) and any(pod.key(other) in self._running for other in later)

    def _check_alive(self, transaction: "_Transaction") -> None:
        """Raise if the life in which an admission began is over: nobody knows of its reservations any more."""
        if self._life is None or self._life is not transaction.life:
            raise ManagerStoppedError

    def _time_left(self, transaction: "_Transaction") -> float:
        left = transaction.deadline - self._clock()
        if left <= 0:
            raise AdmissionTimeoutError(transaction.pod.uid, self._budget)
        return left

    # --- state, disk and sink -----------------------------------------------------------------------------------------

    def _on_event(self, life: threading.Event, event: Event) -> None:
        if isinstance(event, RegistrationRequested):
            if self._metrics:
                self._metrics.device_plugin_registration(event.resource)
            return
        life.wait()
        now = self._clock()
        before, after = self._replace(lambda node: node.apply(event, now) if self._life is life else node)
        if not isinstance(event, PluginRegistered):  # registering alone changes nothing that is saved
            self._save_or_log()
        self._publish()
        if self._observers and isinstance(event, DevicesReported):
            self._tell_health(event.plugin.resource, before, after)

    def _tell_health(self, resource: ResourceName, before: NodeState, after: NodeState) -> None:
        old, new = (node.inventory.last_report(resource) for node in (before, after))
        if pods := pods_with_news(resource, old, new, after.ledger):
            self._tell([HealthChanged(pods)])

    def _tell(self, news: Iterable[Notification]) -> None:
        """Tell every observer; the caller holds no lock."""
        if not self._observers:
            return
        for one in news:
            for observer in self._observers:
                try:
                    observer(one)
                except Exception:  # noqa: BLE001 - somebody else's mistake is not the admission's
                    _log.exception("%r failed on %s", observer, type(one).__name__)

    def _replace(self, change: Callable[[NodeState], NodeState]) -> tuple[NodeState, NodeState]:
        """Replace the node; what it was, and what it is."""
        with self._state:
            before, after = self._node, change(self._node)
            self._set(after)
            return before, after

    def _set(self, node: NodeState) -> None:
        """Let `node` be what is known; the caller holds `_state`."""
        self._node = node
        if self._watchers:
            self._replaced.notify_all()

    def _save(self, node: NodeState) -> None:
        """Make `node` durable; the caller holds `_saving`."""
        if node is not self._saved:
            self._saved = None  # until the store says otherwise, nobody knows what it holds
            self._store.save(self._writer.file(node))
            self._saved = node

    def _save_or_log(self) -> None:
        """Save where nobody waits for it: what is not saved now is saved with the next change."""
        with self._saving:
            try:
                if self._life:
                    self._save(self._node)
            except StoreError as error:
                _log.error("%s", error)

    def _publish(self, removed: Iterable[ResourceName] = ()) -> NodeStatus:
        """Tell the sink what changed. What it does not take is published with the next change."""
        with self._publishing:
            status = self._node.inventory.status()
            status = evolve(status, removed=tuple(sorted({*self._removed, *removed} - status.capacity.keys())))
            if status == self._published or self._life is None:
                return status
            self._removed = status.removed
            try:
                self._sink.publish(status)
            except SinkError as error:
                _log.error("%s", error)
            else:
                self._removed = ()
                self._published = evolve(status, removed=())
            return status

    def _restore(self, life: threading.Event) -> None:
        node, self.restored = self._read()
        with self._saving, self._state:
            self._life, self._saved = life, None
            self._settled.clear()
            self._set(node)

    def _read(self) -> tuple[NodeState, Restored]:
        """What was saved, as far as it can be used."""
        try:
            blob = self._store.load()
            decoded = None if blob is None else decode(blob)
            data = decoded.verified() if decoded else CheckpointData(None, {})
        except (StoreError, CheckpointError) as error:
            restored = Restored(problem=error, set_aside=self._set_aside(error))
            _log.error("%s; it is kept as %s, and nothing is restored", error, restored.set_aside)
            return NodeState(), restored
        skipped = []
        entries = []
        for entry in data.entries or ():
            try:
                self._transport.read(Receipt(entry.alloc_resp or b""))
            except UnreadableReceiptError as error:
                holder = f"{entry.resource_name} of container {entry.container_name} of pod {entry.pod_uid}"
                _log.error("%s is not restored: %s", holder, error)
                skipped.append(f"{holder}: {error}")
            else:
                entries.append(entry)
        node = restore(evolve(data, entries=tuple(entries)), self._clock())
        return node, Restored(decoded.format if decoded else None, len(entries), tuple(skipped))

    def _set_aside(self, problem: DeviceCoreError) -> str | None:
        try:
            return self._store.set_aside()
        except StoreError as error:
            raise evolve(error, cause=f"{error.cause}. It was to be set aside because of this: {problem}") from problem


@contextmanager
def _a_stopped_plugin_fails(resource: ResourceName, method: str) -> Iterator[None]:
    """That a plugin has gone is, but for Allocate, one more way for a call to fail (kubelet.md 5.5, 7.2)."""
    try:
        yield
    except PluginStoppedError as error:
        raise PluginCallError(resource, method, str(error)) from error


@frozen
class _Transaction:
    """What one admission has done so far: reserved for each demand, and been given a receipt for each but the last."""

    pod: Pod
    life: threading.Event | None
    deadline: float
    reserved: list[ResourceRequest] = field(factory=list)
    receipts: list[Receipt] = field(factory=list)
