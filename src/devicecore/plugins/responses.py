"""The ways in which a container learns of its devices, each a plain function from device ids to an answer.

Law: an answer depends on the ids and on nothing else, so asking again for the same devices gives the same answer.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from devicecore.domain.container_options import ContainerAllocateResponse, DeviceSpec, Mount
from devicecore.domain.errors import DeviceRefusedError
from devicecore.domain.model import DeviceId, ResourceName

_LAST_NUMBER = re.compile(r"[0-9]+\Z")


def refuse_unknown(resource: ResourceName, devices: Iterable[DeviceId], known: Collection[DeviceId]) -> None:
    """See that every device is known, as NVIDIA's plugin does before it answers.

    Raises:
        DeviceRefusedError: one of them is not.
    """
    for device in devices:
        if device not in known:
            raise DeviceRefusedError(resource, device)


def environment_list(
    devices: Iterable[DeviceId], variable: str = "NVIDIA_VISIBLE_DEVICES", separator: str = ","
) -> ContainerAllocateResponse:
    """One environment variable that lists the devices, for a container runtime or a program that reads it."""
    return ContainerAllocateResponse(envs={variable: separator.join(devices)})


def last_number(device: DeviceId) -> int:
    """Read the number at the end of a device's id: 3 of `gpu-3`.

    Raises:
        ValueError: there is none.
    """
    found = _LAST_NUMBER.search(device)
    if found is None:
        message = f"the device id {device!r} does not end in a number"
        raise ValueError(message)
    return int(found.group())


def numbered_device_nodes(
    devices: Iterable[DeviceId],
    name: str,
    minor: Callable[[DeviceId], int] = last_number,
    permissions: str = "rw",
) -> ContainerAllocateResponse:
    """Device nodes `/dev/NAME<minor>`, which the container sees as `/dev/NAME0`, `/dev/NAME1`, ..., as iluvatar's does.

    The number on the host comes from the id, never from the position: the container's `/dev/NAME0` is its device with
    the lowest minor number, whatever the order of `devices`.
    """
    minors = sorted(minor(device) for device in devices)
    return ContainerAllocateResponse(
        devices=tuple(
            DeviceSpec(f"/dev/{name}{place}", f"/dev/{name}{number}", permissions)
            for place, number in enumerate(minors)
        )
    )


def mounts(
    devices: Sequence[DeviceId], host_directory: str, container_directory: str, *, read_only: bool = True
) -> ContainerAllocateResponse:
    """For each device the host's file of its name, seen in a directory of the container."""
    return ContainerAllocateResponse(
        mounts=tuple(
            Mount(f"{container_directory}/{device}", f"{host_directory}/{device}", read_only) for device in devices
        )
    )


def cdi_names(devices: Iterable[DeviceId], kind: str) -> ContainerAllocateResponse:
    """Names for the Container Device Interface, of a kind such as `vendor.com/gpu`: `vendor.com/gpu=<id>`."""
    return ContainerAllocateResponse(cdi_devices=tuple(f"{kind}={device}" for device in devices))


def together(*answers: ContainerAllocateResponse) -> ContainerAllocateResponse:
    """All of `answers` in one. Where two name the same variable or annotation, the later one counts."""
    return ContainerAllocateResponse(
        envs={name: value for answer in answers for name, value in answer.envs.items()},
        mounts=tuple(mount for answer in answers for mount in answer.mounts),
        devices=tuple(node for answer in answers for node in answer.devices),
        annotations={name: value for answer in answers for name, value in answer.annotations.items()},
        cdi_devices=tuple(name for answer in answers for name in answer.cdi_devices),
    )
