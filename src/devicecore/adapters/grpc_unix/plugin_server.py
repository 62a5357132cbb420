"""The plugin's side: offer a `DevicePlugin` to a kubelet, and come back whenever the kubelet does.

Law: serve first, then register; a kubelet that restarts or cleans its directory finds the plugin again by itself.
"""

import asyncio
import hashlib
import logging
import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from attrs import evolve, frozen

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.directory import check_endpoint_name
from devicecore.adapters.grpc_unix.loop import LoopStoppedError, LoopThread
from devicecore.adapters.grpc_unix.plugin_service import Context, PluginService
from devicecore.domain.errors import DirectoryError, SetUpError
from devicecore.domain.model import ResourceName
from devicecore.domain.text import foreign_text
from devicecore.ports.plugin import DevicePlugin
from devicecore.system.sockets import OwnedSocket, SocketIdentity, SocketState, check_socket_path, socket_identity
from devicecore.wire import deviceplugin, pluginregistration
from devicecore.wire.conversion import from_options

KUBELET_DIRECTORY = "/var/lib/kubelet/device-plugins"
REGISTER_TIMEOUT = 15.0  # seconds; a kubelet may take 10 to dial back
LONGEST_BACKOFF = 16  # times the poll interval
MAX_LIST_BYTES = 4 * 1024 * 1024
"""The longest list of devices that a kubelet reads: gRPC's default for a message."""

STOP_GRACE = 1.0  # seconds for calls in flight

_MISSING = "there is no such directory: a kubelet makes it"

logger: logging.Logger = logging.getLogger(__name__)


@frozen
class KubeletUnreachableError(SetUpError):
    """A plugin cannot register, for nobody answers on the kubelet's socket."""

    socket: str
    cause: str

    def __str__(self) -> str:
        return f"cannot register with the kubelet at {self.socket!r}: {self.cause}"


def default_endpoint(resource: ResourceName) -> str:
    """Name a socket for `resource`: readable, short, the same after a restart, another for every resource."""
    readable = re.sub(r"[^-A-Za-z0-9_]", "-", resource.rpartition("/")[2])[:20]
    return f"{readable}-{hashlib.sha256(resource.encode()).hexdigest()[:8]}.sock"


def serve_plugin(
    plugin: DevicePlugin,
    directory: str | os.PathLike[str] = KUBELET_DIRECTORY,
    *,
    registry: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    kubelet_socket: str = "kubelet.sock",
    poll_interval: float = 1.0,
    max_message_bytes: int = 4 * 1024 * 1024,
    wait_for_directory: bool = False,
) -> "ServedPlugin":
    """Serve `plugin` on the socket `endpoint` in `directory`, and keep it registered there, until stopped.

    It registers again when the kubelet has restarted or dropped it, or when its own socket was deleted; it looks every
    `poll_interval` seconds. While no kubelet takes it, it keeps trying, and logs.

    With `registry`, usually `/var/lib/kubelet/plugins_registry`, the socket is made there instead, for the kubelet's
    plugin watcher: the kubelet finds the plugin, asks who it is, and says whether it took it. `directory` and
    `kubelet_socket` do not matter then.

    With `wait_for_directory`, a directory that does not exist yet is waited for, as a plugin has to that starts before
    the kubelet.

    Raises:
        InvalidEndpointError: `endpoint` is not the bare name of a file, or is the kubelet's socket.
        SocketPathTooLongError: `directory` and `endpoint` make too long a path.
        DirectoryError: `directory` is none, or no socket can be made in it.
    """
    path = Path(directory if registry is None else registry).absolute()
    name = default_endpoint(plugin.resource) if endpoint is None else endpoint
    check_endpoint_name(name, kubelet_socket if registry is None else None)
    served = ServedPlugin(
        plugin,
        str(path / name),
        str(path / kubelet_socket) if registry is None else None,
        poll_interval,
        max_message_bytes,
        wait_for_directory=wait_for_directory,
    )
    served.start()
    return served


def run_plugin(
    plugin: DevicePlugin,
    directory: str | os.PathLike[str] = KUBELET_DIRECTORY,
    *,
    registry: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
) -> signal.Signals:
    """Serve `plugin` as a program of its own does: until SIGTERM or SIGINT comes; which. See `serve_plugin`.

    Only the main thread can call this. If the directory does not exist yet, this waits for it, and says so in the log.

    Raises:
        InvalidEndpointError: `endpoint` is not the bare name of a file, or is the kubelet's socket.
        SocketPathTooLongError: `directory` and `endpoint` make too long a path.
        DirectoryError: `directory` is a file, or no socket can be made in it.
    """
    came: list[int] = []
    ended = threading.Event()

    def end(number: int, _: object) -> None:
        came.append(number)
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with serve_plugin(plugin, directory, registry=registry, endpoint=endpoint, wait_for_directory=True):
            while not ended.wait(1):
                pass  # a signal may have come to another thread, which cannot wake us
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return signal.Signals(came[0])


@frozen
class _Taken:
    """Some kubelet has accepted the plugin: the one whose socket that is, or one that watches, which has none.

    `in_doubt`: a stream ended while we registered: the last kubelet's, or already this one's.
    """

    by: SocketIdentity | None
    in_doubt: bool


@frozen
class _Refused:
    """The kubelet whose socket that is does not want the plugin, and is not to be asked again before `retry_at`."""

    by: SocketIdentity
    retry_at: float


class _Other(Enum):
    """What else a plugin can be to kubelets."""

    NEW = "no kubelet has said anything of the socket"
    LOST = "no stream is left"


_Standing = _Taken | _Refused | _Other


class ServedPlugin:
    """A plugin being served: a context manager that stops it at its end. `serve_plugin` makes and starts it.

    `kubelet_socket` is where it registers; None if a kubelet's plugin watcher is to find it.
    """

    def __init__(
        self,
        plugin: DevicePlugin,
        socket: str,
        kubelet_socket: str | None,
        poll_interval: float,
        max_message_bytes: int,
        *,
        wait_for_directory: bool = False,
    ) -> None:
        self.plugin = plugin
        self.socket = socket
        self.kubelet_socket = kubelet_socket
        self._poll_interval = poll_interval
        self._max_message_bytes = max_message_bytes
        self._wait_for_directory = wait_for_directory
        self._socket = OwnedSocket(socket)
        self._loop: LoopThread | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        # What follows belongs to the event loop.
        self._service: PluginService | None = None
        self._server: grpc.aio.Server | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._standing: _Standing = _Other.NEW
        self._backoff = 0.0
        self._hold_until = 0.0  # before, there is no use in offering the plugin again
        self._drops = 0
        self._problem = "not tried yet"
        self._attempted = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to serve, and to look for the kubelet. Twice is no error.

        Raises:
            SocketPathTooLongError: one of the two sockets has too long a path.
            DirectoryError: no socket can be made there.
        """
        if self._loop is not None:
            return
        check_socket_path(self.socket)
        if self.kubelet_socket is not None:
            check_socket_path(self.kubelet_socket)
        self._loop = loop = LoopThread.acquire(self._close)
        try:
            loop.run(self._open())
            self._unsubscribe = self.plugin.subscribe(lambda: loop.call_soon(self._changed))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all streams, stop serving and remove the socket. Twice is no error."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        unsubscribe, self._unsubscribe = self._unsubscribe, lambda: None
        try:
            unsubscribe()
        finally:
            with suppress(LoopStoppedError):  # the program is ending, and the loop has seen to it
                loop.run(self._close())
            loop.release(self._close)

    @property
    def registered(self) -> bool:
        """Whether the kubelet that is there now has accepted the plugin and can find its socket."""
        standing = self._standing
        if not isinstance(standing, _Taken) or self._socket.state() is not SocketState.OURS:
            return False
        return self.kubelet_socket is None or standing.by == socket_identity(self.kubelet_socket)

    def wait_registered(self, timeout: float | None = None) -> None:
        """Wait until the plugin is `registered`.

        Raises:
            KubeletUnreachableError: it is not after `timeout` seconds, for the reason the last attempt gave.
        """
        with self._attempted:
            if not self._attempted.wait_for(lambda: self.registered, timeout):
                raise KubeletUnreachableError(
                    self.kubelet_socket or self.socket, self._problem or "it has gone a moment ago"
                )

    async def _open(self) -> None:
        try:
            await self._serve()
        except DirectoryError as error:
            if not self._wait_for_directory or error.cause != _MISSING:
                raise
            self._tried(str(error))
        self._keeper = asyncio.create_task(self._keep_registered())

    async def _close(self) -> None:
        while self._keeper is not None and not self._keeper.done():
            # Again, if need be: until Python 3.12 the `wait_for` in a grpc server's stop may swallow a cancellation.
            self._keeper.cancel()
            await asyncio.wait([self._keeper], timeout=0.1)
        self._problem = "the plugin has been stopped"
        self._socket.remove()
        await self._end_service()

    async def _serve(self) -> None:
        assert self._loop is not None, "this runs on it"  # noqa: S101  # for mypy
        _check_directory(self.socket)
        service = PluginService(self.plugin, self._loop, self._dropped)
        methods = {**service.methods(), **(self._for_the_watcher() if self.kubelet_socket is None else {})}
        server = await rpc.serve(methods, self._socket, self._max_message_bytes)
        await self._end_service()  # only now: if the new one cannot be bound, the old one goes on
        self._service, self._server = service, server
        self._standing = _Other.NEW

    async def _end_service(self) -> None:
        if self._service is not None:
            self._service.end()  # streams that end by themselves leave no traceback in grpc's log
        if self._server is not None:
            await self._server.stop(STOP_GRACE)
            self._server = None

    def _changed(self) -> None:
        if self._service is not None:
            self._service.changed()

    def _dropped(self) -> None:
        """No stream is left: the kubelet has gone, or thinks that we have."""
        self._drops += 1
        if not isinstance(self._standing, _Refused):  # that was the last kubelet; this one does not want us yet
            self._standing = _Other.LOST
        if self._is_list_too_long:
            self._back_off()
            self._hold_until = self._now() + self._backoff
            self._tried(
                f"the list of devices has {self._list_bytes} bytes, and a kubelet drops a plugin whose list has more "
                f"than {MAX_LIST_BYTES}: offer fewer devices or shorter ids"
            )

    @property
    def _list_bytes(self) -> int:
        return self._service.list_bytes if self._service is not None else 0

    @property
    def _is_list_too_long(self) -> bool:
        return self._list_bytes > MAX_LIST_BYTES

    def _back_off(self) -> None:
        self._backoff = min(max(2 * self._backoff, self._poll_interval), LONGEST_BACKOFF * self._poll_interval)

    async def _keep_registered(self) -> None:
        while True:
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001  # whatever it is, it may be over the next time
                self._tried(str(error))
            await asyncio.sleep(self._poll_interval)

    async def _look(self) -> None:
        """Look at both sockets, and do what they call for; the only place that decides it."""
        if self._now() < self._hold_until:
            return
        if self._server is None:  # the directory was not there at the start
            await self._serve()
        state = self._socket.look()
        if state is SocketState.MISSING:
            await self._serve()
            logger.info("%s is served again", foreign_text(self.socket))
        elif state is SocketState.FOREIGN:
            self._tried(f"another process has taken {self.socket}")
            return
        if isinstance(self._standing, _Taken) and self._standing.in_doubt:
            self._standing = evolve(self._standing, in_doubt=False)
            if self._service is not None and not self._service.streaming:
                self._dropped()
        if self.kubelet_socket is None:
            await self._look_for_watcher()
        else:
            await self._look_for_kubelet(self.kubelet_socket)

    async def _look_for_watcher(self) -> None:
        if self._standing is _Other.LOST:
            logger.info("%s has been dropped: serving it anew, because a kubelet asks no socket twice", self.socket)
            await self._serve()
        if not self.registered and not self._problem:
            self._tried("no kubelet has asked yet")

    async def _look_for_kubelet(self, socket: str) -> None:
        kubelet = socket_identity(socket)
        if kubelet is None:
            self._tried("there is no such socket")
        elif not self.registered and not self._is_to_wait_for(kubelet):
            await self._register(socket, kubelet)

    def _is_to_wait_for(self, kubelet: SocketIdentity) -> bool:
        standing = self._standing
        return isinstance(standing, _Refused) and standing.by == kubelet and self._now() < standing.retry_at

    async def _register(self, socket: str, kubelet: SocketIdentity) -> None:
        request = deviceplugin.RegisterRequest(
            version=rpc.VERSION,
            endpoint=Path(self.socket).name,
            resource_name=self.plugin.resource,
            options=from_options(self.plugin.options),
        )
        drops = self._drops
        async with rpc.channel(socket, self._max_message_bytes) as channel:
            try:
                await rpc.unary(channel, rpc.REGISTER, request, REGISTER_TIMEOUT)
            except grpc.RpcError as error:
                self._back_off()
                self._standing = _Refused(kubelet, self._now() + self._backoff)
                self._tried(rpc.go_text(error))
                return
        self._standing = _Taken(kubelet, in_doubt=drops != self._drops)
        if not self._is_list_too_long:  # else the kubelet is about to drop us again
            self._backoff = 0.0
        self._tried("")

    def _for_the_watcher(self) -> dict[rpc.Method[Any, Any], rpc.Behaviour]:
        """The two methods of the plugin watcher's API: who we are, and what became of it."""
        drops = self._drops

        async def get_info(_: pluginregistration.InfoRequest, __: Context) -> pluginregistration.PluginInfo:
            nonlocal drops
            drops = self._drops
            return pluginregistration.PluginInfo(
                type=rpc.DEVICE_PLUGIN_TYPE,
                name=self.plugin.resource,
                endpoint=self.socket,
                supported_versions=[rpc.VERSION],
            )

        async def notify(
            status: pluginregistration.RegistrationStatus, _: Context
        ) -> pluginregistration.RegistrationStatusResponse:
            if status.plugin_registered:
                self._standing = _Taken(None, in_doubt=drops != self._drops)
            elif self._standing is not _Other.LOST:
                self._standing = _Other.NEW
            self._tried("" if status.plugin_registered else status.error or "the kubelet refuses, and does not say why")
            return pluginregistration.RegistrationStatusResponse()

        return {rpc.GET_INFO: get_info, rpc.NOTIFY_REGISTRATION_STATUS: notify}

    def _tried(self, problem: str) -> None:
        where = self.kubelet_socket or f"a kubelet that watches {Path(self.socket).parent}"
        if not problem:
            logger.info("%s registered with %s", self.plugin.resource, where)
        elif problem != self._problem:  # once, not every second
            logger.warning("%s cannot register with %s: %s", self.plugin.resource, where, problem)
        with self._attempted:
            self._problem = problem
            self._attempted.notify_all()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _check_directory(socket: str) -> None:
    directory = Path(socket).parent
    if not directory.is_dir():
        cause = "it is not a directory" if directory.exists() else _MISSING
        raise DirectoryError(str(directory), cause)
