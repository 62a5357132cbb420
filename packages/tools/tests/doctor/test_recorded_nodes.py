"""Nodes of a real kubelet 1.36.2, recorded in various situations: what must be found, and what must not be reported."""

import json
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from devicecore_tools.command.main import main
from devicecore_tools.doctor.look.values import ALLOCATABLE_NAME, LIST_NAME
from hypothesis import given
from hypothesis import strategies as st

from devicecore.domain.checkpoint import CheckpointData, decode, encode
from devicecore.domain.dra.state_file import ClaimEntry, entries_of
from devicecore.domain.dra.state_file import encode as encode_claims
from tests.recorded import share

Capsys = pytest.CaptureFixture[str]
DATA = Path(__file__).parent.parent / "data" / "nodes"
NODES: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
FINDINGS = {
    "02-checkpoint-lost": ["request-without-device"],
    "03-plugin-ended": ["plugin-gone"],
    "04-plugin-gone-kubelet-restarted": ["plugin-gone"],
    "05-plugin-gone-list-empty": ["plugin-gone"],
    "07-dra-state-damaged": ["kubelet-gone", "kubelet-cannot-start"],
    "09-unhealthy-in-use": ["held-unhealthy"],
    "10-unhealthy-free": ["unhealthy"],
    "13-pending-claim-events-only": ["driver-gone", "claim-not-prepared"],
    "15-kubelet-just-started": ["kubelet-starting"],
    "17-plugin-and-driver-same-gpus": ["plugin-and-claim", "plugin-and-claim", "offered-and-claimed"],
    "21-dra-unhealthy": ["claimed-unhealthy"],
    "23-kubelet-stopped": ["kubelet-gone"],
}
"""The findings on each node. There must not be any others."""

# devices that are free but cannot be reported as free, because a source is missing or does not know them
NO_SOURCE_SHOWS_IT = {
    "02-checkpoint-lost": {"gpu-2"},
    "07-dra-state-damaged": {"gpu-0", "gpu-1", "gpu-2", "dev-1", "dev-2", "dev-3"},
    "10-unhealthy-free": {"gpu-0"},
    "15-kubelet-just-started": {"gpu-1"},
    "23-kubelet-stopped": {"gpu-1"},
}
NOTHING = '{"kind": "List", "items": []}'
SOURCES = sorted({name for files in NODES.values() for name in files} - {"truth.json", "deviceclasses.json"})


def written(directory: Path, name: str, without: frozenset[str] = frozenset()) -> str:
    """Write a recorded node as a directory, and return the directory's path."""
    root = directory / name
    root.mkdir()
    for file, content in NODES[name].items():
        if file not in {"truth.json", *without}:
            (root / file).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(root)


def report_of(capsys: Capsys, root: str) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "--root", root, "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, document


def fitted(capsys: Capsys, root: str | Path, namespace: str = "default", **spec: object) -> tuple[int, dict[str, Any]]:
    """Run `fits` with a pod on a node, and return the exit status and the answer for the node.

    The pod has one container with `limits`, or the given containers.
    """
    if "limits" in spec:
        spec = {"containers": [{"name": "main", "resources": {"limits": spec["limits"]}}]}
    metadata = {"name": "probe", "uid": "probe", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    (file := Path(root).with_name("pod.json")).write_text(json.dumps(pod))
    status = main(["fits", str(file), "--root", str(root), "--json"])
    (answer,) = json.loads(capsys.readouterr().out)["nodes"]
    return status, answer


def free_in(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(row["resource"], row["device"]) for row in document["devices"] if row["owner"] == "free"}


def of_truth(name: str, state: str) -> set[tuple[str, str]]:
    devices = NODES[name]["truth.json"]["devices"]
    return {(one.get("resource") or one["driver"], one["id"]) for one in devices if one["state"] == state}


@pytest.mark.parametrize("name", NODES)
def test_what_was_really_the_case_is_found_and_nothing_else(name: str, tmp_path: Path, capsys: Capsys) -> None:
    status, document = report_of(capsys, written(tmp_path, name))
    found = [one["code"] for one in document["findings"]]
    assert found == FINDINGS.get(name, [])
    assert status == (1 if found else 0)
    hidden = {one for one in of_truth(name, "free") if one[1] in NO_SOURCE_SHOWS_IT.get(name, ())}
    claimed = {one for one in of_truth(name, "free") if name.startswith("13")}
    assert free_in(document) == of_truth(name, "free") - hidden - claimed


@pytest.mark.parametrize("name", NODES)
def test_each_device_in_use_has_its_real_holders(name: str, tmp_path: Path, capsys: Capsys) -> None:
    """No device is reported with a wrong holder. A holder that no source names is reported as unknown."""
    _, document = report_of(capsys, written(tmp_path, name))
    real: dict[tuple[str, str], set[str]] = {}
    for one in NODES[name]["truth.json"]["devices"]:
        through = one.get("resource") or one["driver"]
        holders = [own for own in one.get("holders", ()) if own.get("through", through) == through]
        holders = holders or [one["holder"]] * (one["holder"] is not None and "holders" not in one)
        real[through, one["id"]] = {f"{own['pod']} {own['container']}" for own in holders}
    for row in document["devices"]:
        if row["container"]:
            key = row["resource"], row["device"]
            assert f"{row['owner']} {row['container']}" in real[key], row
            real[key].discard(f"{row['owner']} {row['container']}")
    left = {key for key, holders in real.items() if holders}
    unknown = {(row["resource"], row["device"]) for row in document["devices"] if row["owner"] == "unknown"}
    claims = {(row["resource"], row["device"]) for row in document["devices"] if row["owner"].startswith("claim ")}
    assert left <= unknown | claims


PROBES = [
    (name, probe["pod requests"], probe["kubelet said"])
    for name, files in NODES.items()
    for probe in files["truth.json"]["probe"]
    if "claims" not in probe["pod requests"] and probe.get("when", "at once") == "at once"
]


@pytest.mark.parametrize(("name", "limits", "said"), PROBES)
def test_fits_answers_what_the_real_kubelet_answered(
    name: str, limits: dict[str, int], said: str, tmp_path: Path, capsys: Capsys
) -> None:
    status, answer = fitted(capsys, written(tmp_path, name), limits=limits)
    assert answer["fits"] == (status == 0) == (said == "admitted")
    if said.startswith(("Unexpected", "OutOf")):
        assert answer["reason"] in said
    if "plugin" in name and not answer["fits"]:
        assert "the plugin for acme.io/gpu is missing" in " ".join(answer["warnings"])
        assert not any("ends" in one["change"] for one in answer["changes"])


@pytest.mark.parametrize(
    ("name", "count", "reason"),
    [
        ("14-dra-healthy", 2, "cannot allocate all claims: claim team-14/asked, request gpu: 1 of 2 devices fit"),
        ("14-dra-healthy", 1, ""),
        ("16-shared-claim-one-terminating", 1, ""),
        ("21-dra-unhealthy", 2, ""),
        ("13-pending-claim-events-only", 1, "DRA driver gpu.example.com is not registered"),
    ],
)
def test_fits_decides_about_claims_as_scheduler_and_kubelet_did(
    name: str, count: int, reason: str, tmp_path: Path, capsys: Capsys
) -> None:
    root = Path(written(tmp_path, name))
    namespace = NODES[name]["pods.json"]["items"][0]["metadata"]["namespace"]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "count": count}}
    metadata = {"name": "asked", "namespace": namespace}
    claim = {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": {"requests": [request]}}}
    claims = json.loads((root / "resourceclaims.json").read_text())
    (root / "resourceclaims.json").write_text(json.dumps({**claims, "items": [*claims["items"], claim]}))
    containers = [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]
    spec = {"containers": containers, "resourceClaims": [{"name": "gpu", "resourceClaimName": "asked"}]}
    status, answer = fitted(capsys, root, namespace, **spec)
    assert answer["fits"] == (status == 0) == (not reason)
    assert reason in (answer["reason"] or "")
    assert answer["claims_not_looked_at"] == []
    (root / "resourceslices.json").unlink()
    _, answer = fitted(capsys, root, namespace, **spec)
    assert answer["claims_not_looked_at"] == [f"{namespace}/asked"]


def test_a_device_reallocated_after_a_loss_names_who_else_may_use_it(tmp_path: Path, capsys: Capsys) -> None:
    """The real kubelet gave gpu-1 to a new pod while `train` was using the device."""
    root = Path(written(tmp_path, "02-checkpoint-lost"))
    listed = json.loads((root / LIST_NAME).read_text())
    given_to = {"name": "main", "devices": [{"resource_name": "acme.io/gpu", "device_ids": ["gpu-1"]}]}
    listed["pod_resources"].append({"name": "probe", "namespace": "team-2", "containers": [given_to]})
    (root / LIST_NAME).write_text(json.dumps(listed))
    _, document = report_of(capsys, str(root))
    (row,) = [one for one in document["devices"] if one["device"] == "gpu-1"]
    assert (row["owner"], row["note"]) == ("team-2/probe", "team-2/infer, team-2/train may also use it")


@pytest.mark.parametrize("name", NODES)
def test_a_saved_record_leads_to_the_same_report(name: str, tmp_path: Path, capsys: Capsys) -> None:
    root, saved = written(tmp_path, name), str(tmp_path / "saved")
    assert main(["doctor", "--root", root, "--save", saved, "--json"]) in {0, 1}
    first = json.loads(capsys.readouterr().out)
    _, second = report_of(capsys, saved)
    assert {**first, "sources": None} == {**second, "sources": None}


_ADVISED = re.compile(r"devicecore checkpoint (\w+)(?: (?:of|for))? (\w+)")
_NAMED = {"FILE": "kubelet_internal_checkpoint", "DIR": ""}


def test_each_command_that_a_finding_advises_shows_what_it_promises(tmp_path: Path, capsys: Capsys) -> None:
    """`doctor` asks only for sources that a record can contain."""
    advised = []
    for name in NODES:
        root = written(tmp_path, name)
        _, document = report_of(capsys, root)
        asked = {one["problem"] for one in document["sources"] if "add " in one["problem"]}
        assert not {one for one in asked if "--root" in one or "--plugins" in one}
        assert not any("last error" in one["problem"] for one in document["sources"])
        for verb, file in _ADVISED.findall(" ".join(one["confirm"] for one in document["findings"])):
            assert main(["checkpoint", verb, str(Path(root, _NAMED.get(file, file)))]) in {0, 1}
            advised.append((name, file, "".join(capsys.readouterr())))
    assert {name for name, *_ in advised} >= {"07-dra-state-damaged", "17-plugin-and-driver-same-gpus"}
    assert all("claim " in text for _, file, text in advised if file == "dra_manager_state")


def test_why_knows_a_pod_of_the_node_by_its_name_and_says_if_it_was_not_refused(tmp_path: Path, capsys: Capsys) -> None:
    root = written(tmp_path, "09-unhealthy-in-use")
    running = [one for one in NODES["09-unhealthy-in-use"]["pods.json"]["items"] if one["status"]["phase"] == "Running"]
    for pod in running:
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        main(["why", name, "--root", root])
        main(["why", pod["metadata"]["name"], "--root", root, "--json"])
        assert "".join(capsys.readouterr()).count(f"pod {name} is Running: no kubelet has refused it") == 2
    (manifest := tmp_path / "pod.json").write_text(json.dumps({**running[0], "kind": "Pod", "status": None}))
    assert main(["why", str(manifest), "--root", root]) == 2
    assert capsys.readouterr().err.endswith(f"no kubelet has seen it. To try it, run: devicecore fits {manifest}\n")


def test_a_record_replaces_no_file_that_is_read(tmp_path: Path, capsys: Capsys) -> None:
    """A kubelet needs its own files to start, and some of them have the same names as the files in a record."""
    root = Path(written(tmp_path, "14-dra-healthy"))
    before = {path.name: path.read_bytes() for path in root.iterdir()}
    (tmp_path / "link").symlink_to(root)
    state = str(root / "dra_manager_state")
    for options in (["--root", str(root)], ["--root", str(tmp_path / "link")], ["--claims", state]):
        assert main(["doctor", *options, "--save", str(root)]) == 2
        assert "is an input directory; name a different one" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in root.iterdir()} == before


def test_a_record_has_no_secrets_of_pods(tmp_path: Path) -> None:
    root = Path(written(tmp_path, "01-healthy"))
    pods = json.loads((root / "pods.json").read_text())
    for pod in pods["items"]:
        pod["metadata"]["annotations"] = {"token": "s3cret", "kubernetes.io/config.hash": "kept"}
        pod["spec"]["volumes"] = [{"secret": {"secretName": "s3cret"}}]
        for container in pod["spec"]["containers"]:
            container |= {"env": [{"name": "A", "value": "s3cret"}], "args": ["s3cret"], "command": ["s3cret"]}
        state = {"terminated": {"message": "s3cret", "exitCode": 1}}
        pod["status"]["containerStatuses"][0] |= {"state": state, "lastState": state}
    (root / "pods.json").write_text(json.dumps(pods))
    assert main(["doctor", "--root", str(root), "--save", str(tmp_path / "saved"), "--json"]) in {0, 1, 3}
    written_files = {path.name: path.read_text() for path in (tmp_path / "saved").iterdir()}
    assert not [name for name, text in written_files.items() if "s3cret" in text]
    assert "kept" in written_files["pods.json"]


def explained(name: str, pod: str, tmp_path: Path, capsys: Capsys) -> str:
    root = written(tmp_path, name)
    (found,) = (one for one in NODES[name]["pods.json"]["items"] if one["metadata"]["name"] == pod)
    (tmp_path / "pod.json").write_text(json.dumps(found))
    assert main(["why", str(tmp_path / "pod.json"), "--root", root]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_why_reads_events_of_a_pod_that_waits_for_a_claim(tmp_path: Path, capsys: Capsys) -> None:
    said = explained("13-pending-claim-events-only", "p9", tmp_path, capsys)
    assert "decided by DRA manager (DR-09)" in said
    assert "waits, because its ResourceClaim 'team-13/k9' cannot be prepared" in said
    assert "verdict ResourceClaim team-13/k9 cannot be prepared: DRA driver gpu.example.com is not registered" in said


def test_why_splits_the_schedulers_message_and_continues_with_a_trial(tmp_path: Path, capsys: Capsys) -> None:
    said = explained("12-pending-insufficient", "big", tmp_path, capsys)
    assert "decided by scheduler" in said
    assert "of acme.io/gpu, and other pods there leave fewer than this pod requests" in said
    assert "acme.io/gpu: 4 listed, 4 healthy, 3 held, 1 free" in said
    assert "it fits if pod team-12/train ends" in said
    assert "No kubelet has seen the pod" in said


# --- variants of recorded nodes -------------------------------------------------------------------------------


def changed(root: Path, file: str, change: Callable[[Any], object]) -> None:
    """Change a document in place."""
    document = json.loads((root / file).read_text())
    change(document)
    (root / file).write_text(json.dumps(document))


def rewritten(root: Path, file: str, change: Callable[[str], str]) -> None:
    """Replace a file's text."""
    (root / file).write_text(change((root / file).read_text()))


def replaced(root: Path, file: str, old: str, new: str) -> None:
    rewritten(root, file, lambda text: text.replace(old, new))


def with_a_resource_of_an_administrator(root: Path) -> None:
    """Someone has added a resource to the Node's status. A pod requests the resource, but no plugin serves it."""
    counts = {"example.com/dongle": "5"}
    changed(root, "node.json", lambda node: [node["status"][one].update(counts) for one in ("capacity", "allocatable")])
    limits = {"limits": {"example.com/dongle": "1"}}
    changed(root, "pods.json", lambda pods: pods["items"][0]["spec"]["containers"][0].update(resources=limits))
    left = checkpoint_with(lambda data: evolve(data, entries=data.entries and data.entries[:1] + data.entries[2:]))
    rewritten(root, FILE, left)
    changed(root, LIST_NAME, lambda answer: answer["pod_resources"][1]["containers"][0].pop("devices"))


def with_unhealthy_devices_only(root: Path) -> None:
    gpu = "acme.io/gpu"
    changed(root, "node.json", lambda node: node["status"]["allocatable"].update({gpu: "0"}))
    changed(
        root,
        ALLOCATABLE_NAME,
        lambda answer: answer.update(devices=[one for one in answer["devices"] if one["resource_name"] != gpu]),
    )
    none = checkpoint_with(lambda data: evolve(data, registered_devices={**(data.registered_devices or {}), gpu: ()}))
    rewritten(root, FILE, none)
    rewritten(root, "listing.txt", lambda text: f"{text}device-plugins/other.sock  listener\n")
    replaced(root, "pods.json", '"health": "Healthy"', '"health": "Unhealthy"')


def with_devices_on_no_numa_node(root: Path) -> None:
    """The plugin reports a topology without nodes: the kubelet has the devices, but leaves them out of its response."""
    gpu = "acme.io/gpu"

    def without(*listed: dict[str, Any]) -> None:
        for one in listed:
            one["devices"] = [device for device in one.get("devices", ()) if device["resource_name"] != gpu]

    changed(root, ALLOCATABLE_NAME, without)
    changed(
        root, LIST_NAME, lambda answer: without(*(one for pod in answer["pod_resources"] for one in pod["containers"]))
    )


def with_a_file_of_other_pods(root: Path) -> None:
    """Checkpoint writes fail, so the checkpoint contains yesterday's pods with the same devices."""
    rewritten(root, FILE, checkpoint_with(partial(with_holders, exchanged=False)))


def with_a_pod_that_only_the_checkpoint_names(root: Path) -> None:
    """The pod holds the device that is not healthy.

    The pods were listed before this pod existed, and the kubelet's list of allocatable devices is cut off.
    """
    rewritten(root, "pods.json", lambda text: without_last(text, "items"))
    damage(root / ALLOCATABLE_NAME, "cut")


def without_drivers(root: Path) -> None:
    replaced(root, "listing.txt", "reg.sock  listener", "reg.sock  no listener (refused)")


def with_a_device_in_two_claims(root: Path) -> None:
    for name in ("resourceclaims.json", LIST_NAME):
        replaced(root, name, '"dev-1"', '"dev-0"')


def with_the_names_of_json(root: Path) -> None:
    """The response was written by a tool that names fields as protobuf's JSON does."""
    for name in (LIST_NAME, ALLOCATABLE_NAME):
        rewritten(root, name, partial(re.sub, '(?<=[a-z])_([a-z])(?=[a-z_]*": )', lambda found: found[1].upper()))
    changed(root, ALLOCATABLE_NAME, lambda answer: answer.update(cpuIds=["0", "1"], memory=[{"size": "4096"}]))


DEEP = '{"podResources": ' + "[" * 900 + "]" * 900 + "}"


def with_two_shares_of_a_device(root: Path) -> None:
    with_a_device_in_two_claims(root)
    replaced(root, "resourceclaims.json", '"device":', '"shareID": "a-uuid", "device":')


@pytest.mark.parametrize(
    ("name", "change", "found", "asked", "said"),
    [
        ("01-healthy", with_a_resource_of_an_administrator, [], "example.com/dongle", ""),
        ("01-healthy", with_unhealthy_devices_only, ["held-unhealthy"], "acme.io/gpu", "its devices as unhealthy"),
        ("01-healthy", with_devices_on_no_numa_node, [], "acme.io/gpu", ""),
        ("01-healthy", with_a_file_of_other_pods, ["sources-disagree"] * 3, "acme.io/gpu", ""),
        ("09-unhealthy-in-use", with_a_pod_that_only_the_checkpoint_names, [], "", ""),
        ("16-shared-claim-one-terminating", without_drivers, ["driver-gone"], "", ""),  # p1 keeps using the claim
        ("14-dra-healthy", with_a_device_in_two_claims, ["two-owners"], "", ""),
        ("14-dra-healthy", with_two_shares_of_a_device, [], "", ""),
        ("14-dra-healthy", with_the_names_of_json, [], "", ""),
        ("01-healthy", with_the_names_of_json, [], "acme.io/gpu", ""),
        ("01-healthy", lambda root: (root / LIST_NAME).write_text('{"error": "too late"}'), [], "", ""),
        ("01-healthy", lambda root: (root / LIST_NAME).write_text(DEEP), [], "", ""),
    ],
)
def test_a_variant_of_a_recorded_node_is_not_misjudged(
    name: str,
    change: Callable[[Path], None],
    found: list[str],
    asked: str,
    said: str,
    tmp_path: Path,
    capsys: Capsys,
) -> None:
    root = Path(written(tmp_path, name))
    change(root)
    _, document = report_of(capsys, str(root))
    assert [one["code"] for one in document["findings"]] == found
    assert free_in(document) <= of_truth(name, "free")
    status, answer = fitted(capsys, root, limits={asked: 1} if asked else {})
    assert status == bool(said)
    assert said in "".join(answer["warnings"])


def with_a_stopped_kubelet(root: Path) -> None:
    replaced(root, "listing.txt", "kubelet.sock  listener", "kubelet.sock  no listener (refused)")
    for name in (LIST_NAME, ALLOCATABLE_NAME):
        (root / name).unlink()


def with_objects_only(root: Path) -> None:
    """Leave only what an API server says about the node."""
    for path in root.iterdir():
        if path.name not in {"pods.json", "node.json", "events.json", "resourceclaims.json", "resourceslices.json"}:
            path.unlink()


def without_a_checkpoint(root: Path) -> None:
    (root / FILE).unlink()
    changed(root, "sources.json", lambda reasons: reasons.update({FILE: "missing on the node"}))


def with_a_request_of_something_unknown(root: Path) -> None:
    """A claim may serve the resource, because the pods may have been listed before their statuses named the claim."""
    limits = {"limits": {"example.com/dongle": "1"}}
    changed(root, "pods.json", lambda pods: pods["items"][0]["spec"]["containers"][0].update(resources=limits))


def with_a_claim_that_was_entered(root: Path) -> None:
    """The driver crashed and left its socket behind. The kubelet recorded p9's claim before the call failed."""
    listed = [one["metadata"] for one in NODES["13-pending-claim-events-only"]["pods.json"]["items"]]
    (uid,) = [one["uid"] for one in listed if one["name"] == "p9"]
    entry = ClaimEntry("k9-uid", "k9", "team-13", (uid,), {"gpu.example.com": None})
    state = root / "dra_manager_state"
    state.write_bytes(encode_claims((*entries_of(state.read_bytes()), entry)))
    replaced(root, "events.json", "DRA driver gpu.example.com is not registered", "server preface")
    socket = "plugins_registry/gpu.example.com-reg.sock  no listener (refused)\n"
    rewritten(root, "listing.txt", lambda text: text + socket)


def test_fits_recognizes_a_driver_that_exited_and_a_claim_that_is_full(tmp_path: Path, capsys: Capsys) -> None:
    """A kubelet considers a driver registered as long as the driver's socket exists."""
    root = Path(written(tmp_path, "13-pending-claim-events-only"))
    with_a_claim_that_was_entered(root)
    spec = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "k", "resourceClaimName": "k1"}]}
    claims = json.loads((root / "resourceclaims.json").read_text())
    said = []
    for number in (0, 256):
        pods = [{"resource": "pods", "name": f"p{n}", "uid": f"u{n}"} for n in range(number)]
        claims["items"][0]["status"]["reservedFor"] = pods
        (root / "resourceclaims.json").write_text(json.dumps(claims))
        status, answer = fitted(capsys, root, "team-13", **spec)
        assert status == 1
        said.append(answer["reason"])
    assert said == [
        "ResourceClaim team-13/k1 cannot be prepared: DRA driver gpu.example.com has exited",
        "ResourceClaim team-13/k1 is already reserved for 256 pods, and no other pod may use it",
    ]


def with_a_sandbox(root: Path) -> None:
    """After the failure that the event reports, p9's claim was prepared, and now p9 is waiting for an image."""
    pods = json.loads((root / "pods.json").read_text())
    for one in (one for pod in pods["items"] for one in pod["status"]["conditions"]):
        if one["type"] == "PodReadyToStartContainers":
            one["status"] = "True"
    (root / "pods.json").write_text(json.dumps(pods))


def without_records_of_claims(root: Path) -> None:
    (root / "dra_manager_state").write_text(NODES["01-healthy"]["dra_manager_state"])
    changed(
        root,
        LIST_NAME,
        lambda answer: [
            one.pop("dynamic_resources", None) for pod in answer["pod_resources"] for one in pod["containers"]
        ],
    )


def with_a_monitor(root: Path) -> None:
    """The claim of p1 has admin access only: it leaves the devices available to others."""
    changed(
        root,
        "resourceclaims.json",
        lambda claims: [
            result.update(adminAccess=True)
            for claim in claims["items"]
            for result in claim["status"]["allocation"]["devices"]["results"]
        ],
    )


def with_an_older_event_in_another_zone(root: Path) -> None:
    older = "Failed to prepare dynamic resources: prepare dynamic resources: ResourceClaim k9: not allocated"
    change = {"message": older, "lastTimestamp": "2026-11-22T07:03:00+02:00"}
    changed(root, "events.json", lambda events: events["items"].append({**events["items"][-1], **change}))


def with_pods_that_have_ended(root: Path) -> None:
    changed(root, "pods.json", lambda pods: [pod["status"].update(phase="Succeeded") for pod in pods["items"]])


def of_kubelet_1_31(root: Path) -> None:
    """This kubelet's claims file has a different format, so `doctor` cannot tell whether the file is sound."""
    changed(root, "node.json", lambda node: node["status"]["nodeInfo"].update(kubeletVersion="v1.31.4"))


def without_device(answer: dict[str, Any], device: str) -> None:
    answer["devices"] = [one for one in answer["devices"] if one["device_ids"] != [device]]


@pytest.mark.parametrize(
    ("name", "changes", "said", "not_said"),
    [
        ("03-plugin-ended", [with_a_stopped_kubelet], "is gone or has not registered since the", "less than five"),
        ("03-plugin-ended", [with_a_stopped_kubelet], "Nothing until a kubelet is running again. Then: Pods that", ""),
        ("03-plugin-ended", [], "its plugin is gone; it ended less than five minutes ago", "Nothing until"),
        ("15-kubelet-just-started", [lambda root: (root / LIST_NAME).unlink()], "or has not registered", "gone:"),
        ("15-kubelet-just-started", [], "it does not list the 2 pods on this node", ""),
        (
            "09-unhealthy-in-use",
            [with_a_stopped_kubelet],
            "did not count as healthy at its last write",
            "does not count",
        ),
        (
            "13-pending-claim-events-only",
            [with_a_stopped_kubelet],
            "1 pod on this node continues to run",
            "2 pods",
        ),
        (
            "13-pending-claim-events-only",
            [lambda root: (root / "pods.json").write_text(NOTHING)],
            "1 pod holds its devices (team-13/p1)",
            "2 pods",
        ),
        ("13-pending-claim-events-only", [], '"device": "dev-0", "numa_nodes": null, "health": "unknown"', "Healthy"),
        ("17-plugin-and-driver-same-gpus", [with_a_monitor], '"findings": []', "ResourceClaim"),
        ("09-unhealthy-in-use", [with_objects_only], "holds 1 device of acme.io/gpu (gpu-3), not healthy", "gpu-0)"),
        (
            "10-unhealthy-free",
            [with_objects_only],
            "1 device of 'acme.io/gpu' is not healthy, and according to the statuses of all pods, no pod on",
            "held",
        ),
        ("21-dra-unhealthy", [with_objects_only], "holds 1 device of claim 'k1' (gpu.example.com/device=", "claim 'k2"),
        ("01-healthy", [without_a_checkpoint], "but there is no checkpoint.", "takes its state from"),
        ("14-dra-healthy", [with_a_request_of_something_unknown], '"findings": []', ""),
        (
            "13-pending-claim-events-only",
            [with_a_claim_that_was_entered],
            "cannot be prepared: server preface.",
            "not reg",
        ),
        ("13-pending-claim-events-only", [with_objects_only], "claim-not-prepared", "driver-gone"),
        ("13-pending-claim-events-only", [with_objects_only, with_a_sandbox], '"findings": []', "team-13/p9"),
        (
            "01-healthy",
            [lambda root: (root / ALLOCATABLE_NAME).unlink()],
            '"device": "gpu-3", "numa_nodes": null, "health": "Healthy", "owner": "unknown"',
            '"none"',
        ),
        ("14-dra-healthy", [without_records_of_claims], "'team-14/p2' runs with ResourceClaim 'team-14/k2', but", ""),
        (
            "14-dra-healthy",
            [lambda root: (root / "dra_manager_state").write_text(NODES["01-healthy"]["dra_manager_state"])],
            "'team-14/p2' runs with ResourceClaim 'team-14/k2', but the kubelet's file has no record of the claim.",
            "no record for",
        ),
        (
            "23-kubelet-stopped",
            [lambda root: (root / "listing.txt").unlink()],
            "no process listens at pod-resources/kubelet.sock.",
            "device-plugins/kubelet.sock.",
        ),
        (
            "23-kubelet-stopped",
            [lambda root: (root / "listing.txt").write_text("device-plugins/gpu-06af1d6d.sock  listener\n")],
            '{"source": "pod-resources", "text": "connection refused: pod-resources/kubelet.sock"}',
            '"source": "sockets"',
        ),
        (
            "13-pending-claim-events-only",
            [with_an_older_event_in_another_zone],
            "DRA driver gpu.example.com is not registered.",
            "not allocated",
        ),
        ("07-dra-state-damaged", [of_kubelet_1_31], "No kubelet is running on this node", "dra_manager_state"),
        ("01-healthy", [with_the_names_of_json], '"sources": ["checkpoint", "pod-resources"]', '"pods"]'),
        # kubelets up to 1.33 list pods that have ended
        ("01-healthy", [with_pods_that_have_ended], '"owner": "free"', "team-1/"),
        (
            "01-healthy",
            [lambda root: changed(root, ALLOCATABLE_NAME, lambda answer: without_device(answer, "gpu-3"))],
            '"device": "gpu-3", "numa_nodes": null, "health": "unknown", "owner": "unknown"',
            '"none"',
        ),
    ],
    ids=range(28),
)
def test_a_message_claims_no_more_than_the_sources_show(
    name: str, changes: list[Callable[[Path], object]], said: str, not_said: str, tmp_path: Path, capsys: Capsys
) -> None:
    root = Path(written(tmp_path, name))
    for change in changes:
        change(root)
    _, document = report_of(capsys, str(root))
    text = json.dumps({key: document[key] for key in ("findings", "devices")})
    assert said in text
    assert not not_said or not_said not in text


def test_another_kubelets_node_is_not_believed(tmp_path: Path, capsys: Capsys) -> None:
    root = Path(written(tmp_path, "01-healthy"))
    changed(root, "node.json", lambda node: node.update(NODES["03-plugin-ended"]["node.json"]))
    status, document = report_of(capsys, str(root))
    (problem,) = (one["problem"] for one in document["sources"] if one["source"] == "node")
    assert (status, problem.partition(",")[0]) == (3, "it is Node node-3")


def other_slice(slices: dict[str, Any], generation: int, devices: list[dict[str, Any]], **spec: object) -> None:
    """Add a slice of the first slice's driver and pool, with these devices."""
    of = slices["items"][0]["spec"]
    pool = {**of["pool"], "generation": of["pool"]["generation"] + generation}
    slices["items"].append({"spec": {"driver": of["driver"], "pool": pool, "devices": devices, **spec}})


def placed(slices: dict[str, Any], **place: object) -> None:
    """Change which nodes the first slice is for."""
    del slices["items"][0]["spec"]["nodeName"]
    slices["items"][0]["spec"].update(place)


def on_node(name: str) -> dict[str, Any]:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}


def with_counters(slices: dict[str, Any], total: str) -> None:
    """Each of the four devices needs 10 GiB of the pool's memory, and three of them are in use."""
    spec = slices["items"][0]["spec"]
    spec["sharedCounters"] = [{"name": "memory", "counters": {"size": {"value": total}}}]
    for device in spec["devices"]:
        device["consumesCounters"] = [{"counterSet": "memory", "counters": {"size": {"value": "10Gi"}}}]


@pytest.mark.parametrize(
    ("change", "owner"),
    [
        (lambda slices: slices["items"][0]["spec"]["devices"][3].update(taints=[{"effect": "NoExecute"}]), "none"),
        (lambda slices: slices["items"][0]["spec"]["devices"][3].update(taints=[{"effect": "None"}]), "free"),
        (
            lambda slices: [
                device.update(consumesCounters=[{"counterSet": "memory"}])
                for device in slices["items"][0]["spec"]["devices"]
            ],
            "unknown",
        ),
        (lambda slices: with_counters(slices, "40Gi"), "free"),
        (lambda slices: with_counters(slices, "39Gi"), "none"),
        (lambda slices: slices["items"][0]["spec"]["pool"].update(resourceSliceCount=2), "unknown"),
        (lambda slices: placed(slices, allNodes=True), "free"),
        (lambda slices: placed(slices, **on_node("node-14")), "free"),
        (lambda slices: other_slice(slices, -1, [{"name": "dev-9"}]), "free"),
        (
            lambda slices: other_slice(slices, 0, [{"name": "dev-9", "nodeName": "n"}], perDeviceNodeSelection=True),
            "free",
        ),
    ],
    ids=["tainted", "advised", "partition", "enough", "short", "incomplete", "all", "selected", "older", "elsewhere"],
)
def test_a_device_of_a_driver_is_free_only_if_a_claim_can_get_it(
    change: Callable[[Any], object], owner: str, tmp_path: Path, capsys: Capsys
) -> None:
    root = Path(written(tmp_path, "14-dra-healthy"))
    changed(root, "node.json", lambda node: node["metadata"].update(labels={"kubernetes.io/hostname": "node-14"}))
    changed(root, "resourceslices.json", change)
    _, document = report_of(capsys, str(root))
    assert {row["device"]: row["owner"] for row in document["devices"] if not row["container"]} == {"dev-3": owner}


def with_a_rule(root: Path, selector: object, effect: str) -> None:
    rule = {"metadata": {"name": "off"}, "spec": {"deviceSelector": selector, "taint": {"key": "k", "effect": effect}}}
    (root / "devicetaintrules.json").write_text(json.dumps({"kind": "List", "items": [rule]}))


@pytest.mark.parametrize(
    ("effect", "selector", "owner", "note"),
    [
        ("NoSchedule", {"device": "dev-3"}, "none", ""),
        ("NoExecute", {"driver": "gpu.example.com"}, "none", ""),
        ("None", {"device": "dev-3"}, "free", ""),
        ("NoExecute", {"device": "dev-2"}, "free", ""),
        ("NoExecute", {"deviceClassName": "gpu.example.com"}, "free", "deviceClassName: expected a rule of Kubernetes"),
    ],
)
def test_a_device_that_a_rule_of_the_record_taints_is_not_free(
    effect: str, selector: object, owner: str, note: str, tmp_path: Path, capsys: Capsys
) -> None:
    root = Path(written(tmp_path, "14-dra-healthy"))
    with_a_rule(root, selector, effect)
    main(["doctor", "--root", str(root), "--save", str(tmp_path / "saved")])
    capsys.readouterr()
    _, document = report_of(capsys, str(tmp_path / "saved"))
    assert {row["device"]: row["owner"] for row in document["devices"] if not row["container"]} == {"dev-3": owner}
    (notes,) = [one["notes"] for one in document["sources"] if one["source"] == "slices"]
    assert [note in text for text in notes] == [True] * bool(note)


@pytest.mark.parametrize(
    ("place", "has_node", "owners"),
    [
        ({"allNodes": True}, True, {"none"}),
        ({"nodeName": "elsewhere"}, False, set()),  # the pods show which node this is
        (on_node("elsewhere"), True, set()),
        (on_node("elsewhere"), False, {"unknown"}),
        ({"nodeName": "node-14", "skipNodeOperations": ["*"]}, True, {"free"}),  # no kubelet needs to call the driver
    ],
)
def test_devices_of_other_or_all_nodes_are_not_mistaken_for_this_nodes_own(
    place: dict[str, Any], has_node: bool, owners: set[str], tmp_path: Path, capsys: Capsys
) -> None:
    """A driver for all nodes is not gone just because this node does not run it."""
    root = Path(written(tmp_path, "14-dra-healthy"))
    spec = {"driver": "nic.other.org", "pool": {"name": "net", "generation": 1, "resourceSliceCount": 1}}
    other = {"spec": {**spec, **place, "devices": [{"name": "nic-0"}]}}
    changed(root, "resourceslices.json", lambda slices: slices["items"].append(other))
    if not has_node:
        changed(root, "node.json", lambda node: node["metadata"].update(name="another"))
    _, document = report_of(capsys, str(root))
    assert document["findings"] == []
    assert {row["owner"] for row in document["devices"] if row["resource"] == "nic.other.org"} == owners
    main(["doctor", "--root", str(root), "--save", str(tmp_path / "saved")])
    capsys.readouterr()
    assert report_of(capsys, str(tmp_path / "saved"))[1]["findings"] == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        # the list may be from one namespace only, so nothing counts as free
        (lambda claims: claims["items"].pop(0), []),
        (lambda claims: claims["items"][0].update(status={}), ["does not have 1 device that the pod uses (dev-0)"] * 2),
        (lambda claims: claims["items"][0]["status"].update(reservedFor=[]), ["is not reserved for the pod"] * 2),
        (
            lambda claims: claims["items"][0]["status"].update(reservedFor=[{"resource": "podgroups", "uid": "g"}]),
            None,
        ),
        (
            lambda claims: claims["items"][0]["status"]["allocation"]["devices"]["results"][0].update(device="other"),
            None,
        ),
    ],
    ids=["absent", "deallocated", "not-reserved", "reserved-for-a-group", "named-otherwise"],
)
def test_a_claim_in_use_that_the_api_server_has_taken_away_is_found(
    change: Callable[[Any], object], found: list[str] | None, tmp_path: Path, capsys: Capsys
) -> None:
    root = Path(written(tmp_path, "14-dra-healthy"))
    changed(root, "resourceclaims.json", change)
    _, document = report_of(capsys, str(root))
    assert {one["code"] for one in document["findings"]} == ({"claim-taken-away"} if found else set())
    assert [one["sentence"].partition(", which ")[2][:-1] for one in document["findings"]] == (found or [])
    is_sure = found is None or "is not reserved for the pod" in found
    assert free_in(document) == ({("gpu.example.com", "dev-3")} if is_sure else set())


@pytest.mark.parametrize(
    ("taken", "statuses", "health", "told_by"),
    [
        ("2026-11-22T06:03:49Z", False, "Unhealthy", "dra-health"),  # the report is valid for 30 s
        ("2026-11-22T06:03:50Z", True, "Unhealthy", "pods"),
        ("2026-11-22T06:03:50Z", False, "unknown", ""),
        ("", False, "unknown", ""),
        *((odd, False, "unknown", "") for odd in ("2026-11-22T06:03:49", "0001-01-01", "9999-12-31T23:59:59-23:00")),
    ],
)
def test_an_old_report_is_no_evidence_of_health(
    taken: str, statuses: bool, health: str, told_by: str, tmp_path: Path, capsys: Capsys
) -> None:
    root = Path(written(tmp_path, "21-dra-unhealthy"))
    (root / "sources.json").write_text(json.dumps({"taken": taken} if taken else {}))
    if not statuses:
        replaced(root, "pods.json", "allocatedResourcesStatus", "other")
    assert main(["doctor", "--root", str(root), "--save", str(tmp_path / "saved"), "--json"]) in {0, 1, 3}
    document = json.loads(capsys.readouterr().out)
    assert {row["health"] for row in document["devices"] if row["device"] == "dev-0"} == {health}
    found = [one["evidence"][0]["source"] for one in document["findings"] if one["code"] == "claimed-unhealthy"]
    assert found == [told_by] * bool(told_by)


@pytest.mark.parametrize(
    ("count", "is_tainted", "reason"),
    [
        (1, False, ""),
        (2, False, "request container-0-request-0: 1 of 2 devices fit"),
        (1, True, "request container-0-request-0: 0 of 1 devices fit"),
    ],
)
@pytest.mark.parametrize("resource", ["example.com/gpu", "deviceclass.resource.kubernetes.io/gpu.example.com"])
def test_fits_takes_an_extended_resource_from_the_driver_whose_class_serves_it(
    resource: str, count: int, is_tainted: bool, reason: str, tmp_path: Path, capsys: Capsys
) -> None:
    root = Path(written(tmp_path, "14-dra-healthy"))
    serves = {"extendedResourceName": "example.com/gpu"}
    changed(root, "deviceclasses.json", lambda classes: classes["items"][0]["spec"].update(serves))
    if is_tainted:
        with_a_rule(root, {}, "NoSchedule")
    status, answer = fitted(capsys, root, limits={resource: count})
    assert status == bool(reason)
    assert answer["unhandled"] == []
    assert reason in (answer["reason"] or "")
    assert not reason or f"container-0-request-0 is {resource} of " in answer["reason"]


def test_a_device_that_only_a_status_names_is_not_said_to_be_named_by_no_source(tmp_path: Path, capsys: Capsys) -> None:
    root = Path(written(tmp_path, "23-kubelet-stopped"))
    rewritten(root, FILE, checkpoint_with(lambda data: evolve(data, entries=())))
    _, document = report_of(capsys, str(root))
    (lost,) = [one["sentence"] for one in document["findings"] if one["code"] == "request-without-device"]
    assert "that the kubelet has no record of: team-15/infer 1, team-15/train 2" in lost
    assert [row["sources"] for row in document["devices"] if row["container"]] == [["pods"]] * 3


# --- nodes with sources removed or changed --------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    """Replace a source file with an unreadable one, or delete it."""
    content = path.read_bytes()
    path.unlink()
    match how:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "binary":
            path.write_bytes(bytes(range(256)))
        case "directory":
            path.mkdir()
        case _:
            pass  # the file stays deleted


def without_last(text: str, *where: str | int) -> str:
    """Return a copy of a document with the last element of one of its lists or objects removed, if there is one."""
    document = found = json.loads(text)
    for key in where:
        found = found[key] if isinstance(key, int) else found.get(key) or []
        if not found:
            return text
    found.pop(*([*found][-1:] if isinstance(found, dict) else ()))
    return json.dumps(document)


def checkpoint_with(change: Callable[[CheckpointData], CheckpointData]) -> Callable[[str], str]:
    """Return a function that applies `change` to the text of a checkpoint."""
    return lambda text: encode(change(decode(text.encode()).data)).decode()


def with_holders(data: CheckpointData, *, exchanged: bool) -> CheckpointData:
    """Return the same devices, held by the same pods in reverse order (if `exchanged`) or by unknown pods."""
    entries = data.entries or ()
    uids = [one.pod_uid if exchanged else f"other-{number}" for number, one in enumerate(reversed(entries))]
    return evolve(data, entries=tuple(evolve(one, pod_uid=uid) for one, uid in zip(entries, uids, strict=True)))


def node_with(change: int, *fields: str) -> Callable[[str], str]:
    """Return a function that adds `change` to the nonzero `acme.io` counts in these fields of a Node's status."""

    def changed(text: str) -> str:
        node = json.loads(text)
        for counts in map(node["status"].get, fields):
            devices = {name: int(count) for name, count in counts.items() if name.startswith("acme.io/")}
            counts |= {name: str(max(count + change, 0)) for name, count in devices.items() if count}
        return json.dumps(node)

    return changed


FILE = "kubelet_internal_checkpoint"
LOST = {"sources-disagree", "request-without-device"}  # the second only if the kubelet's response was not read
UNREGISTERED = {"socket-without-resource"}  # found if no other source names a resource
UNKNOWN_HOLDER = {"unhealthy"}  # found if no other source names the pod that holds the device
OTHER: dict[str, tuple[str, Callable[[str], str], set[str]]] = {
    "as it was": ("listing.txt", str, set()),
    "no pod in the response": (LIST_NAME, lambda _: "{}", {"kubelet-starting"}),
    "the response before the last pod": (
        LIST_NAME,
        lambda text: without_last(text, "pod_resources"),
        {"kubelet-starting"},  # found if the only pod was removed
    ),
    "no device in the response": (ALLOCATABLE_NAME, lambda _: "{}", UNREGISTERED),
    "the response before the last device": (ALLOCATABLE_NAME, lambda text: without_last(text, "devices"), set()),
    "the checkpoint before the last pod": (
        FILE,
        checkpoint_with(lambda data: evolve(data, entries=(data.entries or ())[:-1])),
        LOST,
    ),
    "an empty checkpoint": (FILE, lambda _: encode(CheckpointData((), {})).decode(), LOST | UNREGISTERED),
    "a checkpoint of other pods": (FILE, checkpoint_with(partial(with_holders, exchanged=False)), LOST),
    "a checkpoint with exchanged pods": (FILE, checkpoint_with(partial(with_holders, exchanged=True)), LOST),
    "the pods before the last one": ("pods.json", lambda text: without_last(text, "items"), UNKNOWN_HOLDER),
    "no pods": ("pods.json", lambda _: NOTHING, UNKNOWN_HOLDER),
    "the slices before the last device": (
        "resourceslices.json",
        lambda text: without_last(text, "items", 0, "spec", "devices"),
        set(),
    ),
    "no slices": ("resourceslices.json", lambda _: NOTHING, {"slices-missing"}),
    "the claims before the last one": ("resourceclaims.json", lambda text: without_last(text, "items"), set()),
    "no prepared claims": (
        "dra_manager_state",
        lambda _: NODES["01-healthy"]["dra_manager_state"],
        {"claim-without-record"},  # found if the kubelet's response was not read
    ),
    "a Node with fewer devices": (
        "node.json",
        node_with(-1, "allocatable"),
        # the last finding is made if no other source counts the devices
        {"node-status-differs", "over-allocated", "unhealthy"},
    ),
    "a Node with more devices": ("node.json", node_with(1, "allocatable"), {"node-status-differs"}),
    "a Node before the plugin": (
        "node.json",
        node_with(-99, "allocatable", "capacity"),
        {"node-status-differs", "plugin-gone"},
    ),
}
"""By description: a source, the change that makes it old or contradictory, and the findings that may result."""

DAMAGED = {  # what is found if the file cannot be read
    FILE: "checkpoint-unreadable",
    "cpu_manager_state": "kubelet-cannot-start",
    "memory_manager_state": "kubelet-cannot-start",
    "dra_manager_state": "kubelet-cannot-start",
}
ALSO = {  # these findings are also true, but a better source reports them if it was read
    "plugin-gone": {"resource-without-socket"},
    "kubelet-starting": {"plugin-gone", "resource-without-socket"},
}
HOW = st.sampled_from(["missing", "cut", "binary", "directory"])


@pytest.mark.parametrize("name", share([*NODES], of=5))
@given(other=st.sampled_from([*OTHER]), damaged=st.dictionaries(st.sampled_from(SOURCES), HOW, max_size=6))
def test_worse_sources_make_no_device_more_free_and_no_finding_false(
    name: str, other: str, damaged: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Law: what is reported as free or wrong is so, even if sources are missing, damaged, older or in conflict.

    A conflict is a separate kind of finding, and so is a damaged file that a kubelet reads at its start.
    """
    root = Path(written(tmp_path_factory.mktemp("node"), name))
    source, changed, conflicts = OTHER[other]
    if (root / source).exists():
        rewritten(root, source, changed)
    there = {file: how for file, how in damaged.items() if (root / file).exists()}
    for file, how in there.items():
        damage(root / file, how)
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error:
        status = main(["doctor", "--root", str(root), "--json"])
    document = json.loads(out.getvalue())
    codes = {one["code"] for one in document["findings"]}
    assert (status == 1) == bool(codes)
    assert status != 0 or not document["not_ruled_out"]
    assert error.getvalue().count("\n") == (not codes and not document["is_enough"])
    assert free_in(document) <= of_truth(name, "free")
    known = conflicts.union(FINDINGS.get(name, ()), (DAMAGED[file] for file in there if file in DAMAGED))
    if there.get(FILE) == "directory":
        known |= {"checkpoint-unwritable"}
    assert codes <= known.union(*(ALSO.get(code, set()) for code in known))
