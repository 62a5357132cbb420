"""Objects of resource.k8s.io as values: the fast reader gives the same results as the general one."""

import pytest

from devicecore.domain.allocation import slice_of
from devicecore.domain.allocation.model import Attribute
from devicecore.domain.errors import DocumentError


def attributes_of(**attributes: object) -> dict[str, Attribute]:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "d", "attributes": attributes}]
    spec = {"driver": "gpu.example.com", "allNodes": True, "pool": pool, "devices": devices}
    return dict(slice_of({"metadata": {"name": "s"}, "spec": spec}).devices[0].attributes)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"int": 3}, Attribute("int", (3,))),
        ({"bool": False}, Attribute("bool", (False,))),
        ({"string": ""}, Attribute("string", ("",))),
        ({"version": "1.2.3"}, Attribute("version", ("1.2.3",))),
        ({"strings": ["a", "b"]}, Attribute("strings", ("a", "b"))),
        ({"int": None, "string": "a"}, Attribute("string", ("a",))),
        ({"later": 3}, Attribute("")),
        ({}, Attribute("")),
    ],
)
def test_an_attribute_has_the_kind_of_its_field(given: object, read: Attribute) -> None:
    assert attributes_of(model=given) == {"model": read}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"int": True}, "model.int: expected a whole number, got true"),
        ({"bool": 1}, "model.bool: expected true or false, got 1"),
        ({"string": 1}, "model.string: expected a string, got 1"),
        ({"ints": 1}, "model.ints: expected a list, got 1"),
        ("A100", "model: expected an object, got 'A100'"),
    ],
)
def test_an_attribute_of_another_type_is_refused_with_its_place(given: object, problem: str) -> None:
    with pytest.raises(DocumentError) as error:
        attributes_of(model=given)
    assert problem in str(error.value)


def test_more_attributes_than_a_device_may_have_are_refused() -> None:
    with pytest.raises(DocumentError, match="expected at most 64 elements, got 65"):
        attributes_of(**{f"a{number}": {"int": number} for number in range(65)})
