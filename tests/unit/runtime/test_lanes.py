import threading
import time
from collections.abc import Sequence

import pytest

from devicecore.runtime.lanes import THREADS, JobLanes, Needs

LIMIT = 60.0


def needing(*groups: str) -> dict[Needs, list[str]]:
    """Return five jobs for each group of letters, which stand for the things that the jobs need."""
    return {frozenset(group): [f"{group}{number}" for number in range(5)] for group in groups}


def test_all_jobs_are_done_and_those_with_the_same_needs_in_their_order() -> None:
    done: list[str] = []
    JobLanes(needing("a", "b", "ab"), done.extend, at_once=2).run()
    for group, jobs in needing("a", "b", "ab").items():
        assert [job for job in done if frozenset(job[:-1]) == group] == jobs


def test_jobs_that_need_the_same_thing_never_run_at_once() -> None:
    busy: set[str] = set()
    overlaps: list[set[str]] = []

    def work(jobs: Sequence[str]) -> None:
        needs = set(jobs[0][:-1])
        if busy & needs:
            overlaps.append(busy & needs)
        busy.update(needs)
        time.sleep(0.002)  # so that another thread may start
        busy.difference_update(needs)

    JobLanes(needing("ab", "bc", "cd", "da", "ac"), work, at_once=1).run()
    assert not overlaps


def test_a_job_that_hangs_delays_only_jobs_that_need_the_same_thing() -> None:
    done: list[str] = []
    others_are_done = threading.Event()

    def work(jobs: Sequence[str]) -> None:
        if jobs[0].startswith("a"):
            assert others_are_done.wait(LIMIT)
        done.extend(jobs)
        if len(done) >= 10 and not any("a" in job for job in done):
            others_are_done.set()

    JobLanes(needing("a", "b", "ac", "c"), work, at_once=5).run()
    assert [job[0] for job in done[:10]].count("a") == 0
    assert len(done) == 20


def test_a_job_that_fails_does_not_keep_the_others_from_being_done() -> None:
    done: list[str] = []

    def work(jobs: Sequence[str]) -> None:
        if jobs[0].startswith("a"):
            raise ZeroDivisionError
        done.extend(jobs)

    with pytest.raises(ZeroDivisionError):
        JobLanes(needing("a", "b", "c"), work, at_once=5).run()
    assert len(done) == 10


def test_the_number_of_threads_is_limited() -> None:
    seen: set[int] = set()
    most: list[int] = []
    lock = threading.Lock()

    def work(_: Sequence[str]) -> None:
        with lock:
            seen.add(threading.get_ident())
            most.append(len(seen))
        time.sleep(0.001)  # so that other threads start
        with lock:
            seen.discard(threading.get_ident())

    JobLanes({frozenset({str(number)}): ["job"] for number in range(8 * THREADS)}, work, at_once=1).run()
    assert len(most) == 8 * THREADS
    assert max(most) <= THREADS


def test_helpers_that_could_not_be_started_do_not_count_as_helping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once threads can be started again, a job that hangs does not delay other jobs."""
    refusals = iter(range(2 * THREADS))
    start = threading.Thread.start

    def refuse_at_first(thread: threading.Thread) -> None:
        if next(refusals, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    others_are_done = threading.Event()
    done: list[str] = []

    def work(jobs: Sequence[str]) -> None:
        done.extend(jobs)
        if len(done) == 4 * THREADS - 1:
            others_are_done.set()
        if jobs == ["hangs"]:
            assert others_are_done.wait(LIMIT / 3)

    monkeypatch.setattr(threading.Thread, "start", refuse_at_first)
    names = ["hangs" if number == 3 * THREADS else str(number) for number in range(4 * THREADS)]
    JobLanes({frozenset({name}): [name] for name in names}, work, at_once=1).run()
    assert sorted(done) == sorted(names)
