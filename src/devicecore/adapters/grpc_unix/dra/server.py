"""The driver's side: offer a `DraDriver` to a kubelet's plugin watcher.

Law: a driver answers before a kubelet can find it. A kubelet that restarts, or cleans its directory, finds it again.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import grpc.aio

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.dra import calls
from devicecore.adapters.grpc_unix.dra.service import Context, DriverService
from devicecore.adapters.grpc_unix.limits import MAX_ERROR
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.adapters.grpc_unix.plugin_server import KubeletUnreachableError
from devicecore.domain.dra.drivers import SERVICES
from devicecore.domain.dra.health import ReportedHealth
from devicecore.domain.errors import DirectoryError
from devicecore.domain.text import foreign_text
from devicecore.ports.context import StopsAtExit
from devicecore.ports.dra_driver import DraDriver
from devicecore.system.background import end, supervise
from devicecore.system.sockets import OwnedSocket, check_socket_path
from devicecore.wire import pluginregistration

PLUGINS_REGISTRY = "/var/lib/kubelet/plugins_registry"
HEALTH_SERVICE = "v1alpha1.DRAResourceHealth"
STOP_GRACE = 1.0  # seconds for calls in flight

logger: logging.Logger = logging.getLogger(__name__)


def serve_driver(
    driver: DraDriver,
    registry: str | os.PathLike[str] = PLUGINS_REGISTRY,
    *,
    endpoint: str | os.PathLike[str] | None = None,
    socket_name: str | None = None,
    services: Sequence[str] = (*SERVICES, HEALTH_SERVICE),
    wait_for_registry: bool = False,
    poll_interval: float = 1.0,
    report_period: float = 10.0,
    max_message_bytes: int = 4 * 1024 * 1024,
) -> "ServedDriver":
    """Serve `driver` where a kubelet's plugin watcher finds it, until stopped.

    Args:
        driver: what is served.
        registry: the kubelet's directory of registration sockets.
        endpoint: the path of a socket of its own for the driver's services; None for the registration socket.
        socket_name: the name of the registration socket; None for `<driver>-reg.sock`. Two instances of a driver, as
            in a rolling update, need two names.
        services: what the driver lists at registration, the preferred one first. Unknown names are listed only.
        wait_for_registry: whether to wait in the background for `registry` to exist, because no kubelet has run yet.
        poll_interval: seconds between two looks whether the sockets are still there.
        report_period: seconds after which the last health report is repeated.
        max_message_bytes: how long a kubelet's message may be.

    Raises:
        SocketPathTooLongError: a socket's path is too long.
        DirectoryError: a socket cannot be made in its directory.
    """
    registration = Path(registry).absolute() / (socket_name or f"{driver.name}-reg.sock")
    served = ServedDriver(
        driver,
        str(registration),
        None if endpoint is None else str(Path(endpoint).absolute()),
        services=services,
        wait_for_registry=wait_for_registry,
        poll_interval=poll_interval,
        report_period=report_period,
        max_message_bytes=max_message_bytes,
    )
    served.start()
    return served


class ServedDriver(StopsAtExit):
    """A driver that is served: a context manager that stops it at its end. `serve_driver` makes and starts it."""

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
        max_message_bytes: int,
    ) -> None:
        self.driver = driver
        self.registration = registration
        """The path of the registration socket."""
        self.endpoint: str = endpoint or registration
        """The path of the socket of the driver's services."""
        self._services = tuple(services)
        self._waits = wait_for_registry
        self._poll_interval = poll_interval
        self._report_period = report_period
        self._max_message_bytes = max_message_bytes
        self._sockets = tuple(OwnedSocket(path) for path in dict.fromkeys((self.endpoint, registration)))
        self._servers: dict[str, grpc.aio.Server] = {}
        self._service: DriverService | None = None
        self._keeper: asyncio.Task[NoReturn] | None = None
        self._loop: LoopThread | None = None
        self._problem = "no kubelet has asked yet"
        self._heard = threading.Condition()
        self._has_status = False

    def start(self) -> None:
        """Begin to serve. A second call does nothing.

        Raises:
            SocketPathTooLongError: a socket's path is too long.
            DirectoryError: a socket cannot be made in its directory.
        """
        if self._loop is not None:
            return
        for socket in self._sockets:
            check_socket_path(socket.path)
        self._loop = loop = LoopThread.acquire(self._close)
        try:
            loop.run(self._open(loop))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop serving and remove the sockets. A second call does nothing."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.release(self._close)

    def report(self, devices: Sequence[ReportedHealth]) -> None:
        """Report the health of all devices. It is repeated until the next report."""
        loop, report = self._loop, tuple(devices)
        if loop is not None:
            loop.call_soon(lambda: self._service.report(report) if self._service else None)

    @property
    def registered(self) -> bool:
        """Whether the last kubelet that asked has registered the driver."""
        return not self._problem

    def wait_registered(self, timeout: float | None = None) -> None:
        """Wait until a kubelet says whether it has registered the driver.

        Raises:
            KubeletUnreachableError: it refuses the driver, or no kubelet came within `timeout` seconds.
        """
        with self._heard:
            self._heard.wait_for(lambda: self._has_status, timeout)
            if self._problem:
                raise KubeletUnreachableError(self.registration, self._problem)

    async def _open(self, loop: LoopThread) -> None:
        self._service = DriverService(self.driver, self._services, loop, self._report_period)
        for socket in self._sockets:
            directory = Path(socket.path).parent
            if self._waits and socket.path == self.registration and not directory.exists():
                logger.info("waiting for %s, which a kubelet makes", foreign_text(str(directory)))
            else:
                await self._serve(socket)
        self._keeper = asyncio.create_task(supervise(f"serving {self.driver.name}", self._keep))

    async def _close(self) -> None:
        if self._keeper is not None:
            await end(self._keeper)
        for socket in reversed(self._sockets):  # the registration socket first, so that no kubelet calls a dead driver
            socket.remove()
        if self._service is not None:
            self._service.end()
        for server in self._servers.values():
            await server.stop(STOP_GRACE)
        self._servers.clear()

    async def _serve(self, socket: OwnedSocket) -> None:
        assert self._service is not None, "it is made first"  # noqa: S101  # for mypy
        methods: dict[rpc.Method[Any, Any], rpc.Behaviour] = {}
        if socket.path == self.endpoint:
            methods |= self._service.methods()
        if socket.path == self.registration:
            methods |= self._registration_methods()
        server = await rpc.serve(methods, socket, self._max_message_bytes)
        former = self._servers.get(socket.path)
        self._servers[socket.path] = server
        if former is not None:
            await former.stop(STOP_GRACE)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._poll_interval)
            for socket in self._sockets:
                is_awaited = socket.identity is None and Path(socket.path).parent.exists()
                if is_awaited or (socket.identity is not None and socket.is_gone()):
                    try:
                        await self._serve(socket)
                    except DirectoryError as error:
                        socket.warn(str(error))

    def _registration_methods(self) -> Mapping[rpc.Method[Any, Any], rpc.Behaviour]:
        async def get_info(_: pluginregistration.InfoRequest, __: Context) -> pluginregistration.PluginInfo:
            return pluginregistration.PluginInfo(
                type=calls.PLUGIN_TYPE,
                name=self.driver.name,
                endpoint=self.endpoint,
                supported_versions=self._services,
            )

        async def notify(
            status: pluginregistration.RegistrationStatus, _: Context
        ) -> pluginregistration.RegistrationStatusResponse:
            refusal = status.error or "the kubelet refuses, and does not say why"
            self._take_status("" if status.plugin_registered else foreign_text(refusal, MAX_ERROR))
            return pluginregistration.RegistrationStatusResponse()

        return {rpc.GET_INFO: get_info, rpc.NOTIFY_REGISTRATION_STATUS: notify}

    def _take_status(self, problem: str) -> None:
        if not problem:
            logger.info("%s is registered", self.driver.name)
        elif problem != self._problem:
            logger.warning("%s is not registered: %s", self.driver.name, problem)
        with self._heard:
            self._problem, self._has_status = problem, True
            self._heard.notify_all()
