"""The plugin's side: serves a `DevicePlugin` to a kubelet, and registers it again when the kubelet restarts.

Laws: a plugin is served before it registers. Each stream starts with the current list, and sends the new list after
each change. If a kubelet restarts or cleans its directory, or the directory disappears and reappears, the plugin
automatically serves and registers again.
"""

import asyncio
import hashlib
import logging
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable
from enum import Enum
from functools import partial
from pathlib import Path

import grpc
from attrs import evolve, frozen

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.directory import check_endpoint_name
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.adapters.grpc_unix.served import (
    MAX_MESSAGE_BYTES,
    Context,
    Methods,
    ServedSockets,
    Service,
    check_directory,
    registration_methods,
)
from devicecore.domain.checks import repeated
from devicecore.domain.errors import DirectoryError
from devicecore.domain.model import DeviceId, ResourceName
from devicecore.domain.text import foreign_text
from devicecore.ports.plugin import DevicePlugin, allocated, check_plugin, listed, preferred, subscribed
from devicecore.runtime.background import bounded_backoff
from devicecore.runtime.wake_up import LOOK_AGAIN, WakeUp
from devicecore.system.arguments import checks_arguments
from devicecore.system.sockets import OwnedSocket, SocketIdentity, SocketState, check_socket_path, socket_identity
from devicecore.wire import deviceplugin, pluginregistration
from devicecore.wire.conversion import from_devices, from_options, from_response

KUBELET_DIRECTORY = "/var/lib/kubelet/device-plugins"
KUBELET_SOCKET = "kubelet.sock"
_PLUGINS = "device-plugins"  # the name of the plugin directory in a kubelet's root directory
MAX_LIST_BYTES = 4 * 1024 * 1024
"""The size in bytes of the longest list that a kubelet accepts: gRPC's default.

A kubelet silently drops a plugin with a longer list.
"""

REGISTER_TIMEOUT = 15.0  # seconds; a kubelet may take 10 to dial back
MAX_BACKOFF = 16  # in poll intervals

logger: logging.Logger = logging.getLogger(__name__)


@checks_arguments()
def default_endpoint(resource: ResourceName) -> str:
    """Return a readable, short name for the socket of `resource`, unique to `resource` and the same after a restart."""
    readable = re.sub(r"[^-A-Za-z0-9_]", "-", resource.rpartition("/")[2])[:20]
    return f"{readable}-{hashlib.sha256(resource.encode()).hexdigest()[:8]}.sock"


def default_directory() -> str:
    """Return the plugin directory: `$DEVICE_PLUGIN_PATH` if it is set, else the kubelet's."""
    return os.environ.get("DEVICE_PLUGIN_PATH") or KUBELET_DIRECTORY


@checks_arguments()
def serve_plugin(
    plugin: DevicePlugin,
    directory: str | os.PathLike[str] | None = None,
    *,
    registry: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    kubelet_socket: str | os.PathLike[str] | None = None,
    poll_interval: float = 1.0,
) -> "ServedPlugin":
    """Serve `plugin` on the socket `endpoint` in `directory`, and keep it registered there, until stopped.

    The plugin registers again when the kubelet has restarted or dropped the plugin, or when the plugin's socket was
    deleted. While the directory or the kubelet is missing, or the kubelet refuses the plugin, the plugin keeps trying
    to register, and logs each reason once.

    Args:
        plugin: the plugin to serve.
        directory: the kubelet's plugin directory. By default `$DEVICE_PLUGIN_PATH`, or else a kubelet's usual
            directory.
        registry: a directory in which a kubelet's plugin watcher finds plugins, usually
            `/var/lib/kubelet/plugins_registry`. If given, the socket is created there, and the plugin does not
            register: the kubelet asks the plugin for its name. In that case, `directory` and `kubelet_socket` have no
            effect.
        endpoint: the name of the plugin's socket; by default `default_endpoint`.
        kubelet_socket: the kubelet's socket, a name in `directory` or a path. By default `$KUBELET_SOCKET` if that is
            set and `directory` is not given, else `kubelet.sock`.
        poll_interval: seconds between two checks of the sockets.

    Raises:
        TypeError: `plugin` is not a plugin.
        InvalidEndpointError: `endpoint` is not a bare file name, cannot be printed, or is the kubelet's socket.
        SocketPathTooLongError: the path of the plugin's or the kubelet's socket is too long.
        DirectoryError: `directory` is the path of a kubelet's socket, or no socket can be created in that directory.
    """
    check_plugin(plugin, "serve_plugin")
    if kubelet_socket is None:
        kubelet_socket = (os.environ.get("KUBELET_SOCKET") if directory is None else None) or KUBELET_SOCKET
    path = Path(registry or directory or default_directory()).absolute()
    if path.name == KUBELET_SOCKET:
        raise DirectoryError(str(path), f"it is the path of a socket; expected its directory, {path.parent}")
    name = default_endpoint(plugin.resource) if endpoint is None else endpoint
    kubelet = path / kubelet_socket if registry is None else None
    check_endpoint_name(name, kubelet.name if kubelet and kubelet.parent == path else None)
    served = ServedPlugin(plugin, str(path / name), str(kubelet) if kubelet else None, poll_interval)
    served.start()
    return served


def run_plugin(
    plugin: DevicePlugin,
    directory: str | os.PathLike[str] | None = None,
    *,
    registry: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
) -> signal.Signals:
    """Serve `plugin` until SIGTERM or SIGINT arrives, and return the signal.

    The arguments mean the same as those of `serve_plugin`, and the errors are the same, except that in any thread but
    the main thread, this function raises ValueError.

    If the program has not configured logging, warnings go to stderr.
    """
    if threading.current_thread() is not threading.main_thread():
        problem = "run_plugin: expected the main thread, which receives signals; in other threads, use serve_plugin"
        raise ValueError(problem)
    logging.basicConfig()
    received: list[int] = []
    wake_up = WakeUp()  # not an Event, whose lock the main thread may hold when the handler runs

    def end(number: int, _: object) -> None:
        received.append(number)
        wake_up.wake()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with serve_plugin(plugin, directory, registry=registry, endpoint=endpoint):
            while not received:
                wake_up.wait(LOOK_AGAIN)  # a limited wait, because another thread may have received the signal
            return signal.Signals(received[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class PluginService(Service):
    """The methods that one server serves for a plugin.

    `dropped` is called when the last stream has ended, unless the server ended it.
    """

    def __init__(self, plugin: DevicePlugin, loop: LoopThread, dropped: Callable[[], None]) -> None:
        super().__init__(plugin.resource, loop)
        self._plugin = plugin
        self._dropped = dropped
        self._repeated: str | None = None
        self.list_problem: str = ""
        """Why a kubelet drops the plugin after the last list, or an empty string."""

    def methods(self) -> Methods:
        """Return the handler of each method."""
        return {
            rpc.GET_DEVICE_PLUGIN_OPTIONS: self.unary(self._get_device_plugin_options),
            rpc.LIST_AND_WATCH: self._list_and_watch,
            rpc.GET_PREFERRED_ALLOCATION: self.unary(self._get_preferred_allocation),
            rpc.ALLOCATE: self.unary(self._allocate),
            rpc.PRE_START_CONTAINER: self.unary(self._pre_start_container),
        }

    async def _list_and_watch(
        self, _: deviceplugin.Empty, context: Context
    ) -> AsyncIterator[deviceplugin.ListAndWatchResponse]:
        async for response in self.stream(context, partial(self.answer, context, self._list)):
            yield response

    def _ended(self, wake: asyncio.Event) -> None:
        super()._ended(wake)
        if not self._streams and not self._is_ending:
            self._dropped()

    def _list(self) -> deviceplugin.ListAndWatchResponse:
        try:
            devices = listed(self._plugin)
        except BaseException as error:
            self.list_problem = str(error) or type(error).__name__
            raise
        self._look_for_repeated([device.id for device in devices])
        response = from_devices(devices)
        size, self.list_problem = response.ByteSize(), ""
        if size > MAX_LIST_BYTES:
            self.list_problem = (
                f"the list of devices is {size} bytes long, but a kubelet drops a plugin whose list is longer than "
                f"{MAX_LIST_BYTES} bytes: offer fewer devices or shorter ids"
            )
        return response

    def _look_for_repeated(self, ids: list[DeviceId]) -> None:
        twice = repeated(ids) if len({*ids}) < len(ids) else None
        if twice is not None and twice != self._repeated:
            text = "%s lists device %s twice, but a kubelet counts it once: give each device a different id"
            logger.warning(text, self._name, foreign_text(twice, 100))
        self._repeated = twice

    def _get_device_plugin_options(self, _: deviceplugin.Empty) -> deviceplugin.DevicePluginOptions:
        return from_options(self._plugin.options)

    def _get_preferred_allocation(
        self, request: deviceplugin.PreferredAllocationRequest
    ) -> deviceplugin.PreferredAllocationResponse:
        response = deviceplugin.PreferredAllocationResponse()
        for container in request.container_requests:
            ids = preferred(
                self._plugin,
                [DeviceId(device) for device in container.available_deviceIDs],
                [DeviceId(device) for device in container.must_include_deviceIDs],
                container.allocation_size,
            )
            response.container_responses.add(deviceIDs=ids)
        return response

    def _allocate(self, request: deviceplugin.AllocateRequest) -> deviceplugin.AllocateResponse:
        return deviceplugin.AllocateResponse(
            container_responses=[
                from_response(allocated(self._plugin, [DeviceId(device) for device in container.devices_ids]))
                for container in request.container_requests
            ]
        )

    def _pre_start_container(
        self, request: deviceplugin.PreStartContainerRequest
    ) -> deviceplugin.PreStartContainerResponse:
        self._plugin.pre_start_container([DeviceId(device) for device in request.devices_ids])
        return deviceplugin.PreStartContainerResponse()


@frozen
class _Accepted:
    """A kubelet has accepted the plugin.

    `by` is that kubelet's socket, or None if its plugin watcher found the plugin. `is_uncertain` means that a stream,
    either the previous kubelet's or this one's, ended while the plugin was registering.
    """

    by: SocketIdentity | None
    is_uncertain: bool


@frozen
class _Refused:
    """The kubelet with the socket `by` refuses the plugin, and is not called again before `retry_at`, in loop time."""

    by: SocketIdentity
    retry_at: float


class _Unregistered(Enum):
    """The other states of a plugin that is not registered."""

    NEW = "no kubelet has accepted the plugin since the socket was created"
    LOST = "the stream of lists is no longer open"


_Registration = _Accepted | _Refused | _Unregistered


class ServedPlugin(ServedSockets[PluginService]):
    """A served plugin: a context manager that stops serving it on exit. `serve_plugin` returns one that has started.

    `kubelet_socket` is where the plugin registers, or None if a kubelet's plugin watcher is to find it.
    """

    _NOT_ASKED = "not tried yet"

    def __init__(self, plugin: DevicePlugin, socket: str, kubelet_socket: str | None, poll_interval: float) -> None:
        self.plugin = plugin
        self.socket = socket
        self.kubelet_socket = kubelet_socket
        super().__init__(
            plugin.resource,
            [socket],
            meets_at=kubelet_socket or socket,
            kubelet=kubelet_socket or f"a kubelet that watches {Path(socket).parent}",
            poll_interval=poll_interval,
        )
        self._socket = self._sockets[socket]
        self._unsubscribe: list[Callable[[], None]] = []
        # Only the event loop's thread uses the following attributes.
        self._registration: _Registration = _Unregistered.NEW
        self._backoff = 0.0
        self._drops = 0
        self._drops_before = 0
        """How many times the plugin had been dropped when the kubelet's plugin watcher last queried it."""
        self._bad_lists = 0
        """How many times in a row a kubelet has dropped the plugin because of its list."""
        self._not_before = 0.0
        """Loop time before which the plugin does not register again."""

    def __repr__(self) -> str:
        state = "stopped" if not self._lifecycle.is_running else "registered" if self.registered else "not registered"
        return f"ServedPlugin({self.plugin.resource!r}, {self.socket!r}, {state})"

    @property
    def registered(self) -> bool:
        """Whether the current kubelet has accepted the plugin and can find its socket."""
        registration = self._registration
        if not isinstance(registration, _Accepted) or self._socket.state() is not SocketState.OURS:
            return False
        return self.kubelet_socket is None or registration.by == socket_identity(self.kubelet_socket)

    def _begin(self) -> None:
        if self.kubelet_socket is not None:
            check_socket_path(self.kubelet_socket)
        super()._begin()
        loop = self._user.loop
        # This is one step, because an interrupt must not come between subscribing and storing the subscription.
        changed = partial(loop.call_soon, self._changed)
        self._unsubscribe.extend(map(partial(subscribed, self.plugin), [changed]))

    def _end(self) -> None:
        subscriptions, self._unsubscribe = self._unsubscribe, []
        try:
            for unsubscribe in subscriptions:
                unsubscribe()
        finally:
            super()._end()

    async def _serve(self, socket: OwnedSocket) -> None:
        check_directory(socket.path)
        service = PluginService(self.plugin, self._user.loop, self._dropped)
        watched = registration_methods(self._info, self._answered) if self.kubelet_socket is None else {}
        await self._serve_methods({**service.methods(), **watched}, socket, service)

    def _renewed(self) -> None:
        self._registration = _Unregistered.NEW

    def _changed(self) -> None:
        if self._service is not None:
            self._service.changed()
        self._not_before = 0.0

    def _dropped(self) -> None:
        """Handle the end of the last stream: the kubelet has exited, or has dropped the plugin."""
        self._drops += 1
        # if the current kubelet refuses the plugin, the stream was the previous kubelet's
        if not isinstance(self._registration, _Refused):
            self._registration = _Unregistered.LOST
        problem = "" if self._service is None else self._service.list_problem
        if not problem:
            self._bad_lists = 0
            return
        self._bad_lists += 1
        pause = bounded_backoff(self._bad_lists, 2 * self._poll_interval, 60 * self._poll_interval)
        self._not_before = self._now() + pause
        self._tried(problem)

    async def _look(self) -> None:
        """Check the plugin's and the kubelet's sockets, and serve or register if needed."""
        state = self._socket.look() if self._servers else SocketState.MISSING
        if state is SocketState.MISSING:
            await self._serve(self._socket)
        elif state is SocketState.FOREIGN:
            self._tried(f"another process has taken {self.socket}")
            return
        if isinstance(self._registration, _Accepted) and self._registration.is_uncertain:
            self._registration = evolve(self._registration, is_uncertain=False)
            if self._service is not None and not self._service.is_streaming:
                self._dropped()
        if self._now() < self._not_before:
            return
        if self.kubelet_socket is None:
            await self._look_as_watched()
            return
        kubelet = socket_identity(self.kubelet_socket)
        if kubelet is None:
            self._tried(f"there is no such socket: no kubelet is running there{self._elsewhere(self.kubelet_socket)}")
        elif not self.registered and not self._is_to_wait_for(kubelet):
            await self._register(self.kubelet_socket, kubelet)

    @staticmethod
    def _elsewhere(socket: str) -> str:
        """Return a hint if a kubelet has its socket in a directory that is easily confused with the given one."""
        path = Path(socket)
        directories = path.parent / _PLUGINS, path.parents[1] / _PLUGINS, path.parents[1]
        found = next((one for one in directories if (one / path.name).is_socket()), None)
        return f", but there is one in {found}: use that directory" if found else ""

    async def _look_as_watched(self) -> None:
        if self._registration is _Unregistered.LOST:
            logger.info("%s was dropped by the kubelet", foreign_text(self.socket))
            # A kubelet never queries the same socket twice, so the plugin needs a new socket.
            await self._serve(self._socket)
        if not self.registered and not self._problem:
            self._tried("no kubelet has queried this socket yet")

    def _is_to_wait_for(self, kubelet: SocketIdentity) -> bool:
        registration = self._registration
        return isinstance(registration, _Refused) and registration.by == kubelet and self._now() < registration.retry_at

    async def _register(self, socket: str, kubelet: SocketIdentity) -> None:
        request = deviceplugin.RegisterRequest(
            version=rpc.VERSION,
            endpoint=Path(self.socket).name,
            resource_name=self.plugin.resource,
            options=from_options(self.plugin.options),
        )
        drops = self._drops
        async with rpc.channel(socket, MAX_MESSAGE_BYTES) as channel:
            try:
                await rpc.unary(channel, rpc.REGISTER, request, REGISTER_TIMEOUT)
            except grpc.RpcError as error:
                self._backoff = min(max(2 * self._backoff, self._poll_interval), MAX_BACKOFF * self._poll_interval)
                self._registration = _Refused(kubelet, self._now() + self._backoff)
                self._tried(rpc.go_text(error))
                return
        self._registration, self._backoff = _Accepted(kubelet, is_uncertain=drops != self._drops), 0.0
        self._tried("")

    def _info(self) -> pluginregistration.PluginInfo:
        self._drops_before = self._drops
        return pluginregistration.PluginInfo(
            type=rpc.DEVICE_PLUGIN_TYPE,
            name=self.plugin.resource,
            endpoint=self.socket,
            supported_versions=[rpc.VERSION],
        )

    def _answered(self, problem: str) -> None:
        if not problem:
            self._registration = _Accepted(None, is_uncertain=self._drops_before != self._drops)
        elif self._registration is not _Unregistered.LOST:
            self._registration = _Unregistered.NEW
        self._tried(problem)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
