"""Named locks, between threads and between processes."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from devicecore.domain.errors import LockedError
from devicecore.system.locks import NamedLocks

PATIENCE = 60.0


def hold(path: Path, name: str, pipe: Connection) -> None:
    with NamedLocks(path).held(name, PATIENCE):
        pipe.send("held")
        pipe.recv()  # waits until the process is killed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_a_name_is_locked_once_and_a_different_one_at_the_same_time(path: Path) -> None:
    mine, other = NamedLocks(path), NamedLocks(path)
    with mine.held("a", 0.0):
        with other.held("b", 0.0):
            pass
        with pytest.raises(LockedError, match="another process holds 'a'"), other.held("a", 0.0):
            pass
    with other.held("a", 0.0):
        pass


def test_threads_get_a_lock_in_the_order_of_their_requests(path: Path) -> None:
    locks, order = NamedLocks(path), list[int]()
    waiting = [threading.Event() for _ in range(5)]

    def take(number: int) -> None:
        waiting[number].set()
        with locks.held("a", PATIENCE):
            order.append(number)

    with ThreadPoolExecutor(5) as workers, locks.held("a", 0.0):
        for number in range(5):
            workers.submit(take, number)
            assert waiting[number].wait(PATIENCE)
            while len(locks._queues["a"]) < number + 2:  # noqa: SLF001 - the order must be certain
                threading.Event().wait(0.001)
    assert order == [0, 1, 2, 3, 4]
    assert not locks._queues  # noqa: SLF001 - nothing is left behind


def test_a_process_that_is_killed_leaves_no_lock(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(path, "a", theirs))
    process.start()
    assert ours.poll(PATIENCE)
    ours.recv()
    with pytest.raises(LockedError), NamedLocks(path).held("a", 0.05):
        pass
    process.kill()
    process.join(PATIENCE)
    with NamedLocks(path).held("a", PATIENCE):
        pass
    assert path.read_bytes() == b""


def test_a_failure_in_the_block_frees_the_lock(path: Path) -> None:
    locks = NamedLocks(path)
    with pytest.raises(ZeroDivisionError), locks.held("a", 0.0):
        _ = 1 / 0
    with locks.held("a", 0.0):
        pass
