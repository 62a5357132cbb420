"""A kubelet's plugin watcher, which finds plugin sockets in a directory and asks each plugin for its name.

Law: a socket at which a server was reached is contacted again only after the socket is recreated or the kubelet
restarts. Sockets are never deleted.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from attrs import define, field

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.watcher import sockets_below
from devicecore.domain.text import foreign_text
from devicecore.system.sockets import SocketIdentity
from devicecore.wire import deviceplugin, pluginregistration
from devicecore_tools.conformance.connection import CallFailedError, is_reachable
from devicecore_tools.conformance.device_plugin.kubelet import BareKubelet, PluginConnection, Registration, path_problem

_POLL_INTERVAL = 0.05  # seconds
_MAX_CALLS = 8  # concurrent calls
_DIAL = 0.5  # seconds
_MAX_PROBLEMS = 20  # kept


@define
class WatchingKubelet(BareKubelet):
    """Looks for sockets in `directory` and below. A plugin that has been found counts as registered."""

    _problems: set[str] = field(factory=set)
    _seen: dict[str, SocketIdentity] = field(factory=dict)
    _watcher: threading.Thread | None = None
    _stopped: threading.Event = field(factory=threading.Event)

    is_watcher: ClassVar[bool] = True
    attempt: ClassVar[str] = "new socket"
    attempts: ClassVar[str] = "new sockets"

    @property
    def silence(self) -> str:
        """What happened while the resource under test was not found."""
        what = f"a device plugin for {self.resource}" if self.resource else "a device plugin"
        parts = [f"no socket in {self.directory} belongs to {what}"]
        parts += [f"only {', '.join(sorted(self.others))} was found"] if self.others else []
        return "; ".join([*parts, *sorted(self._problems)])

    @property
    def was_called(self) -> bool:
        """Whether a server was reached at any socket."""
        return bool(self.registrations or self.others or self._problems)

    def serve(self) -> None:
        """Start looking for plugins."""
        self._seen.clear()
        self.served_at = time.monotonic()
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, args=(self._stopped,), name="conformance-watcher")
        self._watcher.start()

    def leave(self) -> None:
        """Stop looking for plugins and close every connection. A second call does nothing."""
        self._stopped.set()
        self.hang_up()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None

    def wipe(self) -> None:
        """Do nothing: a kubelet deletes no sockets in this directory."""

    def plugin_sockets(self) -> list[Path]:
        """Return the paths of all sockets in the directory and below."""
        return [Path(path) for path, _ in sockets_below(self.directory, {}, allow_shared=True)]

    def path(self, endpoint: str) -> str:
        """Return the path of the plugin's socket."""
        return endpoint

    def endpoint_problem(self, endpoint: str) -> str:
        """Return why `endpoint` cannot be the path of a plugin's socket, or an empty string if it can."""
        if not endpoint.startswith("/"):
            return "it is neither the absolute path of a socket nor empty"
        return path_problem(endpoint)

    def _watch(self, stopped: threading.Event) -> None:
        with ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="conformance") as pool:
            while not stopped.wait(_POLL_INTERVAL):
                for path, identity in sockets_below(self.directory, {}, allow_shared=True):
                    if self._seen.get(path) != identity and is_reachable(path):
                        self._seen[path] = identity
                        pool.submit(self._ask, path)

    def _ask(self, path: str) -> None:
        connection = PluginConnection(path)
        try:
            if not connection.dial(_DIAL):
                self._seen.pop(path, None)  # the socket is tried again after the others
                return
            info = connection.call(rpc.GET_INFO, pluginregistration.InfoRequest(), self.dial_timeout)
            if info.type == rpc.DEVICE_PLUGIN_TYPE:
                self._found(connection, info)
            else:
                kind = foreign_text(info.type)
                self._note_problem(f"{path} is a socket of type {kind!r}, expected {rpc.DEVICE_PLUGIN_TYPE!r}")
        except CallFailedError as error:
            self._note_problem(f"{path}: {error}")
        finally:
            connection.close()

    def _note_problem(self, problem: str) -> None:
        if len(self._problems) < _MAX_PROBLEMS:
            self._problems.add(problem)

    def _found(self, asked: PluginConnection, info: pluginregistration.PluginInfo) -> None:
        """Register a plugin that was found, and send it the registration status."""
        request = deviceplugin.RegisterRequest(
            version=rpc.VERSION if rpc.VERSION in info.supported_versions else ", ".join(info.supported_versions),
            endpoint=info.endpoint or asked.path,
            resource_name=info.name,
        )
        registration = Registration(request, time.monotonic())
        tested = self._note(registration)
        if tested:
            self._decide(registration)
        elif not registration.problem and info.name != self.resource:
            registration.problem = self._follow(info.name)
        status = pluginregistration.RegistrationStatus(
            plugin_registered=not registration.problem, error=registration.problem
        )
        try:
            asked.call(rpc.NOTIFY_REGISTRATION_STATUS, status, self.dial_timeout)
        except CallFailedError as error:
            if not registration.problem:
                registration.stage, registration.problem = "status", str(error)
                registration.is_late = error.is_late
                if registration.connection is not None:
                    registration.connection.close()
        if registration.problem:
            self.refused_at = time.monotonic()
        registration.answered = tested and not registration.problem
