"""The parameters in an allocation: those from the classes and then those from the claim, each with its requests."""

import pytest

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceClass,
    Release,
    TargetNode,
    allocate,
    claim_of,
    slice_of,
)
from tests.recorded import Json


def _opaque(name: str) -> Json:
    return {"opaque": {"driver": "gpu.example.com", "parameters": {"name": name}}}


def _config(release: Release, classes: str, config: list[Json]) -> Json:
    """Return the parameters in the allocation of a claim with the requests a and b, which have these two classes."""
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "d0"}, {"name": "d1"}]
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": devices}
    requests = [
        {"name": name, "exactly": {"deviceClassName": of}} for name, of in zip("ab", classes.split(), strict=True)
    ]
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests, "config": config}}}
    known = [DeviceClass("one", config=(_opaque("class-one"),)), DeviceClass("two", config=(_opaque("class-two"),))]
    found = allocate([claim_of(claim)], TargetNode("n1"), [slice_of({"spec": spec})], [], known, release=release)
    assert isinstance(found, DeviceAllocation)
    (result,) = found.results()
    return json_of(result)


def json_of(result: Json) -> Json:
    """Return each entry of the parameters as its source, its name, and its requests (None if it names no requests)."""
    return [
        (one["source"], one["opaque"]["parameters"]["name"], one.get("requests"))
        for one in result["devices"].get("config", ())
    ]


@pytest.mark.parametrize("release", [Release.V1_36_3, Release.V1_37])
def test_parameters_of_a_class_name_its_requests(release: Release) -> None:
    assert _config(release, "one two", []) == [
        ("FromClass", "class-one", ["a"]),
        ("FromClass", "class-two", ["b"]),
    ]


def test_parameters_that_apply_to_all_requests_name_none_since_1_37() -> None:
    both = [{"requests": ["a", "b"], **_opaque("both")}]
    assert _config(Release.V1_37, "one one", both) == [("FromClass", "class-one", None), ("FromClaim", "both", None)]
    assert _config(Release.V1_36_3, "one one", both) == [
        ("FromClass", "class-one", ["a", "b"]),
        ("FromClaim", "both", ["a", "b"]),
        ("FromClaim", "both", ["a", "b"]),  # one entry for each request
    ]


@pytest.mark.parametrize("release", [Release.V1_36_3, Release.V1_37])
def test_parameters_of_a_claim_name_the_requests_that_the_claim_names(release: Release) -> None:
    config = [_opaque("every"), {"requests": ["b"], **_opaque("second")}, {"requests": ["c"], **_opaque("nobody")}]
    assert _config(release, "one two", config)[2:] == [("FromClaim", "every", None), ("FromClaim", "second", ["b"])]
