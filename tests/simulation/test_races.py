"""What upstream went wrong when two things happened at once, each with the two in a known order.

Real threads, and gates in the calls to plugins, store and sink: a call stands there until the test lets it go on.
Nothing sleeps, and nothing depends on who is faster.
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
from devicecore.domain.checkpoint import checkpoint_of, decode
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import (
    AdmissionTimeoutError,
    ManagerNotStartedError,
    ManagerStoppedError,
    NotEnoughDevicesError,
    PluginAlreadyConnectedError,
    PluginStoppedError,
    StoreError,
)
from devicecore.domain.events import DevicesReported, Event, PluginLost
from devicecore.domain.node_state import NodeState
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.testing.faults import (
    DISK_FULL,
    AnswersNothing,
    Delayed,
    Fails,
    Fault,
    FaultySink,
    FaultyStore,
    FaultyTransport,
    Gate,
    ManualClock,
    Meanwhile,
    NeverAnswers,
    Script,
)

T = TypeVar("T")

GPU, NIC = ResourceName("example.com/gpu"), ResourceName("example.com/nic")
PATIENCE = 20.0  # seconds until a test that would hang fails instead


class Choosy(SimulatedPlugin):
    """A plugin that wants to be asked, and prefers the first devices."""

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
    """A pod with a container for each of `limits`; with one that wants a GPU, if there are none."""
    one_gpu: tuple[Mapping[str, int], ...] = ({GPU: 1},)
    containers = [Container(f"c{number}", limit) for number, limit in enumerate(limits or one_gpu)]
    return Pod(PodUid(uid), containers=tuple(containers))


def shortage(requested: int, available: int) -> str:
    return str(NotEnoughDevicesError(GPU, requested, available))


class Rig:
    """A manager between gates, and threads to send there. All pods count as active until `over`."""

    def __init__(self, store: MemoryStore | None = None, pods: MemoryPods | None = None) -> None:
        self.script = Script()
        self.clock = ManualClock()
        self.network = MemoryTransport()
        self.store = MemoryStore() if store is None else store
        self.sink = MemorySink()
        self.pods = MemoryPods() if pods is None else pods
        self.transport = FaultyTransport(self.network, self.script, self.clock)
        self.manager = DeviceManager(
            self.transport,
            FaultyStore(self.store, self.script),
            FaultySink(self.sink, self.script),
            pods=self.pods,
            clock=self.clock,
        )
        self.manager._saver.in_background = False  # noqa: SLF001 - the test decides which thread comes to the store when
        self._threads = ThreadPoolExecutor(thread_name_prefix="rig")
        self._gates: list[Gate] = []

    def __enter__(self) -> Self:
        self.manager.start()
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
        """Admit in this thread."""
        self.pods.active.add(wanted.uid)
        return self.manager.admit(wanted)

    def soon(self, action: Callable[..., T], *arguments: object) -> "Future[T]":
        """Do something in another thread."""
        return self._threads.submit(action, *arguments)

    def over(self, uid: str) -> None:
        """A pod is over; the manager will find out."""
        self.pods.active.discard(PodUid(uid))

    @contextmanager
    def suspended(
        self,
        method: str,
        action: Callable[..., T],
        *arguments: object,
        then: Sequence[Fault] = (),
        answered: bool = False,
    ) -> Iterator["Future[T]"]:
        """Do something in another thread that comes to `method`, and stands there as long as the block lasts.

        It stands before the call, or, if that is `answered`, behind it.
        """
        gate = Gate(PATIENCE, after=answered)
        self._gates.append(gate)
        self.script.on(method, gate, *then)
        future = self.soon(action, *arguments)
        assert gate.reached.wait(PATIENCE)
        yield future
        assert not future.done()
        gate.release()
        future.exception(PATIENCE)

    def waits(self, future: "Future[T]") -> "Future[T]":
        """Check that it waits for somebody. A moment is enough to be wrong, and to be right takes no time."""
        done, _ = wait([future], timeout=0.2)
        assert not done
        return future

    def check(self) -> None:
        """Nobody shares a device, nothing is reserved, and the file says what is so."""
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

Meanwhiles = Callable[[Rig, MemoryConnection], object]


def collect_garbage(rig: Rig, _: MemoryConnection) -> None:
    rig.over("old")
    rig.manager.update_allocated_devices()


def evict(rig: Rig, _: MemoryConnection) -> None:
    rig.manager.evict([PodUid("old")])
    rig.over("old")


def fail_to_allocate(rig: Rig, _: MemoryConnection) -> None:
    rig.over("old")
    rig.script.on("Allocate", Fails("no"))
    assert isinstance(rig.admit(pod("failing")), Refused)


def fail_to_save(rig: Rig, _: MemoryConnection) -> None:
    rig.over("old")
    rig.script.on("save", DISK_FULL)
    verdict = rig.admit(pod("failing"))
    assert isinstance(verdict, Refused)
    assert isinstance(verdict.error, StoreError)


def answer_for_nothing(rig: Rig, _: MemoryConnection) -> None:
    rig.over("old")
    rig.script.on("Allocate", AnswersNothing())
    assert isinstance(rig.admit(pod("failing")), Refused)


def flip_the_health(rig: Rig, connection: MemoryConnection) -> None:
    rig.over("old")
    plugin = connection.plugin
    assert isinstance(plugin, SimulatedPlugin)
    plugin.set_health("gpu-1", Health.UNHEALTHY)
    plugin.set_health("gpu-1", Health.HEALTHY)


def come_back(rig: Rig, connection: MemoryConnection) -> None:
    rig.over("old")
    connection.disconnect()
    rig.network.connect(gpus(2), "new.sock")


def be_replaced(rig: Rig, connection: MemoryConnection) -> None:
    rig.over("old")
    rig.network.connect(gpus(2), "new.sock")
    connection.disconnect()


def publish(rig: Rig, _: MemoryConnection) -> None:
    rig.over("old")
    rig.manager.tick()


@pytest.mark.parametrize(
    "meanwhile",
    [
        collect_garbage,
        evict,
        fail_to_allocate,
        fail_to_save,
        answer_for_nothing,
        flip_the_health,
        come_back,
        be_replaced,
        publish,
    ],
)
def test_137534_a_device_in_flight_is_nobody_elses(meanwhile: Meanwhiles) -> None:
    """Reservations are facts of their own: nothing that rebuilds or frees what is in use can forget them."""
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


def test_137534_two_pods_are_advised_to_take_the_same_device() -> None:
    """What is chosen is decided anew after the plugin was asked, in one step with taking it."""
    with Rig() as rig:
        rig.network.connect(Choosy(GPU, simulated_devices("gpu", 2)))
        with rig.suspended("GetPreferredAllocation", rig.admit, pod("first")) as first:
            assert list(devices(rig.admit(pod("second")))) == ["gpu-0"]
        assert list(devices(first.result())) == ["gpu-1"]
        rig.check()


def test_137534_the_last_device_goes_while_the_plugin_thinks() -> None:
    """Who was asking when the last device was taken is refused, and takes nothing."""
    with Rig() as rig:
        rig.network.connect(Choosy(GPU, simulated_devices("gpu", 1)))
        with rig.suspended("GetPreferredAllocation", rig.admit, pod("first")) as first:
            assert list(devices(rig.admit(pod("second")))) == ["gpu-0"]
        assert str(first.result()) == shortage(1, 0)
        rig.check()


def test_a_plugin_that_goes_before_it_can_advise_refuses_the_pod() -> None:
    """The sentence is the one for any advice that fails (kubelet.md 5.5)."""
    with Rig() as rig:
        connection = rig.network.connect(Choosy(GPU, simulated_devices("gpu", 2)))
        rig.script.on("GetPreferredAllocation", Meanwhile(connection.disconnect))
        assert str(rig.admit(pod("p"))) == (
            "device plugin GetPreferredAllocation rpc failed with err: endpoint example.com/gpu has been stopped"
        )
        rig.check()


def test_one_pod_that_is_admitted_twice_at_once_is_admitted_once() -> None:
    """Admissions of one pod wait for each other, and the second finds what the first was given."""
    with Rig() as rig:
        rig.network.connect(gpus(4))
        asked: list[str] = []
        rig.script.always("Allocate", Meanwhile(lambda: asked.append("Allocate")))
        with rig.suspended("Allocate", rig.admit, pod("twice")) as first:
            second = rig.waits(rig.soon(rig.admit, pod("twice")))
        assert first.result() == second.result(PATIENCE)
        assert asked == ["Allocate"]
        rig.check()


# --- half an admission: kubernetes#130145, #137317 --------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fails("no"), NeverAnswers(), AnswersNothing()], ids=repr)
@pytest.mark.parametrize("at", range(1, 5))
def test_130145_a_half_failed_admission_leaks_nothing(fault: Fault, at: int) -> None:
    """An admission is one transaction: whichever of its calls fails, all is as before, and another pod can have it."""
    greedy = pod("greedy", {GPU: 2, NIC: 1}, {GPU: 1, NIC: 1})
    with Rig() as rig:
        rig.network.connect(gpus(3))
        rig.network.connect(nics(2))
        before, blob, told = rig.node, rig.store.blob, len(rig.sink.published)
        rig.script.on("Allocate", fault, nth=at)
        assert isinstance(rig.admit(greedy), Refused)
        assert (rig.node, rig.store.blob, len(rig.sink.published)) == (before, blob, told)
        verdict = rig.admit(pod("next", {GPU: 3, NIC: 2}))
        assert (len(devices(verdict)), len(devices(verdict, resource=NIC))) == (3, 2)
        rig.check()


def test_137317_a_failing_preference_leaks_nothing() -> None:
    """The second container's GetPreferredAllocation fails: the first one's devices are free again."""
    with Rig() as rig:
        rig.network.connect(Choosy(GPU, simulated_devices("gpu", 4)))
        before = rig.node
        rig.script.on("GetPreferredAllocation", Fails("no"), nth=2)
        assert isinstance(rig.admit(pod("half", {GPU: 1}, {GPU: 1})), Refused)
        assert rig.node == before
        assert len(devices(rig.admit(pod("next", {GPU: 4})))) == 4


def test_130145_what_others_got_meanwhile_stays_when_an_admission_fails() -> None:
    """Only what the failing admission reserved is given back, although others came between."""
    with Rig() as rig:
        rig.network.connect(gpus(3))
        failing = pod("failing", {GPU: 1}, {GPU: 1})
        rig.script.on("Allocate", Fails("no"), nth=3)
        with rig.suspended("Allocate", rig.admit, failing) as half:
            assert list(devices(rig.admit(pod("other")))) == ["gpu-1"]
        assert isinstance(half.result(), Refused)
        assert [(held.key.pod, list(held.devices)) for held in rig.node.ledger] == [("other", ["gpu-1"])]
        rig.check()


def test_140929_what_cannot_be_saved_is_not_given() -> None:
    """While the save is under way the devices are reserved; when it fails they are free, in memory and on disk."""
    with Rig() as rig:
        rig.network.connect(gpus(1))
        before = rig.node
        with rig.suspended("save", rig.admit, pod("first"), then=[DISK_FULL]) as first:
            assert isinstance(rig.admit(pod("second")), Refused)
        assert isinstance(first.result(), Refused)
        assert rig.node == before
        rig.check()


# --- a stuck plugin: kubernetes#117435 --------------------------------------------------------------------------------


def test_117435_a_stuck_plugin_delays_nobody_else() -> None:
    """No lock is held while a plugin is asked: pods of others, of the same resource and without devices get in."""
    with Rig() as rig:
        rig.network.connect(gpus(4))
        rig.network.connect(nics(1))
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
    """The plugin answers in the end, but an admission has a budget, and the time is over: the devices are free."""
    with Rig() as rig:
        rig.network.connect(Choosy(GPU, simulated_devices("gpu", 1)))
        before, blob = rig.node, rig.store.blob
        with rig.suspended(method, rig.admit, pod("late")) as late:
            rig.clock.advance(61.0)
        verdict = late.result()
        assert isinstance(verdict, Refused)
        assert isinstance(verdict.error, AdmissionTimeoutError)
        assert (rig.node, rig.store.blob) == (before, blob)
        assert list(devices(rig.admit(pod("next")))) == ["gpu-0"]


# --- the late goodbye: kubernetes#121994, #135437 ---------------------------------------------------------------------


def test_121994_a_late_goodbye_does_not_touch_the_next_instance() -> None:
    """An event names an instance, not a resource: here it arrives while the new instance is asked."""
    with Rig() as rig:
        old = rig.network.connect(gpus(2), "old.sock")
        goodbye = Delayed()
        rig.script.on("PluginLost", goodbye)
        old.disconnect()
        rig.network.connect(gpus(2), "new.sock")
        with rig.suspended("Allocate", rig.admit, pod("first")) as first:
            goodbye.release()
            assert rig.manager.status.allocatable == {GPU: 2}
            assert isinstance(rig.admit(pod("second")), Admitted)
        assert isinstance(first.result(), Admitted)
        rig.check()


def test_135437_an_old_instance_is_not_heard_on_the_socket_of_a_new_one() -> None:
    """Two instances that used one path are two: what is left of the first on the way changes nothing."""
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


def test_124716_a_socket_that_is_served_is_not_served_again() -> None:
    """A second registration is refused, and the first instance serves on, while it is being asked."""
    with Rig() as rig:
        rig.network.connect(gpus(2), "gpu.sock")
        with rig.suspended("Allocate", rig.admit, pod("first")) as first:
            with pytest.raises(PluginAlreadyConnectedError):
                rig.network.connect(gpus(1), "gpu.sock")
            assert rig.manager.status.allocatable == {GPU: 2}
        assert isinstance(first.result(), Admitted)


def test_a_plugin_that_goes_while_it_is_asked_takes_nobody_elses_devices_along() -> None:
    """Its devices are not offered any more; what is in flight fails with its call, and what was given is kept."""
    with Rig() as rig:
        connection = rig.network.connect(gpus(3))
        kept = rig.admit(pod("kept"))
        with rig.suspended("Allocate", rig.admit, pod("first"), then=[Fails("connection reset")]) as first:
            connection.disconnect()
            assert rig.manager.status.allocatable == {GPU: 0}
        assert isinstance(first.result(), Refused)
        assert isinstance(kept, Admitted)
        assert list(rig.node.ledger) == list(kept.allocations)
        rig.check()


def test_a_resource_that_expires_during_an_admission_is_not_passed_over() -> None:
    """Which requests are ours is decided once: a pod does not slip in without what was known when it came."""
    with Rig() as rig:
        rig.network.connect(gpus(1))
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
    """Nothing runs, and the devices are not there yet: not now, which is not no. Then it keeps what it had."""
    with Rig() as rig:
        rig.network.connect(gpus(4))
        had = devices(rig.admit(pod("first", {GPU: 2})))
    with Rig(rig.store, MemoryPods(active={PodUid("first")}, ready=False)) as rig:
        assert isinstance(rig.admit(pod("first", {GPU: 2})), NotReady)
        assert isinstance(rig.admit(pod("new")), NotReady)
        rig.pods.ready = True
        rig.network.connect(gpus(4))
        assert devices(rig.admit(pod("first", {GPU: 2}))) == had
        rig.check()


def test_118559_a_pod_that_runs_survives_a_restart() -> None:
    """Its plugin is not back, and is not needed: the pod is admitted as it is, while a new one has to wait."""
    with Rig() as rig:
        rig.network.connect(gpus(4))
        had = devices(rig.admit(pod("first", {GPU: 2})))
    running = pod("first", {GPU: 2})
    pods = MemoryPods(active={running.uid}, ready=False, running={running.key(running.containers[0])})
    with Rig(rig.store, pods) as rig:
        assert devices(rig.admit(running)) == had
        assert isinstance(rig.admit(pod("new")), NotReady)


def test_138446_an_init_container_that_has_ended_does_not_reject_its_pod_after_a_restart() -> None:
    """It holds devices that are not there, and will not run again: a later container runs already."""
    init, main = Container("init", {GPU: 2}), Container("main", {GPU: 1})
    running = Pod(PodUid("first"), init_containers=(init,), containers=(main,))
    with Rig() as rig:
        rig.network.connect(gpus(4))
        before = rig.admit(running)
    pods = MemoryPods(active={running.uid}, ready=False, running={running.key(main)})
    with Rig(rig.store, pods) as rig:
        assert rig.admit(running) == before


def test_a_manager_that_dies_while_a_plugin_is_asked_has_given_nothing() -> None:
    """What was reserved dies with it; what was answered is there, and the next manager gives the rest away."""
    with Rig() as rig:
        rig.network.connect(gpus(2))
        answered = rig.admit(pod("answered"))
        assert isinstance(answered, Admitted)
        with (
            rig.suspended("Allocate", rig.admit, pod("in flight"), then=[Fails("the manager died")]),
            Rig(rig.store, MemoryPods(active={PodUid("answered")})) as next_rig,
        ):
            assert list(next_rig.node.ledger) == list(answered.allocations)
            next_rig.network.connect(gpus(2))
            assert list(devices(next_rig.admit(pod("next")))) == ["gpu-1"]
            next_rig.check()


def test_a_manager_that_is_restarted_while_a_plugin_is_asked_has_given_nothing() -> None:
    """Stopped and started again, it knows only what it had answered; the old admission ends with a verdict."""
    with Rig() as rig:
        rig.network.connect(gpus(1))
        with rig.suspended("Allocate", rig.admit, pod("in flight"), answered=True) as in_flight:
            rig.manager.stop()
            rig.manager.start()
            rig.network.connect(gpus(1))
            assert list(devices(rig.admit(pod("next")))) == ["gpu-0"]
        assert str(in_flight.result()) == "the device manager is not running"
        rig.check()


def test_a_manager_that_has_stopped_writes_nothing() -> None:
    """The store may be another's by now: an admission that outlives its manager must not replace what that saved."""
    with Rig() as rig:
        rig.network.connect(gpus(1))
        with (
            rig.suspended("Allocate", rig.admit, pod("in flight"), answered=True) as in_flight,
            Rig(rig.store) as next_rig,
        ):
            rig.manager.stop()
            next_rig.network.connect(gpus(1))
            assert list(devices(next_rig.admit(pod("next")))) == ["gpu-0"]
        assert str(in_flight.result()) == "the device manager is not running"
        next_rig.check()


def test_a_save_that_is_under_way_ends_before_the_stop() -> None:
    """Whoever comes next finds it, and what was answered is in it."""
    with Rig() as rig:
        rig.network.connect(gpus(1))
        with rig.suspended("save", rig.admit, pod("first")) as first:
            stop = rig.waits(rig.soon(rig.manager.stop))
        stop.result(PATIENCE)
        assert isinstance(first.result(), Admitted)
        rig.check()


def test_a_manager_that_is_not_running_forgets_nothing_and_admits_nobody() -> None:
    """It does not know what was saved: it would free devices in use, and let pods pass without theirs."""
    with Rig() as rig:
        rig.network.connect(gpus(1))
        rig.admit(pod("first"))
        blob = rig.store.blob
    assert str(rig.admit(pod("other"))) == "the device manager is not running"
    never_started = Rig(MemoryStore(blob))
    with pytest.raises(ManagerNotStartedError, match=r"call start\(\) first"):
        never_started.admit(pod("other"))
    for idle in (rig, never_started):
        with pytest.raises(ManagerStoppedError):
            idle.manager.evict([PodUid("first")])
        idle.over("first")
        idle.manager.update_allocated_devices()
        assert idle.store.blob == blob


class LateOwner(MemoryTransport):
    """A directory that belongs to another manager until we get it; in its last moment it admits a pod."""

    def __init__(self, last_moment: Callable[[], None]) -> None:
        super().__init__()
        self._last_moment = last_moment

    def start(self, listener: Callable[[Event], None]) -> None:
        self._last_moment()
        super().start(listener)


def test_what_the_last_owner_saved_in_its_last_moment_is_restored() -> None:
    """A file is read when the directory is ours, and not before: until then it may change."""
    with Rig() as rig:
        rig.network.connect(gpus(2))

        def last_moment() -> None:
            rig.admit(pod("late"))
            rig.manager.stop()

        with DeviceManager(LateOwner(last_moment), rig.store, MemorySink()) as manager:
            assert [held.key.pod for held in manager.state.ledger] == ["late"]


def test_a_plugin_that_registers_while_the_file_is_read_waits_and_is_heard() -> None:
    """First what was saved, then what plugins say."""
    with Rig() as rig:
        rig.network.connect(gpus(2))
        rig.admit(pod("first"))
        rig.manager.stop()
        with rig.suspended("load", rig.manager.start) as start:
            connecting = rig.waits(rig.soon(rig.network.connect, gpus(2)))
        start.result(PATIENCE)
        connecting.result(PATIENCE)
        assert rig.manager.status.allocatable == {GPU: 2}
        assert list(devices(rig.admit(pod("second")))) == ["gpu-1"]
        rig.check()


def test_a_start_that_fails_leaves_nothing_running_and_may_be_tried_again() -> None:
    """The plugins' transport is started first, so it is stopped again when the file cannot even be set aside."""
    with Rig() as rig:
        rig.network.connect(gpus(2))
        had = devices(rig.admit(pod("first")))
        rig.manager.stop()
        rig.script.on("load", Fails())
        rig.script.on("set_aside", Fails("Read-only file system"))
        with pytest.raises(StoreError, match="Read-only file system"):
            rig.manager.start()
        with pytest.raises(PluginStoppedError):
            rig.network.connect(gpus(2))
        rig.manager.start()
        rig.network.connect(gpus(2))
        assert devices(rig.admit(pod("first"))) == had


# --- our own locks ----------------------------------------------------------------------------------------------------


def test_an_older_state_is_never_saved_last() -> None:
    """Who changes something during a save waits for it, and then saves what is newer."""
    with Rig() as rig:
        connection = rig.network.connect(gpus(2))
        with rig.suspended("save", rig.admit, pod("first")) as first:
            other = rig.soon(connection.disconnect)
            rig.manager.wait_for(lambda node: not node.inventory.status().allocatable[GPU], PATIENCE)
            rig.waits(other)
        other.result(PATIENCE)
        assert isinstance(first.result(), Admitted)
        rig.check()


def test_an_older_status_is_never_published_last() -> None:
    """Who has news while the sink is told waits, and then tells what is newer."""
    with Rig() as rig:
        plugin, connection = gpus(2), rig.network.connect(nics(1))
        rig.network.connect(plugin)
        with rig.suspended("publish", plugin.set_health, "gpu-0", Health.UNHEALTHY):
            other = rig.soon(connection.disconnect)
            rig.manager.wait_for(lambda node: not node.inventory.status().allocatable[NIC], PATIENCE)
            rig.waits(other)
        other.result(PATIENCE)
        assert rig.sink.allocatable == {GPU: 1, NIC: 0}


class SlowPods(MemoryPods):
    """A source whose next list is read slowly: there is a gate before its first pod."""

    gate: Gate | None = None

    def active_pods(self) -> Collection[PodUid]:  # type: ignore[override]  # as wide as the port has it
        listed, gate = super().active_pods(), self.gate
        self.gate = None
        return SlowList(listed, gate) if gate else listed


class SlowList(Collection[PodUid]):
    """A list of pods behind a gate."""

    def __init__(self, pods: Collection[PodUid], gate: Gate) -> None:
        self._pods = pods
        self._gate = gate

    def __iter__(self) -> Iterator[PodUid]:
        self._gate.wait()
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, pod: object) -> bool:
        return pod in self._pods


def test_a_pod_admitted_while_others_are_swept_is_not_swept() -> None:
    """Only who held something before the active pods were listed can be found missing there."""
    pods = SlowPods()
    with Rig(pods=pods) as rig:
        rig.network.connect(gpus(2))
        pods.gate = gate = Gate(PATIENCE)
        sweep = rig.soon(rig.manager.update_allocated_devices)
        assert gate.reached.wait(PATIENCE)
        given = rig.admit(pod("first"))
        gate.release()
        sweep.result(PATIENCE)
        assert isinstance(given, Admitted)
        assert list(rig.node.ledger) == list(given.allocations)
        rig.check()
