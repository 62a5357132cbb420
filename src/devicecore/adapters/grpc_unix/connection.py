"""The connection to a plugin or driver: streams through the event loop, and calls directly if that is possible.

A call through the event loop is handed from thread to thread four times. A direct call has its own socket and is handed
over twice: to a thread that waits for the answer, and back. A direct call thus saves half of the time that a bare call
takes (docs/maintain/decisions.md).

Laws: a direct call is sent only to the process that serves the socket file at which the connection was made. If that is
not possible, the call goes through the event loop. No caller's thread calls gRPC, because an interrupt may leave the
lock of gRPC's channel held forever.
"""

import asyncio
from functools import partial
from typing import Any
from weakref import WeakSet

import grpc
import grpc.aio

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.adapters.grpc_unix.rpc import Request, Response
from devicecore.runtime.in_time import NOTICED, NoThreadError, WaitingThreads, in_time
from devicecore.system.grpc_settings import channel_options, target
from devicecore.system.sockets import SocketIdentity, socket_identity


class ClosedConnectionError(Exception):
    """The connection was closed before a call ended."""


class PeerConnection:
    """The connection to the process at a socket. Only the event loop's thread uses this object, except for `call`."""

    def __init__(self, path: str, message_bytes: int) -> None:
        self.path = path
        self.message_bytes = message_bytes
        self.channel: grpc.aio.Channel = rpc.channel(path, message_bytes)
        """The channel for streams."""
        self._direct: _DirectCalls | None = None
        self._open_direct = WeakSet[_DirectCalls]()  # includes direct calls to earlier sockets that are still in use
        self._is_closed = False

    def allow_direct_calls(self, identity: SocketIdentity | None) -> None:
        """From now on, make direct calls to the socket file with `identity`, or none if `identity` is None.

        Calls in progress continue. The connection for these calls closes when the last call ends.
        """
        self._direct = None
        if identity is not None:
            self._direct = _DirectCalls(self.path, identity, self.message_bytes)
            self._open_direct.add(self._direct)

    def call(
        self, loop: LoopThread, method: rpc.Method[Request, Response], request: Request, seconds: float
    ) -> Response:
        """Call `method` and return the answer. Any thread except the loop's may call this.

        An interrupt ends the wait at once. A direct call then continues until its deadline. Any other call is
        cancelled.

        Raises grpc.RpcError if the status is not OK, the time is up or the answer cannot be read. Also raises
        ClosedConnectionError, LoopStoppedError, and ForkedError in a fork.
        """
        loop.check_process()
        direct = self._direct
        if direct is not None:
            try:
                return direct.call(loop.waiting_threads, method, request, seconds)
            except _NotSentError:
                pass
        return loop.run(lambda: self._call(method, request, seconds))

    async def _call(self, method: rpc.Method[Request, Response], request: Request, seconds: float) -> Response:
        if self._is_closed:
            raise ClosedConnectionError
        try:
            return await rpc.unary(self.channel, method, request, seconds)
        except asyncio.CancelledError:
            if not self._is_closed:
                raise  # this task was cancelled; the plugin or driver has not ended
            raise ClosedConnectionError from None

    async def close(self) -> None:
        """Close the connection. Calls in flight fail, and later calls are not sent."""
        self._is_closed = True
        self._direct = None
        for direct in list(self._open_direct):
            direct.close()
        await self.channel.close()


class _NotSentError(Exception):
    """A call was not sent because it cannot be made directly."""


class _DirectCalls:
    """Calls over a blocking channel to the socket file with `identity`. Nothing is dialed before the first call."""

    def __init__(self, path: str, identity: SocketIdentity, message_bytes: int) -> None:
        self._path = path
        self._identity = identity
        self._channel = grpc.insecure_channel(target(path), options=channel_options(message_bytes))
        self._calls: dict[str, grpc.UnaryUnaryMultiCallable[Any, bytes | None]] = {}
        self._is_usable = True
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        self._channel.close()

    def call(
        self, threads: WaitingThreads, method: rpc.Method[Request, Response], request: Request, seconds: float
    ) -> Response:
        if not self._is_usable or socket_identity(self._path) != self._identity:
            raise _NotSentError
        try:
            data = in_time(partial(self._ask, method, request, seconds), max(seconds, 0.0) + NOTICED, threads.begin)
        except TimeoutError:
            self._is_usable = False  # each hanging call keeps a thread until the server reads or exits
            raise rpc.deadline_exceeded() from None
        except NoThreadError:
            raise _NotSentError from None
        return rpc.parse(method.response.FromString, data)

    def _ask(self, method: rpc.Method[Request, Response], request: Request, seconds: float) -> bytes | None:
        try:
            call = self._calls.get(method.name)  # created once, because creating it takes a tenth of a call's time
            if call is None:
                call = self._calls[method.name] = self._channel.unary_unary(
                    method.path, request_serializer=method.request.SerializeToString
                )
            return call(request, timeout=rpc.timeout(seconds))
        except (grpc.RpcError, ValueError) as error:  # a ValueError is raised if the channel was already closed
            if self._is_closed:
                raise ClosedConnectionError from None
            if not isinstance(error, grpc.Call):
                raise
            failed = rpc.failed(error.code(), error.details())
            if rpc.was_not_reached(failed):
                self._is_usable = False
                raise _NotSentError from None
            raise failed from None
