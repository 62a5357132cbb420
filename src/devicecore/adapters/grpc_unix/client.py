"""One connected plugin instance.

Law: an instance has one connection for its stream, and a lost connection is never reestablished (kubelet.md 3.2).
"""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.connection import ClosedConnectionError, PeerConnection
from devicecore.adapters.grpc_unix.limits import PluginLimits
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.adapters.grpc_unix.rpc import Request, Response
from devicecore.domain.errors import (
    DeviceCoreError,
    PluginCallError,
    PluginConnectError,
    PluginOptionsError,
    PluginStoppedError,
)
from devicecore.domain.model import PluginId, PluginOptions
from devicecore.system.sockets import SocketIdentity, socket_identity
from devicecore.wire import deviceplugin
from devicecore.wire.conversion import to_options

SOCKET_PATIENCE = 0.5  # seconds; a kubelet waits this long for the socket while it dials
_LOOK_INTERVAL = 0.02  # seconds between two checks for the socket


class PluginClient:
    """The connection to one plugin instance; a `RegisteredPlugin` of the plugin watcher.

    Only the event loop's thread uses this object, except for `call`. `patience` is how many seconds the plugin's socket
    may be missing.
    """

    def __init__(self, plugin: PluginId, limits: PluginLimits, patience: float) -> None:
        self.plugin = plugin
        self.patience = patience
        self.identity: SocketIdentity | None = None
        """Which socket file the connection leads to, or None until the connection exists."""
        self.outcome: asyncio.Future[DeviceCoreError | None] = asyncio.get_running_loop().create_future()
        """The outcome of the registration: None if it succeeded, otherwise why the plugin was refused."""
        self.asked_again: bool = False
        """Whether a Register call has found this instance connected."""
        self.follower: asyncio.Task[None] | None = None
        """The task that follows the instance until its end, or None if no such task is running."""
        self.lost: bool = False
        """Whether the instance has ended, or was refused."""
        self._limits = limits
        self._connection: PeerConnection | None = None
        self._stream: grpc.aio.UnaryStreamCall[deviceplugin.Empty, bytes] | None = None
        self._stream_ended = False

    async def connect(self) -> PluginOptions:
        """Connect to the plugin, and request its options.

        Raises PluginConnectError if no process answers at the socket, and PluginOptionsError if the call fails.
        """
        try:
            async with asyncio.timeout(self._limits.dial):
                connection = await self._dial()
        except TimeoutError:
            cause = "context deadline exceeded"
            raise PluginConnectError(self.plugin.resource, self.plugin.socket, cause) from None
        try:
            options = await rpc.unary(
                connection.channel, rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), self._limits.options
            )
        except grpc.RpcError as error:
            raise PluginOptionsError(self.plugin.resource, rpc.go_text(error)) from error
        return to_options(options)

    async def reports(self) -> AsyncIterator[bytes]:
        """Yield each list that the plugin sends, unparsed, until the plugin's stream ends.

        Raises grpc.RpcError if the stream breaks.
        """
        assert self._connection is not None, "connect comes first"  # noqa: S101  # for mypy
        if self._stream_ended:
            return
        self._stream = call = rpc.stream(self._connection.channel, rpc.LIST_AND_WATCH)
        try:
            async for message in call:
                yield message
        except asyncio.CancelledError:
            if not self._stream_ended:
                raise  # this task was cancelled, not the call

    def end_stream(self) -> None:
        """End `reports` as if the plugin had ended its stream, even if `reports` has not begun."""
        self._stream_ended = True
        if self._stream is not None:
            self._stream.cancel()

    async def disconnect(self) -> None:
        """End the stream as if the plugin had, and wait until the listener has been notified of the end."""
        self.asked_again = False
        self.end_stream()
        if self.follower is not None:
            await asyncio.wait([self.follower])

    def call(
        self, loop: LoopThread, method: rpc.Method[Request, Response], request: Request, seconds: float
    ) -> Response:
        """Call the plugin and return the answer. Any thread except the loop's may call this.

        Raises PluginStoppedError if the instance is gone and nothing was sent, PluginCallError if the call failed, and
        LoopStoppedError and ForkedError as `PeerConnection.call` does.
        """
        connection = self._connection
        if connection is None:
            raise PluginStoppedError(self.plugin.resource)
        try:
            return connection.call(loop, method, request, seconds)
        except grpc.RpcError as error:
            raise PluginCallError(self.plugin.resource, method.name, rpc.go_text(error)) from error
        except ClosedConnectionError:
            cause = "rpc error: code = Canceled desc = grpc: the client connection is closing"
            raise PluginCallError(self.plugin.resource, method.name, cause) from None

    async def close(self) -> None:
        """Close the connection. Calls in flight fail, and later calls are not sent."""
        connection, self._connection = self._connection, None
        self._stream = None  # the stream would keep file descriptors open
        if connection is not None:
            await connection.close()

    async def _dial(self) -> PeerConnection:
        """Connect until the socket file is the same before and after connecting, and record this file's identity."""
        path = self.plugin.socket
        while True:
            self.identity = await self._socket()
            self._connection = connection = PeerConnection(path, self._limits.message_bytes)
            await connection.channel.channel_ready()
            if socket_identity(path) == self.identity:
                connection.allow_direct_calls(self.identity)
                return connection
            await self.close()

    async def _socket(self) -> SocketIdentity:
        """Wait for the socket, which a plugin may create just after calling Register."""
        path, now = self.plugin.socket, asyncio.get_running_loop().time
        deadline = now() + self.patience
        while (identity := socket_identity(path)) is None:
            if now() >= deadline:
                cause = f"dial unix {path}: connect: no such file or directory"
                raise PluginConnectError(self.plugin.resource, path, cause)
            await asyncio.sleep(_LOOK_INTERVAL)
        return identity
