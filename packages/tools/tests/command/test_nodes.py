"""`devicecore nodes`: what nodes have, what is free, and who holds the rest, from a cluster or from files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main
from devicecore_tools.testing.api_server import LocalApiServer

Capsys = pytest.CaptureFixture[str]
Json = Any
GPU, DRIVER = "example.com/gpu", "gpu.example.com"


def node(name: str, capacity: int, allocatable: int, **labels: str) -> Json:
    """Return a Node with a plugin's devices."""
    status = {"capacity": {GPU: str(capacity), "cpu": "8"}, "allocatable": {GPU: str(allocatable), "cpu": "8"}}
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}, "status": status}


def pod(name: str, on: str, limit: int = 0, phase: str = "Running", claim: str = "") -> Json:
    """Return a pod that is bound to a node."""
    container: Json = {"name": "main", "image": "img", "resources": {"limits": {GPU: str(limit)} if limit else {}}}
    spec: Json = {"nodeName": on, "containers": [container]}
    if claim:
        spec["resourceClaims"] = [{"name": "c", "resourceClaimName": claim}]
        container["resources"]["claims"] = [{"name": "c"}]
    status = {"phase": phase} if phase == "Pending" else {"phase": phase, "startTime": "2026-01-01T00:00:00Z"}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": status}


def slice_of(on: str, *devices: Json) -> Json:
    """Return a node's ResourceSlice."""
    pool = {"name": on, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": on, "pool": pool, "devices": list(devices)}
    return {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": on}, "spec": spec}


def claim(name: str, on: str, device: str, **result: Json) -> Json:
    """Return a claim that holds a device."""
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    results = [{"request": "r", "driver": DRIVER, "pool": on, "device": device, **result}]
    metadata = {"name": name, "namespace": "team"}
    return {
        "kind": "ResourceClaim",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": metadata,
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


TAINT = {"key": "broken", "effect": "NoSchedule"}
CLUSTER = [
    node("n10", 4, 4, pool="gpu"),
    node("n2", 4, 3, pool="gpu"),
    node("bare", 0, 0),
    pod("runs", "n2", 2),
    pod("waits", "n2", 1, "Pending"),
    pod("ended", "n2", 1, "Succeeded"),
    pod("trains", "n10", claim="held"),
    slice_of("n10", {"name": "gpu-0"}, {"name": "gpu-1"}, {"name": "gpu-2", "taints": [TAINT]}),
    claim("held", "n10", "gpu-0"),
    claim("watched", "n10", "gpu-1", adminAccess=True),
]


def saved(path: Path, objects: list[Json]) -> str:
    """Write objects as `kubectl get -o json` prints them."""
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}), encoding="utf-8")
    return str(path)


def asked(capsys: Capsys, *arguments: str, status: int = 0) -> Json:
    """Run the command, and return the JSON that it prints."""
    assert main(["nodes", "--json", *arguments]) == status
    return json.loads(capsys.readouterr().out)


def counts(document: Json) -> Json:
    """Return the numbers for each node and resource."""
    return {
        (of["name"], one["name"]): tuple(
            one[column] for column in ("allocatable", "requested", "held", "free", "unhealthy")
        )
        for of in document["nodes"]
        for one in of["resources"]
    }


EXPECTED = {
    ("n2", GPU): (3, 3, 2, 0, 1),
    ("n10", GPU): (4, 0, 0, 4, 0),
    ("n10", DRIVER): (2, 1, 1, 1, 1),
}


def test_devices_are_counted_as_a_scheduler_counts_them(tmp_path: Path, capsys: Capsys) -> None:
    """A pod that has not started takes up devices on its node, and a pod that has ended takes up none."""
    document = asked(capsys, saved(tmp_path / "all.json", CLUSTER))
    assert {key: of for key, of in counts(document).items() if key[0] != "bare"} == EXPECTED
    assert [of["name"] for of in document["nodes"]] == ["bare", "n2", "n10"]
    assert document["not_read"] == {}
    assert [(one["name"], one["free"]) for one in document["totals"]] == [(GPU, 4), (DRIVER, 1)]


def test_a_cluster_and_its_files_give_the_same_table(tmp_path: Path, capsys: Capsys) -> None:
    """The objects are read from an API server, and then from a file with the same objects."""
    with LocalApiServer() as server:
        server.create({"kind": "Namespace", "metadata": {"name": "team"}})
        for one in CLUSTER:
            server.create(one)
        config = str(server.kubeconfig(tmp_path / "config"))
        live = asked(capsys, "--devices", "--kubeconfig", config)
    assert live == asked(capsys, "--devices", saved(tmp_path / "all.json", CLUSTER))


def test_each_device_is_listed_with_who_has_it(tmp_path: Path, capsys: Capsys) -> None:
    """Claims name the devices of drivers. A pod's status names some plugin devices, and the others are only counted."""
    cluster = json.loads(json.dumps(CLUSTER))
    running = next(one for one in cluster if one["metadata"]["name"] == "runs")
    health = [{"name": GPU, "resources": [{"resourceID": "gpu-7", "health": "Unhealthy"}]}]
    running["status"]["containerStatuses"] = [{"name": "main", "allocatedResourcesStatus": health}]
    assert main(["nodes", "--devices", saved(tmp_path / "all.json", cluster)]) == 0
    rows = [line.split("   ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["n2", GPU, "gpu-7", "held, unhealthy", "team", "runs", "main", "-"] in cells
    assert ["n2", GPU, "(1 not named)", "held", "team", "runs", "main", "-"] in cells
    assert ["n2", GPU, "(1 not named)", "requested", "team", "waits", "main", "-"] in cells
    assert ["n10", DRIVER, "n10/gpu-0", "held", "team", "trains", "main", "team/held"] in cells
    assert ["n10", DRIVER, "n10/gpu-1", "free", "-", "-", "-", "-"] in cells
    assert ["n10", DRIVER, "n10/gpu-2", "unhealthy", "-", "-", "-", "-"] in cells


def partitioned(*sizes: tuple[str, dict[str, int]]) -> list[Json]:
    """Return two slices of a pool whose devices consume the counters of two GPUs."""
    sets = [{"name": f"gpu-{gpu}", "counters": {"memory": {"value": "8"}, "cores": {"value": "7"}}} for gpu in (0, 1)]
    devices = [
        {
            "name": f"gpu-{gpu}-{name}",
            "consumesCounters": [
                {"counterSet": f"gpu-{gpu}", "counters": {key: {"value": str(amount)} for key, amount in size.items()}}
            ],
        }
        for gpu in (0, 1)
        for name, size in sizes
    ]
    of_sets, of_devices = slice_of("n10"), slice_of("n10", *devices)
    del of_sets["spec"]["devices"]
    of_sets["spec"]["sharedCounters"] = sets
    of_sets["metadata"]["name"] = "n10-counters"
    for one in (of_sets, of_devices):
        one["spec"]["pool"]["resourceSliceCount"] = 2
    return [of_sets, of_devices]


WHOLE = ("whole", {"memory": 8, "cores": 7})
PARTS = [(f"part-{number}", {"memory": 1, "cores": 1}) for number in range(7)]
HALVES = [(f"half-{number}", {"memory": 4, "cores": 3}) for number in range(2)]


@pytest.mark.parametrize(
    ("sizes", "held", "expected"),
    [
        ([WHOLE, *PARTS, *HALVES], "", (14, 0, 0, 14, 0)),
        ([WHOLE, *PARTS, *HALVES], "gpu-0-whole", (14, 1, 1, 7, 0)),
        ([WHOLE, *PARTS, *HALVES], "gpu-0-part-3", (14, 1, 1, 13, 0)),
        ([WHOLE], "gpu-1-whole", (2, 1, 1, 1, 0)),
        # taking the smallest device first prevents the other two, so the number is not known
        (
            [("a", {"memory": 5, "cores": 1}), ("b", {"memory": 4, "cores": 3}), ("c", {"memory": 4, "cores": 4})],
            "",
            (None, 0, 0, None, 0),
        ),
    ],
)
def test_of_devices_that_share_counters_only_those_that_fit_together_count(
    sizes: list[tuple[str, dict[str, int]]], held: str, expected: Json, tmp_path: Path, capsys: Capsys
) -> None:
    """A GPU with seven partitions is either one device or seven."""
    of_claim = [claim("held", "n10", held)] if held else [claim("none", "n2", "gpu-0")]
    cluster = [node("n10", 0, 0), pod("trains", "n10", claim="held"), *partitioned(*sizes), *of_claim]
    files = saved(tmp_path / "all.json", cluster)
    assert counts(asked(capsys, files))["n10", DRIVER] == expected


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("pool=gpu", ["n2", "n10"]),
        ("pool==gpu,!zone", ["n2", "n10"]),
        ("!pool", ["bare"]),
        ("pool notin (gpu, cpu)", ["bare"]),
        ("pool in (gpu,cpu)", ["n2", "n10"]),
        ("pool!=gpu", ["bare"]),
    ],
)
def test_nodes_are_selected_by_labels_as_kubectl_does(
    selector: str, names: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    """The selector has the syntax of `kubectl get -l`."""
    document = asked(capsys, saved(tmp_path / "all.json", CLUSTER), "--node-selector", selector)
    assert [of["name"] for of in document["nodes"]] == names


def test_a_resource_is_selected_by_a_pattern(tmp_path: Path, capsys: Capsys) -> None:
    """A pattern may contain a star, so one option finds all MIG slices."""
    document = asked(capsys, saved(tmp_path / "all.json", CLUSTER), "--resource", "gpu.*")
    assert [one["name"] for of in document["nodes"] for one in of["resources"]] == [DRIVER]
    assert main(["nodes", str(tmp_path / "all.json"), "--resource", "gpu"]) == 0
    expected = f"3 nodes of 3 have no such devices.\nThe resources are: {', '.join(sorted([GPU, DRIVER]))}\n"
    assert capsys.readouterr().out == expected


def test_a_cluster_without_devices_has_no_other_resources_either(tmp_path: Path, capsys: Capsys) -> None:
    bare = [{"kind": "Node", "metadata": {"name": "n1"}}]
    assert main(["nodes", saved(tmp_path / "all.json", bare), "--resource", "gpu"]) == 3
    said = capsys.readouterr().out
    assert "1 node of 1 has no such devices.\nNo devices of other resources were found either.\nnot read: " in said


@pytest.mark.parametrize(
    ("missing", "kinds"),
    [("Pod", ["pods"]), ("ResourceClaim", ["ResourceClaims"]), ("ResourceSlice", ["ResourceSlices"])],
)
def test_a_number_that_was_not_read_is_never_zero(
    missing: str, kinds: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    """Without pods, no plugin's device is shown as free, and without claims, no driver's device. The status is 3."""
    files = saved(tmp_path / "some.json", [one for one in CLUSTER if one["kind"] != missing])
    document = asked(capsys, files, status=3)
    assert list(document["not_read"]) == kinds
    known = counts(document)
    if missing == "Pod":
        assert known["n2", GPU] == (3, None, None, None, 1)
        assert known["n10", DRIVER] == (2, 1, None, 1, 1)
    elif missing == "ResourceClaim":
        assert known["n10", DRIVER] == (2, None, None, None, 1)
    assert main(["nodes", files]) == 3
    assert f"not read: {kinds[0]}: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{}", "--kubeconfig", "{}"], "expected one of FILE, --kubeconfig and --in-cluster."),
        (
            ["{}", "-l", "pool==="],
            "expected requirements such as tier=gpu, tier!=gpu, tier in (a, b) or !tier, got 'po",
        ),
        (["{}", "-l", "pool=none"], "there is no node with the labels pool=none"),
        ([], "there is no kubeconfig"),
        (
            ["n2", "--kubeconfig", "{}"],
            "To show one node of the cluster, use --node-selector kubernetes.io/hostname=n2.",
        ),
        (["/nowhere/x.json"], "/nowhere/x.json: No such file or directory"),
    ],
)
def test_unreadable_input_gets_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command exits with status 2 and says what is wrong or what was expected."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    files = saved(tmp_path / "all.json", CLUSTER)
    assert main(["nodes", *(one.format(files) for one in arguments)]) == 2
    assert sentence in capsys.readouterr().err


def test_a_directory_is_not_a_kubeconfig(tmp_path: Path, capsys: Capsys) -> None:
    assert main(["nodes", "--kubeconfig", str(tmp_path)]) == 2
    assert f"{tmp_path} is a directory. Name a kubeconfig with --kubeconfig" in capsys.readouterr().err


def test_the_kubeconfig_of_kubectl_is_the_default(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$KUBECONFIG may name several files; the first that exists is read."""
    with LocalApiServer() as server:
        server.create(node("n1", 1, 1))
        config = server.kubeconfig(tmp_path / "config")
        monkeypatch.setenv(
            "KUBECONFIG", os.pathsep.join((str(tmp_path / "gone"), str(config), str(tmp_path / "other")))
        )
        document = asked(capsys)
    assert counts(document) == {("n1", GPU): (1, 0, 0, 1, 0)}
