"""`why` judges each waiting pod by all of a scheduler's rules, and names any rule that it could not apply."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

Capsys = pytest.CaptureFixture[str]
Json = Any


def a_pod(name: str = "ask", limits: Json = None, labels: Json = None, **spec: Json) -> Json:
    """Return a pod with one container."""
    container = {"name": "app", "image": "x", "resources": {"limits": limits or {}}, "ports": spec.pop("ports", [])}
    metadata = {"name": name, "namespace": "ml", "uid": f"u-{name}", "labels": labels or {}}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def a_node(name: str, labels: Json = None, **allocatable: str) -> Json:
    """Return a node with 8 CPUs, unless `allocatable` says otherwise."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "10", **allocatable}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": amounts, "capacity": amounts}}


def asked(where: Path, pod: Json, *objects: Json) -> int:
    """Run `why` on a pod in a cluster whose pods are all known, and return the exit status."""
    (where / "objects.json").write_text(json.dumps({"kind": "List", "items": objects}), encoding="utf-8")
    (where / "pods.json").write_text(json.dumps({"kind": "PodList", "items": []}), encoding="utf-8")
    (where / "pod.json").write_text(json.dumps(pod), encoding="utf-8")
    files = ("--slices", str(where / "objects.json"), "--pods", str(where / "pods.json"))
    return main(["why", str(where / "pod.json"), *files])


HOST, DB, WEB = "kubernetes.io/hostname", {"app": "db"}, {"app": "web"}
INIT = {"name": "first", "image": "x", "resources": {"requests": {"cpu": "5"}}}


def on(node: str, name: str = "db", **fields: Json) -> Json:
    """Return a pod that is bound to a node."""
    return a_pod(name, fields.pop("limits", None), fields.pop("labels", DB), nodeName=node, **fields)


def beside(kind: str, labels: Json = None, **fields: Json) -> Json:
    """Return a pod's affinity or anti-affinity to other pods on its node."""
    term = {"labelSelector": {"matchLabels": labels or DB}, "topologyKey": HOST, **fields}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(**fields: Json) -> Json:
    """Return a topology spread constraint over the nodes."""
    one = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**one, "labelSelector": {"matchLabels": DB}, **fields}]}


def a_port(port: int, **fields: Json) -> Json:
    """Return the ports of a container with a single port, which is also its host port."""
    return [{"containerPort": port, "hostPort": port, **fields}]


@pytest.mark.parametrize(
    ("pod", "status", "says"),
    [
        (a_pod(), 0, "fits"),
        (a_pod(limits={"cpu": "8"}), 0, "fits"),
        (a_pod(limits={"cpu": "9"}), 1, "Insufficient cpu: the pod requests 9, but the node has 8"),
        (a_pod(limits={"cpu": "4"}, initContainers=[INIT]), 0, "fits"),
        (a_pod(limits={"cpu": "4"}, initContainers=[{**INIT, "restartPolicy": "Always"}]), 1, "the pod requests 9"),
        (a_pod(limits={"memory": "64Gi"}), 1, "Insufficient memory"),
        (a_pod(nodeSelector={"zone": "b"}), 1, "didn't match Pod's node affinity/selector"),
        (a_pod(nodeSelector={"zone": "a"}), 0, "fits"),
        (a_pod(limits={"acme.io/card": "1"}), 1, "Insufficient acme.io/card"),
        (a_pod(schedulerName="volcano"), 3, "not checked  the rules of its own scheduler, volcano"),
    ],
)
def test_a_pod_needs_no_claims_to_be_judged(pod: Json, status: int, says: str, tmp_path: Path, capsys: Capsys) -> None:
    assert asked(tmp_path, pod, a_node("n1", {"zone": "a"})) == status
    assert says in capsys.readouterr().out


def test_a_pod_of_which_no_node_was_read_is_not_judged(tmp_path: Path, capsys: Capsys) -> None:
    assert asked(tmp_path, a_pod()) == 3
    assert "no Node was read" in capsys.readouterr().out


def test_each_waiting_pod_of_a_file_is_judged(tmp_path: Path, capsys: Capsys) -> None:
    both = {"kind": "PodList", "items": [a_pod("small"), a_pod("large", {"cpu": "9"})]}
    assert asked(tmp_path, both, a_node("n1")) == 1
    said = capsys.readouterr().out
    assert "pod ml/small on n1: fits" in said
    assert "pod ml/large: cannot be placed" in said


def test_a_workload_is_judged_by_its_pods(tmp_path: Path, capsys: Capsys) -> None:
    template = {"spec": a_pod(limits={"cpu": "9"})["spec"]}
    deployment = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}}
    assert asked(tmp_path, deployment, a_node("n1")) == 1
    assert "a pod of Deployment default/web: cannot be placed" in capsys.readouterr().out


def test_pods_that_a_kubelet_has_refused_are_explained_by_their_messages(tmp_path: Path, capsys: Capsys) -> None:
    """Waiting pods in a list of pods do not hide the messages of the refused pods."""
    message = (
        "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
        "acme.io/card, which is unexpected"
    )
    refused = {**a_pod("old", nodeName="n1"), "status": {"phase": "Failed", "message": message}}
    assert asked(tmp_path, {"kind": "PodList", "items": [a_pod(), refused]}, a_node("n1")) == 0
    assert "no healthy devices present" in capsys.readouterr().out


def a_volume_claim(name: str, **spec: Json) -> Json:
    """Return a PersistentVolumeClaim, bound if it has a volume."""
    status = {"phase": "Bound"} if "volumeName" in spec else {}
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"], **spec},
        "status": status,
    }


def a_volume(name: str, node: str, **spec: Json) -> Json:
    """Return a PersistentVolume on one node."""
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}
    affinity = {"required": {"nodeSelectorTerms": [term]}}
    size = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    return {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {"nodeAffinity": affinity, **size, **spec}}


VOLUME: Json = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
LOCAL = {
    "kind": "StorageClass",
    "metadata": {"name": "local"},
    "provisioner": "kubernetes.io/no-provisioner",
    "volumeBindingMode": "WaitForFirstConsumer",
}
RESERVED = [
    a_volume(name, node, storageClassName="local", claimRef={"namespace": "ml", "name": claim})
    for name, node, claim in (("v1", "n1", "other"), ("v2", "n2", "data"))
]
NEAR, APART = "podAffinity", "podAntiAffinity"


@pytest.mark.parametrize(
    ("pod", "others", "says"),
    [
        (a_pod(**beside(NEAR)), [on("n2")], "on n2: fits"),
        (a_pod(**beside(NEAR)), [], "didn't match pod affinity rules"),
        (a_pod(labels=DB, **beside(NEAR)), [], "fits"),
        (a_pod(**beside(NEAR, namespaces=["other"])), [on("n2")], "didn't match pod affinity rules"),
        (a_pod(**beside(APART)), [on("n1")], "on n2: fits"),
        (a_pod(**beside(APART)), [on("n1"), on("n2", "db2")], "didn't match pod anti-affinity rules"),
        (a_pod(labels=DB), [on("n1", **beside(APART))], "on n2: fits"),
        (a_pod(labels=DB, **spread()), [on("n1")], "on n2: fits"),
        (a_pod(labels=DB, **spread()), [on("n1", "a", labels=WEB), on("n1", "b", labels=WEB), on("n2")], "on n1: fits"),
        (a_pod(labels=DB, **spread(minDomains=3)), [on("n1"), on("n2", "db2")], "and 2 of 3 domains exist"),
        (a_pod(labels=DB, **spread(topologyKey="rack")), [], "(missing required label)"),
        (a_pod(ports=a_port(80)), [on("n1", ports=a_port(80))], "on n2: fits"),
        (a_pod(ports=a_port(80)), [on("n1", ports=a_port(80)), on("n2", "x", ports=a_port(80))], "free ports"),
        (
            a_pod(ports=a_port(80)),
            [on("n1", ports=a_port(80, protocol="UDP")), on("n2", "x", ports=a_port(80))],
            "n1: f",
        ),
        (a_pod(**VOLUME), [a_volume_claim("other")], 'persistentvolumeclaim "data" not found'),
        (a_pod(**VOLUME), [a_volume_claim("data")], "unbound immediate PersistentVolumeClaims"),
        (a_pod(**VOLUME), [a_volume_claim("data", volumeName="v"), a_volume("v", "n2")], "on n2: fits"),
        (a_pod(**VOLUME), [a_volume_claim("data", volumeName="v")], 'persistentvolume "v" not found'),
        (
            a_pod(**VOLUME),
            [LOCAL, a_volume_claim("data", storageClassName="local"), a_volume("v", "n2", storageClassName="local")],
            "on n2: fits",
        ),
        (a_pod(**VOLUME), [LOCAL, a_volume_claim("data", storageClassName="local"), *RESERVED], "on n2: fits"),
        (a_pod(**VOLUME), [LOCAL, a_volume_claim("data", storageClassName="local")], "available persistent volumes"),
    ],
)
def test_existing_pods_and_volumes_decide(pod: Json, others: Json, says: str, tmp_path: Path, capsys: Capsys) -> None:
    """Affinity, spread, host ports and volumes are judged as the scheduler judges them."""
    status = asked(tmp_path, pod, a_node("n1"), a_node("n2"), *others)
    said = capsys.readouterr().out
    assert says in said
    assert status == (0 if "fits" in says or says == "n1: f" else 1)
    assert "volume limit" not in said  # none of these volumes has a driver


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (a_pod(**beside(NEAR)), "its affinity to other pods: no pods were read"),
        (a_pod(**beside(APART)), "its anti-affinity to other pods: no pods were read"),
        (a_pod(**spread()), "its topology spread constraints: no pods were read"),
        (a_pod(ports=a_port(80)), "whether host port 80 is free: no pods were read"),
        (a_pod(**VOLUME), "where the volumes of PersistentVolumeClaim data can be used"),
    ],
)
def test_unread_sources_are_not_taken_for_granted(pod: Json, says: str, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "node.json").write_text(json.dumps(a_node("n1")), encoding="utf-8")
    (tmp_path / "pod.json").write_text(json.dumps(pod), encoding="utf-8")
    assert main(["why", str(tmp_path / "pod.json"), "--node", str(tmp_path / "node.json")]) == 3
    assert f"not checked  {says}" in capsys.readouterr().out


def test_a_pod_that_a_budget_protects_is_preempted_last(tmp_path: Path, capsys: Capsys) -> None:
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "db", "namespace": "ml"}}
    budget["spec"] = {"selector": {"matchLabels": DB}}
    others = (on("n1", limits={"cpu": "4"}), on("n2", "web", limits={"cpu": "4"}, labels=WEB, priority=5))
    assert asked(tmp_path, a_pod(limits={"cpu": "6"}, priority=10), a_node("n1"), a_node("n2"), budget, *others) == 0
    assert "pod ml/ask on n2: fits after pod ml/web is preempted" in capsys.readouterr().out


def test_a_manifest_has_the_priority_of_its_class(tmp_path: Path, capsys: Capsys) -> None:
    classes = [{"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 10}]
    low = on("n1", limits={"cpu": "4"})
    assert asked(tmp_path, a_pod(limits={"cpu": "6"}, priorityClassName="high"), a_node("n1"), low, *classes) == 0
    assert "fits after pod ml/db is preempted" in capsys.readouterr().out
    never = {**classes[0], "preemptionPolicy": "Never"}
    assert asked(tmp_path, a_pod(limits={"cpu": "6"}, priorityClassName="high"), a_node("n1"), low, never) == 1


def test_everything_that_keeps_a_pod_off_a_node_is_named_with_a_remedy(tmp_path: Path, capsys: Capsys) -> None:
    """Fixing only some of the problems would not help."""
    node = {**a_node("n1"), "spec": {"unschedulable": True}}
    assert asked(tmp_path, a_pod(limits={"cpu": "9", "memory": "64Gi"}), node) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["reason", "because", "because", "needs"]
    assert lines[-1].endswith(
        "node n1 is uncordoned, and the pod's request for cpu is at most 8, "
        "and the pod's request for memory is at most 32Gi"
    )


def test_the_node_that_has_more_of_a_resource_is_nearer(tmp_path: Path, capsys: Capsys) -> None:
    nodes = (a_node("n1"), a_node("n2", **{"acme.io/card": "1"}))
    assert asked(tmp_path, a_pod(limits={"acme.io/card": "2"}), *nodes) == 1
    assert "needs   the pod's request for acme.io/card is at most 1" in capsys.readouterr().out


def test_namespaces_that_a_pod_selects_have_to_be_read(tmp_path: Path, capsys: Capsys) -> None:
    pod = a_pod(**beside(NEAR, namespaceSelector={"matchLabels": {"team": "a"}}))
    assert asked(tmp_path, pod, a_node("n1"), on("n1")) == 3
    assert "no Namespace was read" in capsys.readouterr().out
    namespace = {"kind": "Namespace", "metadata": {"name": "ml", "labels": {"team": "a"}}}
    assert asked(tmp_path, pod, a_node("n1"), on("n1"), namespace) == 0


def test_a_sentence_about_what_pods_use_may_be_outdated_if_pods_were_read(tmp_path: Path, capsys: Capsys) -> None:
    said = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    pod = {**a_pod(limits={"cpu": "4"}), "status": {"conditions": [condition]}}
    assert asked(tmp_path, pod, a_node("n1")) == 0
    assert f"it last said: {said}" in capsys.readouterr().out
    assert main(["why", str(tmp_path / "pod.json"), "--slices", str(tmp_path / "objects.json")]) == 1
    assert "the scheduler says: 0/1 nodes are available: 1 Insufficient cpu" in capsys.readouterr().out


def test_a_pod_excluded_by_another_pods_anti_affinity_is_named(tmp_path: Path, capsys: Capsys) -> None:
    assert asked(tmp_path, a_pod(**beside("podAntiAffinity")), a_node("n1"), on("n1")) == 1
    assert "pod ml/db, which the pod's anti-affinity excludes, runs at" in capsys.readouterr().out
