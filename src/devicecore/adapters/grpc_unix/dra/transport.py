"""The `DriverTransport` over gRPC: its methods block, and an event loop in a thread of its own does the work.

Law: a call to a driver blocks its caller no longer than its timeout. After `stop` the listener is not called.
"""

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from attrs import frozen

from devicecore.adapters.grpc_unix.dra import calls
from devicecore.adapters.grpc_unix.dra.client import DriverClient, DriverLimits
from devicecore.adapters.grpc_unix.limits import MAX_NAME, ConnectionLimits
from devicecore.adapters.grpc_unix.loop import LoopStoppedError
from devicecore.adapters.grpc_unix.running import Running
from devicecore.adapters.grpc_unix.watcher import PluginWatcher
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import DriverEvent, DriverRegistered, InstanceId, choose_service
from devicecore.domain.dra.errors import DraError, DraStoppedError, DriverCallError
from devicecore.domain.dra.model import ClaimRef, ClaimUid, DriverName
from devicecore.domain.errors import DeviceCoreError, InvalidEndpointError
from devicecore.domain.text import foreign_text
from devicecore.ports.drivers import DriverListener
from devicecore.system.sockets import MAX_SOCKET_PATH
from devicecore.wire.dra_conversion import TooMuchError, from_claims, to_prepared, to_unprepared

MAX_DRIVER_NAME = 253
"""Characters of a driver's name; Kubernetes allows 63 in the objects that name it."""

CallObserver = Callable[[str, str, str, float], object]
"""Takes a driver's name, the full name of a method, a gRPC code as Go spells it, and seconds."""

Result = TypeVar("Result")

logger: logging.Logger = logging.getLogger(__name__)


@frozen
class InvalidDriverNameError(DraError):
    """A driver registers under a name that no object can have."""

    name: str

    def __str__(self) -> str:
        text = foreign_text(self.name, MAX_NAME)
        return f"expected a driver's name of 1 to {MAX_DRIVER_NAME} printable characters, got {text!r}"


@frozen
class DriverListenerError(DraError):
    """A driver cannot be registered, because the listener failed."""

    cause: str

    def __str__(self) -> str:
        return f"the listener failed: {self.cause}"


class GrpcDriverTransport:
    """DRA drivers over gRPC on unix sockets: `v1`, `v1beta1` and the health services.

    Drivers are found by a plugin watcher. There may be only one watcher of a directory, because a watcher refuses
    plugins of types that it does not know. So either this transport has its own, if `plugins_registry` is given, or
    `handler` is passed to the transport of device plugins: `GrpcUnixTransport(handlers=[drivers.handler])`. Then stop
    the two together.

    The listener is called in worker threads; a slow one delays no other driver.

    Args:
        plugins_registry: the directory in which drivers put their registration sockets (a kubelet's is
            `/var/lib/kubelet/plugins_registry`). Its last part is made if it is missing. None for no watcher.
        allow_shared_directory: whether other users may write to that directory. Each of them can pass for any driver.
        call_timeout: seconds for NodePrepareResources and NodeUnprepareResources.
        dial_timeout: seconds for a registration socket to answer.
        max_message_bytes: how long a driver's message may be.
        health_pause: seconds after the end of a health stream until the next one is opened.
        observe: called after each call to a driver, from any thread, such as `PrometheusMetrics.driver_call`. It must
            not block or raise.
    """

    def __init__(
        self,
        plugins_registry: str | os.PathLike[str] | None = None,
        *,
        allow_shared_directory: bool = False,
        call_timeout: float = 45.0,
        dial_timeout: float = 10.0,
        max_message_bytes: int = 4 * 1024 * 1024,
        health_pause: float = 5.0,
        observe: CallObserver | None = None,
    ) -> None:
        self._registry = None if plugins_registry is None else Path(plugins_registry).absolute()
        self._allow_shared = allow_shared_directory
        self._limits = DriverLimits(
            dial=dial_timeout, message_bytes=max_message_bytes, call=call_timeout, health_pause=health_pause
        )
        self._observe = observe
        self._generations = itertools.count(1)
        self._changing = threading.Lock()  # start and stop exclude each other
        self._running: _Running | None = None
        self._ending: _Running | None = None  # until it has ended: an interrupt may end a start or a stop
        self.handler: DriverHandler = DriverHandler(self._register)
        """Registers drivers that a plugin watcher has found: a `PluginHandler`."""

    def start(self, listener: DriverListener) -> None:
        """Begin to take registrations. A transport that is started already is stopped first.

        Raises:
            DirectoryError: the directory cannot be made, or other users may write to it.
        """
        with self._changing:
            self._stop()
            running = _Running(listener)
            if self._registry is not None:
                running.watcher = PluginWatcher(
                    self._registry,
                    (self.handler,),
                    ConnectionLimits(dial=self._limits.dial, message_bytes=self._limits.message_bytes),
                    own_socket="",
                    allow_shared=self._allow_shared,
                )
            self._running = running  # a driver may register at once
            try:
                running.acquire_loop()
                running.start()
            except BaseException:
                self._stop()
                raise

    def stop(self) -> None:
        """Disconnect every driver, without events. Stopping twice, or before the start, is no error.

        A call of the listener that is under way may return later.
        """
        with self._changing:
            self._stop()

    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Ask a driver to prepare claims.

        Raises:
            DriverCallError: the call failed as a whole, or its answer holds too much.
        """
        return self._ask(instance, calls.PREPARE_METHODS, claims, to_prepared)

    def unprepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Ask a driver to release claims.

        Raises:
            DriverCallError: the call failed as a whole, or its answer holds too much.
        """
        return self._ask(instance, calls.UNPREPARE_METHODS, claims, to_unprepared)

    def disconnect(self, instance: InstanceId) -> None:
        """Cut the connection to an instance, which stays registered; a new one begins at once.

        An instance that is not registered is no error.
        """
        running = self._running
        client = None if running is None else running.clients.get(instance)
        if running is not None and client is not None:
            with suppress(LoopStoppedError):  # the transport was stopped, and has cut all connections
                running.loop.run(client.reconnect())

    def _ask(
        self,
        instance: InstanceId,
        methods: Mapping[str, calls.Method],
        claims: Sequence[ClaimRef],
        read: Callable[[Any], dict[ClaimUid, Result]],
    ) -> dict[ClaimUid, Result]:
        method = methods[instance.service]
        running = self._running
        client = None if running is None else running.clients.get(instance)
        if running is None or client is None:
            raise calls.closing(method.name)
        try:
            request = method.request(claims=from_claims(claims))
        except ValueError as error:  # a lone surrogate in a name
            cause = f"grpc: error while marshaling: {error}"
            raise DriverCallError(method.name, "Internal", cause) from error
        began, code = time.monotonic(), "OK"
        try:
            return read(running.loop.run(client.call(method, request)))
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

    async def _register(self, name: str, endpoint: str, services: Sequence[str]) -> "RegisteredDriver":
        running = self._running
        if running is None:
            raise DraStoppedError
        service = choose_service(name, endpoint, services)
        id_ = InstanceId(DriverName(name), endpoint, service, next(self._generations))
        client = DriverClient(id_, services, self._limits, running.notify, running.reading_a_large_report)
        await running.add(client)
        return RegisteredDriver(running, client)

    def _stop(self) -> None:
        """End what runs, or what an interrupt has left of a start or a stop."""
        running = self._running or self._ending
        self._running, self._ending = None, running
        if running is not None:
            running.stop()
        self._ending = None


@frozen
class DriverHandler:
    """Registers drivers that a plugin watcher has found; a `PluginHandler`."""

    _register: Any  # a coroutine function of name, endpoint and services
    type: str = calls.PLUGIN_TYPE

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Look at what a driver answered to GetInfo (kubelet: `ValidatePlugin` of the DRA manager).

        Raises:
            InvalidDriverNameError: the name is empty, too long or not printable.
            InvalidEndpointError: no socket can have that path.
            UnsupportedServicesError: none of the services is known.
        """
        if not 0 < len(name) <= MAX_DRIVER_NAME or not name.isprintable():
            raise InvalidDriverNameError(name)
        is_too_long = len(os.fsencode(endpoint)) > MAX_SOCKET_PATH
        if is_too_long or not endpoint.startswith("/") or not endpoint.isprintable():
            problem = f"it is not an absolute path of at most {MAX_SOCKET_PATH} bytes"
            raise InvalidEndpointError(foreign_text(endpoint, MAX_NAME), problem)
        choose_service(name, endpoint, versions)

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> "RegisteredDriver":
        """Register the driver and begin to connect. It need not listen yet, as for a kubelet.

        Raises:
            DeviceCoreError: the listener refuses the driver.
        """
        registered: RegisteredDriver = await self._register(name, endpoint, versions)
        return registered


@frozen
class RegisteredDriver:
    """A `RegisteredPlugin`. It is lost only if the transport was stopped: a lost connection is made again."""

    _running: "_Running"
    _client: DriverClient

    @property
    def lost(self) -> bool:
        """Whether the instance is no longer registered."""
        return self._client.is_closed

    async def disconnect(self) -> None:
        """End the registration, and wait until the listener was notified."""
        await self._running.remove(self._client)


class _Running(Running):
    """What exists between start and stop."""

    def __init__(self, listener: DriverListener) -> None:
        super().__init__("devicecore-driver-listener")
        self._listener = listener
        self._is_closed = False
        self.clients: dict[InstanceId, DriverClient] = {}
        self.reading_a_large_report = asyncio.Lock()

    def stop(self) -> None:
        self._is_closed = True
        super().stop()

    async def add(self, client: DriverClient) -> None:
        self.clients[client.id] = client
        try:
            await client.register()
        except BaseException:
            self.clients.pop(client.id, None)
            raise

    async def remove(self, client: DriverClient) -> None:
        await client.remove()
        self.clients.pop(client.id, None)

    async def notify(self, event: DriverEvent) -> None:
        try:
            notified = asyncio.get_running_loop().run_in_executor(self._listeners, self._notify_now, event)
        except RuntimeError as error:  # the program is ending without having stopped us
            raise DraStoppedError from error
        await notified

    async def _close(self) -> None:
        self._is_closed = True
        await super()._close()
        for client in tuple(self.clients.values()):
            await client.close()
        self.clients.clear()

    def _notify_now(self, event: DriverEvent) -> None:
        is_registration = isinstance(event, DriverRegistered)
        if self._is_closed:
            if is_registration:
                raise DraStoppedError
            return
        try:
            self._listener(event)
        except (Exception, SystemExit) as error:  # an exit would end the loop, and all others on it
            if is_registration and isinstance(error, DeviceCoreError):
                raise  # it becomes the answer to the driver, and is logged there
            if isinstance(error, DraStoppedError):
                return  # the manager was stopped, and stops this transport next
            logger.exception("the listener failed on %s", type(event).__name__)
            if is_registration:  # a listener that failed here does not know the driver
                raise DriverListenerError(str(error)) from error
