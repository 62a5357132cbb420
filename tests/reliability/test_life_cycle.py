"""Starts, stops, forks and calls from inside a callback, at any time.

Law: each call is correct or raises a clear error, and none hangs. A call that might hang runs in a daemon thread or in
a forked process, and may take `LIMIT` seconds.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from devicecore import (
    Admitted,
    Container,
    ContainerAllocateResponse,
    DeviceId,
    DeviceManager,
    Health,
    NodeState,
    Pod,
    PodUid,
    ResourceName,
)
from devicecore.adapters.file import FileStore
from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin
from devicecore.adapters.memory import MemoryPods, MemorySink, MemoryStore, MemoryTransport
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDriverTransport
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checkpoint import decode
from devicecore.domain.dra.model import ClaimKey, ClaimUid, ResourceClaim
from devicecore.domain.errors import (
    CalledFromInsideError,
    DeviceCoreError,
    DirectoryInUseError,
    ForkedError,
    ManagerNotStartedError,
    ManagerStoppedError,
    SinkError,
)
from devicecore.domain.events import Event, PluginRegistered
from devicecore.domain.model import PodClaim
from devicecore.domain.notifications import Allocated, Notification
from devicecore.dra_manager import DraManager
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.ports.transport import Listener
from devicecore.runtime import lifecycle, run
from devicecore.runtime.saver_thread import SaverThread
from devicecore.testing.faults import Gate
from devicecore.testing.interrupts import Interrupts
from tests.memory_manager import ActingSink, nothing
from tests.reliability.scale import scale

LIMIT = 60.0
GPU = ResourceName("example.com/gpu")
T = TypeVar("T")


def gpus(count: int = 4) -> SimulatedPlugin:
    return SimulatedPlugin(GPU, simulated_devices("gpu", count))


def pod(uid: str, count: int = 1) -> Pod:
    return Pod(PodUid(uid), name=uid, containers=(Container("main", {GPU: count} if count else {"cpu": 1}),))


def in_thread(action: Callable[..., T], *arguments: object) -> "Future[T]":
    """Call `action` in a daemon thread, so that a hang fails only this test."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(action(*arguments))
        except BaseException as error:  # noqa: BLE001 - the future raises it again
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class Store(MemoryStore):
    """A store that calls a function before it loads or saves."""

    def __init__(self, blob: bytes | None = None) -> None:
        super().__init__(blob)
        self.before_load: Callable[[], object] = nothing
        self.before_save: Callable[[], object] = nothing

    def load(self) -> bytes | None:
        self.before_load()
        return super().load()

    def save(self, blob: bytes) -> None:
        self.before_save()
        super().save(blob)


class Transport(MemoryTransport):
    """A transport that counts its starts, and calls a function before each start."""

    def __init__(self) -> None:
        super().__init__()
        self.before_start: Callable[[], object] = nothing
        self.starts = 0
        self.is_running = False

    def start(self, listener: Listener) -> None:
        self.before_start()
        self.starts += 1
        super().start(listener)
        self.is_running = True

    def stop(self) -> None:
        super().stop()
        self.is_running = False


# --- starting and stopping in several threads -------------------------------------------------------------------------


def test_a_stop_during_a_start_leaves_nothing_running() -> None:
    """The start raises an error: if it continued without its directory, it could overwrite the next owner's file."""
    store, transport, gate = Store(), Transport(), Gate(LIMIT)
    store.before_load = gate.wait
    manager = DeviceManager(transport, store, MemorySink())
    start = in_thread(manager.start)
    assert gate.reached.wait(LIMIT)
    in_thread(manager.stop).result(LIMIT)  # does not wait for the disk, which hangs
    gate.release()
    with pytest.raises(ManagerStoppedError):
        start.result(LIMIT)
    assert not transport.is_running
    store.before_load = nothing
    assert str(manager.admit(pod("p"))) == "the device manager is not running: call start() again"
    assert store.blob is None
    with manager:
        transport.connect(gpus())
        assert isinstance(manager.admit(pod("p")), Admitted)


@pytest.mark.parametrize("over", ["memory", "gRPC"])
def test_a_plugin_that_registers_while_the_disk_hangs_does_not_delay_a_stop(
    over: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin's event waits for the disk, and the stop of the transport waits for the event."""
    heard, gate, store = threading.Event(), Gate(LIMIT), Store()
    transport = MemoryTransport() if over == "memory" else GrpcUnixTransport(directory)
    start_transport = transport.start

    def start_and_hear(listener: Listener) -> None:
        def hear(event: Event) -> None:
            if isinstance(event, PluginRegistered):
                heard.set()
            listener(event)

        start_transport(hear)

    monkeypatch.setattr(transport, "start", start_and_hear)
    store.before_load = gate.wait
    manager = DeviceManager(transport, store, MemorySink())
    start = in_thread(manager.start)
    assert gate.reached.wait(LIMIT)
    with ExitStack() as stack:
        if isinstance(transport, MemoryTransport):
            stack.callback(in_thread(transport.connect, gpus()).result, LIMIT)
        else:
            stack.enter_context(serve_plugin(gpus(), directory))
        assert heard.wait(LIMIT)
        in_thread(manager.stop).result(LIMIT)
    gate.release()
    with pytest.raises(ManagerStoppedError):
        start.result(LIMIT)
    assert manager.state == NodeState()
    assert store.blob is None


def test_a_stopped_start_does_not_set_the_next_owners_file_aside() -> None:
    """The start has read an invalid file, which may belong to another manager by the time it would be set aside."""
    store, gate = Store(b"not a checkpoint"), Gate(LIMIT)
    store.before_load = gate.wait
    manager = DeviceManager(Transport(), store, MemorySink())
    start = in_thread(manager.start)
    assert gate.reached.wait(LIMIT)
    in_thread(manager.stop).result(LIMIT)
    gate.release()
    with pytest.raises(ManagerStoppedError):
        start.result(LIMIT)
    assert store.aside == []


def test_a_stop_during_a_start_frees_the_directory_for_the_next_owner(directory: Path) -> None:
    """The manager has real sockets and files, and its start hangs while it reads the checkpoint."""
    gate = Gate(LIMIT)

    class SlowStore(FileStore):
        def load(self) -> bytes | None:
            gate.wait()
            return super().load()

    first = DeviceManager(GrpcUnixTransport(directory), SlowStore(directory / "checkpoint"), MemorySink())
    start = in_thread(first.start)
    assert gate.reached.wait(LIMIT)
    in_thread(first.stop).result(LIMIT)
    with DeviceManager(GrpcUnixTransport(directory), FileStore(directory / "checkpoint"), MemorySink()) as second:
        gate.release()
        with pytest.raises(ManagerStoppedError):
            start.result(LIMIT)
        third = DeviceManager(GrpcUnixTransport(directory), FileStore(directory / "checkpoint"), MemorySink())
        with pytest.raises(DirectoryInUseError):
            third.start()
        assert repr(second).startswith("<DeviceManager running")


def test_starts_and_stops_in_many_threads_end_in_one_state() -> None:
    """After all these starts and stops, the manager can be stopped, started and used."""
    transport = Transport()
    manager = DeviceManager(transport, Store(), MemorySink())

    def work(first: bool) -> None:
        for _ in range(scale(50, 5_000)):
            try:
                (manager.start if first else manager.stop)()
            except ManagerStoppedError:
                assert first

    for future in [in_thread(work, number % 2 == 0) for number in range(4)]:
        future.result(scale(100, 600))
    manager.stop()
    assert not transport.is_running
    with manager:
        transport.connect(gpus())
        assert isinstance(manager.admit(pod("p")), Admitted)


@pytest.mark.parametrize(
    "new",
    [
        lambda saver: DeviceManager(Transport(), Store(), MemorySink(), saver=saver),
        lambda saver: DraManager(MemoryDriverTransport(), MemoryClaims(), Store(), saver=saver),
    ],
    ids=["device manager", "DRA manager"],
)
@pytest.mark.parametrize("method", ["start", "stop"])
def test_an_interrupt_inside_what_python_has_for_threads_leaves_nothing_locked(
    method: str, new: Callable[[SaverThread], DeviceManager | DraManager]
) -> None:
    """For example, an interrupt may leave the lock of a `threading.Event` locked."""
    saver = SaverThread()
    for at in count(1):
        manager, point = new(saver), Interrupts(at, lifecycle, run, threading)
        if method == "stop":
            manager.start()
        in_thread(point.interrupt, getattr(manager, method)).result(LIMIT)
        for each in (manager.stop, manager.start, manager.tick, manager.stop):
            in_thread(each).result(LIMIT)
        if not point.is_reached:
            break
    saver.end()


# --- calls from inside ------------------------------------------------------------------------------------------------


def caught(action: Callable[[], object], errors: list[DeviceCoreError]) -> Callable[[], None]:
    def call() -> None:
        try:
            action()
        except DeviceCoreError as error:
            errors.append(error)

    return call


def test_a_stop_inside_a_save_is_an_error() -> None:
    store, transport = Store(), Transport()
    manager = DeviceManager(transport, store, MemorySink())
    errors: list[DeviceCoreError] = []
    with manager:
        transport.connect(gpus())
        store.before_save = caught(manager.stop, errors)
        assert isinstance(in_thread(manager.admit, pod("p")).result(LIMIT), Admitted)
        in_thread(manager.evict, ["p"]).result(LIMIT)
        sentence = (
            "stop was called from inside CheckpointStore.save and would wait for itself: call it after "
            "CheckpointStore.save has returned, or from another thread that nothing here waits for"
        )
        assert [str(error) for error in errors] == [sentence] * 2
        store.before_save = nothing


def test_an_admission_inside_a_save_is_an_error() -> None:
    store, transport = Store(), Transport()
    manager = DeviceManager(transport, store, MemorySink())
    errors: list[DeviceCoreError] = []

    def admit_another() -> None:
        store.before_save = nothing
        caught(lambda: manager.admit(pod("other")), errors)()

    with manager:
        transport.connect(gpus())
        store.before_save = admit_another
        assert isinstance(in_thread(manager.admit, pod("p")).result(LIMIT), Admitted)
        assert [type(error) for error in errors] == [CalledFromInsideError]
        assert list(manager.state.ledger.allocations) == ["p"]
        assert not manager.state.ledger.reservations


@pytest.mark.parametrize("call", ["start", "stop", "tick"])
def test_a_call_inside_a_publication_is_an_error(call: str) -> None:
    sink, transport = ActingSink(), Transport()
    manager = DeviceManager(transport, Store(), sink)
    errors: list[DeviceCoreError] = []
    with manager:
        sink.action = caught(getattr(manager, call), errors)
        in_thread(transport.connect, gpus()).result(LIMIT)
        sink.action = nothing
        assert [type(error) for error in errors] == [CalledFromInsideError]
        assert manager.status.capacity == {GPU: 4}
        assert sink.capacity == {GPU: 4}


def test_a_stop_inside_a_publication_of_a_tick_does_not_wait_for_an_event(directory: Path) -> None:
    """A plugin's event waits until the publication ends. If the stop waited for the event, neither would ever end."""
    sink, plugin, errors = ActingSink(), gpus(), list[DeviceCoreError]()
    manager = DeviceManager(GrpcUnixTransport(directory), FileStore(directory / "checkpoint"), sink)

    def fail() -> None:
        sink.action = stop_when_an_event_waits
        raise SinkError("the API server", "connection refused")

    def stop_when_an_event_waits() -> None:
        sink.action = nothing
        plugin.set_health("gpu-0", Health.UNHEALTHY)
        manager.wait_for(lambda state: state.inventory.status().allocatable == {GPU: 3}, LIMIT)
        caught(manager.stop, errors)()

    with manager:
        sink.action = fail
        with serve_plugin(plugin, directory):
            manager.wait_for(lambda state: state.inventory.current_report(GPU), LIMIT)
            while sink.action == fail:
                time.sleep(0.001)  # no event reports that the sink has failed
            assert in_thread(manager.tick).result(LIMIT).capacity == {GPU: 4}
    assert [type(error) for error in errors] == [CalledFromInsideError]


@pytest.mark.parametrize("same", [True, False])
def test_an_observer_that_admits_a_pod(same: bool) -> None:
    """An admission of the same pod would wait for itself, so it raises an error. A different pod is admitted."""
    transport = Transport()
    inner = pod("p" if same else "other")
    errors: list[DeviceCoreError] = []

    def observe(notification: Notification) -> None:
        if isinstance(notification, Allocated) and notification.pod == "p":
            caught(lambda: manager.admit(inner), errors)()

    manager = DeviceManager(transport, Store(), MemorySink(), observers=[observe])
    with manager:
        transport.connect(gpus())
        assert isinstance(in_thread(manager.admit, pod("p")).result(LIMIT), Admitted)
        assert [str(error).partition(" and ")[0] for error in errors] == [
            "admit was called from inside the admission of the same pod"
        ] * same
        assert list(manager.state.ledger.allocations) == ["p"] + ["other"] * (not same)


def test_a_plugin_that_admits_the_pod_it_is_called_for_is_an_error() -> None:
    """The plugin's call to `admit` raises an error, and the pod is refused."""

    class Recursive(SimulatedPlugin):
        def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
            manager.admit(pod("p"))
            return super().allocate(devices)

    transport = Transport()
    manager = DeviceManager(transport, Store(), MemorySink())
    with manager:
        transport.connect(Recursive(GPU, simulated_devices("gpu", 1)))
        verdict = in_thread(manager.admit, pod("p")).result(LIMIT)
        assert "was called from inside the admission of the same pod" in str(verdict)
        assert not manager.state.ledger.in_use(GPU)


# --- before a start ---------------------------------------------------------------------------------------------------


def test_use_before_the_start_is_an_error() -> None:
    manager = DeviceManager(MemoryTransport(), MemoryStore(), MemorySink())
    for call in (
        partial(manager.admit, pod("p")),
        partial(manager.allocate, pod("p"), "main"),
        partial(manager.start_container, pod("p"), "main"),
        partial(manager.evict, [PodUid("p")]),
        manager.tick,
    ):
        with pytest.raises(ManagerNotStartedError, match=r"not started: call start\(\) first, or use"):
            call()
    manager.stop()
    assert manager.status == NodeStatus()
    assert manager.wait_for(lambda _: True, 0) == NodeState()


# --- after a fork -----------------------------------------------------------------------------------------------------


NOTHING_RAISED = "nothing was raised"


def in_fork(action: Callable[[], object]) -> str:
    """Call `action` in a forked process, and return the class and the text of the error that it raises."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        gc.disable()  # other tests' garbage, when collected, may wait for threads that the fork does not have
        message = NOTHING_RAISED
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - the parent inspects it
            message = f"{type(error).__name__}: {error}"
        os.write(sending, message.encode())
        os._exit(0)
    os.close(sending)
    deadline = time.monotonic() + LIMIT
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the forked process hangs")
        time.sleep(0.01)  # waitpid has no timeout
    with os.fdopen(receiving) as said:
        return said.read()


in_a_fork = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")


def assert_all_refused(calls: Sequence[Callable[[], object]]) -> None:
    """Check in a fork that each call raises an error at once."""
    parent = os.getpid()

    def use() -> None:
        for call in calls:
            with pytest.raises(ForkedError, match=f"^an object that was started in process {parent}"):
                call()

    assert in_fork(use) == NOTHING_RAISED


@in_a_fork
def test_use_of_a_device_manager_after_a_fork_is_an_error() -> None:
    """The calls do not hang even if a thread that does not exist in the fork held a lock."""
    store, transport, gate = Store(), Transport(), Gate(LIMIT)
    with DeviceManager(transport, store, MemorySink()) as manager:
        transport.connect(gpus())
        assert isinstance(manager.admit(pod("p")), Admitted)
        store.before_save = gate.wait
        saving = in_thread(manager.admit, pod("slow"))
        assert gate.reached.wait(LIMIT)
        assert_all_refused(
            [
                *(manager.start, manager.stop, manager.update_allocated_devices, manager.tick),
                partial(manager.admit, pod("q")),
                partial(manager.allocate, pod("q"), "main"),
                partial(manager.start_container, pod("p"), "main"),
                partial(manager.evict, [PodUid("p")]),
                partial(manager.wait_for, lambda _: False, LIMIT),
            ]
        )
        gate.release()
        saving.result(LIMIT)
        assert isinstance(manager.admit(pod("q")), Admitted)


KEY = ClaimKey("default", "claim")


def pod_with_claim(name: str) -> Pod:
    return Pod(PodUid(name), name=name, claims=(PodClaim("mine", KEY.name),), containers=(Container("main"),))


def dra_manager(store: Store) -> DraManager:
    claims = MemoryClaims()
    claims.put(ResourceClaim(KEY, ClaimUid("c"), "", (), frozenset({"p", "slow"})))  # no driver has to be called
    return DraManager(MemoryDriverTransport(), claims, store, pods=MemoryPods())


@in_a_fork
def test_use_of_a_dra_manager_after_a_fork_is_an_error() -> None:
    """The calls do not hang even if a thread that does not exist in the fork held a lock and the pod's turn."""
    store, gate, slow = Store(), Gate(LIMIT), pod_with_claim("slow")
    with dra_manager(store) as manager:
        manager.prepare(pod_with_claim("p"))
        store.before_save = gate.wait
        preparing = in_thread(manager.prepare, slow)
        assert gate.reached.wait(LIMIT)
        assert_all_refused(
            [
                *(manager.start, manager.stop, manager.tick, manager.reconcile, manager.wipe_slices),
                *(partial(manager.prepare, slow), partial(manager.unprepare, slow.uid)),
            ]
        )
        gate.release()
        preparing.result(LIMIT)
        assert manager.claims.claims[KEY].pods == {"p", "slow"}


@in_a_fork
def test_a_fork_can_read_the_state_of_its_parent() -> None:
    """Methods that take no lock work, and a manager that was not started can be started in the fork."""
    transport = Transport()
    unused, unused_dra = DeviceManager(Transport(), Store(), MemorySink()), dra_manager(Store())

    def look() -> None:
        assert list(manager.state.ledger.allocations) == ["p"]
        assert manager.status.capacity == {GPU: 4}
        assert manager.options(pod("p"), "main") is not None
        assert GPU in manager.topology_hints(pod("q")) or manager.topology_hints(pod("q")) == {}
        assert dra.claim_devices(pod_with_claim("p"), "main") == ()
        assert dra.might_need_unprepare(PodUid("p"))
        with unused, unused_dra:
            unused_dra.prepare(pod_with_claim("p"))

    with DeviceManager(transport, Store(), MemorySink()) as manager, dra_manager(Store()) as dra:
        transport.connect(gpus())
        manager.admit(pod("p"))
        dra.prepare(pod_with_claim("p"))
        assert in_fork(look) == NOTHING_RAISED


# --- a disk that hangs ------------------------------------------------------------------------------------------------


def test_a_disk_that_hangs_does_not_delay_pods_without_devices() -> None:
    """Changes of health, evictions and the ends of pods are saved later."""
    store, transport, pods, gate = Store(), Transport(), MemoryPods(), Gate(LIMIT)
    with DeviceManager(transport, store, MemorySink(), pods=pods) as manager:
        plugin = gpus(8)
        transport.connect(plugin)
        for number in range(4):
            pods.active.add(PodUid(f"p{number}"))
            assert isinstance(manager.admit(pod(f"p{number}")), Admitted)
        store.before_save = gate.wait
        in_thread(plugin.set_health, "gpu-7", Health.UNHEALTHY).result(LIMIT)
        assert gate.reached.wait(LIMIT)
        pods.active.discard(PodUid("p0"))
        in_thread(manager.evict, ["p0"]).result(LIMIT)
        pods.active.discard(PodUid("p1"))
        for number in range(100):  # the first admission finds that p1 has ended
            verdict = in_thread(manager.admit, pod(f"plain-{number}", 0)).result(LIMIT)
            assert isinstance(verdict, Admitted)
        assert set(manager.state.ledger.allocations) == {"p2", "p3"}
        assert manager.status.allocatable == {GPU: 7}
        waiting = in_thread(manager.admit, pod("waiting"))
        gate.release()
        pods.active.add(PodUid("waiting"))
        assert isinstance(waiting.result(LIMIT), Admitted)
    assert store.blob is not None
    data = decode(store.blob).verified()
    assert {entry.pod_uid for entry in data.entries or ()} == {"p2", "p3", "waiting"}
    assert len((data.registered_devices or {})[GPU] or ()) == 7
