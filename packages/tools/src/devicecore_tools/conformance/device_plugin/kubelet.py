"""The kubelet's side of the device plugin API, without a device manager, so that checks see exactly what plugins send.

Law: the kubelet's side makes the same calls as a kubelet, in the same order, and records what plugins send.
"""

import os
import posixpath
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import grpc
from attrs import define, field, frozen

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.errors import InvalidEndpointError, InvalidResourceNameError, UnsupportedVersionError
from devicecore.domain.model import is_extended_resource
from devicecore.domain.text import counted, foreign_text
from devicecore.runtime.in_time import NOTICED
from devicecore.system.grpc_settings import target
from devicecore.system.sockets import MAX_SOCKET_PATH, OwnedSocket
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.connection import CallFailedError, SocketConnection, is_reachable

ENDED_BY_PLUGIN = "the plugin ended it"
"""The reason given for a stream that the plugin ended without an error."""

_HEALTHY = "Healthy"
_MAX_LOST = 100  # recorded devices
_MAX_LISTS = 8  # kept per stream
_MAX_LIST_BYTES = 16 * 1024 * 1024  # bytes of lists kept per stream; in memory they take ten times as much
_MAX_REGISTRATIONS = 10_000  # recorded registrations
_MAX_CONNECTIONS = 50  # open at the same time
_MAX_TEXT = 2_000  # maximum length of each string in a later registration
_MAX_FOLLOWED = 8  # other resources
_MAX_NAMES = 100  # recorded resources, and recorded unknown methods
_MAX_ENDED = 100  # recorded ends of streams
_MAX_LATE = 10_000  # devices
_LATE = 1.0  # seconds; a device that was listed earlier was not late
_LASTING = 3.0  # seconds; other checks cover streams that end earlier
_HANDLERS = 16


@define
class Registration:
    """One registration of a plugin.

    Attributes:
        request: the request, or for a plugin watcher the equivalent data.
        at: when the request arrived, as a `time.monotonic()` timestamp.
        stage: the stage at which a kubelet finds a problem, or an empty string.
        problem: why a kubelet refuses the plugin, or an empty string.
        is_late: whether the plugin is refused because it took too long.
        reached_after: seconds until a gRPC server answered at the plugin's socket.
        connection: the connection to the plugin, or None if there was none.
        answered: whether the registration succeeded and the plugin received the answer.
        given_up: whether the plugin canceled its call before the answer.
    """

    request: deviceplugin.RegisterRequest
    at: float
    stage: str = ""
    problem: str = ""
    is_late: bool = False
    reached_after: float = 0.0
    connection: "PluginConnection | None" = None
    answered: bool = False
    given_up: bool = False


@frozen
class StreamEnd:
    """The end of a stream of lists that the kubelet had not closed.

    Attributes:
        resource: the stream's resource.
        opened: when the stream began, as a `time.monotonic()` timestamp.
        lasted: how many seconds the stream was open.
        how: how it ended.
    """

    resource: str
    opened: float
    lasted: float
    how: str

    def __str__(self) -> str:
        return f"the stream for {self.resource} ended after {self.lasted:.1f} seconds ({self.how})"


class PluginConnection(SocketConnection):
    """The kubelet's connection to one plugin instance.

    Args:
        path: the plugin's socket.
        lost: called with the devices that a list no longer shows as healthy, and their health.
        ended: called when the stream of lists has ended, unless the kubelet has closed it.
    """

    def __init__(
        self,
        path: str,
        lost: Callable[[Mapping[str, str]], None] = lambda _: None,
        ended: "Callable[[PluginConnection], None]" = lambda _: None,
    ) -> None:
        super().__init__(path)
        self._note_lost = lost
        self._note_ended = ended
        self.appeared: dict[str, float] = {}
        """The devices that were listed late, with the number of seconds from the start of the stream."""
        self._health: dict[str, str] = {}
        self.options: deviceplugin.DevicePluginOptions = deviceplugin.DevicePluginOptions()
        self.opened: float = 0.0
        """When ListAndWatch was called, as a `time.monotonic()` timestamp."""
        self.first_list_at: float = 0.0
        self.list_count: int = 0
        self.largest_list: int = 0
        """The size of the largest list, in bytes."""
        self.ended: str = ""
        """Why the stream of lists ended, or an empty string while it is open."""
        self._lists: deque[deviceplugin.ListAndWatchResponse] = deque()
        self._sizes: deque[int] = deque()
        self._listed: set[str] = set()
        self.repeats: int = 0
        """How many lists were the same as the previous one, apart from the order of the devices."""
        self.ended_at: float = 0.0
        """When the stream of lists ended, as a `time.monotonic()` timestamp, or 0 while it is open."""
        self._stream: Any = None
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def last_list(self) -> deviceplugin.ListAndWatchResponse:
        """The last list. Raises IndexError if there is no list."""
        return self._lists[-1]

    @property
    def lists_healthy(self) -> bool:
        """Whether the last list contains a healthy device."""
        return bool(self._lists) and any(device.health == "Healthy" for device in self.last_list.devices)

    def lists_after(self, number: int) -> list[deviceplugin.ListAndWatchResponse]:
        """Return the lists after the first `number`: at most the last eight, and fewer if they are very long."""
        lists = list(self._lists)
        return lists[len(lists) - min(len(lists), self.list_count - number) :]

    def follow(self) -> None:
        """Call ListAndWatch and read the lists in a thread. Do nothing if the connection is closed."""
        with self._lock:
            if self._closed:
                return
            self.opened = time.monotonic()
            self._stream = self.stream(rpc.LIST_AND_WATCH, deviceplugin.Empty())
            self._reader = threading.Thread(target=self._read, name="conformance-lists", daemon=True)
            self._reader.start()

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with self._lock:
            self._closed = True
            if self._reader is None:
                self.ended = "the kubelet closed the connection before ListAndWatch"
        if self._stream is not None:
            self._stream.cancel()
        super().close()
        if self._reader is not None:
            self._reader.join(NOTICED)

    def _read(self) -> None:
        ended = ENDED_BY_PLUGIN
        try:
            for message in self._stream:
                self._keep(message)
                self.first_list_at = self.first_list_at or time.monotonic()
                self.list_count += 1
        except grpc.RpcError as error:
            ended = f"{error.code().name}: {foreign_text(error.details() or '')}"
        self.ended_at = time.monotonic()
        self.ended = ended
        if not self._closed:
            self._note_ended(self)

    def _keep(self, message: deviceplugin.ListAndWatchResponse) -> None:
        size = message.ByteSize()
        if self._lists and size == self._sizes[-1]:
            self.repeats += _devices_of(message) == _devices_of(self._lists[-1])
        health = {device.ID: device.health for device in message.devices}
        self._note_lost({id_: health.get(id_, "gone") for id_ in self._health if health.get(id_) != _HEALTHY})
        self._health = {id_: one for id_, one in health.items() if one == _HEALTHY}
        if len(self._listed) < _MAX_LATE:
            late = time.monotonic() - self.opened
            self.appeared |= {id_: late for id_ in health if late > _LATE and id_ not in self._listed}
            self._listed.update(health)
        self.largest_list = max(self.largest_list, size)
        self._lists.append(message)
        self._sizes.append(size)
        while len(self._lists) > 1 and (len(self._lists) > _MAX_LISTS or sum(self._sizes) > _MAX_LIST_BYTES):
            self._lists.popleft()
            self._sizes.popleft()


def _devices_of(message: deviceplugin.ListAndWatchResponse) -> list[bytes]:
    """Return the devices in a list, in an order of their own."""
    return sorted(device.SerializeToString(deterministic=True) for device in message.devices)


@define
class BareKubelet:
    """Serves the Registration service in `directory`, and connects to the plugins that register.

    Attributes:
        directory: the socket directory.
        dial_timeout: seconds for connecting to a plugin and for each of its answers.
        resource: the resource under test; if empty, the first resource that registers.
        refusal: if not empty, every registration is refused with this message.
        registrations: all registrations for the resource under test, up to 10,000. Only the last 50 registrations keep
            their connections. Strings are truncated in all but the first registration.
        others: other resources that have registered, with the `time.monotonic()` timestamp of each one's last
            registration that was not refused, or 0.
        endpoints: for each of the other resources, the endpoint that it registered last.
        unknown_methods: methods that were called but are not part of this API.
        lost: a sentence for each device that was healthy in one list of a stream but not in the next.
        expects_changes: whether the user's command may change device health from now on.
        cut_at: when all connections were last closed, as a `time.monotonic()` timestamp.
        served_at: when this kubelet was last started, as a `time.monotonic()` timestamp.
        refused_at: when a registration was last refused for any reason, as a `time.monotonic()` timestamp.
        ended: how streams of lists have ended that were open for some seconds, and that this kubelet had not closed.
        refused: how many times each resource of the process was refused with `refusal`.
    """

    directory: Path
    dial_timeout: float
    resource: str = ""
    refusal: str = ""
    registrations: list[Registration] = field(factory=list)
    others: dict[str, float] = field(factory=dict)
    endpoints: dict[str, str] = field(factory=dict)
    unknown_methods: set[str] = field(factory=set)
    refused: Counter[str] = field(factory=Counter)
    lost: dict[str, None] = field(factory=dict)
    expects_changes: bool = False
    cut_at: float = 0.0
    served_at: float = 0.0
    refused_at: float = 0.0
    ended: list[StreamEnd] = field(factory=list)
    is_watcher: ClassVar[bool] = False
    """Whether this kubelet watches for plugin sockets instead of waiting for calls to Register."""
    attempt: ClassVar[str] = "call to Register"
    """What messages call the step by which a plugin registers."""
    attempts: ClassVar[str] = "calls to Register"
    _more: dict[str, PluginConnection] = field(factory=dict)  # for other resources
    _listed: set[str] = field(factory=set)  # other resources that had healthy devices
    _server: grpc.Server | None = None
    _lock: threading.Lock = field(factory=threading.Lock)

    @property
    def socket(self) -> Path:
        """The socket at which plugins register."""
        return self.directory / "kubelet.sock"

    @property
    def connection(self) -> PluginConnection | None:
        """The connection to the instance that registered last, or None if there is none or the connection is closed."""
        for registration in reversed(self.registrations):
            connection = registration.connection
            if registration.answered and connection is not None:
                return connection if not connection.ended else None
        return None

    @property
    def silence(self) -> str:
        """What happened while the resource under test did not register."""
        parts = [f"no plugin called Register for {self.resource or 'any resource'}"]
        parts += [f"only {', '.join(sorted(self.others))} registered"] if self.others else []
        parts += [f"{method} was called, which is not a method of this API" for method in sorted(self.unknown_methods)]
        return ", but ".join(parts)

    @property
    def was_called(self) -> bool:
        """Whether any plugin has called this server or, for a watcher, has answered."""
        return bool(self.registrations or self.others or self.unknown_methods)

    def serve(self) -> None:
        """Serve kubelet.sock. A socket at that path is deleted first."""
        server = grpc.server(ThreadPoolExecutor(_HANDLERS, thread_name_prefix="conformance"))
        server.add_generic_rpc_handlers((_Methods(self._register, self._note_unknown),))
        # A kubelet that crashes leaves kubelet.sock behind. It is deleted, not replaced, because some plugins wait for
        # a file creation event.
        self.socket.unlink(missing_ok=True)
        self.served_at = time.monotonic()
        with OwnedSocket(str(self.socket)).binding() as private:
            server.add_insecure_port(target(private))
            server.start()
        self._server = server

    def leave(self) -> None:
        """Stop serving and close every connection. kubelet.sock stays, without a listener.

        A second call does nothing.
        """
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        self.hang_up()

    def connection_to(self, resource: str) -> PluginConnection | None:
        """Return the connection to the plugin's service for another resource, or None if there is none."""
        return self._more.get(foreign_text(resource))

    def _follow(self, resource: str) -> str:
        """Connect to the plugin's service for another resource, as a kubelet does, and follow that resource's lists.

        Return why a kubelet refuses the registration, or an empty string.
        """
        name = foreign_text(resource)
        if resource not in self.endpoints or (len(self._more) >= _MAX_FOLLOWED and name not in self._more):
            return ""
        connection = PluginConnection(self.path(self.endpoints[resource]), ended=partial(self._note_ended, name))
        with self._lock:
            former = self._more.get(name)
            self._more[name] = connection
        if former is not None:
            former.close()
        if not connection.dial(self.dial_timeout):
            return f"failed to dial device plugin: {connection.why_not()}"
        try:
            connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), self.dial_timeout)
            connection.follow()
        except CallFailedError as error:
            return f"failed to get device plugin options: {error}"
        return ""

    def lists_healthy_devices_of(self, resource: str) -> bool:
        """Return whether the plugin lists a healthy device for another resource."""
        connection = self.connection_to(resource)
        return connection is not None and connection.lists_healthy

    def others_missing(self, since: float) -> frozenset[str]:
        """Return the other resources that have not registered since `since`, or that have lost all healthy devices."""
        silent = {name for name, at in list(self.others.items()) if at < since}
        empty = {name for name, one in list(self._more.items()) if name in self._listed and not one.lists_healthy}
        return frozenset(silent | empty).intersection(self.others)

    def hang_up(self) -> None:
        """Close every connection."""
        self.cut_at = time.monotonic()
        with self._lock:
            more = dict(self._more)
            self._more.clear()
        self._listed |= {name for name, connection in more.items() if connection.lists_healthy}
        for connection in more.values():
            connection.close()
        for registration in self.registrations:
            if registration.connection is not None:
                registration.connection.close()

    def wipe(self) -> None:
        """Delete all sockets including kubelet.sock, as a kubelet does when it starts."""
        for path in self._sockets():
            path.unlink(missing_ok=True)

    def plugin_sockets(self) -> list[Path]:
        """Return the paths of all sockets in the directory except the kubelet's."""
        return [path for path in self._sockets() if path != self.socket]

    def _sockets(self) -> list[Path]:
        """Return all sockets in the directory, or none if the plugin has removed the directory or replaced it."""
        if self.directory.is_symlink() or not self.directory.is_dir():
            return []
        return [path for path in self.directory.iterdir() if path.is_socket()]

    def _note_unknown(self, method: str) -> None:
        if len(self.unknown_methods) < _MAX_NAMES:
            self.unknown_methods.add(foreign_text(method))

    def _note_lost(self, changes: Mapping[str, str]) -> None:
        """Record the devices that a list no longer shows as healthy, unless the user's command changed them."""
        for id_, health in changes.items():
            if not self.expects_changes and len(self.lost) < _MAX_LOST:
                self.lost[f"{foreign_text(id_)} was healthy, and is {foreign_text(health)} in the next list"] = None

    def _note_ended(self, resource: str, connection: PluginConnection) -> None:
        """Record the end of a stream that has lasted for some time."""
        lasted = time.monotonic() - connection.opened
        if lasted > _LASTING and len(self.ended) < _MAX_ENDED:
            self.ended.append(StreamEnd(foreign_text(resource), connection.opened, lasted, connection.ended))

    def gave_a_reason(self, since: float, recently: float) -> bool:
        """Return whether a process that has been running since a timestamp had a reason to exit in recent seconds.

        Reasons are that the kubelet was down, closed the streams, or refused a registration.
        """
        after = max(since, time.monotonic() - recently)
        return self.cut_at > self.served_at or max(self.cut_at, self.served_at, self.refused_at) > after

    def _register(self, request: deviceplugin.RegisterRequest, context: grpc.ServicerContext) -> deviceplugin.Empty:
        registration = Registration(request, time.monotonic())
        if self._note(registration):
            self._decide(registration)
            registration.given_up = not context.is_active()
        elif not registration.problem and request.resource_name != self.resource:
            registration.problem = self._follow(request.resource_name)
        if registration.problem:
            self.refused_at = time.monotonic()
            context.abort(grpc.StatusCode.UNKNOWN, registration.problem)

        def has_been_answered() -> None:
            registration.answered = True

        # The next check may stop this server, so the plugin must receive its answer before the checks continue.
        if not context.add_callback(has_been_answered):
            has_been_answered()
        return deviceplugin.Empty()

    def _note(self, registration: Registration) -> bool:
        """Record the registration.

        Return whether it must be judged: it is for the resource under test, and not too many were recorded before.
        """
        resource = registration.request.resource_name
        with self._lock:
            if not self.refusal:
                self.resource = self.resource or resource
            elif len(self.refused) < _MAX_NAMES or resource in self.refused:
                self.refused[resource] += 1
            if resource != self.resource:
                if len(self.others) < _MAX_NAMES or foreign_text(resource) in self.others:
                    if self.refusal:
                        self.others.setdefault(foreign_text(resource), 0.0)
                    else:
                        self.others[foreign_text(resource)] = registration.at
                    self.endpoints[resource[:_MAX_TEXT]] = registration.request.endpoint[:_MAX_TEXT]
                registration.problem = self.refusal
                return False
            if len(self.registrations) >= _MAX_REGISTRATIONS:
                return False
            self.registrations.append(registration)
            old = self.registrations[-_MAX_CONNECTIONS - 1] if len(self.registrations) > _MAX_CONNECTIONS else None
        if old is not None and old.connection is not None:
            # The connection is removed first. Otherwise, closing it would look as if the plugin had ended the stream.
            connection, old.connection = old.connection, None
            connection.close()
        return True

    def _decide(self, registration: Registration) -> None:
        """Record whether a kubelet refuses the plugin, and truncate the strings in later registrations."""
        registration.stage, problem = self._judge(registration)
        registration.problem = foreign_text(problem)
        if self.registrations and registration is not self.registrations[0]:
            for name in ("version", "endpoint", "resource_name"):
                setattr(registration.request, name, getattr(registration.request, name)[:_MAX_TEXT])

    def _judge(self, registration: Registration) -> tuple[str, str]:
        """Connect to the plugin.

        Return the stage and the problem if a kubelet refuses the plugin, otherwise two empty strings.
        """
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
        connection = registration.connection = PluginConnection(
            self.path(registration.request.endpoint), self._note_lost, partial(self._note_ended, self.resource)
        )
        began = time.monotonic()
        if not connection.dial(self.dial_timeout):
            connection.close()
            limit = counted(self.dial_timeout, "second")
            registration.is_late = is_reachable(connection.path)  # a plugin without a listener is not just late
            return "dial", f"failed to dial device plugin within {limit}: {connection.why_not()}"
        registration.reached_after = time.monotonic() - began
        try:
            connection.options = connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), self.dial_timeout)
        except CallFailedError as error:
            connection.close()
            registration.is_late = error.is_late
            return "options", f"failed to get device plugin options: {error}"
        connection.follow()
        return "", ""

    def path(self, endpoint: str) -> str:
        """Return the path at which a kubelet expects the plugin's socket."""
        return posixpath.normpath(f"{self.directory}/{endpoint}")

    def endpoint_problem(self, endpoint: str) -> str:
        """Return why `endpoint` cannot be the name of a plugin's socket, or an empty string if it can."""
        path = self.path(endpoint)
        if endpoint.startswith("/") or path == str(self.directory):
            return f"it is not the name of a file in the socket directory; a kubelet looks for the socket at {path}"
        return path_problem(path)


def path_problem(path: str) -> str:
    """Return why `path` cannot be the path of a socket, or an empty string if it can."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        return f"its path is {length} bytes long; the path of a unix socket may have at most {MAX_SOCKET_PATH}"
    return ""


class _Methods(grpc.GenericRpcHandler):
    """Handles Register, and records calls to other methods."""

    def __init__(
        self,
        register: Callable[[deviceplugin.RegisterRequest, grpc.ServicerContext], deviceplugin.Empty],
        note_unknown: Callable[[str], None],
    ) -> None:
        self._handler = grpc.unary_unary_rpc_method_handler(
            register, deviceplugin.RegisterRequest.FromString, deviceplugin.Empty.SerializeToString
        )
        self._note_unknown = note_unknown

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return the handler of a method, or None, which gRPC answers with UNIMPLEMENTED."""
        if details.method == rpc.REGISTER.path:
            return self._handler
        self._note_unknown(details.method)
        return None
