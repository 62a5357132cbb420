"""`devicecore checkpoint` with claims files."""

import base64
import json
from pathlib import Path

import pytest
from tests.command.conftest import Run

from devicecore.domain.dra.model import PreparedDevice
from devicecore.domain.dra.state_file import ClaimEntry, encode
from tests import recorded

GPU = PreparedDevice("node-1", "gpu-0", None, ("gpu",), ("gpu.example.com/gpu=c1-gpu-0",))
SHARE = PreparedDevice("node-1", "gpu-1", "5e9f3a52-0000-4000-8000-000000000000")
FIRST = ClaimEntry("c-1", "one", "default", ("p-a", "p-b"), {"gpu.example.com": (GPU, SHARE), "nic.example.com": None})
SECOND = ClaimEntry("c-2", "two", "default", (), {"gpu.example.com": (GPU,)})
FORMER = {  # the format of kubelets 1.26 to 1.30
    "version": "v1",
    "entries": [
        {
            "DriverName": "gpu.example.com",
            "ClassName": "gpu",
            "ClaimUID": "c-1",
            "ClaimName": "one",
            "Namespace": "default",
            "PodUIDs": {"p-a": {}},
            "ResourceHandles": [{"driverName": "gpu.example.com", "data": "opaque"}],
            "CDIDevices": {"gpu.example.com": ["gpu.example.com/gpu=0"]},
        }
    ],
    "checksum": 1234567890,
}


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    """A file with two claims, one of them unusual. The file's name does not show what it contains."""
    path = tmp_path / "state"
    path.write_bytes(encode([FIRST, SECOND]))
    return path


def test_verify_knows_a_file_of_claims_by_its_content(devicecore: Run, claims: Path) -> None:
    ran = devicecore("checkpoint", "verify", str(claims))
    assert ran.returncode == 0
    first, *warnings = ran.stdout.splitlines()
    assert first.startswith(f"{claims}: ok (ResourceClaims, 2 entries, checksum ")
    unused = f"{claims}: warning: no pod uses claim default/two, and a kubelet never releases such a claim"
    shared = f"{claims}: warning: 2 claims have device node-1/gpu-0 of gpu.example.com, which only admin access"
    assert warnings == [unused, f"{shared} allows: default/one, default/two"]
    assert devicecore("checkpoint", "verify", "--strict", str(claims)).returncode == 1
    (document,) = json.loads(devicecore("checkpoint", "verify", "--json", str(claims)).stdout)
    assert [document[key] for key in ("kind", "verdict", "entries")] == ["claims", "ok", 2]
    assert len(document["warnings"]) == 2


def test_verify_agrees_with_a_kubelet_on_each_recorded_file(devicecore: Run, tmp_path: Path) -> None:
    cases = [case for case in recorded.lines("dra/decode*.jsonl") if case["verdict"] != "other"][::15]
    for number, case in enumerate(cases):
        (tmp_path / f"dra_manager_state-{number}").write_bytes(base64.b64decode(case["bytes"]))
    files = [str(tmp_path / f"dra_manager_state-{number}") for number in range(len(cases))]
    found = json.loads(devicecore("checkpoint", "verify", "--json", *files).stdout)
    assert len(found) > 20
    for case, document in zip(cases, found, strict=True):
        if document["kind"] == "claims":
            assert document["verdict"] == case["verdict"], case["id"]
        else:  # Data is an object, as in a checkpoint of devices
            assert case["verdict"] == "malformed"


def test_show_prints_claims_with_their_pods_and_devices(devicecore: Run, claims: Path) -> None:
    ran = devicecore("checkpoint", "show", str(claims))
    text = " ".join(ran.stdout.split())
    assert "claim default/one (c-1) pods p-a, p-b" in text
    assert "gpu.example.com node-1/gpu-0 for gpu as gpu.example.com/gpu=c1-gpu-0" in text
    assert f"node-1/gpu-1 share {SHARE.share_id} nic.example.com not prepared" in text
    assert "warning: no pod uses claim default/two" in ran.stderr
    document = json.loads(devicecore("checkpoint", "show", "--json", "--pod", "p-a", str(claims)).stdout)
    assert [entry["ClaimUID"] for entry in document["entries"]] == ["c-1"]
    refused = devicecore("checkpoint", "show", "--free", str(claims))
    assert refused.returncode == 2
    assert "contains ResourceClaims" in refused.stderr


def test_a_file_with_a_wrong_checksum_is_shown(devicecore: Run, claims: Path) -> None:
    claims.write_bytes(claims.read_bytes().replace(b"gpu-1", b"gpu-7"))
    ran = devicecore("checkpoint", "show", str(claims))
    assert ran.returncode == 1
    assert "node-1/gpu-7" in ran.stdout
    assert "checksum" in ran.stderr


@pytest.mark.parametrize("has_devices", [False, True])
def test_a_file_of_an_old_kubelet_is_read_but_not_called_ok(devicecore: Run, tmp_path: Path, has_devices: bool) -> None:
    path = tmp_path / "old"
    document = json.loads(json.dumps(FORMER))
    if has_devices:  # the format of kubelet 1.31
        devices = [{"PoolName": "node-1", "DeviceName": "gpu-0", "CDIDeviceIDs": ["gpu.example.com/gpu=0"]}]
        document["entries"][0]["DriverState"] = {"gpu.example.com": {"Devices": devices}}
    path.write_text(json.dumps(document))
    verified = devicecore("checkpoint", "verify", str(path))
    assert verified.returncode == 1
    assert "it is a file from a kubelet before 1.32" in verified.stdout
    shown = devicecore("checkpoint", "show", str(path))
    expected = "node-1/gpu-0 as" if has_devices else "CDI names only as"
    assert f"gpu.example.com {expected} gpu.example.com/gpu=0" in " ".join(shown.stdout.split())
    assert "pods p-a" in " ".join(shown.stdout.split())


def test_diff_compares_claims_pods_and_devices(devicecore: Run, claims: Path, tmp_path: Path) -> None:
    after = tmp_path / "after"
    moved = ClaimEntry("c-1", "one", "default", ("p-b", "p-c"), {"gpu.example.com": (GPU,), "nic.example.com": ()})
    after.write_bytes(encode([ClaimEntry("c-3", "two", "default", ("p-d",), {}), moved]))
    ran = devicecore("checkpoint", "diff", str(claims), str(after))
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[:5] == [
        "removed: claim default/two (c-2)",
        "added: claim default/two (c-3)",
        "changed: claim default/one: pods removed: p-a",
        "changed: claim default/one: pods added: p-c",
        f"changed: claim default/one: devices removed: gpu.example.com: node-1/gpu-1 share {SHARE.share_id}",
    ]
    document = json.loads(devicecore("checkpoint", "diff", "--json", str(claims), str(after)).stdout)
    assert document["added"] == ["default/two (c-3)"]
    same = devicecore("checkpoint", "diff", str(claims), str(claims))
    assert (same.returncode, same.stdout) == (0, "")


def test_files_of_two_kinds_are_not_compared(devicecore: Run, claims: Path, tmp_path: Path) -> None:
    devices = tmp_path / "kubelet_internal_checkpoint"
    devices.write_text('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":0}')
    ran = devicecore("checkpoint", "diff", str(claims), str(devices))
    assert ran.returncode == 2
    assert "cannot be compared: one contains plugin devices, the other ResourceClaims" in " ".join(ran.stderr.split())


def test_claims_are_neither_repaired_nor_converted(devicecore: Run, claims: Path, tmp_path: Path) -> None:
    repaired = devicecore("checkpoint", "repair", str(claims), str(tmp_path / "new"))
    converted = devicecore("checkpoint", "convert", "--to", "1", "--output", str(tmp_path / "new"), str(claims))
    assert (repaired.returncode, converted.returncode) == (1, 2)
    assert "contains ResourceClaims" in repaired.stderr
    assert "contains ResourceClaims" in converted.stderr
    assert not (tmp_path / "new").exists()


def test_an_absent_file_is_known_by_its_name(devicecore: Run, tmp_path: Path) -> None:
    ran = devicecore("checkpoint", "verify", str(tmp_path / "dra_manager_state"))
    assert ran.stdout == f"{tmp_path}/dra_manager_state: absent: there is no claims file\n"
    empty = tmp_path / "dra_manager_state"
    empty.write_text("{}")
    assert devicecore("checkpoint", "verify", str(empty)).returncode == 0
