"""Compares a node's requests to an API server, field by field, with the requests of kubelet 1.36.2.

`kubelet_requests.jsonl` contains requests as recorded in a kube-apiserver's audit log. Each patch of a pod is computed
from the pod after our earlier patches and from the facts in the recorded status.
"""

import json
import re
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen
from devicecore_fleet.cluster.predicates import NodeRoom
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words import events, leases, nodes
from devicecore_fleet.cluster.words.pods import REJECTED, PodFacts, pod_status, status_patch
from devicecore_tools.node.outcome import PodRefusal
from devicecore_tools.testing.api_server import LocalApiServer
from devicecore_tools.testing.api_server.patching import strategically_merged

from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.requests import PODS
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.dra.errors import DriverNotRegisteredError, PrepareError
from devicecore.domain.dra.health import ClaimedDeviceHealth, ClaimHealth, DraHealth
from devicecore.domain.health import ResourceHealth
from devicecore.domain.model import DeviceId, Health, PodUid, ResourceName

Json = dict[str, Any]
ROOT = Path(__file__).parents[4]
RECORDED = ROOT / "packages" / "fleet" / "tests" / "data" / "kubelet_requests.jsonl"
GUIDE = (ROOT / "docs" / "cluster-node.md").read_text(encoding="utf-8")
NOW = datetime(2026, 11, 22, 5, 0, tzinfo=UTC)
_ROW = re.compile(r"^\| (Pod|Node|Lease|DeleteOptions) \| `([^`]+)` \|", re.MULTILINE)


@frozen
class Asked:
    """A recorded request."""

    phase: str
    verb: str
    what: str
    name: str
    body: Json


@cache
def recorded() -> tuple[Asked, ...]:
    read = (json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines())
    return tuple(
        Asked(
            one["phase"],
            one["verb"],
            "/".join(filter(None, (one["resource"], one.get("subresource")))),
            one["name"],
            one["body"],
        )
        for one in read
    )


def of(verb: str, what: str) -> list[Asked]:
    return [one for one in recorded() if (one.verb, one.what) == (verb, what)]


def without_listed(kind: str, body: Json) -> Json:
    """Return the body without the fields that the guide lists, which differ because no container runs."""
    body = json.loads(json.dumps(body))
    for about, path in _ROW.findall(GUIDE):
        if about == kind:
            _drop(body, re.findall(r"[^.\[\]]+|\[\w*\]", path))
    return body


def _drop(value: Any, path: list[str]) -> None:  # noqa: ANN401 - JSON
    first, *rest = path
    if isinstance(value, list):
        for one in list(value):
            if first == "[]" or (rest and one["type"] == first.strip("[]")):
                _drop(one, rest)
            elif one["type"] == first.strip("[]"):
                value.remove(one)
    elif isinstance(value, dict):
        for name in (first, f"$setElementOrder/{first}"):
            if rest and name in value:
                _drop(value[name], rest)
            elif not rest:
                value.pop(name, None)


def time(text: str) -> datetime:
    return datetime.fromisoformat(text)


# --- pods -------------------------------------------------------------------------------------------------------------


def new_pod(name: str, status: Json) -> Json:
    """Return the pod as a scheduler has bound it, or as its owner has created it for the node."""
    sizes = status.get("resources") or {}
    claims = [{"name": "k1"}] if name == "p1" else []
    container = {"name": "main", "image": "img", "resources": {**sizes, **({"claims": claims} if claims else {})}}
    first: Json = {"phase": "Pending", "qosClass": "BestEffort"}
    if "$setElementOrder/conditions" in status:
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        first["conditions"] = [{**scheduled, "lastTransitionTime": "2026-11-22T05:00:00Z"}]
    spec = {"containers": [container], "restartPolicy": "Never", "nodeName": "node-3"}
    return {"kind": "Pod", "metadata": {"name": name, "generation": 1}, "spec": spec, "status": first}


def facts_of(status: Json) -> PodFacts:
    """Return what a kubelet that reports this status knows about the pod."""
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    start = time(status["startTime"])
    if status.get("reason"):
        return PodFacts("Failed", start, refusal=(status["reason"], status["message"].removeprefix(REJECTED)))
    (container,) = status["containerStatuses"]
    state = container["state"].get("terminated") or container["state"].get("running") or {}
    is_over = "exitCode" in state
    phase = ("Failed" if state["exitCode"] else "Succeeded") if is_over else "Running" if state else "Pending"
    return PodFacts(
        phase,
        start,
        has_sandbox=conditions["PodReadyToStartContainers"]["status"] == "True",
        started=time(state["startedAt"]) if state else None,
        ended=time(state["finishedAt"]) if is_over else None,
        exit_code=state.get("exitCode", 0),
        health={"main": [_health(one) for one in container.get("allocatedResourcesStatus", ())]},
    )


def _health(one: Json) -> ResourceHealth | ClaimHealth:
    listed = [(device["resourceID"], device["health"]) for device in one["resources"]]
    if one["name"].startswith("claim:"):
        return ClaimHealth(one["name"], tuple(ClaimedDeviceHealth(id_, DraHealth(health)) for id_, health in listed))
    return ResourceHealth(ResourceName(one["name"]), {DeviceId(id_): Health(health) for id_, health in listed})


def chains() -> list[tuple[str, list[Json]]]:
    """Return each pod's patches in the order in which they were sent."""
    found: dict[tuple[str, str], list[Json]] = {}
    for one in of("patch", "pods/status"):
        found.setdefault((one.phase, one.name), []).append(one.body)
    return [(name, bodies) for (_, name), bodies in found.items()]


def merged(pod: Json, patch: Json) -> Json:
    return {**pod, "status": strategically_merged(pod["status"], patch["status"])}


def changed(pod: Json, facts: PodFacts, now: datetime) -> Json:
    """Return the pod after our patch."""
    patch = status_patch(pod, pod_status(pod, facts), now)
    assert patch is not None
    return merged(pod, patch)


@pytest.mark.parametrize(("name", "bodies"), chains(), ids=[name for name, _ in chains()])
def test_a_pods_status_is_patched_as_a_kubelet_patches_it(name: str, bodies: list[Json]) -> None:
    pod = new_pod(name, bodies[0]["status"])
    pod["metadata"]["uid"] = bodies[0]["metadata"]["uid"]
    real, now = pod, NOW
    if name == "p1":  # the recording starts when the container runs
        pod = real = changed(pod, PodFacts("Pending", NOW, has_sandbox=True), NOW)
    for body in bodies:
        sent = body["status"]
        times = [one["lastTransitionTime"] for one in sent.get("conditions", ()) if "lastTransitionTime" in one]
        now = time(times[0]) if times else now  # a patch without times is from the same second as the previous patch
        is_sandbox_new = sent.get("phase") == "Running" and not facts_of(merged(real, body)["status"]).has_sandbox
        is_deleted = sent.get("phase") == "Failed" and "conditions" in sent
        if is_sandbox_new:  # the recording lacks the patch for the new sandbox
            real = merged(real, {"status": {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]}})
            pod = changed(pod, facts_of(real["status"]), now)
        if is_deleted or sent.get("observedGeneration") == 2:
            pod = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now", "generation": 2}}
        if is_deleted and "observedGeneration" not in sent and name != "e2":  # the recording lacks the previous patch
            pod = changed(pod, facts_of(real["status"]), now)
        real = merged(real, body)
        patch = status_patch(pod, pod_status(pod, facts_of(real["status"])), now)
        assert patch is not None
        assert without_listed("Pod", patch) == without_listed("Pod", body)
        pod = merged(pod, patch)
        assert status_patch(pod, pod_status(pod, facts_of(real["status"])), NOW) is None, "nothing is sent twice"


def test_a_pod_is_refused_for_a_device_as_a_kubelet_refuses_it() -> None:
    """The Node shows fewer devices than are allocated, and an earlier pod has requested more than the Node has."""
    gpus = {"limits": {"acme.io/gpu": "4"}, "requests": {"acme.io/gpu": "4"}}
    pod, before = new_pod("c2", {"resources": gpus}), new_pod("c1", {"resources": {"requests": {"acme.io/gpu": "3"}}})
    room, node = NodeRoom(), {"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "9", "acme.io/gpu": "1"}}}
    room.take(PodUid("c1"), before)
    (said,) = (one.body["status"] for one in recorded() if one.name == "c2")
    refusal = room.refusal(PodUid("c2"), pod, node, {"acme.io/gpu": 4})
    assert refusal == PodRefusal(said["reason"], said["message"].removeprefix(REJECTED))
    assert room.refusal(PodUid("c2"), pod, {**node, "status": {"allocatable": {"pods": "9"}}}, {}) is None
    claim = {"extendedResourceClaimStatus": {"requestMappings": [{"resourceName": "acme.io/gpu"}]}}
    assert room.refusal(PodUid("c2"), {**pod, "status": claim}, node, {}) is None
    room.free(PodUid("c1"))
    assert room.refusal(PodUid("c2"), pod, node, {"acme.io/gpu": 4}) is None


def test_a_pod_is_removed_as_a_kubelet_removes_it(tmp_path: Path) -> None:
    (asked,) = of("delete", "pods")
    with (
        LocalApiServer() as server,
        KubeApiRequests(Access(server.kubeconfig(tmp_path / "config"))) as requests,
        pytest.raises(RequestError, match="not found"),
    ):
        requests.delete(PODS, "e2", "default", uid=asked.body["preconditions"]["uid"], grace=0)
    (sent,) = (one.body for one in server.requests if one.verb == "delete")
    assert without_listed("DeleteOptions", sent) == without_listed("DeleteOptions", asked.body)


GPU = "acme.io/gpu"


def test_a_pods_requests_are_added_up_as_in_a_kubelet() -> None:
    """Sidecars are added to the app containers, and an init container counts only with the sidecars before it."""

    def one(name: str, cpu: str, gpus: str = "1", **more: str) -> Json:
        return {"name": name, "image": "i", "resources": {"requests": {"cpu": cpu, GPU: gpus}}, **more}

    init = [one("side", "250m", restartPolicy="Always"), one("big", "2", "4")]
    pod = new_pod("p", {})
    pod["spec"] |= {"containers": [one("a", "500m"), one("b", "500m")], "initContainers": init}
    status = pod_status(pod, PodFacts("Running", NOW, has_sandbox=True, started=NOW))
    assert status["allocatedResources"] == {"cpu": "2250m", GPU: "5"}
    assert [next(iter(each["state"])) for each in status["initContainerStatuses"]] == ["running", "terminated"]
    assert [(each["ready"], each["started"]) for each in status["initContainerStatuses"]] == [
        (True, True),
        (True, False),
    ]
    ended = pod_status(pod, PodFacts("Succeeded", NOW, started=NOW, ended=NOW))
    side, main = ended["initContainerStatuses"][0]["state"], ended["containerStatuses"][0]["state"]
    assert (side["terminated"]["exitCode"], main["terminated"]["exitCode"]) == (143, 0), "a sidecar is stopped"


@pytest.mark.parametrize(
    ("fields", "asked", "limits"),
    [
        ({"resources": {"requests": {"cpu": "30m"}, "limits": {"cpu": "50m"}}}, {"cpu": "30m"}, {"cpu": "50m"}),
        ({"overhead": {"cpu": "100m", "memory": "8Mi"}}, {"cpu": "110m", "memory": "8Mi"}, {"cpu": "120m"}),
        (
            {"resources": {"requests": {"cpu": "1", GPU: "9"}}, "overhead": {"cpu": "100m"}},
            {"cpu": "1100m"},
            {"cpu": "120m"},
        ),
        ({"resources": {"limits": {"hugepages-2Mi": "4Mi"}}}, {"cpu": "10m"}, {"cpu": "20m", "hugepages-2Mi": "4Mi"}),
    ],
    ids=["pod-level", "overhead", "both", "huge-pages"],
)
def test_pod_level_resources_and_overhead_count_as_in_a_scheduler(fields: Json, asked: Json, limits: Json) -> None:
    """Pod-level requests replace the containers' sum. The overhead is added, but to limits only if there is a limit."""
    pod = new_pod("p", {})
    sizes = {"requests": {"cpu": "10m"}, "limits": {"cpu": "20m"}}
    pod["spec"] |= {"containers": [{"name": "main", "image": "i", "resources": sizes}], **fields}
    status = pod_status(pod, PodFacts("Running", NOW, has_sandbox=True, started=NOW))
    assert status["allocatedResources"] == asked
    assert status["resources"] == {"requests": asked, "limits": limits}


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff"])
def test_a_container_that_fails_to_start_is_a_warning(reason: str) -> None:
    """Only the wait between two attempts to pull an image is reported without a warning."""
    said = events.waits(reason, "no such image", "main", "img")
    assert [one.reason for one in said if not one.is_warning] == (["BackOff"] if reason == "ImagePullBackOff" else [])


def test_conditions_of_others_stay_and_gates_keep_a_pod_from_being_ready() -> None:
    pod = new_pod("p", {})
    pod["metadata"]["uid"] = "u"
    pod["spec"]["readinessGates"] = [{"conditionType": "a.io/gate"}]
    pod["status"]["conditions"] = [{"type": "a.io/gate", "status": "False"}, {"type": "Resized", "status": "True"}]
    facts = PodFacts("Running", NOW, has_sandbox=True, started=NOW, host_ips=("10.0.0.1",))
    after = changed(pod, facts, NOW)["status"]["conditions"]
    assert [one["type"] for one in after][:2] == ["a.io/gate", "Resized"]
    (ready,) = (one for one in after if one["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ReadinessGatesNotReady")
    pod["status"]["conditions"][0]["status"] = "True"
    assert "message" not in next(one for one in pod_status(pod, facts)["conditions"] if one["type"] == "Ready")


def test_the_containers_of_a_pod_that_ends_before_they_start_are_lost() -> None:
    """A kubelet knows nothing about the first container that it should have started, and has not tried later ones."""
    pod = new_pod("p", {})
    facts = PodFacts("Failed", NOW, has_sandbox=True, ended=NOW, exit_code=143)
    assert pod_status(pod, facts)["phase"] == "Pending"
    facts = evolve(facts, has_sandbox=False)
    (main,) = pod_status(pod, facts)["containerStatuses"]
    ended = main["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("ContainerStatusUnknown", 137)
    pod["spec"]["initContainers"] = [{"name": "one"}, {"name": "two"}]
    status = pod_status(pod, facts)
    shown = [*status["initContainerStatuses"], *status["containerStatuses"]]
    assert [next(iter(one["state"])) for one in shown] == ["terminated", "waiting", "waiting"]


def test_a_running_pod_that_is_refused_after_a_restart_runs_no_longer() -> None:
    pod = new_pod("p", {})
    pod["metadata"]["uid"] = "u"
    running = PodFacts("Running", NOW, has_sandbox=True, started=NOW)
    later = evolve(running, start_time=NOW.replace(hour=6), refusal=("UnexpectedAdmissionError", "why"))
    for facts in (running, later):
        pod = changed(pod, facts, NOW)
    assert time(pod["status"]["startTime"]) == NOW
    assert (pod["status"]["phase"], pod["status"]["message"]) == ("Failed", "Pod was rejected: why")
    (container,) = pod["status"]["containerStatuses"]
    assert (container["ready"], container["state"]["terminated"]["reason"]) == (False, "ContainerStatusUnknown")
    by_type = {one["type"]: (one["status"], one.get("reason")) for one in pod["status"]["conditions"]}
    assert (by_type["Ready"], by_type["PodScheduled"]) == (("False", "PodFailed"), ("True", None))


def test_a_container_that_kubectl_debug_adds_could_not_be_run() -> None:
    pod = new_pod("p", {})
    pod["spec"]["ephemeralContainers"] = [{"name": "debugger", "image": "busybox", "targetContainerName": "main"}]
    (shown,) = pod_status(pod, PodFacts("Running", NOW, started=NOW, has_sandbox=True))["ephemeralContainerStatuses"]
    assert (shown["name"], shown["state"]["terminated"]["reason"]) == ("debugger", "ContainerCannotRun")


# --- nodes, leases, events --------------------------------------------------------------------------------------------


def test_a_node_and_its_patches_match_a_kubelets() -> None:
    (made,) = of("create", "nodes")
    status, started = made.body["status"], NOW.replace(minute=1, second=48)
    description = nodes.NodeDescription(
        "node-3",
        status["capacity"],
        status["allocatable"],
        info=status["nodeInfo"],
        problem="CSINode is not yet initialized",
    )
    node = nodes.node_object(description, started)
    addresses = {"addresses": node["status"].pop("addresses")}  # written by an external cloud provider
    assert without_listed("Node", node) == without_listed("Node", made.body)
    assert node["metadata"]["annotations"] == {"devicecore.io/containers": "none"}
    assert {"type": "ContainersRun", "status": "False"}.items() <= node["status"]["conditions"][-1].items()
    ready = evolve(description, problem="")
    gpus = NodeStatus({ResourceName(GPU): 2}, {ResourceName(GPU): 2})
    steps = [
        (nodes.node_status(ready), started),
        (nodes.node_status(ready, gpus), time("2026-11-22T05:02:59Z")),
        (nodes.node_status(ready, gpus), time("2026-11-22T05:07:59Z")),
    ]
    sent = []
    node["status"] |= addresses
    for wanted, now in steps:
        assert nodes.node_patch(node, wanted, now), now
        patch = nodes.node_patch(node, wanted, now)
        assert patch is not None
        node["status"] = strategically_merged(node["status"], patch["status"])
        assert nodes.node_patch(node, wanted, now) is None
        sent.append(without_listed("Node", patch))
    real = [without_listed("Node", one.body) for one in of("patch", "nodes/status")]
    assert sent[:2] == real[:2]
    beats = json.loads(json.dumps(sent[2]).replace("05:07:59", "05:03:19"))  # the kubelet's third patch was for images
    assert beats == real[2]


def test_other_writers_keep_what_they_have_written_on_a_node() -> None:
    description = nodes.NodeDescription("n", {"cpu": "1000m", "memory": "1024Ki"}, host_ips=("10.0.0.1",))
    node = nodes.node_object(description, NOW)
    node["status"]["capacity"]["other.io/thing"] = "2"
    node["status"]["conditions"].append({"type": "NetworkUnavailable", "status": "False"})
    patch = nodes.node_patch(node, nodes.node_status(evolve(description, problem="why")), NOW)
    assert patch is not None
    after = strategically_merged(node["status"], patch["status"])
    assert (after["capacity"]["other.io/thing"], after["capacity"]["cpu"]) == ("2", "1")
    assert {"type": "NetworkUnavailable", "status": "False"} in after["conditions"]


def test_a_lease_is_created_and_renewed_as_by_a_kubelet() -> None:
    (made,), renewed = of("create", "leases"), of("update", "leases")[0]
    (owner,) = made.body["metadata"]["ownerReferences"]
    first = leases.lease("node-3", "me", owner["uid"], time(made.body["spec"]["renewTime"]))
    assert without_listed("Lease", first) == without_listed("Lease", made.body)
    before = {**renewed.body, "spec": made.body["spec"]}
    now = time(renewed.body["spec"]["renewTime"])
    again = leases.lease("node-3", "me", owner["uid"], now, before)
    assert without_listed("Lease", again) == without_listed("Lease", renewed.body)
    assert leases.lease("node-3", "me", None, now)["metadata"] == {"name": "node-3", "namespace": "kube-node-lease"}


def test_events_match_a_kubelets() -> None:
    said = {"Starting": events.STARTING, "Killing": events.killing("main")}
    compared = set()
    for body in (one.body for one in of("create", "events")):
        reason = body["reason"]
        if f"`{reason}`" in GUIDE:  # the guide says that this event is not sent
            continue
        about = {"kind": body["involvedObject"]["kind"], "metadata": body["involvedObject"]}
        exact = int(body["metadata"]["name"].rpartition(".")[2], 16)
        now = time(body["firstTimestamp"])
        what = said.get(reason) or events.refused(reason, body["message"])
        assert events.event(about, "node-3", what, now, exact) == body
        named = int(events.event(about, "node-3", what, now)["metadata"]["name"].split(".")[1], 16)
        assert abs(exact - named) <= 10**9, "the name contains the time"
        compared.add(reason)
    assert compared == {"Starting", "Killing", "UnexpectedAdmissionError"}
    long = {"kind": "Pod", "metadata": {"name": "p" * 253, "namespace": "x"}}
    found = {events.event(long, "node-3", events.STARTING, NOW, exact)["metadata"]["name"] for exact in (1, 2)}
    assert sorted(map(len, found)) == [36, 36], "different names that an API server accepts"


# --- against a server -------------------------------------------------------------------------------------------------


def test_an_api_server_accepts_what_is_sent() -> None:
    """The API server for tests accepts each object and patch, and the result is the desired object."""
    server = LocalApiServer(clock=lambda: NOW)
    made = server.create(nodes.node_object(nodes.NodeDescription("n", {"cpu": "1"}), NOW))
    server.create(leases.lease("n", "me", made["metadata"]["uid"], NOW))
    container = {"name": "main", "image": "img", "resources": {"limits": {GPU: "1"}, "claims": [{"name": "k1"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "k1"}], "restartPolicy": "Never"}
    server.create({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    server.bind("p", "n")
    health: dict[str, list[ResourceHealth | ClaimHealth]] = {
        "main": [
            ResourceHealth(ResourceName(GPU), {DeviceId("gpu-0"): Health.UNHEALTHY}),
            ClaimHealth("claim:k1", (ClaimedDeviceHealth("a/b=c", DraHealth.UNKNOWN, "hot"),)),
            ClaimHealth("claim:without-devices", ()),
        ]
    }
    facts = PodFacts("Pending", NOW, health=health)
    running = evolve(facts, phase="Running", has_sandbox=True, started=NOW)
    shown = []
    for known in (
        facts,
        running,
        evolve(running, phase="Succeeded", ended=NOW),
        evolve(running, phase="Succeeded", ended=NOW, has_sandbox=False),
    ):
        pod = server.get("Pod", "p")
        server.change("Pod", "p", partial(dict.update, status=changed(pod, known, NOW)["status"]))
        after = server.get("Pod", "p")
        assert status_patch(after, pod_status(after, known), NOW) is None
        shown.append(after["status"]["containerStatuses"][0]["allocatedResourcesStatus"])
    assert after["status"]["phase"] == "Succeeded"
    assert shown[1][1]["resources"] == [{"health": "Unknown", "resourceID": "a/b=c", "message": "hot"}]
    assert shown[-1] == shown[1][:1], "claims are unprepared before a kubelet shows that the pod has ended"
    said = events.not_prepared(str(PrepareError(DriverNotRegisteredError("a.io"))))
    assert (
        said.message
        == "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver a.io is not registered"
    )
    server.create({**events.event(after, "n", said, NOW)})
    server.delete("Pod", "p", grace=0)
