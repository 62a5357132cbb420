"""The same pods for a real scheduler and for `why`: verdict, node, devices and words.

The scheduler is paused while a situation is made and `why` is asked, from the server and from files, so that it sees
what the scheduler will see. No kubelet runs: nodes are objects alone.
"""

import io
import json
import signal
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen
from devicecore_tools.command.main import main

from tests.real_cluster.client import Client, RefusedError
from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.programs import wait_for

Json = Any

GPU, NIC, FABRIC = "gpu.example.com", "nic.example.com", "fabric.example.com"
PLUGIN, SERVED, IMPLICIT = "acme.io/card", "example.com/gpu", "deviceclass.resource.kubernetes.io/gpu"
_STATUS = {"scheduled": {0}, "refused": {1, 4}, "waiting": {1, 3}}
_STEADY = 1.2  # seconds without another answer after which that of the scheduler is its last
_LONGEST = 12.0
_WORDS = ("Insufficient", "untolerated taint", "node affinity/selector", "were unschedulable", "Too many pods")
_KINDS = ("Node", "DeviceClass", "ResourceSlice", "ResourceClaim", "Pod")


def a_node(name: str, labels: Json = None, taints: Json = (), *, cordoned: bool = False, **allocatable: str) -> Json:
    """A Node with 8 CPUs and 32Gi, unless `allocatable` says otherwise; `card` is the resource of a plugin."""
    amounts = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110"} | allocatable
    if "card" in amounts:
        amounts[PLUGIN] = amounts.pop("card")
    if "gpu" in amounts:
        amounts[SERVED] = amounts.pop("gpu")
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}]
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": list(taints), **({"unschedulable": True} if cordoned else {})},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": ready,
            "nodeInfo": {"kubeletVersion": "v1.37.2"},
        },
    }


def a_slice(node: str, driver: str = GPU, count: int = 2, where: Json = None, **fields: Json) -> Json:
    """A slice with devices; each has the attributes index and model, and the fields that are given."""
    devices = [
        {
            "name": f"d{number}",
            "attributes": {"index": {"int": number}, "model": {"string": "A" if number % 2 else "B"}},
            **fields,
        }
        for number in range(count)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "devices": devices, **(where or {"nodeName": node})}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def a_class(name: str, driver: str, resource: str = "") -> Json:
    """A DeviceClass of a driver."""
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
    return {
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {**spec, **({"extendedResourceName": resource} if resource else {})},
    }


CLASSES = (a_class("gpu", GPU, SERVED), a_class("nic", NIC), a_class("fabric", FABRIC))


def a_request(cls: str = "gpu", expression: str = "", name: str = "r", **fields: Json) -> Json:
    """A request of a claim."""
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"name": name, "exactly": {"deviceClassName": cls, **selectors, **fields}}


def a_claim(name: str, *requests: Json, held: tuple[str, str] | None = None, by: Json = (), **spec: Json) -> Json:
    """A claim, which has a device of a node's pool if `held` has both, reserved for the pods `by`."""
    claim: Json = {
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests or (a_request(),)), **spec}},
    }
    if held is not None:
        claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]  # as a scheduler allocates
        node, device = held
        first = claim["spec"]["devices"]["requests"][0]
        driver = NIC if first.get("exactly", {}).get("deviceClassName") == "nic" else GPU
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        claim["status"] = {
            "allocation": {
                "devices": {"results": [{"request": "r", "driver": driver, "pool": node, "device": device}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
            },
            "reservedFor": [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in by],
        }
    return claim


def a_pod(*claims: str, limits: Json = None, requests: Json = None, name: str = "ask", **spec: Json) -> Json:
    """A pod with one container that uses claims, and requests resources."""
    resources: Json = {"claims": [{"name": one} for one in claims]} if claims else {}
    if limits:
        resources["limits"] = limits
    if requests:
        resources["requests"] = requests
    container = {"name": "app", "image": "registry.example/app:1", "resources": resources}
    named = {"resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims]} if claims else {}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **named, **spec},
    }


def bound(node: str, name: str, limits: Json, priority: int = 0) -> Json:
    """A pod that a node has already."""
    return a_pod(name=name, limits=limits, nodeName=node, **({"priority": priority} if priority else {}))


def affinity(*terms: Json) -> Json:
    """The affinity of a pod to nodes."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def by_label(key: str, operator: str, *values: str) -> Json:
    """A term of an affinity."""
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def tainted(key: str = "team", value: str = "ml", effect: str = "NoSchedule") -> Json:
    """The taints of a node."""
    return [{"key": key, "value": value, "effect": effect}]


def tolerating(**fields: str) -> Json:
    """The tolerations of a pod."""
    return {"tolerations": [fields]}


@frozen
class Situation:
    """Objects and a pod for the scheduler. `is_close` is whether another node of equal score is as right."""

    objects: tuple[Json, ...]
    pod: Json
    is_close: bool = field(default=False, kw_only=True)


def both(pod: Json, first: Json = None, second: Json = None, *more: Json, **fields: bool) -> Situation:
    """Two nodes, of which the second alone has devices, unless `more` has slices too."""
    nodes = first or a_node("n1"), second or a_node("n2")
    return Situation((*nodes, a_slice("n2"), a_claim("c"), *more), pod, **fields)


def one(pod: Json, *objects: Json, node: Json = None, claim: Json = None, **fields: bool) -> Situation:
    """One node with two devices."""
    return Situation((node or a_node("n1"), a_slice("n1"), claim or a_claim("c"), *objects), pod, **fields)


def fleet(pod: Json, count: int, *busy: int) -> Situation:
    """Many nodes with two devices each, of which those that are not named are held."""
    names = [f"n{number}" for number in range(count)]
    claims = [
        a_claim(f"h{number}-{device}", held=(names[number], f"d{device}"), by=[f"p{number}-{device}"])
        for number in range(count)
        for device in range(2)
        if number not in busy
    ]
    return Situation((*map(a_node, names), *map(a_slice, names), a_claim("c", a_request(count=2)), *claims), pod)


ERROR = 'device.attributes["gpu.example.com"].lost == "x"'
MODEL = 'device.attributes["gpu.example.com"].model == "{}"'
INIT = {"name": "init", "image": "registry.example/app:1"}
CONDITIONS: Json = {"bindsToNode": True, "bindingConditions": ["fabric.example.com/attached"]}
CONDITIONS |= {"bindingFailureConditions": ["fabric.example.com/failed"]}
WAYS = {
    "name": "r",
    "firstAvailable": [
        {"name": "nic", "deviceClassName": "nic"},
        {"name": "gpu", "deviceClassName": "gpu", "count": 2},
    ],
}

SITUATIONS: dict[str, Situation] = {
    # what a pod selects
    "selector": both(a_pod("c", nodeSelector={"pool": "a"}), a_node("n1"), a_node("n2", {"pool": "a"})),
    "selector-elsewhere": both(a_pod("c", nodeSelector={"pool": "a"}), a_node("n1", {"pool": "a"})),
    "selector-nowhere": both(a_pod("c", nodeSelector={"pool": "none"})),
    "selector-and-cpu": both(
        a_pod("c", limits={"cpu": "9"}, nodeSelector={"pool": "a"}), a_node("n1", {"pool": "a"}), a_node("n2", cpu="64")
    ),
    "affinity-in": both(a_pod("c", affinity=affinity(by_label("z", "In", "a"))), None, a_node("n2", {"z": "a"})),
    "affinity-not-in": both(a_pod("c", affinity=affinity(by_label("z", "NotIn", "a"))), None, a_node("n2", {"z": "a"})),
    "affinity-exists": both(a_pod("c", affinity=affinity(by_label("z", "Exists")))),
    "affinity-does-not-exist": both(a_pod("c", affinity=affinity(by_label("z", "DoesNotExist")))),
    "affinity-gt": both(a_pod("c", affinity=affinity(by_label("z", "Gt", "4"))), None, a_node("n2", {"z": "5"})),
    "affinity-lt": both(a_pod("c", affinity=affinity(by_label("z", "Lt", "4"))), None, a_node("n2", {"z": "5"})),
    "affinity-by-name": both(
        a_pod("c", affinity=affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}))
    ),
    "affinity-of-two-terms": both(
        a_pod("c", affinity=affinity(by_label("x", "Exists"), by_label("z", "Exists"))), None, a_node("n2", {"z": "1"})
    ),
    # what nodes keep away
    "taint": both(a_pod("c"), None, a_node("n2", taints=tainted())),
    "taint-no-execute": both(a_pod("c"), None, a_node("n2", taints=tainted(effect="NoExecute"))),
    "taint-prefer": both(a_pod("c"), None, a_node("n2", taints=tainted(effect="PreferNoSchedule"))),
    "taint-tolerated": both(a_pod("c", **tolerating(key="team", value="ml")), None, a_node("n2", taints=tainted())),
    "taint-of-another-value": both(
        a_pod("c", **tolerating(key="team", value="x")), None, a_node("n2", taints=tainted())
    ),
    "taint-exists": both(a_pod("c", **tolerating(key="team", operator="Exists")), None, a_node("n2", taints=tainted())),
    "taint-all-tolerated": both(a_pod("c", **tolerating(operator="Exists")), None, a_node("n2", taints=tainted())),
    "taint-of-another-effect": both(
        a_pod("c", **tolerating(key="team", operator="Exists", effect="NoExecute")),
        None,
        a_node("n2", taints=tainted()),
    ),
    "cordoned": both(a_pod("c"), None, a_node("n2", cordoned=True)),
    "cordoned-tolerated": both(
        a_pod("c", **tolerating(key="node.kubernetes.io/unschedulable", operator="Exists")),
        None,
        a_node("n2", cordoned=True),
    ),
    # resources
    "cpu-too-large": one(a_pod("c", limits={"cpu": "9"})),
    "cpu-fits": one(a_pod("c", limits={"cpu": "8"})),
    "cpu-used": one(a_pod("c", limits={"cpu": "5"}), bound("n1", "b", {"cpu": "4"})),
    "memory-used": one(a_pod("c", limits={"memory": "20Gi"}), bound("n1", "b", {"memory": "16Gi"})),
    "storage": one(a_pod("c", limits={"ephemeral-storage": "200Gi"})),
    "too-many-pods": one(a_pod("c"), bound("n1", "b", {"cpu": "1"}), node=a_node("n1", pods="1")),
    "request-below-limit": one(a_pod("c", limits={"cpu": "20"}, requests={"cpu": "1"})),
    "init-container": one(
        a_pod("c", initContainers=[{**INIT, "resources": {"requests": {"cpu": "9"}}}], limits={"cpu": "1"})
    ),
    "sidecar": one(
        a_pod(
            "c",
            initContainers=[{**INIT, "restartPolicy": "Always", "resources": {"requests": {"cpu": "5"}}}],
            limits={"cpu": "4"},
        )
    ),
    "plugin-none": one(a_pod("c", limits={PLUGIN: "1"})),
    "plugin-fits": one(a_pod("c", limits={PLUGIN: "2"}), node=a_node("n1", card="2")),
    "plugin-used": one(a_pod("c", limits={PLUGIN: "2"}), bound("n1", "b", {PLUGIN: "1"}), node=a_node("n1", card="2")),
    "plugin-alone": Situation((a_node("n1", card="1"), a_node("n2", card="2")), a_pod(limits={PLUGIN: "2"})),
    "plugin-alone-none": Situation((a_node("n1"), a_node("n2", card="1")), a_pod(limits={PLUGIN: "2"})),
    # claims
    "count": one(a_pod("c"), claim=a_claim("c", a_request(count=2))),
    "count-too-large": one(a_pod("c"), claim=a_claim("c", a_request(count=3))),
    "all": one(a_pod("c"), claim=a_claim("c", a_request(allocationMode="All"))),
    "all-and-one-held": one(
        a_pod("c"),
        a_claim("h", held=("n1", "d0"), by=["x"]),
        claim=a_claim("c", a_request(allocationMode="All")),
    ),
    "held": one(a_pod("c"), a_claim("h", held=("n1", "d0"), by=["x"]), claim=a_claim("c", a_request(count=2))),
    "selected": one(a_pod("c"), claim=a_claim("c", a_request(expression=MODEL.format("A")))),
    "selected-none": one(a_pod("c"), claim=a_claim("c", a_request(expression=MODEL.format("C")))),
    "error": one(a_pod("c"), claim=a_claim("c", a_request(expression=ERROR))),
    "error-elsewhere": Situation(
        (a_node("n1", {"p": "a"}), a_node("n2"), a_slice("n1", NIC), a_slice("n2"), a_claim("c", a_request("nic"))),
        a_pod("c", nodeSelector={"p": "a"}),
    ),
    "class-missing": one(a_pod("c"), claim=a_claim("c", a_request("none"))),
    "first-available": Situation(
        (a_node("n1"), a_node("n2"), a_slice("n1"), a_slice("n2", NIC), a_claim("c", WAYS)), a_pod("c")
    ),
    "first-available-second": one(a_pod("c"), claim=a_claim("c", WAYS)),
    "match-attribute": one(
        a_pod("c"),
        claim=a_claim("c", a_request(count=2), constraints=[{"matchAttribute": f"{GPU}/model"}]),
    ),
    "two-claims": one(a_pod("c", "d"), a_claim("d")),
    "two-claims-too-many": one(a_pod("c", "d"), a_claim("d", a_request(count=2))),
    "other-driver": one(a_pod("c"), claim=a_claim("c", a_request("nic"))),
    # extended resources that classes serve
    "served": one(a_pod(limits={SERVED: "2"})),
    "served-too-many": one(a_pod(limits={SERVED: "3"})),
    "served-implicit": one(a_pod(limits={IMPLICIT: "1"})),
    "served-implicit-too-many": one(a_pod(limits={IMPLICIT: "3"})),
    "served-both-names": one(a_pod(limits={IMPLICIT: "1", SERVED: "1"})),
    "served-both-names-too-many": one(a_pod(limits={IMPLICIT: "1", SERVED: "2"})),
    "served-beside-a-claim": one(a_pod("c", limits={SERVED: "1"})),
    "served-beside-a-claim-too-many": one(a_pod("c", limits={SERVED: "2"})),
    "served-by-a-plugin-here": Situation(
        (a_node("n1", gpu="1"), a_node("n2"), a_slice("n2")), a_pod(limits={SERVED: "2"})
    ),
    "served-by-a-plugin-that-is-gone": one(a_pod(limits={SERVED: "1"}), node=a_node("n1", gpu="0")),
    # claims that have devices
    "allocated-here": one(a_pod("c"), claim=a_claim("c", held=("n1", "d1"))),
    "allocated-elsewhere-unreserved": Situation(
        (
            a_node("n1"),
            a_node("n2"),
            a_slice("n1"),
            a_slice("n2"),
            a_slice("n2", NIC),
            a_claim("c", held=("n1", "d0")),
            a_claim("d", a_request("nic")),
        ),
        a_pod("c", "d"),
    ),
    "allocated-elsewhere-reserved": Situation(
        (
            a_node("n1"),
            a_node("n2"),
            a_slice("n1"),
            a_slice("n2", NIC),
            a_claim("c", held=("n1", "d0"), by=["x"]),
            a_claim("d", a_request("nic")),
        ),
        a_pod("c", "d"),
    ),
    "allocated-and-tainted": both(
        a_pod("e"), None, a_node("n2", taints=tainted()), a_claim("e", held=("n2", "d0"), by=["x"])
    ),
    # what waits, and what makes room
    "gate": one(a_pod("c", schedulingGates=[{"name": "example.com/wait"}])),
    "binding-conditions": Situation(
        (
            a_node("n1", {"f": "1"}),
            a_slice(
                "f1", FABRIC, where={"nodeSelector": {"nodeSelectorTerms": [by_label("f", "In", "1")]}}, **CONDITIONS
            ),
            a_claim("c", a_request("fabric")),
        ),
        a_pod("c"),
    ),
    "preemption": one(a_pod(limits={"cpu": "6"}, priority=1000), bound("n1", "b", {"cpu": "4"})),
    "preemption-of-a-plugin's": one(
        a_pod(limits={PLUGIN: "1"}, priority=1000), bound("n1", "b", {PLUGIN: "1"}), node=a_node("n1", card="1")
    ),
    "fifty-nodes": fleet(a_pod("c"), 50, 37),
    "fifty-nodes-full": fleet(a_pod("c"), 50),
}


@pytest.fixture(scope="module")
def paused() -> Iterator[ControlPlane]:
    """A control plane without a controller manager, which would release what pods hold that are not there."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the programs end with the checks
    with ControlPlane(parts=("etcd", "kube-apiserver", "kube-scheduler")) as plane:
        plane.admin.create({"kind": "ServiceAccount", "metadata": {"name": "default"}})
        for one_of in CLASSES:
            plane.admin.create(one_of)
        for value in (1000,):
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value}
            body["metadata"] = {"name": f"p{value}"}
            plane.admin.send("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        yield plane


def made(client: Client, body: Json) -> None:
    """Create an object with its status and without the taint that admission gives to a new Node."""
    kind, name = body["kind"], body["metadata"]["name"]
    spec = dict(body["spec"])
    if priority := spec.pop("priority", None):
        spec["priorityClassName"] = f"p{priority}"
    client.create({**body, "spec": spec})
    if kind == "Node":
        client.patch(kind, name, {"spec": {"taints": body["spec"]["taints"]}})
    if kind == "ResourceClaim" and "status" in body:
        client.patch(kind, name, {"status": body["status"]}, subresource="status")


def cleared(client: Client) -> None:
    """Delete all objects of a situation."""
    for kind in reversed(_KINDS):
        for found in client.list(kind):
            name = found["metadata"]["name"]
            if kind == "DeviceClass":
                continue
            if found["metadata"].get("finalizers"):
                client.patch(kind, name, {"metadata": {"finalizers": None}})
            client.delete(kind, name, grace=0 if kind == "Pod" else None)
    gone = ("Pod", "ResourceClaim", "Node", "ResourceSlice")
    wait_for("all objects to be gone", lambda: not any(client.list(kind) for kind in gone), 30.0)


def truth_of(client: Client) -> tuple[str, str, str]:
    """Wait for the scheduler's last word of the pod, and return its verdict, the node and its words."""
    began = since = time.monotonic()
    last = ""
    while time.monotonic() < began + _LONGEST:
        pod = client.get("Pod", "ask")
        if pod["spec"].get("nodeName"):
            return "scheduled", pod["spec"]["nodeName"], ""
        conditions = {one["type"]: one for one in pod["status"].get("conditions", ())}
        said = conditions.get("PodScheduled", {})
        text = f"{said.get('reason', '')}: {said.get('message', '')}"
        if text != last:
            last, since = text, time.monotonic()
        has_seen_nodes = last != ": " and "no nodes available" not in last
        if has_seen_nodes and time.monotonic() > since + _STEADY and not pod["status"].get("nominatedNodeName"):
            break
        time.sleep(0.1)
    if "SchedulingGated" in last:
        return "waiting", "", last
    return ("refused" if last not in ("", ": ") else "waiting"), "", last


def asked(*words: str) -> tuple[int, str]:
    """Run a command of devicecore, and return its exit status and what it printed."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        status = main(list(words))
    return status, out.getvalue()


@pytest.mark.parametrize("name", SITUATIONS)
def test_why_answers_as_the_scheduler(paused: ControlPlane, name: str, tmp_path: Path) -> None:
    """From the server and from files, `why` has the scheduler's verdict, its node, its devices and its words."""
    situation, client, scheduler = SITUATIONS[name], paused.admin, paused._parts["kube-scheduler"]  # noqa: SLF001 - no property has it
    scheduler.pause()
    try:
        for body in (*situation.objects, situation.pod):
            made(client, body)
        kinds = [{**found, "kind": kind} for kind in _KINDS for found in client.list(kind)]
        (tmp_path / "objects.json").write_text(json.dumps({"kind": "List", "items": kinds}))
        (tmp_path / "pod.json").write_text(
            json.dumps(next(one for one in kinds if one["kind"] == "Pod" and one["metadata"]["name"] == "ask"))
        )
        objects, pod = str(tmp_path / "objects.json"), str(tmp_path / "pod.json")
        said = {
            "server": asked("why", "default/ask", "--kubeconfig", str(paused.kubeconfig()), "--json"),
            "files": asked("why", pod, "--slices", objects, "--claims", objects, "--json"),
        }
        text = asked("why", pod, "--slices", objects, "--claims", objects)[1]
    except RefusedError as error:
        pytest.fail(f"the API server refuses an object: {error}")
    finally:
        scheduler.resume()
    try:
        verdict, node, words = truth_of(client)
        devices = {
            f"{one['driver']}/{one['pool']}/{one['device']}"
            for claim in client.list("ResourceClaim")
            if any(by["name"] == "ask" for by in claim.get("status", {}).get("reservedFor", ()))
            for one in claim["status"]["allocation"]["devices"]["results"]
        }
    finally:
        cleared(client)
    say(f"{name}: {verdict} {node} {words[:200]}")
    problems = []
    for source, (status, printed) in said.items():
        document = json.loads(printed) if printed.startswith("{") else {}
        if status not in _STATUS[verdict]:
            problems.append(f"{source}: exit {status} but the scheduler: {verdict} {words}; {printed[:600]}")
        elif verdict == "scheduled" and not situation.is_close and document.get("node") != node:
            problems.append(f"{source}: node {document.get('node')}, the scheduler took {node}")
        elif verdict == "scheduled":
            chosen = [of for of in document.get("nodes", ()) if of["node"] == node]
            given = {
                f"{one['driver']}/{one['pool']}/{one['device']}"
                for of in chosen
                for allocation in of.get("allocations", ())
                for one in allocation["devices"]["results"]
            }
            if chosen and given - devices:
                problems.append(f"{source}: devices {sorted(given)}, the scheduler gave {sorted(devices)}")
    lacking = [one for one in _WORDS if verdict == "refused" and one in words and one not in text]
    problems += [f"the scheduler's words {reason!r} are not in: {text[:600]}" for reason in lacking]
    assert not problems, "\n".join(problems)


def test_there_are_sixty_situations() -> None:
    assert len(SITUATIONS) >= 60
