"""The kubelet's side for one DRA driver, without a manager, so that checks see exactly what the driver returns.

Laws: the kubelet's side finds sockets and registers drivers in the same order as a kubelet's plugin watcher, and
records each step. The kubelet's side calls the service that a kubelet of version 1.34 or later would choose.
"""

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attrs import define, field

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.dra import calls
from devicecore.adapters.grpc_unix.watcher import GET_INFO_TIMEOUT, NOTIFY_TIMEOUT, sockets_below
from devicecore.domain.dra.drivers import choose_service
from devicecore.domain.dra.model import ClaimRef
from devicecore.domain.errors import DeviceCoreError, UnhandledPluginTypeError
from devicecore.domain.text import foreign_text
from devicecore.system.sockets import MAX_SOCKET_PATH, SocketIdentity, socket_identity
from devicecore.wire import pluginregistration
from devicecore.wire.dra_conversion import from_claims
from devicecore_tools.conformance.connection import CallFailedError, SocketConnection, is_reachable
from devicecore_tools.conformance.model import Failure, TookTooLong, some

_POLL_INTERVAL = 0.02  # seconds
_KINDS = {
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISREG: "a regular file",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
_MAX_CALLS = 8  # concurrent calls
_DIAL = 0.5  # seconds
_PAUSES = (0.5, 1.0)  # seconds before a kubelet retries
_MAX_INSTANCES = 500  # how many instances are kept


def identity_of(path: str) -> SocketIdentity | None:
    """Return the identity of a socket, following symbolic links as a kubelet does (IsUnixDomainSocket)."""
    try:
        return socket_identity(os.path.realpath(path))
    except ValueError:  # the path contains a NUL
        return None


def no_sockets_in(registry: Path) -> str:
    """Describe the contents of a directory that has no registration sockets."""
    if not registry.is_dir():
        return "is no longer a directory"
    named = sorted((path.name, _description(path)) for path in registry.iterdir())
    return some([f"{foreign_text(name)} there {what}" for name, what in named if what])


def _description(path: Path) -> str:
    """Return why a file is unusable as a registration socket, or an empty string for a usable socket or a directory."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return "is a symbolic link to a path that does not exist" if path.is_symlink() else ""
    if stat.S_ISSOCK(mode):
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            return "has too long a path"
        return "has a name that starts with a dot, which a kubelet ignores" if path.name.startswith(".") else ""
    return next((f"is {kind}" for is_it, kind in _KINDS.items() if is_it(mode)), "")


@define(eq=False)
class DriverInstance:
    """One registration socket, and how the registration of the driver behind it went.

    Attributes:
        path: the path of the registration socket.
        identity: identifies the socket's file.
        found_at: when the socket was found, as a `time.monotonic()` timestamp.
        info: the answer to GetInfo, or None if there was none.
        info_seconds: how long GetInfo took.
        stage: the step at which a kubelet refuses the driver: `dial`, `info`, `type`, `versions` or `notify`.
        problem: why a kubelet refuses the driver, or an empty string.
        is_late: whether a kubelet refuses the driver because a response was late.
        ready_problem: why the service was unreachable right after GetInfo, or None if it was reachable.
        service: the service that a kubelet calls.
        registered_at: when the driver was notified of its registration, as a `time.monotonic()` timestamp; 0 before.
        is_gone: whether the socket has been removed or recreated since.
        is_unreachable: whether a check found that nothing serves at the instance's endpoint.
    """

    path: str
    identity: SocketIdentity
    found_at: float
    info: pluginregistration.PluginInfo | None = None
    info_seconds: float = 0.0
    stage: str = ""
    problem: str = ""
    is_late: bool = False
    ready_problem: Failure | None = None
    service: str = ""
    registered_at: float = 0.0
    is_gone: bool = False
    is_unreachable: bool = False
    registrar: SocketConnection = field(init=False)
    _connection: SocketConnection | None = None

    def __attrs_post_init__(self) -> None:
        self.registrar = SocketConnection(self.path)

    @property
    def is_registered(self) -> bool:
        """Whether a kubelet would call this instance."""
        return bool(self.registered_at) and not self.is_gone

    @property
    def endpoint(self) -> str:
        """The path of the instance's service socket."""
        return (self.info.endpoint if self.info is not None else "") or self.path

    @property
    def connection(self) -> SocketConnection:
        """The kubelet's connection to the service."""
        if self._connection is None:
            self._connection = SocketConnection(self.endpoint)
        return self._connection

    def prepare(self, claims: Iterable[ClaimRef], timeout: float, service: str = "") -> Mapping[str, Any]:
        """Call NodePrepareResources, and return the answers by UID, as messages.

        Raises CallFailedError if the call failed as a whole.
        """
        return self._ask(calls.PREPARE_METHODS[service or self.service], claims, timeout)

    def unprepare(self, claims: Iterable[ClaimRef], timeout: float, service: str = "") -> Mapping[str, Any]:
        """Call NodeUnprepareResources, and return the answers by UID, as messages.

        Raises CallFailedError if the call failed as a whole.
        """
        return self._ask(calls.UNPREPARE_METHODS[service or self.service], claims, timeout)

    def get_info(self) -> pluginregistration.PluginInfo:
        """Call GetInfo, which may be called any number of times. Raises CallFailedError if the call failed."""
        return self.registrar.call(rpc.GET_INFO, pluginregistration.InfoRequest(), GET_INFO_TIMEOUT)

    def notify(self, error: str = "") -> None:
        """Call NotifyRegistrationStatus to report the registration, or its refusal with this error.

        Raises CallFailedError if the call failed.
        """
        status = pluginregistration.RegistrationStatus(plugin_registered=not error, error=error)
        self.registrar.call(rpc.NOTIFY_REGISTRATION_STATUS, status, NOTIFY_TIMEOUT)

    def close(self) -> None:
        """Close the instance's connections. A second call does nothing."""
        self.registrar.close()
        if self._connection is not None:
            self._connection.close()

    def _ask(self, method: calls.Method, claims: Iterable[ClaimRef], timeout: float) -> Mapping[str, Any]:
        answer = self.connection.call(method, method.request(claims=from_claims(claims)), timeout)
        return dict(answer.claims)


class DriverKubelet:
    """Looks for registration sockets in `registry` and below, and registers the DRA drivers that it finds."""

    def __init__(self, registry: Path) -> None:
        self.registry = registry
        self.instances: list[DriverInstance] = []
        """All sockets that were found since the start, in the order in which they were found."""
        self.history: list[DriverInstance] = []
        """The instances from all runs of this kubelet."""
        self.others: set[str] = set()
        """The paths of sockets that do not belong to the driver."""
        self._not_reached: deque[DriverInstance] = deque()
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Start looking for sockets. Sockets that are already in the directory are found, too."""
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, args=(self._stopped,), name="conformance-watcher")
        self._watcher.start()

    def stop(self) -> None:
        """Stop looking for sockets, forget all drivers and close every connection. A second call does nothing."""
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        for instance in self.instances:
            instance.close()
        self.instances = []
        self._not_reached.clear()

    def hang_up(self) -> None:
        """Cancel all calls, and accept no more."""
        for instance in list(self.history):
            instance.close()

    def disconnect(self) -> None:
        """Treat all existing sockets as left over from processes that have exited."""
        for instance in self.instances:
            instance.is_gone = True

    @property
    def registered(self) -> list[DriverInstance]:
        """The instances that a kubelet would call, oldest first."""
        return [instance for instance in self.instances if instance.is_registered]

    @property
    def newest(self) -> DriverInstance | None:
        """The instance that a kubelet calls, or None if there is none."""
        return next(reversed(self.registered), None)

    def sockets(self) -> dict[str, SocketIdentity]:
        """Return the sockets that are below the registry now, whether or not the kubelet is running."""
        found = sockets_below(self.registry, {}, allow_shared=True, identify=identity_of)
        return {path: identity for path, identity in dict(found).items() if path not in self.others}

    def _watch(self, stopped: threading.Event) -> None:
        with ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="conformance") as pool:
            while not stopped.wait(_POLL_INTERVAL):
                found = self.sockets()
                present = {instance.path: instance for instance in self.instances if not instance.is_gone}
                for path, instance in present.items():
                    instance.is_gone = found.get(path) != instance.identity
                for path, identity in found.items():
                    known = present.get(path)
                    if (known is None or known.is_gone) and len(self.history) < _MAX_INSTANCES:
                        instance = DriverInstance(path, identity, time.monotonic())
                        self.instances.append(instance)
                        self.history.append(instance)
                        self._not_reached.append(instance)
                for _ in range(len(self._not_reached)):  # a socket without a listener must not hold a thread
                    instance = self._not_reached.popleft()
                    if is_reachable(instance.path):
                        pool.submit(self._register, instance, stopped)
                    elif instance.identity == identity_of(instance.path):
                        instance.stage, instance.problem = "dial", instance.registrar.why_not()
                        self._not_reached.append(instance)

    def _register(self, instance: DriverInstance, stopped: threading.Event) -> None:
        if not instance.registrar.dial(_DIAL):
            instance.stage, instance.problem = "dial", instance.registrar.why_not()
            self._not_reached.append(instance)  # the socket is tried again after the others
            return
        if instance.identity != identity_of(instance.path):
            return  # the socket was recreated in the meantime, and has its own instance
        instance.stage = instance.problem = ""
        for pause in (*_PAUSES, None):
            try:
                self._ask_and_notify(instance)
            except (CallFailedError, DeviceCoreError) as error:
                is_final = pause is None or instance.stage in {"type", "versions"}
                if is_final or stopped.wait(pause) or instance.identity != identity_of(instance.path):
                    instance.problem, instance.is_late = str(error), isinstance(error, Failure) and error.is_late
                    return
            else:
                return

    def _ask_and_notify(self, instance: DriverInstance) -> None:
        instance.stage = "info"
        began = time.monotonic()
        info = instance.get_info()
        instance.info_seconds = time.monotonic() - began
        instance.info = info
        is_ready = info.type != calls.PLUGIN_TYPE or instance.connection.dial(1.0)
        if not is_ready and not instance.is_gone and is_reachable(instance.path):  # otherwise the process was killed
            is_late = is_reachable(instance.endpoint)  # a busy machine may delay an answer, but refuses no connection
            instance.ready_problem = (TookTooLong if is_late else Failure)(instance.connection.why_not())
        try:
            instance.stage = "type"
            if info.type != calls.PLUGIN_TYPE:
                raise UnhandledPluginTypeError(foreign_text(info.type), foreign_text(instance.path))
            instance.stage = "versions"
            instance.service = choose_service(info.name, instance.endpoint, tuple(info.supported_versions))
        except DeviceCoreError as refusal:
            instance.notify(str(refusal))
            raise
        instance.stage = "notify"
        instance.notify()
        instance.stage = ""
        instance.registered_at = time.monotonic()
