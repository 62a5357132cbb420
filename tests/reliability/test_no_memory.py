"""Each memory allocation fails in turn while a manager saves, and while a manager restores.

Law: whichever allocation fails, nothing waits forever, and the file is the old one or the new one. CPython itself does
not survive every failed allocation. Some failures end the process with a signal, which is one more way to die during a
save.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devicecore import Container, DeviceManager, Pod, PodUid
from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemorySink, MemoryTransport
from devicecore.domain.checkpoint import decode
from devicecore.plugins.simulated import SimulatedPlugin
from devicecore.runtime import thread
from tests.reliability.scale import scale

GPU = "example.com/gpu"
LIMIT = 60  # seconds
MOST = 100_000  # more allocations than any save or restore makes
STEP = scale(197, 1)

testcapi: Any = pytest.importorskip("_testcapi")  # part of CPython's tests, which distributions may leave out


def pod(name: str) -> Pod:
    return Pod(PodUid(name), name=name, containers=(Container("main", {GPU: 1}),))


def manager_at(path: Path) -> tuple[DeviceManager, MemoryTransport]:
    transport = MemoryTransport()
    return DeviceManager(transport, FileStore(path), MemorySink()), transport


def saved(path: Path) -> bytes:
    """Admit a pod with a device, and return the checkpoint."""
    manager, transport = manager_at(path)
    with manager:
        transport.connect(SimulatedPlugin(GPU))
        manager.admit(pod("a"))
    return path.read_bytes()


def holders(path: Path) -> set[str]:
    return {one.pod_uid for one in decode(path.read_bytes()).verified().entries or ()}


def in_fork(prepare: Callable[[], Callable[[], object]], number: int) -> bool:
    """In a fork, call what `prepare` returns while an allocation fails, and return whether the failure had an effect.

    A fork is needed because the failure may damage Python's own data, which the next test needs.
    """
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        thread.LIMIT = 1  # in a fork, so other tests wait as usual
        status = 1
        try:
            action = prepare()
            testcapi.set_nomemory(number, number + 1)
            action()
            status = 0
        finally:
            testcapi.remove_mem_hooks()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status != -signal.SIGALRM, number
    return status != 0


def fail_in_turn(prepare: Callable[[], Callable[[], object]], check: Callable[[], object]) -> int:
    """Fail each allocation of an action in turn, and check the result each time.

    Return the number of failures that had an effect.
    """
    failed = idle = 0
    for number in range(0, MOST, STEP):
        had_effect = in_fork(prepare, number)
        check()
        failed += had_effect
        idle = 0 if had_effect else idle + 1
        if idle * STEP > 2000:  # the action makes no more allocations
            break
    assert idle, "there are more allocations than were tried"
    return failed


def test_whichever_allocation_fails_the_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    before = saved(path)

    def prepare() -> Callable[[], object]:
        manager, transport = manager_at(path)
        manager.start()
        transport.connect(SimulatedPlugin(GPU))
        return lambda: manager.admit(pod("b"))

    def check() -> None:
        assert holders(path) in ({"a"}, {"a", "b"})
        path.write_bytes(before)

    assert fail_in_turn(prepare, check) > 1


def test_whichever_allocation_fails_a_restore_does_not_change_the_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    before = saved(path)

    def prepare() -> Callable[[], object]:
        return manager_at(path)[0].start

    def check() -> None:
        assert path.read_bytes() == before

    assert fail_in_turn(prepare, check) > 1
