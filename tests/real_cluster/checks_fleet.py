"""A fleet of 100 nodes in a real cluster: it registers, runs pods, survives outages, and leaves other nodes alone.

With OUTAGES=5, each part of the control plane goes down five times, for as long as during an upgrade, in an order that
SEED determines. Without OUTAGES, each part goes down once, for a few seconds.
"""

import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import frozen

from tests.real_cluster.cases import CLASS, STOP_AFTER
from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import DEVICECORE, GPU, is_ready
from tests.real_cluster.programs import Program, RealClusterError, wait_for
from tests.real_cluster.trouble import a_class

Json = Any

NODES, PODS, SOME = (20, 60, 3) if os.environ.get("SHARE") else (100, 300, 10)
"""The numbers of nodes in the fleet, of pods in the Deployment, and of pods in each state."""

LEASE_OVER = 45.0
"""Seconds after which a Lease that is not renewed expires."""

READY_WITHIN, STAYS_READY = 15.0, 15.0
"""Seconds within which all nodes must be ready after an outage, and for which the nodes are then watched."""

TOO_SLOW = 5.0
"""Seconds.

If reading all Nodes takes longer than this (half a second on an idle machine), the fleet is not to blame.
"""

ROUNDS_GIVEN, SEED = int(os.environ.get("OUTAGES", "0")), int(os.environ.get("SEED", "0"))
ROUNDS = ROUNDS_GIVEN or 1
OK = 200


@frozen
class Outage:
    """An outage of part of the control plane.

    Attributes:
        name: what the part then is, as a word in messages.
        of: returns the part.
        begin: takes the part down.
        end: brings the part back up.
        seconds: how long the part is down if the variable OUTAGES is set.
        shortly: how long the part is down otherwise, also in seconds.
    """

    name: str
    of: Callable[[ControlPlane], Program]
    begin: Callable[[Program], None]
    end: Callable[[Program], None]
    seconds: float
    shortly: float


OUTAGES = (
    Outage("killed", lambda plane: plane.api_server, Program.kill, Program.start, 60.0, 15.0),
    Outage("paused", lambda plane: plane.controller_manager, Program.pause, Program.resume, 75.0, 20.0),
    Outage("stopped", lambda plane: plane.etcd, Program.stop, Program.start, 30.0, 10.0),
)

FLEET = f"""
nodes:
- name: fleet-{{number:03}}
  count: {NODES}
  plugins:
  - resource: {GPU}
    devices: 4
  drivers:
  - name: {CLASS}
    devices: [{{name: "dev-{{number}}", count: 2}}]
"""
GUIDE = (Path(__file__).parents[2] / "docs" / "cluster-node.md").read_text(encoding="utf-8")
(_ROLE,) = re.findall(r"^```yaml\n(apiVersion: rbac.+?)^```", GUIDE, re.MULTILINE | re.DOTALL)
RULES: list[Json] = yaml.safe_load(_ROLE)["rules"]
"""The permissions that a fleet needs, according to docs/cluster-node.md."""


@pytest.fixture
def fleet(plane: ControlPlane) -> Iterator[Program]:
    """A fleet that has only the permissions that the guide lists."""
    file = plane.directory / "fleet.yaml"
    file.write_text(FLEET, encoding="utf-8")
    account = plane.service_account_kubeconfig("fleet", *RULES)
    (plane.directory / "fleet").mkdir(exist_ok=True)
    words = ("fleet", "run", str(file), f"--kubeconfig={account}", "--no-taint", f"--root={plane.directory / 'fleet'}")
    program = Program("fleet", [*DEVICECORE, *words], plane.directory)
    program.start()
    yield program
    plane.admin.delete("Deployment", "train")
    for pod in plane.admin.list("Pod", "default"):
        plane.admin.delete("Pod", pod["metadata"]["name"])
    wait_for("all pods to be gone", lambda: _count(plane) == 0, 240.0)
    program.stop()
    for node in _nodes(plane):
        plane.admin.delete("Node", node["metadata"]["name"])


def _nodes(plane: ControlPlane) -> list[Json]:
    return [one for one in plane.admin.list("Node") if one["metadata"]["name"].startswith("fleet-")]


def _running(plane: ControlPlane) -> list[Json]:
    return [pod for pod in plane.admin.list("Pod", "default") if pod["status"]["phase"] == "Running"]


def _deploy(plane: ControlPlane, count: int) -> None:
    container = {"name": "main", "image": "i", "resources": {"limits": {GPU: "1"}}}
    labels = {"app": "train"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": pod}
    plane.admin.create({"kind": "Deployment", "metadata": {"name": "train"}, "spec": spec})


def test_a_hundred_nodes_run_pods_and_outlive_outages(plane: ControlPlane, fleet: Program) -> None:
    fleet.wait_for(f"{NODES} nodes to be ready", lambda: _ready(plane) == NODES, 120.0)
    say(f"{NODES} nodes are ready")
    _deploy(plane, PODS)
    fleet.wait_for(f"{PODS} pods to run", lambda: len(_running(plane)) == PODS, 180.0)
    say(f"{PODS} pods run")
    held = _held(plane)

    order = random.Random(SEED)  # noqa: S311 - the order of tests
    undecided = list[str]()
    for outages in (order.sample(OUTAGES, len(OUTAGES)) for _ in range(ROUNDS)):
        for outage in outages:
            undecided += _outlive(plane, fleet, outage)
            assert _held(plane) == held, "each pod has its devices, no pod was evicted, and there are no other pods"

    for node in _nodes(plane)[:10]:  # as a controller does after an outage
        _mark_unknown(plane, node)
    fleet.wait_for("all nodes to be ready again", lambda: _ready(plane) == NODES, 60.0)
    plane.admin.patch("Deployment", "train", {"spec": {"replicas": PODS // 2}})
    fleet.wait_for("half of the pods to be gone", lambda: _count(plane) == PODS // 2, 180.0)
    plane.admin.patch("Deployment", "train", {"spec": {"replicas": NODES * 4}})
    fleet.wait_for("all devices to be in use", lambda: len(_running(plane)) == NODES * 4, 240.0)
    assert len(_held(plane)) == NODES * 4
    assert "Traceback" not in fleet.log.read_text("utf-8")
    if undecided:
        pytest.skip("; ".join(undecided))


def _outlive(plane: ControlPlane, fleet: Program, outage: Outage) -> list[str]:
    """Cause an outage, and watch all nodes for some time after the outage.

    Return a sentence if nothing could be decided because the machine was overloaded.
    """
    program, seconds = outage.of(plane), outage.seconds if ROUNDS_GIVEN else outage.shortly
    say(f"{program.name} is {outage.name} for {seconds:g} s")
    outage.begin(program)
    time.sleep(seconds)
    outage.end(program)
    wait_for("the API server to answer", lambda: plane.admin.raw("GET", "/readyz").status_code == OK, 60.0)
    ended, last_not_ready, fewest, slowest = time.monotonic(), 0.0, NODES, 0.0
    while (now := time.monotonic() - ended) < READY_WITHIN + STAYS_READY:
        if (ready := _ready(plane)) < NODES:
            last_not_ready, fewest = now, min(fewest, ready)
        time.sleep(0.5)
        slowest = max(slowest, time.monotonic() - ended - now)
    say(f"at least {fewest} nodes were ready, and all of them from {last_not_ready:.1f} s after the end")
    if last_not_ready >= READY_WITHIN and slowest > TOO_SLOW:
        return [
            f"not decided whether nodes stay ready when {program.name} is {outage.name}: a read took {slowest:.0f} s"
        ]
    assert last_not_ready < READY_WITHIN, f"{_ready(plane)} nodes are ready; {fleet.last_output()}"
    return []


def test_a_second_fleet_is_refused_and_one_after_a_kill_has_its_nodes_at_once(
    plane: ControlPlane, fleet: Program
) -> None:
    fleet.wait_for(f"{NODES} nodes to be ready", lambda: _ready(plane) == NODES, 120.0)
    _deploy(plane, PODS)
    fleet.wait_for(f"{PODS} pods to run", lambda: len(_running(plane)) == PODS, 180.0)
    held, holders = _held(plane), _holders(plane)
    command = [word for word in fleet.command if not word.startswith("--root")]
    second = Program("second-fleet", command, plane.directory)
    second.start()
    try:
        second.wait_for("all nodes to be refused", lambda: _refused(second) == NODES)
        assert (_holders(plane), _held(plane)) == (holders, held)
    finally:
        second.stop()
    fleet.kill()
    fleet.start()
    began = time.monotonic()
    fleet.wait_for("all Leases to be those of the new process", lambda: not {*_holders(plane)} & {*holders}, 90.0)
    say(f"the Leases are those of the new process after {time.monotonic() - began:.1f} s")
    assert _ready(plane) == NODES
    assert _held(plane) == held


def _refused(fleet: Program) -> int:
    """Count the nodes that a fleet reports as refused: one line counts all nodes refused for the same reason."""
    text = fleet.log.read_text("utf-8")
    return sum(map(int, re.findall(r"(\d+) nodes are refused", text))) + text.count(" is refused: ")


def test_pods_in_each_state_outlive_a_kill(plane: ControlPlane, fleet: Program) -> None:
    """The fleet is killed while pods are running, newly bound, or being deleted (whether or not the fleet knows)."""
    admin = plane.admin
    fleet.wait_for(f"{NODES} nodes to be ready", lambda: _ready(plane) == NODES, 120.0)
    claim = {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": CLASS}}]}}
    admin.create(a_class(CLASS))
    admin.create({"kind": "ResourceClaimTemplate", "metadata": {"name": "one"}, "spec": {"spec": claim}})
    try:
        for number in range(SOME):
            admin.create(_pod(f"running-{number}"))
            admin.create(_pod(f"claiming-{number}", claim="one"))
            admin.create(_pod(f"deleted-{number}"))
            admin.create(_pod(f"leaving-{number}", grace=60, annotations={STOP_AFTER: "20s"}))
        fleet.wait_for("all pods to run", lambda: len(_running(plane)) == 4 * SOME, 120.0)
        held = _held(plane)
        for number in range(SOME):
            admin.delete("Pod", f"leaving-{number}")
        fleet.wait_for("the fleet to see that a pod ends", lambda: "Killing" in _reasons(plane, "leaving-0"))
        fleet.pause()
        for number in range(SOME):
            admin.delete("Pod", f"deleted-{number}")
            admin.create(_pod(f"coming-{number}"))
        wait_for("the new pods to be bound", lambda: _bound(plane, "coming-") == SOME)
        fleet.kill()
        fleet.start()
        say(f"there are {SOME} pods in each state, and the fleet was killed")
        states = {"running": SOME, "claiming": SOME, "coming": SOME}
        fleet.wait_for("the pods to be as if nothing had happened", lambda: _states(plane) == states, 120.0)
        now = _held(plane)
        kept = {uid: devices for uid, devices in held.items() if uid in now}
        assert len(kept) == 2 * SOME, "pods that were running before the kill still exist"
        assert {uid: now[uid] for uid in kept} == kept, "pods keep their devices"
        assert all(one["restartCount"] == 0 for pod in _running(plane) for one in pod["status"]["containerStatuses"])
    finally:
        fleet.resume()
        admin.delete("DeviceClass", CLASS)
        admin.delete("ResourceClaimTemplate", "one")


def _pod(name: str, *, claim: str = "", grace: int = 1, annotations: Json = None) -> Json:
    spec: Json = {"terminationGracePeriodSeconds": grace}
    resources: Json = {"limits": {GPU: "1"}}
    if claim:
        spec["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": claim}]
        resources = {"claims": [{"name": "device"}]}
    spec["containers"] = [{"name": "main", "image": "i", "resources": resources}]
    return {"kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def _reasons(plane: ControlPlane, pod: str) -> list[str]:
    found = plane.admin.list("Event", "default", fieldSelector=f"involvedObject.name={pod}")
    return [str(one["reason"]) for one in found]


def _bound(plane: ControlPlane, prefix: str) -> int:
    pods = [one for one in plane.admin.list("Pod", "default") if one["metadata"]["name"].startswith(prefix)]
    return sum("nodeName" in one["spec"] for one in pods)


def _states(plane: ControlPlane) -> dict[str, int]:
    """Count running pods by the first word of their names, and all other pods by name and phase."""
    found: Counter[str] = Counter()
    for pod in plane.admin.list("Pod", "default"):
        name, is_leaving = pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]
        is_well = pod["status"]["phase"] == "Running" and not is_leaving
        found[name.partition("-")[0] if is_well else f"{name} {pod['status']['phase']}"] += 1
    return dict(found)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["lives", "was stopped"])
def test_the_node_of_a_kubelet_is_left_alone(plane: ControlPlane, *, is_stopped: bool) -> None:
    """A Node that devicecore did not create is not its own, even if the Node's Lease has expired."""
    name, file = f"kubelet-{'stopped' if is_stopped else 'living'}", plane.directory / "living.yaml"
    file.write_text(f"nodes: [{{name: {name}, plugins: [{{resource: {GPU}, devices: 4}}]}}]", encoding="utf-8")
    config = f"--kubeconfig={plane.kubeconfig()}"
    (plane.directory / "intruder").mkdir(exist_ok=True)
    kubelet = ("kubelet", f"--root={plane.directory / 'intruder'}", f"--node-name={name}", "--register-node", config)
    with RealKubelet(plane, name) as node:
        plane.admin.wait("Lease", name, "to exist", bool, "kube-node-lease")
        if is_stopped:
            node.kubelet.stop()
            time.sleep(LEASE_OVER)
        before = _of_node(plane, name)
        for words in (kubelet, ("fleet", "run", str(file), config)):
            intruder = Program(f"{name}-{words[0]}", [*DEVICECORE, *words], plane.directory)
            intruder.start()
            _wait_for_line(intruder, f"node {name} is refused")
            intruder.stop()
            assert _of_node(plane, name) == before
    plane.admin.delete("Node", name)


def _wait_for_line(program: Program, text: str) -> None:
    """Wait until a program, which may exit on its own, has printed `text`."""
    try:
        wait_for(f"{program.name} to print {text!r}", lambda: text in program.log.read_text("utf-8"), 30.0)
    except RealClusterError as error:
        raise AssertionError(program.last_output()) from error


def _of_node(plane: ControlPlane, name: str) -> Json:
    """Return what devicecore must not change: parts of a kubelet's Node, and the holder of the Node's Lease."""
    node, lease = plane.admin.get("Node", name), plane.admin.get("Lease", name, "kube-node-lease")
    managers = {field["manager"] for one in (node, lease) for field in one["metadata"]["managedFields"]}
    assert "devicecore" not in managers
    return (
        node["metadata"]["uid"],
        node["metadata"]["labels"],
        node["status"]["capacity"],
        lease["spec"]["holderIdentity"],
    )


def _holders(plane: ControlPlane) -> list[str]:
    leases = plane.admin.list("Lease", "kube-node-lease")
    return sorted(one["spec"]["holderIdentity"] for one in leases if one["metadata"]["name"].startswith("fleet-"))


def _ready(plane: ControlPlane) -> int:
    return len([one for one in _nodes(plane) if is_ready(one) and GPU in one["status"]["allocatable"]])


def _count(plane: ControlPlane) -> int:
    return len(plane.admin.list("Pod", "default"))


def _mark_unknown(plane: ControlPlane, node: Json) -> None:
    conditions = [
        {**one, "status": "Unknown", "reason": "NodeStatusUnknown"} if one["type"] == "Ready" else one
        for one in node["status"]["conditions"]
    ]
    plane.admin.patch("Node", node["metadata"]["name"], {"status": {"conditions": conditions}}, subresource="status")


def _held(plane: ControlPlane) -> dict[str, list[str]]:
    """Wait until all pods run and show their devices, and return the devices by pod UID."""

    def all_shown() -> dict[str, tuple[str, list[str]]]:
        pods = plane.admin.list("Pod", "default")
        found = {pod["metadata"]["uid"]: (pod["spec"]["nodeName"], _devices(pod)) for pod in pods}
        is_whole = all(devices for _, devices in found.values()) and {one["status"]["phase"] for one in pods} == {
            "Running"
        }
        return found if is_whole and not any("deletionTimestamp" in one["metadata"] for one in pods) else {}

    shown = wait_for("the devices of all pods to be shown", all_shown, 30.0)
    owned = [(node, device) for node, devices in shown.values() for device in devices]
    assert len(owned) == len(set(owned))
    return {uid: devices for uid, (_, devices) in shown.items()}


def _devices(pod: Json) -> list[str]:
    return [
        device["resourceID"]
        for container in pod["status"]["containerStatuses"]
        for health in container.get("allocatedResourcesStatus", [])
        for device in health["resources"]
    ]
