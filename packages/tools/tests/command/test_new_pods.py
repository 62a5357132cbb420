"""`why` says what an API server refuses in a new pod or adds to it, and what keeps a stored pod waiting."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main
from tests.command.test_waiting_pods import a_node, a_pod, a_port, spread

Capsys = pytest.CaptureFixture[str]
Json = Any
CARD = "acme.io/card"


def new(pod: Json) -> Json:
    """Return a pod that no API server has accepted yet."""
    return {**pod, "metadata": {name: of for name, of in pod["metadata"].items() if name != "uid"}}


def asked(where: Path, capsys: Capsys, pod: Json, *objects: Json) -> tuple[int, str]:
    """Run `why` on a pod in a cluster, and return its exit status and output."""
    (where / "objects.json").write_text(json.dumps({"kind": "List", "items": objects}), encoding="utf-8")
    (where / "pod.json").write_text(json.dumps({"apiVersion": "v1", **pod}), encoding="utf-8")
    status = main(
        ["why", str(where / "pod.json"), *(f"--{one}={where / 'objects.json'}" for one in ("slices", "claims"))]
    )
    return status, capsys.readouterr().out


def sized(limits: Json = None, requests: Json = None, **spec: Json) -> Json:
    """Return a new pod with one container that has these limits and requests."""
    pod = new(a_pod(**spec))
    pod["spec"]["containers"][0]["resources"] = {"limits": limits or {}, "requests": requests or {}}
    return pod


IN = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "In"}]}]}
AFFINITY = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": IN}}}
SAME = new(a_pod())
SAME["spec"] = {"containers": SAME["spec"]["containers"] * 2}
INVALID = {
    "a name with capitals": (new(a_pod("Ask")), "its name is Ask"),
    "two containers with one name": (SAME, "it has two containers named app"),
    "no such policy": (sized(restartPolicy="Sometimes"), "expected Always, OnFailure or Never"),
    "a value that exists": (sized(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]), "and a value"),
    "a fraction of a device": (sized({CARD: "500m"}), "a limit of 500m for acme.io/card: expected a whole number"),
    "more than its limit": (sized({"cpu": "1"}, {"cpu": "2"}), "has a request of 2 for cpu, but a limit of 1"),
    "huge pages alone": (sized({"hugepages-2Mi": "4Mi"}), "has huge pages but neither CPU nor memory"),
    "other huge pages": (sized({"hugepages-2Mi": "4Mi", "cpu": "1"}, {"hugepages-2Mi": "2Mi"}), "under limits"),
    "below zero": (sized({"cpu": "-1"}), "a limit of -1 for cpu: expected 0 or more"),
    "a device for the whole pod": (sized(resources={"limits": {CARD: "1"}}), "has acme.io/card in spec.resources"),
    "less than its containers": (sized({"cpu": "2"}, resources={"requests": {"cpu": "1"}}), "its containers request 2"),
    "a container that exceeds the pod": (
        sized({"cpu": "2"}, resources={"limits": {"cpu": "1"}}),
        "container app has a limit of 2",
    ),
    "a port twice": (sized(ports=[*a_port(80), *a_port(80)]), "host port 80 is used twice"),
    "another port": (
        sized(hostNetwork=True, ports=[{"containerPort": 1, "hostPort": 2}]),
        "differs from its containerPort",
    ),
    "no skew": (sized(**spread(maxSkew=0)), "maxSkew of a topology spread constraint is 0"),
    "no values": (sized(**AFFINITY), "operator In of z in its affinity cannot have 0 values"),
    "a node and a gate": (sized(schedulingGates=[{"name": "a.b/c"}], nodeName="n1"), "a node and has scheduling gates"),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_pod_that_every_api_server_rejects_is_refused(name: str, tmp_path: Path, capsys: Capsys) -> None:
    pod, says = INVALID[name]
    (tmp_path / "pod.json").write_text(json.dumps({"apiVersion": "v1", **pod}), encoding="utf-8")
    (tmp_path / "node.json").write_text(json.dumps({"name": "n1", "devices": []}), encoding="utf-8")
    assert main(["fits", str(tmp_path / "pod.json"), "--node", str(tmp_path / "node.json")]) == 1
    assert says in capsys.readouterr().out
    if not pod["spec"].get("nodeName"):
        status, said = asked(tmp_path, capsys, pod, a_node("n1", **{CARD: "4"}))
        assert (status, "refused by the API server" in said, says in said) == (1, True, True)


def a_quota(hard: Json, used: Json, **spec: Json) -> Json:
    """Return a ResourceQuota for the pods' namespace."""
    status = {"hard": hard, "used": used}
    return {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "ml"}, "spec": spec, "status": status}


ONE = {f"requests.{CARD}": "1"}
KATA = {"kind": "RuntimeClass", "metadata": {"name": "kata"}}
PRIORITY = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1}
ADMITTED = {
    "a quota that is used up": (
        sized({CARD: "1"}),
        a_quota(ONE, ONE),
        1,
        "exceeded quota: q, requested: requests.",
    ),
    "a quota that is not used up": (sized({CARD: "1"}), a_quota(ONE, {}), 0, "fits"),
    "a quota for a stored pod": (a_pod(limits={CARD: "1"}), a_quota(ONE, ONE), 0, "fits"),
    "a quota for other pods": (
        sized(),
        a_quota({"pods": "0"}, {}, scopeSelector={"matchExpressions": [{"scopeName": "NotBestEffort"}]}),
        0,
        "fits",
    ),
    "a quota that requires limits": (sized(), a_quota({"limits.cpu": "4"}, {}), 1, "must specify limits.cpu for: app"),
    "no such class": (sized(priorityClassName="gone"), PRIORITY, 1, "no PriorityClass with name gone was found"),
    "no such runtime": (sized(runtimeClassName="gone"), KATA, 1, 'RuntimeClass "gone" not found'),
    "an overhead": (
        sized({"cpu": "7"}, runtimeClassName="kata"),
        {**KATA, "overhead": {"podFixed": {"cpu": "2"}}},
        1,
        "Insufficient cpu: the pod requests 9",
    ),
    "a selector of a runtime": (
        sized(runtimeClassName="kata"),
        {**KATA, "scheduling": {"nodeSelector": {"kata": "yes"}}},
        1,
        "the pod selects kata=yes",
    ),
    "a limit range": (sized(), {"kind": "LimitRange", "metadata": {"namespace": "ml"}}, 3, "that a LimitRange in"),
}


@pytest.mark.parametrize("name", ADMITTED)
def test_a_new_pod_is_admitted_as_by_an_api_server(name: str, tmp_path: Path, capsys: Capsys) -> None:
    pod, other, status, says = ADMITTED[name]
    found, said = asked(tmp_path, capsys, pod, a_node("n1", **{CARD: "4"}), other)
    assert (found, says in said) == (status, True), said


def on(node: str, name: str, size: str = "6", **status: Json) -> Json:
    """Return a pod that is on a node and requests CPUs."""
    return {**a_pod(name, {"cpu": size}, nodeName=node), "status": status}


def resized(size: str, to: str, **status: Json) -> Json:
    """Return a pod on n1 that is being resized."""
    seen = {"name": "app", "allocatedResources": {"cpu": size}, "resources": {"requests": {"cpu": size}}}
    pod = on("n1", "b", containerStatuses=[seen], **status)
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": to}}
    return pod


def nominated(priority: int) -> Json:
    """Return a pod for which the scheduler reserves capacity on n1."""
    pod = {**a_pod("first", {"cpu": "6"}, priority=priority), "status": {"nominatedNodeName": "n1"}}
    pod["status"]["phase"] = "Pending"
    return pod


INFEASIBLE = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
ENDING = on("n1", "b")
ENDING["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
OTHERS = {
    "one that becomes smaller": (resized("6", "1"), 1),
    "one that cannot become larger": (resized("1", "99", conditions=INFEASIBLE), 0),
    "one that becomes larger": (resized("1", "6"), 1),
    "one that is ending": (ENDING, 1),
    "one that has ended": (on("n1", "b", phase="Succeeded"), 0),
    "one that is nominated": (nominated(5), 1),
    "a less important one that is nominated": (nominated(-5), 0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_pods_use_what_a_scheduler_counts(name: str, tmp_path: Path, capsys: Capsys) -> None:
    other, status = OTHERS[name]
    assert asked(tmp_path, capsys, a_pod(limits={"cpu": "4"}), a_node("n1"), other)[0] == status


CONDITIONS = {"bindingConditions": ["f.io/attached"], "bindingFailureConditions": ["f.io/failed"]}
CLASS = {"kind": "DeviceClass", "metadata": {"name": "fabric"}, "spec": {}}


def fabric(*true: str) -> tuple[Json, Json, Json, Json]:
    """Return a node, a class, a slice with a fabric device, and a claim for which these device conditions are true."""
    key = {"driver": "f.io", "pool": "n1", "device": "d0"}
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "fabric"}}]}}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    allocation = {
        "allocationTimestamp": "2026-01-01T00:00:00Z",
        "devices": {"results": [{"request": "r", **key, **CONDITIONS}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    stated = [{"type": f"f.io/{one}", "status": "True", "reason": "NoPath"} for one in true]
    status = {"allocation": allocation, "devices": [{**key, "conditions": stated}]}
    claim = {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "ml"}, "spec": spec, "status": status}
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    slice_spec = {"driver": "f.io", "pool": pool, "nodeName": "n1", "devices": [{"name": "d0", **CONDITIONS}]}
    slice_ = {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": slice_spec}
    return a_node("n1"), CLASS, slice_, claim


def with_claim(name: str) -> Json:
    """Return a stored pod that uses a claim."""
    pod = a_pod(resourceClaims=[{"name": "c", "resourceClaimName": name}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "c"}]}
    return pod


@pytest.mark.parametrize(
    ("true", "status", "says"),
    [
        ((), 3, "since    2026-01-01T00:00:00Z"),
        (("attached",), 0, "every claim is already allocated"),
        (("failed",), 3, "the devices cannot be bound: f.io/failed of f.io/n1/d0 is True (NoPath)"),
    ],
)
def test_an_allocated_claim_waits_for_its_conditions(
    true: tuple[str, ...], status: int, says: str, tmp_path: Path, capsys: Capsys
) -> None:
    found, said = asked(tmp_path, capsys, with_claim("c"), *fabric(*true))
    assert (found, says in said) == (status, True), said


@pytest.mark.parametrize(("most", "status"), [("1", 1), ("2", 0)])
def test_a_quota_counts_the_devices_of_a_claim_that_a_pod_creates(
    most: str, status: int, tmp_path: Path, capsys: Capsys
) -> None:
    node, cls, slice_, _ = fabric()
    both = [{"name": name, "exactly": {"deviceClassName": "fabric"}} for name in ("one", "two")]
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t", "namespace": "ml"}}
    template["spec"] = {"spec": {"devices": {"requests": both}}}
    slice_["spec"]["devices"] = [{"name": "d0"}, {"name": "d1"}]
    pod = with_claim("c")
    pod["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "t"}]
    quota = a_quota({"fabric.deviceclass.resource.k8s.io/devices": most}, {})
    found, said = asked(tmp_path, capsys, new(pod), node, cls, slice_, template, quota)
    assert (found, "exceeded quota: q" in said) == (status, bool(status)), said


def test_a_missing_claim_is_waited_for(tmp_path: Path, capsys: Capsys) -> None:
    found, said = asked(tmp_path, capsys, with_claim("gone"), *fabric())
    assert (found, "the pod names ResourceClaim ml/gone" in said) == (1, True)


def a_workload(kind: str, **spec: Json) -> Json:
    """Return a DaemonSet or a StatefulSet."""
    template = {"metadata": {}, "spec": a_pod(limits={CARD: "1"})["spec"]}
    metadata = {"name": "w", "namespace": "ml"}
    return {"kind": kind, "apiVersion": "apps/v1", "metadata": metadata, "spec": {"template": template, **spec}}


def test_a_pod_of_a_daemon_set_runs_on_a_cordoned_node(tmp_path: Path, capsys: Capsys) -> None:
    node = {**a_node("n1", **{CARD: "1"}), "spec": {"unschedulable": True}}
    assert asked(tmp_path, capsys, a_workload("DaemonSet"), node)[0] == 0


@pytest.mark.parametrize(("waits", "status"), [("WaitForFirstConsumer", 0), ("Immediate", 1)])
def test_a_stateful_set_creates_its_pods_volumes(waits: str, status: int, tmp_path: Path, capsys: Capsys) -> None:
    made = {"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "d.io", "volumeBindingMode": waits}
    other = {"kind": "PersistentVolumeClaim", "metadata": {"name": "other", "namespace": "ml"}, "spec": {}}
    claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}}
    pod = a_workload("StatefulSet", volumeClaimTemplates=[claim])
    found, said = asked(tmp_path, capsys, pod, a_node("n1", **{CARD: "1"}), made, other)
    assert (found, "data-w-0" in said) == (status, bool(status))


def a_disk(name: str, mode: str = "ReadWriteOnce") -> tuple[Json, Json]:
    """Return a volume of a CSI driver, and its claim."""
    spec = {"accessModes": [mode]}
    volume = {**spec, "csi": {"driver": "d.io", "volumeHandle": name}, "claimRef": {"namespace": "ml", "name": name}}
    return (
        {"kind": "PersistentVolume", "metadata": {"name": f"pv-{name}"}, "spec": volume},
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "ml"},
            "spec": {**spec, "volumeName": f"pv-{name}"},
            "status": {"phase": "Bound"},
        },
    )


def using(name: str, pod: str = "ask", **spec: Json) -> Json:
    """Return a pod with a volume."""
    return a_pod(pod, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": name}}], **spec)


def takes(count: int) -> Json:
    """Return a CSINode that says how many volumes n1 can attach."""
    driver = {"name": "d.io", "nodeID": "n1", "allocatable": {"count": count}}
    return {"kind": "CSINode", "metadata": {"name": "n1"}, "spec": {"drivers": [driver]}}


ONE_POD = "ReadWriteOncePod"
WITH_VOLUMES = {
    "another pod has it": ((*a_disk("v", ONE_POD), using("v", "b", nodeName="n1")), 1, "ReadWriteOncePod access mode"),
    "nobody has it": ((*a_disk("v", ONE_POD), takes(1)), 0, "fits"),
    "too many": ((*a_disk("v"), *a_disk("w"), takes(1), using("w", "b", nodeName="n1")), 1, "exceed max volume count"),
    "it is there": ((*a_disk("v"), takes(1), using("v", "b", nodeName="n1")), 0, "fits"),
    "nobody knows": (a_disk("v"), 0, "assumed  no node has reached its volume limit"),
}


@pytest.mark.parametrize("name", WITH_VOLUMES)
def test_volumes_are_limited_as_by_a_scheduler(name: str, tmp_path: Path, capsys: Capsys) -> None:
    objects, status, says = WITH_VOLUMES[name]
    found, said = asked(tmp_path, capsys, using("v"), a_node("n1"), *objects)
    assert (found, says in said) == (status, True), said


@pytest.mark.parametrize(("room", "status"), [("5Gi", 1), ("10Gi", 0)])
def test_a_driver_that_reports_its_capacity_is_believed(room: str, status: int, tmp_path: Path, capsys: Capsys) -> None:
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "v", "namespace": "ml"},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "10Gi"}}},
    }
    made = {
        "kind": "StorageClass",
        "metadata": {"name": "fast"},
        "provisioner": "d.io",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    driver = {"kind": "CSIDriver", "metadata": {"name": "d.io"}, "spec": {"storageCapacity": True}}
    rest = {"storageClassName": "fast", "capacity": room, "nodeTopology": {"matchLabels": {"zone": "a"}}}
    rooms = {"kind": "CSIStorageCapacity", "metadata": {"name": "r"}, **rest}
    found, said = asked(tmp_path, capsys, using("v"), a_node("n1", {"zone": "a"}), claim, made, driver, rooms)
    assert (found, "did not have enough free storage" in said) == (status, bool(status))


def test_a_claim_that_was_made_for_another_pod_is_not_used(tmp_path: Path, capsys: Capsys) -> None:
    pod = a_pod(resourceClaims=[{"name": "c", "resourceClaimTemplateName": "t"}])
    pod["status"] = {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "c"}]}
    node, cls, slice_, claim = fabric()
    owners = [{"kind": "Pod", "name": "other", "uid": "u-other", "controller": True}]
    claim = {**claim, "metadata": {**claim["metadata"], "ownerReferences": owners}}
    found, said = asked(tmp_path, capsys, pod, node, cls, slice_, claim)
    assert (found, "ResourceClaim ml/c was not created for pod ml/ask (pod is not owner)" in said) == (1, True)


def test_a_toleration_is_not_proposed_for_a_pods_limit(tmp_path: Path, capsys: Capsys) -> None:
    """A scheduler creates the claim for an extended resource without tolerations."""
    taints = [{"key": "bad", "effect": "NoSchedule"}]
    spec: Json = {"driver": "f.io", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n1"}
    spec["devices"] = [{"name": "d0", "taints": taints}]
    served = {**CLASS, "spec": {"extendedResourceName": CARD}}
    objects = (a_node("n1"), served, {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec})
    found, said = asked(tmp_path, capsys, a_pod(limits={CARD: "1"}), *objects)
    assert (found, "bad:NoSchedule" in said, "tolerates the taint" in said) == (1, True, False), said
    sidecar = {"name": "log", "image": "i", "restartPolicy": "Always", "resources": {"limits": {CARD: "1"}}}
    found, said = asked(tmp_path, capsys, a_pod(limits={CARD: "1"}, initContainers=[sidecar]), *objects)
    # there is one device for two requests
    assert (found, "f.io/n1/d0 has the taint bad:NoSchedule" in said) == (1, True), said


def serving(name: str, created: int) -> Json:
    """Return a class for the pods' resource, created at this second."""
    stamp = f"2026-01-01T00:00:{created:02}Z"
    return {
        "kind": "DeviceClass",
        "metadata": {"name": name, "creationTimestamp": stamp},
        "spec": {"extendedResourceName": CARD, "selectors": [{"cel": {"expression": f'device.driver == "{name}.io"'}}]},
    }


@pytest.mark.parametrize(("limit", "status"), [("f", 0), ("card", 1), ("g", 3)])
def test_the_newest_of_two_classes_serves_a_resource(limit: str, status: int, tmp_path: Path, capsys: Capsys) -> None:
    """Of two classes that are equally old, as these are, the first by name is used.

    A scheduler may not know the other class by its implicit resource name.
    """
    spec: Json = {"driver": "g.io", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n1"}
    slices = [
        {
            "kind": "ResourceSlice",
            "metadata": {"name": one},
            "spec": {**spec, "driver": one, "devices": [{"name": "d"}]},
        }
        for one in ("f.io", "g.io")
    ]
    name = CARD if limit == "card" else f"deviceclass.resource.kubernetes.io/{limit}"
    objects = (a_node("n1"), *slices, serving("g", 1), serving("f", 1))
    found, said = asked(tmp_path, capsys, a_pod(limits={name: "2" if limit == "card" else "1"}), *objects)
    assert (found, "f.io/n1/d" in said or status == 3) == (status, True), said


def test_limits_of_several_containers_are_proposed_together(tmp_path: Path, capsys: Capsys) -> None:
    """An init container uses the devices of the containers that start later, so one limit alone does not help."""
    served = {**CLASS, "spec": {"extendedResourceName": CARD}}
    spec: Json = {"driver": "f.io", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n1"}
    slice_ = {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {**spec, "devices": [{"name": "d0"}]}}
    pod = a_pod(limits={CARD: "3"})
    pod["spec"]["initContainers"] = [{"name": "warm", "image": "i", "resources": {"limits": {CARD: "3"}}}]
    found, said = asked(tmp_path, capsys, pod, a_node("n1"), served, slice_)
    assert (found, f"no limit of {CARD} exceeds 1 device" in said) == (1, True), said


@pytest.mark.parametrize(
    ("cpu", "says"),
    [
        ("2", "the pod's request for cpu is at most 2, apart from the 2 that its RuntimeClass adds"),
        ("5", "has no RuntimeClass whose overhead for cpu is 5"),
    ],
)
def test_the_overhead_of_a_runtime_counts_in_what_is_proposed(
    cpu: str, says: str, tmp_path: Path, capsys: Capsys
) -> None:
    node = a_node("n1")
    node["status"]["allocatable"]["cpu"] = "4"
    runtime = {"kind": "RuntimeClass", "metadata": {"name": "kata"}, "overhead": {"podFixed": {"cpu": cpu}}}
    pod = a_pod(limits={"cpu": "3"}, runtimeClassName="kata")
    found, said = asked(tmp_path, capsys, new(pod), node, runtime)
    assert (found, says in said) == (1, True), said


@pytest.mark.parametrize(("uid", "status"), [("u-former", 1), ("u-ask", 0), ("", 0)])
def test_a_claim_of_a_former_pod_of_the_same_name_keeps_its_devices(
    uid: str, status: int, tmp_path: Path, capsys: Capsys
) -> None:
    """A scheduler deallocates a claim only if no other pod uses it, and pods with different UIDs are different pods."""
    claim: Json = {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "ml"}}
    claim["spec"] = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "f"}}]}}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n9"]}]
    claim["status"] = {
        "allocation": {
            "devices": {"results": [{"request": "r", "driver": "f.io", "pool": "n9", "device": "d0"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
        },
        "reservedFor": [{"resource": "pods", "name": "ask", "uid": uid}],
    }
    spec: Json = {"driver": "f.io", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n1"}
    slice_ = {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {**spec, "devices": [{"name": "d0"}]}}
    cls = {"kind": "DeviceClass", "metadata": {"name": "f"}, "spec": {}}
    pod = a_pod(resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
    pod["metadata"]["uid"] = "u-ask"
    found, said = asked(tmp_path, capsys, pod, a_node("n1"), cls, slice_, claim)
    assert found == status, said


@pytest.mark.parametrize(("effect", "status"), [("NoExecute", 0), ("NoSchedule", 1)])
def test_a_new_pod_tolerates_a_node_that_is_not_ready_for_a_while(
    effect: str, status: int, tmp_path: Path, capsys: Capsys
) -> None:
    node = a_node("n1")
    node["spec"] = {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": effect}]}
    found, said = asked(tmp_path, capsys, new(a_pod()), node)
    assert found == status, said


@pytest.mark.parametrize(
    ("used", "is_refused"),
    [
        ([{"name": "c"}, {"name": "c"}], True),
        ([{"name": "c", "request": "r"}, {"name": "c"}], True),
        ([{"name": "c"}, {"name": "c", "request": "r"}], True),
        ([{"name": "c", "request": "r"}, {"name": "c", "request": "s"}], False),
    ],
)
def test_a_container_that_names_a_claim_twice_is_refused(
    used: list[Json], is_refused: bool, tmp_path: Path, capsys: Capsys
) -> None:
    pod = a_pod(resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
    pod["spec"]["containers"][0]["resources"] = {"claims": used}
    _, said = asked(tmp_path, capsys, new(pod), *fabric())
    assert ("lists the claim c twice" in said) is is_refused, said


@pytest.mark.parametrize(
    ("asks", "node", "status", "says"),
    [
        ({"limits": {"cpu": "1"}}, {}, 0, "on n1: fits"),
        ({"limits": {"cpu": "9"}}, {}, 1, "Insufficient cpu"),
        ({}, {"unschedulable": True}, 0, "on n1: fits"),
        ({}, {"taints": [{"key": "a", "effect": "NoSchedule"}]}, 0, "on n1: fits"),
        ({}, {"taints": [{"key": "a", "effect": "NoExecute"}]}, 1, "untolerated taint"),
        ({"nodeSelector": {"a": "b"}}, {}, 1, "node affinity/selector"),
        ({"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}, {}, 1, "no scheduler considers the pod"),
    ],
)
def test_a_manifest_that_names_its_node_is_left_to_the_kubelet(
    asks: Json, node: Json, status: int, says: str, tmp_path: Path, capsys: Capsys
) -> None:
    _, cls, slice_, claim = fabric()
    claim = {name: of for name, of in claim.items() if name != "status"}
    machine = a_node("n1")
    machine["spec"] = node
    pod = new(a_pod(nodeName="n1", **asks))
    found, said = asked(tmp_path, capsys, pod, machine, a_node("n2"), cls, slice_, claim)
    assert (found, says in said) == (status, True), said


@pytest.mark.parametrize(
    ("spec", "feature"),
    [
        ({"hostNetwork": True, "hostUsers": False}, "UserNamespacesHostNetworkSupport"),
        ({"rules": [{"action": "RestartAllContainers"}]}, "RestartAllContainersOnContainerExits"),
        ({"mounts": [{"name": "v", "bindMountOptions": ["x"]}]}, "VolumeBindMountOptions"),
    ],
)
@pytest.mark.parametrize("is_declared", [False, True])
def test_a_node_has_to_declare_what_a_pod_needs(
    *, spec: Json, feature: str, is_declared: bool, tmp_path: Path, capsys: Capsys
) -> None:
    pod = new(a_pod(**{name: of for name, of in spec.items() if name.startswith("host")}))
    container = pod["spec"]["containers"][0]
    container |= {"restartPolicyRules": spec.get("rules", []), "volumeMounts": spec.get("mounts", [])}
    node = a_node("n1")
    node["status"]["declaredFeatures"] = [feature] if is_declared else []
    found, said = asked(tmp_path, capsys, pod, node)
    assert (found, f"the feature {feature}" in said) == ((0, False) if is_declared else (1, True)), said


def test_quotas_that_were_not_read_are_assumed_not_to_be_there(tmp_path: Path, capsys: Capsys) -> None:
    _, said = asked(tmp_path, capsys, new(a_pod()), a_node("n1"))
    assert "namespace ml has no ResourceQuota and no LimitRange, because none was read" in said
    _, said = asked(tmp_path, capsys, a_pod(), a_node("n1"))
    assert "ResourceQuota" not in said


def test_json_names_the_request_of_each_container(tmp_path: Path, capsys: Capsys) -> None:
    """A scheduler writes the same mappings into the pod's status: an init container uses a later container's device."""
    served = {**CLASS, "spec": {"extendedResourceName": CARD}}
    spec: Json = {"driver": "f.io", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n1"}
    slice_ = {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {**spec, "devices": [{"name": "d0"}]}}
    pod = a_pod(limits={CARD: "1"}, requests={"cpu": "1"})
    pod["spec"]["initContainers"] = [{"name": "warm", "image": "i", "resources": {"limits": {CARD: "1"}}}]
    files = {"objects": {"kind": "List", "items": [a_node("n1"), served, slice_]}, "pod": {"apiVersion": "v1", **pod}}
    for name, one in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(one), encoding="utf-8")
    assert main(["why", str(tmp_path / "pod.json"), f"--slices={tmp_path / 'objects.json'}", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = [(one["container"], one["request"]) for one in said["request_mappings"]]
    assert rows == [("app", "container-1-request-0"), ("warm", "container-1-request-0")]


@pytest.mark.parametrize(
    ("asked_for", "says"),
    [
        ("acme.io/crad", "the node has 0. Did you mean acme.io/card?"),
        ("deviceclass.resource.kubernetes.io/ff", "there is no DeviceClass ff"),
        ("deviceclass.resource.kubernetes.io/ff", "Did you mean deviceclass.resource.kubernetes.io/f?"),
        ("other.io/fpga", "the node has 0\n"),
        ("spare.io/disks", "the node has 0\n"),  # no node has any spare.io/disk
    ],
)
def test_an_extended_resource_that_nothing_has_may_be_misspelled(
    asked_for: str, says: str, tmp_path: Path, capsys: Capsys
) -> None:
    served = {**CLASS, "metadata": {"name": "f"}, "spec": {"extendedResourceName": CARD}}
    node = a_node("n1", **{"spare.io/disk": "0"})
    found, said = asked(tmp_path, capsys, new(a_pod(limits={asked_for: "1"})), node, served)
    assert (found, says in said) == (1, True), said


def test_a_resource_that_another_node_has_is_not_misspelled(tmp_path: Path, capsys: Capsys) -> None:
    far = a_node("n2", **{CARD: "1"})
    far["spec"] = {"unschedulable": True}
    found, said = asked(tmp_path, capsys, new(a_pod(limits={CARD: "2"})), a_node("n1"), far)
    assert (found, "the node has 0\n" in said) == (1, True), said


def test_a_claim_that_is_being_deleted_is_the_only_reason(tmp_path: Path, capsys: Capsys) -> None:
    """The claim's allocation is not a reason, because its device is on the only node."""
    node, cls, slice_, claim = fabric()
    claim["metadata"] = {**claim["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    claim["status"] = {**claim["status"], "reservedFor": [{"resource": "pods", "name": "x", "uid": "u-x"}]}
    pod = a_pod(resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
    found, said = asked(tmp_path, capsys, pod, node, cls, slice_, claim)
    assert (found, "is being deleted" in said, "holds claim" in said) == (1, True, False), said


def test_a_node_whose_amounts_are_not_known_is_assumed_to_have_enough(tmp_path: Path, capsys: Capsys) -> None:
    bare = {"kind": "Node", "metadata": {"name": "node-1"}}
    words = "assumed node node-1 has enough acme.io/card: the Node has no status.allocatable"
    status, shown = asked(tmp_path, capsys, sized({CARD: "1"}), bare)
    assert status == 0
    assert words in " ".join(shown.split())
    for pod, node in ((sized(), bare), (sized({CARD: "1"}), {**bare, "status": {"allocatable": {CARD: "1"}}})):
        assert "has enough" not in asked(tmp_path, capsys, pod, node)[1]
