"""Threads for admissions: `Lanes`."""

import threading
from functools import partial

import pytest
from devicecore_tools.node import lanes
from devicecore_tools.node.evictions import Evictions
from devicecore_tools.node.lanes import Lanes

from devicecore import DeviceManager
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.model import PodUid

PATIENCE = 60.0  # seconds; far more than needed


def wait_for(event: threading.Event) -> None:
    event.wait(PATIENCE)


def test_work_of_one_lane_is_done_in_its_order() -> None:
    done: list[int] = []
    ended = threading.Event()
    work = Lanes()
    for number in range(50):
        work.submit("a", lambda number=number: done.append(number))  # type: ignore[misc] # mypy cannot infer it
    work.submit("a", ended.set)
    assert ended.wait(PATIENCE)
    assert done == list(range(50))


def test_a_lane_that_hangs_delays_no_other() -> None:
    work, hangs, ended = Lanes(), threading.Event(), threading.Event()
    for _ in range(1000):
        work.submit("a", partial(wait_for, hangs))
    work.submit("b", ended.set)
    assert ended.wait(PATIENCE)
    hangs.set()
    work.close()


def test_ten_lanes_in_which_much_work_hangs_delay_no_other() -> None:
    """A lane gets more threads if many admissions wait in it. Eight hanging plugins used to block all threads."""
    work, hangs, ended = Lanes(), threading.Event(), threading.Event()
    for lane in range(10):
        for _ in range(150):
            work.submit(lane, partial(wait_for, hangs))
    work.submit("other", ended.set)
    assert ended.wait(PATIENCE)
    work.close()
    hangs.set()


def test_if_the_system_has_no_thread_left_those_that_run_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    work, hangs, ended = Lanes(), threading.Event(), threading.Event()
    work.submit("a", partial(wait_for, hangs))

    def fail(_: threading.Thread) -> None:
        problem = "can't start new thread"
        raise RuntimeError(problem)

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", fail)
        work.submit("b", ended.set)
    hangs.set()
    assert ended.wait(PATIENCE)


def test_work_beyond_the_thread_limit_waits_until_a_lane_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MAX_THREADS", 1)
    work, hangs, ended = Lanes(), threading.Event(), threading.Event()
    work.submit("a", partial(wait_for, hangs))
    work.submit("b", ended.set)
    assert not ended.is_set()
    hangs.set()
    assert ended.wait(PATIENCE)


def test_work_that_raises_is_logged_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    work, ended = Lanes(), threading.Event()

    def fail() -> None:
        raise ValueError("a bug")

    work.submit("a", fail)
    work.submit("a", ended.set)
    assert ended.wait(PATIENCE)
    assert "a bug" in caplog.text


def test_nothing_starts_after_the_end() -> None:
    work, hangs = Lanes(), threading.Event()
    begun: list[int] = []
    work.submit("a", partial(wait_for, hangs))
    work.submit("a", lambda: begun.append(1))
    work.close()
    work.submit("b", lambda: begun.append(2))
    hangs.set()
    assert begun == []


def test_a_release_is_called_what_it_releases() -> None:
    """The first release of a run only looks for pods of an earlier run: no pod has been removed yet."""
    done, work = threading.Event(), Lanes()
    with DeviceManager(MemoryTransport(), MemoryStore(), MemorySink()) as manager:
        evictions = Evictions(manager, work, done.set)
        assert evictions.waits_for == ""
        evictions.release_inactive()
        assert evictions.waits_for == "the check for pods that ended before this start"
        evictions.evict(frozenset({PodUid("u-1")}), wait=PATIENCE)
        assert evictions.waits_for == "the release of removed pods"
        work.close()
