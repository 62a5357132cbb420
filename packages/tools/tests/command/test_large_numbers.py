"""A number in an untrusted object is never used as a length or range.

Whatever the number, `why` and `fits` end with a sentence or a verdict.

Numeric fields of each object that the commands read are set to 10^18, which fits into 64 bits, and to 10^30.
"""

import copy
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main
from devicecore_tools.doctor.pod.cluster_objects import _READERS

from tests.recorded import share

DRIVER = "gpu.example.com"
POOL: dict[str, Any] = {"name": "p", "generation": 1, "resourceSliceCount": 1}
OTHER_POOL: dict[str, Any] = {**POOL, "name": "q"}
DEVICE: dict[str, Any] = {
    "name": "d",
    "allowMultipleAllocations": True,
    "attributes": {"index": {"int": 1}},
    "capacity": {
        "memory": {
            "value": "4",
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "4", "step": "1"}},
        }
    },
    "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}],
}
TOLERATION = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
EXACTLY = {
    "deviceClassName": "any",
    "count": 1,
    "capacity": {"requests": {"memory": "1"}},
    "tolerations": [TOLERATION],
}
RESULT = {"driver": DRIVER, "pool": "p", "device": "d", "request": "r", "consumedCapacity": {"memory": "1"}}
AMOUNTS = {"cpu": "4", "memory": "1Gi", "pods": "110", "example.com/gpu": "4"}


def of_resource(kind: str, name: str, **rest: object) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"u-{name}", "generation": 1}
    if kind == "ResourceClaim":
        metadata["namespace"] = "default"
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, **rest}


OBJECTS = (
    of_resource("ResourceSlice", "s", spec={"driver": DRIVER, "nodeName": "n", "pool": POOL, "devices": [DEVICE]}),
    of_resource(
        "ResourceSlice",
        "counters",
        spec={
            "driver": DRIVER,
            "nodeName": "n",
            "pool": OTHER_POOL,
            "sharedCounters": [{"name": "s", "counters": {"c": {"value": "1"}}}],
        },
    ),
    of_resource("DeviceClass", "any", spec={}),
    of_resource(
        "ResourceClaim",
        "held",
        spec={"devices": {"requests": [{"name": "r", "exactly": EXACTLY}]}},
        status={"allocation": {"devices": {"results": [RESULT]}}},
    ),
    {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"allocatable": AMOUNTS, "capacity": AMOUNTS},
    },
)


def of_core(kind: str, name: str, **rest: object) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, **rest}


REQUESTS = {"requests": {"storage": "1Gi"}}
ON_NODE = {
    "required": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}
}
OTHERS = (
    of_core(
        "Pod",
        "bound",
        spec={
            "nodeName": "n",
            "priority": 1,
            "containers": [{"name": "m", "ports": [{"hostPort": 80}], "resources": {"requests": AMOUNTS}}],
        },
        status={"phase": "Running"},
    ),
    of_core("Namespace", "default"),
    of_core("PersistentVolumeClaim", "data", spec={"resources": REQUESTS, "volumeName": "v"}),
    of_core("PersistentVolumeClaim", "new", spec={"resources": REQUESTS, "storageClassName": "slow"}),
    of_core("PersistentVolume", "v", spec={"capacity": {"storage": "1Gi"}, "nodeAffinity": ON_NODE}),
    of_core("StorageClass", "slow", provisioner="csi.example.com", volumeBindingMode="WaitForFirstConsumer"),
    of_core(
        "CSINode", "n", spec={"drivers": [{"name": "csi.example.com", "nodeID": "n", "allocatable": {"count": 1}}]}
    ),
    of_core("CSIDriver", "csi.example.com", spec={"storageCapacity": True}),
    of_core("CSIStorageCapacity", "c", storageClassName="slow", capacity="1Gi", maximumVolumeSize="1Gi"),
    of_core("PriorityClass", "high", value=1),
    of_core("RuntimeClass", "kata", handler="kata", overhead={"podFixed": {"cpu": "1", "memory": "1Mi"}}),
    of_core(
        "ResourceQuota",
        "q",
        spec={"hard": {"requests.cpu": "4", "count/pods": "5"}},
        status={"hard": {"requests.cpu": "4", "count/pods": "5"}, "used": {"requests.cpu": "1", "count/pods": "1"}},
    ),
    of_core("LimitRange", "l", spec={"limits": [{"type": "Container", "default": {"cpu": "1"}, "max": {"cpu": "2"}}]}),
    of_core("PodDisruptionBudget", "b", spec={"selector": {}}, status={"disruptionsAllowed": 1}),
    of_resource(
        "DeviceTaintRule", "t", spec={"deviceSelector": {"driver": "x"}, "taint": {"key": "a", "effect": "NoSchedule"}}
    ),
    of_resource(
        "ResourceClaimTemplate",
        "template",
        spec={"spec": {"devices": {"requests": [{"name": "r", "exactly": EXACTLY}]}}},
    ),
)
CLAIM = of_resource("ResourceClaim", "c", spec={"devices": {"requests": [{"name": "r", "exactly": EXACTLY}]}})
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a", "namespace": "default", "uid": "u"},
    "spec": {
        "priority": 1,
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "m", "resources": {"limits": {"cpu": "1", "example.com/gpu": "1"}}}],
        "resourceClaims": [{"name": "x", "resourceClaimName": "c"}],
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "minDomains": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {},
            }
        ],
        "volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("data", "new")],
        "runtimeClassName": "kata",
        "priorityClassName": "high",
    },
}
NEW = {"name": "a", "namespace": "default"}  # a pod that no API server has accepted has no UID
DOCUMENTS: tuple[dict[str, Any], ...] = (*OBJECTS, *OTHERS, CLAIM, POD)


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - any JSON
    """Yield the path of each number and quantity."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, one in items:
        yield from numbers_in(one, (*path, key))
    if type(value) is int or (isinstance(value, str) and value[:1].isdigit()):
        yield path


def with_number(document: dict[str, Any], path: tuple[Any, ...], number: int) -> dict[str, Any]:
    """Return the document with a different number at a path."""
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = number if type(inner[path[-1]]) is int else str(number)
    return changed


def test_each_kind_of_object_that_is_read_contains_numbers() -> None:
    assert {one["kind"] for one in DOCUMENTS} == set(_READERS)


@pytest.mark.parametrize("number", [10**18, 10**30])
@pytest.mark.parametrize("index", range(len(DOCUMENTS)))
def test_no_number_of_an_object_takes_memory_or_time(
    index: int, number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in share([*numbers_in(DOCUMENTS[index])], 8):
        documents = list(DOCUMENTS)
        documents[index] = with_number(documents[index], path, number)
        *objects, claim, pod = documents
        for name, content in (
            ("all", {"apiVersion": "v1", "kind": "List", "items": [*objects, claim, pod]}),
            ("claim", claim),
            ("pod", pod),
            ("new", {**pod, "metadata": NEW}),
        ):
            (tmp_path / name).write_text(json.dumps(content))
        known = str(tmp_path / "all")
        for arguments in (
            ["why", str(tmp_path / "claim"), "--slices", known, "--claims", known],
            ["why", str(tmp_path / "pod"), "--slices", known, "--claims", known],
            ["why", str(tmp_path / "new"), "--slices", known, "--claims", known],
            ["fits", str(tmp_path / "pod"), "--node", known, "--slices", known, "--claims", known],
        ):
            status = main(arguments)
            printed = "".join(capsys.readouterr())
            assert status in range(5), (path, arguments)
            assert len(printed) < 20_000, (path, arguments)
            assert "Traceback" not in printed, (path, arguments)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB
