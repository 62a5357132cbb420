"""Constraints that no choice of devices can satisfy are found by counting, not by trying."""

import pytest

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceClass,
    NoAllocation,
    PoolDevice,
    SelectorError,
    TargetNode,
    allocate,
    claim_of,
    slice_of,
)

ROOT = "resource.kubernetes.io/pcieRoot"
CLASSES = [DeviceClass(name, (name,)) for name in ("gpu", "nic")]


def matches(expression: str, device: PoolDevice) -> bool:
    if expression == "without a value":
        raise SelectorError(expression)
    return device.key.driver.startswith(expression)


def answer(aligned: int, pairs: int = 8, selector: str = "") -> DeviceAllocation | NoAllocation:
    """Return what a claim for pairs of a GPU and a NIC gets if `aligned` of eight NICs share a root with a GPU.

    If `selector` is given, another claim, for a GPU that it selects, comes first.
    """
    slices = []
    for kind in ("gpu", "nic"):
        roots = [f"pci{number if kind == 'gpu' or number < aligned else number + 8}" for number in range(8)]
        devices = [
            {"name": f"{kind}-{number}", "attributes": {ROOT: {"string": root}}} for number, root in enumerate(roots)
        ]
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": f"{kind}.example.com", "nodeName": "n1", "pool": pool, "devices": devices}
        slices.append(slice_of({"metadata": {"name": kind}, "spec": spec}))
    names = [(f"gpu{number}", f"nic{number}") for number in range(pairs)]
    requests = [{"name": name, "exactly": {"deviceClassName": name[:3]}} for pair in names for name in pair]
    constraints = [{"requests": list(pair), "matchAttribute": ROOT} for pair in names]
    claim = claim_of(
        {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests, "constraints": constraints}}}
    )
    first = {"name": "one", "exactly": {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": selector}}]}}
    before = claim_of({"metadata": {"name": "before"}, "spec": {"devices": {"requests": [first]}}})
    return allocate(
        [before, claim] if selector else [claim],
        TargetNode("n1"),
        slices,
        [],
        CLASSES,
        matches=matches,
        max_steps=2_000,
    )


@pytest.mark.parametrize("aligned", [0, 1, 7])
def test_eight_pairs_of_too_few_roots_end_without_being_given_up(aligned: int) -> None:
    found = answer(aligned)
    assert isinstance(found, NoAllocation)
    assert not found.is_unknown
    assert not found.is_error


def test_a_selector_without_a_value_is_an_error_although_roots_are_too_few() -> None:
    """A scheduler evaluates the first claim's selector before it learns that the second claim has too few roots."""
    found = answer(1, selector="without a value")
    assert isinstance(found, NoAllocation)
    assert found.is_error


@pytest.mark.parametrize(("aligned", "pairs"), [(8, 8), (3, 3), (7, 5)])
def test_pairs_that_exist_are_found(aligned: int, pairs: int) -> None:
    found = answer(aligned, pairs)
    assert isinstance(found, DeviceAllocation)
    roots = [one.candidate.device.attribute(ROOT) for one in found.devices()]
    assert roots[::2] == roots[1::2]
