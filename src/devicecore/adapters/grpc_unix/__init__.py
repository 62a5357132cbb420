"""Device plugins over gRPC on unix sockets, as between kubelets and plugins: both sides of it.

Read `server` for a plugin's life as the kubelet sees it, `client` for the connection to one plugin, `transport` for the
synchronous face of the two, `watcher` for the second way in, `plugin_server` and `plugin_service` for the plugin's own
side, `directory` for the place where they meet, and `limits` for what a plugin may not do.
"""

from devicecore.adapters.grpc_unix.plugin_server import (
    KubeletUnreachableError,
    ServedPlugin,
    default_endpoint,
    run_plugin,
    serve_plugin,
)
from devicecore.adapters.grpc_unix.transport import GrpcUnixTransport

__all__ = [
    "GrpcUnixTransport",
    "KubeletUnreachableError",
    "ServedPlugin",
    "default_endpoint",
    "run_plugin",
    "serve_plugin",
]
