"""The other way in: a kubelet's plugin watcher finds the plugin's socket, and asks who is there.

Law: every socket is asked once, until it is made anew or the kubelet starts again; a kubelet deletes none of them.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from attrs import define, field

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.watcher import sockets_below
from devicecore.conformance.peer import CallFailedError, Peer, PluginConnection, Registration, path_problem
from devicecore.system.sockets import SocketIdentity, socket_identity
from devicecore.wire import deviceplugin, pluginregistration

_LOOK = 0.05  # seconds
_ASKED_AT_ONCE = 8


@define
class WatchingPeer(Peer):
    """Looks for sockets in `directory` and below it. A plugin that is found is one that has registered."""

    _problems: set[str] = field(factory=set)
    _seen: dict[str, SocketIdentity] = field(factory=dict)
    _watcher: threading.Thread | None = None
    _gone: threading.Event = field(factory=threading.Event)

    watches: ClassVar[bool] = True

    @property
    def silence(self) -> str:
        """What has happened as long as nobody has registered."""
        others = [f"only {', '.join(sorted(self.others))} did"] if self.others else []
        who = self.resource or "a device plugin"
        return ", ".join([f"no socket in {self.directory} told that it is {who}", *others, *sorted(self._problems)])

    def serve(self) -> None:
        """Start to look for plugins."""
        self._seen.clear()
        self._gone = threading.Event()
        self._watcher = threading.Thread(target=self._watch, args=(self._gone,), name="conformance-watcher")
        self._watcher.start()

    def leave(self) -> None:
        """Cut every connection and look no longer. Twice is no error."""
        self._gone.set()
        for registration in self.registrations:
            if registration.connection is not None:
                registration.connection.close()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None

    def wipe(self) -> None:
        """No kubelet deletes what lies here."""

    def path(self, endpoint: str) -> str:
        """Where the plugin serves."""
        return endpoint

    def endpoint_problem(self, endpoint: str) -> str:
        """Why `endpoint` cannot be the path of a plugin's socket; empty if it can."""
        if not endpoint.startswith("/"):
            return "it is neither the path of a socket, from the root, nor empty"
        return path_problem(endpoint)

    def _watch(self, gone: threading.Event) -> None:
        with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="conformance") as pool:
            while not gone.wait(_LOOK):
                for path, identity in sockets_below(self.directory, {}, allow_shared=True):
                    if self._seen.get(path) != identity:
                        self._seen[path] = identity
                        pool.submit(self._ask, path, gone)

    def _ask(self, path: str, gone: threading.Event) -> None:
        connection = PluginConnection(path, self.ring)
        try:
            while not connection.dial(0.5):
                if gone.is_set() or self._seen.get(path) != socket_identity(path):
                    return  # nobody has ever listened on it
            info = connection.call(rpc.GET_INFO, pluginregistration.InfoRequest(), self.dial_timeout)
            if info.type == rpc.DEVICE_PLUGIN_TYPE:
                self._found(connection, info)
            else:
                self._problems.add(f"{path} says that it is a {info.type!r}, not a {rpc.DEVICE_PLUGIN_TYPE!r}")
        except CallFailedError as error:
            self._problems.add(f"{path}: {error}")
        finally:
            connection.close()
            self.ring()

    def _found(self, asked: PluginConnection, info: pluginregistration.PluginInfo) -> None:
        """Take a plugin on, and tell it so."""
        request = deviceplugin.RegisterRequest(
            version=rpc.VERSION if rpc.VERSION in info.supported_versions else ", ".join(info.supported_versions),
            endpoint=info.endpoint or asked.path,
            resource_name=info.name,
        )
        registration = Registration(request, time.monotonic())
        tested = self._note(registration)
        if tested:
            registration.stage, registration.problem = self._judge(registration)
        status = pluginregistration.RegistrationStatus(
            plugin_registered=not registration.problem, error=registration.problem
        )
        try:
            asked.call(rpc.NOTIFY_REGISTRATION_STATUS, status, self.dial_timeout)
        except CallFailedError as error:
            if not registration.problem:
                registration.stage, registration.problem = "status", str(error)
                if registration.connection is not None:
                    registration.connection.close()
        registration.answered = tested and not registration.problem
