"""Expressions are corrected for CEL and the devices, and are split into parts that must all be true."""

import pytest
from attrs import evolve
from devicecore_tools.doctor.pod.expression_edits import conjuncts, repaired, with_other_values

from devicecore.domain.allocation import DeviceKey, PoolDevice
from devicecore.domain.allocation.model import Attribute, Capacity
from devicecore.domain.quantity import Quantity

NIC = PoolDevice(
    DeviceKey("dra.net", "n1", "eth0"),
    {
        "rdma": Attribute("bool", (True,)),
        "type": Attribute("string", ("nic",)),
        "resource.kubernetes.io/pcieRoot": Attribute("string", ("pci0",)),
        "version": Attribute("version", ("8.0.0",)),
    },
    {"memory": Capacity(Quantity.parse("40Gi"))},
)
RDMA, TYPE = 'device.attributes["dra.net"].rdma', 'device.attributes["dra.net"].type'
ROOT = 'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0"'
MEMORY = 'device.capacity["dra.net"].memory'


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ('device.attributes["rdma"]', RDMA),
        ('device.attributes["dra.net/rdma"]', RDMA),
        ("device.attributes.rdma", RDMA),
        ("device.attributes[dra.net].rdma", RDMA),
        ('device.attributes["dra.net"].pcieRoot == "pci0"', ROOT),
        ('device.attributes["resource.kubernetes.io/pcieRoot"] == "pci0"', ROOT),
        ('device.attributes["dra.net"].tpye == "nic"', f'{TYPE} == "nic"'),
        (f'{TYPE} = "nic" and {RDMA}', f'{TYPE} == "nic" && {RDMA}'),
        (f'device.driver == "dra.net" & {RDMA}', f'device.driver == "dra.net" && {RDMA}'),
        (f'{MEMORY} >= "40Gi"', f'{MEMORY}.compareTo(quantity("40Gi")) >= 0'),
        (
            'device.attributes["dra.net"].version >= "8.0.0"',
            'device.attributes["dra.net"].version.compareTo(semver("8.0.0")) >= 0',
        ),
    ],
)
def test_a_typing_mistake_is_corrected(written: str, right: str) -> None:
    mended = repaired(written, [NIC])
    assert mended is not None
    assert mended.expression == right


def test_an_attribute_of_several_domains_is_named_once() -> None:
    both = evolve(NIC, attributes={**NIC.attributes, "a.io/pcieRoot": Attribute("string", ("pci0",))})
    mended = repaired('device.attributes["dra.net"].pcieRoot == "pci0"', [both])
    assert mended is not None
    assert mended.expression == 'device.attributes["a.io"].pcieRoot == "pci0"'


@pytest.mark.parametrize("expression", [RDMA, f'{TYPE} == "a & b or c = d"', 'device.attributes["dra.net"].exists(x)'])
def test_correct_and_quoted_text_is_unchanged(expression: str) -> None:
    assert repaired(expression, [NIC]) is None


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ('a && b.c("x && y") && (d || e)', ["a", 'b.c("x && y")', "(d || e)"]),
        ("a || b && c", ["a || b && c"]),
        ('a.?b.orValue("") == "x" && c', ['a.?b.orValue("") == "x"', "c"]),
        ("a ? b : c && d", ["a ? b : c && d"]),
    ],
)
def test_an_expression_is_split_where_each_part_must_hold(expression: str, parts: list[str]) -> None:
    assert conjuncts(expression) == parts


def test_two_values_are_replaced_at_once() -> None:
    expression = f'{TYPE} == "nci" && {MEMORY}.compareTo(quantity("64Gi")) >= 0'
    edits = {one.expression for one in with_other_values(expression, [NIC])}
    assert f'{TYPE} == "nic" && {MEMORY}.compareTo(quantity("40Gi")) >= 0' in edits
