"""The comparison with Kubernetes' own code: the parts that can be tested without Go."""

import os
import re
import subprocess
from pathlib import Path
from random import Random
from shutil import which

import pytest

from devicecore import Topology
from devicecore.domain.allocation.faults import KubernetesFault
from tests.histories import RecordedPlugin, Replay
from tests.oracle import applies
from tests.oracle.asking import Json, differences
from tests.oracle.kinds import KINDS
from tests.oracle.planted import FAULTS, Fault

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("words", [[], ["SEED=ab", "KIND=dra"]], ids=["without", "with"])
def test_make_asks_new_questions_of_each_kind_unless_it_is_given_a_seed_and_a_kind(words: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("SEED", "KIND")}
    told = subprocess.run(
        [which("make") or "make", "-n", "oracle", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("--seed ab" in told.stdout, "--seed" in told.stdout) == (bool(words), bool(words))
    assert ("--kind dra" in told.stdout, "--kind" in told.stdout) == (bool(words), bool(words))


def test_the_same_random_numbers_make_the_same_case() -> None:
    for kind in KINDS.values():
        assert kind.case(Random("1")) == kind.case(Random("1"))
        assert len({str(kind.case(Random(f"{number}"))) for number in range(20)}) > 10


def test_each_place_where_two_answers_differ_is_named() -> None:
    ours, theirs = {"a": [1, 2], "b": 1, "d": None}, {"a": [1, 3], "c": 1, "d": None}
    assert list(differences(ours, ours)) == []
    assert list(differences(ours, theirs)) == [".a[1]: ours 2, theirs 3", ".b: ours only: 1", ".c: theirs only: 1"]
    assert list(differences([1], [1, 2])) == [": ours [1], theirs [1, 2]"]


def test_each_kind_of_difference_has_a_row() -> None:
    rows = set(re.findall(r"^\| `?([^ |`]+)`? \|", (ROOT / "docs" / "differences.md").read_text("utf-8"), re.MULTILINE))
    sources = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("[!t]*.py"))
    assert set(re.findall(r'"(D\d+)"', sources)) <= rows
    assert {fault.value for fault in KubernetesFault} <= rows


def test_an_empty_field_may_have_another_owner() -> None:
    data: Json = {"data": {"a": "1"}}
    me, other = ("a", "Update", ""), frozenset({("data", "a")})
    owner = {"manager": me[0], "operation": me[1], "fieldsV1": {"f:data": {"f:a": {}}, "f:binaryData": {}}}
    theirs: Json = {"object": {**data, "binaryData": None}, "managedFields": [owner]}
    assert applies.differ_in_empty_fields({}, data, data, {me: other}, theirs)
    assert applies.differ_in_empty_fields({}, data, data, {me: other | {("data",)}}, theirs)  # a null field
    assert not applies.differ_in_empty_fields(data, data, data, {}, theirs)
    assert not applies.differ_in_empty_fields({"data": {"a": "2"}}, data, data, {}, theirs)
    assert not applies.differ_in_empty_fields({}, data, {"data": {"a": "2"}}, {me: other}, theirs)


def test_an_older_instance_that_lists_again_changes_nothing() -> None:
    """A kubelet would accept the older instance's list, because it stores devices by resource name only (D28)."""
    resource, topology = "example.com/gpu", Topology((0,))
    replay = Replay(topology)
    one, two = ({"id": f"gpu-{number}", "health": "Healthy"} for number in range(2))
    replay.play({"op": "connect", "resource": resource, "devices": [one]})
    older = replay.connections[resource]
    replay.play({"op": "connect", "resource": resource, "devices": [one, two]})
    assert isinstance(older.plugin, RecordedPlugin)
    older.plugin.listed = ()
    older.report()
    assert replay.play({"op": "capacity"})["capacity"] == {resource: 2}


def test_a_device_that_is_no_longer_listed_crashes_no_manager() -> None:
    resource = "example.com/gpu"
    replay = Replay(Topology((0, 1)))
    device = {"id": "gpu-0", "health": "Healthy", "numa": [0]}
    pod = {
        "uid": "pod",
        "name": "pod",
        "namespace": "default",
        "initContainers": [],
        "containers": [{"name": "main", "limits": {resource: 1}}],
    }
    replay.play({"op": "connect", "resource": resource, "devices": [device]})
    assert replay.play({"op": "allocate", "pod": pod, "affinity": None})["ok"]
    other = {"id": "gpu-1", "health": "Healthy", "numa": [1]}
    replay.play({"op": "list_and_watch", "resource": resource, "devices": [other]})
    assert replay.play({"op": "hints", "pod": pod, "container": "main"}) == {resource: []}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_injected_fault_changes_a_file_of_a_compared_kind(fault: Fault) -> None:
    """Without this test, a fault that cannot be injected would stop `make mutants KIND=oracle` only after an hour."""
    home = f"devicecore/{fault.file}" if not fault.file.startswith("../") else fault.file.removeprefix("../")
    (file,) = (path for path in (ROOT / "src" / home, *ROOT.glob(f"packages/*/src/{home}")) if path.is_file())
    assert fault.before in file.read_text("utf-8")
    assert fault.before != fault.after
    assert fault.kind in KINDS


def test_the_fault_that_ci_injects_exists() -> None:
    (name,) = re.findall(r'tests\.oracle\.planted --fault "([^"]+)"', (ROOT / ".ci" / "run").read_text("utf-8"))
    assert [fault for fault in FAULTS if name in fault.name]
