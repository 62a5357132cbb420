"""The memory and time that trials of claims take in a large cluster."""

import weakref
from collections.abc import Iterator
from itertools import count

from devicecore_tools.budget import Budget
from devicecore_tools.doctor.pod.claim_trial import ClaimTrial
from devicecore_tools.doctor.pod.cluster_objects import objects_of

from devicecore.domain.allocation import claim_of
from devicecore.domain.documents import Value


class Parsed(dict[str, object]):
    """A parsed document that supports weak references, so a test can see whether it still exists."""


def test_a_document_is_forgotten_before_the_next_one_is_read() -> None:
    """Each file from a large cluster may take up 200 MB. A parsed Node does not keep its whole file in memory."""
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": [{"name": "gpu-0"}]}
    items: list[object] = [
        {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec},
        {"kind": "Node", "metadata": {"name": "n1"}},
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}},
    ]

    def documents() -> Iterator[Value]:
        parsed = Parsed(items=items)
        known = weakref.ref(parsed)
        first = Value(parsed, "slices.json")
        del parsed
        yield first
        del first
        assert known() is None
        yield Value({"kind": "Node", "metadata": {"name": "n2"}}, "nodes.json")

    found = objects_of(documents())
    assert [node.name for node in found.nodes] == ["n1", "n2"]
    assert [str(key) for key in found.devices] == ["gpu.example.com/n1/gpu-0"]


def test_an_older_slice_with_the_same_device_hides_no_attribute() -> None:
    """A list as an attribute's value shows that lists are enabled (`make oracle KIND=extended SEED=s10 CASE=1978`)."""
    attributes = {"example.com/rail": {"strings": ["1", "2"]}}
    items: list[object] = [
        {
            "kind": "ResourceSlice",
            "metadata": {"name": f"s{generation}"},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": generation, "resourceSliceCount": 1},
                "devices": [{"name": "d0", "attributes": {} if generation == 1 else attributes}],
            },
        }
        for generation in (2, 1)
    ]
    found = objects_of([Value({"items": items}, "objects.json")])
    (device,) = found.devices.values()
    assert list(device.attributes) == ["example.com/rail"]
    assert found.features.list_attributes


def test_advice_ends_when_its_time_is_over_and_says_so() -> None:
    """The clock advances by 0.3 s whenever it is read, so only some changes are tried, and the report says so once."""
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(40)]
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": devices}
    held = [{"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": one["name"]} for one in devices]
    items: list[object] = [
        {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec},
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}},
        *(
            {
                "kind": "ResourceClaim",
                "metadata": {"name": f"c{number}"},
                "status": {"allocation": {"devices": {"results": [one]}}},
            }
            for number, one in enumerate(held)
        ),
    ]
    clock = (number * 0.3 for number in count())
    budget = Budget(seconds=1_000, now=lambda: next(clock))
    trial = ClaimTrial(objects_of([Value({"items": items}, "objects.json")]), budget=budget)
    told: list[str] = []
    trial.on_trials = lambda: told.append("told")
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}}
    wanted = claim_of({"metadata": {"name": "ask"}, "spec": {"devices": {"requests": [request]}}})
    (answer,) = trial.answers([wanted])
    assert not answer.fits
    assert not answer.are_all_tried
    assert told == ["told"]
