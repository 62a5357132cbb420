"""The `PluginTransport` over gRPC: its methods block, and an event loop in a thread of its own does the work.

Law: a call to a plugin blocks its caller no longer than its timeout. After `stop` the listener is not called.
"""

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.device_plugins import DevicePluginHandler
from devicecore.adapters.grpc_unix.directory import SocketDirectory
from devicecore.adapters.grpc_unix.limits import Limits, RegistrationRate
from devicecore.adapters.grpc_unix.loop import LoopStoppedError
from devicecore.adapters.grpc_unix.running import Running
from devicecore.adapters.grpc_unix.server import RegistrationServer
from devicecore.adapters.grpc_unix.watcher import PluginHandler, PluginWatcher
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import (
    DeviceCoreError,
    DirectoryError,
    DirectoryInUseError,
    EmptyAllocateResponseError,
    PluginCallError,
    PluginConnectError,
    PluginStoppedError,
)
from devicecore.domain.events import Event, PluginRegistered
from devicecore.domain.model import DeviceId, PluginId, Receipt
from devicecore.domain.text import counted
from devicecore.ports.transport import Listener
from devicecore.wire import deviceplugin
from devicecore.wire.conversion import read_receipt, to_receipt

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_LISTENER_THREAD_NAME = "devicecore-listener"

logger: logging.Logger = logging.getLogger(__name__)


class GrpcUnixTransport:
    """Plugins over gRPC on unix sockets in one directory: the kubelet's `v1beta1` API.

    The listener is called in worker threads; a slow one delays no other plugin.

    Args:
        directory: where a kubelet and its plugins find each other's sockets. Its last part is made if it is missing.
        socket_name: the kubelet's socket in it.
        allow_shared_directory: whether other users may write to the directory and the registry. Each of them can pass
            for any plugin.
        wipe: whether a start deletes all sockets there, as a kubelet's does, so that plugins notice; else only its own.
        dial_timeout: seconds for a plugin's socket to answer.
        options_timeout: seconds for GetDevicePluginOptions.
        allocate_timeout: seconds for Allocate.
        preferred_allocation_timeout: seconds for GetPreferredAllocation.
        pre_start_timeout: seconds for PreStartContainer.
        max_message_bytes: how long a plugin's message may be. A plugin whose list is longer is lost.
        max_allocate_bytes: how long a plugin's answer to Allocate may be. It is stored in the checkpoint, which is
            written anew for each pod.
        registrations_per_second: how often one resource may register in the long run; None for no limit.
        registration_burst: how often it may register at once.
        clock: monotonic seconds, for that limit.
        plugins_registry: a directory in which plugins may put sockets to be found, instead of calling Register. Its
            last part is made if it is missing. None for no plugin watcher.
        handlers: for plugins found there that are not device plugins; see `devicecore.adapters.grpc_unix.watcher`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        socket_name: str = "kubelet.sock",
        allow_shared_directory: bool = False,
        wipe: bool = True,
        dial_timeout: float = 10.0,
        options_timeout: float = 30.0,
        allocate_timeout: float = 30.0,
        preferred_allocation_timeout: float = 30.0,
        pre_start_timeout: float = 30.0,
        max_message_bytes: int = 4 * 1024 * 1024,
        max_allocate_bytes: int = 256 * 1024,
        registrations_per_second: float | None = 50.0,
        registration_burst: int = 200,
        clock: Callable[[], float] = time.monotonic,
        plugins_registry: str | os.PathLike[str] | None = None,
        handlers: Sequence[PluginHandler] = (),
    ) -> None:
        self._directory = SocketDirectory(
            Path(directory).absolute(), socket_name, allow_shared=allow_shared_directory, wipe=wipe
        )
        self._rate = (
            RegistrationRate(registrations_per_second, registration_burst, clock)
            if registrations_per_second is not None
            else None
        )
        self._limits = Limits(
            dial=dial_timeout,
            options=options_timeout,
            allocate=allocate_timeout,
            preferred_allocation=preferred_allocation_timeout,
            pre_start=pre_start_timeout,
            message_bytes=max_message_bytes,
            allocate_bytes=max_allocate_bytes,
        )
        self._allow_shared = allow_shared_directory
        self._handlers = tuple(handlers)
        self._registry = None if plugins_registry is None else Path(plugins_registry).absolute()
        self._generations = itertools.count(1)
        self._changing = threading.Lock()  # start and stop exclude each other
        self._running: _Running | None = None
        self._ending: _Running | None = None  # until it runs, or has ended: an interrupt may end a start or a stop

    def __repr__(self) -> str:
        running = self._running
        plugins = 0 if running is None else running.server.plugins
        state = "stopped" if running is None else counted(plugins, "plugin")
        return f"GrpcUnixTransport({str(self._directory.path)!r}, {state})"

    def start(self, listener: Listener) -> None:
        """Claim and clean the directory, then serve registrations in it. A second start does nothing.

        Raises:
            SocketPathTooLongError: the directory's name is too long for a socket in it.
            DirectoryError: a directory cannot be made or used, or other users may write to it.
            DirectoryInUseError: it belongs to another kubelet, or this transport has another listener already.
        """
        with self._changing:
            if self._running is not None:
                if self._running.listener == listener:
                    return
                raise DirectoryInUseError(str(self._directory.path))
            self._end()
            try:
                self._directory.claim()
                self._ending = running = self._new_running(listener)
                running.acquire_loop()
                self._running, self._ending = running, None  # the listener may call us from its first event on
                running.start()
            except BaseException as error:
                self._end()
                if isinstance(error, OSError):
                    problem = f"gRPC cannot be started: {error.strerror}"
                    raise DirectoryError(str(self._directory.path), problem) from error
                raise

    def stop(self) -> None:
        """Disconnect all plugins, remove the socket, and wait until the listener's last call has returned.

        The caller must not hold a lock that the listener waits for.
        """
        with self._changing:
            running = self._end()
        if running is not None:
            running.wait_for_listeners()  # without the lock, because the listener may be about to call stop

    def disconnect(self, plugin: PluginId) -> None:
        """Disconnect `plugin` as if it had ended its stream: `PluginLost` follows, unless it was lost before."""
        running = self._running
        if running is not None:
            with suppress(PluginStoppedError):
                running.loop.call_soon(running.server.find(plugin).end_stream)

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        """Ask `plugin` to prepare `devices` for one container.

        Raises:
            PluginStoppedError: this instance has gone; nothing was sent.
            EmptyAllocateResponseError: it answered for no container.
            PluginCallError: the call failed or took too long, or the answer is longer than `max_allocate_bytes`.
        """
        request = deviceplugin.AllocateRequest(
            container_requests=[deviceplugin.ContainerAllocateRequest(devices_ids=devices)]
        )
        response = self._call(plugin, rpc.ALLOCATE, request, self._limits.allocate, timeout)
        if not response.container_responses:
            raise EmptyAllocateResponseError(plugin.resource)
        receipt = to_receipt(response.container_responses[0])
        if len(receipt) > self._limits.allocate_bytes:
            raise PluginCallError(
                plugin.resource,
                "Allocate",
                f"the answer of {plugin.resource} to Allocate has {len(receipt)} bytes, expected at most "
                f"{self._limits.allocate_bytes} (max_allocate_bytes)",
            )
        return receipt

    def get_preferred_allocation(
        self,
        plugin: PluginId,
        available: Sequence[DeviceId],
        must_include: Sequence[DeviceId],
        size: int,
        *,
        timeout: float | None = None,
    ) -> tuple[DeviceId, ...]:
        """Ask `plugin` which `size` of `available` it prefers; nothing if it answers for no container.

        Raises:
            PluginStoppedError: this instance has gone; nothing was sent.
            PluginCallError: the call failed or took too long.
        """
        container = deviceplugin.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        request = deviceplugin.PreferredAllocationRequest(container_requests=[container])
        response = self._call(plugin, rpc.GET_PREFERRED_ALLOCATION, request, self._limits.preferred_allocation, timeout)
        if not response.container_responses:
            return ()
        return tuple(DeviceId(device) for device in response.container_responses[0].deviceIDs)

    def pre_start_container(
        self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None
    ) -> None:
        """Announce to `plugin` that a container with `devices` is about to start.

        Raises:
            PluginStoppedError: this instance has gone; nothing was sent.
            PluginCallError: the call failed or took too long.
        """
        request = deviceplugin.PreStartContainerRequest(devices_ids=devices)
        self._call(plugin, rpc.PRE_START_CONTAINER, request, self._limits.pre_start, timeout)

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """Read a receipt.

        Raises:
            UnreadableReceiptError: the bytes are not a ContainerAllocateResponse.
        """
        return read_receipt(receipt)

    def _call(
        self,
        plugin: PluginId,
        method: rpc.Method[Request, Response],
        request: Request,
        limit: float,
        timeout: float | None,
    ) -> Response:
        running = self._running
        if running is None:
            raise PluginStoppedError(plugin.resource)
        client = running.server.find(plugin)
        try:
            return running.loop.run(client.call(method, request, limit if timeout is None else min(limit, timeout)))
        except LoopStoppedError:
            raise PluginStoppedError(plugin.resource) from None

    def _new_running(self, listener: Listener) -> "_Running":
        running = _Running(self._directory, self._limits, self._rate, listener, self._generations.__next__)
        if self._registry is not None:
            running.watcher = PluginWatcher(
                self._registry,
                (DevicePluginHandler(running.server, self._directory), *self._handlers),
                self._limits,
                own_socket=self._directory.socket,
                allow_shared=self._allow_shared,
            )
        return running

    def _end(self) -> "_Running | None":
        """End what runs, or what an interrupt has left of a start or a stop; return it."""
        running = self._running or self._ending
        self._running, self._ending = None, running
        if running is not None:
            running.stop()
        self._directory.release()
        self._ending = None
        return running


class _Running(Running):
    """What exists between start and stop."""

    def __init__(
        self,
        directory: SocketDirectory,
        limits: Limits,
        rate: RegistrationRate | None,
        listener: Listener,
        next_generation: Callable[[], int],
    ) -> None:
        super().__init__(_LISTENER_THREAD_NAME)
        self.listener = listener
        self.server = RegistrationServer(directory, limits, rate, self._notify, next_generation)

    async def _open(self) -> None:
        await self.server.start()
        await super()._open()

    async def _close(self) -> None:
        await super()._close()
        await self.server.stop()

    def wait_for_listeners(self) -> None:
        a_listener_calls = threading.current_thread().name.startswith(_LISTENER_THREAD_NAME)
        self._listeners.shutdown(wait=not a_listener_calls)

    async def _notify(self, event: Callable[[], Event]) -> None:
        try:
            notified = asyncio.get_running_loop().run_in_executor(self._listeners, self._notify_now, event)
        except RuntimeError:
            return  # the program is ending without having stopped us, so the listener is not called any more
        await notified

    def _notify_now(self, make_event: Callable[[], Event]) -> None:
        """Build the event here too: 50,000 devices take longer than a loop should pause."""
        event = make_event()
        try:
            self.listener(event)
        except (Exception, SystemExit) as error:  # an exit would end the loop, and all others on it
            if isinstance(error, DeviceCoreError) and isinstance(event, PluginRegistered):
                raise  # it becomes the answer to Register, and is logged there
            logger.exception("the listener failed on %s", type(event).__name__)
            if isinstance(event, PluginRegistered):  # a listener that failed here does not know the plugin
                plugin = event.plugin
                raise PluginConnectError(plugin.resource, plugin.socket, f"the listener failed: {error}") from error
