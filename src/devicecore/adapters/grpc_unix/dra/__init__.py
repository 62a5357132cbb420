"""DRA drivers over gRPC on unix sockets: the kubelet's side and the driver's side.

Read `transport` for the kubelet's side, `client` for the connection to one driver instance, `server` for a driver's own
side, and `calls` for the methods of the API. Drivers are found by the plugin watcher, as device plugins may be. A
program that uses only device plugins does not load this package.
"""

from devicecore.adapters.grpc_unix.dra.client import DriverLimits
from devicecore.adapters.grpc_unix.dra.server import ServedDriver, serve_driver
from devicecore.adapters.grpc_unix.dra.transport import GrpcDriverTransport

__all__ = ["DriverLimits", "GrpcDriverTransport", "ServedDriver", "serve_driver"]
