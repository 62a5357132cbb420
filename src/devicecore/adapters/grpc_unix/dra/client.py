"""The connection to one driver instance.

Laws: a lost connection is reestablished until the instance is removed. The listener gets an instance's events one after
another, and none after `DriverRemoved` (kubelet-dra.md 3, 10).
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import NoReturn

import grpc
import grpc.aio
from attrs import frozen
from google.protobuf.message import Message

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.connection import ClosedConnectionError, PeerConnection
from devicecore.adapters.grpc_unix.dra import calls
from devicecore.adapters.grpc_unix.limits import MAX_ERROR, MAX_NAME, ConnectionLimits
from devicecore.adapters.grpc_unix.listening import LargeMessages, Notify
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.domain.dra.drivers import (
    DriverConnected,
    DriverDisconnected,
    DriverEvent,
    DriverRegistered,
    DriverRemoved,
    HealthEnded,
    HealthReported,
    InstanceId,
)
from devicecore.domain.text import foreign_text
from devicecore.runtime.background import end, supervise
from devicecore.system.arguments import checks_fields
from devicecore.system.rate import TokenBucket
from devicecore.system.sockets import socket_identity
from devicecore.wire.dra_conversion import TooMuchError, to_report

REPORTS_PER_SECOND, REPORTS_AT_ONCE = 10.0, 50
"""The maximum numbers of health reports read from one instance: per second, and in one burst.

Further reports wait, because changes are written to a file.
"""

logger: logging.Logger = logging.getLogger(__name__)


@checks_fields
@frozen(kw_only=True)
class DriverLimits(ConnectionLimits):
    """How many seconds a driver may take for a call, and how many to wait after its health stream ends."""

    call: float = 45.0
    health_pause: float = 5.0


class DriverClient:
    """A registered driver instance; a `RegisteredPlugin` of the plugin watcher.

    Only the event loop's thread uses this object, except for `call`. `services` contains the services that the driver
    listed when it registered; `notify` calls the listener in a worker thread. `large_reports` is shared by all drivers.
    `closed` is called at the end of `close`.
    """

    def __init__(
        self,
        id_: InstanceId,
        services: Collection[str],
        limits: DriverLimits,
        notify: Notify[DriverEvent],
        large_reports: LargeMessages,
        *,
        closed: Callable[[], object],
    ) -> None:
        self.id = id_
        self._closed = closed
        self._large_reports = large_reports
        self._health_method = calls.health_method(services)
        self._limits = limits
        self._listener = notify
        self._turn = asyncio.Lock()  # held while the listener is called
        self._is_removed = False
        self._connected, self._disconnected = asyncio.Event(), asyncio.Event()
        self._disconnected.set()
        self._health_problem = ""
        self._connection: PeerConnection | None = None
        self._tasks: list[asyncio.Task[NoReturn]] = []

    @property
    def lost(self) -> bool:
        """Whether the instance is no longer registered. A lost connection does not count: it is reestablished."""
        return self._connection is None

    async def register(self) -> None:
        """Begin to connect, and notify the listener that the instance is registered.

        The instance can be called before the listener knows of it, because the listener may call the instance at once.
        If the listener refuses the instance, the instance is closed, and the listener's error is raised.
        """
        try:
            async with self._turn:
                self._open()
                await self._listener(partial(DriverRegistered, self.id))
        except BaseException:
            await self.close()
            raise

    def _open(self) -> None:
        self._connection = PeerConnection(self.id.endpoint, self._limits.message_bytes)
        name = foreign_text(self.id.driver, MAX_NAME)
        self._tasks = [
            asyncio.create_task(supervise(f"watching the connection to {name}", self._watch_connection)),
            asyncio.create_task(supervise(f"watching the health of {name}", self._watch_health)),
        ]

    def call(self, loop: LoopThread, method: calls.Method, request: Message) -> Message:
        """Call the driver and return the answer. Any thread except the loop's may call this.

        Raises DriverCallError if the call failed, and LoopStoppedError and ForkedError as `PeerConnection.call` does.
        """
        connection = self._connection
        if connection is None:
            raise calls.closing(method.name)
        try:
            answer: Message = connection.call(loop, method, request, self._limits.call)
        except grpc.RpcError as error:
            raise calls.call_error(method.name, self.id.endpoint, error) from error
        except ClosedConnectionError:
            raise calls.closing(method.name) from None
        return answer

    async def reconnect(self) -> None:
        """Cut the connection and start a new one. Calls in progress fail. After `close`, this method does nothing."""
        connection = self._connection
        if connection is None:
            return
        await self._end_tasks()
        await self._notify(partial(HealthEnded, self.id))
        await self._set_connected(is_connected=False)
        self._open()
        await connection.close()

    async def disconnect(self) -> None:
        """End the registration. The last event is `DriverRemoved`. A second call does nothing."""
        async with self._turn:
            if not self._is_removed:
                self._is_removed = True
                await self._listener(partial(DriverRemoved, self.id))
        await self.close()

    async def close(self) -> None:
        """Give up the connection, without events. Calls in progress fail. A second call does nothing."""
        self._is_removed = True
        connection, self._connection = self._connection, None
        try:
            await self._end_tasks()
            if connection is not None:
                await connection.close()
        finally:
            self._closed()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            await end(task)
        self._tasks = []  # a cancelled task's traceback refers to its call, which keeps the connection open

    async def _notify(self, make_event: Callable[[], DriverEvent]) -> None:
        async with self._turn:
            if not self._is_removed:
                await self._listener(make_event)

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _watch_connection(self) -> None:
        connection = self._connection
        while connection is not None:
            state = connection.channel.get_state(try_to_connect=True)
            is_ready = state is grpc.ChannelConnectivity.READY
            connection.allow_direct_calls(socket_identity(self.id.endpoint) if is_ready else None)
            await self._set_connected(is_connected=is_ready)
            await connection.channel.wait_for_state_change(state)

    async def _set_connected(self, *, is_connected: bool) -> None:
        if is_connected is self._connected.is_set():
            return
        now, before = self._connected, self._disconnected
        if not is_connected:
            now, before = before, now
        now.set()
        before.clear()
        event = DriverConnected if is_connected else DriverDisconnected
        logger.info(
            "%s at %s is %s",
            foreign_text(self.id.driver, MAX_NAME),
            foreign_text(self.id.endpoint),
            "connected" if is_connected else "disconnected; connecting again",
        )
        await self._notify(partial(event, self.id))

    # --- health -------------------------------------------------------------------------------------------------------

    async def _watch_health(self) -> None:
        while True:
            await self._connected.wait()
            if await self._read_reports():
                await asyncio.sleep(self._limits.health_pause)
            else:
                await self._disconnected.wait()  # the driver's current process does not serve health reports

    async def _read_reports(self) -> bool:
        """Read a health stream to its end. Return whether another stream to the same process may succeed."""
        connection, method, is_offered = self._connection, self._health_method, True
        if connection is None:
            return False
        bucket = TokenBucket(REPORTS_PER_SECOND, REPORTS_AT_ONCE, asyncio.get_running_loop().time)
        call = rpc.stream(connection.channel, method)
        try:
            async for data in call:
                while wait := bucket.take():  # noqa: ASYNC110  # only time fills the bucket
                    await asyncio.sleep(wait)
                await self._large_reports.read(len(data), partial(self._notify, partial(self._read, data)))
            self._log_health("its health stream has ended")
        except TooMuchError as error:
            self._log_health(str(error))
        except grpc.RpcError as error:
            if rpc.was_not_reached(error):
                return True
            code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
            is_offered = code is not grpc.StatusCode.UNIMPLEMENTED
            self._log_health(rpc.go_text(error) if is_offered else "")
        finally:
            call.cancel()  # once the stream has ended, cancelling does nothing
        await self._notify(partial(HealthEnded, self.id))
        return is_offered

    def _read(self, data: bytes) -> DriverEvent:
        return HealthReported(self.id, to_report(rpc.parse(self._health_method.response.FromString, data)))

    def _log_health(self, problem: str) -> None:
        """Log why the health of a driver's devices is unknown, once until the reason changes."""
        if problem and problem != self._health_problem:
            name = foreign_text(self.id.driver, MAX_NAME)
            logger.warning("the health of %s is not known: %s", name, foreign_text(problem, MAX_ERROR))
        self._health_problem = problem
