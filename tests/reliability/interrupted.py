"""A program that interrupts calls at random times, as Ctrl-C would, and checks the state after each interrupt.

`python -m tests.reliability.interrupted devices|claims main|threads CALLS DIRECTORY` prints a line of JSON with counts.
With `main`, a timer interrupts the main thread, as Ctrl-C would. With `threads`, the main thread interrupts eight
others.
"""

import ctypes
import faulthandler
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from devicecore import Admitted, Container, DeviceManager, Pod, PodUid, ResourceName
from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemoryPods, MemorySink, MemoryStore, MemoryTransport
from devicecore.adapters.memory_dra import MemoryDriverTransport
from devicecore.domain.checkpoint import checkpoint_of, decode
from devicecore.domain.dra import model
from devicecore.domain.dra import state_file as dra_state
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.model import PodClaim
from devicecore.dra_manager import DraManager
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.ports.store import CheckpointStore

GPU, NIC = ResourceName("example.com/gpu"), ResourceName("example.com/nic")
THREADS = 8
LIMIT = 300.0  # seconds for a hundred calls; after that, the program prints where it hangs and exits


class Subject(Protocol):
    """A manager with a store, with the work for a pod and the checks after an interrupt."""

    def work(self, uid: str) -> None:
        """Do the work for a pod, which may be interrupted."""

    def check(self, uid: str, counts: Counter[str]) -> None:
        """Check what an interrupted pod has, which is all devices or none, and that its work can be done again."""

    def clean(self, uid: str) -> None:
        """Release everything that a pod has."""

    def check_all(self) -> None:
        """Check that nothing is held, and that the file matches the state in memory."""


class Devices:
    """A device manager."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        transport = MemoryTransport()
        self._manager = DeviceManager(transport, store, MemorySink())
        self._manager.start()
        transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 4 * THREADS)))
        transport.connect(SimulatedPlugin(NIC, simulated_devices("nic", 2 * THREADS)))

    def work(self, uid: str) -> None:
        self._manager.admit(self._pod(uid))
        self._manager.evict([PodUid(uid)])

    def check(self, uid: str, counts: Counter[str]) -> None:
        held = len(self._manager.state.ledger.of_pod(PodUid(uid)))
        assert held in {0, 3}, held
        counts["interrupted, and the pod has its devices" if held else "interrupted, and the pod has none"] += 1
        verdict = self._manager.admit(self._pod(uid))
        assert isinstance(verdict, Admitted), verdict
        assert len(verdict.allocations) == 3
        assert verdict.allocations == self._manager.state.ledger.of_pod(PodUid(uid))

    def clean(self, uid: str) -> None:
        self._manager.evict([PodUid(uid)])
        assert not self._manager.state.ledger.of_pod(PodUid(uid))

    def check_all(self) -> None:
        self._manager.tick()
        assert self._manager.state.ledger.reservations == (), self._manager.state.ledger.reservations
        assert not self._manager._turns._taken  # noqa: SLF001 - no caller can see whether a turn is taken
        self._manager.stop()
        blob = self._store.load()
        assert blob is not None
        data = decode(blob).verified()
        assert data.entries == checkpoint_of(self._manager.state).entries
        self._manager.start()
        assert self._manager.restored.allocations == len(list(self._manager.state.ledger))
        self._manager.stop()

    @staticmethod
    def _pod(uid: str) -> Pod:
        containers = (Container("a", {GPU: 1, NIC: 1}), Container("b", {GPU: 1}))
        return Pod(PodUid(uid), name=uid, containers=containers)


class Driver:
    """A driver that answers with one device."""

    name = model.DriverName("gpu.example.com")

    def prepare(self, claims: Sequence[model.ClaimRef]) -> Mapping[model.ClaimUid, PrepareResult]:
        return {claim.uid: PrepareResult((model.PreparedDevice("pool", claim.key.name),)) for claim in claims}

    def unprepare(self, claims: Sequence[model.ClaimRef]) -> Mapping[model.ClaimUid, UnprepareResult]:
        return {claim.uid: UnprepareResult() for claim in claims}


class Everything:
    """A source that has a claim for each pod, and a claim for all pods."""

    def get(self, key: model.ClaimKey) -> model.ResourceClaim:
        results = (model.AllocatedDevice(Driver.name, "pool", key.name, "r"),)
        return model.ResourceClaim(key, model.ClaimUid(f"uid-of-{key.name}"), "", results, Everyone())


class Everyone(frozenset[str]):
    """The pods for which a claim is reserved: all pods."""

    def __contains__(self, _: object) -> bool:
        return True


class Claims:
    """A DRA manager."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        transport = MemoryDriverTransport()
        self._manager = DraManager(transport, Everything(), store, pods=MemoryPods())
        self._manager.start()
        transport.register(Driver())

    def work(self, uid: str) -> None:
        self._manager.prepare(self._pod(uid))
        self._manager.unprepare(PodUid(uid))

    def check(self, uid: str, counts: Counter[str]) -> None:
        held = len(self._manager.claims.of_pod(PodUid(uid)))
        assert held in {0, 1, 2}, held
        counts["interrupted, and the pod has its claims" if held else "interrupted, and the pod has none"] += 1
        assert len(self._manager.prepare(self._pod(uid)).claims) == 2
        assert len(self._manager.claims.of_pod(PodUid(uid))) == 2

    def clean(self, uid: str) -> None:
        self._manager.unprepare(PodUid(uid))
        assert not self._manager.claims.of_pod(PodUid(uid))

    def check_all(self) -> None:
        assert self._manager.reconcile() == {}
        assert not self._manager._turns._taken  # noqa: SLF001 - as above
        assert self._manager.claims.claims == {}
        self._manager.stop()
        blob = self._store.load()
        assert blob is not None
        assert dra_state.decode(blob).entries == ()

    @staticmethod
    def _pod(uid: str) -> Pod:
        return Pod(PodUid(uid), name=uid, claims=(PodClaim("own", uid), PodClaim("shared", "shared")))


def watch() -> None:
    """End the program if it hangs. This starts a thread that must not receive the main thread's signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


def in_main_thread(kind: Callable[[CheckpointStore], Subject], calls: int, directory: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    # Threads inherit blocked signals, so only the main thread gets the timer's signal, and no signal arrives after the
    # timer is switched off.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    subject = kind(FileStore(directory / "checkpoint"))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    chance = random.Random(1)  # noqa: S311 - to be repeated
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    began = time.perf_counter()
    for number in range(20):
        subject.work(f"warm-up-{number}")
    typical = (time.perf_counter() - began) / 20
    for number in range(calls):
        if number % 100 == 0:
            watch()
        uid = f"pod-{number}"
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, typical))
                subject.work(uid)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                # CPython may leave a signal unhandled that comes while a thread waits for the interpreter's lock, and
                # would handle it during `clean`. This call handles it here.
                signal.pthread_sigmask(signal.SIG_BLOCK, ())
        except KeyboardInterrupt:
            subject.check(uid, counts)
        subject.clean(uid)
    subject.check_all()
    return counts


class SlowStore(MemoryStore):
    """A store whose saves take so long that the commits of other threads wait together."""

    def save(self, blob: bytes) -> None:
        time.sleep(0.0005)
        super().save(blob)


class Crowd:
    """Threads that do the work for pods, and are interrupted by the thread that calls `run`."""

    def __init__(self, kind: Callable[[CheckpointStore], Subject], calls: int) -> None:
        self.counts: Counter[str] = Counter()
        self._subject = kind(SlowStore())
        self._failures: list[BaseException] = []
        self._left = list(range(calls))
        self._inside: dict[int, int] = {}  # by slot: the thread, while it may be interrupted
        self._pods: dict[int, str] = {}  # by slot: the pod, until it is cleaned
        self._threads: dict[int, threading.Thread] = {}

    def run(self) -> None:
        chance = random.Random(1)  # noqa: S311 - as above
        left = 0
        while self._left and not self._failures:
            if len(self._left) != left:  # if the number stops changing, the threads hang
                left = len(self._left)
                faulthandler.dump_traceback_later(LIMIT, exit=True)
            self._fill_slots()
            time.sleep(chance.uniform(0, 0.002))
            ident = self._inside.get(chance.randrange(THREADS))
            if ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(KeyboardInterrupt))
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        for thread in self._threads.values():
            thread.join()
        for failure in self._failures:
            raise failure
        self._subject.check_all()

    def _fill_slots(self) -> None:
        for slot in range(THREADS):
            if slot not in self._threads or not self._threads[slot].is_alive():
                self._threads[slot] = threading.Thread(target=self._work, args=(slot,), daemon=True)
                self._threads[slot].start()

    def _work(self, slot: int) -> None:
        try:
            self._work_for_pods(slot)
        except KeyboardInterrupt:
            self.counts["interrupted while it was checked"] += 1  # it was sent during the call
        except BaseException as error:  # noqa: BLE001 - to be raised in the main thread
            self._failures.append(error)

    def _work_for_pods(self, slot: int) -> None:
        if slot in self._pods:  # an interrupt during a check may have left devices to the pod
            self._subject.clean(self._pods[slot])
        while self._left and not self._failures:
            uid = self._pods[slot] = f"pod-{self._left.pop()}"
            try:
                self._inside[slot] = threading.get_ident()
                self._subject.work(uid)
                self._inside.pop(slot, None)
            except KeyboardInterrupt:
                self._inside.pop(slot, None)
                self._subject.check(uid, self.counts)
            self._subject.clean(uid)
            del self._pods[slot]


def in_threads(kind: Callable[[CheckpointStore], Subject], calls: int) -> Counter[str]:
    crowd = Crowd(kind, calls)
    crowd.run()
    return crowd.counts


def main() -> None:
    what, way, calls, directory = sys.argv[1:]
    kind: Callable[[CheckpointStore], Subject] = Devices if what == "devices" else Claims
    sys.setswitchinterval(1e-5)
    counts = in_main_thread(kind, int(calls), Path(directory)) if way == "main" else in_threads(kind, int(calls))
    print(json.dumps(counts))  # noqa: T201 - for the test that runs it


if __name__ == "__main__":
    main()
