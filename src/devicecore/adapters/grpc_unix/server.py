"""The registration service, and everybody who has registered.

Law: one instance's whole life is one task, so its events come in order, one at a time; and no instance's end touches
another instance, be it of the same resource or on the same path.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

import grpc
import grpc.aio

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.client import SOCKET_TO_COME, PluginClient
from devicecore.adapters.grpc_unix.directory import SocketDirectory
from devicecore.adapters.grpc_unix.limits import (
    LONGEST_RESOURCE_NAME,
    LONGEST_VERSION,
    Limits,
    ListCheck,
    RegistrationRate,
    parsed_resource_name,
    said,
    shown,
)
from devicecore.domain.errors import (
    DeviceCoreError,
    PluginConnectError,
    PluginStoppedError,
    UnsupportedVersionError,
)
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.model import PluginId, ResourceName
from devicecore.domain.text import foreign_text
from devicecore.system.background import supervise
from devicecore.system.sockets import MAX_SOCKET_PATH, OwnedSocket, SocketState, socket_identity
from devicecore.wire import deviceplugin
from devicecore.wire.device_lists import ListReader

SUPPORTED_VERSIONS = (rpc.VERSION,)
STOP_GRACE = 1.0  # seconds for a Register handler to end by itself
SAME_MOMENT = 1.0  # seconds
PERSISTENT = 10.0  # seconds; who calls again within them for a socket that did not come is not waited for once more
LOOK_INTERVAL = 1.0  # seconds between two looks at our own socket
_MANY_MISSED = 1000

Tell = Callable[[Callable[[], Event]], Awaitable[None]]
"""Build an event and tell the listener, both where they may take their time. Only `PluginRegistered` can be refused."""

logger = logging.getLogger(__name__)


class RegistrationServer:
    """The kubelet's end of all plugins. Only the event loop's thread uses it, except for `find`."""

    def __init__(
        self,
        directory: SocketDirectory,
        limits: Limits,
        rate: RegistrationRate | None,
        tell: Tell,
        next_generation: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._rate = rate
        self._tell = tell
        self._next_generation = next_generation
        self._clients: dict[PluginId, PluginClient] = {}
        self._newest: dict[tuple[ResourceName, str], PluginClient] = {}
        self._missed: dict[tuple[ResourceName, str], float] = {}
        """Loop time at which a socket was waited for in vain."""
        self._attendance: dict[PluginClient, asyncio.Task[None]] = {}
        """By instance, oldest first: the task that ends when its life is over and told of."""
        self._stopping = False
        self._socket = OwnedSocket(directory.socket)
        self._server: grpc.aio.Server | None = None
        self._keeper: asyncio.Task[NoReturn] | None = None

    async def start(self) -> None:
        """Serve, and serve again if the socket is deleted.

        Raises:
            DirectoryError: the socket cannot be bound.
        """
        await self._serve()
        self._keeper = asyncio.create_task(supervise("the registration server's socket", self._keep_socket))

    async def _serve(self) -> None:
        server = await rpc.serve({rpc.REGISTER: self._register}, self._socket, self._limits.message_bytes)
        former, self._server = self._server, server
        if former is not None:
            await former.stop(STOP_GRACE)

    async def _keep_socket(self) -> None:
        """Serve again after two looks without the socket; it is away for a moment while a kubelet takes over."""
        looks_without = 0
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            looks_without = looks_without + 1 if self._socket.look() is SocketState.MISSING else 0
            if looks_without > 1:
                try:
                    self._directory.hold()
                    await self._serve()
                except DeviceCoreError as error:
                    self._socket.warn(f"it cannot be served again yet: {error}")
                else:
                    logger.info("%s is served again", foreign_text(self._socket.path))

    async def stop(self) -> None:
        """Let go of all plugins and stop serving, without a word to the listener. Twice is no error."""
        self._stopping = True
        tasks = (*self._attendance.values(), *([self._keeper] if self._keeper is not None else ()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in tuple(self._clients.values()):  # a task that was cancelled before it began did nothing at all
            self._forget(client)
            client.introduced.set_result(_stopping(client.plugin))
        if self._server is not None:
            self._socket.remove()
            await self._server.stop(STOP_GRACE)

    def find(self, plugin: PluginId) -> PluginClient:
        """Find the connection to `plugin`; any thread may ask.

        Raises:
            PluginStoppedError: it has ended.
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
        name = shown(request.resource_name, LONGEST_RESOURCE_NAME)
        try:
            await self._tell(partial(RegistrationRequested, name))
            await self._admit(request)
        except DeviceCoreError as refusal:
            endpoint = shown(request.endpoint, MAX_SOCKET_PATH)
            text = said(str(refusal))
            logger.warning("registration of %s at %s refused: %s", name, endpoint, text)
            await context.abort(grpc.StatusCode.UNKNOWN, text)  # a plain error of a Go handler is UNKNOWN
        return deviceplugin.Empty()

    async def _admit(self, request: deviceplugin.RegisterRequest) -> None:
        if request.version not in SUPPORTED_VERSIONS:
            raise UnsupportedVersionError(shown(request.version, LONGEST_VERSION), SUPPORTED_VERSIONS)
        resource = parsed_resource_name(request.resource_name)
        if self._rate is not None:
            self._rate.take(resource)
        await self.connect(resource, self._directory.endpoint(request.endpoint))

    async def connect(self, resource: ResourceName, path: str) -> PluginClient:
        """Take on the plugin at `path`, or wait with who has already begun to.

        Raises:
            DeviceCoreError: it cannot be reached, or is refused.
        """
        client = self._newest.get((resource, path))
        if client is not None and client.identity in {None, socket_identity(path)}:
            # The very server we talk to, or are about to, or wait for: nothing to dial (kubernetes #139765).
            client.asked_again_at = asyncio.get_running_loop().time()
        else:
            waited_at = self._missed.get((resource, path), float("-inf"))
            persistent = asyncio.get_running_loop().time() - waited_at < PERSISTENT
            client = self._begin(resource, path, 0.0 if persistent else SOCKET_TO_COME)
        # The introduction goes on when this caller gives up: others may wait for it, and it has limits of its own.
        refusal = await asyncio.shield(client.introduced)
        if refusal is not None:
            raise refusal
        return client

    async def disconnect(self, client: PluginClient) -> None:
        """Let go of a plugin, as if it had ended its stream, and wait until the listener has been told."""
        client.asked_again_at = float("-inf")
        client.hang_up()
        if client in self._attendance:
            await asyncio.wait([self._attendance[client]])

    def _begin(self, resource: ResourceName, path: str, patience: float) -> PluginClient:
        client = PluginClient(PluginId(resource, path, self._next_generation()), self._limits, patience)
        if self._stopping:
            client.introduced.set_result(_stopping(client.plugin))
            return client
        self._clients[client.plugin] = self._newest[resource, path] = client
        self._attendance[client] = task = asyncio.create_task(self._attend(client))
        task.add_done_callback(lambda _: self._attendance.pop(client))
        return client

    async def _attend(self, client: PluginClient) -> None:
        """Dial, announce, report, mourn: one instance from beginning to end."""
        plugin = client.plugin
        refusal: DeviceCoreError | None = _stopping(plugin)  # unless it comes to anything else
        try:
            refusal = await self._introduce(client)
            if refusal is None:
                client.introduced.set_result(None)
                await self._follow(client)
        finally:
            self._forget(client)
            await client.close()
            if not client.introduced.done():
                client.introduced.set_result(refusal)
        if refusal is None:
            await self._tell(partial(PluginLost, plugin))
            asked_again = asyncio.get_running_loop().time() - client.asked_again_at < SAME_MOMENT
            if asked_again and (plugin.resource, plugin.socket) not in self._newest:
                # It ended its stream and registered again, and we saw it in the other order.
                self._begin(plugin.resource, plugin.socket, patience=0.0)

    async def _introduce(self, client: PluginClient) -> DeviceCoreError | None:
        try:
            options = await client.connect()
            for predecessor in self._predecessors(client.plugin):
                # Its socket was taken over: nobody can reach it any more, and two at one socket would be refused.
                await self.disconnect(predecessor)
            await self._tell(partial(PluginRegistered, client.plugin, options))
        except DeviceCoreError as refusal:
            if client.identity is None and client.patience:
                if len(self._missed) >= _MANY_MISSED:
                    self._missed.clear()
                self._missed[client.plugin.resource, client.plugin.socket] = asyncio.get_running_loop().time()
            return refusal
        return None

    def _predecessors(self, plugin: PluginId) -> list[PluginClient]:
        """The older instances at the same socket that are not yet mourned."""
        return [
            client
            for client in self._attendance
            if (client.plugin.resource, client.plugin.socket) == (plugin.resource, plugin.socket)
            and client.plugin.generation < plugin.generation
        ]

    async def _follow(self, client: PluginClient) -> None:
        plugin = client.plugin
        reader, check = ListReader(), ListCheck(plugin, self._limits.message_bytes)
        socket = shown(plugin.socket, MAX_SOCKET_PATH)
        logger.info("%s registered at %s", plugin.resource, socket)
        try:
            async for message in client.reports():
                await self._tell(partial(_reported, plugin, message, reader, check))
            reason = "it ended its stream"
        except grpc.RpcError as error:
            reason = rpc.go_text(error)
        except Exception as error:
            logger.exception("a list of %s cannot be worked with", plugin.resource)
            reason = repr(error)  # whatever it is, nobody must believe in a plugin that is no longer heard
        logger.warning("%s at %s lost: %s", plugin.resource, socket, said(reason))

    def _forget(self, client: PluginClient) -> None:
        plugin = client.plugin
        self._clients.pop(plugin, None)
        if self._newest.get((plugin.resource, plugin.socket)) is client:
            del self._newest[plugin.resource, plugin.socket]


def _reported(plugin: PluginId, message: bytes, reader: ListReader, check: ListCheck) -> DevicesReported:
    devices = rpc.parse(reader.read, message)
    check.look(len(message), devices)
    return DevicesReported(plugin, devices)


def _stopping(plugin: PluginId) -> PluginConnectError:
    return PluginConnectError(plugin.resource, plugin.socket, "the kubelet is stopping")
