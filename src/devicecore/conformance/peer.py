"""A kubelet's end of the wire with no device manager behind it: it sees what a plugin says before anybody corrects it.

Law: it does what a kubelet does, in the order in which a kubelet does it, and remembers all of it.
"""

import os
import posixpath
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import grpc
from attrs import define, field, frozen
from google.protobuf.message import Message

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.errors import InvalidEndpointError, InvalidResourceNameError, UnsupportedVersionError
from devicecore.domain.model import is_extended_resource
from devicecore.system.grpc_settings import channel_options, target
from devicecore.system.sockets import MAX_SOCKET_PATH
from devicecore.wire import deviceplugin

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


_UNLIMITED = -1
_HANDLERS = 16
_UNBORN = ".dc.sock"  # where kubelet.sock is bound before it is shown; not longer than its name


@frozen
class CallFailedError(Exception):
    """A call to the plugin failed. `code` is gRPC's name of the status."""

    method: str
    code: str
    details: str

    def __str__(self) -> str:
        return f"{self.method} failed with {self.code}: {self.details or 'no reason is given'}"


@define
class Registration:
    """One call of Register. `problem` is why a kubelet refuses it, `stage` where it found that; both empty if not."""

    request: deviceplugin.RegisterRequest
    at: float
    stage: str = ""
    problem: str = ""
    reached_after: float = 0.0
    connection: "PluginConnection | None" = None
    answered: bool = False


class PluginConnection:
    """The kubelet's connection to one plugin instance."""

    def __init__(self, path: str, ring: Callable[[], None]) -> None:
        self.path = path
        self.options: deviceplugin.DevicePluginOptions = deviceplugin.DevicePluginOptions()
        self.opened: float = 0.0
        self.lists: list[deviceplugin.ListAndWatchResponse] = []
        self.list_times: list[float] = []
        self.ended: str = ""
        """Why the stream of lists has ended; empty while it has not."""
        self._ring = ring
        self._channel = grpc.insecure_channel(target(path), options=channel_options(_UNLIMITED))
        self._stream: Any = None
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def dial(self, timeout: float) -> bool:
        """Whether the plugin can be reached."""
        with suppress(grpc.FutureTimeoutError, ValueError):  # the latter if it has been closed meanwhile
            grpc.channel_ready_future(self._channel).result(timeout)
            return True
        return False

    def why_not(self) -> str:
        """What is the matter with a socket that cannot be reached."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(self.path)
            except FileNotFoundError:
                return f"there is no {self.path}"
            except ConnectionRefusedError:
                return f"nobody listens on {self.path}"
            except OSError as error:
                return f"{self.path} cannot be connected to: {error.strerror or error}"
        return f"who listens on {self.path} does not speak gRPC, or does not answer"

    def call(self, method: rpc.Method[Request, Response], request: Request, timeout: float) -> Response:
        """Call the plugin.

        Raises:
            CallFailedError: it answers with an error, or not at all.
        """
        try:
            stub = self._channel.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)
            answer: Response = stub(request, timeout=timeout)
        except grpc.RpcError as error:
            raise CallFailedError(method.name, error.code().name, error.details() or "") from None
        except ValueError:  # the channel has been closed meanwhile
            raise CallFailedError(method.name, "CANCELLED", "the kubelet has gone") from None
        return answer

    def follow(self) -> None:
        """Begin to read the plugin's lists; one that is closed does not."""
        with self._lock:
            if self._closed:
                return
            stub = self._channel.unary_stream(
                rpc.LIST_AND_WATCH.path,
                rpc.LIST_AND_WATCH.request.SerializeToString,
                rpc.LIST_AND_WATCH.response.FromString,
            )
            self.opened = time.monotonic()
            self._stream = stub(deviceplugin.Empty())
            self._reader = threading.Thread(target=self._read, name="conformance-lists", daemon=True)
            self._reader.start()

    def close(self) -> None:
        """Cut the connection. Twice is no error."""
        with self._lock:
            self._closed = True
            if self._reader is None:
                self.ended = "it was cut before it began"
        if self._stream is not None:
            self._stream.cancel()
        self._channel.close()
        if self._reader is not None:
            self._reader.join()

    def _read(self) -> None:
        ended = "the plugin ended it"
        try:
            for message in self._stream:
                self.list_times.append(time.monotonic())
                self.lists.append(message)
                self._ring()
        except grpc.RpcError as error:
            ended = f"{error.code().name}: {error.details()}"
        self.ended = ended
        self._ring()


@define
class Peer:
    """Serves Registration in `directory`, and dials back, for one resource: the first that registers, if not given."""

    directory: Path
    ring: Callable[[], None]
    dial_timeout: float
    resource: str = ""
    refusal: str = ""
    """If set, what every call of Register is told."""
    registrations: list[Registration] = field(factory=list)
    others: set[str] = field(factory=set)
    """Other resources that have registered."""
    strange: set[str] = field(factory=set)
    """Methods that were called and that no kubelet has."""
    watches: ClassVar[bool] = False
    """Whether it looks for plugins, rather than waiting for them to register."""
    _server: grpc.Server | None = None
    _lock: threading.Lock = field(factory=threading.Lock)

    @property
    def socket(self) -> Path:
        """Where plugins register."""
        return self.directory / "kubelet.sock"

    @property
    def connection(self) -> PluginConnection | None:
        """The connection to the instance that registered last, if it is still open."""
        for registration in reversed(self.registrations):
            if registration.answered and registration.connection is not None:
                return registration.connection if not registration.connection.ended else None
        return None

    @property
    def silence(self) -> str:
        """What has happened as long as nobody has registered."""
        heard = [f"only {', '.join(sorted(self.others))} did"] if self.others else []
        heard += [f"but {method} was called, which is no method of this API" for method in sorted(self.strange)]
        return ", ".join([f"nobody called Register for {self.resource or 'any resource'}", *heard])

    def serve(self) -> None:
        """Start to serve; what lies at the socket's place is deleted."""
        self.socket.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(_HANDLERS, thread_name_prefix="conformance"))
        self._server.add_generic_rpc_handlers((_Methods(self._register, self.strange),))
        # grpc deletes what it has bound when it stops; a kubelet that dies leaves its socket where it is.
        unborn = self.directory / _UNBORN
        unborn.unlink(missing_ok=True)
        self._server.add_insecure_port(target(str(unborn)))
        self._server.start()
        os.link(unborn, self.socket)
        unborn.unlink()

    def leave(self) -> None:
        """Cut every connection and stop serving; kubelet.sock stays, and nobody listens. Twice is no error."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        for registration in self.registrations:
            if registration.connection is not None:
                registration.connection.close()

    def wipe(self) -> None:
        """Delete all sockets, kubelet.sock too, as a kubelet does when it starts."""
        for entry in tuple(self.directory.iterdir()):
            if entry.is_socket():
                entry.unlink(missing_ok=True)

    def plugin_sockets(self) -> list[str]:
        """The names of all sockets in the directory but the kubelet's."""
        return [entry.name for entry in self.directory.iterdir() if entry.is_socket() and entry != self.socket]

    def _register(self, request: deviceplugin.RegisterRequest, context: grpc.ServicerContext) -> deviceplugin.Empty:
        registration = Registration(request, time.monotonic())
        if not self._note(registration):
            return deviceplugin.Empty()
        registration.stage, registration.problem = self._judge(registration)
        if registration.problem:
            self.ring()
            context.abort(grpc.StatusCode.UNKNOWN, registration.problem)

        def has_been_answered() -> None:
            registration.answered = True
            self.ring()

        # Whoever goes on from here may stop this server, and the plugin must not wait for an answer then.
        if not context.add_callback(has_been_answered):
            has_been_answered()
        return deviceplugin.Empty()

    def _note(self, registration: Registration) -> bool:
        """Remember it; whether it is of the resource under test."""
        resource = registration.request.resource_name
        with self._lock:
            if not self.refusal:
                self.resource = self.resource or resource
            if resource != self.resource:
                self.others.add(resource)
                return False
            self.registrations.append(registration)
        return True

    def _judge(self, registration: Registration) -> tuple[str, str]:
        """What a kubelet objects to, and at which stage; connect to the plugin if there is nothing."""
        request = registration.request
        if self.refusal:
            return "refused", self.refusal
        if request.version != rpc.VERSION:
            return "version", str(UnsupportedVersionError(request.version, (rpc.VERSION,)))
        if not is_extended_resource(request.resource_name):
            return "name", str(InvalidResourceNameError(request.resource_name))
        if problem := self.endpoint_problem(request.endpoint):
            return "endpoint", str(InvalidEndpointError(request.endpoint, problem))
        return self._connect(registration)

    def _connect(self, registration: Registration) -> tuple[str, str]:
        connection = registration.connection = PluginConnection(self.path(registration.request.endpoint), self.ring)
        began = time.monotonic()
        if not connection.dial(self.dial_timeout):
            connection.close()
            return "dial", f"failed to dial device plugin for {self.dial_timeout:g} seconds: {connection.why_not()}"
        registration.reached_after = time.monotonic() - began
        try:
            connection.options = connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), self.dial_timeout)
        except CallFailedError as error:
            connection.close()
            return "options", f"failed to get device plugin options: {error}"
        connection.follow()
        return "", ""

    def path(self, endpoint: str) -> str:
        """Where a kubelet looks for the plugin's socket."""
        return posixpath.normpath(f"{self.directory}/{endpoint}")

    def endpoint_problem(self, endpoint: str) -> str:
        """Why `endpoint` cannot be the name of a plugin's socket; empty if it can."""
        path = self.path(endpoint)
        if endpoint.startswith("/") or path == str(self.directory):
            return f"it is not the name of a file in the socket directory; a kubelet looks for it at {path}"
        return path_problem(path)


def path_problem(path: str) -> str:
    """Why `path` cannot be that of a socket; empty if it can."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        return f"its path has {length} bytes, more than the {MAX_SOCKET_PATH} a unix socket can have"
    return ""


class _Methods(grpc.GenericRpcHandler):
    """Register, and an ear for what else is called."""

    def __init__(
        self,
        register: Callable[[deviceplugin.RegisterRequest, grpc.ServicerContext], deviceplugin.Empty],
        strange: set[str],
    ) -> None:
        self._handler = grpc.unary_unary_rpc_method_handler(
            register, deviceplugin.RegisterRequest.FromString, deviceplugin.Empty.SerializeToString
        )
        self._strange = strange

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """The handler of a method; None if there is none, which grpc answers with UNIMPLEMENTED."""
        if details.method == rpc.REGISTER.path:
            return self._handler
        self._strange.add(details.method)
        return None


def allocate_request(containers: Sequence[Sequence[str]]) -> deviceplugin.AllocateRequest:
    """Ask for the devices of each container."""
    return deviceplugin.AllocateRequest(
        container_requests=[deviceplugin.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    )
