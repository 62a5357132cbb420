"""The one event loop, and those who wait for what it does."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from devicecore.adapters.grpc_unix.loop import LoopStoppedError, LoopThread


class Interrupted(BaseException):
    """What a handler of a signal raises, as Python's own does for SIGINT."""


async def nothing() -> None:
    pass


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread.acquire(nothing)
    yield thread
    thread.release(nothing)


async def answer() -> int:
    await asyncio.sleep(0)
    return 7


async def fail() -> None:
    problem = "no"
    raise LookupError(problem)


def test_who_waits_gets_what_comes_of_it(loop: LoopThread) -> None:
    assert loop.run(answer()) == 7
    with pytest.raises(LookupError, match="no"):
        loop.run(fail())


def test_who_is_interrupted_waits_no_longer_and_what_was_waited_for_is_cancelled(loop: LoopThread) -> None:
    cancelled = threading.Event()
    waiting = threading.get_ident()

    async def hang() -> None:
        signal.pthread_kill(waiting, signal.SIGUSR1)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupt(_: int, __: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            loop.run(hang())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(10)


def test_a_loop_that_has_ended_runs_nothing() -> None:
    thread = LoopThread.acquire(nothing)
    thread.release(nothing)
    with pytest.raises(LoopStoppedError):
        thread.run(answer())


def test_who_waits_when_the_loop_ends_hears_of_it() -> None:
    begun = threading.Event()
    heard: list[LoopStoppedError] = []

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            thread.run(hang())
        except LoopStoppedError as error:
            heard.append(error)

    thread = LoopThread.acquire(nothing)
    waiting = threading.Thread(target=wait)
    waiting.start()
    assert begun.wait(10)
    thread.release(nothing)
    waiting.join(10)
    assert len(heard) == 1
