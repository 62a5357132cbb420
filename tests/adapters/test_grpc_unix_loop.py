"""The process's one event loop, and its callers in other threads."""

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType

import pytest

from devicecore.adapters.grpc_unix.loop import LoopStoppedError, LoopThread


class Interrupted(BaseException):
    """Raised by a signal handler, as KeyboardInterrupt is by Python's handler for SIGINT."""


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


def test_a_caller_gets_the_result_or_the_exception(loop: LoopThread) -> None:
    assert loop.run(answer) == 7
    with pytest.raises(LookupError, match="no"):
        loop.run(fail)


def test_a_caller_that_is_interrupted_cancels_its_coroutine(loop: LoopThread) -> None:
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
            loop.run(hang)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(60)


@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_caller_that_is_interrupted_while_it_submits_leaves_nothing_running(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch, *, is_submitted: bool
) -> None:
    def interrupted(callback: Callable[[], None]) -> None:
        monkeypatch.undo()  # only the first call is interrupted, either before it does anything or just afterwards
        if is_submitted:
            loop.call_soon(callback)
        raise Interrupted

    coroutines: list[Coroutine[object, object, object]] = []

    def start() -> Coroutine[object, object, object]:
        coroutines.append(asyncio.Event().wait())  # this never ends
        return coroutines[-1]

    monkeypatch.setattr(loop._loop, "call_soon_threadsafe", interrupted)  # noqa: SLF001 - no signal comes so exactly
    with pytest.raises(Interrupted):
        loop.run(start)
    assert loop.run(answer) == 7  # by now, the interrupted caller has given up
    assert all(inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED for coroutine in coroutines)


def test_a_loop_without_users_ends_and_a_new_one_is_created() -> None:
    with LoopThread._guard:  # noqa: SLF001 - as in `acquire`, where an interrupt may arrive after the next line
        LoopThread._shared = abandoned = LoopThread()  # noqa: SLF001 - as above
    abandoned._thread.join(60)  # noqa: SLF001 - as above
    assert not abandoned._thread.is_alive()  # noqa: SLF001 - as above
    thread = LoopThread.acquire(nothing)
    assert thread.run(answer) == 7
    thread.release(nothing)


def test_a_loop_that_has_ended_runs_nothing() -> None:
    thread = LoopThread.acquire(nothing)
    thread.release(nothing)
    with pytest.raises(LoopStoppedError):
        thread.run(answer)


def test_a_caller_that_waits_when_the_loop_stops_gets_an_error_and_keeps_nothing() -> None:
    begun = threading.Event()
    heard: list[LoopStoppedError] = []
    events: list[weakref.ref[asyncio.Event]] = []

    async def hang() -> None:
        begun.set()
        event = asyncio.Event()
        events.append(weakref.ref(event))
        await event.wait()

    def wait() -> None:
        try:
            thread.run(hang)
        except LoopStoppedError as error:
            heard.append(error)

    thread = LoopThread.acquire(nothing)
    waiting = threading.Thread(target=wait)
    waiting.start()
    assert begun.wait(60)
    thread.release(nothing)
    waiting.join(60)
    gc.collect()
    assert len(heard) == 1
    assert events[0]() is None


IN_A_FORK = """
import os, sys
from devicecore.adapters.grpc_unix import serve_plugin
from devicecore.domain.errors import ForkedError
from devicecore.plugins.simulated import SimulatedPlugin
from devicecore_tools.testing.temporary import short_directory

with short_directory() as directory, serve_plugin(SimulatedPlugin("example.com/gpu"), directory) as plugin:
    child = os.fork()
    if child == 0:
        for attempt in (plugin.stop, lambda: serve_plugin(SimulatedPlugin("example.com/nic"), directory).start()):
            try:
                attempt()
            except ForkedError as error:
                print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_served_plugin_in_a_fork_says_so_instead_of_hanging() -> None:
    command = [sys.executable, "-W", "ignore", "-c", IN_A_FORK]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    begins = [line.partition(" in process ")[0] for line in ran.stdout.splitlines()]
    assert begins == ["an object that was started"] * 2
