"""On objects within the API's limits, `why` and `fits` take at most 512 MB and 30 s of processor time.

`make storm` uses full-size objects. In `make test`, the objects are small, and the tests check only that a question
ends with an answer, in this process.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command.conftest import run_here

from tests.reliability.scale import STORM, scale

MAX_MEGABYTES, MAX_SECONDS = 512, 30.0
DRIVER = "gpu.example.com"
CLASS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
Objects = list[dict[str, Any]]


def slice_of(name: str, devices: Objects, **place: object) -> dict[str, Any]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": pool, "devices": devices, **place}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def devices(count: int) -> Objects:
    return [{"name": f"d{number}"} for number in range(count)]


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    status = {"allocatable": amounts, "capacity": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def claim(name: str, requests: Objects, **more: object) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}"}
    of_devices = {"requests": requests, "constraints": more.pop("constraints", [])}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    return {**head, "spec": {"devices": of_devices}, **more}


def exactly(name: str, **fields: object) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": "any", **fields}}


def pod(claims: int, **spec: object) -> dict[str, Any]:
    named = [{"name": f"x{number}", "resourceClaimName": f"c{number}"} for number in range(claims)]
    containers = [{"name": "m", "resources": {"requests": {"cpu": "1"}}}]
    metadata = {"name": "p", "namespace": "default", "uid": "u-p"}
    spec = {"containers": containers, "resourceClaims": named, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def selected_by(text: str) -> Objects:
    return [{"cel": {"expression": f'device.driver == "{text}"'}}]


def many_constraints() -> tuple[dict[str, Any], Objects]:
    """Return a claim with constraints that link pairs of its requests in cycles, and the objects in its cluster."""
    large = [
        {
            "name": f"d{number}",
            "attributes": {"a": {"int": number % 7}, "b": {"int": number % 11}, "c": {"string": str(number % 13)}},
        }
        for number in range(scale(16, 128))
    ]
    slices = [slice_of(f"p{number}", large, nodeName="n") for number in range(scale(1, 8))]
    count = scale(4, 32)
    constraints = [
        {
            "requests": [f"r{number}", f"r{(number * (7 - 2 * is_other) + 1) % count}"],
            ("distinctAttribute" if is_other else "matchAttribute"): f"{DRIVER}/{'abc'[number % 3]}",
        }
        for is_other in (0, 1)
        for number in range(count // 2)
    ]
    return claim("c", [exactly(f"r{number}") for number in range(count)], constraints=constraints), [
        *slices,
        node("n"),
    ]


def many_alternatives() -> tuple[dict[str, Any], Objects]:
    """Return a claim with alternatives that no device on a large node satisfies, and the objects in its cluster."""
    requests = [
        {
            "name": f"r{number}",
            "firstAvailable": [
                {"name": f"s{way}", "deviceClassName": "any", "selectors": selected_by(f"no{number}x{way}")}
                for way in range(8)
            ],
        }
        for number in range(scale(4, 32))
    ]
    slices = [slice_of(f"p{number}", devices(scale(16, 128)), nodeName="n") for number in range(scale(2, 1000))]
    return claim("c", requests), [*slices, node("n")]


def many_nodes() -> tuple[dict[str, Any], Objects]:
    """Return a claim whose requests match no device, and a cluster with many devices that all nodes can use."""
    slices = [slice_of(f"p{number}", devices(128), allNodes=True) for number in range(scale(1, 20))]
    requests = [exactly(f"r{number}", selectors=selected_by(f"no{number}")) for number in range(32)]
    return claim("c", requests), [*slices, *(node(f"n{number}") for number in range(scale(5, 5000)))]


def many_terms() -> tuple[dict[str, Any], Objects]:
    """Return a pod with many node affinity terms that select no node, and a cluster with many nodes."""
    values = [f"v{number}" for number in range(10)]
    terms = [
        {"matchExpressions": [{"key": f"k{number}", "operator": "In", "values": values}]}
        for number in range(scale(20, 2000))  # a manifest may have 50,000 values
    ]
    required = {"nodeSelectorTerms": terms}
    asked = pod(1, affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})
    count = scale(5, 5000)
    slices = [slice_of(f"p{number}", devices(8), nodeName=f"n{number}") for number in range(count)]
    return asked, [*slices, claim("c0", [exactly("r")]), *(node(f"n{number}") for number in range(count))]


def many_claims() -> tuple[dict[str, Any], Objects]:
    """Return a pod with more claims than a node has devices, and the objects in its cluster."""
    count = scale(40, 3000)
    claims = [claim(f"c{number}", [exactly("r")]) for number in range(count)]
    return pod(count), [*claims, slice_of("p", devices(scale(8, 128)), nodeName="n"), node("n")]


def many_idle_claims() -> tuple[dict[str, Any], Objects]:
    """Return a pod with unused claims that are each allocated on a different node, and the objects in its cluster."""
    count, nodes = scale(10, 1000), scale(20, 5000)

    def allocated(number: int) -> dict[str, Any]:
        fields = [{"key": "metadata.name", "operator": "In", "values": [f"n{number}"]}]
        result = {"request": "r", "driver": DRIVER, "pool": f"p{number}", "device": "d0"}
        selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
        return {"allocation": {"nodeSelector": selector, "devices": {"results": [result]}}}

    claims = [claim(f"c{number}", [exactly("r")], status=allocated(number)) for number in range(count)]
    slices = [slice_of(f"p{number}", devices(1), nodeName=f"n{number}") for number in range(nodes)]
    return pod(count), [*claims, *slices, *(node(f"n{number}") for number in range(nodes))]


KINDS = (many_constraints, many_alternatives, many_nodes, many_terms, many_claims, many_idle_claims)


def commands(asked: Path, known: Path, bare: Path) -> Iterator[list[str]]:
    """Yield the arguments of the commands that ask about the object in the file `asked`."""
    files = ["--slices", str(known), "--claims", str(known)]
    yield ["why", str(asked), *files]
    if json.loads(asked.read_text())["kind"] == "Pod":
        yield ["fits", str(asked), "--node", str(bare), *files]


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_about_large_objects_ends_with_an_answer(
    kind: Callable[[], tuple[dict[str, Any], Objects]], tmp_path: Path
) -> None:
    asked, objects = kind()
    first = next((one["metadata"]["name"] for one in objects if one["kind"] == "Node"), "n")
    for name, content in (
        ("asked.json", asked),
        ("known.json", {"apiVersion": "v1", "kind": "List", "items": [*objects, CLASS]}),
        ("node.json", node(first)),
    ):
        (tmp_path / name).write_text(json.dumps(content))
    for words in commands(tmp_path / "asked.json", tmp_path / "known.json", tmp_path / "node.json"):
        status, megabytes, seconds = run(words, tmp_path)
        printed = (tmp_path / "out").read_text() + (tmp_path / "err").read_text()
        assert status in {0, 1, 3, 4}, printed[-2000:]
        assert "Traceback" not in printed
        assert megabytes < MAX_MEGABYTES, words
        assert seconds < MAX_SECONDS, words


# A child's peak memory includes its parent's memory at the fork, and the test process is large.
MEASURE = """
import os, sys
_, status, used = os.wait4(os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ), 0)
with open(sys.argv[1], "w") as file:
    print(os.waitstatus_to_exitcode(status), used.ru_maxrss / 1024, used.ru_utime + used.ru_stime, file=file)
"""


def run(words: list[str], directory: Path) -> tuple[int, float, float]:
    """Run devicecore, and return its exit status, and the megabytes and seconds of processor time that it used."""
    if not STORM:
        ran = run_here(words)
        (directory / "out").write_text(ran.stdout)
        (directory / "err").write_text(ran.stderr)
        return ran.returncode, 0.0, 0.0
    used = directory / "used"
    with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
        program = [sys.executable, "-m", "devicecore_tools", *words]
        measured = [sys.executable, "-I", "-S", "-c", MEASURE, str(used), *program]
        subprocess.run(measured, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=True)
    status, megabytes, seconds = used.read_text().split()
    return int(status), float(megabytes), float(seconds)
