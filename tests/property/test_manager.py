"""The laws of `manager.py`, with a whole manager under everything that can happen to one.

"An admission that fails leaves everything as it was; one that succeeds is durable before it is answered. No port is
called while the state lock is held, and whoever reads `node` has a consistent picture without any lock."
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import count, pairwise

from attrs import define, evolve, field, frozen
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from devicecore.adapters.memory import (
    MemoryConnection,
    MemoryMetrics,
    MemoryPods,
    MemorySink,
    MemoryStore,
    MemoryTransport,
)
from devicecore.domain.admission import Admitted, NotReady, Verdict
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checkpoint import decode, restore
from devicecore.domain.container_options import ContainerAllocateResponse, ContainerOptions
from devicecore.domain.errors import (
    AdmissionError,
    ChangedRequestError,
    CheckpointError,
    DeviceCoreError,
    EndpointNotFoundError,
    NoDevicesAllocatedError,
    PluginAlreadyConnectedError,
    PluginCallError,
    PluginError,
    SinkError,
    StoreError,
)
from devicecore.domain.inventory import GRACE_PERIOD
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import (
    Container,
    Device,
    DeviceId,
    Health,
    NumaNode,
    PluginOptions,
    Pod,
    PodUid,
    ResourceName,
)
from devicecore.domain.topology import Topology
from devicecore.manager import DeviceManager
from devicecore.ports.plugin import DevicePlugin
from devicecore.testing.strategies import RESOURCES, device_ids, device_lists, pods, topologies

GPU, RDMA = RESOURCES

Holdings = dict[tuple[str, ResourceName], frozenset[DeviceId]]  # of one pod: by container and resource

numa = st.integers(0, 2).map(NumaNode)
odd_lists = device_lists(ids=device_ids(awkward=False), nodes=numa, max_size=6, unique=False)
plain_lists = st.lists(
    st.tuples(
        st.sampled_from((*[Health.HEALTHY] * 5, Health.UNHEALTHY)), st.none() | st.lists(numa, max_size=2).map(tuple)
    ),
    min_size=4,
    max_size=10,
).map(lambda listed: tuple(Device(DeviceId(f"gpu-{number}"), *about) for number, about in enumerate(listed)))
lists = plain_lists | plain_lists | plain_lists | odd_lists  # mostly such that somebody can have something


# --- the world around the manager ------------------------------------------------------------------------------------


def look_elsewhere() -> None:
    """Before there is a manager to look at."""


@define
class FailingStore(MemoryStore):
    """A store whose next `failures` saves fail. `lags` says that the last one did: what it has may be out of date.

    `look` is called inside every call, as in the other ports here: it would wait for ever if the state were locked.
    """

    failures: int = 0
    lags: bool = False
    look: Callable[[], object] = look_elsewhere

    def save(self, blob: bytes) -> None:
        self.look()
        if self.failures:
            self.failures -= 1
            self.lags = True
            raise StoreError("checkpoint", "write", "the disk is full")
        self.lags = False
        super().save(blob)


@define
class FailingSink(MemorySink):
    """A sink whose next `failures` publications fail. `lags` says that the last one did."""

    failures: int = 0
    lags: bool = False
    look: Callable[[], object] = look_elsewhere

    def publish(self, status: NodeStatus) -> None:
        self.look()
        if self.failures:
            self.failures -= 1
            self.lags = True
            raise SinkError("node", "nobody listens")
        self.lags = False
        super().publish(status)


@define
class Script:
    """What is to happen inside the next call to a plugin, once; and the devices with which a container was started."""

    next: Callable[[], None] | None = None
    played: int = 0
    started: dict[ResourceName, frozenset[DeviceId]] = field(factory=dict)
    look: Callable[[], object] = look_elsewhere

    def play(self) -> None:
        self.look()
        act, self.next = self.next, None
        if act:
            self.played += 1
            act()


class Preference(Enum):
    """How a plugin answers when it is asked what it prefers."""

    THE_LAST = "the last"
    NOTHING = "nothing"
    TOO_LITTLE = "too little"
    EVERYTHING_TWICE = "everything, twice"
    NOT_WHAT_MUST_BE_IN = "not what must be in"
    FOREIGN_DEVICES = "foreign devices"

    def of(self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int) -> Sequence[DeviceId]:
        others = [device for device in available if device not in must_include]
        return {
            Preference.THE_LAST: [*must_include, *reversed(others)][:size],
            Preference.NOTHING: [],
            Preference.TOO_LITTLE: available[:1],
            Preference.EVERYTHING_TWICE: (*available, *available),
            Preference.NOT_WHAT_MUST_BE_IN: others[:size],
            Preference.FOREIGN_DEVICES: [DeviceId(f"foreign-{number}") for number in range(size)],
        }[self]


class ScriptedPlugin(DevicePlugin):
    """A plugin that lists what it is told, prefers what it is told, and does what the script says while it is asked."""

    def __init__(
        self, resource: ResourceName, listed: Sequence[Device], prefers: Preference | None, script: Script
    ) -> None:
        self.resource = resource
        self.options = PluginOptions(
            pre_start_required=prefers is Preference.THE_LAST, get_preferred_allocation_available=prefers is not None
        )
        self.listed = tuple(listed)
        self._prefers = prefers or Preference.NOTHING
        self._script = script

    def devices(self) -> Sequence[Device]:
        return self.listed

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        self._script.play()
        return ContainerAllocateResponse(envs={self.resource: ",".join(devices)})

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        self._script.play()
        return self._prefers.of(available, must_include, size)

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        self._script.started[self.resource] = frozenset(devices)


# --- what ought to be ------------------------------------------------------------------------------------------------


def holdings(ledger: Ledger) -> dict[PodUid, Holdings]:
    """What every pod was allocated, counted from the entries."""
    found: dict[PodUid, Holdings] = {}
    for held in ledger:
        found.setdefault(held.key.pod, {})[held.key.container, held.resource] = frozenset(held.numa_nodes)
    return found


def owners(ledger: Ledger, resource: ResourceName) -> dict[DeviceId, set[PodUid]]:
    """Which pods hold each device of a resource, reserved or allocated."""
    counted: dict[DeviceId, set[PodUid]] = {}
    for holding in (*ledger, *ledger.reservations):
        if holding.resource == resource:
            for device in holding.devices:
                counted.setdefault(device, set()).add(holding.key.pod)
    return counted


def stored(blob: bytes | None) -> dict[PodUid, Holdings]:
    """What every pod would have after a restart."""
    return {} if blob is None else holdings(restore(decode(blob).verified(), now=0.0).ledger)


def may_share(pod: Pod, holders: Iterable[str]) -> bool:
    """Whether these containers of a pod may have one device: each but the last to start lends it, being an init one."""
    in_order = [container for container in pod.in_start_order if container.name in set(holders)]
    return all(pod.is_reusable(container) for container in in_order[:-1])


def fewest_devices(pod: Pod, resource: ResourceName) -> int:
    """How many devices a pod gets by with whose containers take what is lent to them before anything else."""
    taken = lent = 0
    for container in pod.in_start_order:
        size = container.limits.get(resource, 0)
        reused = min(size, lent)
        taken += size - reused
        lent += size - reused if pod.is_reusable(container) else -reused
    return taken


@frozen
class Picture:
    """All that a refused admission must not change."""

    ledger: Ledger
    blob: bytes | None
    published: tuple[NodeStatus, ...]


class ManagedNode(RuleBasedStateMachine):
    """Plugins come, report and die; pods come and go; disks fill up; kubelets restart; and the laws hold throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = FailingStore()
        self.sink = FailingSink()
        self.pods = MemoryPods()
        self.metrics = MemoryMetrics()
        self.script = Script()
        self.specs: dict[PodUid, Pod] = {}
        self.held: dict[PodUid, Holdings] = {}  # what every admitted pod must have until it goes
        self.gone: set[PodUid] = set()  # pods that a lagging store may still name
        self.unannounced: set[ResourceName] = set()  # removed, and the sink would not hear of it
        self.numbers = count()
        self.registrations = 0
        self.in_flight: set[PodUid] = set()

    @initialize(topology=topologies(max_nodes=3), listed=lists, prefers=st.none() | st.sampled_from(Preference))
    def begin(self, topology: Topology, listed: Sequence[Device], prefers: Preference | None) -> None:
        """There is one plugin to start with."""
        self._start(topology)
        self.plugin_registers(GPU, listed, prefers, same_socket=False)

    def _start(self, topology: Topology) -> None:
        self.topology = topology
        self.connections: list[MemoryConnection] = []
        self.transport = MemoryTransport()
        self.manager = DeviceManager(
            self.transport,
            self.store,
            self.sink,
            pods=self.pods,
            metrics=self.metrics,
            topology=topology,
            clock=lambda: self.now,
        )
        self.store.look = self.sink.look = self.script.look = lambda: self.manager.wait_for(bool, timeout=0)
        self.manager.start()

    def teardown(self) -> None:
        if hasattr(self, "manager"):  # else it was never initialized
            self.manager.stop()

    @property
    def ledger(self) -> Ledger:
        return self.manager.state.ledger

    def picture(self) -> Picture:
        return Picture(self.ledger, self.store.blob, tuple(self.sink.published))

    # --- plugins ---

    @rule(
        resource=st.sampled_from((GPU, GPU, RDMA)),
        listed=lists,
        prefers=st.none() | st.sampled_from(Preference),
        same_socket=st.booleans(),
    )
    def plugin_registers(
        self, resource: ResourceName, listed: Sequence[Device], prefers: Preference | None, same_socket: bool
    ) -> None:
        """On a socket of its own, or on that of a live one, which is refused."""
        plugin = ScriptedPlugin(resource, listed, prefers, self.script)
        live = [connection for connection in self.connections if connection.plugin.resource == resource]
        self.registrations += 1
        if not live or not same_socket:
            self.connections.append(self.transport.connect(plugin))
            return
        before = self.manager.state
        try:
            self.transport.connect(plugin, live[0].id.socket)
        except PluginAlreadyConnectedError:
            assert self.manager.state is before
        else:
            raise AssertionError("two plugins on one socket")

    @precondition(lambda self: self.connections)
    @rule(data=st.data(), listed=lists)
    def plugin_reports(self, data: st.DataObject, listed: Sequence[Device]) -> None:
        """Any list: devices appear, vanish, fall ill and move."""
        connection = data.draw(st.sampled_from(self.connections), "which plugin")
        assert isinstance(connection.plugin, ScriptedPlugin)
        connection.plugin.listed = tuple(listed)
        connection.report()

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def plugin_dies(self, data: st.DataObject) -> None:
        """It says goodbye, and its devices are no longer healthy unless another one has them."""
        connection = data.draw(st.sampled_from(self.connections), "which plugin")
        self.connections.remove(connection)
        connection.disconnect()

    # --- pods ---

    @rule(data=st.data())
    def pod_comes(self, data: st.DataObject) -> None:
        """A new pod; it is admitted or not."""
        self._new_pod(data)

    @rule(data=st.data(), act=st.sampled_from(("plugin fails", "plugin hangs", "plugin dies", "list changes")))
    def pod_comes_and_a_plugin_misbehaves(self, data: st.DataObject, act: str) -> None:
        """The plugin that is asked raises, takes too long, dies in the middle or changes its mind about its devices."""
        played = self.script.played
        verdict = self._new_pod(data, self._misbehaviour(data, act))
        if self.script.played > played and act in ("plugin fails", "plugin hangs"):
            assert not isinstance(verdict, Admitted)

    @rule(data=st.data(), act=st.sampled_from(("another pod comes", "another pod goes", "time passes")))
    def pod_comes_and_others_do_not_wait(self, data: st.DataObject, act: str) -> None:
        """While a plugin is asked for one pod, something happens to another."""

        def meanwhile() -> None:
            self._nobody_shares()
            match act:
                case "another pod comes":
                    self._new_pod(data)
                case "another pod goes" if self.held:
                    self._evict(data.draw(st.sampled_from(sorted(self.held)), "which pod goes"))
                case _:
                    self.now += 1.0
                    self.manager.tick()

        self._new_pod(data, meanwhile)

    @rule(data=st.data(), failures=st.integers(1, 2))
    def pod_comes_and_the_disk_is_full(self, data: st.DataObject, failures: int) -> None:
        """Nothing can be made durable, so nothing can be admitted that takes devices."""
        self.store.failures = failures
        self._new_pod(data)
        self.store.failures = 0

    @rule(data=st.data())
    def pod_comes_bit_by_bit(self, data: st.DataObject) -> None:
        """One container after the other, and nobody lists it before it is complete."""
        pod = data.draw(self._pods(), "pod")
        for container in pod.in_start_order:
            self._admit(pod, (container,), None, listed=False)
        if pod.uid in self.held:
            self.pods.active.add(pod.uid)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pod_comes_again(self, data: st.DataObject) -> None:
        """As after a restart of the kubelet, or container by container: who has devices keeps them."""
        pod = self._known_pod(data)
        one = data.draw(st.none() | st.sampled_from(pod.in_start_order), "which container")
        self._admit(pod, (one,) if one else pod.in_start_order, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pod_comes_again_changed(self, data: st.DataObject) -> None:
        """Who asks for another number of devices than it holds is told so, and keeps what it has."""
        pod = self._known_pod(data)
        (name, resource), devices = data.draw(st.sampled_from(sorted(self.held[pod.uid].items())), "what changes")
        changed = Container(name, {resource: len(devices) + 1}, pod.container(name).restartable)
        before = self.picture()
        self.pods.active.add(pod.uid)
        verdict = self.manager.allocate(_with(pod, changed), name)
        assert not isinstance(verdict, Admitted)
        assert isinstance(verdict.error, ChangedRequestError) or self.topology.policy.value != "none"
        assert self.ledger == before.ledger

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pod_goes(self, data: st.DataObject) -> None:
        """Somebody says that it is gone."""
        self._evict(self._known_pod(data).uid)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pod_goes_unnoticed(self, data: st.DataObject) -> None:
        """It is no longer active, and sooner or later the manager finds out."""
        uid = self._known_pod(data).uid
        self.pods.active.discard(uid)
        self.manager.update_allocated_devices()
        if self.pods.ready:
            self._forget(uid)
        else:  # nobody knows yet that it is gone
            self.pods.active.add(uid)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def container_starts(self, data: st.DataObject) -> None:
        """It is given what the plugins answered for exactly its devices."""
        pod = self._known_pod(data)
        container = data.draw(st.sampled_from(pod.in_start_order), "which container")
        options: ContainerOptions | None = None
        problem: DeviceCoreError | None = None
        self.script.started.clear()
        try:
            options = self.manager.start_container(pod, container.name)
        except (PluginError, AdmissionError, NoDevicesAllocatedError) as error:
            problem = error
        if problem and self._is_complete(pod, container):  # then only a plugin that wants to know of it can prevent it
            resources = self.manager.state.inventory.resources
            assert isinstance(problem, PluginCallError | EndpointNotFoundError)
            assert problem.resource not in {name for name, known in resources.items() if known.plugins}
        self._update(pod)
        if options is not None:
            mine = {name: held for (one, name), held in self.held[pod.uid].items() if one == container.name}
            assert {name: frozenset(text.split(",")) for name, text in options.envs.items()} == mine
            assert not options.conflicts
            assert all(self.script.started.get(name, held) == held for name, held in mine.items())

    # --- the rest of the world ---

    @rule(failures=st.integers(1, 2), of_what=st.sampled_from(("store", "sink")))
    def something_fails(self, failures: int, of_what: str) -> None:
        """The next so many calls of the store or of the sink will fail, whoever makes them."""
        if of_what == "store":
            self.store.failures = failures
        else:
            self.sink.failures = failures

    @rule(seconds=st.sampled_from((1.0, GRACE_PERIOD, GRACE_PERIOD + 1)))
    def time_passes(self, seconds: float) -> None:
        """Resources whose plugins have been away too long are named once, and are gone."""
        if not self.sink.lags:
            self.unannounced = set()
        self.now += seconds
        before = self.manager.state.inventory
        status = self.manager.tick()
        left = self.manager.state.inventory.resources
        gone = {name for name, known in before.resources.items() if name not in left and known.report is not None}
        assert gone <= set(status.removed) <= gone | self.unannounced
        self.unannounced = set(status.removed)
        assert self.sink.lags or not self.manager.tick().removed

    @rule(same_manager=st.booleans(), running=st.booleans())
    def kubelet_restarts(self, same_manager: bool, running: bool) -> None:
        """What was admitted is still held; what was gone may be back if the disk was full, until the pods are known."""
        before = dict(self.held)
        self.manager.stop()
        self.pods.ready = False
        self.pods.running = {
            self.specs[uid].key(container) for uid in self.held if running for container in self.specs[uid].containers
        }
        self.sink.published.clear()  # the next kubelet says everything again
        if same_manager:
            self.connections = []
            self.manager.start()
        else:
            self._start(self.topology)
        assert self.manager.restored.problem is None
        assert self.held == before
        self.pods.active -= self.gone

    @rule()
    def checkpoint_is_corrupted(self) -> None:
        """A kubelet restarts on a file that cannot be used: it is kept, and nobody has anything."""
        if self.store.blob is None:
            return
        self.manager.stop()
        corrupt = self.store.blob = self.store.blob[:-7]
        self.sink.published.clear()
        self.specs, self.held, self.gone = {}, {}, set()
        self.pods.active = set()
        self._start(self.topology)
        assert isinstance(self.manager.restored.problem, CheckpointError)
        assert self.store.aside[-1] == corrupt
        assert not self.ledger.allocations

    @rule()
    def all_pods_are_known(self) -> None:
        """Every source has delivered: who is not listed is gone."""
        self.pods.ready = True

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def somebody_asks(self, data: st.DataObject) -> None:
        """Questions change nothing but what is swept."""
        pod = self._known_pod(data)
        self.manager.update_allocated_devices()
        before = self.manager.state
        self.manager.topology_hints(pod)
        for container in pod.in_start_order:
            self.manager.topology_hints(pod, container.name)
        sanitized = self.manager.sanitize_allocatable(pod.uid, {GPU: 1})
        assert sanitized[GPU] >= 1
        assert self.manager.state is before

    # --- what the rules are made of ---

    def _pods(self) -> st.SearchStrategy[Pod]:
        uid = PodUid(f"pod-{next(self.numbers)}")
        return pods(uids=[uid], resources=(GPU, RDMA, "cpu"), max_count=2, max_init_containers=2)

    def _new_pod(self, data: st.DataObject, act: Callable[[], None] | None = None) -> Verdict:
        pod = data.draw(self._pods(), "pod")
        return self._admit(pod, pod.in_start_order, act)

    def _known_pod(self, data: st.DataObject) -> Pod:
        return self.specs[data.draw(st.sampled_from(sorted(self.held)), "which pod")]

    def _misbehaviour(self, data: st.DataObject, act: str) -> Callable[[], None]:
        listed = data.draw(lists, "the new list")

        def fail() -> None:
            raise RuntimeError("out of order")

        def hang() -> None:
            self.now += 61.0  # more than the budget of an admission

        def die() -> None:
            for connection in self.connections:
                connection.disconnect()
            self.connections = []

        def change() -> None:
            for connection in self.connections:
                assert isinstance(connection.plugin, ScriptedPlugin)
                connection.plugin.listed = listed
                connection.report()

        return {"plugin fails": fail, "plugin hangs": hang, "plugin dies": die, "list changes": change}[act]

    def _admit(
        self, pod: Pod, containers: Sequence[Container], act: Callable[[], None] | None, *, listed: bool = True
    ) -> Verdict:
        if listed:
            self.pods.active.add(pod.uid)
            self.manager.update_allocated_devices()  # so that it is not the admission that sweeps
            self._swept()
        before, of_pod, played = self.picture(), dict(self.held.get(pod.uid, {})), self.script.played
        handled = {one.name: self.manager.state.requests(pod, one) for one in containers}
        self.in_flight.add(pod.uid)
        self.script.next = act
        whole = len(containers) == len(pod.in_start_order)
        verdict = self.manager.admit(pod) if whole else self.manager.allocate(pod, containers[0].name)
        self.script.next = None
        self.in_flight.discard(pod.uid)
        event(f"{type(verdict).__name__} {type(getattr(verdict, 'error', None)).__name__}")
        if isinstance(verdict, Admitted):
            if pod.uid in self.ledger.allocations:
                self.specs[pod.uid] = pod
                self._update(pod)
            self._has_what_it_asked_for(pod, containers, handled, is_new=whole and not of_pod)
            self._was_prepared(verdict)
        else:
            assert isinstance(verdict.error, AdmissionError | PluginError | StoreError)
            assert holdings(self.ledger).get(pod.uid, {}) == of_pod
            if self.script.played == played:
                self._changed_nothing(before, verdict)
            if pod.uid not in self.held:
                self.pods.active.discard(pod.uid)
        return verdict

    def _changed_nothing(self, before: Picture, verdict: Verdict) -> None:
        """A refused admission: no trace in the ledger, in the file or in what is published."""
        assert self.ledger == before.ledger
        assert tuple(self.sink.published) == before.published
        if self.store.blob != before.blob:  # it was out of date, and no longer is
            assert stored(self.store.blob) == holdings(before.ledger)
        if isinstance(verdict, NotReady):
            resource = self.manager.state.inventory.resources[verdict.resource]
            assert resource.awaited or resource.report is None

    def _has_what_it_asked_for(
        self,
        pod: Pod,
        containers: Sequence[Container],
        handled: Mapping[str, Sequence[tuple[ResourceName, int]]],
        *,
        is_new: bool,
    ) -> None:
        """Each container holds exactly what it asked for of handled resources; devices are shared by lending only."""
        if not self.pods.ready and any(key.pod == pod.uid for key in self.pods.running):
            return  # it runs from before the restart, and is left alone
        held = self.held.get(pod.uid, {})
        for container in containers:
            asked = {resource: size for resource, size in handled[container.name] if size}
            assert {name: len(held[one, name]) for one, name in held if one == container.name} == asked
        for resource in RESOURCES:
            holders: dict[DeviceId, list[str]] = {}
            for (container_name, name), devices in held.items():
                for device in devices if name == resource else ():
                    holders.setdefault(device, []).append(container_name)
            assert all(may_share(pod, names) for names in holders.values())
            if is_new and any(resource == name for asked in handled.values() for name, _ in asked):
                assert len(holders) == fewest_devices(pod, resource)

    def _was_prepared(self, verdict: Admitted) -> None:
        """The plugin prepared exactly the devices that are on record."""
        for held in verdict.allocations:
            assert self.transport.read(held.receipt).envs == {held.resource: ",".join(held.devices)}

    def _is_complete(self, pod: Pod, container: Container) -> bool:
        """Whether the container has all its devices, so that nothing about its start can fail."""
        requests = {resource for resource, size in self.manager.state.requests(pod, container) if size}
        return requests <= {resource for name, resource in self.held[pod.uid] if name == container.name}

    def _update(self, pod: Pod) -> None:
        """Take over what a pod has now, which is what it had and maybe more."""
        now = holdings(self.ledger).get(pod.uid, {})
        assert self.held.get(pod.uid, {}).items() <= now.items()
        self.held[pod.uid] = now

    def _evict(self, uid: PodUid) -> None:
        self.pods.active.discard(uid)
        self.manager.evict([uid])
        self._forget(uid)

    def _forget(self, uid: PodUid) -> None:
        del self.held[uid], self.specs[uid]
        self.gone.add(uid)
        self._swept()

    def _swept(self) -> None:
        if not self.store.lags:
            self.gone &= self.ledger.allocations.keys()

    def _nobody_shares(self) -> None:
        for resource in RESOURCES:
            assert all(len(pods) == 1 for pods in owners(self.ledger, resource).values())

    # --- the laws ---

    @invariant()
    def no_device_has_two_pods(self) -> None:
        """Counted holding by holding."""
        self._nobody_shares()

    @invariant()
    def no_reservation_outlives_its_admission(self) -> None:
        """Nothing is in flight, so nothing is reserved."""
        assert not self.in_flight
        assert self.ledger.reservations == ()

    @invariant()
    def every_device_is_free_or_held(self) -> None:
        """Free, reserved and allocated devices are all that is known or held, each in one of the three."""
        for resource in RESOURCES:
            report = self.manager.state.inventory.current_report(resource)
            known = set(report.devices) if report else set()
            in_use = set(self.ledger.in_use(resource))
            assert in_use == set(owners(self.ledger, resource))
            allocated = {device for held in self.ledger if held.resource == resource for device in held.devices}
            reserved = {
                device for held in self.ledger.reservations if held.resource == resource for device in held.devices
            }
            assert allocated | reserved == in_use
            assert (known - in_use) | reserved | allocated == known | in_use
            assert (resource in self.ledger.resources) == bool(in_use)

    @invariant()
    def every_pod_has_what_it_was_given(self) -> None:
        """From its admission until it goes, through reports, deaths, restarts and full disks."""
        now = holdings(self.ledger)
        assert {uid: now.get(uid, {}) for uid in self.held} == self.held
        assert now.keys() - self.held.keys() <= self.gone

    @invariant()
    def what_was_admitted_is_durable(self) -> None:
        """Were the power to fail now, every pod would keep its devices; and unless the disk failed, nobody else any."""
        after_a_crash = stored(self.store.blob)
        assert {uid: after_a_crash.get(uid, {}) for uid in self.held} == self.held
        if not self.store.lags:
            assert after_a_crash == holdings(self.ledger)

    @invariant()
    def others_see_what_there_is(self) -> None:
        """0 <= allocatable <= capacity; and unless the sink failed, the node shows them."""
        status = self.manager.state.inventory.status()
        assert status.capacity.keys() == status.allocatable.keys()
        assert all(0 <= status.allocatable[name] <= size for name, size in status.capacity.items())
        if not self.sink.lags:
            shown = {name: (self.sink.capacity.get(name), self.sink.allocatable.get(name)) for name in status.capacity}
            assert shown == {name: (size, status.allocatable[name]) for name, size in status.capacity.items()}

    @invariant()
    def nothing_is_published_twice(self) -> None:
        """The sink is called only when something has changed; that a resource has gone is said once."""
        for status, following in pairwise(self.sink.published):
            assert evolve(status, removed=()) != following

    @invariant()
    def every_registration_is_counted(self) -> None:
        """Refused ones too."""
        assert sum(self.metrics.registrations.values()) == self.registrations


def _with(pod: Pod, changed: Container) -> Pod:
    """The pod with one container changed."""

    def replaced(containers: tuple[Container, ...]) -> Iterator[Container]:
        return (changed if container.name == changed.name else container for container in containers)

    return evolve(pod, containers=tuple(replaced(pod.containers)), init_containers=tuple(replaced(pod.init_containers)))


TestManagedNode = ManagedNode.TestCase
TestManagedNode.settings = settings(stateful_step_count=30)
