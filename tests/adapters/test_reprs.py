"""The `repr` of adapters and plugins is one short line with counts."""

from pathlib import Path

from devicecore.adapters.file import FileStore, JsonFileSink
from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin
from devicecore.adapters.memory import MemoryTransport
from devicecore.adapters.pod_resources import PodResourcesServer, Snapshot
from devicecore.domain.model import Health
from devicecore.domain.node_state import NodeState
from devicecore.plugins.directory import DirectoryPlugin
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from tests.adapters.peers import PATIENCE, Recorder


def test_transports_and_servers_show_where_they_are_and_what_they_do(directory: Path, recorder: Recorder) -> None:
    plugin = SimulatedPlugin("acme.io/gpu", simulated_devices("gpu", 5000))
    plugin.set_health("gpu-7", Health.UNHEALTHY)
    assert repr(plugin) == "SimulatedPlugin('acme.io/gpu', 5000 devices, 1 unhealthy)"
    transport = GrpcUnixTransport(directory)
    assert repr(transport) == f"GrpcUnixTransport('{directory}', stopped)"
    transport.start(recorder)
    with serve_plugin(plugin, directory, endpoint="p.sock") as served:
        served.wait_registered(PATIENCE)
        assert repr(served) == f"ServedPlugin('acme.io/gpu', '{directory}/p.sock', registered)"
        assert repr(transport) == f"GrpcUnixTransport('{directory}', 1 plugin)"
    assert repr(served) == f"ServedPlugin('acme.io/gpu', '{directory}/p.sock', stopped)"
    transport.stop()
    with PodResourcesServer(directory / "pr" / "kubelet.sock", lambda: Snapshot(NodeState(), ())) as server:
        assert repr(server) == f"PodResourcesServer('{directory}/pr/kubelet.sock', running)"
    assert repr(server).endswith("stopped)")


def test_stores_sinks_and_plugins_in_memory_show_their_place(recorder: Recorder) -> None:
    assert repr(FileStore("/a/b")) == "FileStore('/a/b')"
    assert repr(JsonFileSink("/a/b")) == "JsonFileSink('/a/b')"
    assert repr(DirectoryPlugin("acme.io/gpu", "/a")) == "DirectoryPlugin('acme.io/gpu', '/a')"
    transport = MemoryTransport()
    assert repr(transport) == "MemoryTransport(stopped)"
    transport.start(recorder)
    transport.connect(SimulatedPlugin("acme.io/gpu"))
    assert repr(transport) == "MemoryTransport(1 plugin)"
    transport.stop()
