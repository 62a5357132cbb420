"""The registration service, and every plugin instance that has registered.

Law: one task follows a plugin instance from its registration to its end, so its events arrive in order, one at a time.
The end of an instance changes no other instance, not even an instance of the same resource or at the same path.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

import grpc
import grpc.aio
from attrs import frozen

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.client import SOCKET_PATIENCE, PluginClient
from devicecore.adapters.grpc_unix.directory import SocketDirectory
from devicecore.adapters.grpc_unix.limits import (
    MAX_ERROR,
    MAX_NAME,
    MAX_PENDING,
    PluginLimits,
    RegistrationRate,
    UnansweredRegistrationsError,
    parsed_resource_name,
)
from devicecore.adapters.grpc_unix.listening import LargeMessages, Notify
from devicecore.domain.errors import (
    DeviceCoreError,
    InvalidEndpointError,
    InvalidResourceNameError,
    NoSupportedVersionError,
    PluginConnectError,
    PluginError,
    PluginStoppedError,
    UnsupportedVersionError,
)
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.model import PluginId, ResourceName
from devicecore.domain.text import foreign_text
from devicecore.runtime.background import end, supervise
from devicecore.system.list_check import MAX_DEVICES, DeviceListError, ListCheck
from devicecore.system.sockets import OwnedSocket, socket_identity
from devicecore.wire import deviceplugin
from devicecore.wire.device_lists import ListReader, count_devices

SUPPORTED_VERSIONS = (rpc.VERSION,)
STOP_GRACE = 1.0  # seconds for a Register handler to end on its own
PERSISTENT = 10.0  # if a plugin calls again within this many seconds, its missing socket is not waited for again
LOOK_INTERVAL = 1.0  # seconds between two checks of our own socket
_MANY_MISSED = 1000

_MAX_VERSIONS = 9  # how many of the versions that a plugin lists are repeated in an error

logger: logging.Logger = logging.getLogger(__name__)


@frozen
class InvalidPluginNameError(PluginError):
    """The plugin watcher found a plugin whose name is not a resource name."""

    cause: InvalidResourceNameError
    _text = "invalid name of device plugin socket: {cause}"


class RegistrationServer:
    """The kubelet's side of all plugins, including those that a plugin watcher finds.

    It is a `PluginHandler`. Only the event loop's thread uses this object, except for `find`.
    """

    type: str = rpc.DEVICE_PLUGIN_TYPE
    """The type of device plugins."""

    def __init__(
        self,
        directory: SocketDirectory,
        limits: PluginLimits,
        rate: RegistrationRate | None,
        notify: Notify[Event],
        next_generation: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._rate = rate
        self._notify = notify
        self._next_generation = next_generation
        self._clients: dict[PluginId, PluginClient] = {}
        self._newest: dict[tuple[ResourceName, str], PluginClient] = {}
        self._missed: dict[tuple[ResourceName, str], float] = {}
        """The loop time at which the wait for each missing socket ended."""
        self._pending: Counter[str] = Counter()
        """The number of registrations that are waiting for an answer from each socket."""
        self._large_lists = LargeMessages()
        self._followed: list[PluginClient] = []
        """The instances whose end the listener has not been notified of yet, oldest first."""
        self._stopping = False
        self._socket = OwnedSocket(directory.socket)
        self._server: grpc.aio.Server | None = None
        self._keeper: asyncio.Task[NoReturn] | None = None

    async def start(self) -> None:
        """Serve, and serve again if the socket is deleted. Raises DirectoryError if the socket cannot be bound."""
        await self._serve()
        self._keeper = asyncio.create_task(supervise("the registration server's socket", self._keep_socket))

    async def _serve(self) -> None:
        server = await rpc.serve({rpc.REGISTER: self._register}, self._socket, self._limits.message_bytes)
        former, self._server = self._server, server
        if former is not None:
            await former.stop(STOP_GRACE)

    async def _keep_socket(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            if self._socket.is_gone():
                try:
                    self._directory.hold()
                    await self._serve()
                except DeviceCoreError as error:
                    self._socket.warn(f"it cannot be served again yet: {error}")
                else:
                    logger.info("%s is served again", foreign_text(self._socket.path))

    async def stop(self) -> None:
        """Disconnect all plugins and stop serving, without notifying the listener. A second call does nothing."""
        self._stopping = True
        if self._keeper is not None:
            await end(self._keeper)
        tasks = [client.follower for client in self._followed if client.follower is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in tuple(self._clients.values()):  # a task that was cancelled before it started has not cleaned up
            self._forget(client)
            client.outcome.set_result(_stopping(client.plugin))
        if self._server is not None:
            self._socket.remove()
            await self._server.stop(STOP_GRACE)
            self._server = None  # gRPC ends its thread when the last server and channel are gone

    @property
    def plugins(self) -> int:
        """The number of instances that are connected or connecting. Any thread may read this."""
        return len(self._clients)

    def find(self, plugin: PluginId) -> PluginClient:
        """Return the connection to `plugin`. Any thread may call this.

        Raises PluginStoppedError if the plugin has ended.
        """
        client = self._clients.get(plugin)
        if client is None:
            raise PluginStoppedError(plugin.resource)
        return client

    async def _register(
        self,
        request: deviceplugin.RegisterRequest,
        context: grpc.aio.ServicerContext[deviceplugin.RegisterRequest, deviceplugin.Empty],
    ) -> deviceplugin.Empty:
        name = foreign_text(request.resource_name, MAX_NAME)
        try:
            await self._notify(partial(RegistrationRequested, name))
            await self._admit(request)
        except DeviceCoreError as refusal:
            endpoint = foreign_text(request.endpoint, MAX_NAME)
            text = foreign_text(str(refusal), MAX_ERROR)
            logger.warning("registration of %s at %s refused: %s", name, endpoint, text)
            await context.abort(grpc.StatusCode.UNKNOWN, text)  # a plain error from a Go handler becomes UNKNOWN
        return deviceplugin.Empty()

    async def _admit(self, request: deviceplugin.RegisterRequest) -> None:
        if request.version not in SUPPORTED_VERSIONS:
            raise UnsupportedVersionError(foreign_text(request.version, MAX_NAME), SUPPORTED_VERSIONS)
        resource = parsed_resource_name(request.resource_name)
        if self._rate is not None:
            self._rate.take(resource)
        await self.connect(resource, self._directory.endpoint(request.endpoint))

    async def connect(self, resource: ResourceName, path: str) -> PluginClient:
        """Connect to the plugin at `path`, or wait for another call that is already connecting.

        Raises DeviceCoreError if the plugin cannot be reached, or is refused.
        """
        client = self._newest.get((resource, path))
        if client is not None and client.identity in {None, socket_identity(path)}:
            # We are connected to this server, connecting to it, or waiting for it, so do not dial it again
            # (kubernetes#139765).
            client.asked_again = client.outcome.done()
        elif self._pending[path] >= MAX_PENDING:
            raise UnansweredRegistrationsError(foreign_text(path), MAX_PENDING)
        else:
            waited_at = self._missed.get((resource, path), float("-inf"))
            persistent = asyncio.get_running_loop().time() - waited_at < PERSISTENT
            client = self._begin(resource, path, 0.0 if persistent else SOCKET_PATIENCE)
        # The registration continues if this caller gives up, because other calls may wait for the registration, and it
        # has its own deadlines.
        refusal = await asyncio.shield(client.outcome)
        if refusal is not None:
            raise refusal
        return client

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:  # noqa: ARG002  # see PluginHandler
        """Check a plugin that the watcher has found (kubelet: `ValidatePlugin`).

        Raises NoSupportedVersionError or InvalidPluginNameError.
        """
        if not set(SUPPORTED_VERSIONS) & set(versions):
            offered = tuple(foreign_text(version, MAX_NAME) for version in versions[:_MAX_VERSIONS])
            raise NoSupportedVersionError(SUPPORTED_VERSIONS, offered)
        try:
            parsed_resource_name(name)
        except InvalidResourceNameError as error:
            raise InvalidPluginNameError(error) from error

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> PluginClient:  # noqa: ARG002  # as above
        """Connect to a plugin that the watcher has found (kubelet: `RegisterPlugin`).

        Raises DeviceCoreError if the plugin cannot be reached, or is refused.
        """
        if not endpoint.startswith("/") or not endpoint.isprintable() or socket_identity(endpoint) is None:
            raise InvalidEndpointError(foreign_text(endpoint, MAX_NAME), "it is not the absolute path of a socket")
        self._directory.check_endpoint(endpoint, endpoint)
        return await self.connect(parsed_resource_name(name), endpoint)

    def _begin(self, resource: ResourceName, path: str, patience: float) -> PluginClient:
        client = PluginClient(PluginId(resource, path, self._next_generation()), self._limits, patience)
        if self._stopping:
            client.outcome.set_result(_stopping(client.plugin))
            return client
        self._clients[client.plugin] = self._newest[resource, path] = client
        self._pending[path] += 1
        client.outcome.add_done_callback(lambda _: self._answered(path))
        client.follower = task = asyncio.create_task(self._run(client))
        self._followed.append(client)
        task.add_done_callback(lambda _: self._followed_to_the_end(client))
        return client

    def _followed_to_the_end(self, client: PluginClient) -> None:
        self._followed.remove(client)
        client.follower = None  # a cancelled task's traceback refers to its call, which keeps the connection open

    def _answered(self, path: str) -> None:
        self._pending[path] -= 1
        if not self._pending[path]:
            del self._pending[path]  # socket names must not fill up the memory

    async def _run(self, client: PluginClient) -> None:
        """Connect to one instance, and notify the listener of the instance, of its lists, and finally of its end."""
        plugin = client.plugin
        refusal: DeviceCoreError | None = _stopping(plugin)  # in case this task is cancelled
        try:
            refusal = await self._connect_and_notify(client)
            if refusal is None:
                client.outcome.set_result(None)
                await self._follow(client)
        finally:
            self._forget(client)
            await client.close()
            if not client.outcome.done():
                client.outcome.set_result(refusal)
        if refusal is None:
            await self._notify(partial(PluginLost, plugin))
            if client.asked_again and (plugin.resource, plugin.socket) not in self._newest:
                # The plugin may have ended its stream, then registered again, while we noticed the registration first.
                # A kubelet would have opened another stream for that registration. No time limit can distinguish the
                # two orders: on a busy machine, the end of a stream was noticed after more than a second.
                self._begin(plugin.resource, plugin.socket, patience=0.0)

    async def _connect_and_notify(self, client: PluginClient) -> DeviceCoreError | None:
        try:
            options = await client.connect()
            for predecessor in self._predecessors(client.plugin):
                # The new instance has taken over the predecessor's socket, so the predecessor can no longer be reached,
                # and the listener would refuse two instances at one socket.
                await predecessor.disconnect()
            await self._notify(partial(PluginRegistered, client.plugin, options))
        except DeviceCoreError as refusal:
            if client.identity is None and client.patience:
                if len(self._missed) >= _MANY_MISSED:
                    self._missed.clear()
                self._missed[client.plugin.resource, client.plugin.socket] = asyncio.get_running_loop().time()
            return refusal
        return None

    def _predecessors(self, plugin: PluginId) -> list[PluginClient]:
        """Return the older instances at the same socket whose end the listener has not been notified of yet."""
        return [
            client
            for client in self._followed
            if (client.plugin.resource, client.plugin.socket) == (plugin.resource, plugin.socket)
            and client.plugin.generation < plugin.generation
        ]

    async def _follow(self, client: PluginClient) -> None:
        plugin = client.plugin
        reader, check = ListReader(), ListCheck(plugin, self._limits.message_bytes)
        socket = foreign_text(plugin.socket)
        logger.info("%s registered at %s", plugin.resource, socket)
        try:
            async for message in client.reports():
                report = partial(self._notify, partial(_reported, plugin, message, reader, check))
                await self._large_lists.read(len(message), report)
            reason = "it ended its stream"
        except grpc.RpcError as error:
            reason = rpc.go_text(error)
        except DeviceCoreError as error:
            reason = str(error)
        except Exception as error:
            logger.exception("a list from %s cannot be used", plugin.resource)
            reason = repr(error)  # the plugin counts as lost, because its devices are no longer known
        logger.warning("lost %s at %s: %s", plugin.resource, socket, foreign_text(reason, MAX_ERROR))

    def _forget(self, client: PluginClient) -> None:
        plugin, client.lost = client.plugin, True
        self._clients.pop(plugin, None)
        if self._newest.get((plugin.resource, plugin.socket)) is client:
            del self._newest[plugin.resource, plugin.socket]


def _reported(plugin: PluginId, message: bytes, reader: ListReader, check: ListCheck) -> DevicesReported:
    # An empty device takes two bytes, so a message of 4 MB may contain 2,000,000 devices, each of which would become a
    # value.
    if len(message) > 2 * MAX_DEVICES and (count := count_devices(message)) > MAX_DEVICES:
        raise DeviceListError(plugin.resource, f"has {count:,} devices, expected at most {MAX_DEVICES:,}")
    devices = rpc.parse(reader.read, message)
    check.look(len(message), devices)
    return DevicesReported(plugin, devices)


def _stopping(plugin: PluginId) -> PluginConnectError:
    return PluginConnectError(plugin.resource, plugin.socket, "the kubelet is stopping")
