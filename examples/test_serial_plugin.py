"""A device plugin for serial ports: every file like `/dev/ttyUSB0` is a device. On a node, `run_plugin` serves it."""

from collections.abc import Sequence
from pathlib import Path

from devicecore_tools.testing.kubelet import MemoryKubelet

from devicecore import ContainerAllocateResponse, DeviceId
from devicecore.plugins.directory import DirectoryPlugin
from devicecore.plugins.responses import device_nodes

SERIAL = "example.com/serial"


def serial_plugin(directory: Path) -> DirectoryPlugin:
    """Return the plugin. A container sees its ports in /dev, where programs expect them."""

    def answer(devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return device_nodes(devices, str(directory), "/dev")

    return DirectoryPlugin(SERIAL, directory, answer)


def test_a_container_gets_the_node_of_its_port(tmp_path: Path) -> None:
    (tmp_path / "ttyUSB0").touch()
    with MemoryKubelet() as kubelet:
        kubelet.serve(serial_plugin(tmp_path))
        pod = kubelet.admit({SERIAL: 1})
        (node,) = pod.device_nodes
    assert (node.host_path, node.container_path) == (f"{tmp_path}/ttyUSB0", "/dev/ttyUSB0")
