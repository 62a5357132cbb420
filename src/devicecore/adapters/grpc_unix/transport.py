"""The `PluginTransport` over gRPC: its methods block, and an event loop in a separate thread does the work.

Law: a call to a plugin blocks its caller for at most one second more than the call's timeout, no matter what the plugin
does. After `stop`, the listener is not called.
"""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.directory import SocketDirectory
from devicecore.adapters.grpc_unix.limits import PluginLimits, RegistrationRate
from devicecore.adapters.grpc_unix.listening import ListeningTransport, Notify, Part
from devicecore.adapters.grpc_unix.loop import LoopStoppedError
from devicecore.adapters.grpc_unix.rpc import Request, Response
from devicecore.adapters.grpc_unix.server import RegistrationServer
from devicecore.adapters.grpc_unix.watcher import PluginHandler, PluginWatcher
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import (
    DeviceCoreError,
    EmptyAllocateResponseError,
    PluginCallError,
    PluginConnectError,
    PluginStoppedError,
)
from devicecore.domain.events import Event, PluginRegistered
from devicecore.domain.model import DeviceId, PluginId, Receipt
from devicecore.domain.text import counted
from devicecore.system.arguments import checks_arguments
from devicecore.wire import deviceplugin
from devicecore.wire.conversion import read_receipt, to_receipt


class GrpcUnixTransport(ListeningTransport[Event, RegistrationServer]):
    """Plugins over gRPC on unix sockets in one directory: the kubelet's `v1beta1` API.

    The listener is called in worker threads, so a slow listener does not delay other plugins.

    Args:
        directory: where a kubelet and its plugins find each other's sockets. The last component of this path is created
            if missing.
        socket_name: the name of the kubelet's socket in that directory.
        allow_shared_directory: whether other users may write to the directory and the registry. Any user who may write
            to the directory can impersonate any plugin.
        wipe: whether a start deletes all sockets in the directory, as a kubelet does, so that plugins notice the
            restart; otherwise, a start deletes only the kubelet's own socket.
        limits: how long a plugin may take, how much it may send, and how often it may register.
        clock: returns monotonic seconds, used to limit registrations.
        plugins_registry: a directory in which plugins may put sockets to be found, instead of calling Register. The
            last component of this path is created if missing. None: no plugin watcher.
        handlers: handlers for plugins found in `plugins_registry` that are not device plugins; see
            `devicecore.adapters.grpc_unix.watcher`.
    """

    @checks_arguments()
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        socket_name: str = "kubelet.sock",
        allow_shared_directory: bool = False,
        wipe: bool = True,
        limits: PluginLimits = PluginLimits(),
        clock: Callable[[], float] = time.monotonic,
        plugins_registry: str | os.PathLike[str] | None = None,
        handlers: Sequence[PluginHandler] = (),
    ) -> None:
        path = Path(directory).absolute()
        super().__init__("the transport of device plugins", str(path))
        self._directory = SocketDirectory(path, socket_name, allow_shared=allow_shared_directory, wipe=wipe)
        per_second = limits.registrations_per_second
        self._rate = None if per_second is None else RegistrationRate(per_second, limits.registration_burst, clock)
        self._limits = limits
        self._allow_shared = allow_shared_directory
        self._handlers = tuple(handlers)
        self._registry = None if plugins_registry is None else Path(plugins_registry).absolute()
        self._generations = itertools.count(1)
        self._watcher: PluginWatcher | None = None

    def __repr__(self) -> str:
        run = self._run
        state = "stopped" if run is None else counted(run.peers.plugins, "plugin")
        return f"GrpcUnixTransport({str(self._directory.path)!r}, {state})"

    def disconnect(self, plugin: PluginId) -> None:
        """Disconnect `plugin` as if it had ended its stream. Unless `plugin` was already lost, `PluginLost` follows."""
        run = self._run
        if run is not None:
            with suppress(PluginStoppedError, LoopStoppedError):
                run.loop.call_soon(run.peers.find(plugin).end_stream)

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        """Ask `plugin` to prepare `devices` for one container.

        An answer may be up to `limits.allocate_bytes` bytes long. See the port.
        """
        request = deviceplugin.AllocateRequest(
            container_requests=[deviceplugin.ContainerAllocateRequest(devices_ids=devices)]
        )
        response = self._call(plugin, rpc.ALLOCATE, request, self._limits.allocate, timeout)
        if not response.container_responses:
            raise EmptyAllocateResponseError(plugin.resource)
        receipt = to_receipt(response.container_responses[0])
        if len(receipt) > self._limits.allocate_bytes:
            size = f"{len(receipt)} bytes, expected at most {self._limits.allocate_bytes} (allocate_bytes)"
            cause = f"the answer to Allocate from {plugin.resource} is too long: {size}"
            raise PluginCallError(plugin.resource, "Allocate", cause)
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
        """Ask `plugin` which `size` of the `available` devices it prefers.

        The result is empty if the plugin's answer has no container response. See the port.
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
        """Tell `plugin` that a container with `devices` is about to start. See the port."""
        request = deviceplugin.PreStartContainerRequest(devices_ids=devices)
        self._call(plugin, rpc.PRE_START_CONTAINER, request, self._limits.pre_start, timeout)

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """Read a receipt. See the port."""
        return read_receipt(receipt)

    def _call(
        self,
        plugin: PluginId,
        method: rpc.Method[Request, Response],
        request: Request,
        limit: float,
        timeout: float | None,
    ) -> Response:
        run = self._run
        if run is None:
            raise PluginStoppedError(plugin.resource)
        client = run.peers.find(plugin)
        try:
            seconds = limit if timeout is None else min(limit, timeout)
            return client.call(run.loop, method, request, seconds)
        except LoopStoppedError:
            raise PluginStoppedError(plugin.resource) from None

    def parts(self, notify: Notify[Event]) -> tuple[RegistrationServer, tuple[Part, ...]]:
        """Return the registration server, and the plugin watcher if a registry was given."""
        server = RegistrationServer(self._directory, self._limits, self._rate, notify, self._generations.__next__)
        if self._registry is None:
            return server, ()
        handlers = (server, *self._handlers)
        own_socket, allow_shared = self._directory.socket, self._allow_shared
        watcher = PluginWatcher(
            self._registry, handlers, self._limits, own_socket=own_socket, allow_shared=allow_shared
        )
        self._watcher = watcher
        return server, (watcher,)

    @property
    def plugin_sockets(self) -> dict[str, bool]:
        """The sockets in the plugins' registry, and whether each socket's plugin is registered.

        Any thread may read this.
        """
        watcher = self._watcher
        return {} if watcher is None else watcher.sockets

    def refusal(self, event: Event, error: BaseException) -> DeviceCoreError | None:
        """Return a `PluginConnectError` for a registration, or None for other events."""
        if not isinstance(event, PluginRegistered):
            return None
        plugin = event.plugin
        return PluginConnectError(plugin.resource, plugin.socket, f"the listener failed: {error}")

    def _begin(self, listener: Callable[[Event], object]) -> None:
        self._directory.claim()
        super()._begin(listener)

    def _end(self) -> None:
        super()._end()
        self._directory.release()
