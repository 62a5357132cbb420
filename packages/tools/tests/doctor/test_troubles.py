"""Nodes of a real kubelet 1.37.2 with problems, recorded by `make cluster PART=doctor RECORDS=...`.

In each record, `truth.json` contains pods that were tried on the node. `fits` must say what really happened to these
pods.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

from tests.recorded import share

Capsys = pytest.CaptureFixture[str]
DATA = Path(__file__).parent.parent / "data" / "troubles"
RECORDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
FITS, FITS_NOT, UNKNOWN = (0,), (1, 4), (2, 3)


def written(directory: Path, name: str) -> Path:
    """Write a record as a directory, and return the directory's path."""
    (root := directory / name).mkdir()
    for file, content in RECORDS[name].items():
        if file != "truth.json":
            (root / file).write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def test_there_are_records_of_many_kinds() -> None:
    assert len(RECORDS) >= 30


@pytest.mark.parametrize("name", share([*RECORDS], of=4))
def test_statements_about_a_troubled_node_are_true(name: str, tmp_path: Path, capsys: Capsys) -> None:
    root, truth = written(tmp_path, name), RECORDS[name]["truth.json"]
    main(["doctor", "--root", str(root), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert sorted({one["code"] for one in document["findings"]}) == truth["findings"]
    for probe in truth["probes"]:
        pod = probe["metadata"]["name"]
        (file := tmp_path / f"{pod}.json").write_text(json.dumps(probe))
        status = main(["fits", str(file), "--node", str(root)])
        said = capsys.readouterr().out
        name_of_node = RECORDS[name].get("node.json", {}).get("metadata", {}).get("name", str(root))
        assert said.startswith(f"{name_of_node}: ")
        decided = FITS if truth["runs"][pod] else FITS_NOT
        assert status in (UNKNOWN if truth["fits"][pod] in UNKNOWN else decided), said
        if status in FITS_NOT:
            assert "reason" in said or "no source names this resource" in said


def test_a_static_pod_is_one_pod_although_it_has_two_uids(tmp_path: Path, capsys: Capsys) -> None:
    root = written(tmp_path, "a_static_pod_has_devices")
    (file := tmp_path / "three.json").write_text(
        json.dumps(RECORDS["a_static_pod_has_devices"]["truth.json"]["probes"][1])
    )
    assert main(["fits", str(file), "--node", str(root)]) == 1
    said = capsys.readouterr().out
    assert ("fits if  pod default/holder-" in said, "these 2 pods end" in said) == (True, False)


def test_claims_whose_driver_hangs_get_no_devices(tmp_path: Path, capsys: Capsys) -> None:
    """The scheduler would allocate devices to the claims, but the driver never prepares them."""
    name = "a_driver_hangs_when_it_should_prepare"
    root, (probe,) = written(tmp_path, name), RECORDS[name]["truth.json"]["probes"]
    (file := tmp_path / "probe.json").write_text(json.dumps(probe))
    files = {"DeviceClass": "deviceclasses", "ResourceSlice": "resourceslices", "ResourceClaim": "resourceclaims"}
    items = [{**one, "kind": kind} for kind, of in files.items() for one in RECORDS[name][f"{of}.json"]["items"]]
    objects = {"kind": "List", "items": [*items, RECORDS[name]["node.json"]]}
    (tmp_path / "objects.json").write_text(json.dumps(objects))
    status = main(["fits", str(file), "--node", str(root), "--slices", str(tmp_path / "objects.json")])
    assert status == 1, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "cannot be prepared: DRA driver gpu.example.com does not answer" in said
    assert "gets its devices" in said


def test_a_device_that_another_claim_lost_may_still_be_prepared(tmp_path: Path, capsys: Capsys) -> None:
    """The scheduler allocates the device again, but the driver, which was not informed, refuses to prepare it."""
    name = "most_devices_of_a_driver_are_held"
    root, probe = written(tmp_path, name), RECORDS[name]["truth.json"]["probes"][1]
    (file := tmp_path / "probe.json").write_text(json.dumps(probe))
    files = {"DeviceClass": "deviceclasses", "ResourceSlice": "resourceslices", "ResourceClaim": "resourceclaims"}
    objects, statuses = tmp_path / "objects.json", []
    for is_lost in (False, True):
        claims = RECORDS[name]["resourceclaims.json"]["items"]
        if is_lost:
            claims = [{**one, "status": {}} if one["metadata"]["name"] == "held" else one for one in claims]
        (root / "resourceclaims.json").write_text(json.dumps({"kind": "ResourceClaimList", "items": claims}))
        kept = {**RECORDS[name], "resourceclaims.json": {"items": claims}}
        items = [{**one, "kind": kind} for kind, of in files.items() for one in kept[f"{of}.json"]["items"]]
        objects.write_text(json.dumps({"kind": "List", "items": [*items, RECORDS[name]["node.json"]]}))
        statuses.append(main(["fits", str(file), "--node", str(root), "--slices", str(objects)]))
    said = capsys.readouterr().out
    assert statuses == [1, 3], said
    assert "is prepared here for ResourceClaim default/held" in said
