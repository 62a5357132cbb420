"""The driver's side: serves a `DraDriver` to a kubelet's plugin watcher.

Laws: a driver can answer calls before a kubelet can find it. A kubelet that restarts, or cleans its directory, finds
the driver again. The driver's two methods answer calls of every API version that the driver lists.
"""

import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.dra import calls
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.adapters.grpc_unix.served import (
    Context,
    Methods,
    ServedSockets,
    Service,
    check_directory,
    registration_methods,
)
from devicecore.domain.dra.drivers import SERVICES
from devicecore.domain.dra.errors import DriverCallError
from devicecore.domain.dra.health import ReportedHealth
from devicecore.domain.errors import DirectoryError
from devicecore.ports.dra_driver import DraDriver, check_driver, prepared, unprepared
from devicecore.system.arguments import checks_arguments
from devicecore.system.sockets import OwnedSocket
from devicecore.wire import dra_health_v1alpha1, pluginregistration
from devicecore.wire.dra_conversion import from_prepared, from_report, from_unprepared, to_claims

PLUGINS_REGISTRY = "/var/lib/kubelet/plugins_registry"
HEALTH_SERVICES = tuple(calls.HEALTH_METHODS)
"""The health services that a driver lists.

Kubelets since 1.37 prefer v1; older ones call v1alpha1 without checking the list.
"""

logger: logging.Logger = logging.getLogger(__name__)


@checks_arguments()
def serve_driver(
    driver: DraDriver,
    registry: str | os.PathLike[str] = PLUGINS_REGISTRY,
    *,
    endpoint: str | os.PathLike[str] | None = None,
    socket_name: str | None = None,
    services: Sequence[str] = (*SERVICES, *HEALTH_SERVICES),
    wait_for_registry: bool = False,
    poll_interval: float = 1.0,
    report_period: float = 10.0,
) -> "ServedDriver":
    """Serve `driver` where a kubelet's plugin watcher finds it, until stopped.

    Args:
        driver: the driver to serve.
        registry: the kubelet's directory of registration sockets.
        endpoint: the path of a separate socket for the driver's services; None to use the registration socket.
        socket_name: the name of the registration socket; None for `<driver>-reg.sock`. Two instances of a driver, as
            in a rolling update, need two names.
        services: the services that the driver lists at registration, the preferred service first. A service
            with an unknown name is listed but not served.
        wait_for_registry: whether to wait in the background for `registry` to exist, in case no kubelet has run yet.
        poll_interval: seconds between two checks of whether the sockets still exist.
        report_period: seconds after which the last health report is repeated.

    Raises:
        TypeError: `driver` is not a driver.
        SocketPathTooLongError: a socket's path is too long.
        DirectoryError: a socket cannot be created in its directory.
    """
    check_driver(driver, "serve_driver")
    if not wait_for_registry and not Path(registry).exists():
        raise DirectoryError(str(registry), "there is no such directory: create it, or use wait_for_registry=True")
    registration = Path(registry).absolute() / (socket_name or f"{driver.name}-reg.sock")
    served = ServedDriver(
        driver,
        str(registration),
        None if endpoint is None else str(Path(endpoint).absolute()),
        services=services,
        wait_for_registry=wait_for_registry,
        poll_interval=poll_interval,
        report_period=report_period,
    )
    served.start()
    return served


class DriverService(Service):
    """The methods of one driver.

    Of the `services` that the driver lists, the known ones are served. A health report is repeated after
    `report_period` seconds.
    """

    def __init__(self, driver: DraDriver, services: Sequence[str], loop: LoopThread, report_period: float) -> None:
        super().__init__(driver.name, loop)
        self._driver = driver
        self._services = services
        self._report_period = report_period
        self._report: tuple[ReportedHealth, ...] | None = None

    def methods(self) -> Methods:
        """Return the handler of each method."""
        methods: dict[rpc.Method[Any, Any], rpc.Behavior] = {}
        for service in self._services:
            if service in SERVICES:
                prepare, unprepare = calls.PREPARE_METHODS[service], calls.UNPREPARE_METHODS[service]
                methods[prepare] = self._unary(prepare, self._prepare)
                methods[unprepare] = self._unary(unprepare, self._unprepare)
            elif service in calls.HEALTH_METHODS:
                methods[calls.HEALTH_METHODS[service]] = self._watch
        return methods

    def report(self, devices: tuple[ReportedHealth, ...]) -> None:
        """Send a health report to every kubelet that watches now or later."""
        self._report = devices
        self.changed()

    def status(self, error: BaseException) -> tuple[grpc.StatusCode, str]:
        """Return the status of a call that raised `error`. A `DriverCallError` keeps its code and text."""
        if isinstance(error, DriverCallError):
            return calls.CODES.get(error.code, grpc.StatusCode.UNKNOWN), error.message
        return super().status(error)

    async def _watch(
        self, _: object, context: Context
    ) -> AsyncIterator[dra_health_v1alpha1.NodeWatchResourcesResponse]:
        # A report counts for a limited time, so the last report is repeated.
        async for response in self.stream(context, self._last_report, self._report_period):
            yield response

    async def _last_report(self) -> dra_health_v1alpha1.NodeWatchResourcesResponse | None:
        return None if self._report is None else from_report(self._report, int(time.time()))

    def _unary(self, method: calls.Method, ask: Callable[[Any], Message]) -> rpc.Behavior:
        # The messages of all versions are the same.
        return self.unary(lambda request: method.response.FromString(ask(request).SerializeToString()))

    def _prepare(self, request: Any) -> Message:  # noqa: ANN401 - a message of the service's version
        return from_prepared(prepared(self._driver, to_claims(request.claims)))

    def _unprepare(self, request: Any) -> Message:  # noqa: ANN401 - a message of the service's version
        return from_unprepared(unprepared(self._driver, to_claims(request.claims)))


class ServedDriver(ServedSockets[DriverService]):
    """A served driver: a context manager that stops serving it on exit. `serve_driver` returns one that has started."""

    def __init__(
        self,
        driver: DraDriver,
        registration: str,
        endpoint: str | None,
        *,
        services: Sequence[str],
        wait_for_registry: bool,
        poll_interval: float,
        report_period: float,
    ) -> None:
        self.driver = driver
        self.registration = registration
        """The path of the registration socket."""
        self.endpoint: str = endpoint or registration
        """The path of the socket of the driver's services."""
        super().__init__(
            driver.name,
            # The registration socket is created last and removed first, so that no kubelet calls a dead driver.
            [*dict.fromkeys((self.endpoint, registration))],
            meets_at=registration,
            kubelet=f"a kubelet that watches {Path(registration).parent}",
            poll_interval=poll_interval,
        )
        below = Path(registration).parent / Path(PLUGINS_REGISTRY).name
        if below.is_dir():
            self._problem = f"{self._problem}; a kubelet usually watches {below}, so use that directory"
        self._services = tuple(services)
        self._waits = wait_for_registry
        self._report_period = report_period
        self._has_status = False
        self._once_registered: Callable[[], object] | None = None
        self._acting = threading.Lock()  # held while the action is called

    @checks_arguments()
    def report(self, devices: Sequence[ReportedHealth]) -> None:
        """Report the health of all devices. The report is repeated until the next report.

        Raises:
            NotStartedError: the driver is not started.
        """
        self._lifecycle.check_running()
        report = tuple(devices)
        self._user.loop.call_soon(lambda: self._service.report(report) if self._service else None)

    @checks_arguments()
    def when_registered(self, action: Callable[[], object]) -> None:
        """Call `action` as soon as a kubelet has registered the driver, unless the driver is stopped first.

        If the driver is already registered, the action is called at once.

        Use this to publish ResourceSlices. A scheduler may allocate devices as soon as they are published, and a
        kubelet that does not know the driver refuses the pod and tries again a minute later. If an action is still
        waiting, the new action replaces it. An action is called in the caller's thread or in a worker thread, and never
        in two threads at once.
        """
        with self._lock:
            self._once_registered = action
        self._act()

    @property
    def registered(self) -> bool:
        """Whether the last kubelet that answered has registered the driver."""
        return not self._problem

    def _is_decided(self) -> bool:
        return self._has_status

    def _begin(self) -> None:
        self._has_status = False
        super()._begin()

    def _end(self) -> None:
        super()._end()
        self._once_registered = None

    async def _open(self) -> None:
        self._service = DriverService(self.driver, self._services, self._user.loop, self._report_period)
        await super()._open()

    async def _serve(self, socket: OwnedSocket) -> None:
        if self._waits and socket.path == self.registration:
            check_directory(socket.path)
        assert self._service is not None, "the service is created first"  # noqa: S101  # for mypy
        methods: dict[rpc.Method[Any, Any], rpc.Behavior] = {}
        if socket.path == self.endpoint:
            methods.update(self._service.methods())
        if socket.path == self.registration:
            methods.update(registration_methods(self._info, self._answered))
        await self._serve_methods(methods, socket, self._service)

    async def _look(self) -> None:
        for socket in self._sockets.values():
            is_awaited = socket.identity is None and Path(socket.path).parent.exists()
            if is_awaited or (socket.identity is not None and socket.is_gone()):
                try:
                    await self._serve(socket)
                except DirectoryError as error:
                    socket.warn(str(error))

    def _info(self) -> pluginregistration.PluginInfo:
        return pluginregistration.PluginInfo(
            type=calls.PLUGIN_TYPE, name=self.driver.name, endpoint=self.endpoint, supported_versions=self._services
        )

    def _answered(self, problem: str) -> None:
        self._has_status = True
        self._tried(problem)
        self._user.loop.submit(self._act_logged)  # a kubelet waits for our answer, but not for this action

    def _act_logged(self) -> None:
        try:
            self._act()
        except Exception:
            logger.exception("the action after the registration of %s failed", self.driver.name)

    def _act(self) -> None:
        with self._acting:
            with self._lock:
                action = self._once_registered
                if self._problem or action is None:
                    return
                self._once_registered = None
            action()
