"""What a device manager does when something goes wrong, and which errors it raises."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
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
    NodeState,
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
from devicecore.domain import errors
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, decode, encode
from devicecore.domain.health import allocated_resources_status
from devicecore.domain.model import ContainerKey
from devicecore.domain.topology import Hints, NumaMask, TopologyHint
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.testing.faults import DISK_FULL, Fails
from tests.memory_manager import MemoryManager

GPU = resource_name("example.com/gpu")


def gpus(count: int = 4, numa_nodes: Sequence[int] = ()) -> SimulatedPlugin:
    """Return a plugin with this many devices: `gpu-0`, `gpu-1`, ..."""
    return SimulatedPlugin(GPU, simulated_devices("gpu", count, numa_nodes=numa_nodes))


def a_pod(name: str, count: int = 1, resource: str = GPU) -> Pod:
    """Return a pod with one container."""
    return Pod(PodUid(name), containers=(Container("main", {resource: count, "cpu": 2}),))


def test_an_unknown_extended_resource_is_admitted_and_reported() -> None:
    """Native resources are left to the kubelet. Unknown extended resources are reported with their container."""
    with MemoryManager() as manager:
        pod = a_pod("p", 1, "other.com/fpga")
        assert manager.admit(pod) == Admitted(pod, unhandled=(("main", resource_name("other.com/fpga")),))


def test_health_counts_although_it_cannot_be_saved() -> None:
    """A full disk does not hide an unhealthy device, which is included in the next save."""
    with MemoryManager(plugin := gpus()) as manager:
        manager.script.always("save", DISK_FULL)
        plugin.set_health("gpu-0", Health.UNHEALTHY)
        assert manager.status.allocatable == {GPU: 3}
        manager.script.clear("save")
        manager.tick()
        assert manager.store.blob is not None
        assert decode(manager.store.blob).data.registered_devices == {GPU: ("gpu-1", "gpu-2", "gpu-3")}


def test_what_a_sink_refused_is_published_later() -> None:
    """The sink later gets the newest status, and all resources removed since the last status that it accepted."""
    now = [0.0]
    with MemoryManager(gpus(), clock=lambda: now[0]) as manager:
        manager.script.always("publish", Fails("connection refused"))
        manager.connections[0].disconnect()
        now[0] = 301.0
        manager.tick()
        manager.script.clear("publish")
        manager.tick()
        assert manager.sink.published[-1] == NodeStatus({}, {}, (GPU,))
        told = len(manager.sink.published)
        manager.tick()
        assert len(manager.sink.published) == told


def test_a_corrupt_checkpoint_is_set_aside_and_reported() -> None:
    """Nothing is restored from the checkpoint, and nothing overwrites the file.

    `restored` says what is wrong and where the file is.
    """
    blob = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}'
    with MemoryManager(gpus(), store=MemoryStore(blob)) as manager:
        assert manager.store.aside == [blob]
        problem = manager.restored.problem
        assert isinstance(problem, errors.CorruptCheckpointError)
        assert (problem.stored, problem.computed) == (1, 3467439661)
        assert manager.restored.set_aside == "aside[0]"


def test_a_checkpoint_that_cannot_be_read_or_set_aside_prevents_a_start(tmp_path: Path) -> None:
    """The error says both what is wrong with the checkpoint and why it is still there."""
    both = r"^failed to set aside .*use FileStore\.in_directory\..*failed to read .*Is a directory$"
    with pytest.raises(errors.StoreError, match=both):
        DeviceManager(MemoryTransport(), FileStore(tmp_path), MemorySink()).start()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("pod-1", "expected several values, such as a tuple, got 'pod-1'"),
        ([a_pod("p")], r"expected str, got Pod\(uid='p'.*"),
        (a_pod("p"), r"expected several values, such as a tuple, got Pod\(uid='p'.*"),
        ([1], "expected str, got 1"),
    ],
    ids=["a uid", "a list of pods", "a pod", "a number"],
)
def test_evict_says_why_its_argument_is_wrong(argument: Iterable[PodUid], message: str) -> None:
    whole = f"^DeviceManager.evict: the uids of pods, such as \\[pod.uid\\]: {message}$"
    with MemoryManager() as manager, pytest.raises(TypeError, match=whole):
        manager.evict(argument)


def test_an_entry_whose_receipt_cannot_be_read_is_skipped_and_reported() -> None:
    """All other entries are kept."""
    rows = ("p", "gpu-0", b"\xff"), ("q", "gpu-1", b"")
    entries = tuple(PodDevicesEntry(pod, "c", GPU, {0: (device,)}, receipt) for pod, device, receipt in rows)
    store = MemoryStore(encode(CheckpointData(entries, {GPU: ()})))
    with MemoryManager(store=store) as manager:
        assert list(manager.state.ledger.allocations) == ["q"]
        assert (manager.restored.format, manager.restored.allocations) == (2, 1)
        assert "example.com/gpu of container c of pod p" in manager.restored.skipped[0]


def test_a_pod_is_not_ready_between_registration_and_first_list() -> None:
    """Until the first list arrives, no pod is admitted without its devices."""

    class Shy(SimulatedPlugin):
        def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
            verdicts.append(manager.admit(a_pod("p")))
            return super().subscribe(changed)

    verdicts: list[Verdict] = []
    with MemoryManager() as manager:
        manager.transport.connect(Shy(GPU, simulated_devices("gpu", 1)))
        assert isinstance(verdicts[0], NotReady)
        assert str(verdicts[0]) == "cannot allocate unregistered device example.com/gpu"
        assert isinstance(manager.admit(a_pod("p")), Admitted)


def test_the_budget_is_for_the_whole_admission() -> None:
    """Each call meets its deadline, but the two together take too long. The pod is refused, and nothing is in use."""

    class Slow(SimulatedPlugin):
        def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
            now[0] += 20.0
            return super().allocate(devices)

    now = [0.0]
    plugin = Slow(GPU, simulated_devices("gpu", 4))
    with MemoryManager(plugin, admission_budget=30.0, clock=lambda: now[0]) as manager:
        before, blob = manager.state, manager.store.blob
        main = Container("main", {GPU: 1})
        verdict = manager.admit(Pod(PodUid("q"), containers=(main, evolve(main, name="helper"))))
        assert str(verdict) == 'admission of pod "q" took longer than 30 seconds'
        assert (manager.state.ledger, manager.store.blob) == (before.ledger, blob)


def test_a_plugin_without_healthy_devices_is_a_refusal() -> None:
    """If no device is healthy, the pod is refused. The verdict is `NotReady` only if there is no list."""
    with MemoryManager(SimulatedPlugin(GPU, simulated_devices("gpu", 1, unhealthy=[0]))) as manager:
        assert isinstance(manager.admit(a_pod("q")), Refused)


class FailsPreStart(DevicePlugin):
    """A plugin that requires PreStartContainer, but fails when called."""

    resource = GPU
    options = PluginOptions(pre_start_required=True)

    def devices(self) -> Sequence[Device]:
        return simulated_devices("gpu", 2)

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return ContainerAllocateResponse({"N": str(len(devices))})

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        message = "not today"
        raise ValueError(message)


def test_a_start_that_the_plugin_refuses_gives_no_options() -> None:
    """PreStartContainer is called before the options are read."""
    with MemoryManager(FailsPreStart()) as manager:
        with pytest.raises(errors.NoDevicesAllocatedError, match="no devices found allocated in local cache for pod p"):
            manager.start_container(a_pod("p"), "main")
        manager.admit(a_pod("p"))
        with pytest.raises(errors.PluginCallError, match="PreStartContainer rpc failed with err: not today"):
            manager.start_container(a_pod("p"), "main")


def test_a_container_gets_what_it_missed_when_it_starts() -> None:
    """A container whose pod was admitted before the plugin registered gets devices at its start (kubelet.md 7.1)."""
    with MemoryManager(pods=MemoryPods(active={PodUid("p")})) as manager:
        assert manager.admit(a_pod("p")) == Admitted(a_pod("p"), unhandled=(("main", GPU),))
        assert manager.start_container(a_pod("p"), "main") is None
        manager.transport.connect(gpus())
        options = manager.start_container(a_pod("p"), "main")
        assert options is not None
        assert options.envs == {"EXAMPLE_COM_GPU_DEVICES": "gpu-0"}


def test_after_a_restart_a_start_does_not_wait_for_the_plugin() -> None:
    """Until the plugin is back, its options are unknown, and a kubelet continues without them (kubelet.md 7.2)."""
    now = [0.0]
    with MemoryManager(FailsPreStart()) as manager:
        manager.admit(a_pod("p"))
    with MemoryManager(store=manager.store, clock=lambda: now[0]) as manager:
        options = manager.start_container(a_pod("p"), "main")
        assert options is not None
        assert options.envs == {"N": "1"}
        now[0] = 301.0
        assert manager.tick().removed == (GPU,)
        with pytest.raises(errors.EndpointNotFoundError, match="endpoint not found in cache for a registered resource"):
            manager.start_container(a_pod("p"), "main")


def test_a_lost_plugin_that_requires_pre_start_prevents_a_start() -> None:
    """The container needs a call that no plugin is there to answer."""
    with MemoryManager(FailsPreStart()) as manager:
        manager.admit(a_pod("p"))
        manager.connections[0].disconnect()
        failed = "device plugin PreStartContainer rpc failed with err: endpoint example.com/gpu has been stopped"
        with pytest.raises(errors.PluginCallError, match=f"^{failed}$"):
            manager.start_container(a_pod("p"), "main")


def test_conflicting_answers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If two plugins set a variable to different values, the first value is kept, and the conflict is logged."""
    gpu = SimulatedPlugin(GPU, simulated_devices("gpu", 1), "DEVICES")
    with MemoryManager(gpu, SimulatedPlugin("example.com/nic", simulated_devices("nic", 1), "DEVICES")) as manager:
        pod = Pod(PodUid("p"), containers=(Container("main", {GPU: 1, "example.com/nic": 1}),))
        manager.admit(pod)
        options = manager.start_container(pod, "main")
        assert options is not None
        assert options.envs == {"DEVICES": "gpu-0"}
        told = "environment variable DEVICES stays 'gpu-0', because 'nic-0' from example.com/nic came later"
        assert told in caplog.text


def test_bad_registrations_are_refused_with_a_sentence() -> None:
    """Invalid names and sockets in use are refused."""
    metrics, plugin = MemoryMetrics(), gpus()
    with MemoryManager(metrics=metrics) as manager:
        manager.transport.connect(plugin, "gpu.sock")
        with pytest.raises(errors.PluginAlreadyConnectedError, match=r"device plugin already connected: gpu\.sock"):
            manager.transport.connect(plugin, "gpu.sock")
        plugin.resource = type(plugin.resource)("cpu")
        with pytest.raises(errors.InvalidResourceNameError, match='the ResourceName "cpu" is invalid'):
            manager.transport.connect(plugin)
        manager.admit(a_pod("p"))
    assert metrics.registrations == {GPU: 2, "cpu": 1}
    assert len(metrics.allocations[GPU]) == 1
    assert [failed for _, failed in metrics.admissions] == [False]


@pytest.mark.parametrize(("policy", "fails"), [(Policy.NONE, False), (Policy.RESTRICTED, True)])
def test_an_admission_counts_as_failed_only_under_a_policy(policy: Policy, *, fails: bool) -> None:
    """A kubelet counts errors of the topology manager. Without a policy, there are no such errors."""
    metrics, times = MemoryMetrics(), iter(range(100))
    topology = Topology((NumaNode(0),), policy)
    with MemoryManager(gpus(), metrics=metrics, topology=topology, clock=lambda: float(next(times))) as manager:
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
    """There are two devices on each of two NUMA nodes, so three never fit on one node."""
    topology = Topology((NumaNode(0), NumaNode(1)), policy, scope)
    with MemoryManager(gpus(4, numa_nodes=[0, 1]), topology=topology) as manager:
        verdict = manager.admit(a_pod("p", count))
        assert isinstance(verdict, Admitted) is admitted
        if isinstance(verdict, Refused):
            assert isinstance(verdict.error, errors.TopologyAffinityError)
            assert str(verdict) == "Resources cannot be allocated with Topology locality"
        else:
            assert len(verdict.devices("main")[GPU]) == count  # type: ignore[union-attr]  # a NotReady fails above


def test_a_topology_refusal_names_its_container() -> None:
    """The refusal names the container whose hints do not fit, not the container before it."""
    topology = Topology((NumaNode(0), NumaNode(1)), Policy.SINGLE_NUMA_NODE)
    with MemoryManager(gpus(4, numa_nodes=[0, 1]), topology=topology) as manager:
        first = manager.admit(a_pod("p", 3))
        second = manager.admit(Pod(PodUid("q"), containers=(Container("a", {GPU: 1}), Container("b", {GPU: 3}))))
        assert [verdict.container for verdict in (first, second) if isinstance(verdict, Refused)] == ["main", "b"]


def test_a_refusal_has_the_reason_and_message_of_a_kubelet() -> None:
    """A kubelet writes the reason and the message into the pod's status (kubelet.md 5.1)."""
    topology = Topology((NumaNode(0), NumaNode(1)), Policy.SINGLE_NUMA_NODE)
    with MemoryManager(gpus(2, numa_nodes=[0, 1]), topology=topology) as manager:
        apart = manager.admit(a_pod("p", 2))
    with MemoryManager(SimulatedPlugin(GPU, [Device(DeviceId("a"), Health.UNHEALTHY)])) as manager:
        ill = manager.admit(a_pod("p"))
    assert isinstance(apart, Refused)
    assert isinstance(ill, Refused)
    assert apart.reason == "TopologyAffinityError"
    assert apart.message == "Resources cannot be allocated with Topology locality"
    assert ill.reason == "UnexpectedAdmissionError"
    assert ill.message == f"Allocate failed due to {ill.error}, which is unexpected"


def test_containers_admitted_one_by_one_share_the_affinity_of_their_pod() -> None:
    """Under the scope `pod`, a pod's affinity is chosen once. After the pod is gone, it is chosen again."""
    topology = Topology((NumaNode(0), NumaNode(1)), Policy.SINGLE_NUMA_NODE, Scope.POD)
    pod = Pod(PodUid("p"), containers=(Container("a", {GPU: 1}), Container("b", {GPU: 1})))
    with MemoryManager(gpus(4, numa_nodes=[0, 1]), topology=topology) as manager:
        for devices, neighbor in ([("gpu-0",), ("gpu-2",)], "gpu-0"), ([("gpu-1",), ("gpu-3",)], None):
            verdicts = [manager.allocate(pod, name) for name in ("a", "b")]
            assert [tuple(manager.state.ledger.allocations[pod.uid][n].devices) for n in (0, 1)] == devices
            assert all(isinstance(verdict, Admitted) for verdict in verdicts)
            manager.evict([pod.uid])
            if neighbor:
                assert isinstance(manager.admit(a_pod("q")), Admitted)


def test_an_empty_affinity_differs_from_no_affinity() -> None:
    """With an empty affinity, any device will do, and devices with topology come first, as in a kubelet."""
    devices = [Device(DeviceId("a")), Device(DeviceId("b"), topology=(NumaNode(0),))]
    with MemoryManager(SimulatedPlugin(GPU, devices)) as manager:
        verdict = manager.admit(a_pod("p"), affinity=())
        assert isinstance(verdict, Admitted)
        assert list(verdict.devices("main")[GPU]) == ["b"]


def test_topology_and_health_outlast_the_grace_period() -> None:
    """Devices that a container still holds keep the NUMA nodes and the health that were listed last."""
    now = 0.0
    plugin, topology = gpus(4, numa_nodes=[0, 1]), Topology((NumaNode(0), NumaNode(1)))
    with MemoryManager(plugin, topology=topology, clock=lambda: now) as manager:
        manager.admit(a_pod("p", 2), affinity=[NumaNode(1)])
        plugin.set_health(DeviceId("gpu-1"), Health.UNHEALTHY)
        manager.connections[0].disconnect()
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


def test_devices_come_from_the_numa_nodes_that_all_hint_providers_agree_on() -> None:
    """If a CPU manager prefers NUMA node 1, the devices come from there."""

    class CpuManager:
        def topology_hints(self, pod: Pod, container: Container | None) -> Hints:
            assert (pod.uid, container and container.name) == ("p", "main")
            return {"cpu": (TopologyHint(NumaMask.of([NumaNode(1)]), preferred=True),)}

    topology = Topology((NumaNode(0), NumaNode(1)), Policy.RESTRICTED)
    with MemoryManager(gpus(4, numa_nodes=[0, 1]), topology=topology, hint_providers=[CpuManager()]) as manager:
        verdict = manager.admit(a_pod("p", 2))
        assert isinstance(verdict, Admitted)
        assert list(verdict.devices("main")[GPU]) == ["gpu-1", "gpu-3"]
        assert manager.topology_hints(a_pod("p", 2), "main")[GPU] == (
            TopologyHint(NumaMask.of([NumaNode(1)]), preferred=True),
            TopologyHint(NumaMask.of([NumaNode(0), NumaNode(1)]), preferred=False),
        )


def test_pods_that_vanish_while_sources_are_not_ready_keep_their_devices() -> None:
    """Until every source has delivered once, a pod that is not listed may still exist."""
    pods = MemoryPods(active={PodUid("p")}, running={ContainerKey(PodUid("p"), "main")})
    with MemoryManager(gpus(), pods=pods) as manager:
        manager.admit(a_pod("p"))
        pods.active.clear()
        pods.ready = False
        manager.update_allocated_devices()
        assert list(manager.state.ledger.allocations) == ["p"]
        pods.ready = True
        manager.update_allocated_devices()
        assert list(manager.state.ledger.allocations) == []


def test_a_pod_source_may_call_evict_while_it_is_called() -> None:
    class Source(MemoryPods):
        def active_pods(self) -> tuple[PodUid, ...]:
            if not self.active:
                manager.evict([PodUid("p")])
            return super().active_pods()

    pods = Source(active={PodUid("p")})
    with MemoryManager(gpus(), pods=pods) as manager:
        assert isinstance(manager.admit(a_pod("p")), Admitted)
        pods.active.clear()
        # A daemon thread, so that a call that waits for itself does not keep the tests from ending.
        sweeping = threading.Thread(target=manager.update_allocated_devices, daemon=True)
        sweeping.start()
        sweeping.join(60)
        assert not sweeping.is_alive()
        assert not manager.state.ledger.allocations


@pytest.mark.parametrize("method", ["allocate", "options", "start_container", "topology_hints"])
def test_an_unknown_container_is_named_with_those_that_exist(method: str) -> None:
    with MemoryManager() as manager, pytest.raises(errors.ContainerNotFoundError, match=r"misspelled.*main"):
        getattr(manager, method)(a_pod("p"), "misspelled")


def test_looking_changes_nothing() -> None:
    """`status`, `options` and `topology_hints` do not call plugins, and neither save nor publish anything."""
    now = 0.0
    pods = MemoryPods(active={PodUid("p")})
    with MemoryManager(FailsPreStart(), pods=pods, clock=lambda: now) as manager:
        manager.admit(a_pod("p"))
        manager.connections[0].disconnect()
        pods.active.clear()
        now = 301.0
        state, blob, published = manager.state, manager.store.blob, len(manager.sink.published)
        assert manager.status.capacity == {GPU: 2}
        options = manager.options(a_pod("p"), "main")
        assert options is not None
        assert options.envs == {"N": "1"}
        assert manager.options(a_pod("q"), "main") is None
        manager.topology_hints(a_pod("p"))
        assert (manager.state, manager.store.blob, len(manager.sink.published)) == (state, blob, published)
        assert manager.tick().removed == (GPU,)


def test_a_condition_may_call_the_manager() -> None:
    """The condition is evaluated without holding a lock. If the state's lock were held, every thread would hang."""
    manager = MemoryManager()

    def condition(_: NodeState) -> bool:
        manager.evict([PodUid("p")])
        return isinstance(manager.admit(Pod(PodUid("q"))), Admitted)

    with manager:
        waiting = threading.Thread(target=manager.wait_for, args=(condition, 60), daemon=True)
        waiting.start()
        waiting.join(60)
        assert not waiting.is_alive()


def test_the_repr_is_a_line_with_counts() -> None:
    with MemoryManager(gpus(5000)) as manager:
        manager.admit(a_pod("p", 3))
        running = "<DeviceManager running: 1 resource, 5,000 devices, 1 pod with devices>"
        assert repr(manager) == running
    assert repr(manager) == running.replace("running", "stopped")


def test_the_library_logs_nothing_unless_the_program_asks_for_it() -> None:
    """Otherwise, Python would print warnings to stderr in a program without a handler."""
    script = "import devicecore, logging; logging.getLogger('devicecore.manager').error('not to be seen')"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr == ""


def test_pods_that_the_source_no_longer_lists_are_removed_from_the_file() -> None:
    pods = MemoryPods(active={PodUid("u")})
    with MemoryManager(SimulatedPlugin(GPU, simulated_devices("gpu", 1)), pods=pods) as manager:
        manager.admit(Pod(PodUid("u"), containers=(Container("main", {GPU: 1}),)))
        assert decode(manager.store.blob or b"").data.entries
        pods.active.clear()
        manager.update_allocated_devices()
        assert not decode(manager.store.blob or b"").data.entries
