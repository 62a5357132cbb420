"""Objects of resource.k8s.io as values: what is read, what is refused, and what the limits are."""

from collections.abc import Callable

import pytest

from devicecore.domain.allocation import claim_of, class_of, held_by, slice_of
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


def _slice(**spec: object) -> object:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return slice_of({"spec": {"driver": "gpu.example.com", "allNodes": True, "pool": pool, **spec}})


def _claim(**devices: object) -> object:
    return claim_of({"metadata": {"name": "c"}, "spec": {"devices": devices}})


def _class(**spec: object) -> object:
    return class_of({"metadata": {"name": "any"}, "spec": spec})


WAY = {"name": "r", "deviceClassName": "any"}
LIMITS: list[tuple[int, object, Callable[[list[object]], object]]] = [
    (128, {"name": "d"}, lambda many: _slice(devices=many)),
    (32, {"name": "set"}, lambda many: _slice(sharedCounters=many)),
    (32, "NodePrepareResources", lambda many: _slice(skipNodeOperations=many)),
    (32, {"name": "r", "exactly": WAY}, lambda many: _claim(requests=many)),
    (8, WAY, lambda many: _claim(requests=[{"name": "r", "firstAvailable": many}])),
    (32, {}, lambda many: _claim(requests=[{"name": "r", "exactly": {**WAY, "tolerations": many}}])),
    (32, {"matchAttribute": "a/b"}, lambda many: _claim(constraints=many)),
    (32, {}, lambda many: _claim(config=many)),
    (32, {}, lambda many: _class(config=many)),
    (32, {"cel": {"expression": "true"}}, lambda many: _class(selectors=many)),
]


@pytest.mark.parametrize(("limit", "one", "read"), LIMITS, ids=range(len(LIMITS)))
def test_a_list_as_long_as_the_limit_is_read_and_a_longer_one_is_refused(
    limit: int, one: object, read: Callable[[list[object]], object]
) -> None:
    read([one] * limit)
    with pytest.raises(DocumentError, match=f"expected at most {limit} elements, got {limit + 1}"):
        read([one] * (limit + 1))


@pytest.mark.parametrize("read", [slice_of, claim_of, class_of])
def test_an_object_of_another_kind_is_refused(read: Callable[[object], object]) -> None:
    with pytest.raises(DocumentError, match=r"expected a (ResourceSlice|ResourceClaim|DeviceClass), got 'Pod'"):
        read({"kind": "Pod", "metadata": {"name": "p"}})


@pytest.mark.parametrize(
    ("version", "request_", "problem"),
    [
        ("resource.k8s.io/v1alpha3", WAY, "expected resource.k8s.io/v1, .*, got resource.k8s.io/v1alpha3"),
        ("resource.k8s.io/v1", WAY, "it is a field of v1beta1; in v1 it is in `exactly`"),
        ("", {"name": "r", "exactly": {"deviceClass": "any"}}, "expected 'deviceClassName'"),
        ("", {"name": "r", "exactly": {**WAY, "count": -1}}, "expected 1 or more, got -1"),
    ],
)
def test_a_request_that_would_mean_something_else_is_refused(version: str, request_: object, problem: str) -> None:
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request_]}}}
    with pytest.raises(DocumentError, match=problem):
        claim_of({**claim, "apiVersion": version} if version else claim)


def test_numbers_that_are_missing_are_those_of_the_api() -> None:
    read = slice_of({"spec": {"driver": "gpu.example.com", "allNodes": True, "pool": {"name": "p"}}})
    assert (read.generation, read.count) == (0, 0)
    (ways,) = claim_of({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [WAY]}}}).requests
    assert [(way.count, way.mode, way.admin_access) for way in ways] == [(1, "ExactCount", None)]


def test_devices_with_admin_access_are_held_by_nobody() -> None:
    result = {"request": "r", "driver": "gpu.example.com", "pool": "p", "device": "d"}
    share = {**result, "shareID": "s", "consumedCapacity": {"memory": "1"}}
    results = [result, {**result, "adminAccess": True}, {**result, "adminAccess": False}, share]
    status = {"reservedFor": [{"name": "pod"}], "allocation": {"devices": {"results": results}}}
    held = held_by({"metadata": {"name": "c"}, "status": status})
    assert [(str(one.device), one.claim, one.pods, one.is_share) for one in held] == [
        ("gpu.example.com/p/d", "c", ("pod",), is_share) for is_share in (False, False, True)
    ]
