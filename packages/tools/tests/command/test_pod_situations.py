"""`why` and `fits` answer as a real scheduler did: they give the verdict, node and devices of recorded pods."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

Capsys = pytest.CaptureFixture[str]
Json = Any
DATA = Path(__file__).parents[1] / "data" / "pods"
PODS: dict[str, Json] = {one.stem: json.loads(one.read_text("utf-8")) for one in sorted(DATA.glob("*.json"))}
STATUS = {"scheduled": {0}, "refused": {1, 4}, "waiting": {1, 3}}
"""The allowed exit statuses for each verdict of the scheduler.

A waiting pod may be waiting for a driver (status 3), or one of its objects was refused (status 1).
"""


def files_of(name: str, where: Path) -> tuple[str, str]:
    """Write a recorded pod and the objects in its cluster to two files, and return the files' paths."""
    pod, objects = where / "pod.json", where / "objects.json"
    pod.write_text(json.dumps(PODS[name]["pod"]), encoding="utf-8")
    objects.write_text(json.dumps(PODS[name]["objects"]), encoding="utf-8")
    return str(pod), str(objects)


def devices_in(node: Json) -> set[tuple[str, str]]:
    """Return the devices that claims would get on a node, each with the name of its request."""
    return {
        (one["request"].partition("/")[0], f"{one['driver']}/{one['pool']}/{one['device']}")
        for allocation in node["allocations"]
        for one in allocation["devices"]["results"]
    }


@pytest.mark.parametrize("name", PODS)
def test_why_answers_as_the_scheduler_did(name: str, tmp_path: Path, capsys: Capsys) -> None:
    """The verdict is for the whole pod. If the pod was scheduled, `why` names its node and devices."""
    truth, (pod, objects) = PODS[name]["truth"], files_of(name, tmp_path)
    status = main(["why", pod, "--slices", objects, "--claims", objects, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert status in STATUS[truth["verdict"]], document
    if truth["verdict"] != "scheduled":
        return
    assert document["node"] == truth["node"]
    (node,) = [one for one in document["nodes"] if one["node"] == truth["node"]]
    given = [one for of_claim in truth["devices"].values() for one in of_claim or ()]
    real = {request.partition("/")[0]: 0 for request, *_ in given}
    assert {device for _, device in devices_in(node)} == {device for _, device, *_ in given}, real


@pytest.mark.parametrize("name", PODS)
def test_fits_answers_as_why_does(name: str, tmp_path: Path, capsys: Capsys) -> None:
    """The pod fits on the node on which it was placed, and on no node if it was refused (except after an error)."""
    truth, (pod, objects) = PODS[name]["truth"], files_of(name, tmp_path)
    nodes = [one["metadata"]["name"] for one in PODS[name]["objects"]["items"] if one["kind"] == "Node"]
    statuses = {}
    for node in nodes:
        described = tmp_path / f"{node}.yaml"
        described.write_text(f"name: {node}\ndevices: []\n", encoding="utf-8")
        statuses[node] = main(["fits", pod, "--node", str(described), "--slices", objects, "--claims", objects])
    said = capsys.readouterr().out
    if truth["verdict"] == "scheduled":
        assert statuses[truth["node"]] == 0, said
    elif "filter plugin" in truth["message"]:  # an error on one node that does not occur on another
        assert set(statuses.values()) & {1, 4}, said
    else:
        assert not set(statuses.values()) & {0}, said


def test_why_names_the_node_that_is_out_of_the_question(tmp_path: Path, capsys: Capsys) -> None:
    """The node that has the devices is named first, with the reason why the pod cannot run there."""
    pod, objects = files_of("node-with-the-devices-is-cordoned", tmp_path)
    main(["why", pod, "--slices", objects, "--claims", objects])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  but           n2 has the devices, but is ruled out: node(s) had untolerated")
    assert lines[2] == "  gets them if  node n2 is uncordoned"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("advice-drops-a-whole-expression", 'uses "Max" instead of "max", and "48Gi" instead of "64Gi"'),
        ("advice-lacks-cores-70", "asks for 70 of cores"),
        ("advice-no-capacity-in-place-of-8Gi", "asks for 8Gi of size"),
        ("holder-without-a-pod", "which no pod uses, is deleted: kubectl delete resourceclaim h0 --namespace default"),
    ],
)
def test_the_first_advice_keeps_most_of_the_request(name: str, advice: str, tmp_path: Path, capsys: Capsys) -> None:
    pod, objects = files_of(name, tmp_path)
    main(["why", pod, "--slices", objects, "--claims", objects])
    first = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  gets them if"))
    assert advice in first
