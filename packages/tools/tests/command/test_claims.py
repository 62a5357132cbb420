"""`devicecore why` and `fits` with ResourceClaims: which devices they get, or what prevents it."""

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main
from devicecore_tools.testing.api_server import LocalApiServer

Capsys = pytest.CaptureFixture[str]
DRIVER = "gpu.example.com"
NUMA = "resource.kubernetes.io/numaNode"
CLASS = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}
WANTS_H100 = 'device.attributes["gpu.example.com"].model == "H100"'
POD = """
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: ml, uid: u-1}
spec:
  resourceClaims: [{name: gpus, resourceClaimTemplateName: two}]
  containers:
  - name: app
    resources: {limits: {example.com/gpu: 1}, claims: [{name: gpus}]}
"""
NODE = "name: node-%s\ndevices:\n- {resource: example.com/gpu, device: gpu-0, numa_nodes: [0]}\n"


def device(name: str, model: str, numa: int, **fields: object) -> dict[str, object]:
    return {"name": name, "attributes": {"model": {"string": model}, NUMA: {"int": numa}}, **fields}


def slice_of(node: str, *devices: dict[str, object]) -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def claim(name: str, count: int, *held: str) -> dict[str, Any]:
    wanted = {"deviceClassName": "gpu", "count": count, "selectors": [{"cel": {"expression": WANTS_H100}}]}
    spec = {"devices": {"requests": [{"name": "r", "exactly": wanted}]}}
    one: dict[str, Any] = {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "ml"}, "spec": spec}
    results = [{"request": "r", "driver": DRIVER, "pool": "node-1", "device": device} for device in held]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "infer-0", "uid": "u"}],
    }
    return one | ({"status": status} if held else {})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tainted = device("gpu-1", "H100", 0, taints=[{"key": "example.com/xid", "effect": "NoSchedule"}])
    first = slice_of("node-1", device("gpu-0", "H100", 0), tainted, device("gpu-2", "A100", 1))
    second = slice_of("node-2", device("gpu-0", "A100", 0), device("gpu-\x1b[31m", "A100", 1))
    template = {**claim("two", 1), "kind": "ResourceClaimTemplate"}
    template["spec"] = {"spec": template["spec"]}
    for name, content in (
        ("slices", {"kind": "List", "items": [CLASS, first, second]}),
        ("claims", {"kind": "List", "items": [claim("other", 1, "gpu-0"), template]}),
        ("claim", claim("train", 1)),
        ("two", claim("train", 2)),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "pod.yaml").write_text(POD)
    for number in (1, 2):
        (tmp_path / f"node-{number}.yaml").write_text(NODE % number)
    return tmp_path


def run(place: Path, command: str, *arguments: str) -> int:
    words = [str(place / word) if (place / word).exists() else word for word in arguments]
    return main([command, *words])


def test_each_device_has_the_first_reason_against_it(place: Path, capsys: Capsys) -> None:
    """The guide shows exactly this output, without the part about the other nodes."""
    assert run(place, "why", "claim.json", "--slices", "slices.json", "--claims", "claims.json") == 1
    shown, _, others = capsys.readouterr().out.partition("The other nodes\n")
    assert f"--claims claims.json\n{shown}...\n" in (Path(__file__).parents[4] / "docs" / "claims.md").read_text()
    assert others.startswith("  node-2  ")
    assert "\x1b" not in others


@pytest.mark.parametrize("asked", ["claim.json", "pod.yaml", "fits"])
def test_an_answer_without_the_other_claims_says_what_it_assumes(place: Path, capsys: Capsys, asked: str) -> None:
    """With the claims, the device of the only matching kind turns out to be in use."""
    template = json.loads((place / "claims.json").read_text())["items"][1]
    template["apiVersion"] = "resource.k8s.io/v1"
    pod = POD.replace("limits: {example.com/gpu: 1}, ", "")
    (place / "pod.yaml").write_text(f"{pod}---\n{json.dumps(template)}")
    (place / "none.json").write_text('{"kind": "List", "items": []}')
    words = ["fits", "pod.yaml", "--node", "node-1.yaml"] if asked == "fits" else ["why", asked]
    says = "assumed no other claim has devices: no ResourceClaims were read (add --claims or --kubeconfig)"
    for options, status, is_said in (
        ([], 0, True),
        (["--claims", "none.json"], 0, False),
        (["--resourceclaims", "none.json"], 0, False),
        (["--claims", "claims.json"], 1, False),
    ):
        if asked == "fits" and "--resourceclaims" in options:
            continue
        assert run(place, *words, "--slices", "slices.json", *options) == status
        assert (says in " ".join(capsys.readouterr().out.split())) is is_said, options
    run(place, *words, "--slices", "slices.json", "--json")
    assert "no other claim has devices" in capsys.readouterr().out


def test_each_proposed_change_helps(place: Path, capsys: Capsys) -> None:
    run(place, "why", "claim.json", "--slices", "slices.json", "--claims", "claims.json", "--json")
    best = json.loads(capsys.readouterr().out)["nodes"][0]
    tolerations = "tolerations: [{key: example.com/xid, operator: Exists, effect: NoSchedule}]"
    assert best["changes"] == [
        "claim ml/other of pod infer-0 is released",
        f"claim ml/train tolerates the taint example.com/xid:NoSchedule: {tolerations} in its requests",
        f"request r of claim ml/train does not require {WANTS_H100}",
    ]


@pytest.mark.parametrize(
    ("wanted", "status", "said"),
    [
        (WANTS_H100, 1, "0 of 2 devices fit"),
        ('device.attributes["gpu.example.com"].model.startsWith("H")', 3, "pip install --target lib cel-expr-python"),
    ],
)
def test_without_the_cel_library_only_what_it_must_decide_is_unknown(
    place: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, wanted: str, status: int, said: str
) -> None:
    monkeypatch.setitem(sys.modules, "devicecore.adapters.cel", None)
    text = (place / "slices.json").read_text().replace('"true"', json.dumps(f"device.driver == '{DRIVER}'"))
    (place / "slices.json").write_text(text)
    two = (place / "two.json").read_text().replace(json.dumps(WANTS_H100), json.dumps(wanted))
    (place / "two.json").write_text(two)
    assert run(place, "why", "two.json", "--slices", "slices.json", "--claims", "claims.json") == status
    assert said in capsys.readouterr().out


def test_a_claim_is_read_only_once_even_from_standard_input(
    place: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "both.json").write_text("---\n" + json.dumps(CLASS) + "\n---\n" + json.dumps(claim("train", 1)))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((place / "both.json").read_bytes())))
    slices = json.loads((place / "slices.json").read_text())
    (place / "slices.json").write_text(json.dumps({**slices, "items": slices["items"][1:]}))  # the class is piped, too
    assert run(place, "why", "-", "--slices", "slices.json") == 0
    assert "claim ml/train on node-1: gets its devices\n" in capsys.readouterr().out


def test_a_claim_that_fits_gets_its_devices_named(place: Path, capsys: Capsys) -> None:
    (place / "none.json").write_text('{"kind": "List", "items": []}')
    assert run(place, "why", "claim.json", "--slices", "slices.json", "--claims", "none.json") == 0
    printed = capsys.readouterr().out
    assert "claim ml/train on node-1: gets its devices\n  request r  gpu.example.com/node-1/gpu-0\n" in printed


@pytest.mark.parametrize(
    ("selector", "tainted"), [({"device": "gpu-0", "driver": DRIVER}, 2), ({}, 4), (None, 0), ({"pool": "node-2"}, 2)]
)
def test_a_device_taint_rule_taints_what_it_selects(
    selector: object, tainted: int, place: Path, capsys: Capsys
) -> None:
    taint = {"key": "example.com/off", "effect": "NoExecute"}
    rule = {
        "kind": "DeviceTaintRule",
        "metadata": {"name": "off"},
        "spec": {"taint": taint, "deviceSelector": selector},
    }
    (place / "rules.json").write_text(json.dumps(rule))
    (place / "claim.json").write_text(json.dumps(claim("train", 4)).replace(WANTS_H100.replace('"', '\\"'), "true"))
    run(place, "why", "claim.json", "--slices", "slices.json", "--claims", "rules.json", "--json")
    assert capsys.readouterr().out.count("has the taint example.com/off:NoExecute") == tainted


def test_a_file_that_is_given_twice_counts_once(place: Path, capsys: Capsys) -> None:
    outcomes = []
    for more in ([], ["--node", "slices.json"]):
        run(place, "why", "claim.json", "--slices", "slices.json", *more, "--json")
        outcomes.append(capsys.readouterr().out)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("words", [["why", "claim.json"], ["fits", "pod.yaml", "--node", "node-1.yaml"]])
def test_all_files_for_slices_are_read(place: Path, capsys: Capsys, words: list[str]) -> None:
    """Many answers advise to pass a file with other objects as an additional file for --slices."""
    whole = json.loads((place / "slices.json").read_text())["items"]
    for name, items in (("classes", whole[:1]), ("rest", whole[1:])):
        (place / f"{name}.json").write_text(json.dumps({"kind": "List", "items": items}))
    said = []
    for files in (["slices.json"], ["classes.json", "rest.json"], ["rest.json", "classes.json"]):
        slices = [word for file in files for word in ("--slices", file)]
        status = run(place, *words, *slices, "--claims", "claims.json", "--json")
        said.append((status, capsys.readouterr().out))
    assert said[0][0] == 1
    assert said[1:] == [said[0]] * 2
    assert run(place, *words, "--slices", "slices.json", "--slices", "nothing.json") == 2
    assert "nothing.json: " in capsys.readouterr().err


def test_a_name_is_looked_up_in_all_files_for_slices(place: Path, capsys: Capsys) -> None:
    assert run(place, "why", "claim", "ml/other", "--slices", "slices.json", "--slices", "claims.json") == 0
    assert "claim ml/other is allocated" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["why", "claim.json"], ["fits", "pod.yaml", "--node", "node-1.yaml"]])
@pytest.mark.parametrize("second", [["--claims", "none.json"], ["--claims={}/none.json"]])
def test_a_second_file_for_claims_is_refused(place: Path, capsys: Capsys, words: list[str], second: list[str]) -> None:
    """The claim in the first file holds the device."""
    (place / "none.json").write_text('{"kind": "List", "items": []}')
    second = [one.format(place) for one in second]
    assert run(place, *words, "--slices", "slices.json", "--claims", "claims.json", *second) == 2
    both = f"{place}/claims.json and {place}/none.json"
    assert f"--claims was given twice: {both}. Give only one file." in capsys.readouterr().err
    assert run(place, *words, "--slices", "slices.json", "--claims", "claims.json", "--claims", "claims.json") == 1


def test_slices_may_be_a_yaml_file_of_several_documents(place: Path, capsys: Capsys) -> None:
    items = json.loads((place / "slices.json").read_text())["items"]
    (place / "slices.yaml").write_text("".join(f"---\n{json.dumps(one)}\n" for one in items))
    outcomes = [run(place, "why", "claim.json", "--slices", f"slices.{form}", "--json") for form in ("json", "yaml")]
    assert outcomes == [0, 0]
    one, other = capsys.readouterr().out.split("\n}\n{")
    assert f"{one}\n}}\n" == f"{{{other}"


def test_pods_on_standard_input_hold_their_claims(place: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--pods -` has the same effect as `--pods FILE`."""
    spec = {"nodeName": "node-1", "containers": [{"name": "c"}]}
    holder = {"metadata": {"name": "p", "namespace": "ml", "uid": "u"}, "spec": spec}
    (pods := place / "pods.json").write_text(json.dumps({"kind": "PodList", "items": [holder]}))
    questions = (["why", "claim.json"], ["fits", "pod.yaml", "--node", "node-1.yaml", "--claims", "claims.json"])
    for command, *words in questions:
        answers = []
        for source in ("pods.json", "-"):
            with pods.open() as opened:
                monkeypatch.setattr("sys.stdin", opened)
                status = run(place, command, *words, "--slices", "slices.json", "--pods", source, "--json")
            answers.append((status, capsys.readouterr().out.replace(str(pods), "standard input")))
        assert answers[0] == answers[1]
    assert run(place, "why", "-", "--slices", "slices.json", "--pods", "-") == 2
    assert "MESSAGE and --pods or --events cannot both be standard input." in capsys.readouterr().err


def test_a_missing_template_of_another_namespace_is_named(place: Path, capsys: Capsys) -> None:
    (place / "pod.yaml").write_text(POD.replace("namespace: ml", "namespace: default"))
    run(place, "why", "pod.yaml", "--slices", "slices.json", "--claims", "claims.json")
    said = "".join(capsys.readouterr())
    assert "names ResourceClaimTemplate default/two (there is one in the namespace ml), which is not in" in said


def test_a_claim_may_be_in_a_file_with_other_documents(place: Path, capsys: Capsys) -> None:
    template = json.loads((place / "claims.json").read_text())["items"][1]
    written_slices = json.loads((place / "slices.json").read_text())
    documents = [written_slices, claim("train", 1), claim("second", 1), template]
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = "two"
    written = [f"# made by hand\n{json.dumps(one)}\n" for one in documents]
    for name, documents in (("all", written[:2]), ("two", written[:3]), ("wrong", written), ("cut", [written[1][:-9]])):
        (place / f"{name}.yaml").write_text("---\n".join(documents))
    assert run(place, "why", "all.yaml", "--node-name", "node-1") == 0
    assert "claim ml/train on node-1: gets its devices" in capsys.readouterr().out
    (place / "plain.yaml").write_text("\n---\n".join(map(json.dumps, (written_slices, claim("train", 1)))))
    assert run(place, "why", "plain.yaml", "--node-name", "node-1") == 0
    assert "claim ml/train on node-1: gets its devices" in capsys.readouterr().out
    assert run(place, "why", "two.yaml", "--node-name", "node-1") == 0
    both = capsys.readouterr().out
    assert "claim ml/train on node-1: gets its devices" in both
    assert "claim ml/second on node-1: gets its devices" in both
    assert run(place, "why", "wrong.yaml") == run(place, "why", "cut.yaml") == 2
    assert run(place, "fits", "pod.yaml", "--node", "node-1.yaml", "--slices", "wrong.yaml") == 2
    wrong, cut, _ = capsys.readouterr().err.splitlines()
    assert "cut.yaml:3: " in cut
    assert "wrong.yaml:11: spec.spec.devices.requests[0].exactly.count: expected a whole number" in wrong


def test_claims_are_explained_without_importing_code_for_nodes_or_terminals(place: Path) -> None:
    """Importing that code used to take a third of the time needed to explain a claim on 1,000 nodes."""
    words = ["why", str(place / "claim.json"), "--slices", str(place / "slices.json")]
    heavy = "{'rich', 'yaml', 'devicecore.domain.checkpoint', 'devicecore_tools.doctor.look.values'}"
    program = (
        f"import sys, devicecore_tools.command.main as m; m.main({words}); print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_only_the_named_node_is_tried(place: Path, capsys: Capsys) -> None:
    run(place, "why", "claim.json", "--slices", "slices.json", "--node-name", "node-2", "--json")
    document = json.loads(capsys.readouterr().out)
    assert [(one["node"], one["fits"]) for one in document["nodes"]] == [("node-2", False)]


@pytest.mark.parametrize(
    ("words", "sources", "status", "says"),
    [
        ("pod ml/train", "--slices cluster.json", 0, "pod ml/train "),
        ("train", "--slices slices.json --node cluster.json --claims claims.json", 1, "pod ml/train "),
        ("claim other", "--slices slices.json --claims claims.json", 0, "claim ml/other is allocated"),
        ("ml/other", "--slices slices.json --resourceclaims claims.json", 0, "claim ml/other is allocated"),
        ("pod ended", "--slices cluster.json", 1, "pod ml/ended is Succeeded: no kubelet has refused it"),
        ("pod other", "--slices cluster.json --claims claims.json", 2, "no source has a pod other"),
        ("other", "--slices cluster.json", 1, "no file, pod or claim has this name"),
        ("nowhere/train", "--slices cluster.json", 1, "no file, pod or claim has this name"),
    ],
)
def test_a_name_is_looked_up_in_the_files(
    words: str, sources: str, status: int, says: str, place: Path, capsys: Capsys
) -> None:
    metadata = {"name": "train", "namespace": "ml", "uid": "u-1"}
    spec = {"containers": [{"name": "app", "resources": {"claims": [{"name": "gpus"}]}}]}
    uses = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "two"}]}
    train = {"kind": "Pod", "metadata": metadata, "spec": spec | uses, "status": {"phase": "Pending"}}
    ended = {"kind": "Pod", "metadata": metadata | {"name": "ended"}, "spec": spec, "status": {"phase": "Succeeded"}}
    listed = [json.loads((place / f"{name}.json").read_text())["items"] for name in ("slices", "claims")]
    template = listed[1][1]
    nodes = [{"kind": "Node", "metadata": {"name": name}} for name in ("node-1", "node-2")]
    cluster = {"kind": "List", "items": [*nodes, *listed[0], template, train, ended, *nodes]}
    (place / "cluster.json").write_text(json.dumps(cluster))
    assert run(place, "why", *words.split(), *sources.split()) == status
    printed = capsys.readouterr()
    assert says in " ".join((printed.out + printed.err).split())


def test_an_allocated_claim_is_reported_as_allocated(place: Path, capsys: Capsys) -> None:
    held = claim("other", 1, "gpu-0")
    (place / "own.json").write_text(json.dumps(held))
    (place / "other.json").write_text(json.dumps({name: held[name] for name in ("kind", "metadata", "spec")}))
    said = "claim ml/other is allocated\n  request r     gpu.example.com/node-1/gpu-0\n"
    assert run(place, "why", "own.json") == 0
    assert said in capsys.readouterr().out
    assert run(place, "why", "other.json", "--slices", "slices.json", "--claims", "claims.json") == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "metadata", "reason"),
    [
        ("node-1", {}, ""),
        ("node-2", {}, "its devices cannot be used on this node"),
        ("node-1", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "ResourceClaim ml/other is being deleted"),
    ],
)
def test_a_pod_whose_claim_is_allocated_fits_where_the_devices_are(
    name: str, metadata: Mapping[str, str], reason: str, place: Path, capsys: Capsys
) -> None:
    held = claim("other", 1, "gpu-0")
    held["metadata"].update(metadata)
    fields = [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]
    held["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    nodes = [{"kind": "Node", "metadata": {"name": one}} for one in ("node-1", "node-2")]
    (place / "claims.json").write_text(json.dumps({"kind": "List", "items": [held, *nodes]}))
    (place / "pod.yaml").write_text(POD.replace("resourceClaimTemplateName: two", "resourceClaimName: other"))
    (place / "node.yaml").write_text(NODE.replace("node-%s", name))
    assert run(place, "fits", "pod.yaml", "--node", "node.yaml", "--claims", "claims.json") == bool(reason)
    assert reason in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("node", "status"), [("node-1.yaml", 0), ("node-2.yaml", 1)])
def test_fits_decides_claims_and_plugins_devices_together(place: Path, node: str, status: int, capsys: Capsys) -> None:
    assert run(place, "fits", "pod.yaml", "--node", node) == 3
    files = ("--slices", "slices.json", "--claims", "claims.json")
    released = place / "claims.json"
    released.write_text(released.read_text().replace("gpu-0", "gpu-9"))
    assert "not checked" in capsys.readouterr().out
    assert run(place, "fits", "pod.yaml", "--node", node, *files) == status
    assert "not checked" not in capsys.readouterr().out
    assert run(place, "fits", "pod.yaml", "--node", node, *files, "--json") == status


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"kind": "List", "items": []}', "no DeviceClass is known"),
        ('{"kind": "List", "items": [{"kind": "ResourceSlice", "spec": {"devices": 1}}]}', "spec.devices: expected"),
        ('{"kind": "List", "items": 3}', "expected a list"),
        ("nonsense", "expected"),
    ],
)
def test_an_unreadable_input_is_reported_in_a_sentence(content: str, said: str, place: Path, capsys: Capsys) -> None:
    (place / "slices.json").write_text(content)
    assert run(place, "why", "claim.json", "--slices", "slices.json") == 2
    assert said in capsys.readouterr().err


def test_an_object_of_another_kind_is_refused_where_it_is(place: Path, capsys: Capsys) -> None:
    (place / "typo.yaml").write_text("kind: ResourceClam\nmetadata: {name: t}\nspec: {devices: {}}\n")
    assert run(place, "why", "typo.yaml") == 2
    assert ":1: kind: expected a Pod, an Event or a ResourceClaim, got 'ResourceClam'; write it as ResourceClaim" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("{device: {requests: []}}", "spec.device: there is no such field; expected 'devices'"),
        ("{devices: {request: []}}", "spec.devices.request: there is no such field; expected 'requests'"),
        ("{devices: {requests: [{name: a, exacly: {}}]}}", "requests[0].exacly: there is no such field; expected"),
        ("{devices: {requests: [{name: a, exactly: {selector: []}}]}}", "exactly.selector: there is no such field;"),
        ("{devices: {requests: [{name: a, firstAvailable: [{counts: 2}]}]}}", "firstAvailable[0].counts: there is no"),
        ("{devices: {requests: [{name: GPU_1, exactly: {}}]}}", "expected a DNS name such as gpu, got 'GPU_1'"),
        ("{devices: {requests: [{name: a, exactly: {allocationMode: all}}]}}", "expected ExactCount or All, got 'all'"),
    ],
)
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_a_misspelled_field_of_a_claim_is_named(kind: str, spec: str, field: str, place: Path, capsys: Capsys) -> None:
    """Otherwise, the claim would ask for something else: without its selectors, for any device."""
    spec = spec if kind == "ResourceClaim" else f"{{spec: {spec}}}"
    text = f"apiVersion: resource.k8s.io/v1\nkind: {kind}\nmetadata: {{name: t}}\nspec: {spec}\n"
    (place / "typo.yaml").write_text(text)
    assert run(place, "why", "typo.yaml", "--slices", "slices.json") == 2
    assert field in capsys.readouterr().err


@pytest.mark.parametrize("version", ["v1", "resources.k8s.io/v1"])
def test_a_claim_of_a_wrong_api_group_is_refused(version: str, place: Path, capsys: Capsys) -> None:
    text = f"apiVersion: {version}\nkind: ResourceClaim\nmetadata: {{name: t}}\nspec: {{devices: {{}}}}\n"
    (place / "typo.yaml").write_text(text)
    assert run(place, "why", "typo.yaml", "--slices", "slices.json") == 2
    assert f"apiVersion: expected resource.k8s.io/v1, got '{version}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "kind: ResourceClaim\nmetadata: {name: t}\nspecs: {devices: {}}\n",
            "specs: there is no such field; expected 'spec'",
        ),
        (
            "kind: Pod\nmetadata: {name: t}\nspec: {nodeSelecter: {a: b}}\n",
            "spec.nodeSelecter: there is no such field;",
        ),
        (
            "kind: Pod\nmetadata: {name: t}\nspec: {toleration: []}\n",
            "spec.toleration: there is no such field; expected",
        ),
    ],
)
def test_a_misspelled_field_is_not_ignored(text: str, said: str, place: Path, capsys: Capsys) -> None:
    (place / "typo.yaml").write_text(text)
    assert run(place, "why", "typo.yaml", "--slices", "slices.json") == 2
    assert said in capsys.readouterr().err


def test_pods_are_not_claims(place: Path, capsys: Capsys) -> None:
    """Otherwise, no claim would have devices."""
    assert run(place, "why", "claim.json", "--slices", "slices.json", "--claims", "docs/nodes/leak/pods.json") == 2
    assert "it contains pods or events, not claims. Use --pods for pods" in capsys.readouterr().err


def test_a_claim_is_not_a_message(place: Path, capsys: Capsys) -> None:
    assert run(place, "why", "message", "claim.json") == 2
    assert "; for a claim, run: devicecore why claim " in capsys.readouterr().err


def test_a_claim_is_not_a_pod(place: Path, capsys: Capsys) -> None:
    assert run(place, "why", "pod", "claim.json", "--slices", "slices.json") == 2
    assert "claim.json: expected a pod, got a claim; for a claim, run: devicecore why claim" in capsys.readouterr().err


def test_a_claim_that_no_file_has_is_a_sentence(place: Path, capsys: Capsys) -> None:
    assert run(place, "fits", "pod.yaml", "--node", "node-1.yaml", "--slices", "slices.json") == 2
    assert f"ResourceClaimTemplate ml/two, which is not in {place / 'slices.json'}" in capsys.readouterr().err


def test_an_api_server_alone_does_not_say_which_devices_are_free(place: Path, capsys: Capsys) -> None:
    why = "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1"
    container = {"name": "main", "image": "i", "resources": {"limits": {"example.com/gpu": "2"}}}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "train", "uid": "u"},
        "spec": {"nodeName": "node-1", "containers": [container]},
        "status": {"phase": "Failed", "message": f"Allocate failed due to {why}, which is unexpected"},
    }
    (place / "pod.json").write_text(json.dumps(pod))
    with LocalApiServer() as server:
        server.create({"kind": "Node", "metadata": {"name": "node-1"}})
        about = {"kind": "Pod", "namespace": "default", "name": "train", "uid": "u"}
        event = {"reason": "FailedScheduling", "message": "0/7 nodes are available: 7 Insufficient example.com/gpu."}
        server.create({"kind": "Event", "metadata": {"name": "e"}, "involvedObject": about, **event})
        config = str(server.kubeconfig(place / "config"))
        for more in ([], ["--node-name", "node-1"]):
            assert run(place, "why", "pod.json", "--kubeconfig", config, *more) == 0
            said, errors = capsys.readouterr()
            assert "Available: 1" in said
            assert "among 7 nodes" in said, "its events were not read"
            assert "tried on the node" not in said
            assert "NodeList" not in errors


def test_an_api_server_provides_everything_needed_to_decide(place: Path, capsys: Capsys) -> None:
    with LocalApiServer() as server:
        slices = place / "slices.json"
        slices.write_text(slices.read_text().replace("\\u001b[31m", "1"))  # a server refuses this name
        files = [json.loads((place / f"{name}.json").read_text())["items"] for name in ("slices", "claims")]
        names = ("node-1", "node-2", "node-3")
        server.create({"kind": "Namespace", "metadata": {"name": "ml"}})
        for one in (*({"kind": "Node", "metadata": {"name": name}} for name in names), *chain(*files)):
            server.create(one)
        config = str(server.kubeconfig(place / "config"))
        assert run(place, "why", "claim.json", "--kubeconfig", config, "--json") == 1
        from_server = json.loads(capsys.readouterr().out)
        server.delete("resourceclaims", "other", "ml")
        assert run(place, "why", "claim.json", "--kubeconfig", config) == 0
    assert "claim ml/train on node-1: gets its devices" in capsys.readouterr().out
    assert run(place, "why", "claim.json", "--slices", "slices.json", "--claims", "claims.json", "--json") == 1
    from_files = json.loads(capsys.readouterr().out)
    assert [one["node"] for one in from_server["nodes"]] == [*names]
    assert from_server["nodes"][:2] == from_files["nodes"]
    assert run(place, "why", "claim.json", "--kubeconfig", config) == 2
    assert "ResourceSlice: no connection" in capsys.readouterr().err


def test_an_api_server_without_a_device_class_differs_from_one_not_queried(place: Path, capsys: Capsys) -> None:
    with LocalApiServer() as server:
        config = str(server.kubeconfig(place / "config"))
        assert run(place, "why", "claim.json", "--kubeconfig", config) == 2
    said = capsys.readouterr().err
    assert f"{config}: the API server has no DeviceClass" in said
    assert "kubectl create -f FILE" in said
    assert "add --kubeconfig" not in said


def test_calls_that_a_driver_need_not_get_are_in_the_allocation(place: Path, capsys: Capsys) -> None:
    one = slice_of("node-1", device("gpu-0", "H100", 0))
    one["spec"]["skipNodeOperations"] = ["*"]
    (place / "one.json").write_text(json.dumps({"kind": "List", "items": [CLASS, one]}))
    assert run(place, "why", "claim.json", "--slices", "one.json", "--json") == 0
    allocation = json.loads(capsys.readouterr().out)["nodes"][0]["allocations"][0]
    assert allocation["devices"]["results"][0]["skipNodeOperations"] == ["*"]


def test_devices_that_kubernetes_does_not_find_are_named(place: Path, capsys: Capsys) -> None:
    """In Kubernetes 1.36, a tainted device blocks its counters, so a device that shares them stays free forever."""
    uses = [{"consumesCounters": [{"counterSet": "card", "counters": {"slots": {"value": n}}}]} for n in ("2", "1")]
    taints = [{"key": "example.com/xid", "effect": "NoSchedule"}]
    tainted = device("gpu-0", "H100", 0, taints=taints, **uses[0])
    parts = slice_of("node-1", tainted, device("gpu-1", "H100", 0, **uses[1]))
    counters = slice_of("node-1") | {"metadata": {"name": "counters"}}
    counters["spec"]["sharedCounters"] = [{"name": "card", "counters": {"slots": {"value": "2"}}}]
    for one in (parts, counters):
        one["spec"]["pool"]["resourceSliceCount"] = 2
    (place / "parts.json").write_text(json.dumps({"kind": "List", "items": [CLASS, parts, counters]}))
    (place / "none.json").write_text('{"kind": "List", "items": []}')
    assert run(place, "why", "claim.json", "--slices", "parts.json", "--claims", "none.json") == 4
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "could get its devices, but not every scheduler finds them but a scheduler of Kubernetes 1.36.2 or" in printed
    )
    assert "(k/k#140436:reject, see docs/claims.md) request r gpu.example.com/node-1/gpu-1" in printed
    assert run(place, "why", "claim.json", "--slices", "parts.json", "--json") == 4
    assert json.loads(capsys.readouterr().out)["nodes"][0]["faultsOfKubernetes"] == {"1.36.2": ["k/k#140436:reject"]}


@pytest.mark.parametrize("name", ["{}", "[]", "7"])
def test_a_claim_whose_name_is_not_a_string_is_refused_with_its_location(
    tmp_path: Path, capsys: Capsys, name: str
) -> None:
    (tmp_path / "claims.yaml").write_text(f"kind: List\nitems: [{{kind: ResourceClaim, metadata: {{name: {name}}}}}]")
    (tmp_path / "slices.json").write_text(json.dumps({"items": []}))
    status = main(["why", str(tmp_path / "claims.yaml"), "--slices", str(tmp_path / "slices.json")])
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert "items[0].metadata.name: expected a string, got " in said.err
