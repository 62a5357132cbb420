"""The environment variable in which a simulated plugin lists a container's devices."""

import re

import pytest

from devicecore import resource_name
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices


@pytest.mark.parametrize(
    ("resource", "variable"),
    [
        ("example.com/gpu", "EXAMPLE_COM_GPU_DEVICES"),
        ("acme.io/Mixed-Case.v1_x", "ACME_IO_MIXED_CASE_V1_X_DEVICES"),
        ("3d.example.com/printer", "_3D_EXAMPLE_COM_PRINTER_DEVICES"),
    ],
)
def test_the_variable_is_derived_from_the_resource_and_a_shell_can_read_it(resource: str, variable: str) -> None:
    assert SimulatedPlugin(resource).variable == variable
    assert re.fullmatch("[A-Z_][A-Z0-9_]*", variable)
    assert resource_name(resource)  # a kubelet accepts this name


def test_the_devices_are_named_as_by_the_command_unless_given() -> None:
    named = [device.id for device in SimulatedPlugin("example.com/gpu").devices()]
    assert named == [f"gpu-{number}" for number in range(10)]


def test_an_id_that_is_listed_twice_is_refused() -> None:
    twice = (*simulated_devices("gpu", 2), *simulated_devices("gpu", 1))
    with pytest.raises(ValueError, match="devices: expected different ids, got 'gpu-0' twice"):
        SimulatedPlugin("example.com/gpu", twice)
    plugin = SimulatedPlugin("example.com/gpu", twice[:2])
    with pytest.raises(ValueError, match="got 'gpu-0' twice"):
        plugin.set_devices(twice)
    assert plugin.devices() == twice[:2]
