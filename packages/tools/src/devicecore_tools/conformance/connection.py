"""A kubelet's connection to the socket of the plugin or driver under test.

Law: a call with a single response ends within its timeout, with that response or with `CallFailedError`.
"""

import os
import socket
import time
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import grpc
from attrs import frozen
from google.protobuf.message import DecodeError, Message

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.text import foreign_text
from devicecore.runtime.in_time import NOTICED, in_time
from devicecore.system.grpc_settings import channel_options, target
from devicecore.system.sockets import MAX_SOCKET_PATH, is_served
from devicecore_tools.conformance.model import Failure

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_CONNECTING = 5_000  # milliseconds for one attempt to connect; generous, because the machine may be busy
_MAX_MESSAGE = 16 * 1024 * 1024  # bytes; more than a kubelet accepts, so that a check can measure oversized answers
MAX_ANSWER = 4 * 1024 * 1024
"""The size, in bytes, of the largest response that a kubelet accepts."""

_DIAL_PAUSE = 0.1  # seconds
_DIAL_AGAIN = 0.2  # seconds for one attempt after a connection was lost
_CLOSING = 2.0  # seconds in which an exiting process closes all of its sockets, even on a busy machine
_NOWHERE = "/proc/none"  # used for paths that no socket can have, about which gRPC would complain on stderr
_NOT_REACHED = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


@frozen
class CallFailedError(Failure):
    """A call failed. `code` is gRPC's name for the status."""

    method: str
    code: str
    details: str

    @property
    def is_late(self) -> bool:
        """Whether the call timed out."""
        return self.code == "DEADLINE_EXCEEDED"

    def __str__(self) -> str:
        return f"{self.method} failed with {self.code}: {self.details or 'no reason was given'}"


def is_reachable(path: str) -> bool:
    """Return whether a process listens on the socket at `path`, or False if connecting to it fails."""
    try:
        return is_served(path)
    except OSError:
        return False


class SocketConnection:
    """A connection to the socket at `path`, opened on first use, and reopened after it has been lost.

    `authority` is the `:authority` header; gRPC clients in Go and in other languages send different values.
    """

    def __init__(self, path: str, authority: str = "localhost") -> None:
        self.path = path
        self._is_usable = len(os.fsencode(path)) <= MAX_SOCKET_PATH and "\0" not in path
        options: dict[str, int | str] = dict(channel_options(_MAX_MESSAGE))
        options["grpc.default_authority"] = authority
        options["grpc.min_reconnect_backoff_ms"] = _CONNECTING
        self._channel = grpc.insecure_channel(
            target(path if self._is_usable else _NOWHERE), options=list(options.items())
        )

    def dial(self, timeout: float) -> bool:
        """Return whether a gRPC server answers at the socket within `timeout` seconds.

        The test is a call to gRPC's health service, which the subject need not implement. `grpc.channel_ready_future`
        would leave a thread that fails when the channel is closed.
        """
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary("/grpc.health.v1.Health/Check")
        if not self._is_usable:
            return False
        deadline = time.monotonic() + timeout
        while True:
            try:
                left = max(deadline - time.monotonic(), 0.0)
                in_time(partial(call, b"", timeout=left, wait_for_ready=True), left + NOTICED)
            except TimeoutError:
                return False
            except grpc.RpcError as error:
                if error.code() not in _NOT_REACHED:
                    return True
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() + _DIAL_PAUSE > deadline:
                    return False
                time.sleep(_DIAL_PAUSE)  # the plugin has closed the connection, perhaps because its process restarts
            except ValueError:  # the channel was closed in the meantime
                return False
            else:
                return True

    def has_no_listener(self) -> bool:
        """Return whether no process listens at the socket any longer, after the connection was lost.

        An exiting process may close its connections before its listening socket. Therefore, a socket that only accepts
        connections does not show that the process keeps running: a gRPC server must answer there.
        """
        deadline = time.monotonic() + _CLOSING
        while is_reachable(self.path):
            if self.dial(_DIAL_AGAIN) or time.monotonic() > deadline:
                return False
        return True

    def why_not(self) -> str:
        """Return why the socket at `path` is unreachable."""
        path = foreign_text(self.path)
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(self.path)
            except FileNotFoundError:
                return f"there is no {path}"
            except ConnectionRefusedError:
                return f"no process listens on {path}"
            except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
                return f"cannot connect to {path}: {getattr(error, 'strerror', None) or error}"
        return f"the process listening on {path} does not speak gRPC or does not answer"

    def call(self, method: rpc.Method[Request, Response], request: Request, timeout: float) -> Response:
        """Call a method and return its response.

        Raises:
            CallFailedError: the response is an error, late, unreadable, or larger than a kubelet accepts, or the
                connection was closed.
        """
        try:
            stub: grpc.UnaryUnaryMultiCallable[Request, bytes]
            stub = self._channel.unary_unary(method.path, method.request.SerializeToString)
            answer = in_time(partial(stub, request, timeout=timeout), timeout + NOTICED)
        except TimeoutError:
            raise CallFailedError(method.name, "DEADLINE_EXCEEDED", "Deadline Exceeded") from None
        except grpc.RpcError as error:
            raise CallFailedError(method.name, error.code().name, foreign_text(error.details() or "")) from None
        except ValueError:  # the channel was closed in the meantime
            raise CallFailedError(method.name, "CANCELLED", "the kubelet has closed the connection") from None
        if len(answer) > MAX_ANSWER:
            details = f"the answer is {len(answer)} bytes long; a kubelet accepts at most {MAX_ANSWER}"
            raise CallFailedError(method.name, "RESOURCE_EXHAUSTED", details)
        try:
            return method.response.FromString(answer)
        except (DecodeError, UnicodeDecodeError):
            raise CallFailedError(method.name, "INTERNAL", "the answer cannot be read") from None

    def cancel(self, method: rpc.Method[Request, Response], request: Request, timeout: float, after: float) -> bool:
        """Call a method, and cancel the call some seconds later. Return whether the call was still in progress then.

        Args:
            method: the method.
            request: the request.
            timeout: the deadline that the plugin sees, in seconds.
            after: when to cancel the call, in seconds.
        """
        try:
            stub: grpc.UnaryUnaryMultiCallable[Request, bytes]
            stub = self._channel.unary_unary(method.path, method.request.SerializeToString)
            call = stub.future(request, timeout=timeout)
        except ValueError:  # the channel was closed in the meantime
            return False
        with suppress(grpc.FutureTimeoutError, grpc.RpcError):
            call.result(after)
        return bool(call.cancel())

    def stream(self, method: rpc.Method[Request, Response], request: Request) -> Any:  # noqa: ANN401 - a gRPC call
        """Call a method that returns a stream. The result yields the responses and can be canceled.

        Raises CallFailedError if the connection is closed.
        """
        try:
            stub = self._channel.unary_stream(method.path, method.request.SerializeToString, method.response.FromString)
            return stub(request)
        except ValueError:
            raise CallFailedError(method.name, "CANCELLED", "the kubelet has closed the connection") from None

    def close(self) -> None:
        """Close the connection. A second call does nothing.

        If a server sends PINGs nonstop, gRPC closes the connection only when the server stops.
        """
        with suppress(TimeoutError):
            in_time(self._channel.close, NOTICED)
