"""Law: without the CEL library, an expression has either the value that the library computes or no value."""

import pytest
from devicecore_tools.expressions import _compared
from hypothesis import given
from hypothesis import strategies as st

from devicecore.domain.allocation import DeviceKey, PoolDevice, SelectorError
from devicecore.domain.allocation.model import Attribute

cel = pytest.importorskip("devicecore.adapters.cel")
pytest.importorskip("cel_expr_python")

DRIVERS = st.sampled_from(["gpu.nvidia.com", "nic.example.com"])
NAMES = st.sampled_from(["type", "profile", "in", "index"])
TEXTS = st.sampled_from(["gpu", "mig", "", "1g.10gb"])
ATTRIBUTES = st.one_of(
    TEXTS.map(lambda text: Attribute("string", (text,))),
    st.integers(0, 2).map(lambda number: Attribute("int", (number,))),
    st.just(Attribute("version", ("1.2.3",))),
)
DEVICES = st.builds(
    lambda driver, attributes: PoolDevice(DeviceKey(driver, "p", "d"), attributes),
    DRIVERS,
    st.dictionaries(st.sampled_from(["type", "profile", "index", "gpu.nvidia.com/type"]), ATTRIBUTES, max_size=3),
)
TERMS = st.one_of(
    DRIVERS.map(lambda driver: f"device.driver == '{driver}'"),
    st.tuples(DRIVERS, NAMES, TEXTS).map(lambda row: f'device.attributes["{row[0]}"].{row[1]} == "{row[2]}"'),
    st.just("device.attributes['gpu.nvidia.com'].index > 1"),
)
EXPRESSIONS = st.lists(TERMS, min_size=1, max_size=3).map(" && ".join)


@given(EXPRESSIONS, DEVICES)
def test_a_comparison_has_the_value_of_the_library_or_none(expression: str, device: PoolDevice) -> None:
    value = _compared(expression, device)
    if value is not None:
        try:
            assert cel.CelSelectors()(expression, device) is value
        except SelectorError as error:
            pytest.fail(f"{value} without the library, and with it {error}")


def test_the_expression_of_nvidias_class_has_a_value() -> None:
    expression = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
    attributes = {"type": Attribute("string", ("gpu",)), "driverVersion": Attribute("version", ("570.86.15",))}
    assert _compared(expression, PoolDevice(DeviceKey("gpu.nvidia.com", "n", "gpu-0"), attributes)) is True
    assert _compared(expression, PoolDevice(DeviceKey("gpu.nvidia.com", "n", "gpu-0"))) is None
    assert _compared(expression, PoolDevice(DeviceKey("nic.example.com", "n", "nic-0"))) is False
