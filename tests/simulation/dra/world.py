"""A node with claims, drivers, an API server and a disk, where any call may fail.

The world plays actions on a `DraManager`. Before an action, a fault can be set for one of the calls that the action
makes to a port. The laws are checked after each action and during each call to a driver. Violations are recorded in
`broken`, because an exception in a driver would count as the driver's own.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import pytest
from attrs import define, field, frozen

from devicecore.adapters.memory import MemoryPods
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDraMetrics, MemoryDriverTransport, MemorySlices
from devicecore.domain.dra.answers import PREPARE, UNPREPARE, PrepareResult, UnprepareResult
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.errors import (
    ClaimSourceError,
    DriverCallError,
    FetchClaimError,
    NotAllocatedError,
    NotReservedError,
    PrepareError,
)
from devicecore.domain.dra.model import (
    AllocatedDevice,
    ClaimKey,
    ClaimRef,
    ClaimUid,
    DriverName,
    PreparedDevice,
    ResourceClaim,
)
from devicecore.domain.dra.state_file import decode
from devicecore.domain.errors import DeviceCoreError, StoreError
from devicecore.domain.model import Container, ContainerClaim, Pod, PodClaim, PodUid
from devicecore.dra_manager import DraManager
from devicecore.ports.dra_driver import DraDriver
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.turns import Turn, Turns

Result = TypeVar("Result")

A, B = DriverName("a.example.com"), DriverName("b.example.com")

CLAIMS: Mapping[str, Sequence[tuple[DriverName, str]]] = {
    "one": [(A, "a-0"), (A, "a-1")],
    "two": [(A, "a-2"), (B, "b-0")],
    "three": [(B, "b-1")],
}
PODS: Mapping[str, Sequence[str]] = {"first": ["one", "two"], "second": ["two", "three"], "third": ["one"]}

PATIENCE = 60.0  # seconds after which a test stops waiting for something that should happen at once
_HELD = 1.0  # seconds after which a lock counts as held for the whole call, not just briefly


class PowerCutError(BaseException):
    """Raised at the point where the process would end. Only the world catches it."""


@frozen
class Fault:
    """A fault in a call to a port: the call's number since the fault was set, and what happens in the call."""

    call: int
    kind: str
    beside: "Action | None" = None  # for the kind `beside`: what another thread does during the call


Action = tuple[str, ...]
"""The name of an action, and the pod, claim or driver that it affects, if any."""

DRIVER_FAULTS = (
    "error",
    "exception",
    "silent, done",
    "silent, not done",
    "missing",
    "unknown",
    "claim error",
    "power cut before",
    "power cut after",
)
DISK_FAULTS = ("full", "power cut before", "power cut after")
API_FAULTS = ("away", "power cut before")
FAULTS = {"driver": DRIVER_FAULTS, "disk": DISK_FAULTS, "api": API_FAULTS}


class WatchedTurns(Turns[Hashable]):
    """Turns that notify the world when a thread is about to wait for one of them."""

    waits: Callable[[], None] = staticmethod(lambda: None)

    def begin(self, keys: tuple[Hashable, ...], call: OpenCall, patience: float, method: str) -> Turn[Hashable] | None:
        turn = super().begin(keys, call, 0.0, method)
        if turn is None:
            WatchedTurns.waits()
            turn = super().begin(keys, call, patience, method)
        return turn


@define(eq=False)
class Disk:
    """A `CheckpointStore` in which each save is a call that may fail."""

    world: "World"
    blob: bytes | None = None

    def load(self) -> bytes | None:
        return self.blob

    def save(self, blob: bytes) -> None:
        fault = self.world.call("disk")
        if fault == "full":
            raise StoreError("dra_manager_state", "write", "no space left on device")
        if fault == "power cut before":
            raise PowerCutError
        self.blob = blob
        self.world.saves += 1
        if fault == "power cut after":
            raise PowerCutError

    def set_aside(self) -> str | None:
        raise AssertionError("the manager set its own file aside")


class ApiServer(MemoryClaims):
    """A `ClaimSource` that may be unavailable."""

    world: "World"

    def get(self, key: ClaimKey) -> ResourceClaim:
        fault = self.world.call("api")
        if fault == "away":
            raise ClaimSourceError("the server is currently unable to handle the request")
        if fault == "power cut before":
            raise PowerCutError
        return super().get(key)


@define(eq=False)
class Driver(DraDriver):
    """A driver that remembers what it has prepared."""

    name: DriverName
    world: "World"
    prepared: set[ClaimUid] = field(factory=set)
    called: set[ClaimUid] = field(factory=set)

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        self.world.check_prepare_call(self, claims)
        with self._calling(claims):
            return self._prepare(claims)

    def _prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        fault = self._fault(PREPARE)
        self.prepared.update(claim.uid for claim in claims)
        answer = {claim.uid: PrepareResult(self.devices(claim)) for claim in claims}
        return self._spoilt(PREPARE, fault, answer, PrepareResult(), PrepareResult((), "out of order"))

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        self.world.check_unprepare_call(self, claims)
        with self._calling(claims):
            return self._unprepare(claims)

    def _unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        fault = self._fault(UNPREPARE)
        failed = {claims[0].uid} if fault == "claim error" else set()
        self.prepared.difference_update(claim.uid for claim in claims if claim.uid not in failed)
        answer = {claim.uid: UnprepareResult() for claim in claims}
        return self._spoilt(UNPREPARE, fault, answer, UnprepareResult(), UnprepareResult("out of order"))

    @contextmanager
    def _calling(self, claims: Sequence[ClaimRef]) -> Iterator[None]:
        """Check that the driver gets at most one call at a time for each claim."""
        uids = {claim.uid for claim in claims}
        if self.called & uids:
            self.world.broken.append(f"{self.name} has two calls at once for {self.called & uids}")
        self.called |= uids
        try:
            yield
        finally:
            self.called -= uids

    def devices(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        own = [result for result in self.world.allocations[claim.uid] if result.driver == self.name]
        return tuple(
            PreparedDevice(result.pool, result.device, None, ("r",), (f"{self.name}/dev={claim.uid}-{result.device}",))
            for result in own
        )

    def _fault(self, method: str) -> str | None:
        """Return this call's fault, or raise the fault's error if the fault takes effect before the driver's work."""
        fault = self.world.call("driver")
        if fault == "power cut before":
            raise PowerCutError
        if fault == "error":
            raise DriverCallError(method, "Internal", "out of order")
        if fault == "exception":
            raise RuntimeError("out of order")
        if fault == "silent, not done":
            raise DriverCallError(method, "DeadlineExceeded", "context deadline exceeded", unanswered=True)
        return fault

    def _spoilt(
        self, method: str, fault: str | None, answer: dict[ClaimUid, Result], empty: Result, failed: Result
    ) -> dict[ClaimUid, Result]:
        """Apply a fault that takes effect after the driver's work: return the changed answer or raise the error."""
        first = next(iter(answer))
        if fault == "power cut after":
            raise PowerCutError
        if fault == "silent, done":
            raise DriverCallError(method, "DeadlineExceeded", "context deadline exceeded", unanswered=True)
        if fault == "missing":
            del answer[first]
        if fault == "unknown":
            answer[ClaimUid("unknown")] = empty
        if fault == "claim error":
            answer[first] = failed
        return answer


def pod_of(name: str) -> Pod:
    """Return a pod whose only container names all of the pod's claims."""
    claims = tuple(PodClaim(claim, claim) for claim in PODS[name])
    container = Container("main", claims=[ContainerClaim(claim) for claim in PODS[name]])
    return Pod(PodUid(name), name=name, claims=claims, containers=(container,))


class World:
    """The node. A test calls only `play` and `finish`."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.calls: list[str] = []  # the ports called by the action in progress
        self.saves = 0
        self.faults: list[Fault] = []
        self.disk = Disk(self)
        self.api = ApiServer()
        self.api.world = self
        self.drivers = {name: Driver(name, self) for name in (A, B)}
        self.pods = MemoryPods()
        self.allocations: dict[ClaimUid, tuple[AllocatedDevice, ...]] = {}
        self.using: dict[str, frozenset[ClaimUid]] = {}  # the claims of each prepared pod, by the pod's name
        self.ending: set[str] = set()  # pods that are being released, or whose release has failed
        self._generation = 0
        self._known: dict[ClaimKey, ClaimInfo] = {}
        self._beside: list[threading.Thread] = []
        for claim in CLAIMS:
            self._create(claim)
        self._start()

    # --- the node -----------------------------------------------------------------------------------------------------

    def _create(self, name: str) -> None:
        self._generation += 1
        uid = ClaimUid(f"{name}-{self._generation}")
        results = tuple(AllocatedDevice(driver, "pool", device, "r") for driver, device in CLAIMS[name])
        self.allocations[uid] = results
        self.api.put(ResourceClaim(ClaimKey("default", name), uid, "", results, frozenset(PODS)))

    def _start(self) -> None:
        self.transport = MemoryDriverTransport()
        self.metrics = MemoryDraMetrics()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("devicecore.dra_manager.manager.Turns", WatchedTurns)
            self.manager = DraManager(
                self.transport,
                self.api,
                self.disk,
                pods=self.pods,
                slices=MemorySlices(),
                metrics=self.metrics,
                clock=lambda: 0.0,
            )
        self.manager.start()
        self.instances = {name: self.transport.register(driver) for name, driver in self.drivers.items()}

    def call(self, port: str) -> str | None:
        """Record a call to a port, and return the fault that happens there."""
        if threading.current_thread() in self._beside:
            return None
        number = len(self.calls)
        self.calls.append(port)
        fault = next((fault for fault in self.faults if fault.call == number), None)
        if fault is None:
            return None
        if fault.beside is not None:
            if port != "disk":  # during a save, another thread rightly waits for a lock
                self._play_beside(fault.beside)
            return None
        return fault.kind if fault.kind in FAULTS[port] else None

    def _play_beside(self, action: Action) -> None:
        """Play an action in another thread, until it has ended or waits for a turn."""
        settled = threading.Event()

        def act() -> None:
            try:
                self._act(action)
            except _FailedError:
                pass  # an action may fail
            except BaseException as error:  # noqa: BLE001 - it is recorded where it is caught
                self.broken.append(f"{action} alongside another action raised {error!r}")
            finally:
                settled.set()

        WatchedTurns.waits = settled.set
        thread = threading.Thread(target=act)
        self._beside.append(thread)
        thread.start()
        assert settled.wait(PATIENCE), f"{action} neither ended nor waited for a turn"

    # --- actions ------------------------------------------------------------------------------------------------------

    def play(self, action: Action, *faults: Fault) -> bool:
        """Play an action with these faults, and return whether it failed.

        Afterwards, `broken` lists the laws that do not hold.
        """
        self.calls, self.faults, has_failed = [], list(faults), False
        before = self.disk.blob
        try:
            self._act(action)
        except _FailedError:
            has_failed = True
        except PowerCutError:
            self.faults = []
            self._join()
            self._start()
            has_failed = True
        self.faults = []
        self._join()
        self._check(action, before)
        return has_failed

    def _join(self) -> None:
        for thread in self._beside:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "an action alongside another action hangs"
        self._beside.clear()

    def _act(self, action: Action) -> None:
        getattr(self, f"_{action[0]}")(*action[1:])

    def _prepare(self, name: str) -> None:
        if name in self.ending:
            return  # a kubelet does not start a pod that it is terminating
        self.pods.active.add(PodUid(name))
        pod = pod_of(name)
        blob = self.disk.blob
        with self._one_sample("PrepareResources"):
            try:
                prepared = self.manager.prepare(pod)
            except PrepareError as error:
                if isinstance(error.cause, FetchClaimError | NotAllocatedError | NotReservedError) and not self._beside:
                    self._expect("M8 a failed check changes nothing", blob, self.disk.blob)
                raise
        claims = self.manager.claims.present(prepared.claims)
        self.using[name] = frozenset(claim.uid for claim in claims)
        if prepared.warnings:
            self.broken.append(f"good answers have warnings: {prepared.warnings}")

    def _unprepare(self, name: str) -> None:
        self.using.pop(name, None)
        self.ending.add(name)
        with self._one_sample("UnprepareResources"):
            self.manager.unprepare(PodUid(name))
        self.ending.discard(name)
        self.pods.active.discard(PodUid(name))
        if self.manager.might_need_unprepare(PodUid(name)):
            self.broken.append(f"{name} has been released, but still uses a claim")

    def _vanish(self, name: str) -> None:
        """End a pod without telling the manager; `reconcile` has to notice this."""
        self.using.pop(name, None)
        self.ending.discard(name)
        self.pods.active.discard(PodUid(name))

    def _reconcile(self) -> None:
        self.manager.reconcile()

    def _restart(self) -> None:
        self._start()

    def _orderly_restart(self) -> None:
        self.manager.stop()
        self._start()

    def _driver_restarts(self, name: str) -> None:
        driver = self.drivers[DriverName(name)]
        self.instances[driver.name].remove()
        self.instances[driver.name] = self.transport.register(driver)

    def _replace_claim(self, name: str) -> None:
        """Delete a claim and create it again, with a different UID."""
        self._create(name)

    @contextmanager
    def _one_sample(self, operation: str) -> Iterator[None]:
        """Check M14, and raise `_FailedError` in place of the library's own errors."""
        metrics, count, failed = self.metrics, len(self.metrics.operations), False
        try:
            yield
        except DeviceCoreError:
            failed = True
        if not self._beside:
            samples = [(name, has_failed) for name, _, has_failed in metrics.operations[count:]]
            self._expect("M14 exactly one sample per call", [(operation, failed)], samples)
        if failed:
            raise _FailedError

    # --- laws ---------------------------------------------------------------------------------------------------------

    def _expect(self, law: str, expected: object, actual: object) -> None:
        if expected != actual:
            self.broken.append(f"{law}: expected {expected!r}, got {actual!r}")

    def saved(self) -> ClaimCache:
        """Return the claims in the file."""
        return ClaimCache() if self.disk.blob is None else _cache_in(self.disk.blob)

    def check_prepare_call(self, driver: Driver, claims: Sequence[ClaimRef]) -> None:
        """Check M2, M6, M7 and M17, which hold whenever a driver is called to prepare claims."""
        saved = self.saved()
        self._check_locks()
        for ref in claims:
            entry, known = saved.claims.get(ref.key), self.manager.claims.claims[ref.key]
            if entry is None or entry.uid != ref.uid or not entry.pods:
                self.broken.append(f"M2 entered before called: {ref} is not in the file: {entry}")
            elif driver.name not in entry.drivers:
                self.broken.append(f"M7 no call without allocation: {driver.name} for {entry}")
            if known.phase is ClaimPhase.PREPARED or driver.name in known.answered:
                self.broken.append(f"M6 calls only with cause: {known} is prepared")

    def check_unprepare_call(self, driver: Driver, claims: Sequence[ClaimRef]) -> None:
        """Check M3, M6 and M17 whenever a driver is called to release claims, and that no pod uses these claims."""
        saved = self.saved()
        self._check_locks()
        for ref in claims:
            entry = saved.claims.get(ref.key)
            if entry is None or driver.name not in entry.drivers:
                self.broken.append(f"M3 forgotten after called: {ref} is not in the file: {entry}")
            elif len(entry.pods) > 1:
                self.broken.append(f"M6 calls only with cause: {entry} has several pods")
            users = [pod for pod, uids in self.using.items() if ref.uid in uids]
            if users:
                self.broken.append(f"a claim is released while {users} use it: {ref}")

    def _check_locks(self) -> None:
        """Check M17: the caller of a driver holds no lock. Another thread may briefly hold a lock."""
        manager: Any = self.manager
        for lock in (manager._saved._saved._lock, manager._saved._state._lock, manager._drivers._state._lock):  # noqa: SLF001 - whose lock it is, no port tells
            if not lock.acquire(timeout=_HELD):
                self.broken.append("M17 no lock over calls: a lock is held")
                continue
            lock.release()

    def _check(self, action: Action, before: bytes | None) -> None:
        """Check the laws that hold after every action."""
        saved, known = self.saved().claims, self.manager.claims.claims
        self._expect("M10 the file is the cache", _durable(known), _durable(saved))
        for key, entry in known.items():
            if not entry.pods:
                self.broken.append(f"M4 every entry is reachable: {entry}")
            former = self._known.get(key)
            if former and former.uid != entry.uid and not self._is_released(former):
                self.broken.append(f"M5 the UID of an entry never changes: {former} {entry}")
            for devices in entry.drivers.values():
                self._expect("each device once", len(set(devices or ())), len(devices or ()))
            if action[0] in {"restart", "orderly_restart"}:
                self._expect("M11 nothing is prepared after a restart", ClaimPhase.ENTERED, entry.phase)
        for key, former in self._known.items():
            if key not in known and not self._is_released(former):
                self.broken.append(f"M3 forgotten after called: {former}")
        if action[0] in {"restart", "orderly_restart"}:
            self._expect("M11 a restart writes nothing", before, self.disk.blob)
        self._known = dict(known)
        for pod, uids in self.using.items():
            self._check_user(pod, uids)

    def _check_user(self, name: str, uids: frozenset[ClaimUid]) -> None:
        """Check M1 and M9: the drivers have prepared the pod's claims, and the pod's containers get the CDI names."""
        for uid in uids:
            for result in self.allocations[uid]:
                if uid not in self.drivers[result.driver].prepared:
                    self.broken.append(f"{name} uses {uid}, which {result.driver} has not prepared")
        wanted = [f"{result.driver}/dev={uid}-{result.device}" for uid in uids for result in self.allocations[uid]]
        try:
            ids = self.manager.claim_devices(pod_of(name), "main")
        except DeviceCoreError as error:
            self.broken.append(f"M1 prepared and then without devices: {name}: {error}")
        else:
            self._expect(f"M9 the ids of {name}", sorted(wanted), sorted(ids))

    def _is_released(self, entry: ClaimInfo) -> bool:
        return not any(entry.uid in self.drivers[driver].prepared for driver in entry.drivers)

    def finish(self) -> None:
        """Check M16: after the faults have stopped and all pods have ended, one reconciliation releases everything."""
        for name in PODS:
            self._vanish(name)
        self.play(("reconcile",))
        self._expect("M16 no claim is left", {}, dict(self.manager.claims.claims))
        held = {name: driver.prepared for name, driver in self.drivers.items() if driver.prepared}
        self._expect("M16 no driver has a claim prepared", {}, held)
        self.manager.stop()


class _FailedError(Exception):
    """Raised when a public call has failed with one of the library's errors."""


@lru_cache(maxsize=16)
def _cache_in(blob: bytes) -> ClaimCache:
    """Decode a file. The result is cached, because the laws read each file several times."""
    return decode(blob).cache


def _durable(claims: Mapping[ClaimKey, ClaimInfo]) -> dict[ClaimKey, object]:
    return {key: (claim.uid, claim.pods, dict(claim.drivers)) for key, claim in claims.items()}


def run(actions: Sequence[Action], faults: Mapping[int, Sequence[Fault]]) -> list[list[str]]:
    """Play actions, each with its faults, and end the world. Return the ports that each action called.

    Raises:
        AssertionError: a law is broken.
    """
    world = World()
    calls: list[list[str]] = []
    for number, action in enumerate(actions):
        world.play(action, *faults.get(number, ()))
        calls.append(list(world.calls))
        assert not world.broken, f"after action {number}, {action}: {world.broken}"
    world.finish()
    assert not world.broken, f"at the end: {world.broken}"
    return calls
