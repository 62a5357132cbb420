"""The one event loop, in one thread, that everything in this process shares that speaks gRPC.

Law: nothing on it blocks. Listeners and plugins, which may, run in worker threads.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

Result = TypeVar("Result")
Close = Callable[[], Awaitable[None]]

logger: logging.Logger = logging.getLogger(__name__)


class LoopStoppedError(Exception):
    """The loop ended before it could give an answer."""


class LoopThread:
    """An event loop in a thread of its own. Get one from `acquire`, give it back with `release`.

    One loop for all, for grpc.aio wakes every loop of a process for every event of any of them.
    """

    _guard: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar["LoopThread | None"] = None

    def __init__(self) -> None:
        self._users: dict[Close, None] = {}  # in the order in which they came
        self._submitting = threading.Lock()
        self._stopping = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="devicecore-grpc")
        self._thread.start()
        self._started.wait()

    @classmethod
    def acquire(cls, close: Close) -> "LoopThread":
        """Give the running loop, started if need be. `close` is for the end of a program that forgets to `release`."""
        with cls._guard:
            shared = cls._shared
            if shared is None or shared._stopping:  # noqa: SLF001  # it is our own class
                cls._shared = shared = cls()
            shared._users[close] = None
            return shared

    def release(self, close: Close) -> None:
        """Give the loop back. When nobody uses it any more its thread has ended on return."""
        with self._guard:
            self._users.pop(close, None)
            if self._users:
                return
            with self._submitting:
                self._stopping = True
                with suppress(RuntimeError):  # ended already, with the program
                    self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            if LoopThread._shared is self:
                LoopThread._shared = None

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run `coroutine` on the loop and wait for it. To be called from any other thread.

        Raises:
            LoopStoppedError: the loop has ended, or ended meanwhile.
        """
        task: asyncio.Task[Result] | None = None
        done = threading.Lock()  # not two futures and their conditions: that takes a tenth of a plugin's call
        done.acquire()

        def begin() -> None:
            nonlocal task
            task = self._loop.create_task(coroutine)
            task.add_done_callback(lambda _: done.release())

        def give_up() -> None:
            if task is not None:
                task.cancel()
            else:  # it never got as far as the loop
                coroutine.close()

        try:
            self._submit(begin)
            done.acquire()
        except LoopStoppedError:
            coroutine.close()
            raise
        except BaseException:
            self.call_soon(give_up)  # submitting or waiting was interrupted from the keyboard
            raise
        assert task is not None  # noqa: S101  # for mypy
        try:
            return task.result()
        except asyncio.CancelledError:
            raise LoopStoppedError from None

    def _submit(self, callback: Callable[[], None]) -> None:
        with self._submitting:  # what is submitted before the stop is cancelled by it, not forgotten
            if self._stopping:
                raise LoopStoppedError
            self._loop.call_soon_threadsafe(callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have `callback` called on the loop, from any thread; in vain when the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    async def in_worker(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run `function`, which may block, in a worker thread."""
        return await self._loop.run_in_executor(self._workers, function, *arguments)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._workers = ThreadPoolExecutor(8, thread_name_prefix="devicecore-plugin")
        self._started.set()
        # Our thread is no daemon, for grpc must not be cut off in mid-air at the interpreter's end; so it has to see
        # for itself that the program has ended without stopping what it started.
        while not self._stop.is_set() and threading.main_thread().is_alive():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 1)
        with self._submitting:
            self._stopping = True
        for close in tuple(self._users):
            await close()
        self._workers.shutdown(wait=False, cancel_futures=True)  # a plugin that never returns must not keep us
