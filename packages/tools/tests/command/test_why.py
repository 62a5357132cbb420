"""`devicecore why`: a refusal is explained, with and without the node's sources."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main
from devicecore_tools.testing.api_server import LocalApiServer
from tests.doctor.test_explanation import GPU, REFUSAL
from tests.doctor.test_messages import EXAMPLES

from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode

Capsys = pytest.CaptureFixture[str]
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "big", "namespace": "default", "uid": "u-9"},
    "spec": {"containers": [{"name": "app", "resources": {"limits": {GPU: "2"}}}]},
    "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": REFUSAL},
}


@pytest.fixture
def pod(tmp_path: Path) -> str:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(POD))
    return str(path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    entry = PodDevicesEntry("u-1", "main", GPU, {0: ("gpu-0",)}, b"")
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_bytes(encode(CheckpointData((entry,), {GPU: ("gpu-0", "gpu-1")})))
    return str(path)


def why(*arguments: str) -> int:
    return main(["why", *arguments])


def test_a_node_has_only_one_file_with_slices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--root", str(tmp_path), "--slices", __file__, "--slices", str(tmp_path / "more")]
    assert main(["why", "Allocate failed", *words]) == 2
    assert f"--slices: {tmp_path}/more: there is no such file." in capsys.readouterr().err
    words[-1] = __file__
    assert main(["why", "Allocate failed", *words]) == 2
    only = "--slices can be repeated only for a claim or a pod that waits for a node."
    assert only in capsys.readouterr().err
    assert main(["why", "Allocate failed", "--pod", "a.yaml", "--pod", "b.yaml"]) == 2
    assert "--pod was given twice: a.yaml and b.yaml. Give only one file." in capsys.readouterr().err


def test_a_message_is_explained(capsys: Capsys) -> None:
    assert why(REFUSAL) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "decided by device manager (DM-05)" in printed
    assert f"The container still needs 2 of {GPU}, and 1 are healthy and free." in printed
    assert "https://github.com/kubernetes/kubernetes/issues/130145" in printed


def test_with_a_checkpoint_holders_are_named_and_the_pod_is_tried(pod: str, checkpoint: str, capsys: Capsys) -> None:
    assert why(pod, "--checkpoint", checkpoint, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    rows = document["explanations"][0]["devices"]
    assert (rows[0]["device"], rows[0]["owner"], rows[0]["container"]) == ("gpu-0", "u-1", "main")
    assert "Requested: 2, Available: 1" in document["trial"]["refusal"]
    assert {"change": "pod u-1 ends", "size": 1} in document["trial"]["changes"]


def test_every_message_of_an_event_list_is_explained(tmp_path: Path, capsys: Capsys) -> None:
    events = [{"kind": "Event", "message": REFUSAL}, {"kind": "Event", "message": "Started container app"}]
    waiting = {"state": {"waiting": {"message": f"endpoint not found in cache for a registered resource: {GPU}"}}}
    status = {"containerStatuses": [waiting]}
    file = tmp_path / "events.json"
    file.write_text(json.dumps({"kind": "List", "items": [*events, {"kind": "Pod", "status": status}]}))
    assert why(str(file), "--json") == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["explanations"]] == ["DM-05", "DC-01"]


def test_the_refusal_inside_a_resize_is_explained(capsys: Capsys) -> None:
    """The condition of a running pod contains only part of the event's message, and the pod does not fail."""
    inner = REFUSAL.removeprefix("Pod was rejected: ")
    event = {"kind": "Event", "message": f"Pod resize UnexpectedAdmissionError: {json.dumps({'error': inner})}"}
    condition = {"type": "PodResizePending", "reason": "Deferred", "message": inner}
    for document in (event, POD | {"status": {"phase": "Running", "conditions": [condition]}}):
        assert why(json.dumps(document), "--json") == 0
        (one,) = json.loads(capsys.readouterr().out)["explanations"]
        assert (one["id"], ["resource", GPU] in one["values"]) == ("RZ-01", True)
        assert f"still needs 2 of {GPU}, and 1 are healthy and free" in one["because"]
        assert (one["change"][:13], one["next"][:8]) == ("Free or add 1", "The pod ")
        assert "keeps running" in one["next"]
    assert why('Pod resize Deferred: {"error":' + "[" * 5_000 + "]" * 5_000 + "}", "--json") == 0


def forms(message: str) -> list[str]:
    """Return a refusal in each form in which `kubectl` prints it, and by itself."""
    event = {"kind": "Event", "reason": "Failed", "message": message, "involvedObject": {"kind": "Pod", "name": "big"}}
    new_event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": message}
    status = {"phase": "Failed", "message": message}
    return [
        message,
        f"  Warning  Failed  3m (x4 over 5m)  kubelet  {message}\n",
        json.dumps(POD | {"status": status}),
        json.dumps(event),
        json.dumps({"kind": "List", "items": [event, new_event, {"kind": "Event", "message": "Started container"}]}),
        json.dumps(new_event, indent=4),
    ]


@pytest.mark.parametrize("recorded", EXAMPLES, ids=lambda one: f"{one['id']}-{len(one['message'])}")
def test_each_recorded_refusal_is_explained_in_any_form(
    recorded: dict[str, str], tmp_path: Path, capsys: Capsys
) -> None:
    file = tmp_path / "file"
    for form in forms(recorded["message"]):
        file.write_text(form)
        assert why(str(file), "--json") == 0
        explained = json.loads(capsys.readouterr().out)["explanations"]
        assert [one["id"] for one in explained] == [recorded["id"]], form


@pytest.mark.parametrize(("count", "is_tried"), [(1, True), (2, False)])
def test_the_only_refused_pod_of_a_list_is_tried(
    count: int, is_tried: bool, tmp_path: Path, checkpoint: str, capsys: Capsys
) -> None:
    """If several pods were refused, it is unclear which of them the user means."""
    running = {**POD, "status": {"phase": "Running"}}
    refused = [{**POD, "metadata": {"name": f"big-{number}", "uid": f"u-{number + 7}"}} for number in range(count)]
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"kind": "List", "items": [running, *refused]}))
    assert why(str(file), "--checkpoint", checkpoint, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in document["explanations"]] == ["DM-05"]
    assert (document["trial"] is not None) == is_tried


def test_a_text_that_is_too_long_is_one_sentence(tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "log"
    file.write_text("x" * 3_000_000)
    assert why(str(file)) == 2
    assert capsys.readouterr().err.endswith("expected text of at most 2,000,000 characters, got 3,000,000\n")


@pytest.mark.slow
def test_a_list_of_17_megabytes_is_read_in_full(pod: str, tmp_path: Path, capsys: Capsys) -> None:
    pods = {"kind": "List", "metadata": {"x": "x" * 17_000_000}, "items": [json.loads(Path(pod).read_text())]}
    (tmp_path / "pods").write_text(json.dumps(pods))
    assert why(str(tmp_path / "pods")) == 0
    (tmp_path / "text").write_bytes(b"x" * 17_000_000)
    assert why(str(tmp_path / "text")) == 2
    assert "at most 2,000,000 characters" in capsys.readouterr().err


def test_a_message_may_come_from_stdin(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(REFUSAL.encode())))
    assert why("-") == 0
    assert "DM-05" in capsys.readouterr().out


def test_a_message_that_no_kubelet_prints_gives_status_1(capsys: Capsys) -> None:
    assert why("hello\x1b[31m") == 1
    assert capsys.readouterr().err == (
        "devicecore why: expected the message of a kubelet that refused a pod, got: hello\\x1b[31m "
        "(no file, pod or claim has this name, and a reason such as UnexpectedAdmissionError is not enough; run: "
        "kubectl get pod NAME -o json | devicecore why -)\n"
    )


def test_a_file_that_is_not_recognized_is_shown_in_part(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "README.md").write_text("# A project\n\n" + "Words. " * 1_000)
    assert why(str(tmp_path / "README.md")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "got: # A project\\n\\nWords." in line
    assert len(line.partition("got: ")[2]) <= 200


def test_why_does_not_advise_to_run_why(capsys: Capsys) -> None:
    assert why("default/batch", "--root", str(Path(__file__).parents[4] / "docs" / "nodes" / "leak")) == 0
    printed = capsys.readouterr().out
    assert "The kubelet has refused 1 pod here (default/batch)" in printed
    assert "devicecore why" not in printed


def test_a_name_that_was_looked_up_nowhere_is_not_called_unknown(capsys: Capsys) -> None:
    assert why("train") == 1
    said = capsys.readouterr().err
    assert "got: train (no file has this name, and no source was named in which to look" in said
    assert "add --kubeconfig FILE" in said


def test_the_refused_pod_can_be_a_manifest_without_a_uid(tmp_path: Path, checkpoint: str, capsys: Capsys) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(json.dumps(POD | {"metadata": {"name": "big"}}))
    assert why(REFUSAL, "--pod", str(manifest), "--checkpoint", checkpoint, "--json") == 0
    assert json.loads(capsys.readouterr().out)["trial"]["fits"] is False


@pytest.mark.parametrize(
    "content", [b"{", b'{"kind": "Pod", "status": 1}', b"kind: [", b'{"items": 1}', b'{"items": ' + b"[" * 100_000]
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, content: bytes, capsys: Capsys) -> None:
    file = tmp_path / "pod"
    file.write_bytes(content)
    assert why(str(file)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("devicecore why: ")


@pytest.mark.parametrize(("message", "said"), [("", "MESSAGE is em"), (".", ". is a directory"), (sys.executable, "")])
def test_input_that_is_neither_text_nor_a_file_gives_status_2(message: str, said: str, capsys: Capsys) -> None:
    assert why(message) == 2
    assert (said or "expected text, got binary data") in capsys.readouterr().err


@pytest.mark.parametrize(("encoding", "mark"), [("utf-16", ""), ("utf-16-be", "\ufeff"), ("utf-8", "\ufeff")])
def test_a_windows_file_is_read_like_any_other(encoding: str, mark: str, tmp_path: Path, capsys: Capsys) -> None:
    (file := tmp_path / "pod").write_bytes((mark + json.dumps(POD, indent=1).replace("\n", "\r\n")).encode(encoding))
    assert why(str(file)) == 0
    assert capsys.readouterr().out.startswith(f"{REFUSAL}\n")


@pytest.mark.parametrize("form", ["{0}\n{0}", "{0:.90}", "{1}"], ids=["several", "cut-off", "of-python"])
def test_a_document_that_is_not_json_is_text_if_it_contains_a_refusal(form: str, capsys: Capsys) -> None:
    event = {"kind": "Event", "message": "Resources cannot be allocated with Topology locality", "reason": "Failed"}
    assert main(["why", form.format(json.dumps(event), event)]) == 0
    assert "(TM-01)" in capsys.readouterr().out
    assert main(["why", '{"kind": "Event", "message": "Res']) == 2
    assert "it is not JSON" in capsys.readouterr().err


def test_a_json_log_is_treated_as_text(tmp_path: Path, capsys: Capsys) -> None:
    lines = [json.dumps({"ts": 1.5, "msg": text}) for text in ("Starting", REFUSAL)]
    for number in (1, 2):
        (file := tmp_path / "log").write_text("\n".join(lines[-number:]))
        assert why(str(file)) == 0
        assert "DM-05" in capsys.readouterr().out


def test_an_unreadable_source_is_named_and_the_rest_is_reported(pod: str, tmp_path: Path, capsys: Capsys) -> None:
    assert why(pod, "--root", str(tmp_path)) == 0
    assert "DM-05" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "status"), [("big", 0), ("default/big", 0), ("other", 1)], ids=["name", "with namespace", "no such pod"]
)
def test_a_refused_pod_of_devicecore_kubelet_is_found_by_its_name(
    tmp_path: Path, name: str, status: int, capsys: Capsys
) -> None:
    refused = {"namespace": "default", "name": "big", "phase": "Failed", "reason": REFUSAL}
    (tmp_path / "state.json").write_text(json.dumps({"pods": [refused, {**refused, "name": "small"}]}))
    assert main(["why", name, "--root", str(tmp_path)]) == status
    assert ("decided by" in capsys.readouterr().out) == (status == 0)


@pytest.mark.parametrize("name", ["/nosuch", "./nosuch", "../nosuch", "~/pod", "pod.json", "team/claim.yaml", "a.log"])
def test_a_missing_file_is_not_taken_for_a_message(name: str, capsys: Capsys) -> None:
    assert why(name) == 2
    assert capsys.readouterr().err == f"devicecore why: {name}: there is no such file\n"


def test_a_name_refers_to_a_pod_or_otherwise_to_a_claim(tmp_path: Path, capsys: Capsys) -> None:
    """A record contains pods and claims. If no pod or claim in the record has the name, `why` does not guess."""
    claim = {"metadata": {"name": "held", "namespace": "team"}, "spec": {"devices": {"requests": [{"name": "device"}]}}}
    result = {"request": "device", "driver": "gpu.example.com", "pool": "n1", "device": "dev-0"}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": []}
    files = {"ResourceClaim": ("resourceclaims.json", claim), "Pod": ("pods.json", {**POD, "spec": POD["spec"]})}
    for kind, (file, item) in files.items():
        (tmp_path / file).write_text(json.dumps({"kind": f"{kind}List", "items": [item]}))
    for name in ("held", "team/held"):
        assert why(name, "--root", str(tmp_path)) == 0
        assert capsys.readouterr().out.startswith("claim team/held is allocated\n  request device")
    assert why("big", "--root", str(tmp_path)) == 0
    assert "DM-05" in capsys.readouterr().out
    assert why("other/held", "--root", str(tmp_path)) == 1
    assert "no file, pod or claim has this name" in capsys.readouterr().err


def test_a_pod_not_yet_picked_up_is_named_with_its_node(tmp_path: Path, capsys: Capsys) -> None:
    spec: Any = POD["spec"]
    pod = {**POD, "spec": {**spec, "nodeName": "n1"}, "status": {"phase": "Pending"}}
    (file := tmp_path / "pod.json").write_text(json.dumps(pod))
    assert why(str(file)) == 1
    assert "was sent to node n1, whose kubelet has not picked it up yet" in capsys.readouterr().err


def test_a_name_is_looked_for_at_the_api_server(tmp_path: Path, capsys: Capsys) -> None:
    """A kubelet refused the pod, which has no claims and is not in any file."""
    in_the_event = REFUSAL.removeprefix("Pod was rejected: ")
    with LocalApiServer() as server:
        server.create({"kind": "Namespace", "metadata": {"name": "team"}})
        spec = {"containers": [{"name": "main", "image": "i"}], "nodeName": "n1"}
        for namespace in ("default", "team"):
            server.create({"kind": "Pod", "metadata": {"name": "twice", "namespace": namespace}, "spec": spec})
        refused = {"kind": "Pod", "metadata": {"name": "big", "namespace": "team"}, "spec": spec}
        server.create({**refused, "status": {"phase": "Failed", "message": REFUSAL}})
        about = {"kind": "Pod", "name": "big", "namespace": "team"}
        event = {"kind": "Event", "metadata": {"name": "big.1", "namespace": "team"}, "involvedObject": about}
        server.create({**event, "type": "Warning", "reason": "UnexpectedAdmissionError", "message": in_the_event})
        config = str(server.kubeconfig(tmp_path / "config"))
        for name in ("big", "team/big"):
            assert why(name, "--kubeconfig", config) == 0
            # the event has the same message, which is explained only once
            assert capsys.readouterr().out.count("DM-05") == 1
        for name in ("default/big", "twice"):
            assert why(name, "--kubeconfig", config, "--node-name", "n1") == 1
        assert why("twice", "--kubeconfig", config) == 2
        said = "2 pods are called twice, in the namespaces default, team: write NAMESPACE/twice\n"
        assert capsys.readouterr().err.endswith(said)
        assert why("big", "--kubeconfig", str(tmp_path / "none")) == 2


def test_objects_without_a_refusal_are_named_with_advice(tmp_path: Path, capsys: Capsys) -> None:
    def pods(*phases: str) -> str:
        items = [
            {"metadata": {"name": f"p{n}", "uid": f"u{n}"}, "spec": POD["spec"], "status": {"phase": phase}}
            for n, phase in enumerate(phases)
        ]
        return json.dumps({"kind": "PodList", "items": items})

    about = {"kind": "Pod", "namespace": "default", "name": "p0"}
    event = {"kind": "Event", "message": "Pulled", "involvedObject": about}
    files = {"one": pods("Running"), "two": pods("Running", "Running"), "mixed": pods("Pending", "Running")}
    files |= {"waits": pods("Pending"), "events": json.dumps({"kind": "EventList", "items": [event]}), "empty": ""}
    several = [{"kind": "Node", "metadata": {"name": "n"}}, {"kind": "Pod", **json.loads(pods("Pending"))["items"][0]}]
    published = [{"kind": kind} for kind in ("DeviceClass", "ResourceSlice", "DeviceClass")]
    lists = {"nodes": several, "slices": published, "none": []}
    files |= {name: json.dumps({"kind": "List", "items": items}) for name, items in lists.items()}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for command, said in {
        "{}/one": "pod default/p0 is Running: no kubelet has refused it",
        "{}/two": "2 Running pods: no kubelet has refused any of them",
        "{}/mixed": "1 Pending pod and 1 Running pod without a message (its events may contain one; for one of",
        "{}/waits": "1 Pending pod without a message (its events may contain one: add --events FILE",
        "{}/waits --events {}/events": "1 Pending pod with the message: Pulled (and none of the pod's events "
        "that were read",
        "{}/waits --events {}/one": "events at {}/one was not read: kind: expected a list of events",
        "{}/empty": "got: an empty text\n",
        "{}/events": "got: 1 Event with the message: Pulled\n",
        "p0 --pods {}/mixed": "1 Pending pod without a message (its events may contain one: add --events FILE",
        "p0 --pods {}/events": "pods at {}/events was not read: kind: expected a list of pods",
        "p0 --pods {}/nodes": "1 Pending pod without a message (its events may contain one: add --events FILE",
        "{}/slices": "got: 2 DeviceClasses and 1 ResourceSlice without a message; name a pod, a claim or an event: dev",
        "{}/none": "got: an empty list; name a pod, a claim or an event: devicecore why POD.yaml --slices FILE, where",
    }.items():
        assert why(*command.replace("{}", str(tmp_path)).split()) == 1
        assert said.replace("{}", str(tmp_path)) in capsys.readouterr().err


NEW_POD = json.dumps({"kind": "Pod", "metadata": {"name": "a"}, "spec": POD["spec"]})
WORKLOAD = json.dumps({"kind": "Deployment", "status": {"conditions": [{"message": "has minimum availability"}]}})
SERVICE = json.dumps({"kind": "Service", "spec": {}, "status": {"loadBalancer": {}}})


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([NEW_POD], "the pod has no status, so no kubelet has seen it. To try it, run: devicecore fits {}"),
        ([NEW_POD, SERVICE], "the pod has no status, so no kubelet has seen it. To try it, run: devicecore fits {}"),
        ([NEW_POD, NEW_POD], "the pods have no status. To try one of them, write it to a separate FILE, and run: dev"),
        ([WORKLOAD, SERVICE], "no kubelet sees a Deployment, only its pods. To try it, run: devicecore fits {}"),
        ([NEW_POD, WORKLOAD], "no kubelet sees a Deployment, only its pods. To try one of them, write it to a sep"),
    ],
)
def test_pods_that_no_kubelet_has_seen_are_tried_instead(
    documents: list[str], said: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "file").write_text("\n---\n".join(documents))
    assert why(str(file)) == 2
    assert said.format(file) in capsys.readouterr().err
    with file.open() as opened:
        monkeypatch.setattr("sys.stdin", opened)
        assert why("-") == 2
    assert said.format("-\n" if "{}" in said else "") in capsys.readouterr().err


def test_a_word_says_what_the_question_is_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`why message pod` is about the text "pod", and `why claim FILE` is about the claims in a file with pods."""
    claim = {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": []}}}
    both = tmp_path / "both.json"
    pod = {"kind": "Pod", "metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "a"}]}}
    pod["spec"] |= {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}  # type: ignore[operator]  # a dict
    rule = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    node = {"kind": "Node", "metadata": {"name": "n1"}}
    both.write_text(json.dumps({"kind": "List", "items": [pod, claim, rule, node]}), encoding="utf-8")
    assert main(["why", "claim", str(both)]) == 0
    assert capsys.readouterr().out.startswith("claim c ")
    assert main(["why", "pod", str(both)]) == 0
    assert capsys.readouterr().out.startswith("pod default/p ")
    assert main(["why", "message", "pod"]) == 1
    assert "got: pod" in capsys.readouterr().err
    assert main(["why", "pod", "there is no pod"]) == 2
    assert main(["why", "pod", "gone", "--pods", str(both)]) == 2
    assert "no source has a pod gone" in capsys.readouterr().err
    assert main(["why", "one", "two"]) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            ["train"],
            "the server has no pod or ResourceClaim with that name: to give a namespace, write NAMESPACE",
        ),
        (["pod/train"], "expected the name of a pod or ResourceClaim, got pod/train; "),
        (["pod/train"], ": write `why pod train`\n"),
        (
            ["claim", "gpu"],
            "expected the name of a ResourceClaim, got gpu; the server has no ResourceClaim with that name",
        ),
    ],
)
def test_a_name_that_the_api_server_does_not_have_is_refused(
    name: list[str], said: str, tmp_path: Path, capsys: Capsys
) -> None:
    """The error does not tell the user to add --node-name, which would not help."""
    with LocalApiServer() as server:
        assert why(*name, "--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))) == 2
    assert said in capsys.readouterr().err


def test_a_misspelled_name_is_answered_with_the_pods_of_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[4] / "docs" / "nodes" / "leak"
    assert main(["why", "default/bacth", "--root", str(root)]) == 1
    assert "; the pods that were read: " in (said := capsys.readouterr().err)
    assert "default/batch" in said
