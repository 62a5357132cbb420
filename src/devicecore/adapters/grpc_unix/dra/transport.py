"""The `DriverTransport` over gRPC: its methods block, and an event loop in a separate thread does the work.

Law: a call to a driver blocks its caller for at most one second more than the call's timeout, no matter what the driver
does. After `stop`, the listener is not called.
"""

import itertools
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from attrs import frozen

from devicecore.adapters.grpc_unix.dra import calls
from devicecore.adapters.grpc_unix.dra.client import DriverClient, DriverLimits
from devicecore.adapters.grpc_unix.limits import MAX_NAME
from devicecore.adapters.grpc_unix.listening import LargeMessages, ListeningTransport, Notify, Part
from devicecore.adapters.grpc_unix.loop import LoopStoppedError
from devicecore.adapters.grpc_unix.watcher import PluginWatcher
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import DriverEvent, DriverRegistered, InstanceId, choose_service
from devicecore.domain.dra.errors import DraError, DraStoppedError, DriverCallError
from devicecore.domain.dra.model import ClaimRef, ClaimUid, DriverName
from devicecore.domain.errors import DeviceCoreError, InvalidEndpointError
from devicecore.domain.text import foreign_text
from devicecore.system.arguments import checks_arguments
from devicecore.system.sockets import MAX_SOCKET_PATH
from devicecore.wire.dra_conversion import TooMuchError, from_claims, to_prepared, to_unprepared

MAX_DRIVER_NAME = 253
"""The maximum length of a driver's name; Kubernetes allows 63 characters in the objects that name the driver."""

CallObserver = Callable[[str, str, str, float], object]
"""Takes a driver's name, the full name of a method, a gRPC code as Go spells it, and a duration in seconds."""

Result = TypeVar("Result")


@frozen
class InvalidDriverNameError(DraError):
    """A driver registers under an invalid name."""

    name: str

    def __str__(self) -> str:
        text = foreign_text(self.name, MAX_NAME)
        return f"expected a driver's name of 1 to {MAX_DRIVER_NAME} printable characters, got {text!r}"


@frozen
class DriverListenerError(DraError):
    """A driver cannot be registered, because the listener failed."""

    cause: str
    _text = "the listener failed: {cause}"


class Drivers:
    """The registered driver instances. Only the event loop's thread uses this object, except for `find`."""

    def __init__(self, limits: DriverLimits, notify: Notify[DriverEvent], next_generation: Callable[[], int]) -> None:
        self._limits = limits
        self._notify = notify
        self._next_generation = next_generation
        self._large_reports = LargeMessages()
        self._clients: dict[InstanceId, DriverClient] = {}

    async def start(self) -> None:
        """Do nothing: drivers are found by a plugin watcher."""

    async def stop(self) -> None:
        """Disconnect all drivers, without notifying the listener. A second call does nothing."""
        for client in tuple(self._clients.values()):
            await client.close()
        self._clients.clear()

    def find(self, instance: InstanceId) -> DriverClient | None:
        """Return the connection to `instance`, or None if `instance` is not registered. Any thread may call this."""
        return self._clients.get(instance)

    async def register(self, name: str, endpoint: str, services: Sequence[str]) -> DriverClient:
        """Register a driver and start connecting. Raises DeviceCoreError if the listener refuses the driver."""
        service = choose_service(name, endpoint, services)
        id_ = InstanceId(DriverName(name), endpoint, service, self._next_generation())
        self._clients[id_] = client = DriverClient(
            id_, services, self._limits, self._notify, self._large_reports, closed=partial(self._clients.pop, id_, None)
        )
        await client.register()
        return client


class GrpcDriverTransport(ListeningTransport[DriverEvent, Drivers]):
    """DRA drivers over gRPC on unix sockets: `v1`, `v1beta1` and the health services.

    Drivers are found by a plugin watcher. A directory may have only one watcher, because a watcher refuses plugins of
    types that it does not know. So either this transport has its own watcher, if `plugins_registry` is given, or
    `handler` is passed to the transport of device plugins: `GrpcUnixTransport(handlers=[drivers.handler])`. In the
    latter case, stop the two transports together.

    Args:
        plugins_registry: the directory in which drivers put their registration sockets (a kubelet's is
            `/var/lib/kubelet/plugins_registry`). The last component of this path is created if missing. None: no
            watcher.
        allow_shared_directory: whether other users may write to that directory. Any user who may write to the directory
            can impersonate any driver.
        limits: how long a driver may take, and how long its messages may be.
        observe: called after each call to a driver, from any thread, such as `PrometheusMetrics.driver_call`. The
            function must not block or raise.
    """

    expected: ClassVar[tuple[type[Exception], ...]] = (DraStoppedError,)

    @checks_arguments()
    def __init__(
        self,
        plugins_registry: str | os.PathLike[str] | None = None,
        *,
        allow_shared_directory: bool = False,
        limits: DriverLimits = DriverLimits(),
        observe: CallObserver | None = None,
    ) -> None:
        super().__init__("the transport of DRA drivers", "" if plugins_registry is None else str(plugins_registry))
        self._registry = None if plugins_registry is None else Path(plugins_registry).absolute()
        self._allow_shared = allow_shared_directory
        self._limits = limits
        self._observe = observe
        self._generations = itertools.count(1)
        self.handler: DriverHandler = DriverHandler(self._register)
        """The `PluginHandler` that registers the drivers that a plugin watcher has found."""

    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Ask a driver to prepare claims. Raises DriverCallError if the call fails or the answer is too large."""
        return self._ask(instance, calls.PREPARE_METHODS, claims, to_prepared)

    def unprepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Ask a driver to release claims. Raises DriverCallError if the call fails or the answer is too large."""
        return self._ask(instance, calls.UNPREPARE_METHODS, claims, to_unprepared)

    def disconnect(self, instance: InstanceId) -> None:
        """Cut the connection to an instance, which stays registered. A new connection is started at once.

        An instance that is not registered is not an error.
        """
        run = self._run
        client = None if run is None else run.peers.find(instance)
        if run is not None and client is not None:
            with suppress(LoopStoppedError):  # the transport was stopped, and has cut all connections
                run.loop.run(client.reconnect)

    def _ask(
        self,
        instance: InstanceId,
        methods: Mapping[str, calls.Method],
        claims: Sequence[ClaimRef],
        read: Callable[[Any], dict[ClaimUid, Result]],
    ) -> dict[ClaimUid, Result]:
        method = methods[instance.service]
        run = self._run
        client = None if run is None else run.peers.find(instance)
        if run is None or client is None:
            raise calls.closing(method.name)
        try:
            request = method.request(claims=from_claims(claims))
        except ValueError as error:  # a lone surrogate in a name
            cause = f"grpc: error while marshaling: {error}"
            raise DriverCallError(method.name, "Internal", cause) from error
        began, code = time.monotonic(), "OK"
        try:
            return read(client.call(run.loop, method, request))
        except DriverCallError as error:
            code = error.code
            raise
        except TooMuchError as error:
            code = "ResourceExhausted"
            raise DriverCallError(method.name, code, str(error), unanswered=True) from error
        except LoopStoppedError:
            code = "Canceled"
            raise calls.closing(method.name) from None
        finally:
            if self._observe is not None:
                self._observe(instance.driver, method.path, code, time.monotonic() - began)

    def parts(self, notify: Notify[DriverEvent]) -> tuple[Drivers, tuple[Part, ...]]:
        """Return the component for drivers, and the plugin watcher if there is a registry."""
        drivers = Drivers(self._limits, notify, self._generations.__next__)
        if self._registry is None:
            return drivers, ()
        watcher = PluginWatcher(
            self._registry, (self.handler,), self._limits, own_socket="", allow_shared=self._allow_shared
        )
        return drivers, (watcher,)

    def refusal(self, event: DriverEvent, error: BaseException) -> DeviceCoreError | None:
        """Return a `DriverListenerError` for a registration, or None for other events."""
        return DriverListenerError(str(error)) if isinstance(event, DriverRegistered) else None

    async def _register(self, name: str, endpoint: str, services: Sequence[str]) -> DriverClient:
        run = self._run
        if run is None:
            raise DraStoppedError
        return await run.peers.register(name, endpoint, services)


@frozen
class DriverHandler:
    """A `PluginHandler` that registers the drivers that a plugin watcher has found.

    As in a kubelet, a driver can be registered before it listens at its endpoint.
    """

    register: Callable[[str, str, Sequence[str]], Coroutine[Any, Any, DriverClient]]
    type: str = calls.PLUGIN_TYPE

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Check a driver's answer to GetInfo (kubelet: `ValidatePlugin` of the DRA manager).

        Raises InvalidDriverNameError, InvalidEndpointError or UnsupportedServicesError.
        """
        if not 0 < len(name) <= MAX_DRIVER_NAME or not name.isprintable():
            raise InvalidDriverNameError(name)
        is_too_long = len(os.fsencode(endpoint)) > MAX_SOCKET_PATH
        if is_too_long or not endpoint.startswith("/") or not endpoint.isprintable():
            problem = f"it is not an absolute path of at most {MAX_SOCKET_PATH} bytes"
            raise InvalidEndpointError(foreign_text(endpoint, MAX_NAME), problem)
        choose_service(name, endpoint, versions)
