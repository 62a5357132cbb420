"""The same pods on a real kubelet and on a node of ours: what the API server then has of them, field by field.

Differences are in the tables of docs/cluster-node.md, and nowhere else.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen

from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.differences import TIME, UID, differences, is_listed, owned
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import GPU, ClusterNode, FleetNode, OurNode
from tests.real_cluster.programs import wait_for
from tests.real_cluster.trouble import a_class

Json = Any

GUIDE = (Path(__file__).parents[2] / "docs" / "cluster-node.md").read_text(encoding="utf-8")
ROWS = {
    kind: dict(re.findall(rf"^\| {kind} \| `([^`]+)` \| (.+) \|$", GUIDE, re.MULTILINE))
    for kind in ("Pod", "Node", "Lease")
}
_NOT_SENT = re.findall(r"^\* Events that are not sent: (.*?)\n\*", GUIDE, re.MULTILINE | re.DOTALL)
NOT_SENT = {event for text in _NOT_SENT for event in re.findall(r"`(\w+)`", text)}
_DEVICE = re.compile(r'"gpu-\d"')  # a kubelet takes any of those that are free
_TOKEN = re.compile(r"kube-api-access-\w{5}")


@frozen
class Case:
    """A pod, and the phase to wait for. Then it is deleted if `is_deleted`; a finalizer keeps it, to be seen.

    `size` is what its container asks for, unless `spec` has containers.
    """

    name: str
    until: str = "Running"
    size: Json = None
    spec: Json = field(factory=dict)
    annotations: Json = field(factory=dict)
    is_deleted: bool = False

    def pod(self, namespace: str, node: str) -> Json:
        """Return the pod for a node."""
        meta = {"name": self.name, "namespace": namespace, "annotations": self.annotations}
        if self.is_deleted:
            meta["finalizers"] = ["devicecore.io/test"]
        sizes = {"resources": {"limits": self.size, "requests": self.size}} if self.size else {}
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [_container("main", **sizes)],
        }
        # The scheduler allocates claims. What it would not send to a node comes there only by its name.
        by_scheduler = {"nodeSelector": {"kubernetes.io/hostname": node}}
        where = by_scheduler if "resourceClaims" in self.spec else {"nodeName": node}
        return {"kind": "Pod", "metadata": meta, "spec": {**spec, **self.spec, **where}}


def _container(name: str, **fields: Json) -> Json:
    return {"name": name, "image": f"registry.example/{name}:1", **fields}


CLAIMING = {
    "resourceClaims": [{"name": "device", "resourceClaimName": "claim"}],
    "containers": [_container("main", resources={"claims": [{"name": "device"}]})],
}
PORT = {"containers": [_container("main", ports=[{"containerPort": 80, "hostPort": 8080}])]}
TWO = {"containers": [_container("main", resources={"requests": {"cpu": "10m"}}), _container("second")]}
RUN_FOR, STOP_AFTER = "devicecore.io/run-for", "devicecore.io/stop-after"
CASES = (
    Case("plain"),
    Case("without-a-token", spec={"automountServiceAccountToken": False}),
    Case("devices", size={GPU: "2"}),
    Case("guaranteed", size={"cpu": "100m", "memory": "64Mi"}),
    Case("burstable", spec=TWO),
    Case("always", spec={"restartPolicy": "Always"}),
    Case("host-network", spec={"hostNetwork": True}),
    Case("host-port", spec=PORT),
    Case("host-port-taken", "Failed", spec=PORT),
    Case("job", "Succeeded", annotations={RUN_FOR: "1s"}),
    Case("deadline", "Failed", spec={"activeDeadlineSeconds": 2}),
    Case("too-many-devices", "Failed", {GPU: "9"}),
    Case("too-much-cpu", "Failed", {"cpu": "999"}),
    Case("too-much-memory", "Failed", {"memory": "999Ti"}),
    Case("other-labels", "Failed", spec={"nodeSelector": {"example.com/none": "there"}}),
    Case("other-system", "Failed", spec={"os": {"name": "windows"}}),
    Case("claim", spec=CLAIMING),
    Case("deleted", size={GPU: "1"}, is_deleted=True),
    Case("deleted-slowly", annotations={STOP_AFTER: "1s"}, is_deleted=True),
    Case("killed", annotations={STOP_AFTER: "1h"}, is_deleted=True),
)


@frozen
class Both:
    """A real kubelet and a node of ours, in one cluster, and the namespaces of their pods."""

    plane: ControlPlane
    ours: ClusterNode
    real: ClusterNode

    @property
    def spaces(self) -> tuple[str, str]:
        """The namespaces."""
        return self.ours.name, self.real.name


@pytest.fixture(scope="module", params=["kubelet", "fleet"])
def both(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Both]:
    admin = plane.admin
    with ExitStack() as last_to_first:
        real = last_to_first.enter_context(RealKubelet(plane, f"{request.param}-real"))
        capacity = admin.get("Node", real.name)["status"]["capacity"]
        sizes = {name: capacity[name] for name in ("cpu", "memory")}
        name = f"{request.param}-ours"
        ours: ClusterNode = FleetNode(plane, name, sizes)
        if request.param == "kubelet":
            ours = OurNode(plane, name, tuple(f"--{part}={size}" for part, size in sizes.items()))
        last_to_first.enter_context(ours)
        admin.create(a_class())
        last_to_first.callback(admin.delete, "DeviceClass", a_class()["metadata"]["name"])
        for node in (ours, real):
            namespace = node.name
            last_to_first.callback(admin.delete, "Node", node.name)
            admin.create({"kind": "Namespace", "metadata": {"name": namespace}})
            node.plugin(GPU, 4)
            node.driver()
            admin.wait("ServiceAccount", "default", "to exist", lambda one: one, namespace)
            admin.wait("ConfigMap", "kube-root-ca.crt", "to exist", lambda one: one, namespace)
        yield Both(plane, ours, real)
        for namespace in (ours.name, real.name):
            for pod in admin.list("Pod", namespace):
                _let_go(plane, pod)


def _let_go(plane: ControlPlane, pod: Json) -> None:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    if pod["metadata"].get("finalizers"):
        plane.admin.patch("Pod", name, {"metadata": {"finalizers": None}}, namespace)
    plane.admin.delete("Pod", name, namespace, grace=0)


@pytest.fixture(scope="module")
def pods(both: Both) -> dict[str, dict[str, Json]]:
    """Each pod as it is in the end, by namespace and name."""
    admin = both.plane.admin
    for node in (both.ours, both.real):
        namespace = node.name
        claim: Json = {"name": "device", "exactly": {"deviceClassName": "gpu.example.com"}}
        spec = {"devices": {"requests": [claim]}}
        admin.create({"kind": "ResourceClaim", "metadata": {"name": "claim", "namespace": namespace}, "spec": spec})
        for case in CASES:
            admin.create(case.pod(namespace, node.name))
            if case.name == "host-port":  # the next one wants the same port
                admin.wait_for_phase(case.name, "Running", namespace)
    for namespace in both.spaces:
        say(f"waiting for {len(CASES)} pods in the namespace {namespace}")
        _wait_for_the_end(both.plane, namespace)
    wait_for("the status to settle", lambda: _is_settled(both), 30.0)
    return {one: {pod["metadata"]["name"]: pod for pod in admin.list("Pod", one)} for one in both.spaces}


def _wait_for_the_end(plane: ControlPlane, namespace: str) -> None:
    for case in CASES:
        plane.admin.wait_for_phase(case.name, case.until, namespace)
        if case.is_deleted:
            plane.admin.delete("Pod", case.name, namespace)
    for case in CASES:
        if case.is_deleted:  # the last that a kubelet does is a request that removes it
            plane.admin.wait("Pod", case.name, "to be removed", _is_removed, namespace)


def _is_removed(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionGracePeriodSeconds") == 0)


def _is_settled(both: Both) -> bool:
    """Whether the nodes have said all: a ready container is shown, and what has ended is not ready."""
    for pod in (pod for namespace in both.spaces for pod in both.plane.admin.list("Pod", namespace)):
        conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions") or []}
        ready = "True" if pod["status"]["phase"] == "Running" else "False"
        if conditions.get("Ready") != ready and "reason" not in pod["status"]:
            return False
    return True


def _plain(document: Json, *names: str) -> Json:
    """Return the document without what differs between any two nodes: times, UIDs, versions, names of the nodes."""
    text = json.dumps(document)
    for pattern, word in ((TIME, "TIME"), (UID, "UID"), (_TOKEN, "kube-api-access"), (_DEVICE, '"gpu"')):
        text = pattern.sub(word, text)
    for name in names:
        text = re.sub(rf"\b{re.escape(name)}\b", "NAME", text)
    plain = json.loads(text)
    for name in ("resourceVersion", "managedFields", "uid"):
        plain["metadata"].pop(name, None)
    return plain


def _problems(kind: str, name: str, ours: Json, real: Json) -> list[str]:
    """Return the differences of two documents that no row of the guide names."""
    found = [f"{name} {one}" for one in differences(ours, real) if not is_listed(one.path, ROWS[kind])]
    return [one[:400] for one in found]


def test_a_pod_is_the_same_on_a_real_kubelet_and_here(both: Both, pods: dict[str, dict[str, Json]]) -> None:
    problems = []
    for case in CASES:
        ours, real = (_plain(pods[one][case.name], both.ours.name, both.real.name) for one in both.spaces)
        problems += _problems("Pod", case.name, ours, real)
    assert not problems, "\n".join(problems)


def test_the_owners_of_the_fields_of_a_pod_are_the_same(both: Both, pods: dict[str, dict[str, Json]]) -> None:
    problems = []
    for case in CASES:
        ours, real = (owned(pods[one][case.name]["metadata"]["managedFields"]) for one in both.spaces)
        problems += _owners("Pod", case.name, ours, real)
    assert not problems, "\n".join(problems)


def _owners(kind: str, name: str, ours: dict[str, list[str]], real: dict[str, list[str]]) -> list[str]:
    if is_listed("metadata.managedFields[].manager", ROWS[kind]):
        ours = {key.replace("devicecore", "kubelet"): paths for key, paths in ours.items()}
    problems = [] if sorted(ours) == sorted(real) else [f"{name} managers: {sorted(ours)} here, {sorted(real)} there"]
    for manager in sorted({*ours, *real}):
        for path in sorted({*ours.get(manager, ())} ^ {*real.get(manager, ())}):
            if manager in ours and manager in real and not is_listed(path, ROWS[kind]):
                where = "only here" if path in ours[manager] else "only in Kubernetes"
                problems.append(f"{name} {manager} owns {path}: {where}")
    return problems


def _whole(owners: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return what a manager owns, with and without the status, but no conditions: who changed them last owns them."""
    found: dict[str, set[str]] = {}
    for manager, paths in owners.items():
        kept = [path for path in paths if not path.startswith("status.conditions[")]
        found.setdefault(manager.removesuffix(" status"), set()).update(kept)
    return {manager: sorted(paths) for manager, paths in found.items()}


def test_the_node_is_the_same(both: Both) -> None:
    ours, real = (both.plane.admin.get("Node", node.name) for node in (both.ours, both.real))
    plain = [_plain(node, both.ours.name, both.real.name) for node in (ours, real)]
    problems = _problems("Node", "the Node", *plain)
    owners = [_whole(owned(node["metadata"]["managedFields"])) for node in (ours, real)]
    problems += _owners("Node", "the Node", *owners)
    assert not problems, "\n".join(problems)


def test_the_lease_is_the_same(both: Both) -> None:
    admin = both.plane.admin
    ours, real = (admin.get("Lease", node.name, "kube-node-lease") for node in (both.ours, both.real))
    plain = [_plain(lease, both.ours.name, both.real.name) for lease in (ours, real)]
    problems = _problems("Lease", "the Lease", *plain)
    problems += _owners("Lease", "the Lease", *(owned(one["metadata"]["managedFields"]) for one in (ours, real)))
    assert not problems, "\n".join(problems)


def test_the_events_of_pods_are_the_same(both: Both, pods: dict[str, dict[str, Json]]) -> None:
    assert pods
    shown = []
    for namespace in both.spaces:
        events = [
            _plain(one, both.ours.name, both.real.name)
            for one in both.plane.admin.list("Event", namespace)
            if one["source"].get("component") == "kubelet" and one["reason"] not in NOT_SENT
        ]
        shown.append(
            sorted(
                f"{one['involvedObject']['name']}: {one['type']} {one['reason']} {one['message']} "
                f"{one['source']} {one['reportingComponent']} {one['involvedObject'].get('fieldPath')}"
                for one in events
            )
        )
    ours, real = shown
    problems = [f"only here: {one}" for one in ours if one not in real]
    problems += [f"only in Kubernetes: {one}" for one in real if one not in ours]
    assert not problems, "\n".join(problems)
