"""The claim for extended resources: rows as in Kubernetes' `Test_createRequestsAndMappings`; `make oracle` has more."""

from itertools import count

import pytest
from devicecore_tools.doctor.pod.extended_claim import extended_claim

from devicecore.domain.documents import Value
from devicecore.domain.model import PodUid
from devicecore.domain.objects import pod_of

GPU, NIC, OWN = "example.com/gpu", "example.com/nic", "deviceclass.resource.kubernetes.io/nic"
CLASSES = {GPU: "gpu", NIC: "nic", OWN: "nic"}
Json = dict[str, object]


def init(**sizes: int) -> Json:
    """Return an ordinary init container, which runs to completion."""
    return {"sizes": sizes, "is_init": True}


def sidecar(**sizes: int) -> Json:
    """Return a sidecar: an init container that keeps running."""
    return {"sizes": sizes, "is_init": True, "restartPolicy": "Always"}


def main(**sizes: int) -> Json:
    """Return an app container."""
    return {"sizes": sizes, "is_init": False}


@pytest.mark.parametrize(
    ("containers", "requests", "mappings"),
    [
        ([main(gpu=1)], "0-0:gpu*1", "c0:0-0"),
        ([main(gpu=1, nic=2)], "0-0:gpu*1 0-1:nic*2", "c0:0-0 c0:0-1"),
        ([main(gpu=1, cpu=4, memory=1)], "0-1:gpu*1", "c0:0-1"),
        ([main(gpu=1), main(nic=2)], "0-0:gpu*1 1-0:nic*2", "c0:0-0 c1:1-0"),
        ([main(gpu=0), main(gpu=2)], "1-0:gpu*2", "c1:1-0"),
        ([init(nic=2), main(gpu=1)], "0-0:nic*2 1-0:gpu*1", "c1:1-0 c0:0-0"),
        ([init(nic=1), init(nic=2), main(gpu=1)], "1-0:nic*2 2-0:gpu*1", "c2:2-0 c0:1-0 c1:1-0"),
        ([init(nic=2), init(nic=2)], "0-0:nic*2", "c0:0-0 c1:0-0"),
        ([init(gpu=2), main(gpu=2)], "1-0:gpu*2", "c1:1-0 c0:1-0"),
        ([init(gpu=3), main(gpu=2)], "0-0:gpu*1 1-0:gpu*2", "c1:1-0 c0:1-0 c0:0-0"),
        ([init(gpu=2), main(gpu=1), main(gpu=1)], "1-0:gpu*1 2-0:gpu*1", "c1:1-0 c2:2-0 c0:1-0 c0:2-0"),
        (
            [init(nic=1), sidecar(nic=1), init(nic=2), main(gpu=1)],
            "1-0:nic*1 2-0:nic*2 3-0:gpu*1",
            "c3:3-0 c1:1-0 c0:1-0 c2:2-0",
        ),
        ([sidecar(gpu=1), main(gpu=1)], "0-0:gpu*1 1-0:gpu*1", "c0:0-0 c1:1-0"),
        ([init(nic=1, own=2)], "0-0:nic*2 0-1:nic*1", "c0:0-0 c0:0-1"),
    ],
)
def test_each_container_gets_the_requests_that_a_scheduler_writes(
    containers: list[Json], requests: str, mappings: str
) -> None:
    """`0-1` stands for `container-0-request-1`."""
    names = {"gpu": GPU, "nic": NIC, "own": OWN, "cpu": "cpu", "memory": "memory"}
    spec: dict[str, list[Json]] = {"initContainers": [], "containers": []}
    for number, one in zip(count(), containers, strict=False):
        sizes = one.pop("sizes")
        assert isinstance(sizes, dict)
        asked = {names[name]: str(size) for name, size in sizes.items()}
        resources = {"limits": {name: size for name, size in asked.items() if name != "cpu"}, "requests": asked}
        spec["initContainers" if one.pop("is_init") else "containers"].append(
            {**one, "name": f"c{number}", "resources": resources}
        )
    pod = pod_of(Value({"metadata": {"name": "p"}, "spec": spec}, "pod"), uid=PodUid("u"))
    claim = extended_claim(pod, CLASSES)
    assert claim is not None

    def short(name: str) -> str:
        return name.removeprefix("container-").replace("-request", "")

    made = [f"{short(one.name)}:{one.device_class}*{one.count}" for one in claim.alternatives]
    assert " ".join(made) == requests
    assert " ".join(f"{one.container}:{short(one.request)}" for one in claim.mappings) == mappings


def test_a_pod_that_asks_for_nothing_of_a_class_has_no_claim() -> None:
    pod = pod_of(Value({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}, "pod"), uid=PodUid("u"))
    assert extended_claim(pod, CLASSES) is None
