"""A manager that is started and killed again and again, with a failing disk and a clock that jumps.

Law: an acknowledged admission is in the checkpoint that the next life reads, a device is held by at most one pod, and a
saved eviction frees the pod's devices. `make storm` has 200 lives.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from devicecore import Admitted, Container, DeviceManager, Pod, PodUid
from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemorySink, MemoryTransport
from devicecore.domain.checkpoint import decode
from devicecore.plugins.simulated import SimulatedPlugin
from tests.reliability.faulty_os import ERRORS, HALF, KILLS, FaultyOs
from tests.reliability.scale import scale
from tests.reliability.storm import Clock

GPU = "example.com/gpu"
DEVICES, PODS = 8, 6
LIVES, STEPS = scale(6, 200), 30
JUMPS = (-1e6, -1.0, 0.0, 300.0, 1e9)
FAULTS = (*ERRORS, HALF, *KILLS)


def pod(name: str) -> Pod:
    return Pod(PodUid(name), name=name, containers=(Container("main", {GPU: 1}),))


def holders(path: Path) -> dict[str, str]:
    """Return the pod that holds each device, after checking that no device is held twice."""
    found: dict[str, str] = {}
    for entry in decode(path.read_bytes()).verified().entries or () if path.exists() else ():
        for ids in (entry.device_ids or {}).values():
            for device in ids or ():
                assert device not in found, "a device belongs to two pods"
                found[device] = entry.pod_uid
    return found


def live(path: Path, seed: int, said: int) -> None:
    """Admit and evict pods, write what was tried and what succeeded, and kill this process."""
    chance, clock, transport = Random(seed), Clock(), MemoryTransport()  # noqa: S311 - it must be repeatable
    manager = DeviceManager(transport, FileStore(path), MemorySink(), clock=clock)
    manager.start()
    transport.connect(SimulatedPlugin(GPU))
    write = os.write  # the real function, because `os.write` may be faulty later
    for _ in range(chance.randrange(STEPS)):
        clock.ahead += chance.choice(JUMPS)
        name = f"pod-{chance.randrange(PODS)}"
        fault = chance.choice(FAULTS) if chance.random() < 0.3 else ""
        admits = chance.random() < 0.6
        write(said, f"{'admit' if admits else 'evict'} {name} ".encode())
        with FaultyOs(
            chance.randint(1, 8) if fault else 0, fault, lasting=fault in ERRORS and chance.random() < 0.3
        ) as faulty:
            if admits:
                done = isinstance(manager.admit(pod(name)), Admitted)
            else:
                manager.evict([PodUid(name)])
                done = not faulty.hit
        write(said, b"yes\n" if done else b"no\n")
        manager.tick()
    os.kill(os.getpid(), signal.SIGKILL)


def life(path: Path, seed: int) -> list[list[str]]:
    """Run a manager in a separate process, and return its output."""
    receiving, said = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a life that does not end counts as an error
        with suppress(BaseException):
            live(path, seed, said)
        os._exit(1)
    os.close(said)
    with os.fdopen(receiving) as lines:
        told = [line.split() for line in lines]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return told


def test_no_life_loses_doubles_or_leaks_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devicecore.runtime.saved_state.PATIENCE", 60.0)  # so that every eviction waits for its save
    path, acknowledged = tmp_path / "checkpoint", 0
    for seed in range(LIVES):
        known: dict[str, bool | None] = dict.fromkeys(
            holders(path).values(), True
        )  # None: whether a pod holds a device is unknown
        for action, name, *done in life(path, seed):
            if action == "admit":
                before = known.get(name, False)
                known[name] = done == ["yes"] or (before if done else before or None)
            else:
                known[name] = False if done == ["yes"] or known.get(name, False) is False else None
            acknowledged += done == ["yes"]
        now = set(holders(path).values())
        lost = {name for name, holds in known.items() if holds} - now
        leaked = now - {name for name, holds in known.items() if holds is not False}
        assert not lost, seed
        assert not leaked, seed
    with DeviceManager(MemoryTransport(), FileStore(path), MemorySink()):
        assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]  # the leftovers of killed managers are gone
    assert acknowledged > LIVES
