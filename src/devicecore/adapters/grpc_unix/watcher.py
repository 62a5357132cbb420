"""The plugin watcher, the second way to register: a plugin puts a socket into a directory, and the kubelet queries it.

Law: only plugins whose sockets are below the directory are registered. If a socket disappears, the plugin behind it is
disconnected. A recreated socket is a new plugin, which does not inherit the failures of the old plugin (kubelet.md
2.8).

The watcher knows the directory and the two calls of `pluginregistration.Registration`. Everything else is left to
`PluginHandler`s, one for each type of plugin: `DevicePlugin`, `DRAPlugin`. To add a type, write a handler and pass it
to `GrpcUnixTransport(handlers=[...])`. For each plugin that it finds, the watcher calls the `validate` of the handler
for the plugin's type with the name, endpoint and versions that GetInfo returned, then `register`. The watcher reports a
refusal to the plugin, and tries again after a pause. The watcher queries a `lost` plugin again, and calls `disconnect`
when the plugin's socket is gone.
"""

import asyncio
import logging
import os
import socket as sockets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

import grpc
import grpc.aio
from attrs import define

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.limits import MAX_ERROR, MAX_NAME, ConnectionLimits
from devicecore.domain.errors import DeviceCoreError, DirectoryError, UnhandledPluginTypeError
from devicecore.domain.text import foreign_text
from devicecore.runtime.background import bounded_backoff, supervise
from devicecore.system.directories import KeptDirectory, directory_problem
from devicecore.system.sockets import MAX_SOCKET_PATH, SocketIdentity, socket_identity
from devicecore.wire import pluginregistration

INTERVAL = 1.0  # seconds between two scans of the directory
GET_INFO_TIMEOUT = 1.0  # seconds
NOTIFY_TIMEOUT = 5.0  # seconds
MAX_ATTEMPTS = 64  # how many sockets to query at once; each takes a file descriptor, and many processes get only 1,024
FIRST_PAUSE, MAX_PAUSE = 0.5, 120.0  # seconds before trying a socket again
_SHORT_RUN = 10.0  # seconds; if a plugin is lost sooner after its registration, that counts as one more failure

logger: logging.Logger = logging.getLogger(__name__)


class RegisteredPlugin(Protocol):
    """A plugin that a handler has registered. The watcher calls these methods on the event loop."""

    @property
    def lost(self) -> bool:
        """Whether the plugin has ended by itself and must be queried again."""

    async def disconnect(self) -> None:
        """End the plugin's registration, because its socket is gone. The plugin may have been lost before."""


class PluginHandler(Protocol):
    """Registers plugins of one type (kubelet: `cache.PluginHandler`).

    The watcher calls the handler on the event loop.
    """

    @property
    def type(self) -> str:
        """The type that these plugins report in GetInfo, such as `DevicePlugin`."""

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Check a plugin's answer to GetInfo. If the answer has no endpoint, `endpoint` is the queried socket's path.

        Raises DeviceCoreError if the plugin cannot be registered; the watcher then notifies the plugin.
        """

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> RegisteredPlugin:
        """Connect to a plugin that was validated.

        Raises DeviceCoreError if the plugin cannot be reached or is refused; the watcher then notifies the plugin.
        """


@define(eq=False)
class _Candidate:
    """One socket, and the state of its registration."""

    path: str
    identity: SocketIdentity
    plugin: RegisteredPlugin | None = None
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
    """Registers the plugins whose sockets are below `directory`. Only the event loop's thread uses this object.

    Args:
        directory: the directory to watch; its last component is created with mode 0755 if missing.
        handlers: a handler for each type of plugin.
        limits: how long it may take to reach a plugin, and how long its messages may be.
        own_socket: the kubelet's own socket, which is never dialed.
        allow_shared: whether other users may write to the directory and its subdirectories.
    """

    def __init__(
        self,
        directory: Path,
        handlers: Iterable[PluginHandler],
        limits: ConnectionLimits,
        *,
        own_socket: str,
        allow_shared: bool = False,
    ) -> None:
        self._directory = directory
        self._kept = KeptDirectory(directory, 0o755, allow_shared=allow_shared)
        self._handlers = {handler.type: handler for handler in handlers}
        self._limits = limits
        self._own_socket = own_socket
        self._allow_shared = allow_shared
        self._candidates: dict[str, _Candidate] = {}
        self._refused: dict[str, str] = {}
        """Why each ignored directory is ignored, by path, for the log."""
        self._watching: asyncio.Task[NoReturn] | None = None
        self._changed = asyncio.Event()
        self._attempts = 0
        self._are_waiting = False

    @property
    def sockets(self) -> dict[str, bool]:
        """The plugins' sockets, and whether each socket's plugin is registered. Any thread may read this."""
        return {one.path: one.plugin is not None for one in tuple(self._candidates.values())}

    async def start(self) -> None:
        """Create the directory if it is missing, and start watching it.

        Raises DirectoryError if the directory cannot be created, or other users may write to it.
        """
        self._kept.make()
        self._watching = asyncio.create_task(supervise("the plugin watcher", self._watch))

    async def stop(self) -> None:
        """Stop watching. The handlers keep their plugins. A second call does nothing."""
        works = [candidate.work for candidate in self._candidates.values()]
        tasks = [task for task in (self._watching, *works) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._kept.close()

    async def _watch(self) -> None:
        while True:
            self._changed.clear()
            found, refused = await asyncio.to_thread(self._look)
            self._log_refused(refused)
            if str(self._directory) not in refused:  # if the directory itself is refused, the registered plugins stay
                self._reconcile(found)
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await self._changed.wait()

    def _look(self) -> tuple[dict[str, SocketIdentity], dict[str, str]]:
        refused: dict[str, str] = {}
        try:
            self._kept.look()
        except DirectoryError as error:
            return {}, {str(self._directory): error.cause}
        found = dict(sockets_below(self._directory, refused, allow_shared=self._allow_shared))
        own = socket_identity(self._own_socket)
        return {
            path: identity for path, identity in found.items() if path != self._own_socket and identity != own
        }, refused

    def _log_refused(self, refused: Mapping[str, str]) -> None:
        for path, problem in refused.items():
            if self._refused.get(path) != problem:
                logger.warning("plugins in %s are not registered: %s", foreign_text(path), problem)
        self._refused = dict(refused)

    def _reconcile(self, found: Mapping[str, SocketIdentity]) -> None:
        """Start the pending work, one task at a time for each socket: first disconnect, then register."""
        now = asyncio.get_running_loop().time()
        for candidate in [candidate for candidate in self._candidates.values() if not candidate.busy]:
            if found.get(candidate.path) != candidate.identity:
                candidate.work = asyncio.create_task(self._disconnect(candidate))
            elif candidate.plugin is not None and candidate.plugin.lost:
                self._failed(candidate, "its stream has ended", 1 if now - candidate.since > _SHORT_RUN else None)
        for path, identity in found.items():
            self._candidates.setdefault(path, _Candidate(path, identity))
        due = [
            one for one in self._candidates.values() if one.plugin is None and not one.busy and one.not_before <= now
        ]
        due.sort(key=lambda candidate: candidate.failures)  # a new socket must not wait behind silent sockets
        free = MAX_ATTEMPTS - self._attempts
        self._are_waiting = len(due) > free
        for candidate in due[:free]:
            self._attempts += 1
            candidate.work = asyncio.create_task(self._register(candidate))

    def _failed(self, candidate: _Candidate, why: str, failures: int | None = None) -> None:
        candidate.plugin = None
        candidate.failures = failures or candidate.failures + 1
        pause = bounded_backoff(candidate.failures, FIRST_PAUSE, MAX_PAUSE)
        candidate.not_before = asyncio.get_running_loop().time() + pause
        logger.warning(
            "the plugin at %s is not registered: %s; next attempt in %g s",
            foreign_text(candidate.path),
            foreign_text(why, MAX_ERROR),
            pause,
        )

    async def _disconnect(self, candidate: _Candidate) -> None:
        try:
            if candidate.plugin is not None:
                logger.info("the socket %s is gone: its plugin is disconnected", foreign_text(candidate.path))
                await candidate.plugin.disconnect()
        except Exception:
            logger.exception("disconnecting the plugin at %s failed", foreign_text(candidate.path))
        finally:
            del self._candidates[candidate.path]
            self._changed.set()  # a new socket in its place need not wait

    async def _register(self, candidate: _Candidate) -> None:
        try:
            candidate.plugin = await self._registered(candidate.path)
        except grpc.RpcError as error:
            self._failed(candidate, rpc.go_text(error))
        except TimeoutError:
            self._failed(candidate, "context deadline exceeded")
        except (DeviceCoreError, OSError) as error:
            self._failed(candidate, str(error))
        except Exception as error:
            logger.exception("registering the plugin at %s failed", foreign_text(candidate.path))
            self._failed(candidate, repr(error))
        else:
            candidate.since = asyncio.get_running_loop().time()
        finally:
            self._attempts -= 1
            # not after each attempt, because a scan takes time
            if self._are_waiting and self._attempts <= MAX_ATTEMPTS // 2:
                self._changed.set()

    async def _registered(self, path: str) -> RegisteredPlugin:
        """Ask a plugin for its name, register it, and notify it (kubelet: `GenerateRegisterPluginFunc`)."""
        await self._check_listening(path)
        async with rpc.channel(path, self._limits.message_bytes) as channel:
            async with asyncio.timeout(self._limits.dial):
                await channel.channel_ready()
            info = await rpc.unary(channel, rpc.GET_INFO, pluginregistration.InfoRequest(), GET_INFO_TIMEOUT)
            stage = ""
            try:
                handler = self._handlers.get(info.type)
                if handler is None:
                    raise UnhandledPluginTypeError(foreign_text(info.type, MAX_NAME), foreign_text(path))
                plugin_info = (info.name, info.endpoint or path, tuple(info.supported_versions))
                stage = "plugin validation failed with err: "
                handler.validate(*plugin_info)
                stage = "plugin registration failed with err: "
                plugin = await handler.register(*plugin_info)
            except DeviceCoreError as refusal:
                await _notify(channel, foreign_text(f"RegisterPlugin error -- {stage}{refusal}", MAX_ERROR))
                raise
            try:
                await _notify(channel)
            except BaseException:
                await plugin.disconnect()
                raise
            return plugin

    async def _check_listening(self, path: str) -> None:
        """Raise an error if no process listens at the socket, because gRPC would keep trying to connect."""
        with sockets.socket(sockets.AF_UNIX) as probe:
            probe.setblocking(False)  # noqa: FBT003 - the standard library's interface
            async with asyncio.timeout(self._limits.dial):
                await asyncio.get_running_loop().sock_connect(probe, path)


async def _notify(channel: grpc.aio.Channel, error: str = "") -> None:
    """Tell a plugin that it is registered, or why it is not."""
    status = pluginregistration.RegistrationStatus(plugin_registered=not error, error=error)
    await rpc.unary(channel, rpc.NOTIFY_REGISTRATION_STATUS, status, NOTIFY_TIMEOUT)


def sockets_below(
    directory: Path,
    refused: dict[str, str],
    *,
    allow_shared: bool = False,
    identify: Callable[[str], SocketIdentity | None] = socket_identity,
) -> Iterator[tuple[str, SocketIdentity]]:
    """Yield the path and identity of every socket that can be dialed.

    The sockets in a directory precede those in its subdirectories. `identify` returns the identity of the socket at a
    path, or None; by default it follows no links.

    Hidden files and directories are ignored, and so are paths that are too long for a socket. Directories that cannot
    be read or that other users may write to are also ignored, and are added to `refused` with the reason.
    """
    pending = [str(directory)]
    while pending:
        here = pending.pop()
        try:
            if problem := directory_problem(os.lstat(here), allow_shared=allow_shared):
                refused[here] = problem
                continue
            with os.scandir(here) as entries:
                visible = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            refused[here] = error.strerror or str(error)
            continue
        visible = [entry for entry in visible if len(os.fsencode(entry.path)) <= MAX_SOCKET_PATH]
        pending += [entry.path for entry in reversed(visible) if entry.is_dir(follow_symlinks=False)]
        for entry in visible:
            if (identity := identify(entry.path)) is not None:
                yield entry.path, identity
