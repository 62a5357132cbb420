"""What a device manager does when something goes wrong, and what it says."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attrs import evolve

from devicecore import (
    Admitted,
    Container,
    ContainerAllocateResponse,
    Device,
    DeviceId,
    DeviceManager,
    DevicePlugin,
    Health,
    NotReady,
    NumaNode,
    PluginOptions,
    Pod,
    PodUid,
    Policy,
    Refused,
    Scope,
    Topology,
    Verdict,
    resource_name,
)
from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemoryMetrics, MemoryPods, MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, decode, encode
from devicecore.domain.errors import (
    CorruptCheckpointError,
    EndpointNotFoundError,
    InvalidLimitError,
    InvalidResourceNameError,
    NoDevicesAllocatedError,
    PluginAlreadyConnectedError,
    PluginCallError,
    PluginStoppedError,
    StoreError,
    TopologyAffinityError,
)
from devicecore.domain.health import allocated_resources_status
from devicecore.domain.model import ContainerKey
from devicecore.domain.topology import Hints, NumaMask, TopologyHint
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.testing.faults import DISK_FULL, Fails, FaultySink, FaultyStore, Script

GPU = resource_name("example.com/gpu")


def gpus(count: int = 4, numa_nodes: Sequence[int] = ()) -> SimulatedPlugin:
    """A plugin with that many devices `gpu-0`, `gpu-1`, ..."""
    return SimulatedPlugin(GPU, simulated_devices("gpu", count, numa_nodes=numa_nodes))


def a_pod(name: str, count: int = 1, resource: str = GPU) -> Pod:
    """A pod with one container."""
    return Pod(PodUid(name), containers=(Container("main", {resource: count, "cpu": 2}),))


def test_an_unknown_extended_resource_passes_and_is_named() -> None:
    """Native resources are nobody's question; extended ones that nobody serves are named with their container."""
    with DeviceManager(MemoryTransport(), MemoryStore(), MemorySink()) as manager:
        pod = a_pod("p", 1, "other.com/fpga")
        assert manager.admit(pod) == Admitted(pod, unhandled=(("main", resource_name("other.com/fpga")),))


def test_a_full_disk_refuses_the_pod_and_changes_nothing() -> None:
    """What cannot be made durable is not given away."""
    store, transport, script = MemoryStore(), MemoryTransport(), Script()
    with DeviceManager(transport, FaultyStore(store, script), MemorySink()) as manager:
        transport.connect(gpus())
        before, blob = manager.state, store.blob
        script.always("save", DISK_FULL)
        verdict = manager.admit(a_pod("p"))
        assert isinstance(verdict, Refused)
        assert str(verdict) == 'failed to write checkpoint file "checkpoint": No space left on device'
        assert (manager.state, store.blob) == (before, blob)
        script.clear("save")
        assert isinstance(manager.admit(a_pod("p")), Admitted)


def test_health_is_believed_although_it_cannot_be_saved() -> None:
    """A full disk does not hide an unhealthy device, and the next save catches up."""
    store, transport, script = MemoryStore(), MemoryTransport(), Script()
    with DeviceManager(transport, FaultyStore(store, script), MemorySink()) as manager:
        plugin = gpus()
        transport.connect(plugin)
        script.always("save", DISK_FULL)
        plugin.set_health("gpu-0", Health.UNHEALTHY)
        assert manager.status.allocatable == {GPU: 3}
        script.clear("save")
        manager.evict(())
        assert store.blob is not None
        assert decode(store.blob).data.registered_devices == {GPU: ("gpu-1", "gpu-2", "gpu-3")}


def test_what_a_sink_did_not_take_is_published_later() -> None:
    """While the sink is away nothing is lost: it hears of the newest state, and of what was removed."""
    now = [0.0]
    sink, transport, script = MemorySink(), MemoryTransport(), Script()
    faulty = FaultySink(sink, script)
    with DeviceManager(transport, MemoryStore(), faulty, clock=lambda: now[0]) as manager:
        connection = transport.connect(gpus())
        script.always("publish", Fails("connection refused"))
        connection.disconnect()
        now[0] = 301.0
        manager.tick()
        script.clear("publish")
        manager.tick()
        assert sink.published[-1] == NodeStatus({}, {}, (GPU,))
        told = len(sink.published)
        manager.tick()
        assert len(sink.published) == told


def test_a_corrupt_checkpoint_is_set_aside_and_reported() -> None:
    """Nothing is restored from it, nothing overwrites it, and `restored` says what, why and where."""
    blob = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}'
    store = MemoryStore(blob)
    transport = MemoryTransport()
    with DeviceManager(transport, store, MemorySink()) as manager:
        transport.connect(gpus())
        assert store.aside == [blob]
        problem = manager.restored.problem
        assert isinstance(problem, CorruptCheckpointError)
        assert (problem.stored, problem.computed) == (1, 3467439661)
        assert manager.restored.set_aside == "aside[0]"


def test_a_checkpoint_that_can_neither_be_read_nor_set_aside_keeps_a_manager_from_starting(tmp_path: Path) -> None:
    """It says both, what was wrong with it and why it is still there."""
    both = r"^failed to set aside .*in_directory keeps a checkpoint in one\..*failed to read .*Is a directory$"
    with pytest.raises(StoreError, match=both):
        DeviceManager(MemoryTransport(), FileStore(tmp_path), MemorySink()).start()


def test_one_uid_is_not_a_collection_of_pods() -> None:
    manager = DeviceManager(MemoryTransport(), MemoryStore(), MemorySink())
    with manager, pytest.raises(TypeError, match=r"evict\(\['pod-1'\]\)"):
        manager.evict("pod-1")  # type: ignore[arg-type]  # what somebody without mypy does


def test_an_entry_whose_receipt_cannot_be_read_is_skipped_and_reported() -> None:
    """The other entries are kept."""
    entries = [
        PodDevicesEntry("p", "c", GPU, {0: ("gpu-0",)}, b"\xff"),
        PodDevicesEntry("q", "c", GPU, {0: ("gpu-1",)}, b""),
    ]
    store = MemoryStore(encode(CheckpointData(tuple(entries), {GPU: ()})))
    with DeviceManager(MemoryTransport(), store, MemorySink()) as manager:
        assert list(manager.state.ledger.allocations) == ["q"]
        assert (manager.restored.format, manager.restored.allocations) == (2, 1)
        assert "example.com/gpu of container c of pod p" in manager.restored.skipped[0]


def test_a_pod_is_not_ready_until_the_plugin_is_back() -> None:
    """After a restart the verdict is neither yes nor no, and names the resource that is waited for."""
    store, transport = MemoryStore(), MemoryTransport()
    with DeviceManager(transport, store, MemorySink()) as manager:
        transport.connect(gpus())
        assert isinstance(manager.admit(a_pod("p")), Admitted)
    transport = MemoryTransport()
    with DeviceManager(transport, store, MemorySink()) as manager:
        verdict = manager.admit(a_pod("q"))
        assert isinstance(verdict, NotReady)
        assert (verdict.resource, verdict.container) == (GPU, "main")
        assert str(verdict) == "no healthy devices present; cannot allocate unhealthy devices example.com/gpu"
        transport.connect(gpus())
        assert isinstance(manager.admit(a_pod("q")), Admitted)


def test_a_pod_is_not_ready_while_its_plugin_has_registered_but_not_reported() -> None:
    """Between Register and the first list a pod does not slip through without its devices."""

    class Shy(SimulatedPlugin):
        def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
            verdicts.append(manager.admit(a_pod("p")))
            return super().subscribe(changed)

    verdicts: list[Verdict] = []
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(Shy(GPU, simulated_devices("gpu", 1)))
        assert isinstance(verdicts[0], NotReady)
        assert str(verdicts[0]) == "cannot allocate unregistered device example.com/gpu"
        assert isinstance(manager.admit(a_pod("p")), Admitted)


def test_an_answer_that_comes_after_the_budget_is_not_taken() -> None:
    """However late the plugin is, the pod is refused and nothing is in use."""

    class Slow(SimulatedPlugin):
        def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
            now[0] += 20.0
            return super().allocate(devices)

    now = [0.0]
    store, transport = MemoryStore(), MemoryTransport()
    with DeviceManager(transport, store, MemorySink(), admission_budget=30.0, clock=lambda: now[0]) as manager:
        transport.connect(Slow(GPU, simulated_devices("gpu", 4)))
        before, blob = manager.state, store.blob
        assert isinstance(manager.admit(a_pod("p")), Admitted)
        manager.evict([PodUid("p")])
        main = Container("main", {GPU: 1})
        verdict = manager.admit(Pod(PodUid("q"), containers=(main, evolve(main, name="helper"))))
        assert str(verdict) == 'admission of pod "q" took longer than 30 seconds'
        assert (manager.state.ledger, store.blob) == (before.ledger, blob)


def test_an_init_container_that_has_ended_is_not_asked_for_again() -> None:
    """After a restart, a pod whose app container runs is admitted although its plugin is not back (#138446)."""
    init, main = Container("init", {GPU: 1}), Container("main", {GPU: 1})
    pod = Pod(PodUid("p"), init_containers=(init,), containers=(main,))
    store, transport = MemoryStore(), MemoryTransport()
    with DeviceManager(transport, store, MemorySink()) as manager:
        transport.connect(gpus())
        manager.admit(pod)
    pods = MemoryPods(ready=False, running={pod.key(main)})
    with DeviceManager(MemoryTransport(), store, MemorySink(), pods=pods) as manager:
        assert isinstance(manager.admit(pod), Admitted)
    pods = MemoryPods(ready=False, running={pod.key(init)})
    with DeviceManager(MemoryTransport(), store, MemorySink(), pods=pods) as manager:
        assert isinstance(manager.admit(pod), NotReady)


def test_a_plugin_that_reports_nothing_healthy_is_a_no() -> None:
    """Not reported yet and all unhealthy are told apart."""
    store, transport = MemoryStore(), MemoryTransport()
    with DeviceManager(transport, store, MemorySink()) as manager:
        transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 1, unhealthy=[0])))
        assert isinstance(manager.admit(a_pod("q")), Refused)


def test_a_changed_request_is_refused() -> None:
    """A container that holds devices cannot ask for another number of them."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(gpus())
        manager.admit(a_pod("p", 1))
        verdict = manager.admit(a_pod("p", 2))
        assert isinstance(verdict, Refused)
        assert str(verdict) == ('pod "p" container "main" changed request for resource "example.com/gpu" from 1 to 2')


class Fussy(DevicePlugin):
    """A plugin whose every optional call fails."""

    resource = GPU

    def __init__(self, options: PluginOptions) -> None:
        self.options = options

    def devices(self) -> Sequence[Device]:
        return simulated_devices("gpu", 2)

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return ContainerAllocateResponse({"N": str(len(devices))})

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        message = f"cannot choose {size} of {len(available)}"
        raise ValueError(message)

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        message = "not today"
        raise ValueError(message)


def test_a_failing_preference_refuses_the_pod() -> None:
    """The sentence is the kubelet's, with the plugin's own words."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(Fussy(PluginOptions(get_preferred_allocation_available=True)))
        before = manager.state
        verdict = manager.admit(a_pod("p"))
        assert str(verdict) == "device plugin GetPreferredAllocation rpc failed with err: cannot choose 1 of 2"
        assert manager.state == before


def test_a_start_that_the_plugin_refuses_gives_no_options() -> None:
    """PreStartContainer comes before the settings, for a container that has devices."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(Fussy(PluginOptions(pre_start_required=True)))
        with pytest.raises(
            NoDevicesAllocatedError, match="no devices found allocated in local cache for pod p, contain"
        ):
            manager.start_container(a_pod("p"), "main")
        manager.admit(a_pod("p"))
        with pytest.raises(PluginCallError, match="PreStartContainer rpc failed with err: not today"):
            manager.start_container(a_pod("p"), "main")


def test_a_container_of_an_active_pod_gets_at_its_start_what_it_missed() -> None:
    """A pod that came before its plugin is given devices when its container starts (kubelet.md 7.1)."""
    transport, pods = MemoryTransport(), MemoryPods(active={PodUid("p")})
    with DeviceManager(transport, MemoryStore(), MemorySink(), pods=pods) as manager:
        assert manager.admit(a_pod("p")) == Admitted(a_pod("p"), unhandled=(("main", GPU),))
        assert manager.start_container(a_pod("p"), "main") is None
        transport.connect(gpus())
        options = manager.start_container(a_pod("p"), "main")
        assert options is not None
        assert options.envs == {"NVIDIA_VISIBLE_DEVICES/example.com/gpu": "gpu-0"}


def test_after_a_restart_a_start_does_not_wait_for_the_plugin() -> None:
    """Before the plugin is back its options are unknown, and a kubelet goes on (kubelet.md 7.2)."""
    now = [0.0]
    store, transport = MemoryStore(), MemoryTransport()
    with DeviceManager(transport, store, MemorySink()) as manager:
        transport.connect(Fussy(PluginOptions(pre_start_required=True)))
        manager.admit(a_pod("p"))
    with DeviceManager(MemoryTransport(), store, MemorySink(), clock=lambda: now[0]) as manager:
        options = manager.start_container(a_pod("p"), "main")
        assert options is not None
        assert options.envs == {"N": "1"}
        now[0] = 301.0
        assert manager.tick().removed == (GPU,)
        with pytest.raises(EndpointNotFoundError, match="endpoint not found in cache for a registered resource"):
            manager.start_container(a_pod("p"), "main")


def test_a_dead_plugin_answers_nothing() -> None:
    """Devices whose plugin wants to hear of starts cannot start without it."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        connection = transport.connect(Fussy(PluginOptions(pre_start_required=True)))
        manager.admit(a_pod("p"))
        connection.disconnect()
        with pytest.raises(PluginCallError) as failed:
            manager.start_container(a_pod("p"), "main")
        assert str(failed.value) == (
            "device plugin PreStartContainer rpc failed with err: endpoint example.com/gpu has been stopped"
        )


def test_conflicting_answers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Two plugins that want one variable to differ: the first wins, and the log says so."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 1), "DEVICES"))
        transport.connect(SimulatedPlugin("example.com/nic", simulated_devices("nic", 1), "DEVICES"))
        pod = Pod(PodUid("p"), containers=(Container("main", {GPU: 1, "example.com/nic": 1}),))
        manager.admit(pod)
        options = manager.start_container(pod, "main")
        assert options is not None
        assert options.envs == {"DEVICES": "gpu-0"}
        assert "environment variable DEVICES is 'gpu-0'; example.com/nic wants 'nic-0': ignored" in caplog.text


def test_bad_registrations_are_refused_with_a_sentence() -> None:
    """A name no kubelet takes, a socket that is served already, a manager that is not there."""
    transport = MemoryTransport()
    with pytest.raises(PluginStoppedError):
        transport.connect(gpus())
    metrics = MemoryMetrics()
    with DeviceManager(transport, MemoryStore(), MemorySink(), metrics=metrics) as manager:
        plugin = gpus()
        transport.connect(plugin, "gpu.sock")
        with pytest.raises(PluginAlreadyConnectedError, match=r"device plugin already connected: gpu\.sock"):
            transport.connect(plugin, "gpu.sock")
        plugin.resource = resource_name("example.com/nic")
        plugin.resource = type(plugin.resource)("cpu")
        with pytest.raises(InvalidResourceNameError, match='the ResourceName "cpu" is invalid'):
            transport.connect(plugin)
        manager.admit(a_pod("p"))
    assert metrics.registrations == {GPU: 2, "cpu": 1}
    assert len(metrics.allocations[GPU]) == 1
    assert [failed for _, failed in metrics.admissions] == [False]


@pytest.mark.parametrize(("policy", "fails"), [(Policy.NONE, False), (Policy.RESTRICTED, True)])
def test_an_admission_is_measured_and_fails_only_where_there_is_a_policy(policy: Policy, *, fails: bool) -> None:
    """A kubelet counts errors of the topology manager, and without a policy it has none to make."""
    metrics = MemoryMetrics()
    topology = Topology((NumaNode(0),), policy)
    transport, times = MemoryTransport(), iter(range(100))
    with DeviceManager(
        transport, MemoryStore(), MemorySink(), metrics=metrics, topology=topology, clock=lambda: float(next(times))
    ) as manager:
        transport.connect(gpus())
        assert isinstance(manager.admit(a_pod("p", 99)), Refused)
    ((seconds, failed),) = metrics.admissions
    assert failed is fails
    assert seconds > 0


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize(
    ("policy", "count", "admitted"),
    [
        (Policy.NONE, 3, True),
        (Policy.BEST_EFFORT, 3, True),
        (Policy.RESTRICTED, 3, True),
        (Policy.SINGLE_NUMA_NODE, 2, True),
        (Policy.SINGLE_NUMA_NODE, 3, False),
    ],
)
def test_the_topology_policy_decides(scope: Scope, policy: Policy, count: int, admitted: bool) -> None:
    """Two devices on each of two nodes: three never fit on one node."""
    transport = MemoryTransport()
    topology = Topology((NumaNode(0), NumaNode(1)), policy, scope)
    with DeviceManager(transport, MemoryStore(), MemorySink(), topology=topology) as manager:
        transport.connect(gpus(4, numa_nodes=[0, 1]))
        verdict = manager.admit(a_pod("p", count))
        assert isinstance(verdict, Admitted) is admitted
        if isinstance(verdict, Refused):
            assert isinstance(verdict.error, TopologyAffinityError)
            assert str(verdict) == "Resources cannot be allocated with Topology locality"
        else:
            assert len(verdict.devices("main")[GPU]) == count  # type: ignore[union-attr]  # a NotReady fails above


def test_a_refusal_for_its_numa_nodes_names_the_container() -> None:
    """The container whose hints do not fit is the one that failed, not the one before it."""
    transport = MemoryTransport()
    topology = Topology((NumaNode(0), NumaNode(1)), Policy.SINGLE_NUMA_NODE)
    with DeviceManager(transport, MemoryStore(), MemorySink(), topology=topology) as manager:
        transport.connect(gpus(4, numa_nodes=[0, 1]))
        first = manager.admit(a_pod("p", 3))
        second = manager.admit(Pod(PodUid("q"), containers=(Container("a", {GPU: 1}), Container("b", {GPU: 3}))))
        assert [verdict.container for verdict in (first, second) if isinstance(verdict, Refused)] == ["main", "b"]


def test_a_refusal_says_what_a_kubelet_puts_into_the_pods_status() -> None:
    """Reason and message (kubelet.md 5.1)."""
    topology = Topology((NumaNode(0), NumaNode(1)), Policy.SINGLE_NUMA_NODE)
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink(), topology=topology) as manager:
        transport.connect(gpus(2, numa_nodes=[0, 1]))
        apart = manager.admit(a_pod("p", 2))
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(SimulatedPlugin(GPU, [Device(DeviceId("a"), Health.UNHEALTHY)]))
        ill = manager.admit(a_pod("p"))
    assert isinstance(apart, Refused)
    assert isinstance(ill, Refused)
    assert apart.reason == "TopologyAffinityError"
    assert apart.message == "Resources cannot be allocated with Topology locality"
    assert ill.reason == "UnexpectedAdmissionError"
    assert ill.message == f"Allocate failed due to {ill.error}, which is unexpected"


def test_containers_that_come_one_by_one_share_what_was_settled_for_their_pod() -> None:
    """With the scope `pod`, until the pod is gone: what it then gets is settled anew."""
    transport = MemoryTransport()
    topology = Topology((NumaNode(0), NumaNode(1)), Policy.SINGLE_NUMA_NODE, Scope.POD)
    pod = Pod(PodUid("p"), containers=(Container("a", {GPU: 1}), Container("b", {GPU: 1})))
    with DeviceManager(transport, MemoryStore(), MemorySink(), topology=topology) as manager:
        transport.connect(gpus(4, numa_nodes=[0, 1]))
        for devices, neighbour in ([("gpu-0",), ("gpu-2",)], "gpu-0"), ([("gpu-1",), ("gpu-3",)], None):
            verdicts = [manager.allocate(pod, name) for name in ("a", "b")]
            assert [tuple(manager.state.ledger.allocations[pod.uid][n].devices) for n in (0, 1)] == devices
            assert all(isinstance(verdict, Admitted) for verdict in verdicts)
            manager.evict([pod.uid])
            if neighbour:
                assert isinstance(manager.admit(a_pod("q")), Admitted)


@pytest.mark.parametrize("limit", ["1", 1.5, -1, None])
def test_a_limit_that_is_no_count_is_no_container(limit: int) -> None:
    """A request for -1 devices would be granted, one for "1" would break in the middle of an admission."""
    with pytest.raises(InvalidLimitError) as refused:
        Container("main", {GPU: limit})
    assert str(refused.value) == f"the limit of {GPU} is {limit!r}: it must be a whole number, at least 0"


def test_an_affinity_for_no_node_at_all_is_not_the_lack_of_one() -> None:
    """Devices without topology are then as good as any, and those with one come first, as in a kubelet."""
    devices = [Device(DeviceId("a")), Device(DeviceId("b"), topology=(NumaNode(0),))]
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(SimulatedPlugin(GPU, devices))
        verdict = manager.admit(a_pod("p"), affinity=())
        assert isinstance(verdict, Admitted)
        assert list(verdict.devices("main")[GPU]) == ["b"]


def test_what_a_plugin_said_is_remembered_while_its_devices_are_held() -> None:
    """Its grace period over, a container still holds devices of the nodes and the health that were last listed."""
    now = 0.0
    transport = MemoryTransport()
    topology = Topology((NumaNode(0), NumaNode(1)))
    manager = DeviceManager(transport, MemoryStore(), MemorySink(), topology=topology, clock=lambda: now)
    with manager:
        plugin = gpus(4, numa_nodes=[0, 1])
        connection = transport.connect(plugin)
        manager.admit(a_pod("p", 2), affinity=[NumaNode(1)])
        plugin.set_health(DeviceId("gpu-1"), Health.UNHEALTHY)
        connection.disconnect()
        now += 300
        assert manager.tick().removed == ()
        now += 0.001
        assert manager.tick().removed == (GPU,)
        assert set(manager.topology_hints(a_pod("p", 2), "main")[GPU] or ()) == {
            TopologyHint(NumaMask.of([NumaNode(1)]), preferred=True),
            TopologyHint(NumaMask.of([NumaNode(0), NumaNode(1)]), preferred=False),
        }
        assert manager.topology_hints(a_pod("q", 2), "main")[GPU] == ()
        (status,) = allocated_resources_status(manager.state, a_pod("p", 2))["main"]
        assert status.devices == {"gpu-1": Health.UNHEALTHY, "gpu-3": Health.HEALTHY}


def test_devices_come_from_the_nodes_that_everybody_agrees_on() -> None:
    """A CPU manager that wants node 1 gets devices of node 1."""

    class CpuManager:
        def topology_hints(self, pod: Pod, container: Container | None) -> Hints:
            assert (pod.uid, container and container.name) == ("p", "main")
            return {"cpu": (TopologyHint(NumaMask.of([NumaNode(1)]), preferred=True),)}

    transport = MemoryTransport()
    topology = Topology((NumaNode(0), NumaNode(1)), Policy.RESTRICTED)
    providers = [CpuManager()]
    with DeviceManager(transport, MemoryStore(), MemorySink(), topology=topology, hint_providers=providers) as manager:
        transport.connect(gpus(4, numa_nodes=[0, 1]))
        verdict = manager.admit(a_pod("p", 2))
        assert isinstance(verdict, Admitted)
        assert list(verdict.devices("main")[GPU]) == ["gpu-1", "gpu-3"]
        assert manager.topology_hints(a_pod("p", 2), "main")[GPU] == (
            TopologyHint(NumaMask.of([NumaNode(1)]), preferred=True),
            TopologyHint(NumaMask.of([NumaNode(0), NumaNode(1)]), preferred=False),
        )


def test_pods_that_vanish_while_sources_are_not_ready_keep_their_devices() -> None:
    """A missing pod means nothing before every source has delivered once."""
    transport, pods = MemoryTransport(), MemoryPods(active={PodUid("p")}, running={ContainerKey(PodUid("p"), "main")})
    with DeviceManager(transport, MemoryStore(), MemorySink(), pods=pods) as manager:
        transport.connect(gpus())
        manager.admit(a_pod("p"))
        pods.active.clear()
        pods.ready = False
        manager.update_allocated_devices()
        assert list(manager.state.ledger.allocations) == ["p"]
        pods.ready = True
        manager.update_allocated_devices()
        assert list(manager.state.ledger.allocations) == []


def test_a_pod_source_may_evict_whom_it_finds_gone_while_it_is_asked() -> None:
    class Source(MemoryPods):
        def active_pods(self) -> tuple[PodUid, ...]:
            if not self.active:
                manager.evict([PodUid("p")])
            return super().active_pods()

    transport, pods = MemoryTransport(), Source(active={PodUid("p")})
    manager = DeviceManager(transport, MemoryStore(), MemorySink(), pods=pods)
    with manager:
        transport.connect(gpus())
        assert isinstance(manager.admit(a_pod("p")), Admitted)
        pods.active.clear()
        # In a thread of its own, and a daemon, so that whoever waits for itself does not keep us.
        sweeping = threading.Thread(target=manager.update_allocated_devices, daemon=True)
        sweeping.start()
        sweeping.join(10)
        assert not sweeping.is_alive()
        assert not manager.state.ledger.allocations


def test_starting_twice_is_once_and_stopping_twice_too() -> None:
    """A second start does not read the checkpoint again."""
    store, transport = MemoryStore(), MemoryTransport()
    manager = DeviceManager(transport, store, MemorySink())
    manager.start()
    transport.connect(gpus())
    manager.start()
    assert manager.status.capacity == {GPU: 4}
    manager.stop()
    manager.stop()


def test_a_wait_that_times_out_says_so() -> None:
    """Waiting ends with a sentence."""
    with DeviceManager(MemoryTransport(), MemoryStore(), MemorySink()) as manager:
        assert manager.wait_for(lambda node: not node.knows(GPU), timeout=0) is manager.state
        with pytest.raises(TimeoutError, match="condition not met within 0 s"):
            manager.wait_for(lambda node: node.knows(GPU), timeout=0)


def test_a_question_about_a_container_that_is_not_there_is_an_error_of_the_caller() -> None:
    """Names are not guessed."""
    with DeviceManager(MemoryTransport(), MemoryStore(), MemorySink()) as manager:
        with pytest.raises(KeyError, match="sidecar"):
            manager.allocate(a_pod("p"), "sidecar")
        with pytest.raises(KeyError, match="sidecar"):
            manager.start_container(a_pod("p"), "sidecar")
