"""The DRA manager's behavior that the recordings do not cover: concurrency, restarts, files, time and health."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeAlias
from zlib import crc32

import pytest
from attrs import define, evolve, field

from devicecore.adapters.memory import MemoryPods, MemoryStore
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDriverInstance, MemoryDriverTransport, MemorySlices
from devicecore.domain.dra import errors, health, releasing
from devicecore.domain.dra.answer_size import size_in_file
from devicecore.domain.dra.answers import PREPARE, UNPREPARE, PrepareResult, UnprepareResult
from devicecore.domain.dra.claims import ClaimCache, ClaimPhase
from devicecore.domain.dra.drivers import DriverRegistered, InstanceId
from devicecore.domain.dra.health import SECOND, ClaimHealth, ClaimHealthChanged, DraHealth, HealthCache, ReportedHealth
from devicecore.domain.dra.model import (
    AllocatedDevice,
    ClaimKey,
    ClaimRef,
    ClaimUid,
    DriverName,
    PreparedDevice,
    ResourceClaim,
)
from devicecore.domain.dra.preparing import AskDriver
from devicecore.domain.dra.state_file import ClaimEntry, StateWriter, decode, encode
from devicecore.domain.errors import (
    CalledFromInsideError,
    CorruptCheckpointError,
    DeviceCoreError,
    DirectoryError,
    StoreError,
)
from devicecore.domain.model import Container, ContainerClaim, Pod, PodClaim, PodUid
from devicecore.dra_manager import DraManager
from devicecore.dra_manager.driver_list import DriverList
from devicecore.dra_manager.health_record import HealthRecord
from devicecore.ports.dra_driver import DraDriver
from devicecore.ports.drivers import DriverListener
from devicecore.runtime.lanes import THREADS
from devicecore.runtime.run import Run

GPU, NIC = DriverName("gpu.example.com"), DriverName("nic.example.com")
Running: TypeAlias = "Future[Any]"  # futures of the manager's results
SECONDS = 60.0  # after which a test stops waiting for something that should happen at once


class Driver(DraDriver):
    """A driver that records its calls, and answers them at once unless its gate is closed."""

    def __init__(self, name: DriverName = GPU) -> None:
        self.name = name
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.is_called = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.held: tuple[str, ...] | None = None
        self.is_held = threading.Event()
        self.devices: tuple[PreparedDevice, ...] | None = None

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        self._note("prepare", claims)
        return {claim.uid: PrepareResult(self.devices or self._device(claim)) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        self._note("unprepare", claims)
        return {claim.uid: UnprepareResult() for claim in claims}

    def _note(self, method: str, claims: Sequence[ClaimRef]) -> None:
        self.calls.append((method, tuple(claim.key.name for claim in claims)))
        self.is_called.set()
        if self.held is None or self.held == (method, *(claim.key.name for claim in claims)):
            if self.held:
                self.is_held.set()
            assert self.gate.wait(SECONDS)

    def hold(self, *call: str) -> None:
        """Close the gate for calls with this method and these claims, or for all calls."""
        self.is_called.clear()
        self.held = call or None
        self.gate.clear()

    def _device(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        return (PreparedDevice("pool", f"{claim.key.name}-0", None, ("r",), (f"{self.name}/dev={claim.uid}",)),)


class Store(MemoryStore):
    """A store whose saves can be waited for."""

    def __init__(self, blob: bytes | None = None) -> None:
        super().__init__(blob)
        self._saved = threading.Condition()

    def save(self, blob: bytes) -> None:
        with self._saved:
            super().save(blob)
            self._saved.notify_all()

    def wait_for(self, condition: Callable[[ClaimCache], bool]) -> None:
        """Wait until the saved file satisfies `condition`."""
        with self._saved:
            assert self._saved.wait_for(lambda: self.blob is not None and condition(decode(self.blob).cache), SECONDS)


def users(claim: str, *pods: str) -> Callable[[ClaimCache], bool]:
    """Return the condition that exactly these pods use a claim."""
    return lambda cache: cache.claims[ClaimKey("default", claim)].pods == set(pods)


@define
class Node:
    """A manager with in-memory adapters, and a clock that stands still."""

    store: Store = field(factory=Store)
    health_store: MemoryStore = field(factory=MemoryStore)
    claims: MemoryClaims = field(factory=MemoryClaims)
    pods: MemoryPods = field(factory=MemoryPods)
    slices: MemorySlices = field(factory=MemorySlices)
    transport: MemoryDriverTransport = field(factory=MemoryDriverTransport)
    now: float = 1_000.0
    heard: list[ClaimHealthChanged] = field(factory=list)

    def manager(self, *drivers: Driver, fail_on_warnings: bool = False) -> DraManager:
        """Start a manager, and register these drivers."""
        self.transport = MemoryDriverTransport()
        manager = DraManager(
            self.transport,
            self.claims,
            self.store,
            pods=self.pods,
            slices=self.slices,
            health_store=self.health_store,
            observers=[self.heard.append],
            fail_on_warnings=fail_on_warnings,
            clock=lambda: self.now,
            wall_clock=lambda: int(self.now * SECOND),
        )
        manager.start()
        for driver in drivers:
            self.transport.register(driver)
        return manager

    def with_claim(self, *pods: str, **options: bool) -> tuple[DraManager, Driver]:
        """Start a manager with a driver, and create these pods' claim `claim`."""
        manager = self.manager(driver := Driver(), **options)
        self.claim("claim", *pods)
        return manager, driver

    def claim(
        self, name: str, *pods: str, drivers: Sequence[DriverName] = (GPU,), uid: str = "", skips: Sequence[str] = ()
    ) -> ResourceClaim:
        rows = tuple(AllocatedDevice(driver, "pool", f"{name}-0", "r", skips=frozenset(skips)) for driver in drivers)
        claim = ResourceClaim(ClaimKey("default", name), ClaimUid(uid or f"uid-of-{name}"), "", rows, frozenset(pods))
        self.claims.put(claim)
        return claim


def pod(name: str, *claims: str) -> Pod:
    container = Container("main", claims=[ContainerClaim(claim) for claim in claims])
    return Pod(PodUid(name), name=name, claims=[PodClaim(claim, claim) for claim in claims], containers=(container,))


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8)


def begun(pool: ThreadPoolExecutor, driver: Driver, call: Callable[..., object], *arguments: object) -> Running:
    """Make a call in another thread, and return once it hangs in the driver."""
    driver.is_called.clear()
    driver.gate.clear()
    future = pool.submit(call, *arguments)
    assert driver.is_called.wait(SECONDS)
    return future


def done(*futures: Running) -> None:
    finished, waiting = wait(futures, SECONDS)
    assert not waiting
    for future in finished:
        future.result()


# --- concurrent calls -----------------------------------------------------------------------------------------------


def test_two_pods_of_one_claim_that_start_together_call_the_driver_once(node: Node, pool: ThreadPoolExecutor) -> None:
    """A kubelet calls the driver twice, and then lists each device twice."""
    manager, driver = node.with_claim("a", "b")
    first = begun(pool, driver, manager.prepare, pod("a", "claim"))
    second = pool.submit(manager.prepare, pod("b", "claim"))
    node.store.wait_for(users("claim", "a", "b"))  # the second pod is entered in the claim before it waits
    driver.gate.set()
    done(first, second)
    assert driver.calls == [("prepare", ("claim",))]
    assert manager.claim_devices(pod("b", "claim"), "main") == ("gpu.example.com/dev=uid-of-claim",)


def test_a_claim_that_a_pod_enters_while_it_is_released_stays(node: Node, pool: ThreadPoolExecutor) -> None:
    """A kubelet deletes the claim although the pod uses it (kubernetes#140527)."""
    manager, driver = node.with_claim("a", "b")
    manager.prepare(pod("a", "claim"))
    release = begun(pool, driver, manager.unprepare, PodUid("a"))
    enter = pool.submit(manager.prepare, pod("b", "claim"))
    node.store.wait_for(users("claim", "a", "b"))
    driver.gate.set()
    done(release, enter)
    assert [method for method, _ in driver.calls] == ["prepare", "unprepare", "prepare"]
    assert manager.claims.claims[ClaimKey("default", "claim")].pods == {"b"}
    assert manager.claim_devices(pod("b", "claim"), "main")


def test_a_claim_that_was_prepared_again_is_released_again(node: Node, pool: ThreadPoolExecutor) -> None:
    """Another pod starts and ends while the first one is released. The second preparation must be undone, too."""
    manager = node.manager(gpu := Driver(GPU), nic := Driver(NIC))
    node.claim("both", "x", "y", drivers=[GPU, NIC])
    node.claim("late", "x", drivers=[NIC])
    manager.prepare(pod("x", "both", "late"))
    gpu.hold()
    release = pool.submit(manager.unprepare, PodUid("x"))
    assert gpu.is_called.wait(SECONDS)
    nic.hold("unprepare", "late")
    enter = pool.submit(manager.prepare, pod("y", "both"))
    node.store.wait_for(users("both", "x", "y"))
    gpu.gate.set()
    done(enter)
    assert nic.is_held.wait(SECONDS)
    manager.unprepare(PodUid("y"))
    nic.gate.set()
    done(release)
    assert gpu.calls[1:] == [("unprepare", ("both",)), ("prepare", ("both",)), ("unprepare", ("both",))]
    assert nic.calls[-1] == ("unprepare", ("both",))
    assert not manager.claims.claims


@pytest.mark.parametrize("release", [lambda manager: manager.unprepare(PodUid("a")), DraManager.reconcile])
def test_a_claim_that_was_prepared_again_at_the_last_moment_is_released_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, release: Callable[[DraManager], object]
) -> None:
    """Another pod starts and ends after the driver has been called and before the claim is forgotten."""
    manager, driver = node.with_claim("a", "b")
    manager.prepare(pod("a", "claim"))
    others = [pod("b", "claim")]

    def next_to_release(*arguments: Any) -> AskDriver | None:  # noqa: ANN401 - as of the function that it replaces
        ask = releasing.next_to_release(*arguments)
        if ask is None and others:
            other = others.pop()
            manager.prepare(other)
            manager.unprepare(other.uid)
        return ask

    monkeypatch.setattr("devicecore.dra_manager.release.next_to_release", next_to_release)
    assert not release(manager)
    assert [method for method, _ in driver.calls] == ["prepare", "unprepare", "prepare", "unprepare"]
    assert not manager.claims.claims


def test_a_driver_that_hangs_delays_no_other_pod(node: Node, pool: ThreadPoolExecutor) -> None:
    manager = node.manager(hanging := Driver(GPU), other := Driver(NIC))
    node.claim("slow", "a", drivers=[GPU])
    node.claim("quick", "a", "b", drivers=[NIC])
    stuck = begun(pool, hanging, manager.prepare, pod("a", "slow", "quick"))
    # The pod that hangs also uses the claim `quick`, but has not prepared it yet.
    done(pool.submit(manager.prepare, pod("b", "quick")))
    assert manager.claim_devices(pod("b", "quick"), "main")
    done(pool.submit(manager.unprepare, PodUid("b")))
    assert not stuck.done()
    hanging.gate.set()
    done(stuck)
    assert other.calls == [("prepare", ("quick",))]


def test_a_driver_that_hangs_delays_no_other_release(node: Node, pool: ThreadPoolExecutor) -> None:
    manager = node.manager(hanging := Driver(GPU), other := Driver(NIC))
    node.claim("slow", "a", drivers=[GPU])
    node.claim("quick", "b", drivers=[NIC])
    manager.prepare(pod("a", "slow"))
    manager.prepare(pod("b", "quick"))
    hanging.gate.clear()
    other.is_called.clear()
    reconcile = pool.submit(manager.reconcile)
    assert other.is_called.wait(SECONDS)
    node.store.wait_for(lambda cache: ClaimKey("default", "quick") not in cache.claims)
    assert not reconcile.done()
    hanging.gate.set()
    done(reconcile)
    assert not manager.claims.claims


def test_a_pod_that_is_being_prepared_is_not_released_at_the_same_time(node: Node, pool: ThreadPoolExecutor) -> None:
    manager, driver = node.with_claim("a")
    prepare = begun(pool, driver, manager.prepare, pod("a", "claim"))
    assert manager.reconcile() == {}
    driver.gate.set()
    done(prepare)
    assert driver.calls == [("prepare", ("claim",))]


def test_a_driver_that_calls_the_manager_for_its_own_claim_is_refused(node: Node) -> None:
    manager = node.manager()

    class Calling(Driver):
        def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
            with pytest.raises(errors.PrepareError) as refused:
                manager.prepare(pod("b", "shared"))
            assert isinstance(refused.value.cause, CalledFromInsideError)
            return super().prepare(claims)

    node.transport.register(Calling())
    node.claim("shared", "a", "b")
    manager.prepare(pod("a", "shared"))


def test_an_event_of_a_former_run_changes_nothing() -> None:
    """`DriverList` and `HealthRecord` check the run themselves, because a stop may come while an event is delivered."""
    former, current, instance = Run(), Run(), InstanceId(GPU, "/socket", "v1.DRAPlugin", 1)
    drivers, record = DriverList(None, lambda: 0.0), HealthRecord(store := MemoryStore(), lambda: 0)
    for run in (former, current):
        drivers.begin(run)
        record.begin(run)
    for change in (
        lambda: drivers.apply(former, DriverRegistered(instance)),
        lambda: record.report(former, GPU, [ReportedHealth("pool", "dev", DraHealth.UNHEALTHY)]),
        lambda: record.clear(former, GPU),
    ):
        with pytest.raises(errors.DraStoppedError):
            change()
    assert (drivers.registry.instances, record.cache, store.load()) == ({}, HealthCache(), None)


# --- restarts and files -----------------------------------------------------------------------------------------------


def test_a_restart_asks_again_and_has_each_device_once(node: Node) -> None:
    """A kubelet lists the device twice (kubernetes#140471)."""
    driver = Driver()
    node.manager()
    node.claim("shared", "a", "b")
    for user in ("a", "b"):
        manager = node.manager(driver)
        manager.prepare(pod(user, "shared"))
    assert [method for method, _ in driver.calls] == ["prepare", "prepare"]
    assert manager.claim_devices(pod("b", "shared"), "main") == ("gpu.example.com/dev=uid-of-shared",)
    manager.unprepare(PodUid("a"))
    manager.unprepare(PodUid("b"))
    assert [method for method, _ in driver.calls] == ["prepare", "prepare", "unprepare"]


def test_a_driver_whose_devices_need_no_calls_is_neither_called_nor_needed(node: Node) -> None:
    """Kubernetes has done this since 1.37 (KEP-5945)."""
    manager = node.manager()
    node.claim("virtual", "a", skips=["*"])
    manager.prepare(pod("a", "virtual"))
    manager = node.manager()
    assert manager.claims.claims[ClaimKey("default", "virtual")].skips == {GPU: {PREPARE, UNPREPARE}}
    manager.prepare(pod("a", "virtual"))
    assert manager.claim_devices(pod("a", "virtual"), "main") == ()
    manager.unprepare(PodUid("a"))
    assert not manager.claims.claims


@pytest.mark.parametrize(
    ("skips", "called"),
    [((["NodeUnprepareResources"], ["*"]), ["prepare"]), ((["*"], []), ["prepare", "unprepare"])],
    ids=["what both devices skip", "nothing, if one device needs all"],
)
def test_a_call_is_skipped_if_no_device_of_the_driver_needs_it(
    node: Node, skips: Sequence[Sequence[str]], called: Sequence[str]
) -> None:
    manager = node.manager(driver := Driver())
    claim = node.claim("claim", "a")
    results = tuple(AllocatedDevice(GPU, "pool", "claim-0", "r", skips=frozenset(one)) for one in skips)
    node.claims.put(evolve(claim, allocation=results))
    manager.prepare(pod("a", "claim"))
    manager.unprepare(PodUid("a"))
    assert [method for method, _ in driver.calls] == called


@pytest.mark.parametrize("written", [b'["*"]', b'{"*":{}}', b'["*","Unknown"]'])
def test_the_calls_to_skip_are_read_from_a_kubelets_file_in_any_form(written: bytes) -> None:
    entry = b'{"ClaimUID":"u","ClaimName":"c","Namespace":"n","PodUIDs":{},"DriverState":{"%b":{"Devices":null%b}}}'
    data = b'{"ClaimInfoStateList":[' + entry % (GPU.encode(), b',"SkipNodeOperations":' + written) + b"]}"
    blob = json.dumps({"Data": data.decode(), "Checksum": crc32(data)}).encode()
    (claim,) = decode(blob).cache.claims.values()
    assert claim.skips_call(GPU, PREPARE)
    assert b'\\"SkipNodeOperations\\":[\\"*\\"' in StateWriter().encode(ClaimCache.of([claim]))


def test_after_a_restart_a_pod_that_runs_on_has_its_devices(node: Node) -> None:
    manager, _ = node.with_claim("a")
    manager.prepare(pod("a", "claim"))
    assert node.manager().claim_devices(pod("a", "claim"), "main") == ("gpu.example.com/dev=uid-of-claim",)


@pytest.mark.parametrize("next_run", [False, True], ids=["after a stop", "in the next run"])
def test_an_answer_of_a_run_that_is_over_is_not_saved(node: Node, pool: ThreadPoolExecutor, next_run: bool) -> None:
    manager, driver = node.with_claim("a")
    prepare = begun(pool, driver, manager.prepare, pod("a", "claim"))
    manager.stop()
    if next_run:
        manager.start()
    before = node.store.blob
    driver.gate.set()
    with pytest.raises(errors.PrepareError, match="the DRA manager is not running") as failed:
        prepare.result(SECONDS)
    assert isinstance(failed.value.cause, errors.DraStoppedError)
    assert (node.store.blob, manager.claims.claims[ClaimKey("default", "claim")].drivers) == (before, {GPU: None})


def test_starting_and_stopping_twice_is_once(node: Node) -> None:
    manager, _ = node.with_claim("a")
    manager.prepare(pod("a", "claim"))
    manager.start()
    assert manager.claims.claims[ClaimKey("default", "claim")].phase is ClaimPhase.PREPARED
    manager.stop()
    manager.stop()
    with pytest.raises(errors.UnprepareError, match="unprepare dynamic resources: the DRA manager is not running"):
        manager.unprepare(PodUid("a"))
    for call in (manager.reconcile, manager.wipe_slices, manager.tick):
        with pytest.raises(errors.DraStoppedError):
            call()


@pytest.mark.parametrize("call", ["tick", "reconcile", "wipe_slices"])
def test_a_manager_that_was_never_started_says_so(call: str) -> None:
    with pytest.raises(errors.DraNotStartedError, match=r"call start\(\) first"):
        getattr(DraManager(MemoryDriverTransport(), MemoryClaims(), Store()), call)()


def test_a_file_that_cannot_be_used_is_set_aside_and_reported(node: Node) -> None:
    """A kubelet does not start if it cannot use the file (kubernetes#123552)."""
    node.store.blob = b'{"Data":"x","Checksum":1}'
    manager = node.manager()
    assert isinstance(manager.restored.problem, CorruptCheckpointError)
    assert manager.restored.set_aside == "aside[0]"
    assert node.store.aside == [b'{"Data":"x","Checksum":1}']
    assert not manager.claims.claims
    assert manager.restored.problem.__traceback__ is None, "the frames of the traceback hold the manager"


def test_a_start_without_its_transport_leaves_the_file_as_it_is(node: Node) -> None:
    """Another process may own the file. The next start reports the file's problem."""

    class Broken(MemoryDriverTransport):
        def start(self, listener: DriverListener) -> None:
            if not is_mended:
                raise DirectoryError("plugins_registry", "Permission denied")
            super().start(listener)

    is_mended = False
    manager = DraManager(Broken(), node.claims, node.store)
    node.store.blob = b'{"Data":"x","Checksum":1}'
    with pytest.raises(DirectoryError):
        manager.start()
    assert (node.store.blob, node.store.aside) == (b'{"Data":"x","Checksum":1}', [])
    is_mended = True
    manager.start()
    assert isinstance(manager.restored.problem, CorruptCheckpointError)


def test_problems_found_on_start_are_reported(node: Node) -> None:
    entry = ClaimEntry("uid", "claim", "default", ("a",), {GPU: None})
    node.store.blob = encode([entry, evolve(entry, name="other", pods=("b",))])
    assert node.manager().restored.claims == 2


def test_a_file_that_can_be_neither_used_nor_set_aside_fails_the_start(node: Node) -> None:
    class Broken(Store):
        def set_aside(self) -> str | None:
            raise StoreError("dra_manager_state", "set aside", "read-only file system")

    node.store = Broken(b"x")
    with pytest.raises(StoreError, match="read-only file system"):
        node.manager()


def test_a_full_disk_fails_a_pod_before_a_driver_is_called(node: Node) -> None:
    class Full(Store):
        def save(self, blob: bytes) -> None:
            raise StoreError("dra_manager_state", "write", "no space left on device")

    node.store = Full()
    manager, driver = node.with_claim("a")
    with pytest.raises(errors.PrepareError) as failed:
        manager.prepare(pod("a", "claim"))
    assert isinstance(failed.value.cause, errors.SaveClaimsError)
    assert str(failed.value) == (
        "prepare dynamic resources: checkpoint ResourceClaim cache: "
        "could not save checkpoint dra_manager_state: no space left on device"
    )
    assert driver.calls == []
    assert not manager.claims.claims


def test_a_claim_that_no_pod_uses_is_released(node: Node) -> None:
    """A kubelet would keep the claim forever."""
    node.store.blob = encode([ClaimEntry("uid", "claim", "default", (), {GPU: None})])
    manager = node.manager(driver := Driver())
    assert manager.reconcile() == {}
    assert driver.calls == [("unprepare", ("claim",))]
    assert node.store.blob is not None
    assert decode(node.store.blob).entries == ()


def test_nothing_is_released_before_all_pods_are_known(node: Node) -> None:
    manager, driver = node.with_claim("a")
    manager.prepare(pod("a", "claim"))
    node.pods.ready = False
    manager.reconcile()
    assert driver.calls == [("prepare", ("claim",))]


def test_a_release_that_fails_is_returned_and_tried_again(node: Node) -> None:
    manager, driver = node.manager(), Driver()
    instance = node.transport.register(driver)
    node.claim("claim", "a")
    manager.prepare(pod("a", "claim"))
    instance.remove()
    failed = manager.reconcile()
    assert isinstance(failed[PodUid("a")], errors.DriverNotRegisteredError)
    node.transport.register(driver)
    node.now += 60
    manager.tick()
    assert not manager.claims.claims


def test_releases_that_cannot_be_saved_are_returned_for_each_pod_and_tried_again(node: Node) -> None:
    class Full(Store):
        is_full = False

        def save(self, blob: bytes) -> None:
            if self.is_full:
                raise StoreError("dra_manager_state", "write", "no space left on device")
            super().save(blob)

    node.store = store = Full()
    manager = node.manager(driver := Driver())
    for name in ("a", "b"):
        node.claim(name, name)
        manager.prepare(pod(name, name))
    store.is_full = True
    failed = {pod: type(error) for pod, error in manager.reconcile().items()}  # an error would keep the manager alive
    assert failed == dict.fromkeys(["a", "b"], errors.SaveClaimsError)
    assert len(manager.claims.claims) == 2
    store.is_full = False
    node.now += 60
    manager.tick()
    assert not manager.claims.claims
    assert [method for method, _ in driver.calls].count("unprepare") == 4


def with_pods_of_drivers(node: Node, count: int) -> tuple[DraManager, list[Driver]]:
    """Return a manager with a pod for each of `count` drivers."""
    drivers = [Driver(DriverName(f"{number:02}.example.com")) for number in range(count)]
    manager = node.manager()
    for driver in drivers:
        node.transport.register(driver)
        node.claim(driver.name, driver.name, drivers=[driver.name])
        manager.prepare(pod(driver.name, driver.name))
        driver.is_called.clear()
    return manager, drivers


def test_pods_of_many_drivers_are_released_in_few_threads(
    node: Node, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One driver hangs until all others have been called."""
    manager, (hanging, *others) = with_pods_of_drivers(node, 2 * THREADS)
    started: list[str] = []
    start = threading.Thread.start

    def counting(self: threading.Thread) -> None:
        started.append(self.name)
        start(self)

    hanging.gate.clear()
    monkeypatch.setattr(threading.Thread, "start", counting)
    reconcile = pool.submit(manager.reconcile)
    for other in others:
        assert other.is_called.wait(SECONDS)
    assert not reconcile.done()
    hanging.gate.set()
    done(reconcile)
    assert not manager.claims.claims
    assert 0 < started.count("devicecore-lane") < THREADS * 2


def test_pods_are_released_if_no_thread_can_be_started(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, _ = with_pods_of_drivers(node, 3)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert manager.reconcile() == {}
    assert not manager.claims.claims


def test_a_call_that_waits_too_long_for_another_one_fails(
    node: Node, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, driver = node.with_claim("a", "b")
    stuck = begun(pool, driver, manager.prepare, pod("a", "claim"))
    monkeypatch.setattr("devicecore.dra_manager.preparation.TURN_PATIENCE", 0.01)
    with pytest.raises(errors.PrepareError, match=r"call for the same pod or claim is still under way after 0\.01 s"):
        manager.prepare(pod("b", "claim"))
    driver.gate.set()
    done(stuck)
    manager.prepare(pod("b", "claim"))


def test_a_stop_inside_an_event_of_a_driver_is_an_error(node: Node) -> None:
    """Otherwise, the event would wait for the stop, and the transport's stop would wait for the event."""
    errors: list[CalledFromInsideError] = []

    def stop(_: ClaimHealthChanged) -> None:
        try:
            manager.stop()
        except CalledFromInsideError as error:
            errors.append(error)

    manager = DraManager(node.transport, node.claims, node.store, observers=[stop])
    with manager:
        instance = node.transport.register(Driver())
        node.claim("claim", "a")
        manager.prepare(pod("a", "claim"))
        instance.report(healthy())
    assert [error.inside for error in errors] == ["an event of the DriverTransport"]


def test_claims_in_use_are_those_that_are_prepared_since_the_start(node: Node) -> None:
    manager = node.manager(Driver(GPU), Driver(NIC))
    node.claim("one", "a", drivers=[GPU])
    node.claim("both", "a", drivers=[GPU, NIC])
    manager.prepare(pod("a", "one", "both"))
    assert manager.claims.in_use() == {"<any>": 2, GPU: 2, NIC: 1}
    assert node.manager().claims.in_use() == {"<any>": 0}


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_device_that_is_not_allocated_is_reported(node: Node) -> None:
    manager, driver = node.with_claim("a")
    driver.devices = (PreparedDevice("pool", "other", None, ("s",), ("no name",)),)
    assert manager.prepare(pod("a", "claim")).warnings == (
        "gpu.example.com returned device 'pool'/'other', which is not allocated to the claim",
        "gpu.example.com returned device 'pool'/'other' with the CDI name 'no name': expected vendor/class=device",
        "gpu.example.com returned device 'pool'/'other' for the request 's', which the claim does not have",
    )
    assert manager.claim_devices(pod("a", "claim"), "main") == ("no name",)


def test_a_device_that_is_not_allocated_is_refused_if_that_is_wanted(node: Node) -> None:
    manager, driver = node.with_claim("a", fail_on_warnings=True)
    driver.devices = (PreparedDevice("pool", "other"),)
    with pytest.raises(errors.PrepareError) as refused:
        manager.prepare(pod("a", "claim"))
    assert isinstance(refused.value.cause, errors.ClaimFailedError)
    assert manager.claims.claims[ClaimKey("default", "claim")].drivers == {GPU: None}
    driver.devices = None
    assert manager.prepare(pod("a", "claim")).warnings == ()


# --- drivers and slices -----------------------------------------------------------------------------------------------


def test_a_call_goes_to_the_newest_connected_instance(node: Node) -> None:
    manager = node.manager()
    drivers = [Driver() for _ in range(3)]
    instances: list[MemoryDriverInstance] = [node.transport.register(driver) for driver in drivers]
    node.claim("claim", "a")
    instances[2].disconnect()
    manager.prepare(pod("a", "claim"))
    assert [len(driver.calls) for driver in drivers] == [0, 1, 0]
    for instance in instances:
        instance.disconnect()
    with pytest.raises(errors.UnprepareError, match="Unavailable desc = connection error"):
        manager.unprepare(PodUid("a"))
    instances[1].remove()
    instances[2].remove()
    instances[0].connect()
    manager.unprepare(PodUid("a"))
    assert [len(driver.calls) for driver in drivers] == [1, 1, 0]


def test_an_endpoint_is_registered_once(node: Node) -> None:
    node.manager()
    node.transport.register(Driver(), "/run/dra.sock")
    with pytest.raises(errors.DriverAlreadyRegisteredError):
        node.transport.register(Driver(), "/run/dra.sock")
    node.transport.register(Driver(NIC), "/run/dra.sock")


def test_a_driver_without_a_known_service_is_refused(node: Node) -> None:
    node.manager()
    with pytest.raises(errors.UnsupportedServicesError, match=r'\(\["1\.0\.0" "v2"\]\) are supported'):
        node.transport.register(Driver(), services=["1.0.0", "v2"])
    with pytest.raises(errors.UnsupportedServicesError, match="empty list of supported gRPC services"):
        node.transport.register(Driver(), services=[])


def test_slices_of_all_drivers_are_deleted_at_the_start(node: Node) -> None:
    node.slices.publish(GPU, ["s"])
    manager = node.manager()
    assert node.slices.slices == {GPU: {"s"}}
    manager.tick()
    assert node.slices.slices == {}
    node.slices.publish(GPU, ["s"])
    manager.tick()
    assert node.slices.slices == {GPU: {"s"}}


def test_slices_are_deleted_30_seconds_after_the_last_connection(node: Node) -> None:
    manager = node.manager()
    manager.tick()
    first, second = node.transport.register(Driver()), node.transport.register(Driver())
    node.transport.register(Driver(NIC))
    node.slices.publish(GPU, ["g"])
    node.slices.publish(NIC, ["n"])
    first.disconnect()
    node.now += 100
    manager.tick()
    second.disconnect()
    node.now += 29
    manager.tick()
    assert node.slices.slices == {GPU: {"g"}, NIC: {"n"}}
    node.now += 1
    manager.tick()
    assert node.slices.slices == {NIC: {"n"}}


def test_a_driver_that_goes_step_by_step_puts_no_deletion_off(node: Node) -> None:
    manager = node.manager()
    manager.tick()
    instance = node.transport.register(Driver())
    node.slices.publish(GPU, ["g"])
    instance.disconnect()
    node.now += 20
    instance.remove()
    node.now += 10
    manager.tick()
    assert node.slices.slices == {}


def test_slices_of_a_driver_that_is_back_within_30_seconds_stay(node: Node) -> None:
    manager = node.manager()
    manager.tick()
    instance = node.transport.register(Driver())
    node.slices.publish(GPU, ["g"])
    instance.remove()
    node.now += 29
    node.transport.register(Driver())
    node.now += 100
    manager.tick()
    assert node.slices.slices == {GPU: {"g"}}


def test_a_deletion_of_slices_that_fails_after_a_restart_delays_nothing(node: Node) -> None:
    """The deletion that failed belongs to the previous run. In this run, the slices still have to be deleted."""

    class Restarting(MemorySlices):
        def delete(self, driver: DriverName | None) -> None:
            manager.stop()
            manager.start()
            raise errors.SliceError("the API server is down")

    node.slices = Restarting()
    manager = node.manager()
    assert set(manager.wipe_slices()) == {None}
    assert manager.drivers.due(node.now) == (None,)


def test_a_deletion_of_slices_that_fails_is_not_tried_again_if_the_driver_is_back(node: Node) -> None:
    class Late(MemorySlices):
        def delete(self, driver: DriverName | None) -> None:
            if driver is not None:
                instance.connect()
                raise errors.SliceError("the API server is down")

    node.slices = Late()
    manager = node.manager()
    manager.tick()
    instance = node.transport.register(Driver())
    instance.disconnect()
    node.now += 30
    assert set(manager.wipe_slices()) == {GPU}
    assert manager.drivers.is_connected(GPU)
    assert manager.drivers.wipes == {}


def test_a_deletion_of_slices_that_fails_is_tried_again_forever(node: Node) -> None:
    """A kubelet gives up after nine tries."""

    class Away(MemorySlices):
        tries: int = 0

        def delete(self, driver: DriverName | None) -> None:
            self.tries += 1
            raise errors.SliceError("connection refused")

    node.slices = away = Away()
    manager = node.manager()
    waits = []
    for _ in range(14):
        assert set(manager.wipe_slices()) == {None}
        (wipe,) = manager.drivers.wipes.values()
        waits.append(wipe.due - node.now)
        node.now = wipe.due - 0.5
        assert manager.wipe_slices() == {}
        node.now = wipe.due
    assert waits[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert set(waits[9:]) == {300}
    assert away.tries == 14


# --- health -----------------------------------------------------------------------------------------------------------


def healthy(device: str = "claim-0", limit: int = 0, message: str = "") -> ReportedHealth:
    return ReportedHealth("pool", device, DraHealth.HEALTHY, limit, message)


def test_the_health_of_claimed_devices_is_reported(node: Node) -> None:
    manager = node.manager()
    instance = node.transport.register(Driver())
    node.claim("claim", "a", "b")
    manager.prepare(pod("a", "claim"))
    manager.prepare(pod("b", "claim"))
    instance.report(healthy(), healthy("other"))
    instance.report(healthy())
    assert [(change.driver, change.pods) for change in node.heard] == [(GPU, ("a", "b"))]
    (status,) = manager.allocated_resources_status(pod("a", "claim"))["main"]
    assert status.resources[0].health is DraHealth.HEALTHY
    node.now += 30
    (status,) = manager.allocated_resources_status(pod("a", "claim"))["main"]
    assert status.resources[0].health is DraHealth.HEALTHY, "a report that is as old as the limit still counts"
    node.now += 1
    (status,) = manager.allocated_resources_status(pod("a", "claim"))["main"]
    assert status.resources[0].health is DraHealth.UNKNOWN


def test_a_claimed_request_without_devices_is_reported_so_that_its_status_can_be_removed(node: Node) -> None:
    manager, _ = node.with_claim("a")
    manager.prepare(pod("a", "claim"))
    container = Container("main", claims=(ContainerClaim("claim", "other"), ContainerClaim("unknown", "r")))
    status = manager.allocated_resources_status(evolve(pod("a", "claim"), containers=(container,)))
    assert status == {"main": (ClaimHealth("claim:claim/other", ()),)}


def test_a_report_that_changes_nothing_is_not_saved(node: Node) -> None:
    node.manager()
    instance = node.transport.register(Driver())
    instance.report(healthy())
    saved = node.health_store.blob
    node.now += 10
    instance.report(healthy())
    assert node.health_store.blob == saved
    instance.report(healthy(message="fine"))
    assert node.health_store.blob != saved


def test_health_survives_a_restart_and_a_bad_file_means_no_health(node: Node) -> None:
    node.manager()
    node.transport.register(Driver()).report(healthy(limit=100, message="fine"))
    node.now += 50
    manager = node.manager()
    assert manager.health.health(GPU, "pool", "claim-0", int(node.now * SECOND)) == (DraHealth.HEALTHY, "fine")
    node.health_store.blob = b"[]"
    assert not node.manager().health.drivers


def test_a_driver_whose_reports_are_too_large_is_logged_once(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "MAX_SIZE_OF_DRIVER", 250)
    manager = node.manager()
    instance = node.transport.register(Driver())
    for number in range(0, 8, 2):
        instance.report(healthy(f"d{number}"), healthy(f"d{number + 1}"))
    assert list(manager.health.drivers[GPU]) == ["pool/d6", "pool/d7"]
    told = f"the health of 2 devices of {GPU} is not kept, because the driver's reports are too large"
    assert caplog.messages.count(told) == 1


def test_health_stays_while_another_instance_reports(node: Node) -> None:
    """A kubelet forgets the devices' health (kubernetes#140818)."""
    manager = node.manager()
    old, new = node.transport.register(Driver()), node.transport.register(Driver())
    old.report(healthy())
    new.report(healthy())
    old.end_health()
    assert GPU in manager.health.drivers
    new.remove()
    assert GPU not in manager.health.drivers


def test_an_observer_that_fails_changes_nothing(node: Node) -> None:
    def failing(_: ClaimHealthChanged) -> None:
        raise RuntimeError("no")

    manager = DraManager(MemoryDriverTransport(), node.claims, node.store, observers=[failing, node.heard.append])
    with manager:
        transport = manager._transport  # noqa: SLF001 - the transport of this manager
        assert isinstance(transport, MemoryDriverTransport)
        instance = transport.register(Driver())
        node.claim("claim", "a")
        manager.prepare(pod("a", "claim"))
        instance.report(healthy())
    assert len(node.heard) == 1


@pytest.mark.parametrize("days", [-36_500, 36_500])
def test_health_does_not_expire_because_the_machines_clock_is_set(days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that has just reported must not count as silent, and a silent driver must not count as reporting."""
    manager = DraManager(MemoryDriverTransport(), MemoryClaims(), MemoryStore())
    before = manager.now
    monkeypatch.setattr("time.time_ns", lambda: before + days * 86_400 * SECOND)
    assert before <= manager.now < before + health.DEFAULT_LIMIT


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_call_that_is_over_has_given_its_turns_back(node: Node, pool: ThreadPoolExecutor) -> None:
    """Otherwise, the next call in another thread would have to wait until it checks for abandoned turns."""
    manager = node.manager()
    instance = node.transport.register(Driver())
    node.claim("claim", "a", "b", "c")
    node.claim("other", "c", drivers=[NIC])

    def has_ended(call: Callable[..., object], *arguments: object) -> None:
        with suppress(DeviceCoreError):
            pool.submit(call, *arguments).result(SECONDS)
        assert manager._turns._taken == {}  # noqa: SLF001 - the call that waits would hide it

    has_ended(manager.prepare, pod("a", "claim"))
    has_ended(manager.prepare, pod("b", "claim"))
    has_ended(manager.prepare, pod("c", "claim", "other"))  # the driver of `other` is not registered
    has_ended(manager.unprepare, PodUid("a"))
    instance.remove()
    has_ended(manager.unprepare, PodUid("b"))
    has_ended(manager.reconcile)
    node.transport.register(Driver())
    has_ended(manager.reconcile)
    assert not manager.claims.claims


def test_devices_are_forgotten_only_if_they_do_not_fit_into_the_room() -> None:
    devices = {str(number): health.DeviceHealth("pool", f"d{number}", DraHealth.HEALTHY, 0, 0) for number in range(3)}
    size = health._size(devices.values())  # noqa: SLF001 - a file of that size would take the test seconds
    assert health._fitting(devices, size) == (devices, size)  # noqa: SLF001 - as above
    fitting, less = health._fitting(devices, size - 1)  # noqa: SLF001 - as above
    assert ([*fitting], less) == (["0", "1"], size * 2 // 3)


def test_a_backslash_of_a_name_is_escaped_twice_in_the_file() -> None:
    def size(name: str) -> int:
        return size_in_file((PreparedDevice("pool", name, None, ("r",), (f"{GPU}/dev={name}",)),))

    assert size("\\" * 400) - size("a" * 400) == 2 * 400 * 3  # the name occurs twice
