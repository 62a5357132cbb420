"""Background threads and tasks that end although no one has stopped them."""

import asyncio
import logging
import threading
from itertools import count

import pytest

from devicecore.runtime import background
from devicecore.runtime.background import SupervisedThread, bounded_backoff, end, supervise
from devicecore.testing.interrupts import Interrupts

PATIENCE = 30.0  # seconds


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.001)


def ends(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), None], ids=["error", "exit", "return"])
def test_a_thread_that_ends_unexpectedly_is_logged_and_started_again(
    caplog: pytest.LogCaptureFixture, error: BaseException | None
) -> None:
    started = threading.Semaphore(0)

    def run(_: threading.Event) -> None:
        started.release()
        if error is not None:
            raise error

    thread = SupervisedThread("the worker", run)
    thread.start()
    for _ in range(3):
        assert started.acquire(timeout=PATIENCE)
    assert thread.stop(PATIENCE)
    assert "the worker ended unexpectedly; restarting in 0.001 s" in ends(caplog)
    assert "the worker ended unexpectedly; restarting in 0.002 s" in ends(caplog)
    if error is not None:
        assert repr(error) in repr([record.exc_info for record in caplog.records])


def test_a_thread_that_is_stopped_ends_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    running = threading.Event()

    def run(stopping: threading.Event) -> None:
        running.set()
        stopping.wait()

    thread = SupervisedThread("the worker", run)
    assert thread.stop()  # the thread has not been started yet
    thread = SupervisedThread("the worker", run)
    thread.start()
    assert running.wait(PATIENCE)
    assert thread.stop(PATIENCE)
    assert thread.stop(PATIENCE)
    assert ends(caplog) == []


def test_a_thread_may_stop_itself(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def run(_: threading.Event) -> None:
        assert not thread.stop()
        ended.set()

    thread = SupervisedThread("the worker", run)
    thread.start()
    assert ended.wait(PATIENCE)
    assert thread.stop(PATIENCE)
    assert ends(caplog) == []


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), None], ids=["error", "exit", "return"])
def test_a_task_that_ends_unexpectedly_is_logged_and_started_again(
    caplog: pytest.LogCaptureFixture, error: BaseException | None
) -> None:
    async def main() -> None:
        runs = 0
        thrice = asyncio.Event()

        async def run() -> None:
            nonlocal runs
            runs += 1
            if runs == 3:
                thrice.set()
                await asyncio.Event().wait()
            if error is not None:
                raise error

        task = asyncio.create_task(supervise("the watcher", run))
        await asyncio.wait_for(thrice.wait(), PATIENCE)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert ends(caplog) == [
        "the watcher ended unexpectedly; restarting in 0.001 s",
        "the watcher ended unexpectedly; restarting in 0.002 s",
    ]


def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    async def main() -> None:
        swallowed = 0

        async def run() -> None:
            nonlocal swallowed
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    swallowed += 1
                    if swallowed == 3:
                        raise

        task = asyncio.create_task(supervise("the server", run))
        await asyncio.sleep(0)
        await asyncio.wait_for(end(task), PATIENCE)
        assert task.cancelled()

    asyncio.run(main())


def test_the_pause_grows_to_its_bound_and_stays_there_for_any_number_of_failures() -> None:
    pauses = [bounded_backoff(failures, 0.5, 120.0) for failures in range(1, 3000)]
    assert pauses[:9] == [0.5, 1, 2, 4, 8, 16, 32, 64, 120]
    assert set(pauses[8:]) == {120.0}


def test_a_stop_after_an_interrupted_stop_ends_the_thread() -> None:
    def wait(stopping: threading.Event) -> None:
        stopping.wait()

    for at in count(1):
        thread = SupervisedThread("task", wait)
        thread.start()
        point, stop = Interrupts(at, background, threading), threading.Thread(target=thread.stop, daemon=True)
        point.interrupt(thread.stop)
        stop.start()
        stop.join(PATIENCE)
        assert not stop.is_alive()
        assert thread.stop()
        if not point.is_reached:
            break
