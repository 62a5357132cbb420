"""Device plugins that the plugin watcher finds (kubelet: `ValidatePlugin` and `RegisterPlugin` of the device manager).

Law: a plugin that was found follows the same rules as one that called Register.
"""

from collections.abc import Sequence

from attrs import frozen

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.client import PluginClient
from devicecore.adapters.grpc_unix.directory import SocketDirectory
from devicecore.adapters.grpc_unix.limits import MAX_NAME, parsed_resource_name
from devicecore.adapters.grpc_unix.server import SUPPORTED_VERSIONS, RegistrationServer
from devicecore.domain.errors import (
    InvalidEndpointError,
    InvalidResourceNameError,
    NoSupportedVersionError,
    PluginError,
    PluginStoppedError,
)
from devicecore.domain.text import foreign_text
from devicecore.system.sockets import socket_identity

_MAX_VERSIONS = 9  # that are repeated in an error


@frozen
class InvalidPluginNameError(PluginError):
    """A plugin that was found has a name that is not a resource name."""

    cause: InvalidResourceNameError
    _text = "invalid name of device plugin socket: {cause}"


@frozen
class DevicePluginHandler:
    """Registers found device plugins with `server`; a `PluginHandler`."""

    server: RegistrationServer
    directory: SocketDirectory

    @property
    def type(self) -> str:
        """The type of device plugins."""
        return rpc.DEVICE_PLUGIN_TYPE

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:  # noqa: ARG002  # see PluginHandler
        """Look at versions and name. Raises NoSupportedVersionError or InvalidPluginNameError."""
        if not set(SUPPORTED_VERSIONS) & set(versions):
            offered = tuple(foreign_text(version, MAX_NAME) for version in versions[:_MAX_VERSIONS])
            raise NoSupportedVersionError(SUPPORTED_VERSIONS, offered)
        try:
            parsed_resource_name(name)
        except InvalidResourceNameError as error:
            raise InvalidPluginNameError(error) from error

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> "RegisteredDevicePlugin":  # noqa: ARG002  # see PluginHandler
        """Connect to the plugin at `endpoint`. Raises DeviceCoreError if it cannot be reached, or is refused."""
        if not endpoint.startswith("/") or not endpoint.isprintable() or socket_identity(endpoint) is None:
            raise InvalidEndpointError(foreign_text(endpoint, MAX_NAME), "it is not the absolute path of a socket")
        self.directory.check_endpoint(endpoint, endpoint)
        return RegisteredDevicePlugin(self.server, await self.server.connect(parsed_resource_name(name), endpoint))


@frozen
class RegisteredDevicePlugin:
    """A `RegisteredPlugin`."""

    server: RegistrationServer
    client: PluginClient

    @property
    def lost(self) -> bool:
        """Whether its stream has ended."""
        try:
            self.server.find(self.client.plugin)
        except PluginStoppedError:
            return True
        return False

    async def disconnect(self) -> None:
        """End its stream, and wait until the listener was notified."""
        await self.server.disconnect(self.client)
