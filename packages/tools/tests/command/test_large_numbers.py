"""A number of a foreign object is never a length or a range: `why` and `fits` end, with a sentence or a verdict.

Each numeric field of each object that they read is as large as 64 bits allow, and larger.
"""

import copy
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

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
    },
}
DOCUMENTS: tuple[dict[str, Any], ...] = (*OBJECTS, CLAIM, POD)


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - any JSON
    """Return the path of each number and quantity."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, one in items:
        yield from numbers_in(one, (*path, key))
    if type(value) is int or (isinstance(value, str) and value[:1].isdigit()):
        yield path


def with_number(document: dict[str, Any], path: tuple[Any, ...], number: int) -> dict[str, Any]:
    """Return the document with another number at a path."""
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = number if type(inner[path[-1]]) is int else str(number)
    return changed


@pytest.mark.parametrize("number", [10**18, 10**30])
@pytest.mark.parametrize("index", range(len(DOCUMENTS)))
def test_no_number_of_an_object_takes_memory_or_time(
    index: int, number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in numbers_in(DOCUMENTS[index]):
        documents = list(DOCUMENTS)
        documents[index] = with_number(documents[index], path, number)
        *objects, claim, pod = documents
        for name, content in (
            ("all", {"apiVersion": "v1", "kind": "List", "items": [*objects, claim, pod]}),
            ("claim", claim),
            ("pod", pod),
        ):
            (tmp_path / name).write_text(json.dumps(content))
        known = str(tmp_path / "all")
        for arguments in (
            ["why", str(tmp_path / "claim"), "--slices", known, "--claims", known],
            ["why", str(tmp_path / "pod"), "--slices", known, "--claims", known],
            ["fits", str(tmp_path / "pod"), "--node", known, "--slices", known, "--claims", known],
        ):
            status = main(arguments)
            printed = "".join(capsys.readouterr())
            assert status in range(5), (path, arguments)
            assert len(printed) < 20_000, (path, arguments)
            assert "Traceback" not in printed, (path, arguments)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB
