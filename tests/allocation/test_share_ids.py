"""Each share of a device has its own id, even if the claims are allocated one after another."""

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceClass,
    Held,
    TargetNode,
    allocate,
    claim_of,
    held_by,
    slice_of,
)


def test_claims_that_share_a_device_have_ids_of_their_own() -> None:
    """Like a scheduler, the loop commits one claim before it allocates the next."""
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    gpu = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "40Gi"}}}
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": [gpu]}
    slices = [slice_of({"metadata": {"name": "s"}, "spec": spec})]
    wanted = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "10Gi"}}}
    ids: set[object] = set()
    held: list[Held] = []
    for number in range(3):
        request = {"name": "part", "exactly": wanted}
        claim = {"metadata": {"name": f"c{number}", "namespace": "ml"}, "spec": {"devices": {"requests": [request]}}}
        found = allocate([claim_of(claim)], TargetNode("n1"), slices, held, [DeviceClass("gpu")])
        assert isinstance(found, DeviceAllocation)
        assert found.results() == found.results()
        status = {"allocation": found.results()[0]}
        held += held_by({**claim, "status": status})
        devices = status["allocation"]["devices"]
        assert isinstance(devices, dict)
        ids.add(devices["results"][0]["shareID"])
    assert len(ids) == 3
    assert isinstance(
        allocate([claim_of(claim)], TargetNode("n1"), slices, held, [DeviceClass("gpu")]), DeviceAllocation
    )
