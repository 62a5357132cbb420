"""The methods that kubelets and plugins serve, functions to serve and call them, and errors as a kubelet prints them.

Law: a call returns the expected message or raises `grpc.RpcError`; it never returns None. The call ends at most
`NOTICED` seconds after its deadline, no matter what the server does.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from attrs import frozen
from google.protobuf.message import DecodeError, Message

from devicecore.adapters.grpc_unix.limits import MAX_ERROR
from devicecore.domain.errors import DirectoryError
from devicecore.domain.text import foreign_text
from devicecore.runtime.in_time import NOTICED
from devicecore.system.grpc_settings import channel_options, own_details, target
from devicecore.system.sockets import OwnedSocket
from devicecore.wire import deviceplugin, pluginregistration

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Parsed = TypeVar("Parsed")

VERSION = "v1beta1"
"""The version of the device plugin API. A kubelet supports no other version."""

DEVICE_PLUGIN_TYPE = "DevicePlugin"
"""The plugin type that a device plugin reports to a plugin watcher."""

REGISTRATION = f"{VERSION}.Registration"
DEVICE_PLUGIN = f"{VERSION}.DevicePlugin"
PLUGIN_WATCHER = "pluginregistration.Registration"


@frozen
class Method(Generic[Request, Response]):
    """One RPC of a service."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]
    streams: bool = False
    """Whether the method streams responses."""

    @property
    def path(self) -> str:
        """The HTTP/2 header `:path` of a call."""
        return f"/{self.service}/{self.name}"


REGISTER = Method(REGISTRATION, "Register", deviceplugin.RegisterRequest, deviceplugin.Empty)
GET_DEVICE_PLUGIN_OPTIONS = Method(
    DEVICE_PLUGIN, "GetDevicePluginOptions", deviceplugin.Empty, deviceplugin.DevicePluginOptions
)
LIST_AND_WATCH = Method(
    DEVICE_PLUGIN, "ListAndWatch", deviceplugin.Empty, deviceplugin.ListAndWatchResponse, streams=True
)
GET_PREFERRED_ALLOCATION = Method(
    DEVICE_PLUGIN,
    "GetPreferredAllocation",
    deviceplugin.PreferredAllocationRequest,
    deviceplugin.PreferredAllocationResponse,
)
ALLOCATE = Method(DEVICE_PLUGIN, "Allocate", deviceplugin.AllocateRequest, deviceplugin.AllocateResponse)
PRE_START_CONTAINER = Method(
    DEVICE_PLUGIN, "PreStartContainer", deviceplugin.PreStartContainerRequest, deviceplugin.PreStartContainerResponse
)
GET_INFO = Method(PLUGIN_WATCHER, "GetInfo", pluginregistration.InfoRequest, pluginregistration.PluginInfo)
NOTIFY_REGISTRATION_STATUS = Method(
    PLUGIN_WATCHER,
    "NotifyRegistrationStatus",
    pluginregistration.RegistrationStatus,
    pluginregistration.RegistrationStatusResponse,
)

_ALWAYS_WRITTEN = 65_536  # bytes: a unix socket buffers more than twice as many

_NO_ANSWER = (
    "rpc error: code = Internal desc = "
    "cardinality violation: received no response message from non-server-streaming RPC"
)

Behavior = Callable[[Any, Any], Any]
"""A coroutine function of a request and a context; if the method streams, an asynchronous generator function."""


def channel(path: str, max_message_bytes: int) -> grpc.aio.Channel:
    """Open a channel to the unix socket at `path`; nothing is dialed yet."""
    return grpc.aio.insecure_channel(target(path), options=channel_options(max_message_bytes))


async def serve(
    methods: Mapping[Method[Any, Any], Behavior], socket: OwnedSocket, max_message_bytes: int
) -> grpc.aio.Server:
    """Start a server for `methods`, then put its socket in place. A failure leaves nothing behind.

    Raises SocketPathTooLongError, or DirectoryError if the socket cannot be created in its directory.
    """
    server: grpc.aio.Server | None = None
    try:
        with socket.binding() as private:
            server = grpc.aio.server(options=[("grpc.max_receive_message_length", max_message_bytes)])
            for service in sorted({method.service for method in methods}):
                handlers = {
                    method.name: _handler(method, behavior)
                    for method, behavior in methods.items()
                    if method.service == service
                }
                server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
            server.add_insecure_port(target(private))
            await server.start()
    except BaseException as error:
        if server is not None:
            await server.stop(None)
        if isinstance(error, OSError | RuntimeError):  # a RuntimeError comes from grpc, and gives no reason
            cause = getattr(error, "strerror", None) or str(error)
            raise DirectoryError(str(Path(socket.path).parent), cause) from error
        raise
    return server


def _handler(method: Method[Any, Any], behavior: Behavior) -> "grpc.RpcMethodHandler[Any, Any]":
    kind = grpc.unary_stream_rpc_method_handler if method.streams else grpc.unary_unary_rpc_method_handler
    return kind(
        behavior, request_deserializer=method.request.FromString, response_serializer=method.response.SerializeToString
    )


class UnreadableMessageError(grpc.RpcError):
    """An answer is not the expected message."""


def parse(read: Callable[[bytes], Parsed], data: bytes | None) -> Parsed:
    """Read a message. If grpc.aio read messages, it would log an unreadable one and continue with None.

    Raises grpc.RpcError in Go's words if a call returned no message, or if the bytes are not a message of the expected
    type.
    """
    if data is None:
        raise UnreadableMessageError(_NO_ANSWER)
    try:
        return read(data)
    except (DecodeError, UnicodeDecodeError) as error:  # protobuf in pure Python raises a UnicodeDecodeError
        text = f"rpc error: code = Internal desc = grpc: failed to unmarshal the received message: {error}"
        raise UnreadableMessageError(text) from error


async def unary(
    channel: grpc.aio.Channel, method: Method[Request, Response], request: Request, seconds: float
) -> Response:
    """Call `method` and return the answer.

    Raises grpc.RpcError if the status is not OK, the time is up, or the answer cannot be read.
    """
    call: grpc.aio.UnaryUnaryMultiCallable[Request, bytes] = channel.unary_unary(
        method.path, request_serializer=method.request.SerializeToString
    )
    try:
        async with asyncio.timeout(max(seconds, 0.0) + NOTICED):  # see `in_time`: gRPC's deadline may not end the call
            data = await call(request, timeout=timeout(seconds))
    except TimeoutError:
        _keep_grpc()
        raise deadline_exceeded() from None
    except asyncio.CancelledError:
        if request.ByteSize() > _ALWAYS_WRITTEN:
            _keep_grpc()
        raise
    return parse(method.response.FromString, data)


def stream(channel: grpc.aio.Channel, method: Method[Request, Any]) -> "grpc.aio.UnaryStreamCall[Request, bytes]":
    """Call a method that streams, with an empty request. Return the call, which yields unparsed messages."""
    call: grpc.aio.UnaryStreamMultiCallable[Request, bytes] = channel.unary_stream(
        method.path, request_serializer=method.request.SerializeToString
    )
    return call(method.request())


@cache
def _keep_grpc() -> None:
    """Keep gRPC from shutting down before the process ends.

    When its last channel is gone, gRPC waits, uninterruptibly, for each unfinished write. An abandoned call may have
    left an unfinished write.
    """
    grpc.aio.init_grpc_aio()


def timeout(seconds: float) -> float:
    """Return the timeout of a call in the form that gRPC takes, even if no time is left.

    With 0, grpc.aio sets no limit at all, and a call over an established connection may still succeed.
    """
    return seconds if seconds > 0 else -1.0


def failed(code: grpc.StatusCode, details: str | None) -> grpc.aio.AioRpcError:
    """Return the error for a call that ended with a status."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details)


def deadline_exceeded() -> grpc.aio.AioRpcError:
    """Return the error for an abandoned call, as gRPC raises it when a call times out."""
    return failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def was_not_reached(error: grpc.RpcError) -> bool:
    """Return whether a call failed because there is no connection, so nothing was sent."""
    return isinstance(error, grpc.aio.AioRpcError) and (error.details() or "").startswith("failed to connect to all")


def go_code(code: grpc.StatusCode) -> str:
    """Return the Go name of a status code."""
    return "Canceled" if code is grpc.StatusCode.CANCELLED else code.name.title().replace("_", "")


def go_text(error: grpc.RpcError) -> str:
    """Spell a failed call as Go's `err.Error()` does, which kubelet logs show. The result is truncated and escaped."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return foreign_text(str(error), MAX_ERROR)
    return foreign_text(f"rpc error: code = {go_code(error.code())} desc = {go_details(error)}", MAX_ERROR)


def go_details(error: grpc.aio.AioRpcError) -> str:
    """Return the details of a failed call. If the call timed out here, they are in Go's words."""
    details = own_details(error.details() or "")
    is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and details == "Deadline Exceeded"
    return "context deadline exceeded" if is_late else details
