"""Device plugins over gRPC on unix sockets: the kubelet's side and the plugin's side.

Read `server` for what the kubelet does with a plugin from its registration until it is gone, `client` for the
connection to one plugin, `transport` for the blocking methods of the port, `watcher` for the second way to register,
`plugin_server` for the plugin's own side, `directory` for the directory where kubelets and plugins put their sockets,
`limits` for the limits on plugins, `loop` for the event loop that all of them share, and `rpc` for the methods of the
API. `dra` contains the same for DRA drivers. The parts that plugins and drivers share are in `listening` (start, stop
and listener of a transport) and `served` (served methods and their sockets).
"""

from devicecore.adapters.grpc_unix.limits import PluginLimits
from devicecore.adapters.grpc_unix.plugin_server import (
    ServedPlugin,
    default_directory,
    default_endpoint,
    run_plugin,
    serve_plugin,
)
from devicecore.adapters.grpc_unix.served import KubeletUnreachableError
from devicecore.adapters.grpc_unix.transport import GrpcUnixTransport

__all__ = [
    "GrpcUnixTransport",
    "KubeletUnreachableError",
    "PluginLimits",
    "ServedPlugin",
    "default_directory",
    "default_endpoint",
    "run_plugin",
    "serve_plugin",
]
