"""A plugin with simulated devices.

Law: the plugin refuses to allocate devices that it does not have. One environment variable lists the devices that it
allocates to a container.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence

from attrs import evolve

from devicecore.domain.checks import checked, expected, repeated, tuple_of
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import DeviceNotFoundError
from devicecore.domain.model import Device, DeviceId, Health, NumaNode, ResourceName, resource_name
from devicecore.plugins.responses import environment_list, refuse_unknown
from devicecore.ports.plugin import DevicePlugin
from devicecore.system.arguments import checks_arguments

__all__ = ["SimulatedPlugin", "simulated_devices"]

RESOURCE_VARIABLE = "resourcename"
"""The environment variable that names the resource if the caller does not name one."""


class SimulatedPlugin(DevicePlugin):
    """A `DevicePlugin` whose devices are set through its methods.

    Args:
        resource: the extended resource name, by default the value of the environment variable `resourcename`.
        devices: the initial devices. `simulated_devices` can create devices. By default, there are ten devices, with
            the names that the command `devicecore plugin simulated` uses: `gpu-0` and so on for example.com/gpu.
        variable: the environment variable that lists a container's devices, separated by commas; by default
            `variable_of(resource)`.

    Raises:
        InvalidResourceNameError: a kubelet would not accept the name, or no name is given.
        TypeError: an element of `devices` is not a device.
        ValueError: two devices have the same id.
    """

    @checks_arguments("resource", "devices")
    def __init__(
        self, resource: str | None = None, devices: Iterable[Device] | None = None, variable: str | None = None
    ) -> None:
        self.resource: ResourceName = resource_name(
            os.environ.get(RESOURCE_VARIABLE, "") if resource is None else resource
        )
        self.variable: str = variable or variable_of(self.resource)
        listed = simulated_devices(self.resource.rpartition("/")[2], 10) if devices is None else devices
        self._devices = _by_id(listed)
        self._subscribers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        devices = tuple(self._devices.values())
        unhealthy = sum(device.health is Health.UNHEALTHY for device in devices)
        counts = f"{len(devices)} device{'s' * (len(devices) != 1)}, {unhealthy} unhealthy"
        return f"SimulatedPlugin({self.resource!r}, {counts})"

    def devices(self) -> Sequence[Device]:
        """Return the devices as they were last set."""
        return tuple(self._devices.values())

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Return an answer that lists `devices` in the environment variable.

        Raises:
            DeviceRefusedError: one of `devices` is not among the plugin's devices.
        """
        refuse_unknown(self.resource, devices, self._devices)
        return environment_list(devices, self.variable)

    @checks_arguments()
    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after every change to the list."""
        with self._lock:
            self._subscribers.append(changed)

        def unsubscribe() -> None:
            with self._lock:
                if changed in self._subscribers:
                    self._subscribers.remove(changed)

        return unsubscribe

    def set_devices(self, devices: Iterable[Device]) -> None:
        """Replace the devices.

        Raises:
            TypeError: an element of `devices` is not a device.
            ValueError: two devices have the same id.
        """
        listed = _by_id(devices)
        self._change(lambda _: listed)

    @checks_arguments("health")
    def set_health(self, device: str, health: Health) -> None:
        """Change one device's health.

        Raises:
            DeviceNotFoundError: the plugin has no such device. This error is also a KeyError.
            TypeError: `health` is not a Health but, for example, a misspelled string.
        """
        id_ = DeviceId(device)
        if id_ not in self._devices:
            raise DeviceNotFoundError(self.resource, device, tuple(self._devices))
        checked(health, Health, "SimulatedPlugin.set_health")
        self._change(lambda devices: {**devices, id_: evolve(devices[id_], health=health)})

    def _change(self, change: Callable[[dict[DeviceId, Device]], dict[DeviceId, Device]]) -> None:
        with self._lock:
            self._devices = change(self._devices)
            subscribers = tuple(self._subscribers)
        for changed in subscribers:
            changed()


def _by_id(devices: Iterable[Device]) -> dict[DeviceId, Device]:
    listed = tuple_of(devices, Device, "SimulatedPlugin.devices")
    if (twice := repeated(device.id for device in listed)) is not None:
        raise ValueError(expected("SimulatedPlugin.devices", "different ids", twice) + " twice")
    return {device.id: device for device in listed}


def variable_of(resource: ResourceName) -> str:
    """Return the environment variable that lists devices of `resource`: EXAMPLE_COM_GPU_DEVICES for example.com/gpu.

    The name is valid in a shell: it contains only letters, digits and underscores, and does not start with a digit.
    """
    name = re.sub("[^A-Z0-9]", "_", resource.upper())
    return f"{'_' * name[0].isdigit()}{name}_DEVICES"


def simulated_devices(
    prefix: str, count: int, *, numa_nodes: Sequence[int] = (), unhealthy: Iterable[int] = ()
) -> tuple[Device, ...]:
    """Return `count` devices `prefix-0`, `prefix-1`, and so on.

    Args:
        prefix: the first part of the device ids.
        count: the number of devices.
        numa_nodes: the NUMA nodes to which the devices are attached in turn. Without NUMA nodes, the devices have no
            topology.
        unhealthy: the numbers of the devices that are unhealthy.

    Raises:
        TypeError: `prefix` is not a string or `count` is not a number, for example because they are swapped; or
            `numa_nodes` or `unhealthy` is not an iterable of numbers.
        ValueError: `count` or a NUMA node is below 0, or `unhealthy` contains a number that no device has.
    """
    checked(prefix, str, "simulated_devices(prefix, count): prefix")
    if checked(count, int, "simulated_devices(prefix, count): count") < 0:
        raise ValueError(expected("simulated_devices(prefix, count): count", "a number of at least 0", count))
    nodes = tuple_of(numa_nodes, int, "simulated_devices: numa_nodes")
    if min(nodes, default=0) < 0:
        raise ValueError(expected("simulated_devices: numa_nodes", "numbers of at least 0", nodes))
    numbers = set(tuple_of(unhealthy, int, "simulated_devices: unhealthy"))
    if not numbers.issubset(range(count)):
        wanted = f"numbers from 0 to {count - 1}" if count else "no number, because there is no device"
        raise ValueError(expected("simulated_devices: unhealthy", wanted, sorted(numbers)))
    return tuple(
        Device(
            DeviceId(f"{prefix}-{number}"),
            Health.UNHEALTHY if number in numbers else Health.HEALTHY,
            (NumaNode(nodes[number % len(nodes)]),) if nodes else None,
        )
        for number in range(count)
    )
