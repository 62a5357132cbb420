"""The plugin watcher, the second way in: a plugin puts its socket into a directory, and the kubelet asks who it is.

Law: what is registered is what lies in the directory. A socket that goes takes its plugin with it, and one that is made
anew is another plugin, on which its predecessor's failures are not visited (kubelet.md 2.8).
"""

import asyncio
import logging
import socket as sockets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
from attrs import define

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.client import PluginClient
from devicecore.adapters.grpc_unix.limits import LONGEST_VERSION, Limits, parsed_resource_name, said, shown
from devicecore.adapters.grpc_unix.server import SUPPORTED_VERSIONS, RegistrationServer
from devicecore.domain.errors import (
    DeviceCoreError,
    DirectoryError,
    InvalidEndpointError,
    InvalidResourceNameError,
    NoSupportedVersionError,
    PluginStoppedError,
    UnhandledPluginTypeError,
)
from devicecore.domain.model import ResourceName
from devicecore.system.sockets import MAX_SOCKET_PATH, SocketIdentity, socket_identity
from devicecore.wire import pluginregistration

INTERVAL = 1.0  # seconds between two looks at the directory
GET_INFO_TIMEOUT = 1.0  # seconds
NOTIFY_TIMEOUT = 5.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 120.0  # seconds before trying a socket again
_SHORT_LIFE = 10.0  # seconds; who is lost sooner has failed once more

logger = logging.getLogger(__name__)


@define(eq=False)
class _Candidate:
    """One socket, and what became of it."""

    path: str
    identity: SocketIdentity
    plugin: PluginClient | None = None
    since: float = 0.0
    """Loop time at which `plugin` was registered."""
    failures: int = 0
    not_before: float = 0.0
    """Loop time of the next attempt."""
    work: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return self.work is not None and not self.work.done()


class PluginWatcher:
    """Registers what it finds below `directory` with `server`. Only the event loop's thread uses it."""

    def __init__(self, directory: Path, server: RegistrationServer, limits: Limits) -> None:
        self._directory = directory
        self._server = server
        self._limits = limits
        self._candidates: dict[str, _Candidate] = {}
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Make the directory if need be, and begin to watch it.

        Raises:
            DirectoryError: it cannot be made.
        """
        try:
            with suppress(FileExistsError):
                self._directory.mkdir(0o755)
        except OSError as error:
            raise DirectoryError(str(self._directory), error.strerror or str(error)) from error
        if not self._directory.is_dir():
            raise DirectoryError(str(self._directory), "it is not a directory")
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching. Plugins are the server's to let go of. Twice is no error."""
        works = [candidate.work for candidate in self._candidates.values()]
        tasks = [task for task in (self._watching, *works) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self._changed.clear()
            found = await asyncio.to_thread(lambda: dict(sockets_below(self._directory)))
            self._reconcile(found)
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await self._changed.wait()

    def _reconcile(self, found: Mapping[str, SocketIdentity]) -> None:
        """Start what is to be done, one thing at a time for each socket: first let go, then register."""
        now = asyncio.get_running_loop().time()
        for candidate in [candidate for candidate in self._candidates.values() if not candidate.busy]:
            if found.get(candidate.path) != candidate.identity:
                candidate.work = asyncio.create_task(self._let_go(candidate))
            elif candidate.plugin is not None and self._is_lost(candidate.plugin):
                self._failed(candidate, "its stream has ended", 1 if now - candidate.since > _SHORT_LIFE else None)
        for path, identity in found.items():
            candidate = self._candidates.setdefault(path, _Candidate(path, identity))
            if candidate.plugin is None and not candidate.busy and candidate.not_before <= now:
                candidate.work = asyncio.create_task(self._register(candidate))

    def _is_lost(self, plugin: PluginClient) -> bool:
        try:
            self._server.find(plugin.plugin)
        except PluginStoppedError:
            return True
        return False

    def _failed(self, candidate: _Candidate, why: str, failures: int | None = None) -> None:
        candidate.plugin = None
        candidate.failures = failures or candidate.failures + 1
        pause = min(FIRST_PAUSE * 2 ** (candidate.failures - 1), LONGEST_PAUSE)
        candidate.not_before = asyncio.get_running_loop().time() + pause
        path = shown(candidate.path, MAX_SOCKET_PATH)
        logger.warning("the plugin at %s is not registered: %s; next attempt in %g seconds", path, said(why), pause)

    async def _let_go(self, candidate: _Candidate) -> None:
        if candidate.plugin is not None:
            logger.info("the socket %s has gone, and its plugin with it", shown(candidate.path, MAX_SOCKET_PATH))
            await self._server.disconnect(candidate.plugin)
        del self._candidates[candidate.path]
        self._changed.set()  # there may be another one at its place, which need not wait

    async def _register(self, candidate: _Candidate) -> None:
        try:
            candidate.plugin = await self._introduced(candidate.path)
        except grpc.RpcError as error:
            self._failed(candidate, rpc.go_text(error))
        except TimeoutError:
            self._failed(candidate, "context deadline exceeded")
        except (DeviceCoreError, OSError) as error:
            self._failed(candidate, str(error))
        else:
            candidate.since = asyncio.get_running_loop().time()

    async def _introduced(self, path: str) -> PluginClient:
        """Ask who is there, register it and tell it so (kubelet: `GenerateRegisterPluginFunc`)."""
        await self._knock(path)
        async with rpc.channel(path, self._limits.message_bytes) as channel:
            async with asyncio.timeout(self._limits.dial):
                await channel.channel_ready()
            info = await rpc.unary(channel, rpc.GET_INFO, pluginregistration.InfoRequest(), GET_INFO_TIMEOUT)
            try:
                plugin = await self._server.connect(*_validated(info, path))
            except DeviceCoreError as refusal:
                await _notify(channel, f"RegisterPlugin error -- {_stage(refusal)}{refusal}")
                raise
            try:
                await _notify(channel)
            except BaseException:
                await self._server.disconnect(plugin)
                raise
            return plugin

    async def _knock(self, path: str) -> None:
        """See whether anybody listens: gRPC would go on trying to reach a dead plugin's socket."""
        with sockets.socket(sockets.AF_UNIX) as probe:
            probe.setblocking(False)  # noqa: FBT003 - the standard library's way to say it
            async with asyncio.timeout(self._limits.dial):
                await asyncio.get_running_loop().sock_connect(probe, path)


async def _notify(channel: grpc.aio.Channel, error: str = "") -> None:
    """Tell a plugin that it is registered, or why not."""
    status = pluginregistration.RegistrationStatus(plugin_registered=not error, error=error)
    await rpc.unary(channel, rpc.NOTIFY_REGISTRATION_STATUS, status, NOTIFY_TIMEOUT)


def _validated(info: pluginregistration.PluginInfo, path: str) -> tuple[ResourceName, str]:
    """Which resource a plugin serves, and where (kubelet: `ValidatePlugin`).

    Raises:
        DeviceCoreError: nothing comes of it.
    """
    if info.type != rpc.DEVICE_PLUGIN_TYPE:
        raise UnhandledPluginTypeError(shown(info.type, LONGEST_VERSION), path)
    if not set(SUPPORTED_VERSIONS) & set(info.supported_versions):
        offered = tuple(shown(version, LONGEST_VERSION) for version in info.supported_versions[:9])
        raise NoSupportedVersionError(SUPPORTED_VERSIONS, offered)
    resource = parsed_resource_name(info.name)
    endpoint = info.endpoint or path
    if not endpoint.startswith("/") or not endpoint.isprintable() or socket_identity(endpoint) is None:
        raise InvalidEndpointError(shown(endpoint, MAX_SOCKET_PATH), "it is not the absolute path of a socket")
    return resource, endpoint


def _stage(refusal: DeviceCoreError) -> str:
    """Where it failed, in the kubelet's words."""
    match refusal:
        case UnhandledPluginTypeError():
            return ""
        case InvalidResourceNameError():
            return "plugin validation failed with err: invalid name of device plugin socket: "
        case NoSupportedVersionError():
            return "plugin validation failed with err: "
        case _:
            return "plugin registration failed with err: "


def sockets_below(directory: Path) -> Iterator[tuple[str, SocketIdentity]]:
    """Every socket that is not hidden, as far as it can be seen."""
    try:
        entries = [entry for entry in directory.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return  # it has just gone, or is not for us
    for entry in entries:
        if (identity := socket_identity(str(entry))) is not None:
            yield str(entry), identity
        elif entry.is_dir() and not entry.is_symlink():
            yield from sockets_below(entry)
