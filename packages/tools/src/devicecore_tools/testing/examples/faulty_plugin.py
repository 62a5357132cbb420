"""A device plugin with a common bug: it assigns device nodes by position in the request instead of by id.

`python -m devicecore_tools.testing.examples.faulty_plugin DIR` runs the plugin with the bug, and `--fixed` after DIR
runs it without the bug.
"""

import sys
from collections.abc import Sequence

from devicecore.domain.container_options import ContainerAllocateResponse, DeviceSpec
from devicecore.domain.model import Device, DeviceId, ResourceName, resource_name
from devicecore.ports.plugin import DevicePlugin


class ChipPlugin(DevicePlugin):
    """Lists the chips c0, c1 and c2 with the nodes /dev/chip0, /dev/chip1 and /dev/chip2."""

    resource: ResourceName = resource_name("example.com/chip")

    def __init__(self, *, fixed: bool) -> None:
        self._fixed = fixed

    def devices(self) -> Sequence[Device]:
        """Return the chips."""
        return [Device(DeviceId(f"c{number}")) for number in range(3)]

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Return the device nodes of the requested chips or, with the bug, the device nodes of the first chips."""
        known = [device.id for device in self.devices()]
        numbers = [known.index(device) for device in devices]  # raises for an unknown chip
        if not self._fixed:
            numbers = list(range(len(devices)))
        paths = [f"/dev/chip{number}" for number in numbers]
        return ContainerAllocateResponse(devices=tuple(DeviceSpec(path, path, "rw") for path in paths))


def main() -> None:
    """Serve the plugin until SIGTERM."""
    from devicecore.adapters.grpc_unix import run_plugin

    run_plugin(ChipPlugin(fixed="--fixed" in sys.argv), sys.argv[1])


if __name__ == "__main__":
    main()
