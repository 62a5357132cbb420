"""Common answers to Allocate, each a plain function from device ids to an answer.

Law: an answer depends only on the function's arguments, so repeating a request gives the same answer.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from devicecore.domain.checks import checked, expected, items, tuple_of
from devicecore.domain.container_options import ContainerAllocateResponse, DeviceSpec, Mount
from devicecore.domain.errors import DeviceRefusedError
from devicecore.domain.model import DeviceId, ResourceName
from devicecore.system.arguments import checks_arguments

__all__ = [
    "cdi_names",
    "device_nodes",
    "environment_list",
    "mounts",
    "numbered_device_nodes",
    "refuse_unknown",
    "together",
]

_LAST_NUMBER = re.compile(r"[0-9]+\Z")


def _ids(devices: Iterable[DeviceId], function: str) -> tuple[DeviceId, ...]:
    """Return the ids. A plain string is refused, because it would be taken for a list of one-letter ids."""
    return tuple(items(devices, f"{function}: devices"))


def refuse_unknown(resource: ResourceName, devices: Iterable[DeviceId], known: Collection[DeviceId]) -> None:
    """Refuse devices that the plugin does not have. NVIDIA's plugin does the same before it answers.

    Raises:
        DeviceRefusedError: one of the devices is unknown.
    """
    for device in devices:
        if device not in known:
            raise DeviceRefusedError(resource, device)


def environment_list(
    devices: Iterable[DeviceId], variable: str = "NVIDIA_VISIBLE_DEVICES", separator: str = ","
) -> ContainerAllocateResponse:
    """Return an environment variable that lists the devices, for a container runtime or a program that reads it."""
    return ContainerAllocateResponse(envs={variable: separator.join(_ids(devices, "environment_list"))})


def last_number(device: DeviceId) -> int:
    """Return the number at the end of a device id, such as 3 for `gpu-3`.

    Raises:
        ValueError: the id does not end in a number.
    """
    found = _LAST_NUMBER.search(device)
    if found is None:
        message = f"expected a device id that ends in a number, got {device!r}"
        raise ValueError(message)
    return int(found.group())


@checks_arguments()
def numbered_device_nodes(
    devices: Iterable[DeviceId], name: str, minor: Callable[[DeviceId], int] = last_number, permissions: str = "rw"
) -> ContainerAllocateResponse:
    """Return device nodes `/dev/NAME<minor>`, which the container sees as `/dev/NAME0`, `/dev/NAME1`, and so on.

    The number on the host is taken from the id, never from the position: in the container, `/dev/NAME0` is the device
    with the lowest minor number, whatever the order of `devices`. Iluvatar's plugin answers Allocate in this way.
    """
    minors = sorted(minor(device) for device in _ids(devices, "numbered_device_nodes"))
    return ContainerAllocateResponse(
        devices=tuple(
            DeviceSpec(f"/dev/{name}{place}", f"/dev/{name}{number}", permissions)
            for place, number in enumerate(minors)
        )
    )


@checks_arguments("host_directory", "container_directory")
def device_nodes(
    devices: Iterable[DeviceId],
    host_directory: str = "/dev",
    container_directory: str | None = None,
    permissions: str = "rw",
) -> ContainerAllocateResponse:
    """Return the host's device node for each device, as needed by a `DirectoryPlugin` whose files are device nodes.

    Args:
        devices: ids that are paths relative to `host_directory`, such as `ttyUSB0` or `input/event3`.
        host_directory: where the nodes are on the host.
        container_directory: where the container sees the nodes; by default at the same path as on the host.
        permissions: one or more of the letters `r`, `w` and `m` (mknod).

    Raises:
        ValueError: a directory is not an absolute path.
    """
    seen_in = host_directory if container_directory is None else container_directory
    _check_absolute("device_nodes", host_directory, seen_in)
    return ContainerAllocateResponse(
        devices=tuple(
            DeviceSpec(f"{seen_in}/{device}", f"{host_directory}/{device}", permissions)
            for device in _ids(devices, "device_nodes")
        )
    )


@checks_arguments("host_directory", "container_directory")
def mounts(
    devices: Sequence[DeviceId], host_directory: str, container_directory: str, *, read_only: bool = True
) -> ContainerAllocateResponse:
    """Return a mount for each device: the host's file of the same name, in a directory of the container.

    Raises:
        ValueError: a directory is not an absolute path.
    """
    _check_absolute("mounts", host_directory, container_directory)
    return ContainerAllocateResponse(
        mounts=tuple(
            Mount(f"{container_directory}/{device}", f"{host_directory}/{device}", read_only)
            for device in _ids(devices, "mounts")
        )
    )


def _check_absolute(function: str, *directories: str) -> None:
    """Refuse a relative directory, even if there are no devices yet.

    A container runtime would refuse relative paths.
    """
    for directory in directories:
        if not checked(directory, str, function).startswith("/"):
            raise ValueError(expected(function, "an absolute directory, such as /dev", directory))


@checks_arguments()
def cdi_names(devices: Iterable[DeviceId], kind: str) -> ContainerAllocateResponse:
    """Return the CDI names of devices (Container Device Interface): `vendor.com/gpu=<id>` for kind `vendor.com/gpu`."""
    return ContainerAllocateResponse(cdi_devices=tuple(f"{kind}={device}" for device in _ids(devices, "cdi_names")))


def together(*answers: ContainerAllocateResponse) -> ContainerAllocateResponse:
    """Combine several answers into one. If two answers set the same variable or annotation, the later answer wins."""
    tuple_of(answers, ContainerAllocateResponse, "together")
    return ContainerAllocateResponse(
        envs={name: value for answer in answers for name, value in answer.envs.items()},
        mounts=tuple(mount for answer in answers for mount in answer.mounts),
        devices=tuple(node for answer in answers for node in answer.devices),
        annotations={name: value for answer in answers for name, value in answer.annotations.items()},
        cdi_devices=tuple(name for answer in answers for name in answer.cdi_devices),
    )
