"""The helper functions for the ways in which containers learn about their devices."""

import pytest

from devicecore import ContainerAllocateResponse, DeviceSpec, resource_name
from devicecore.domain.errors import DeviceRefusedError
from devicecore.domain.model import DeviceId
from devicecore.plugins import responses

TWO = [DeviceId("gpu-11"), DeviceId("gpu-4")]


def test_nvidias_list_in_the_environment() -> None:
    assert responses.environment_list(TWO).envs == {"NVIDIA_VISIBLE_DEVICES": "gpu-11,gpu-4"}
    assert responses.environment_list(TWO, "GPUS", " ").envs == {"GPUS": "gpu-11 gpu-4"}


@pytest.mark.parametrize("devices", [TWO, TWO[::-1]])
def test_iluvatars_device_nodes_follow_the_id_and_not_the_position(devices: list[DeviceId]) -> None:
    assert responses.numbered_device_nodes(devices, "iluvatar").devices == (
        DeviceSpec("/dev/iluvatar0", "/dev/iluvatar4", "rw"),
        DeviceSpec("/dev/iluvatar1", "/dev/iluvatar11", "rw"),
    )


def test_minor_numbers_may_be_supplied_by_the_caller() -> None:
    minors = {DeviceId("GPU-uuid"): 7}
    assert responses.numbered_device_nodes(minors, "x", minors.__getitem__, "rwm").devices == (
        DeviceSpec("/dev/x0", "/dev/x7", "rwm"),
    )
    with pytest.raises(ValueError, match="expected a device id that ends in a number, got 'GPU-uuid'"):
        responses.numbered_device_nodes(minors, "x")


def test_device_nodes_have_the_names_of_their_devices() -> None:
    devices = [DeviceId("ttyUSB0"), DeviceId("input/event3")]
    assert responses.device_nodes(devices).devices == (
        DeviceSpec("/dev/ttyUSB0", "/dev/ttyUSB0", "rw"),
        DeviceSpec("/dev/input/event3", "/dev/input/event3", "rw"),
    )
    (node, _) = responses.device_nodes(devices, "/dev/serial", "/dev/modem", "r").devices
    assert node == DeviceSpec("/dev/modem/ttyUSB0", "/dev/serial/ttyUSB0", "r")


def test_names_for_the_container_device_interface() -> None:
    assert responses.cdi_names(TWO, "vendor.com/gpu").cdi_devices == ("vendor.com/gpu=gpu-11", "vendor.com/gpu=gpu-4")


def test_answers_can_be_joined() -> None:
    joined = responses.together(
        responses.environment_list(TWO, "A"),
        responses.cdi_names(TWO[:1], "v/c"),
        responses.mounts(TWO[:1], "/h", "/c", read_only=False),
        ContainerAllocateResponse(annotations={"a": "b"}, devices=(DeviceSpec("/dev/ctl", "/dev/ctl"),)),
    )
    assert (joined.envs, joined.cdi_devices, joined.annotations) == ({"A": "gpu-11,gpu-4"}, ("v/c=gpu-11",), {"a": "b"})
    assert [mount.container_path for mount in joined.mounts] == ["/c/gpu-11"]
    assert [node.host_path for node in joined.devices] == ["/dev/ctl"]


def test_an_unknown_device_is_refused_in_nvidias_words() -> None:
    gpu = resource_name("nvidia.com/gpu")
    responses.refuse_unknown(gpu, TWO, set(TWO))
    with pytest.raises(DeviceRefusedError, match=r"request for nvidia.com/gpu: unknown device: gpu-4"):
        responses.refuse_unknown(gpu, TWO, TWO[:1])
