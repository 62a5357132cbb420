"""Converts domain values to and from messages and bytes.

Laws: a receipt keeps everything that a plugin answered, including unknown fields. Values that a constructor would
refuse are read unchanged. Equal values are written as equal bytes.
"""

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from devicecore.domain.checks import received
from devicecore.domain.container_options import ContainerAllocateResponse, DeviceSpec, Mount
from devicecore.domain.errors import UnreadableReceiptError
from devicecore.domain.model import Device, DeviceId, Health, NumaNode, PluginOptions, Receipt
from devicecore.wire import deviceplugin


def to_device(message: deviceplugin.Device) -> Device:
    """Read a device.

    A missing topology gives None, a topology without nodes gives an empty tuple, and a node without a number is node 0.
    """
    topology = tuple([NumaNode(node.ID) for node in message.topology.nodes]) if message.HasField("topology") else None
    return received(Device, DeviceId(message.ID), Health.parse(message.health), topology)


def from_device(device: Device) -> deviceplugin.Device:
    """Write a device."""
    message = deviceplugin.Device(ID=device.id, health=device.health.value)
    if device.topology is not None:
        message.topology.SetInParent()  # a topology without nodes is also sent
        message.topology.nodes.extend(deviceplugin.NUMANode(ID=node) for node in device.topology)
    return message


def to_devices(message: deviceplugin.ListAndWatchResponse) -> tuple[Device, ...]:
    """Read a list of devices, in the order of the message."""
    return tuple([to_device(device) for device in message.devices])


def from_devices(devices: Iterable[Device]) -> deviceplugin.ListAndWatchResponse:
    """Write a list."""
    return deviceplugin.ListAndWatchResponse(devices=[from_device(device) for device in devices])


def to_options(message: deviceplugin.DevicePluginOptions) -> PluginOptions:
    """Read a plugin's options."""
    return PluginOptions(
        pre_start_required=message.pre_start_required,
        get_preferred_allocation_available=message.get_preferred_allocation_available,
    )


def from_options(options: PluginOptions) -> deviceplugin.DevicePluginOptions:
    """Write a plugin's options."""
    return deviceplugin.DevicePluginOptions(
        pre_start_required=options.pre_start_required,
        get_preferred_allocation_available=options.get_preferred_allocation_available,
    )


def to_response(message: deviceplugin.ContainerAllocateResponse) -> ContainerAllocateResponse:
    """Read the answer for one container."""
    return received(
        ContainerAllocateResponse,
        dict(message.envs),
        tuple([received(Mount, one.container_path, one.host_path, one.read_only) for one in message.mounts]),
        tuple([received(DeviceSpec, one.container_path, one.host_path, one.permissions) for one in message.devices]),
        dict(message.annotations),
        tuple([device.name for device in message.cdi_devices]),
    )


def from_response(response: ContainerAllocateResponse) -> deviceplugin.ContainerAllocateResponse:
    """Write the answer for one container."""
    return deviceplugin.ContainerAllocateResponse(
        envs=response.envs,
        mounts=[
            deviceplugin.Mount(
                container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
            )
            for mount in response.mounts
        ],
        devices=[
            deviceplugin.DeviceSpec(
                container_path=spec.container_path, host_path=spec.host_path, permissions=spec.permissions
            )
            for spec in response.devices
        ],
        annotations=response.annotations,
        cdi_devices=[deviceplugin.CDIDevice(name=name) for name in response.cdi_devices],
    )


def to_receipt(message: deviceplugin.ContainerAllocateResponse) -> Receipt:
    """Return a plugin's answer for one container as the bytes that a kubelet's checkpoint contains."""
    # Map keys are sorted, so that equal answers result in equal receipts, and equal histories in equal checkpoint
    # files.
    return Receipt(message.SerializeToString(deterministic=True))


def write_receipt(response: ContainerAllocateResponse) -> Receipt:
    """Write a receipt for an answer that was not received as a message."""
    return to_receipt(from_response(response))


def read_receipt(receipt: Receipt) -> ContainerAllocateResponse:
    """Read a receipt.

    An empty receipt is an answer without settings. Raises UnreadableReceiptError if the bytes are not a receipt.
    """
    try:
        return to_response(deviceplugin.ContainerAllocateResponse.FromString(receipt))
    except (DecodeError, UnicodeDecodeError) as error:  # pure-Python protobuf raises a UnicodeDecodeError
        raise UnreadableReceiptError(str(error)) from error
