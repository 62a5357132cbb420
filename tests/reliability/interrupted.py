"""A program whose calls are interrupted at random times, as by Ctrl-C, and which checks the state after each.

`python -m tests.reliability.interrupted main|threads CALLS DIRECTORY` prints a line of JSON with counts. In `main` a
timer interrupts the main thread, as Ctrl-C does. In `threads` eight threads are interrupted by another one.
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
from pathlib import Path

from devicecore import Admitted, Container, DeviceManager, Pod, PodUid, ResourceName
from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.checkpoint import checkpoint_of, decode
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.ports.store import CheckpointStore

GPU, NIC = ResourceName("example.com/gpu"), ResourceName("example.com/nic")
THREADS = 8
LIMIT = 60.0  # seconds for a call; after that the program prints where it hangs, and ends


def pod(uid: str) -> Pod:
    return Pod(PodUid(uid), name=uid, containers=(Container("a", {GPU: 1, NIC: 1}), Container("b", {GPU: 1})))


def running(store: CheckpointStore) -> DeviceManager:
    transport = MemoryTransport()
    manager = DeviceManager(transport, store, MemorySink())
    manager.start()
    transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 4 * THREADS)))
    transport.connect(SimulatedPlugin(NIC, simulated_devices("nic", 2 * THREADS)))
    return manager


def check(manager: DeviceManager, uid: str, counts: Counter[str]) -> None:
    """Check that an interrupted pod has all of its devices or none, and that it can be admitted again."""
    held = len(manager.state.ledger.of_pod(PodUid(uid)))
    assert held in {0, 3}, held
    counts["interrupted, and the pod has its devices" if held else "interrupted, and the pod has none"] += 1
    verdict = manager.admit(pod(uid))
    assert isinstance(verdict, Admitted), verdict
    assert len(verdict.allocations) == 3
    assert verdict.allocations == manager.state.ledger.of_pod(PodUid(uid))


def check_all(manager: DeviceManager, store: CheckpointStore) -> None:
    """Check that nothing is reserved, and that the file has the state in memory."""
    manager.tick()
    assert manager.state.ledger.reservations == (), manager.state.ledger.reservations
    manager.stop()
    blob = store.load()
    assert blob is not None
    data = decode(blob).verified()
    assert data.entries == checkpoint_of(manager.state).entries
    manager.start()
    assert manager.restored.allocations == len(list(manager.state.ledger))
    manager.stop()


def watch() -> None:
    """End the program if it hangs. This starts a thread, which must not receive the main thread's signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


def in_main_thread(calls: int, directory: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    store = FileStore(directory / "checkpoint")
    # Threads inherit what is blocked, so only this one gets the signal, and none comes after the timer is switched off.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    manager = running(store)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    chance = random.Random(1)  # noqa: S311 - to be repeated
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    began = time.perf_counter()
    for number in range(20):
        manager.admit(pod(f"warm-up-{number}"))
        manager.evict([PodUid(f"warm-up-{number}")])
    typical = (time.perf_counter() - began) / 20
    for number in range(calls):
        if number % 100 == 0:
            watch()
        uid = f"pod-{number}"
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, typical))
                manager.admit(pod(uid))
                manager.evict([PodUid(uid)])
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            check(manager, uid, counts)
        manager.evict([PodUid(uid)])
        assert not manager.state.ledger.reservations
        assert not manager.state.ledger.of_pod(PodUid(uid))
    check_all(manager, store)
    return counts


class SlowStore(MemoryStore):
    """A store in which a save takes so long that the commits of other threads wait for it together."""

    def save(self, blob: bytes) -> None:
        time.sleep(0.0005)
        super().save(blob)


class Crowd:
    """Threads that admit pods, and one that interrupts them."""

    def __init__(self, calls: int) -> None:
        self.counts: Counter[str] = Counter()
        self._store = SlowStore()
        self._manager = running(self._store)
        self._failures: list[BaseException] = []
        self._left = list(range(calls))
        self._inside: dict[int, int] = {}  # the thread in each slot, while it may be interrupted
        self._threads: dict[int, threading.Thread] = {}

    def run(self) -> None:
        chance = random.Random(1)  # noqa: S311 - as above
        left = 0
        while self._left and not self._failures:
            if len(self._left) != left:  # else they hang
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
        check_all(self._manager, self._store)

    def _fill_slots(self) -> None:
        for slot in range(THREADS):
            if slot not in self._threads or not self._threads[slot].is_alive():
                self._threads[slot] = threading.Thread(target=self._work, args=(slot,), daemon=True)
                self._threads[slot].start()

    def _work(self, slot: int) -> None:
        try:
            self._admit(slot)
        except KeyboardInterrupt:
            self.counts["interrupted while it was checked"] += 1  # the interrupt was sent before the call returned
        except BaseException as error:  # noqa: BLE001 - to be raised in the main thread
            self._failures.append(error)

    def _admit(self, slot: int) -> None:
        while self._left and not self._failures:
            uid = f"pod-{self._left.pop()}"
            try:
                self._inside[slot] = threading.get_ident()
                self._manager.admit(pod(uid))
                self._manager.evict([PodUid(uid)])
                self._inside.pop(slot, None)
            except KeyboardInterrupt:
                self._inside.pop(slot, None)
                check(self._manager, uid, self.counts)
            self._manager.evict([PodUid(uid)])


def in_threads(calls: int) -> Counter[str]:
    crowd = Crowd(calls)
    crowd.run()
    return crowd.counts


def main() -> None:
    way, calls, directory = sys.argv[1:]
    sys.setswitchinterval(1e-5)
    counts = in_main_thread(int(calls), Path(directory)) if way == "main" else in_threads(int(calls))
    print(json.dumps(counts))  # noqa: T201 - for the test that runs it


if __name__ == "__main__":
    main()
