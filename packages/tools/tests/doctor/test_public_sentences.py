"""Sentences from public threads: each is explained correctly, or attributed to the component that it is about."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.doctor.pod.explanation import explain
from devicecore_tools.doctor.pod.scheduler import NodesSeen

FILE = Path(__file__).parent.parent / "data" / "public_sentences.jsonl"
TABLE = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
"""In each row: a text with neutral names, its thread, and its explanations' ids and required and forbidden words."""


@pytest.mark.parametrize("row", TABLE, ids=[f"{one['thread'][19:]} {one['ids'][0]}" for one in TABLE])
def test_a_sentence_of_a_public_thread_is_explained(row: dict[str, Any]) -> None:
    found = explain(row["text"])
    assert [one.id for one in found] == row["ids"]
    said = " ".join(f"{one.manager}: {one.because} {one.change}" for one in found)
    assert not [words for words in row["says"] if words not in said], said
    assert not [words for words in row["never"] if words in said], said


def test_the_table_has_forty_sentences_of_many_projects() -> None:
    assert len({one["text"] for one in TABLE}) >= 40
    assert len({"/".join(one["thread"].split("/")[3:5]) for one in TABLE}) >= 15


GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("nodes", "says", "never"),
    [
        ({"a": {}}, ["Node a never had any", "or the name is misspelled"], "leave fewer"),
        ({"a": {"amd.com/gpu": (8, 8)}}, ["The Nodes have amd.com/gpu"], "leave fewer"),
        ({"a": {GPU: (4, 0)}}, ["Node a has 0 of", "its plugin is gone, or reports all"], "leave fewer"),
        ({"a": {GPU: (0, 0)}}, ["its plugin is gone, or lists no devices"], "leave fewer"),
        ({"a": {GPU: (4, 4)}}, [f"a has 4 of {GPU}, and other pods there leave fewer"], "plugin"),
        (
            {"a": {GPU: (4, 4)}, "b": {}, "c": {}},
            ["none of the Nodes b and c ever had any", "a has 4 of"],
            "misspelled, ",
        ),
    ],
)
def test_insufficient_begins_with_the_nodes_that_have_none(nodes: NodesSeen, says: list[str], never: str) -> None:
    (found,) = explain(f"0/3 nodes are available: 3 Insufficient {GPU}.", nodes=nodes)
    said = f"{found.because} {found.change}"
    assert not [words for words in says if words not in said], said
    assert never not in said


@pytest.mark.parametrize("resource", ["nvidia.com/gpumem", "volcano.sh/vgpu-number", "tencent.com/vcuda-core"])
def test_a_resource_of_another_scheduler_is_named_as_its_own(resource: str) -> None:
    (found,) = explain(f"0/3 nodes are available: 3 Insufficient {resource}.", nodes={"a": {}})
    assert "this scheduler does not know" in found.because
    assert "plugin" not in found.change


@pytest.mark.parametrize(
    ("taint", "says", "toleration"),
    [
        (" {node.kubernetes.io/unreachable: }", "is not reporting to the API server", False),
        (" {node.kubernetes.io/disk-pressure: }", "the disk there is nearly full", False),
        (" {node.kubernetes.io/of-tomorrow: }", "because of a problem", False),
        (" {node.cloudprovider.kubernetes.io/uninitialized: true}", "cloud", False),
        (" {nvidia.com/gpu: present}", "the taint nvidia.com/gpu", True),
        ("(s)", "the pod does not tolerate a taint", True),
    ],
)
def test_a_taint_is_named_with_its_key_and_a_problem_taint_is_never_tolerated(
    taint: str,
    says: str,
    toleration: bool,
) -> None:
    (found,) = explain(f"0/1 nodes are available: 1 node(s) had untolerated taint{taint}. preemption: no")
    assert says in found.because
    assert ("toleration" in found.change) == toleration


RESTORE = "could not restore state from checkpoint: "


@pytest.mark.parametrize(
    ("text", "id_", "says", "never"),
    [
        (f'err="{RESTORE}checkpoint is corrupted, please drain this node"', "KL-06", "cannot start", "still use"),
        (f'err="{RESTORE}configured policy "static" differs"', "KL-06", "cannot start", "still use"),
        ("0/1 nodes are available: 1 node(s) had volume node affinity conflict.", "SC-01", "zone", "nodeSelector"),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "SC-01", "StorageClass", "says"),
        ("0/0 nodes are available: .", "SC-01", "gives no reason", ". ."),
        ("no nodes available to schedule pods", "SC-01", "The cluster has no Nodes", "reason"),
        (
            "0/1 nodes are available: 1 node(s) had untolerated taint {ToBeDeletedByClusterAutoscaler: 1}.",
            "SC-01",
            "Wait for another node",
            "add a toleration",
        ),
        ("pod triggered scale-up: [{group 1->2 (max: 3)}]", "CA-02", "is adding a node", "adds no node"),
        ('Failed to create pod sandbox: no runtime for "nvidia" is configured', "RT-04", "RuntimeClass", "checkpoint"),
        ('"Got registration request from device plugin with resource"', "KL-07", "This is normal", "ended"),
        ('pod "default/x": ResourceClaim not created yet', "DX-02", "ResourceClaimTemplate exists", "Delete the pod."),
    ],
)
def test_an_ordinary_message_gets_helpful_advice(text: str, id_: str, says: str, never: str) -> None:
    (found,) = explain(text)
    said = f"{found.because} {found.change}"
    assert (found.id, says in said, never in said) == (id_, True, False), said


@pytest.mark.parametrize(
    ("text", "id_", "says"),
    [
        ("The node had condition: [DiskPressure]. ", "KL-08", "Devices play no part in this"),
        ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 5Mi. ", "KL-09", "was short of"),
        ("Pod was rejected as the node is shutting down.", "KL-10", "admits none"),
        ("Failed: Error: ImageInspectError", "KL-11", "holds its devices in the meantime"),
        ('Back-off pulling image "registry.example/train:1"', "KL-11", "holds its devices in the meantime"),
        ("TaintManagerEviction: Marking for deletion Pod default/train", "TE-01", "NoExecute"),
    ],
)
def test_kubelet_messages_not_about_devices_are_identified_as_such(text: str, id_: str, says: str) -> None:
    (found,) = explain(text)
    assert (found.id, says in found.because, found.concerns_devices) == (id_, True, False)


def test_two_plugins_in_one_log_are_distinguished() -> None:
    where = "E1127 05:25:45.287747 215379 endpoint.go:107] "
    ended = where + "listAndWatch ended unexpectedly for device plugin a.b/{} with error rpc error: code = {}"
    too_large = ended.format("gpu", "ResourceExhausted desc = grpc: received message larger than max (5 vs. 4)")
    explained = explain(f"{too_large}\n{ended.format('nic', 'Unavailable')}\n{ended.format('nic', 'Unavailable')}")
    assert [(one.id, dict(one.values)["resource"]) for one in explained] == [("KL-01", "a.b/gpu"), ("KL-02", "a.b/nic")]
