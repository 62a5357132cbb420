"""Races that were defects of a kubelet (such tests have the issue's number in their names) or could be ours.

Law: each test fixes the order of two operations with real threads and with gates that suspend calls to the plugins, the
store and the sink. No test sleeps, and no result depends on the speed of a thread.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Self, TypeVar

import pytest

from devicecore import (
    Admitted,
    Container,
    DeviceId,
    DeviceManager,
    Health,
    NotReady,
    PluginOptions,
    Pod,
    PodUid,
    Refused,
    ResourceName,
    Verdict,
)
from devicecore.adapters.memory import MemoryConnection, MemoryPods, MemorySink, MemoryStore, MemoryTransport
from devicecore.domain import errors
from devicecore.domain.checkpoint import checkpoint_of, decode
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.events import DevicesReported, Event, PluginLost
from devicecore.domain.node_state import NodeState
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.testing import faults

T = TypeVar("T")

GPU, NIC = ResourceName("example.com/gpu"), ResourceName("example.com/nic")
TIMEOUT = 60.0  # seconds of real time after which a test that hangs fails


class PreferringPlugin(SimulatedPlugin):
    """A plugin that offers GetPreferredAllocation and prefers the first devices."""

    options = PluginOptions(get_preferred_allocation_available=True)

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        return tuple(available)[:size]


def gpus(count: int) -> SimulatedPlugin:
    return SimulatedPlugin(GPU, simulated_devices("gpu", count))


def nics(count: int) -> SimulatedPlugin:
    return SimulatedPlugin(NIC, simulated_devices("nic", count))


def pod(uid: str, *limits: Mapping[str, int]) -> Pod:
    """Return a pod with a container for each of `limits`. The default is one container that requests a GPU."""
    one_gpu: tuple[Mapping[str, int], ...] = ({GPU: 1},)
    containers = [Container(f"c{number}", limit) for number, limit in enumerate(limits or one_gpu)]
    return Pod(PodUid(uid), containers=tuple(containers))


def shortage(requested: int, available: int) -> str:
    return str(errors.NotEnoughDevicesError(GPU, requested, available))


class Rig:
    """Threads, and a manager whose calls to ports can be suspended. Every admitted pod is active until `end_pod`."""

    def __init__(
        self, *plugins: SimulatedPlugin, store: MemoryStore | None = None, pods: MemoryPods | None = None
    ) -> None:
        self.script = faults.Script()
        self.clock = faults.ManualClock()
        self.network = MemoryTransport()
        self.plugins = plugins
        self.store = MemoryStore() if store is None else store
        self.sink = MemorySink()
        self.pods = MemoryPods() if pods is None else pods
        self.transport = faults.FaultyTransport(self.network, self.script, self.clock)
        self.manager = DeviceManager(
            self.transport,
            faults.FaultyStore(self.store, self.script),
            faults.FaultySink(self.sink, self.script),
            pods=self.pods,
            admission_budget=30.0,
            clock=self.clock,
        )
        self.manager._saver.in_background = False  # noqa: SLF001 - the test decides which thread calls the store
        self._threads = ThreadPoolExecutor(thread_name_prefix="rig")
        self._gates: list[faults.Gate] = []

    def __enter__(self) -> Self:
        self.manager.start()
        for plugin in self.plugins:
            self.network.connect(plugin)
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self._gates:
            gate.release()
        self._threads.shutdown()
        self.manager.stop()

    @property
    def node(self) -> NodeState:
        return self.manager.state

    def admit(self, wanted: Pod) -> Verdict:
        """List a pod as active, and admit it in this thread."""
        self.pods.active.add(wanted.uid)
        return self.manager.admit(wanted)

    def in_thread(self, action: Callable[..., T], *arguments: object) -> "Future[T]":
        """Call `action` in another thread."""
        return self._threads.submit(action, *arguments)

    def end_pod(self, uid: str) -> None:
        """End a pod without telling the manager."""
        self.pods.active.discard(PodUid(uid))

    @contextmanager
    def suspended(
        self,
        method: str,
        action: Callable[..., T],
        *arguments: object,
        then: Sequence[faults.Fault] = (),
        answered: bool = False,
    ) -> Iterator["Future[T]"]:
        """Call `action` in another thread, and suspend its call to `method` until the block ends.

        The thread is suspended before the call or, if `answered` is set, after it.
        """
        gate = faults.Gate(TIMEOUT, after=answered)
        self._gates.append(gate)
        self.script.on(method, gate, *then)
        future = self.in_thread(action, *arguments)
        assert gate.reached.wait(TIMEOUT)
        yield future
        assert not future.done()
        gate.release()
        future.exception(TIMEOUT)

    def assert_waiting(self, future: "Future[T]") -> "Future[T]":
        """Check that the thread is still blocked after 0.2 s. On a slow machine, this check can only miss a defect."""
        done, _ = wait([future], timeout=0.2)
        assert not done
        return future

    def check(self) -> None:
        """Check that no device is shared or reserved, and that the file matches the state in memory."""
        ledger = self.node.ledger
        given = [(held.resource, device) for held in ledger for device in held.devices]
        assert len(given) == len(set(given))
        assert ledger.reservations == ()
        blob = self.store.blob
        assert blob is not None
        data = decode(blob).verified()
        assert data.entries == checkpoint_of(self.node).entries
        assert data.registered_devices == checkpoint_of(self.node).registered_devices


def devices(verdict: Verdict, container: str = "c0", resource: ResourceName = GPU) -> DeviceSet:
    assert isinstance(verdict, Admitted), verdict
    return verdict.devices(container)[resource]


# --- two pods, one device: kubernetes#137534 --------------------------------------------------------------------------

Interruption = Callable[[Rig, MemoryConnection], object]


def collect_garbage(rig: Rig, _: MemoryConnection) -> None:
    rig.end_pod("old")
    rig.manager.update_allocated_devices()


def evict(rig: Rig, _: MemoryConnection) -> None:
    rig.manager.evict([PodUid("old")])
    rig.end_pod("old")


def fail_to_allocate(rig: Rig, _: MemoryConnection) -> None:
    rig.end_pod("old")
    rig.script.on("Allocate", faults.Fails("no"))
    assert isinstance(rig.admit(pod("failing")), Refused)


def fail_to_save(rig: Rig, _: MemoryConnection) -> None:
    rig.end_pod("old")
    rig.script.on("save", faults.DISK_FULL)
    verdict = rig.admit(pod("failing"))
    assert isinstance(verdict, Refused)
    assert isinstance(verdict.error, errors.StoreError)


def answer_for_nothing(rig: Rig, _: MemoryConnection) -> None:
    rig.end_pod("old")
    rig.script.on("Allocate", faults.AnswersNothing())
    assert isinstance(rig.admit(pod("failing")), Refused)


def flip_the_health(rig: Rig, connection: MemoryConnection) -> None:
    rig.end_pod("old")
    plugin = connection.plugin
    assert isinstance(plugin, SimulatedPlugin)
    plugin.set_health("gpu-1", Health.UNHEALTHY)
    plugin.set_health("gpu-1", Health.HEALTHY)


def reconnect(rig: Rig, connection: MemoryConnection) -> None:
    rig.end_pod("old")
    connection.disconnect()
    rig.network.connect(gpus(2), "new.sock")


def replace_the_plugin(rig: Rig, connection: MemoryConnection) -> None:
    rig.end_pod("old")
    rig.network.connect(gpus(2), "new.sock")
    connection.disconnect()


def publish(rig: Rig, _: MemoryConnection) -> None:
    rig.end_pod("old")
    rig.manager.tick()


@pytest.mark.parametrize(
    "meanwhile",
    [
        *(collect_garbage, evict, fail_to_allocate, fail_to_save, answer_for_nothing, flip_the_health, reconnect),
        *(replace_the_plugin, publish),
    ],
)
def test_137534_a_reserved_device_goes_to_no_other_pod(meanwhile: Interruption) -> None:
    """No operation that rebuilds or frees the devices in use drops a reservation."""
    with Rig() as rig:
        connection = rig.network.connect(gpus(2))
        assert list(devices(rig.admit(pod("old")))) == ["gpu-0"]
        with rig.suspended("Allocate", rig.admit, pod("first"), answered=True) as first:
            meanwhile(rig, connection)
            too_many = rig.admit(pod("both", {GPU: 2}))
            assert isinstance(too_many, Refused)
            assert str(too_many) == shortage(2, 1)
            assert list(devices(rig.admit(pod("second")))) == ["gpu-0"]
        assert list(devices(first.result())) == ["gpu-1"]
        rig.check()


def test_137534_two_pods_get_the_same_preference() -> None:
    """After the plugin's answer, the manager chooses again, and reserves the devices in the same step."""
    with Rig(PreferringPlugin(GPU, simulated_devices("gpu", 2))) as rig:
        with rig.suspended("GetPreferredAllocation", rig.admit, pod("first")) as first:
            assert list(devices(rig.admit(pod("second")))) == ["gpu-0"]
        assert list(devices(first.result())) == ["gpu-1"]
        rig.check()


def test_137534_the_last_device_is_taken_while_the_plugin_is_called() -> None:
    """The pod whose plugin was being called is refused and holds nothing."""
    with Rig(PreferringPlugin(GPU, simulated_devices("gpu", 1))) as rig:
        with rig.suspended("GetPreferredAllocation", rig.admit, pod("first")) as first:
            assert list(devices(rig.admit(pod("second")))) == ["gpu-0"]
        assert str(first.result()) == shortage(1, 0)
        rig.check()


def test_a_plugin_lost_before_it_answers_a_preference_refuses_the_pod() -> None:
    """The message is the same as for any other failed GetPreferredAllocation call (kubelet.md 5.5)."""
    with Rig() as rig:
        connection = rig.network.connect(PreferringPlugin(GPU, simulated_devices("gpu", 2)))
        rig.script.on("GetPreferredAllocation", faults.Meanwhile(connection.disconnect))
        said = "device plugin GetPreferredAllocation rpc failed with err: endpoint example.com/gpu has been stopped"
        assert str(rig.admit(pod("p"))) == said
        rig.check()


def test_one_pod_that_is_admitted_twice_at_once_is_admitted_once() -> None:
    """Admissions of the same pod run one after another, and the second one returns the devices of the first."""
    with Rig(gpus(4)) as rig:
        asked: list[str] = []
        rig.script.always("Allocate", faults.Meanwhile(lambda: asked.append("Allocate")))
        with rig.suspended("Allocate", rig.admit, pod("twice")) as first:
            second = rig.assert_waiting(rig.in_thread(rig.admit, pod("twice")))
        assert first.result() == second.result(TIMEOUT)
        assert asked == ["Allocate"]
        rig.check()


# --- half an admission: kubernetes#130145, #137317 --------------------------------------------------------------------


@pytest.mark.parametrize("fault", [faults.Fails("no"), faults.NeverAnswers(), faults.AnswersNothing()], ids=repr)
@pytest.mark.parametrize("at", range(1, 5))
def test_130145_a_half_failed_admission_leaks_nothing(fault: faults.Fault, at: int) -> None:
    """If any Allocate call of an admission fails, nothing changes, and another pod can get all devices."""
    greedy = pod("greedy", {GPU: 2, NIC: 1}, {GPU: 1, NIC: 1})
    with Rig(gpus(3), nics(2)) as rig:
        before, blob, published = rig.node, rig.store.blob, len(rig.sink.published)
        rig.script.on("Allocate", fault, nth=at)
        assert isinstance(rig.admit(greedy), Refused)
        assert (rig.node, rig.store.blob, len(rig.sink.published)) == (before, blob, published)
        verdict = rig.admit(pod("next", {GPU: 3, NIC: 2}))
        assert (len(devices(verdict)), len(devices(verdict, resource=NIC))) == (3, 2)
        rig.check()


def test_137317_a_failing_preference_leaks_nothing() -> None:
    """If GetPreferredAllocation fails for the second container, the first container's devices are free again."""
    with Rig(PreferringPlugin(GPU, simulated_devices("gpu", 4))) as rig:
        before = rig.node
        rig.script.on("GetPreferredAllocation", faults.Fails("no"), nth=2)
        refused = rig.admit(pod("half", {GPU: 1}, {GPU: 1}))
        assert str(refused) == "device plugin GetPreferredAllocation rpc failed with err: no"
        assert rig.node == before
        assert len(devices(rig.admit(pod("next", {GPU: 4})))) == 4


def test_130145_what_others_got_meanwhile_stays_when_an_admission_fails() -> None:
    """Only the reservations of the failed admission are released, even if another pod was admitted in the meantime."""
    with Rig(gpus(3)) as rig:
        failing = pod("failing", {GPU: 1}, {GPU: 1})
        rig.script.on("Allocate", faults.Fails("no"), nth=3)
        with rig.suspended("Allocate", rig.admit, failing) as half:
            assert list(devices(rig.admit(pod("other")))) == ["gpu-1"]
        assert isinstance(half.result(), Refused)
        assert [(held.key.pod, list(held.devices)) for held in rig.node.ledger] == [("other", ["gpu-1"])]
        rig.check()


def test_140929_devices_that_cannot_be_saved_are_not_allocated() -> None:
    """The devices are reserved during the save. Once the save has failed, they are free in memory and in the file."""
    with Rig(gpus(1)) as rig:
        before = rig.node
        with rig.suspended("save", rig.admit, pod("first"), then=[faults.DISK_FULL]) as first:
            assert isinstance(rig.admit(pod("second")), Refused)
        assert isinstance(first.result(), Refused)
        assert rig.node == before
        rig.check()


# --- a stuck plugin: kubernetes#117435 --------------------------------------------------------------------------------


def test_117435_a_stuck_plugin_delays_no_other_pod() -> None:
    """The manager holds no lock while it calls a plugin, so it admits other pods, even for the same resource."""
    with Rig(gpus(4), nics(1)) as rig:
        with rig.suspended("Allocate", rig.admit, pod("stuck")) as stuck:
            assert isinstance(rig.admit(pod("plain", {"cpu": 1})), Admitted)
            assert list(devices(rig.admit(pod("other", {NIC: 1})), resource=NIC)) == ["nic-0"]
            assert list(devices(rig.admit(pod("same", {GPU: 1})))) == ["gpu-1"]
            assert rig.manager.status.capacity == {GPU: 4, NIC: 1}
            assert rig.manager.start_container(pod("same", {GPU: 1}), "c0") is not None
        assert list(devices(stuck.result())) == ["gpu-0"]
        rig.check()


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation"])
def test_117435_an_answer_after_the_budget_is_never_taken(method: str) -> None:
    """The plugin answers after the deadline of the admission, so the pod is refused and the devices are free."""
    with Rig(PreferringPlugin(GPU, simulated_devices("gpu", 1))) as rig:
        before, blob = rig.node, rig.store.blob
        with rig.suspended(method, rig.admit, pod("late")) as late:
            rig.clock.advance(31.0)
        verdict = late.result()
        assert isinstance(verdict, Refused)
        assert isinstance(verdict.error, errors.AdmissionTimeoutError)
        assert str(verdict) == 'admission of pod "late" took longer than 30 seconds'
        assert (rig.node, rig.store.blob) == (before, blob)
        assert list(devices(rig.admit(pod("next")))) == ["gpu-0"]


# --- late disconnects: kubernetes#121994, #135437 ---------------------------------------------------------------------


def test_121994_a_late_disconnect_does_not_touch_the_next_instance() -> None:
    """An event belongs to an instance, not to a resource.

    Here, the old instance's event arrives while the new instance is being called.
    """
    with Rig() as rig:
        old = rig.network.connect(gpus(2), "old.sock")
        disconnect = faults.Delayed()
        rig.script.on("PluginLost", disconnect)
        old.disconnect()
        rig.network.connect(gpus(2), "new.sock")
        with rig.suspended("Allocate", rig.admit, pod("first")) as first:
            disconnect.release()
            assert rig.manager.status.allocatable == {GPU: 2}
            assert isinstance(rig.admit(pod("second")), Admitted)
        assert isinstance(first.result(), Admitted)
        rig.check()


def test_135437_events_of_an_old_instance_on_the_same_socket_change_nothing() -> None:
    """Two instances on the same path are distinct, so late events from the first one do not affect the second."""
    with Rig() as rig:
        old = rig.network.connect(gpus(2), "gpu.sock")
        old.disconnect()
        rig.network.connect(gpus(2), "gpu.sock")
        with rig.suspended("Allocate", rig.admit, pod("first")) as first:
            rig.transport.notify(DevicesReported(old.id, ()))
            rig.transport.notify(PluginLost(old.id))
            assert rig.manager.status.allocatable == {GPU: 2}
        assert isinstance(first.result(), Admitted)
        rig.check()


def test_124716_a_socket_in_use_is_not_registered_again() -> None:
    """A second registration on the socket is refused. The first instance, which is being called, stays connected."""
    with Rig() as rig:
        rig.network.connect(gpus(2), "gpu.sock")
        with rig.suspended("Allocate", rig.admit, pod("first")) as first:
            with pytest.raises(errors.PluginAlreadyConnectedError):
                rig.network.connect(gpus(1), "gpu.sock")
            assert rig.manager.status.allocatable == {GPU: 2}
        assert isinstance(first.result(), Admitted)


def test_a_plugin_lost_while_it_is_called_changes_no_other_allocation() -> None:
    """The plugin's devices are no longer allocatable, and the admission in progress fails.

    Existing allocations stay.
    """
    with Rig() as rig:
        connection = rig.network.connect(gpus(3))
        kept = rig.admit(pod("kept"))
        with rig.suspended("Allocate", rig.admit, pod("first"), then=[faults.Fails("connection reset")]) as first:
            connection.disconnect()
            assert rig.manager.status.allocatable == {GPU: 0}
        assert isinstance(first.result(), Refused)
        assert isinstance(kept, Admitted)
        assert list(rig.node.ledger) == list(kept.allocations)
        rig.check()


def test_a_resource_that_expires_during_an_admission_is_still_required() -> None:
    """The manager decides at the start of an admission which requests it will handle, so the pod is refused."""
    with Rig(gpus(1)) as rig:
        rig.network.connect(nics(1)).disconnect()
        rig.clock.advance(290.0)
        with rig.suspended("Allocate", rig.admit, pod("first", {GPU: 1}, {NIC: 1})) as first:
            rig.clock.advance(20.0)
            assert rig.manager.tick().removed == (NIC,)
        verdict = first.result()
        assert isinstance(verdict, Refused)
        assert str(verdict) == "cannot allocate unregistered device example.com/nic"
        rig.check()


# --- restarts: kubernetes#109595, #118559, #138446 --------------------------------------------------------------------


def test_109595_after_a_reboot_a_pod_waits_for_its_plugin() -> None:
    """While no plugin is registered, the verdict is `NotReady`.

    Once the plugin is back, the pod gets the same devices.
    """
    with Rig(gpus(4)) as rig:
        had = devices(rig.admit(pod("first", {GPU: 2})))
    with Rig(store=rig.store, pods=MemoryPods(active={PodUid("first")}, ready=False)) as rig:
        for waiting in (pod("first", {GPU: 2}), pod("new")):
            verdict = rig.admit(waiting)
            assert isinstance(verdict, NotReady)
            assert (verdict.resource, verdict.container) == (GPU, "c0")
            assert str(verdict) == "no healthy devices present; cannot allocate unhealthy devices example.com/gpu"
        rig.pods.ready = True
        rig.network.connect(gpus(4))
        assert devices(rig.admit(pod("first", {GPU: 2}))) == had
        rig.check()


def test_118559_a_pod_that_runs_survives_a_restart() -> None:
    """A running pod is admitted without its plugin, but a new pod has to wait for the plugin."""
    with Rig(gpus(4)) as rig:
        had = devices(rig.admit(pod("first", {GPU: 2})))
    running = pod("first", {GPU: 2})
    pods = MemoryPods(active={running.uid}, ready=False, running={running.key(running.containers[0])})
    with Rig(store=rig.store, pods=pods) as rig:
        assert devices(rig.admit(running)) == had
        assert isinstance(rig.admit(pod("new")), NotReady)


def test_138446_an_ended_init_container_does_not_reject_its_pod() -> None:
    """A later container is already running, so the init container will not run again and needs no device."""
    init, main = Container("init", {GPU: 2}), Container("main", {GPU: 1})
    running = Pod(PodUid("first"), init_containers=(init,), containers=(main,))
    with Rig(gpus(4)) as rig:
        before = rig.admit(running)
    for container in (main, init):
        pods = MemoryPods(active={running.uid}, ready=False, running={running.key(container)})
        with Rig(store=rig.store, pods=pods) as rig:
            verdict = rig.admit(running)
            assert verdict == before if container is main else isinstance(verdict, NotReady)


def test_a_manager_that_dies_while_a_plugin_is_called_allocated_nothing() -> None:
    """The next manager knows the admission that was answered, and can allocate the device that was only reserved."""
    with Rig(gpus(2)) as rig:
        answered = rig.admit(pod("answered"))
        assert isinstance(answered, Admitted)
        with (
            rig.suspended("Allocate", rig.admit, pod("in flight"), then=[faults.Fails("the manager died")]),
            Rig(store=rig.store, pods=MemoryPods(active={PodUid("answered")})) as next_rig,
        ):
            assert list(next_rig.node.ledger) == list(answered.allocations)
            next_rig.network.connect(gpus(2))
            assert list(devices(next_rig.admit(pod("next")))) == ["gpu-1"]
            next_rig.check()


def test_a_manager_restarted_while_a_plugin_is_called_allocated_nothing() -> None:
    """The restarted manager knows only admissions that were answered, and refuses the one that was in progress."""
    with Rig(gpus(1)) as rig:
        with rig.suspended("Allocate", rig.admit, pod("in flight"), answered=True) as in_flight:
            rig.manager.stop()
            rig.manager.start()
            rig.network.connect(gpus(1))
            assert list(devices(rig.admit(pod("next")))) == ["gpu-0"]
        assert str(in_flight.result()) == "the device manager is not running: call start() again"
        rig.check()


def test_a_manager_that_has_stopped_writes_nothing() -> None:
    """After the stop, another manager may own the store, so an admission that ends then saves nothing."""
    with Rig(gpus(1)) as rig:
        with (
            rig.suspended("Allocate", rig.admit, pod("in flight"), answered=True) as in_flight,
            Rig(store=rig.store) as next_rig,
        ):
            rig.manager.stop()
            next_rig.network.connect(gpus(1))
            assert list(devices(next_rig.admit(pod("next")))) == ["gpu-0"]
        assert str(in_flight.result()) == "the device manager is not running: call start() again"
        next_rig.check()


def test_a_save_that_is_under_way_ends_before_the_stop() -> None:
    """The next manager finds the answered admission in the file."""
    with Rig(gpus(1)) as rig:
        with rig.suspended("save", rig.admit, pod("first")) as first:
            stop = rig.assert_waiting(rig.in_thread(rig.manager.stop))
        stop.result(TIMEOUT)
        assert isinstance(first.result(), Admitted)
        rig.check()


def test_a_stopped_manager_frees_nothing_and_admits_no_pod() -> None:
    """A manager that is not running does not know the file's content, so it could free or allocate devices in use."""
    with Rig(gpus(1)) as rig:
        rig.admit(pod("first"))
        blob = rig.store.blob
    assert str(rig.admit(pod("other"))) == "the device manager is not running: call start() again"
    never_started = Rig(store=MemoryStore(blob))
    with pytest.raises(errors.ManagerNotStartedError, match=r"call start\(\) first"):
        never_started.admit(pod("other"))
    for idle in (rig, never_started):
        with pytest.raises(errors.ManagerStoppedError):
            idle.manager.evict([PodUid("first")])
        assert idle.store.blob == blob
    rig.end_pod("first")
    rig.manager.update_allocated_devices()
    for call in (never_started.manager.update_allocated_devices, never_started.manager.tick):
        with pytest.raises(errors.ManagerNotStartedError, match=r"call start\(\) first"):
            call()
    assert rig.store.blob == never_started.store.blob == blob


class LateOwner(MemoryTransport):
    """A transport whose directory another manager owns until the start. Before that manager stops, it admits a pod."""

    def __init__(self, before_it_stops: Callable[[], None]) -> None:
        super().__init__()
        self._last_moment = before_it_stops

    def start(self, listener: Callable[[Event], None]) -> None:
        self._last_moment()
        super().start(listener)


def test_what_the_last_owner_saved_just_before_it_stopped_is_restored() -> None:
    """The file is read only after the directory has been claimed, because the file may change until then."""
    with Rig(gpus(2)) as rig:

        def before_it_stops() -> None:
            rig.admit(pod("late"))
            rig.manager.stop()

        with DeviceManager(LateOwner(before_it_stops), rig.store, MemorySink()) as manager:
            assert [held.key.pod for held in manager.state.ledger] == ["late"]


def test_a_plugin_that_registers_while_the_file_is_read_waits() -> None:
    """The state in the file is restored before events from plugins are handled."""
    with Rig(gpus(2)) as rig:
        rig.admit(pod("first"))
        rig.manager.stop()
        with rig.suspended("load", rig.manager.start) as start:
            connecting = rig.assert_waiting(rig.in_thread(rig.network.connect, gpus(2)))
        start.result(TIMEOUT)
        connecting.result(TIMEOUT)
        assert rig.manager.status.allocatable == {GPU: 2}
        assert list(devices(rig.admit(pod("second")))) == ["gpu-1"]
        rig.check()


def test_a_start_that_fails_leaves_nothing_running_and_may_be_tried_again() -> None:
    """The transport, which is started first, is stopped again if the file can be neither read nor set aside."""
    with Rig(gpus(2)) as rig:
        had = devices(rig.admit(pod("first")))
        rig.manager.stop()
        rig.script.on("load", faults.Fails())
        rig.script.on("set_aside", faults.Fails("Read-only file system"))
        with pytest.raises(errors.StoreError, match="Read-only file system"):
            rig.manager.start()
        with pytest.raises(errors.PluginStoppedError):
            rig.network.connect(gpus(2))
        rig.manager.start()
        rig.network.connect(gpus(2))
        assert devices(rig.admit(pod("first"))) == had


# --- our own locks ----------------------------------------------------------------------------------------------------


def test_an_older_state_is_never_saved_last() -> None:
    """A thread that changes the state during a save waits until the save ends, and then saves the newer state."""
    with Rig() as rig:
        connection = rig.network.connect(gpus(2))
        with rig.suspended("save", rig.admit, pod("first")) as first:
            other = rig.in_thread(connection.disconnect)
            rig.manager.wait_for(lambda node: not node.inventory.status().allocatable[GPU], TIMEOUT)
            rig.assert_waiting(other)
        other.result(TIMEOUT)
        assert isinstance(first.result(), Admitted)
        rig.check()


def test_an_older_status_is_never_published_last() -> None:
    """A thread that changes the status during a publication waits for it to end, and then publishes the new status."""
    with Rig() as rig:
        plugin, connection = gpus(2), rig.network.connect(nics(1))
        rig.network.connect(plugin)
        with rig.suspended("publish", plugin.set_health, "gpu-0", Health.UNHEALTHY):
            other = rig.in_thread(connection.disconnect)
            rig.manager.wait_for(lambda node: not node.inventory.status().allocatable[NIC], TIMEOUT)
            rig.assert_waiting(other)
        other.result(TIMEOUT)
        assert rig.sink.allocatable == {GPU: 1, NIC: 0}


class SlowPods(MemoryPods):
    """A source of pods whose next list waits at a gate before it yields the first pod."""

    gate: faults.Gate | None = None

    def active_pods(self) -> Collection[PodUid]:  # type: ignore[override]  # as wide as the port has it
        listed, gate = super().active_pods(), self.gate
        self.gate = None
        return SlowList(listed, gate) if gate else listed


class SlowList(Collection[PodUid]):
    """A list of pods. Iterating over the list first waits at a gate."""

    def __init__(self, pods: Collection[PodUid], gate: faults.Gate) -> None:
        self._pods = pods
        self._gate = gate

    def __iter__(self) -> Iterator[PodUid]:
        self._gate.wait()
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, pod: object) -> bool:
        return pod in self._pods


def test_a_pod_admitted_while_ended_pods_are_removed_is_kept() -> None:
    """Only a pod that held devices before the active pods were listed can be treated as ended."""
    pods = SlowPods()
    with Rig(gpus(2), pods=pods) as rig:
        pods.gate = gate = faults.Gate(TIMEOUT)
        sweep = rig.in_thread(rig.manager.update_allocated_devices)
        assert gate.reached.wait(TIMEOUT)
        given = rig.admit(pod("first"))
        gate.release()
        sweep.result(TIMEOUT)
        assert isinstance(given, Admitted)
        assert list(rig.node.ledger) == list(given.allocations)
        rig.check()
