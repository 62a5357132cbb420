"""`devicecore fits` tries one pod on nodes from files."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from devicecore_tools.command.main import main
from devicecore_tools.doctor import DEFAULT_ROOT

from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode

Capsys = pytest.CaptureFixture[str]
GPU = "example.com/gpu"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: big}
spec:
  containers:
  - name: app
    resources: {limits: {example.com/gpu: %s}}
"""
NODE = """
name: node-1
topologyPolicy: restricted
devices:
- {resource: example.com/gpu, device: gpu-0, numa_nodes: [0], owner: default/train, container: app}
- {resource: example.com/gpu, device: gpu-1, numa_nodes: [1], health: Unhealthy}
- {resource: example.com/gpu, device: gpu-2, numa_nodes: [1]}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "one.yaml").write_text(POD % 1)
    (tmp_path / "two.yaml").write_text(POD % 2)
    (tmp_path / "node.yaml").write_text(NODE)
    entry = PodDevicesEntry("u-1", "main", GPU, {0: ("gpu-0",)}, b"")
    data = CheckpointData((entry,), {GPU: ("gpu-0", "gpu-1", "gpu-2")})
    (tmp_path / "checkpoint").write_bytes(encode(data))
    return tmp_path


def fits(place: Path, pod: str, *nodes: str, options: tuple[str, ...] = ()) -> int:
    named = [part for node in nodes for part in ("--node", str(place / node))]
    return main(["fits", str(place / pod), *named, *options])


def test_a_pod_that_fits_gets_its_devices_named(place: Path, capsys: Capsys) -> None:
    assert fits(place, "one.yaml", "node.yaml") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("node-1: fits\n")
    assert "example.com/gpu: gpu-2" in printed
    assert "the scheduler may still refuse the pod" in printed


def test_a_version_that_no_api_server_serves_is_refused(tmp_path: Path, capsys: Capsys) -> None:
    for version, current in (("apps/v1beta2", "apps/v1"), ("batch/v1beta1", "batch/v1")):
        (file := tmp_path / "old.yaml").write_text(
            json.dumps({"apiVersion": version, "kind": "Deployment", "spec": {}})
        )
        assert main(["fits", str(file)]) == 2
        said = capsys.readouterr().err
        assert f"apiVersion: {version} was removed in Kubernetes 1." in said
        assert f"write {current}" in said


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
def test_a_pod_of_a_workload_is_tried(place: Path, capsys: Capsys, kind: str) -> None:
    container = {"name": "main", "image": "i", "resources": {"limits": {GPU: "1"}}}
    spec: dict[str, object] = {"template": {"spec": {"containers": [container]}}}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    workload = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "train"}, "spec": spec}
    (place / "workload.yaml").write_text(json.dumps(workload))
    assert fits(place, "workload.yaml", "node.yaml") == 0
    assert "example.com/gpu: gpu-2" in capsys.readouterr().out
    container["resources"] = {"limits": {GPU: "9"}}
    (place / "workload.yaml").write_text(json.dumps(workload))
    assert fits(place, "workload.yaml", "node.yaml") == 1
    capsys.readouterr()
    assert main(["why", str(place / "workload.yaml"), "--root", str(place)]) == 2
    assert f"no kubelet sees a {kind}, only its pods. To try it, run: devicecore fits " in capsys.readouterr().err


WITH_CLAIM = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpus}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpus}}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: infer}
---
apiVersion: v1
kind: Pod
metadata: {name: infer}
spec:
  resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]
  containers: [{name: main, image: i, resources: {claims: [{name: gpu}]}}]
"""
SLICE = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: a}
spec:
  driver: gpu.example.com
  nodeName: node-1
  pool: {name: node-1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
"""


def test_a_file_may_contain_the_pod_with_its_template_and_its_class(place: Path, capsys: Capsys) -> None:
    (place / "infer.yaml").write_text(WITH_CLAIM)
    (place / "slices.yaml").write_text(SLICE)
    assert fits(place, "infer.yaml", "node.yaml") == 3
    shown = "claim gpu of ResourceClaimTemplate default/one: whether any devices for it are left"
    assert shown in " ".join(capsys.readouterr().out.split())
    assert fits(place, "infer.yaml", "node.yaml", options=("--slices", str(place / "slices.yaml"))) == 0
    assert "gpu.example.com/node-1/gpu-0" in capsys.readouterr().out
    (place / "infer.yaml").write_text(f"{WITH_CLAIM}---{SLICE}")
    assert fits(place, "infer.yaml", "node.yaml") == 0, "the slices may be in the same file"
    (place / "infer.yaml").write_text(f"{WITH_CLAIM}---{SLICE.replace('nodeName: node-1', 'nodeName: node-2')}")
    assert fits(place, "infer.yaml", "node.yaml") == 3


def test_a_claim_with_the_name_of_a_template_is_not_the_pods_claim(tmp_path: Path, capsys: Capsys) -> None:
    root = tmp_path / "root"
    (root / "device-plugins").mkdir(parents=True)
    data = CheckpointData((), {GPU: ("gpu-0",)})
    (root / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(encode(data))
    allocation = {"devices": {"results": [{"request": "gpu", "driver": "d", "pool": "p", "device": "gpu-0"}]}}
    claim = {"metadata": {"name": "one", "namespace": "default", "uid": "c"}, "status": {"allocation": allocation}}
    (root / "resourceclaims.json").write_text(json.dumps({"kind": "ResourceClaimList", "items": [claim]}))
    (root / "resourceslices.json").write_text(json.dumps({"kind": "ResourceSliceList", "items": []}))
    (root / "deviceclasses.json").write_text(json.dumps({"kind": "DeviceClassList", "items": []}))
    (root / "node.json").write_text(json.dumps({"kind": "Node", "metadata": {"name": "node-1"}}))
    (tmp_path / "infer.yaml").write_text(WITH_CLAIM)
    assert fits(tmp_path, "infer.yaml", "root") == 3
    assert "claim gpu of ResourceClaimTemplate default/one" in " ".join(capsys.readouterr().out.split())


TWO_PODS = f"{POD % 1}---{POD.replace('big', 'other') % 1}"
NO_POD = "expected a pod, or a workload such as a Deployment, got"
TEMPLATE = WITH_CLAIM.split("---")[1]
SERVICE = WITH_CLAIM.split("---")[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO_PODS, "p.yaml: expected one pod, got 2: big, other. Write each pod to a separate file"),
        (SERVICE, f"p.yaml:3: kind: {NO_POD} 'Service'"),
        ((POD % 1).replace("name: big", "generateName: big-"), "metadata.generateName: expected `name`: only an API"),
        ("apiVersion: v1\nkind: pod\n", f"p.yaml:2: kind: {NO_POD} 'pod'; write it as Pod"),
        (f"{SERVICE}---{TEMPLATE}", f"kind: {NO_POD} 'ResourceClaimTemplate'; to try a claim, run: devicecore why "),
        ("# nothing", f"p.yaml: {NO_POD} nothing"),
        ((POD % 1).replace("v1", "v2"), "p.yaml:2: apiVersion: expected v1 for a Pod, got 'v2'"),
        ((POD % 1).replace("kind: Pod", "king: Pod"), "p.yaml:2: kind: it is missing; expected a Kubernetes object"),
    ],
)
def test_a_file_without_exactly_one_pod_is_refused_with_what_it_contains(
    place: Path, text: str, said: str, capsys: Capsys
) -> None:
    (place / "p.yaml").write_text(text)
    assert fits(place, "p.yaml", "node.yaml") == 2
    assert said in capsys.readouterr().err


def test_the_items_of_a_list_of_pods_need_no_kind(place: Path) -> None:
    item = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    (place / "list.json").write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": [item]}))
    assert fits(place, "list.json", "node.yaml") == 0


@pytest.mark.parametrize(
    "damage",
    [lambda blob: blob.replace(b"gpu-1", b"gpu-7"), lambda blob: blob[:80]],
    ids=["a wrong checksum", "half of it"],
)
def test_whether_a_pod_fits_is_unknown_if_the_checkpoint_is_damaged(
    place: Path, capsys: Capsys, damage: Callable[[bytes], bytes]
) -> None:
    (place / "node" / "device-plugins").mkdir(parents=True)
    file = place / "node" / "device-plugins" / "kubelet_internal_checkpoint"
    file.write_bytes(damage((place / "checkpoint").read_bytes()))
    assert fits(place, "one.yaml", "node", options=("--json",)) == 3
    (answer,) = json.loads(capsys.readouterr().out)["nodes"]
    assert (answer["fits"], answer["changes"]) == (None, [])
    assert "nothing in the checkpoint is trusted, because it is damaged: " in answer["warnings"][0]
    assert fits(place, "one.yaml", "node", "node.yaml") == 0
    assert "no trusted source names example.com/gpu" in capsys.readouterr().out
    why = (
        "why",
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/gpu",
    )
    assert main([*why, "--root", str(place / "node")]) == 0
    assert f"{file}: nothing in the checkpoint is trusted, because it is damaged: " in capsys.readouterr().err


def test_a_pod_that_does_not_fit_gets_the_reason_and_changes_that_help(place: Path, capsys: Capsys) -> None:
    assert fits(place, "two.yaml", "node.yaml") == 1
    printed = capsys.readouterr().out
    assert "Resources cannot be allocated with Topology locality" in printed
    assert "device gpu-1 of example.com/gpu becomes healthy" in printed


def test_a_fleet_fits_if_one_node_fits(place: Path, capsys: Capsys) -> None:
    assert fits(place, "two.yaml", "node.yaml", "checkpoint", options=("--json",)) == 0
    document = json.loads(capsys.readouterr().out)
    assert [node["fits"] for node in document["nodes"]] == [False, True]
    assert document["nodes"][1]["devices"] == []
    assert document["nodes"][1]["devices_not_certain"].startswith("the kubelet's answer was not read")


def test_a_name_instead_of_a_node_is_answered_with_the_command_for_clusters(place: Path, capsys: Capsys) -> None:
    assert main(["fits", str(place / "one.yaml"), "--node", "gpu-0"]) == 2
    said = "; to try the nodes of a cluster, run: kubectl devicecore fits POD\n"
    assert capsys.readouterr().err.endswith(said)


def test_nodes_with_the_same_name_are_distinguished_by_their_files(place: Path, capsys: Capsys) -> None:
    for file in ("a.yaml", "b.yaml"):
        (place / file).write_text(f"name: n1\ndevices: [{{resource: {GPU}, device: gpu-0}}]\n")
    assert fits(place, "two.yaml", "a.yaml", "b.yaml") == 1
    out = capsys.readouterr().out
    assert f"n1 ({place}/a.yaml): does not fit" in out
    assert f"n1 ({place}/b.yaml): does not fit" in out


def test_a_description_without_its_devices_says_what_is_missing(place: Path, capsys: Capsys) -> None:
    (place / "bare.yaml").write_text("name: node-1\n")
    assert main(["fits", str(place / "one.yaml"), "--node", str(place / "bare.yaml")]) == 2
    said = "bare.yaml: `devices` is missing. A node without plugin devices is described with `devices: []`\n"
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "single-numa",
            "topologyManagerPolicy: expected none, best-effort, restricted or single-numa-node, got 'single-",
        ),
        ("[restricted", "config.yaml: "),
    ],
)
def test_a_configuration_with_which_no_kubelet_starts_is_named(
    place: Path, capsys: Capsys, setting: str, said: str
) -> None:
    (place / "root" / "device-plugins").mkdir(parents=True)
    blob = (place / "checkpoint").read_bytes()
    (place / "root" / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(blob)
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    (place / "root" / "config.yaml").write_text(f"{head}topologyManagerPolicy: {setting}\n")
    fits(place, "one.yaml", "root")
    printed = capsys.readouterr().err
    assert "a kubelet does not start with its config.yaml: " in printed
    assert said in printed


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("numa_node: 0", "devices[0].numa_node: there is no such field; expected 'numa_nodes'"),
        ("heath: Unhealthy", "devices[0].heath: there is no such field; expected 'health'"),
        ("health: Sick", "devices[0].health: expected one of Healthy, Unhealthy, unknown, got 'Sick'"),
    ],
)
def test_a_mistyped_field_of_a_description_is_named(place: Path, capsys: Capsys, field: str, said: str) -> None:
    (place / "slip.yaml").write_text(f"devices:\n- {{resource: example.com/gpu, device: gpu-0, {field}}}\n")
    assert fits(place, "one.yaml", "slip.yaml") == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topologyManagerPolicy: none\ndevices: []\n", "topologyManagerPolicy: there is no such field; expected 'topo"),
        ("devices:\n" + 2 * "- {resource: example.com/gpu, device: gpu-0}\n", "example.com/gpu lists 'gpu-0' twice"),
    ],
)
def test_a_description_is_used_completely_or_refused(place: Path, capsys: Capsys, text: str, said: str) -> None:
    (place / "slip.yaml").write_text(text)
    assert fits(place, "one.yaml", "slip.yaml") == 2
    assert said in capsys.readouterr().err


def test_a_mistake_in_the_yaml_of_a_description_is_shown(place: Path, capsys: Capsys) -> None:
    (place / "slip.yaml").write_text("devices:\n- resource: example.com/gpu, device: gpu-0}\n")
    assert fits(place, "one.yaml", "slip.yaml") == 2
    assert "slip.yaml:2: mapping values are not allowed in this context" in capsys.readouterr().err


def test_a_misspelled_resource_is_compared_with_those_of_the_node(place: Path, capsys: Capsys) -> None:
    (place / "node.yaml").write_text("devices:\n- {resource: example.com/gpus, device: gpu-0}\n")
    assert fits(place, "one.yaml", "node.yaml") == 1
    assert "the node's resources are example.com/gpus: check the spelling" in capsys.readouterr().out


def test_a_node_is_not_read_from_standard_input(place: Path, capsys: Capsys) -> None:
    assert main(["fits", str(place / "one.yaml"), "--node", "-"]) == 2
    assert "--node: only POD and --pods can be standard input; name a file" in capsys.readouterr().err


def test_a_compressed_file_is_recognized(place: Path, capsys: Capsys) -> None:
    (place / "one.yaml.gz").write_bytes(gzip.compress((POD % 1).encode()))
    for words in (
        f"fits --node {place / 'node.yaml'} FILE",
        "why FILE",
        "nodes FILE",
        "conformance driver --claims FILE true",
    ):
        assert main([str(place / "one.yaml.gz") if word == "FILE" else word for word in words.split()]) == 2
        assert ": it is compressed: run gunzip first\n" in capsys.readouterr().err


def test_the_output_of_doctor_is_a_description(place: Path, capsys: Capsys) -> None:
    main(["doctor", "--checkpoint", str(place / "checkpoint"), "--json"])
    (place / "report.json").write_text(capsys.readouterr().out)
    assert fits(place, "two.yaml", "report.json") == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "of example.com/gpu counted as held, because the holder is unknown" in printed
    assert "pod unknown ends" not in printed
    report = json.loads((place / "report.json").read_text())
    is_free = {"owner": "free", "container": "", "pod_uid": "", "health": "Healthy"}
    report["devices"] = [{**one, **is_free} for one in report["devices"]]
    for code, cure in (
        ("kubelet-gone", "a kubelet is running on the node"),
        ("node-not-ready", "the Node becomes Ready"),
        ("node-missing", "the kubelet creates its Node again"),
        ("node-closed", "the Node accepts pods again"),
    ):
        report["findings"] = [{"code": code, "sentence": "No pod starts."}]
        (place / "stopped.json").write_text(json.dumps(report))
        assert fits(place, "one.yaml", "stopped.json") == 1
        said = capsys.readouterr().out
        assert ("No pod starts." in said, f"fits if  {cure}\n" in said) == (True, True)
    assert fits(place, "two.yaml", "checkpoint") == 0, "a checkpoint alone does not say that devices are not free"


def test_devices_of_pods_that_are_gone_are_free(place: Path, capsys: Capsys) -> None:
    (place / "three.yaml").write_text(POD % 3)
    ended = {
        "metadata": {"name": "a", "namespace": "default", "uid": "u-1"},
        "spec": {"containers": []},
        "status": {"phase": "Failed"},
    }
    proxy = {"metadata": {"name": "proxy", "namespace": "kube-system", "uid": "u-2"}, "status": {"phase": "Running"}}
    (place / "pods.json").write_text(json.dumps({"kind": "List", "items": [ended, proxy]}))
    assert fits(place, "three.yaml", "checkpoint") == 1
    options = ("--pods", str(place / "pods.json"))
    assert fits(place, "three.yaml", "checkpoint", options=options) == 0
    for items, why in (([], "it is empty"), ([ended], "it contains the pods of only one namespace, as without -A. ")):
        (place / "pods.json").write_text(json.dumps({"kind": "List", "items": items}))
        fits(place, "three.yaml", "checkpoint", options=options)
        assert f"the list of pods may be incomplete: {why}" in capsys.readouterr().err
    assert fits(place, "three.yaml", "checkpoint", options=("--pods", str(place))) == 2
    assert f"--pods: {place}: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "node-7"])
def test_a_node_is_called_by_its_name_or_its_file(place: Path, name: str, capsys: Capsys) -> None:
    """In `doctor --json`, the name is empty if the Node was not read."""
    node = {"name": name, "devices": [{"resource": GPU, "device": "gpu-0"}]}
    (place / "node.json").write_text(json.dumps(node))
    assert fits(place, "one.yaml", "node.json") == 0
    assert capsys.readouterr().out.startswith(f"{name or place / 'node.json'}: fits")


def test_a_resource_that_the_node_does_not_have_does_not_fit(place: Path, capsys: Capsys) -> None:
    (place / "other.yaml").write_text((POD % 1).replace("gpu", "fpga"))
    assert fits(place, "other.yaml", "node.yaml") == 1
    assert "no source names this resource" in " ".join(capsys.readouterr().out.split())


def test_the_policy_can_be_given(place: Path, capsys: Capsys) -> None:
    (place / "node.yaml").write_text(NODE.replace("topologyPolicy: restricted", "").replace("health: Unhealthy", ""))
    options = ("--topology-policy", "single-numa-node", "--numa-nodes", "0-1")
    assert fits(place, "two.yaml", "node.yaml", options=options) == 0
    (place / "three.yaml").write_text(POD % 3)
    assert fits(place, "three.yaml", "node.yaml", options=options) == 1
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("node.yaml", "devices: 1"),
        ("node.yaml", "devices: [{resource: gpu, device: a}]"),
        ("node.yaml", "devices: [{resource: example.com/gpu}]"),
        ("node.yaml", "devices: [{resource: example.com/gpu, device: a, numa_nodes: [-1]}]"),
        ("node.yaml", "{devices: [], topologyPolicy: strict}"),
        ("node.yaml", '{"Data": 1}'),
        ("node.yaml", "not a node"),
        ("node.yaml", '{"kind": "Pod"}'),
        ("two.yaml", "kind: Node"),
        ("two.yaml", f"{POD % 1}---{POD % 2}".replace("big", "other", 1)),
        ("two.yaml", "\xff"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(place: Path, file: str, content: str, capsys: Capsys) -> None:
    (place / file).write_bytes(content.encode("latin-1"))
    assert fits(place, "two.yaml", "node.yaml") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("devicecore fits: ")
    if content == "\xff":
        assert lines[0].endswith("two.yaml: expected UTF-8 text, got other bytes")


def test_a_directory_in_place_of_a_pod_is_named(place: Path, capsys: Capsys) -> None:
    assert fits(place, ".", "node.yaml") == 2
    assert capsys.readouterr().err == f"devicecore fits: {place}: it is a directory; expected a file\n"


@pytest.mark.parametrize(("pod", "node"), [("nothing.yaml", "node.yaml"), ("one.yaml", "nothing.yaml")])
def test_a_file_that_is_missing_is_named(place: Path, pod: str, node: str, capsys: Capsys) -> None:
    assert fits(place, pod, node) == 2
    error = capsys.readouterr().err
    assert "nothing.yaml" in error
    assert "--node" not in error


@pytest.mark.skipif(Path(DEFAULT_ROOT).exists(), reason="this machine has a kubelet")
def test_without_a_kubelet_here_it_says_how_to_name_other_nodes(place: Path, capsys: Capsys) -> None:
    assert fits(place, "one.yaml") == 2
    assert "with --node, or try the nodes of a cluster with: devicecore why POD --slices" in capsys.readouterr().err


def test_a_nodes_name_is_enough_for_a_pod_without_plugin_devices(place: Path, capsys: Capsys) -> None:
    (place / "node.yaml").write_text("kind: Node\nmetadata: {name: node-1}")
    (place / "none.yaml").write_text((POD % 1).replace("example.com/gpu", "cpu"))
    assert fits(place, "none.yaml", "node.yaml") == 0
    assert capsys.readouterr().out.startswith("node-1: fits\n")
    assert fits(place, "one.yaml", "node.yaml") == 2
    assert "an object of kind 'Node'. To get a description of a node, run on that node" in capsys.readouterr().err


def test_the_topology_policy_is_read_from_the_configuration_or_named_as_unread(tmp_path: Path, capsys: Capsys) -> None:
    root = tmp_path / "root"
    (root / "device-plugins").mkdir(parents=True)
    entries = [PodDevicesEntry("u-1", "main", GPU, {0: ("gpu-0",), 1: ("gpu-1",)}, b"")]
    data = CheckpointData(tuple(entries), {GPU: ("gpu-0", "gpu-1", "gpu-2")})
    (root / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(encode(data))
    (tmp_path / "one.yaml").write_text(POD % 1)
    assert fits(tmp_path, "one.yaml", "root") == 0
    assert "the kubelet's topology policy, assumed to be none" in " ".join(capsys.readouterr().out.split())
    assert fits(tmp_path, "one.yaml", "root", options=("--topology-policy", "none")) == 0
    assert "not checked" not in capsys.readouterr().out
    settings: dict[str, object] = {"kind": "KubeletConfiguration", "topologyManagerPolicy": "best-effort"}
    (root / "config.yaml").write_text(json.dumps(settings))
    assert fits(tmp_path, "one.yaml", "root") == 0
    assert "not checked" not in capsys.readouterr().out
    settings["topologyManagerPolicyOptions"] = {"prefer-closest-numa-nodes": "true"}
    (root / "config.yaml").write_text(json.dumps(settings))
    assert fits(tmp_path, "one.yaml", "root") == 0
    assert "how far apart the NUMA nodes are" in " ".join(capsys.readouterr().out.split())
    assert fits(tmp_path, "one.yaml", "root", options=("--numa-distances", "10,20/20,10")) == 0
    assert "not checked" not in capsys.readouterr().out
    assert fits(tmp_path, "one.yaml", "root", options=("--numa-nodes", "0-8")) == 1
    assert "the machine has 9 NUMA nodes, and max-allowable-numa-nodes" in " ".join(capsys.readouterr().out.split())


def test_the_topology_policy_of_a_cluster_is_unread_and_matters_only_to_plugins_devices(
    tmp_path: Path, capsys: Capsys
) -> None:
    (pod := tmp_path / "one.yaml").write_text(POD % 1)
    status = {"allocatable": {GPU: "2", "cpu": "4", "pods": "9"}, "conditions": [{"type": "Ready", "status": "True"}]}
    node = {"kind": "Node", "metadata": {"name": "node-1"}, "status": status}
    (tmp_path / "plugin.json").write_text(json.dumps(node))
    del status["allocatable"][GPU]  # type: ignore[attr-defined]  # a dict
    gpus = {"kind": "DeviceClass", "metadata": {"name": "gpus"}, "spec": {"extendedResourceName": GPU}}
    (tmp_path / "driver.yaml").write_text(f"{json.dumps(node)}\n---\n{json.dumps(gpus)}\n---{SLICE}")
    for file, is_open in (("plugin.json", True), ("driver.yaml", False)):
        assert main(["why", str(pod), "--slices", str(tmp_path / file)]) == 0
        shown = "not checked  the kubelet's topology policy, assumed to be none: " in capsys.readouterr().out
        assert main(["why", str(pod), "--slices", str(tmp_path / file), "--json"]) == 0
        assert (shown, json.loads(capsys.readouterr().out)["topology_not_looked_at"]) == (is_open, is_open)


def test_a_key_that_is_in_a_manifest_or_a_description_twice_is_refused(place: Path, capsys: Capsys) -> None:
    """If such a key were accepted, its second value would silently replace the first."""
    (place / "twice.yaml").write_text((POD % 1).replace("    resources", "    name: other\n    resources"))
    assert fits(place, "twice.yaml", "node.yaml") == 2
    assert "twice.yaml:8: expected each key once, got 'name' a second time" in capsys.readouterr().err
    (place / "two-lists.yaml").write_text(f"{NODE}devices: []\n")
    assert fits(place, "one.yaml", "two-lists.yaml") == 2
    assert "two-lists.yaml:8: expected each key once, got 'devices' a second time" in capsys.readouterr().err


def test_the_count_of_numa_nodes_in_place_of_their_numbers_is_refused(place: Path, capsys: Capsys) -> None:
    assert fits(place, "one.yaml", "node.yaml", options=("--numa-nodes", "2")) == 2
    said = capsys.readouterr().err
    assert (
        "--numa-nodes 2: the devices of node-1 are attached to 0,1. Expected the numbers of all the machine's" in said
    )
    assert fits(place, "one.yaml", "node.yaml", options=("--numa-nodes", "0-3")) == 0


def test_a_table_of_kubectl_and_an_empty_file_are_named(place: Path, capsys: Capsys) -> None:
    (place / "pods.txt").write_text("NAMESPACE   NAME    READY\ndefault     train   1/1\n")
    assert fits(place, "one.yaml", "node.yaml", options=("--pods", str(place / "pods.txt"))) == 2
    assert "expected JSON or YAML, got a kubectl table: add -o json to that command" in capsys.readouterr().err
    (place / "pods.json").write_text("")
    assert fits(place, "one.yaml", "node.yaml", options=("--pods", str(place / "pods.json"))) == 2
    assert "got nothing: the command that should have written it may have failed" in capsys.readouterr().err
