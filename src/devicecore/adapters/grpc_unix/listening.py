"""The common parts of the transports of device plugins and DRA drivers: start, stop, and calls to the listener.

Laws: the listener is called in worker threads, so a slow call to the listener does not delay other plugins or drivers.
A stop waits until the last call to the listener has returned; after that, the listener is not called.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

from attrs import frozen

from devicecore.adapters.grpc_unix.loop import LoopThread, LoopUser
from devicecore.domain.errors import DeviceCoreError, DirectoryError, DirectoryInUseError
from devicecore.runtime.lifecycle import Lifecycle

LARGE_MESSAGE = 64 * 1024
"""The size, in bytes, from which on lists and reports are read one at a time.

A list of this size contains about 3,000 devices, and takes a few milliseconds to read.
"""

MAX_PAUSE = 1.0
"""The longest pause, in seconds, between two large messages of one plugin or driver."""

_LISTENER_THREADS = 8


class Part(Protocol):
    """A component that runs from a transport's start to its stop. Only the event loop's thread uses this object."""

    async def start(self) -> None:
        """Start."""

    async def stop(self) -> None:
        """Stop. A second call, or a call before the start, does nothing."""


Reported = TypeVar("Reported")
Peers = TypeVar("Peers", bound=Part)
Notify = Callable[[Callable[[], Reported]], Awaitable[None]]
"""Build an event and pass it to the listener, both in a worker thread. Only a registration can be refused."""

logger: logging.Logger = logging.getLogger(__name__)


@frozen
class _StoppingError(DeviceCoreError):
    """An event arrived while the transport was stopping."""

    _text = "the kubelet is stopping"


class LargeMessages:
    """Makes large messages wait so that they are read one at a time, with pauses.

    A plugin that sends large messages without pause would otherwise take most of the interpreter's time. During a
    pause, nothing is read from the plugin's stream, so gRPC's flow control makes the plugin wait.
    """

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def read(self, size: int, read: Callable[[], Awaitable[None]]) -> None:
        """Read a message of `size` bytes."""
        if size < LARGE_MESSAGE:
            await read()
            return
        now = asyncio.get_running_loop().time
        async with self._reading:
            started = now()
            await read()
        await asyncio.sleep(min(3 * (now() - started), MAX_PAUSE))


class TransportRun(Generic[Reported, Peers]):
    """One run of a transport, from its start to its stop. `peers` are the connected plugins or drivers."""

    def __init__(
        self, transport: "ListeningTransport[Reported, Peers]", listener: Callable[[Reported], object]
    ) -> None:
        self.listener = listener
        self._transport = transport
        self._threads = ThreadPoolExecutor(_LISTENER_THREADS, thread_name_prefix="devicecore-listener")
        self._user = LoopUser(self._open, self._close)
        self._is_ending = False
        self.peers, others = transport.parts(self.notify)
        self._parts: tuple[Part, ...] = (self.peers, *others)

    @property
    def loop(self) -> LoopThread:
        """The event loop. Raises LoopStoppedError if the run has ended."""
        return self._user.loop

    def begin(self) -> None:
        """Start all parts. Raises OSError if no event loop can be created."""
        self._user.begin()

    def end(self) -> None:
        """Stop all parts, and wait for the listener. A second call does nothing."""
        self._is_ending = True
        self._user.end()
        self._threads.shutdown(cancel_futures=True)

    async def notify(self, make_event: Callable[[], Reported]) -> None:
        """Build an event and pass it to the listener, both in a worker thread.

        Raises DeviceCoreError if the event is a registration and the listener refuses it.
        """
        try:
            notified = asyncio.get_running_loop().run_in_executor(self._threads, self._notify_now, make_event)
        except RuntimeError:
            return  # the program is exiting without having stopped us, so the listener is no longer called
        await notified

    def _notify_now(self, make_event: Callable[[], Reported]) -> None:
        event = make_event()  # in the worker thread, because 50,000 devices take longer than a loop should pause
        try:
            self._call_listener(event)
        except (Exception, SystemExit) as error:  # a SystemExit would end the loop and everything else on it
            unknown = self._transport.refusal(event, error)
            if unknown is not None and isinstance(error, DeviceCoreError):
                raise  # the caller answers the plugin with this error, and logs it
            if unknown is None and isinstance(error, (_StoppingError, *self._transport.expected)):
                return
            logger.exception("the listener failed on %s", type(event).__name__)
            if unknown is not None:
                raise unknown from error

    def _call_listener(self, event: Reported) -> None:
        if self._is_ending:
            raise _StoppingError
        self._transport.call_listener(self.listener, event)

    async def _open(self) -> None:
        for part in self._parts:
            await part.start()

    async def _close(self) -> None:
        for part in reversed(self._parts):
            await part.stop()


class ListeningTransport(ABC, Generic[Reported, Peers]):
    """A transport with a listener. Subclasses define what runs during a run. Errors mention `name` and `directory`."""

    expected: ClassVar[tuple[type[Exception], ...]] = ()
    """The errors of a listener that was stopped and is about to stop this transport. Such errors are not logged."""

    def __init__(self, name: str, directory: str) -> None:
        self._place = directory
        self._lifecycle = Lifecycle(name)
        self._run: TransportRun[Reported, Peers] | None = None

    def start(self, listener: Callable[[Reported], object]) -> None:
        """Begin to accept registrations. A second start does nothing.

        Raises:
            SetUpError: a directory or socket cannot be used. Nothing is left behind.
            DirectoryInUseError: the directory belongs to another kubelet, or this transport has a different listener.
        """
        self._lifecycle.start(partial(self._begin, listener), self._end)
        run = self._run
        if run is not None and run.listener != listener:
            raise DirectoryInUseError(self._place)

    def stop(self) -> None:
        """Disconnect every plugin or driver without events, and wait until the last call to the listener has returned.

        The caller must not hold a lock that the listener waits for. A second stop does nothing.

        Raises:
            CalledFromInsideError: the listener calls this method.
        """
        self._lifecycle.stop(self._end)

    @abstractmethod
    def parts(self, notify: "Notify[Reported]") -> tuple[Peers, tuple[Part, ...]]:
        """Return the components that run with the transport: plugins or drivers, and what starts after them."""

    @abstractmethod
    def refusal(self, event: Reported, error: BaseException) -> DeviceCoreError | None:
        """Return the error that refuses a registration if the listener fails with `error`, or None for other events."""

    def call_listener(self, listener: Callable[[Reported], object], event: Reported) -> None:
        """Call the listener, which must neither start nor stop this transport."""
        self._lifecycle.call("the listener", listener, event)

    def _begin(self, listener: Callable[[Reported], object]) -> None:
        self._run = run = TransportRun(self, listener)  # set before the start, because a plugin may register at once
        try:
            run.begin()
        except OSError as error:
            raise DirectoryError(self._place, f"gRPC cannot be started: {error.strerror}") from error

    def _end(self) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None
