"""The same pods on a real kubelet and on a devicecore node: their objects on the API server are compared by field.

Only the differences in the tables of docs/cluster-node.md are allowed.
"""

import json
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.real_cluster.cases import CASES, CLAIMED, CLASS, DO, OLD, RUNTIME_CLASS, Case
from tests.real_cluster.client import Client
from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.differences import TIME, UID, differences, is_listed, owned
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import GPU, ClusterNode, FleetNode, OurNode
from tests.real_cluster.programs import RealClusterError, wait_for
from tests.real_cluster.trouble import a_class, settle

Json = Any

GUIDE = (Path(__file__).parents[2] / "docs" / "cluster-node.md").read_text(encoding="utf-8")
ROWS = {
    kind: dict(re.findall(rf"^\| {kind} \| `([^`]+)` \| (.+) \|$", GUIDE, re.MULTILINE))
    for kind in ("Pod", "Node", "Lease")
}
_NOT_SENT = re.findall(r"^\* Events that are not sent: (.*?)\n\*", GUIDE, re.MULTILINE | re.DOTALL)
((_OF_CONTAINERS, _REFUSED),) = re.findall(r"^\| (`logs`[^|]+) \|([^|]+)", GUIDE, re.MULTILINE)
"""The kubectl commands that need a real container according to the guide, and what they print."""

_OVERHEAD = {"podFixed": {"cpu": "10m", "memory": "8Mi"}}
SHARED: tuple[Json, ...] = (
    a_class(CLASS),
    {
        "kind": "DeviceClass",
        "metadata": {"name": "claimed"},
        "spec": {**a_class(CLASS)["spec"], "extendedResourceName": CLAIMED},
    },
    {"kind": "RuntimeClass", "metadata": {"name": RUNTIME_CLASS}, "handler": "nothing", "overhead": _OVERHEAD},
)
"""The objects that the pods of both nodes use."""

NOT_SENT = {event for text in _NOT_SENT for event in re.findall(r"`(\w+)`", text)}
_REPLACED = (
    (TIME, "TIME"),
    (UID, "UID"),
    (re.compile(r"kube-api-access-\w{5}"), "kube-api-access"),
    (re.compile(r"\b(gpu|dev)-\d+\b"), r"\1"),  # kubelets and schedulers pick any free devices
    (re.compile(r"-(device|extended-resources)-\w{5}\b"), r"-\1"),
)

DEVICES = 16
"""The number of devices of each plugin, and of each driver."""

_AUTHORIZED_LATE = "no relationship found between node"
"""The node authorizer's refusal to let a node read a claim that was just reserved. Both kinds of nodes retry."""

OLD_CLAIM = 40.0
"""Seconds without a health report: a kubelet trusts a silent driver's last report for only 30 seconds."""


@frozen
class Both:
    """A real kubelet and a devicecore node in one cluster, and the namespaces of their pods."""

    plane: ControlPlane
    ours: ClusterNode
    real: ClusterNode

    @property
    def spaces(self) -> tuple[str, str]:
        """The namespaces of the pods on our node and on the real kubelet."""
        return self.ours.name, self.real.name


@pytest.fixture(scope="module", params=["kubelet", "fleet"])
def both(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Both]:
    admin = plane.admin
    with ExitStack() as last_to_first:
        real = last_to_first.enter_context(RealKubelet(plane, f"{request.param}-real"))
        capacity = admin.get("Node", real.name)["status"]["capacity"]
        sizes = {name: capacity[name] for name in ("cpu", "memory")}
        name = f"{request.param}-ours"
        ours: ClusterNode = FleetNode(plane, name, sizes, DEVICES)
        if request.param == "kubelet":
            ours = OurNode(plane, name, tuple(f"--{part}={size}" for part, size in sizes.items()))
        last_to_first.enter_context(ours)
        for one in SHARED:
            admin.create(one)
            last_to_first.callback(admin.delete, one["kind"], one["metadata"]["name"])
        for node in (ours, real):
            namespace = node.name
            last_to_first.callback(admin.delete, "Node", node.name)
            admin.create({"kind": "Namespace", "metadata": {"name": namespace}})
            node.plugin(GPU, DEVICES)
            node.driver(CLASS, DEVICES)
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


@frozen
class Seen:
    """The pods in their final states, by namespace and name, and messages about states that were not reached."""

    pods: dict[str, dict[str, Json]]
    problems: tuple[str, ...]

    def of(self, case: Case, both: Both) -> tuple[Json, Json]:
        """Return a case's pod on our node and on the real kubelet."""
        ours, real = (self.pods[one][case.name] for one in both.spaces)
        return ours, real


@pytest.fixture(scope="module")
def seen(both: Both) -> Seen:
    """Return the pods in their final states.

    A pod that never reaches its final state is reported, but does not hide differences in other pods.
    """
    admin, problems, passing = both.plane.admin, list[str](), {one: dict[str, Json]() for one in both.spaces}
    claim: Json = {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": CLASS}}]}}
    for node in (both.ours, both.real):
        space = {"namespace": node.name}
        admin.create({"kind": "ResourceClaim", "metadata": {"name": "claim", **space}, "spec": claim})
        admin.create(
            {"kind": "ResourceClaimTemplate", "metadata": {"name": "template", **space}, "spec": {"spec": claim}}
        )
    for turn in sorted({case.turn for case in CASES}):
        cases = [case for case in CASES if case.turn == turn]
        if any(case.name == OLD for case in cases):
            settle(OLD_CLAIM)
        for node in (both.ours, both.real):
            for case in cases:
                admin.create(case.pod(node.name, node.name))
        say(f"waiting for {len(cases)} pods on each node")
        problems += _wait_for_the_end(both, cases, passing)
    problems += _unmet(lambda: wait_for("the status to settle", lambda: _is_settled(both), 30.0))
    found = {
        one: {pod["metadata"]["name"]: pod for pod in admin.list("Pod", one)} | passing[one] for one in both.spaces
    }
    return Seen(found, tuple(problems))


def _unmet(wait: Callable[[], object]) -> list[str]:
    """Call `wait`, and return a list with the error's message, or an empty list if there is no error."""
    try:
        wait()
    except RealClusterError as error:
        return [str(error)]
    return []


def _wait_for_the_end(both: Both, cases: Sequence[Case], passing: dict[str, dict[str, Json]]) -> list[str]:
    """Wait until all pods are as their cases expect, with one timeout for all pods, and return the unmet expectations.

    A pod that waits between restarts is stored in `passing` as it was after the same number of restarts on both nodes.
    """
    admin = both.plane.admin
    kept: dict[str, tuple[dict[int, Json], dict[int, Json]]] = {case.name: ({}, {}) for case in cases}

    def late() -> dict[str, str]:
        waiting = {}
        for at, namespace in enumerate(both.spaces):
            found = {pod["metadata"]["name"]: pod for pod in admin.list("Pod", namespace)}
            for case in cases:
                problem = _go_on(admin, case, found[case.name])
                if case.waits and not case.is_deleted:
                    problem = problem or _keep(case, found[case.name], kept[case.name], at, passing[namespace])
                if problem:
                    waiting[f"{case.name} in {namespace}"] = problem
        return waiting

    if _unmet(lambda: wait_for("the pods", lambda: not late(), 120.0)):
        return [f"{place}: {what}" for place, what in late().items()]
    return []


def _keep(case: Case, pod: Json, kept: tuple[dict[int, Json], ...], at: int, passing: dict[str, Json]) -> str:
    """Store a pod that waits as expected, by its restart count, and return what is still missing."""
    times = case.restarts(pod)
    if times is not None and not (times in kept[at] and _waits(kept[at][times])):
        kept[at][times] = pod
    if not (both_have := kept[0].keys() & kept[1].keys()):
        return f"not waiting for {case.waits}, or not restarted as often as on the other node"
    passing[case.name] = kept[at][max(both_have, key=lambda one: (all(_waits(pods[one]) for pods in kept), -one))]
    return ""


def _waits(pod: Json) -> bool:
    return any("waiting" in one["state"] for one in pod["status"]["containerStatuses"])


def _go_on(admin: Client, case: Case, pod: Json) -> str:
    """Do what the case needs next for a pod, and return what is still missing, or an empty string.

    Scheduling gates are removed. A pod that is to be deleted is deleted once it is in the expected state.
    """
    if pod["spec"].get("schedulingGates"):
        admin.patch("Pod", case.name, {"spec": {"schedulingGates": None}}, pod["metadata"]["namespace"])
    if "deletionTimestamp" in pod["metadata"]:  # the node has sent its last request
        return "" if _is_removed(pod) else "not removed"
    phase = pod["status"].get("phase")
    if phase != case.until:
        return f"{phase}, not {case.until}"
    if case.is_deleted and (not case.waits or _backs_off(admin, case, pod)):
        admin.delete("Pod", case.name, pod["metadata"]["namespace"])
    return "not removed" if case.is_deleted else ""


def _backs_off(admin: Client, case: Case, pod: Json) -> bool:
    """Return whether the pod's container is waiting as expected and the node has sent an event about the back-off.

    A pod that is deleted earlier never gets this event.
    """
    events = admin.list("Event", pod["metadata"]["namespace"])
    return case.restarts(pod) is not None and any(
        one["reason"] == "BackOff" and one["involvedObject"]["name"] == case.name for one in events
    )


def _is_removed(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionGracePeriodSeconds") == 0)


def _is_settled(both: Both) -> bool:
    """Return whether the nodes have reported running containers as ready and finished ones as not ready."""
    for pod in (pod for namespace in both.spaces for pod in both.plane.admin.list("Pod", namespace)):
        conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions") or []}
        is_ready = pod["status"]["phase"] == "Running" and "readinessGates" not in pod["spec"]
        ready = "True" if is_ready else "False"
        if DO in pod["metadata"].get("annotations", {}):
            continue  # the container's readiness keeps changing
        if conditions.get("Ready") != ready and "reason" not in pod["status"]:
            return False
    return True


def _plain(document: Json, *names: str) -> Json:
    """Return a document without the values that always differ between nodes: times, UIDs, versions and node names."""
    text = json.dumps(document)
    for pattern, word in _REPLACED:
        text = pattern.sub(word, text)
    for name in names:
        text = re.sub(rf"(?<![a-z0-9-]){re.escape(name)}(?![a-z0-9-])", "NAME", text)
    plain = json.loads(text)
    for name in ("resourceVersion", "managedFields", "uid"):
        plain["metadata"].pop(name, None)
    return plain


def _problems(kind: str, name: str, ours: Json, real: Json, more: Collection[str] = ()) -> list[str]:
    """Return the differences between two documents, except those that the guide's rows or `more` name."""
    rows = {**ROWS[kind], **dict.fromkeys(more, "")}
    found = [f"{name} {one}" for one in differences(ours, real) if not is_listed(one.path, rows)]
    return [one[:400] for one in found]


def test_a_pod_is_the_same_on_a_real_kubelet_and_here(both: Both, seen: Seen) -> None:
    problems = [*seen.problems]
    for case in CASES:
        ours, real = (_plain(pod, both.ours.name, both.real.name) for pod in seen.of(case, both))
        problems += _problems("Pod", case.name, ours, real, _undecided(case, real))
    assert not problems, "\n".join(problems)


def test_the_owners_of_the_fields_of_a_pod_are_the_same(both: Both, seen: Seen) -> None:
    problems = []
    for case in CASES:
        ours, real = (owned(pod["metadata"]["managedFields"]) for pod in seen.of(case, both))
        problems += _owners("Pod", case.name, ours, real, _undecided(case, seen.of(case, both)[1]))
    assert not problems, "\n".join(problems)


def _undecided(case: Case, real: Json) -> list[str]:
    """Return the paths whose values depend on when a kubelet last synchronized the pod.

    Between two restarts, a kubelet may show a container as terminated. A deleted pod's container may have restarted
    before the deletion. For a pod that ended on its own, a kubelet still shows the requests and the devices' health
    until it synchronizes the pod again.
    """
    has_ended = case.until == "Succeeded" or DO in case.annotations
    found = ["status.resources", "status.containerStatuses[].allocatedResourcesStatus"] if has_ended else []
    if case.waits and case.is_deleted:
        found += ["status.containerStatuses[].restartCount", "status.containerStatuses[].lastState"]
    elif case.waits and "not-" in case.annotations[DO]:
        # A container stopped by a probe waits only if its run was shorter than its back-off.
        found += ["status.containerStatuses[].state.waiting.message"]
    if case.waits and not case.is_deleted and not _waits(real):
        found += ["status.containerStatuses[].state", "status.containerStatuses[].lastState"]
    return found


_Owned = dict[str, list[str]]


def _owners(kind: str, name: str, ours: _Owned, real: _Owned, more: Collection[str] = ()) -> list[str]:
    rows = {**ROWS[kind], **dict.fromkeys(more, "")}
    if is_listed("metadata.managedFields[].manager", ROWS[kind]):
        ours = {key.replace("devicecore", "kubelet"): paths for key, paths in ours.items()}
    problems = [] if sorted(ours) == sorted(real) else [f"{name} managers: {sorted(ours)} here, {sorted(real)} there"]
    for manager in sorted({*ours, *real}):
        for path in sorted({*ours.get(manager, ())} ^ {*real.get(manager, ())}):
            named = is_listed(path, rows) or is_listed(f"metadata.managedFields[].fieldsV1.{path}", rows)
            if manager in ours and manager in real and not named:
                where = "only here" if path in ours[manager] else "only in Kubernetes"
                problems.append(f"{name} {manager} owns {path}: {where}")
    return problems


def _whole(owners: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the fields that each manager owns, except conditions, which belong to their last writer."""
    found: dict[str, set[str]] = {}
    for manager, paths in owners.items():
        kept = [path for path in paths if not path.startswith("status.conditions[")]
        found.setdefault(manager.removesuffix(" status"), set()).update(kept)
    return {manager: sorted(paths) for manager, paths in found.items()}


def test_the_node_is_the_same(both: Both) -> None:
    ours, real = (both.plane.admin.get("Node", node.name) for node in (both.ours, both.real))
    problems = _problems("Node", "the Node", *(_plain(one, both.ours.name, both.real.name) for one in (ours, real)))
    mine, theirs = (_whole(owned(node["metadata"]["managedFields"])) for node in (ours, real))
    problems += _owners("Node", "the Node", mine, theirs)
    assert not problems, "\n".join(problems)


def test_the_lease_is_the_same(both: Both) -> None:
    admin = both.plane.admin
    ours, real = (admin.get("Lease", node.name, "kube-node-lease") for node in (both.ours, both.real))
    problems = _problems("Lease", "the Lease", *(_plain(one, both.ours.name, both.real.name) for one in (ours, real)))
    mine, theirs = (owned(one["metadata"]["managedFields"]) for one in (ours, real))
    problems += _owners("Lease", "the Lease", mine, theirs)
    assert not problems, "\n".join(problems)


def test_the_events_of_pods_are_the_same(both: Both, seen: Seen) -> None:
    assert seen.pods
    shown = []
    for namespace in both.spaces:
        events = [
            _plain(one, both.ours.name, both.real.name)
            for one in both.plane.admin.list("Event", namespace)
            if one["source"].get("component") == "kubelet"
            and one["reason"] not in NOT_SENT
            and _AUTHORIZED_LATE not in one["message"]
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


_ARGUMENTS = {
    "logs": ("asked",),
    "exec": ("asked", "--", "true"),
    "attach": ("asked",),
    "cp": ("asked:/etc/hostname", "/dev/null"),
    "port-forward": ("asked", "0:80"),
}


def test_kubectl_prints_what_the_guide_says_where_a_container_is_needed(both: Both) -> None:
    name = both.ours.name
    both.plane.admin.create(Case("asked").pod(name, name))
    both.plane.admin.wait_for_phase("asked", "Running", name)
    kubectl = [both.plane.programs.path("kubectl"), f"--kubeconfig={both.plane.kubeconfig()}", f"--namespace={name}"]
    for command in re.findall(r"`([\w-]+)`", _OF_CONTAINERS):
        words = [*kubectl, command, *_ARGUMENTS[command]]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1
        assert any(text in ended.stderr for text in re.findall(r"`([^`]+)`", _REFUSED)), ended.stderr
