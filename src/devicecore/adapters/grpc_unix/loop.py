"""One event loop in its own thread, shared by all gRPC transports and plugins of this process.

Law: nothing that runs on the loop blocks it. Listeners and plugins may block, so they run in worker threads.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from typing import Any, ClassVar, TypeVar, TypeVarTuple

from devicecore.domain.errors import ForkedError
from devicecore.runtime.in_time import WaitingThreads
from devicecore.runtime.thread import Thread

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
Close = Callable[[], Coroutine[Any, Any, None]]

logger: logging.Logger = logging.getLogger(__name__)


class LoopStoppedError(Exception):
    """The loop stopped before the call ended."""


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that drops callbacks once it is closed, instead of raising RuntimeError.

    If a call was abandoned, gRPC schedules a callback on that call's loop when the plugin exits. The error would then
    surface on the loop of a later run, which would get no events for a while.
    """

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            return asyncio.Handle(callback, args, self, context)


class LoopThread:
    """An event loop in its own thread. `acquire` returns the shared loop, and `release` gives it back.

    All users share one loop, because grpc.aio wakes every event loop of the process whenever any of them has an event.
    """

    _guard: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar["LoopThread | None"] = None

    def __init__(self) -> None:
        self._process = os.getpid()
        self._users: dict[Close, None] = {}  # in the order in which the users acquired the loop
        self.waiting_threads: WaitingThreads = WaitingThreads()
        self._submitting = threading.Lock()
        self._stopping = False
        self._started = threading.Event()
        self._problem: BaseException | None = None
        self._thread = Thread(target=self._run, name="devicecore-grpc")
        self._thread.start()
        self._started.wait()
        if self._problem is not None:
            raise self._problem

    @classmethod
    def acquire(cls, close: Close) -> "LoopThread":
        """Return the loop, started if needed. `close` is called if the program ends without `release`.

        Raises OSError if no loop can be created, and ForkedError in a fork, because gRPC cannot start over there.
        """
        if (running := cls._shared) is not None:
            running.check_process()  # before the lock is taken, because a fork may have copied a held lock
        with cls._guard:
            shared = cls._shared
            if shared is None or shared._stopping:  # noqa: SLF001  # it is our own class
                cls._shared = shared = cls()
            shared._users[close] = None
            return shared

    @classmethod
    def forget(cls, close: Close) -> None:
        """Give the loop back if an interrupt came after `acquire` but before the caller received the loop."""
        if (shared := cls._shared) is not None:
            shared._give_back(close)  # noqa: SLF001  # it is our own class

    def release(self, close: Close) -> None:
        """Run `close` on the loop, then give the loop back.

        If this was the last user, the loop's thread has ended when this method returns.

        Raises ForkedError if called in a fork of the loop's process.
        """
        with suppress(LoopStoppedError):  # the program is ending, and the loop has called `close`
            self.run(close)
        self._give_back(close)

    def _give_back(self, close: Close) -> None:
        self.check_process()
        with self._guard:
            self._users.pop(close, None)
            if self._users:
                return
            with self._submitting:
                self._stopping = True
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            if LoopThread._shared is self:
                LoopThread._shared = None

    def run(self, start: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Call `start` on the loop and wait for its coroutine; an interrupt cancels the coroutine.

        Any other thread may call this. `asyncio.run_coroutine_threadsafe` would leave the coroutine running if the
        caller is interrupted before it has the future. Raises LoopStoppedError if the loop stops before the coroutine
        has ended, and ForkedError in a fork.
        """
        task: asyncio.Task[None] | None = None
        results: list[Result] = []
        errors: list[BaseException] = []
        done = threading.Lock()
        done.acquire()

        async def work() -> None:
            try:
                await asyncio.sleep(0)
                results.append(await start())
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                errors.append(error)
            done.release()  # a callback of the task would be called one iteration later

        def begin() -> None:
            nonlocal task
            working = work()
            working.send(None)  # the task has run up to `sleep`, so `done` is released no matter what cancels it
            task = self._loop.create_task(working)

        def give_up() -> None:
            if task is not None:
                task.cancel()

        self.check_process()
        try:
            self._submit(begin)
            done.acquire()
        except BaseException:
            self.call_soon(give_up)  # a signal has interrupted submitting or waiting
            raise
        if results:
            return results[0]
        if isinstance(errors[0], asyncio.CancelledError):
            # `errors` is in this frame and refers to the coroutine's frames, one of which references a gRPC server
            errors.clear()
            raise LoopStoppedError from None
        raise errors[0]

    def check_process(self) -> None:
        """Raise ForkedError if called in a fork of the loop's process."""
        if self._process != os.getpid():
            raise ForkedError(self._process, os.getpid())

    def _submit(self, callback: Callable[[], None]) -> None:
        with self._submitting:  # the stop cancels callbacks that were submitted earlier, so no callback is forgotten
            if self._stopping:
                raise LoopStoppedError
            self._loop.call_soon_threadsafe(callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Schedule `callback` on the loop, from any thread. If the loop has stopped, this method does nothing."""
        self._loop.call_soon_threadsafe(callback)

    async def in_worker(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run `function`, which may block, in a worker thread."""
        return await self._loop.run_in_executor(self._workers, function, *arguments)

    def submit(self, function: Callable[[], object]) -> None:
        """Schedule `function`, which may block and does not raise, in a worker thread, unless the loop stops."""
        with suppress(RuntimeError):
            self._workers.submit(function)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                runner.get_loop()  # checked before creating a coroutine, which would have to be closed
                runner.run(self._main())
        except BaseException as error:  # without the event, the constructor would wait forever
            if self._started.is_set():
                raise
            self._problem = error
            self._started.set()

    def _stop_if_abandoned(self) -> bool:
        """Stop accepting users if the loop has none, because an interrupt came before it had any.

        Return whether the loop has stopped accepting users.
        """
        if self._users or not self._guard.acquire(blocking=False):  # `acquire` holds the guard while creating the loop
            return False
        try:
            with self._submitting:
                self._stopping = not self._users
        finally:
            self._guard.release()
        return self._stopping

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._workers = ThreadPoolExecutor(8, thread_name_prefix="devicecore-plugin")
        self._started.set()
        # Our thread is not a daemon, because gRPC must be closed before the interpreter ends. So the loop's thread has
        # to detect that the program has ended without a stop.
        while not self._stop.is_set() and not self._stop_if_abandoned() and threading.main_thread().is_alive():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 1)
        with self._submitting:
            self._stopping = True
        for close in tuple(self._users):
            try:
                await close()
            except Exception:
                # go on, so that the remaining users are closed
                logger.exception("closing a transport or plugin failed when the program ended")
        self.waiting_threads.end()
        self._workers.shutdown(wait=False, cancel_futures=True)  # do not wait for a plugin that never returns


class LoopUser:
    """One object that uses the shared loop between its start and its stop.

    `begin` calls `open_` on the loop, and `end` calls `close`, even if `open_` has failed. If an interrupt ends `end`
    early, the next `end` calls `close` again.
    """

    def __init__(self, open_: Close, close: Close) -> None:
        self._open = open_
        self._close = close
        self._loop: LoopThread | None = None

    @property
    def loop(self) -> LoopThread:
        """The loop. Raises LoopStoppedError before `begin` and after `end`."""
        loop = self._loop
        if loop is None:
            raise LoopStoppedError
        return loop

    def begin(self) -> None:
        """Acquire the loop, and call `open_`. If `begin` fails, `end` gives the loop back.

        Raises OSError and ForkedError.
        """
        try:
            self._loop = LoopThread.acquire(self._close)
        except BaseException:
            LoopThread.forget(self._close)  # an interrupt may have come after the loop was acquired
            raise
        self._loop.run(self._open)

    def end(self) -> None:
        """Call `close`, and give the loop back. A second call does nothing. Raises ForkedError."""
        if self._loop is not None:
            self._loop.release(self._close)
            self._loop = None
