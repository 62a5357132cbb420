"""The common parts of served plugins and drivers: methods, sockets, and their registration state.

Laws: a plugin or driver is called in worker threads, and an exception from it becomes the answer to the kubelet. Each
socket is served from the start to the stop, and again if it was deleted or its directory appears late.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import grpc
import grpc.aio
from attrs import frozen

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.limits import MAX_ERROR
from devicecore.adapters.grpc_unix.loop import LoopThread, LoopUser
from devicecore.domain.checks import check_seconds
from devicecore.domain.errors import DeviceCoreError, DirectoryError, SetUpError
from devicecore.domain.text import foreign_text
from devicecore.runtime.background import end, supervise
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.system.sockets import OwnedSocket, check_socket_path
from devicecore.wire import pluginregistration

Context = grpc.aio.ServicerContext[Any, Any]
Methods = Mapping[rpc.Method[Any, Any], rpc.Behavior]
Message = TypeVar("Message")
Answer = TypeVar("Answer")
ServiceT = TypeVar("ServiceT", bound="Service")

MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # the limit of a kubelet, which is gRPC's default
STOP_GRACE = 1.0  # seconds for calls in progress to end

logger: logging.Logger = logging.getLogger(__name__)


class Service(ABC):
    """The methods of one plugin or driver.

    Only the event loop's thread uses this object, except that worker threads call the plugin or driver through it.

    `name` is the name of the plugin or driver in the log.
    """

    def __init__(self, name: str, loop: LoopThread) -> None:
        self._name = name
        self._loop = loop
        self._streams: set[asyncio.Event] = set()
        self._is_ending = False

    @abstractmethod
    def methods(self) -> Methods:
        """Return the handler of each method."""

    @property
    def is_streaming(self) -> bool:
        """Whether a stream is open."""
        return bool(self._streams)

    def changed(self) -> None:
        """Make every stream send the new list or report. Changes in quick succession are combined."""
        for stream in self._streams:
            stream.set()

    def end(self) -> None:
        """Make every stream end."""
        self._is_ending = True
        self.changed()

    async def stream(
        self, context: Context, ask: Callable[[], Awaitable[Message | None]], period: float | None = None
    ) -> AsyncIterator[Message]:
        """Yield what `ask` returns, unless that is None: at once, after each change, and every `period` seconds."""
        wake = asyncio.Event()
        self._streams.add(wake)
        # This is not in a `finally`, which would run only when an abandoned generator is garbage-collected.
        context.add_done_callback(lambda _: self._ended(wake))  # type: ignore[arg-type]  # the stub wants a class for a callable
        while not self._is_ending:
            wake.clear()
            message = await ask()
            if message is not None:
                yield message
            with suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await wake.wait()

    async def answer(self, context: Context, question: Callable[[], Answer]) -> Answer:
        """Call `question` in a worker thread, and return the result.

        If `question` raises an error, the call ends with the `status` of the error.
        """
        try:
            return await self._loop.in_worker(question)
        except (Exception, SystemExit) as error:  # a SystemExit would end the event loop and everything that runs on it
            code, text = self.status(error)
            text = foreign_text(text, MAX_ERROR)
            unexpected = not isinstance(error, DeviceCoreError)
            logger.warning("%s failed: %s", self._name, text, exc_info=unexpected)
            await context.abort(code, text)

    def unary(self, ask: Callable[[Any], Answer]) -> rpc.Behavior:
        """Return a handler that answers a method with the result of `ask` for the request."""

        async def behavior(request: object, context: Context) -> Answer:
            return await self.answer(context, partial(ask, request))

        return behavior

    def status(self, error: BaseException) -> tuple[grpc.StatusCode, str]:
        """Return the status of a call that raised `error`."""
        return grpc.StatusCode.UNKNOWN, str(error) or type(error).__name__

    def _ended(self, wake: asyncio.Event) -> None:
        self._streams.discard(wake)


def registration_methods(
    info: Callable[[], pluginregistration.PluginInfo], answered: Callable[[str], object]
) -> Methods:
    """Return the two methods that a plugin watcher calls.

    `info` describes this plugin or driver. `answered` is called with "" if a kubelet has registered the plugin or
    driver, otherwise with the reason why not.
    """

    async def get_info(_: pluginregistration.InfoRequest, __: Context) -> pluginregistration.PluginInfo:
        return info()

    async def notify(
        status: pluginregistration.RegistrationStatus, _: Context
    ) -> pluginregistration.RegistrationStatusResponse:
        answered("" if status.plugin_registered else status.error or "the kubelet refuses without saying why")
        return pluginregistration.RegistrationStatusResponse()

    return {rpc.GET_INFO: get_info, rpc.NOTIFY_REGISTRATION_STATUS: notify}


# --- sockets ----------------------------------------------------------------------------------------------------------


@frozen
class KubeletUnreachableError(SetUpError):
    """A plugin or driver is not registered, because no kubelet answers or calls, or the kubelet refuses it."""

    socket: str
    cause: str
    _text = "cannot register with the kubelet at {socket!r}: {cause}"


@frozen
class MissingDirectoryError(DirectoryError):
    """The directory of a socket does not exist yet."""


class ServedSockets(HasLifecycle, Generic[ServiceT]):
    """A served plugin or driver: a context manager that stops serving it on exit.

    The `sockets` are created in order, and removed in reverse order. `meets_at` is the kubelet's socket, or the socket
    that a kubelet discovers. In the log, `name` stands for the plugin or driver, and `kubelet` for the kubelet.
    `poll_interval` is the number of seconds between two checks of the sockets.
    """

    _NOT_ASKED = "no kubelet has queried this socket yet"

    def __init__(self, name: str, sockets: Sequence[str], *, meets_at: str, kubelet: str, poll_interval: float) -> None:
        self._name = name
        self._sockets = {path: OwnedSocket(path) for path in sockets}
        self._meets_at = meets_at
        self._kubelet = foreign_text(kubelet)
        self._poll_interval = poll_interval
        self._lifecycle = Lifecycle(f"the server of {name}")
        self._user = LoopUser(self._open, self._close)
        self._problem = self._NOT_ASKED
        # The event loop also takes this lock. Prefer `with self._lock` to `with self._attempted`: conditions are
        # implemented in Python, so an interrupt could leave the lock held.
        self._lock = threading.RLock()
        self._attempted = threading.Condition(self._lock)
        # Only the event loop's thread uses the following attributes.
        self._service: ServiceT | None = None
        self._servers: dict[str, grpc.aio.Server] = {}
        self._keeper: asyncio.Task[NoReturn] | None = None

    @property
    @abstractmethod
    def registered(self) -> bool:
        """Whether the current kubelet has accepted the plugin or driver."""

    def wait_registered(self, timeout: float | None = None) -> None:
        """Wait until the plugin or driver is `registered`.

        Raises:
            KubeletUnreachableError: the plugin or driver is not registered within `timeout` seconds, or a kubelet has
                refused the driver; `cause` is the error from the last attempt.
            NotStartedError: the plugin or driver is not started.
            TypeError: `timeout` is not a number.
        """
        self._lifecycle.check_running()
        if timeout is not None:
            check_seconds("wait_registered: timeout", timeout)
        with self._lock:
            self._attempted.wait_for(self._is_decided, timeout)
            if not self.registered:
                raise KubeletUnreachableError(self._meets_at, self._problem or "the registration has just been lost")

    def _is_decided(self) -> bool:
        """Return whether `wait_registered` can stop waiting."""
        return self.registered

    def _begin(self) -> None:
        for path in self._sockets:
            check_socket_path(path)
        self._user.begin()

    def _end(self) -> None:
        self._user.end()
        self._problem = self._NOT_ASKED

    @abstractmethod
    async def _serve(self, socket: OwnedSocket) -> None:
        """Serve at `socket`, for the first time or again.

        Raises MissingDirectoryError if the socket's directory does not exist yet but is expected, and DirectoryError if
        the socket cannot be created in its directory.
        """

    @abstractmethod
    async def _look(self) -> None:
        """Check the sockets, and repair any that are broken."""

    async def _open(self) -> None:
        for socket in self._sockets.values():
            try:
                await self._serve(socket)
            except MissingDirectoryError as error:
                self._tried(str(error))
        self._keeper = asyncio.create_task(supervise(f"serving {self._name}", self._keep))

    async def _close(self) -> None:
        if self._keeper is not None:
            await end(self._keeper)
        for socket in reversed(self._sockets.values()):
            socket.remove()
        if self._service is not None:
            self._service.end()  # streams that end on their own leave no traceback in grpc's log
        for server in self._servers.values():
            await server.stop(STOP_GRACE)
        self._servers.clear()
        self._service = None

    async def _serve_methods(self, methods: Methods, socket: OwnedSocket, service: ServiceT) -> None:
        """Serve the `methods` of `service` at a socket, and only then stop the previous server there.

        Raises DirectoryError if the socket cannot be created; the previous server keeps running.
        """
        server = await rpc.serve(methods, socket, MAX_MESSAGE_BYTES)
        # This comes before the previous server stops, because a kubelet may find the new socket in the meantime.
        self._renewed()
        former, self._servers[socket.path] = self._servers.get(socket.path), server
        former_service, self._service = self._service, service
        if former_service is not None and former_service is not service:
            former_service.end()
        if former is not None:
            await former.stop(STOP_GRACE)
            logger.info("%s is served again", foreign_text(socket.path))

    def _renewed(self) -> None:
        """Forget a kubelet's answer that is older than the socket."""

    async def _keep(self) -> None:
        while True:
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001  # it is logged, and may be gone the next time
                self._tried(str(error))
            await asyncio.sleep(self._poll_interval)

    def _tried(self, problem: str) -> None:
        """Record why no kubelet has registered the plugin or driver, or "" if a kubelet has registered it.

        Each reason is logged once, not at each attempt.
        """
        problem = foreign_text(problem, MAX_ERROR)
        if not problem:
            logger.info("%s registered with %s", self._name, self._kubelet)
        elif problem != self._problem:
            logger.warning("%s cannot register with %s: %s", self._name, self._kubelet, problem)
        with self._lock:
            self._problem = problem
            self._attempted.notify_all()


def check_directory(socket: str) -> None:
    """Refuse a path if no socket can be created in its directory.

    Raises MissingDirectoryError if nothing exists at the directory's path, and DirectoryError if something other than a
    directory does.
    """
    directory = Path(socket).parent
    if not directory.is_dir():
        if directory.exists():
            raise DirectoryError(str(directory), "it is not a directory")
        raise MissingDirectoryError(str(directory), "there is no such directory: a kubelet creates it")
