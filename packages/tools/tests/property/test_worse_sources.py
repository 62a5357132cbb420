"""Commands other than `doctor` on a real node some of whose sources are missing, damaged, outdated or wrong."""

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main
from hypothesis import example, given
from hypothesis import strategies as st
from tests.doctor.test_recorded_nodes import FILE, HOW, NODES, OTHER, SOURCES, damage, of_truth, rewritten, written

from devicecore.domain.checkpoint import decode
from tests.recorded import share

worse = st.dictionaries(st.sampled_from(SOURCES), HOW, max_size=6)
others = st.sampled_from([*OTHER])
OF_PLUGINS = [name for name, files in NODES.items() if "Data" in str(files.get(FILE, ""))]
"""The nodes with a device checkpoint. Each law is tested on a sixth of these nodes, and in `make laws` on all."""


def with_worse_sources(directory: Path, name: str, other: str, damaged: dict[str, str]) -> Path:
    """Write a recorded node with changed and damaged sources, and return its path."""
    root = Path(written(directory, name))
    source, changed, _ = OTHER[other]
    if (root / source).exists():
        rewritten(root, source, changed)
    for file, how in damaged.items():
        if (root / file).exists():
            damage(root / file, how)
    return root


def ran(*arguments: str) -> tuple[int, str]:
    """Run a command, and return its exit status and standard output."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()):
        status = main(arguments)
    return status, out.getvalue()


def a_pod(file: Path, resource: str, count: int) -> str:
    container = {"name": "main", "image": "i", "resources": {"limits": {resource: str(count)}}}
    metadata = {"name": "probe", "uid": "probe", "namespace": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    file.write_text(json.dumps(pod))
    return str(file)


def resources_of(name: str) -> list[str]:
    return sorted({one["resource"] for one in NODES[name]["truth.json"]["devices"] if one.get("resource")})


@pytest.mark.parametrize("name", share(OF_PLUGINS, of=6))
@given(other=others, damaged=worse)
@example(other="no pods", damaged={})
@example(other="no pods", damaged={"pod-resources-list.json": "missing"})
@example(other="a checkpoint of other pods", damaged={"pod-resources-list.json": "missing"})
@example(other="the slices before the last device", damaged={})
def test_fits_gives_away_no_device_that_a_pod_holds(
    name: str, other: str, damaged: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Law: a device that `fits` names for a pod without a warning is not held by any running pod.

    The checkpoint may be older than a pod, and nothing else may name its devices: then the source says so.
    """
    root = with_worse_sources(tmp_path_factory.mktemp("node"), name, other, damaged)
    for resource in resources_of(name):
        status, printed = ran("fits", a_pod(root.with_name("pod.json"), resource, 1), "--root", str(root), "--json")
        if status == 2:
            continue
        (answer,) = json.loads(printed)["nodes"]
        given_away = {(one["resource"], id_) for one in answer["devices"] for id_ in one["devices"]}
        assert not given_away & of_truth(name, "in-use"), answer
        assert (status == 0) == (answer["fits"] is True)


@pytest.mark.parametrize("name", share([*OF_PLUGINS[1:], *OF_PLUGINS[:1]], of=6))
@given(other=others, damaged=worse)
def test_why_counts_no_device_as_free_that_a_pod_holds(
    name: str, other: str, damaged: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Law: with a message alone, `why` counts no device as free that is not, and prints no false finding."""
    root = with_worse_sources(tmp_path_factory.mktemp("node"), name, other, damaged)
    for resource in resources_of(name):
        message = f"0/1 nodes are available: 1 Insufficient {resource}."
        status, printed = ran("why", message, "--root", str(root), "--json")
        assert status == 0
        document: dict[str, Any] = json.loads(printed)
        _, looked = ran("doctor", "--root", str(root), "--json")
        codes = {one["code"] for one in json.loads(looked)["findings"]}
        assert {one["code"] for one in document["findings"]} <= codes
        for now in document["explanations"][0]["resources"]:
            truly = {one for one in of_truth(name, "free") if one[0] == now["resource"]}
            assert now["free"] is None or now["free"] <= len(truly), now


@pytest.mark.parametrize("name", share([*OF_PLUGINS[2:], *OF_PLUGINS[:2]], of=6))
@given(
    other=st.sampled_from(["as it was", "no pods", "the pods before the last one"]), part=st.sampled_from([0, 1, 99])
)
def test_repair_drops_no_entry_of_a_pod_that_runs(
    name: str, other: str, part: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Law: a list from one namespace, from a different node or without pods removes no running pod's entry."""
    root = with_worse_sources(tmp_path_factory.mktemp("node"), name, other, {})
    if not (root / FILE).exists() or not (root / "pods.json").exists():
        return
    pods = json.loads((root / "pods.json").read_text())
    pods["items"] = pods["items"][:part]
    (root / "pods.json").write_text(json.dumps(pods))
    status, _ = ran("checkpoint", "repair", "--pods", str(root / "pods.json"), str(root / FILE), str(root / "new"))
    before = decode((root / FILE).read_bytes()).data.entries or ()
    if status == 0:
        kept = {one.pod_uid for one in decode((root / "new").read_bytes()).data.entries or ()}
        running = {one["metadata"]["uid"] for one in NODES[name]["pods.json"]["items"]}
        assert {one.pod_uid for one in before} & running <= kept
