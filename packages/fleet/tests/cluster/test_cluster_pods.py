"""Pods of a cluster node: `ClusterPods`, the engine, the watch and the writer, with the API server for tests."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from devicecore_fleet.cluster.object_watch import KubeApiWatch, ObjectHandler
from devicecore_fleet.cluster.records import PodRecord, reduced
from devicecore_tools.testing.api_server import LocalApiServer, pod_rules
from devicecore_tools.testing.api_server.faults import Answer, Chunks, Delay, Drop, Fault
from tests.cluster.cluster_node import GPU, NODE, PATIENCE, ClusterNode, Json, a_pod

from devicecore import DeviceId, Health
from devicecore.adapters.kube_api import Access, Backoff
from devicecore.adapters.kube_api.requests import PODS
from devicecore.adapters.memory import MemoryStore
from devicecore.adapters.pod_resources import list_pods
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import DocumentError, StoreError
from devicecore.domain.objects import pod_of
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

REFUSED = (
    "Allocate failed due to requested number of devices unavailable for acme.io/gpu. Requested: 3, Available: 2, "
    "which is unexpected"
)


@pytest.fixture
def server() -> Iterator[LocalApiServer]:
    with LocalApiServer(users={"token": f"system:node:{NODE}", "new": f"system:node:{NODE}"}) as server:
        server.create({"kind": "Node", "metadata": {"name": NODE}})
        yield server


@pytest.fixture
def node(server: LocalApiServer, tmp_path: Path) -> Iterator[ClusterNode]:
    with ClusterNode(server, tmp_path) as node:
        yield node


def is_shown(node: ClusterNode, **phases: str) -> Callable[[], bool]:
    """Return a condition: the server shows these phases, and for running pods the devices that the manager knows."""
    return lambda: node.phases() == phases and node.shown_devices() == node.held()


def bound(node: ClusterNode, *pods: Json, **phases: str) -> None:
    """Bind pods, and wait until the server shows these phases."""
    node.bind(*pods)
    node.run_until(is_shown(node, **phases))


# --- the life of a pod --------------------------------------------------------------------------------------------


def test_pods_run_are_refused_end_and_go(node: ClusterNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bound(node, a_pod("runs", 2), runs="Running")
    bound(
        node, a_pod("refused", 3), a_pod("ends", 1, run_for="0.2s"), runs="Running", refused="Failed", ends="Succeeded"
    )
    status = node.status("refused")
    assert (status["reason"], status["message"]) == ("UnexpectedAdmissionError", f"Pod was rejected: {REFUSED}")
    assert node.events("refused") == [("UnexpectedAdmissionError", REFUSED)]
    (state,) = (one["state"] for one in node.status("ends")["containerStatuses"])
    assert state["terminated"]["exitCode"] == 0
    assert [pod.name for pod in list_pods(node.engine.snapshot()).pod_resources] == ["runs"]
    assert [one for one in caplog.messages if "ends" in one][-1] == "pod default/ends has ended"
    node.server.delete("Pod", "runs")
    node.server.delete("Pod", "refused")
    node.run_until(is_shown(node, ends="Succeeded"))
    assert node.held() == {}
    assert node.events("runs") == [("Killing", "Stopping container main")]
    deletions = [request.body for request in node.server.requests if request.verb == "delete"]
    assert {one["gracePeriodSeconds"] for one in deletions} == {0}
    assert all(one["preconditions"]["uid"] for one in deletions)


def test_a_pod_that_has_failed_gets_nothing_when_devices_become_free(node: ClusterNode) -> None:
    bound(node, a_pod("runs", 2), runs="Running")
    bound(node, a_pod("refused", 3), runs="Running", refused="Failed")
    node.server.delete("Pod", "runs")
    bound(node, a_pod("next", 1), refused="Failed", next="Running")


def test_a_pod_with_a_stop_time_keeps_its_devices_until_it_has_stopped(node: ClusterNode) -> None:
    bound(node, a_pod("slow", 4, stop_after="0.4s"), slow="Running")
    node.server.delete("Pod", "slow")
    node.bind(a_pod("other", 1))
    node.run_until(lambda: "other" in node.phases() and node.phases()["other"] == "Failed")
    node.run_until(is_shown(node, other="Failed"))


def test_a_change_of_health_is_shown(node: ClusterNode) -> None:
    bound(node, a_pod("a", 4), a="Running")
    assert isinstance(node.plugin, SimulatedPlugin)
    node.plugin.set_health("gpu-1", Health.UNHEALTHY)

    def health() -> list[str]:
        (container,) = node.status("a")["containerStatuses"]
        return [one["health"] for one in container["allocatedResourcesStatus"][0]["resources"]]

    node.run_until(lambda: health() == ["Healthy", "Unhealthy", "Healthy", "Healthy"])


def test_a_status_that_another_writer_overwrites_is_repaired(node: ClusterNode) -> None:
    bound(node, a_pod("a", 1), a="Running")

    def overwrite(pod: dict[str, dict[str, str]]) -> None:
        pod["status"]["phase"] = "Pending"

    node.server.change("Pod", "a", overwrite)
    node.run_until(is_shown(node, a="Running"))


def test_two_writers_that_disagree_do_not_load_the_server(node: ClusterNode) -> None:
    bound(node, a_pod("a", 1), a="Running")
    turns = overwritten = 0

    def overwrite(pod: Json) -> None:
        for one in pod["status"]["conditions"]:
            one |= {"status": "False", "lastTransitionTime": f"2026-01-01T00:00:{overwritten:02}Z"}

    def is_enough() -> bool:
        nonlocal turns, overwritten
        turns += 1
        if {one["status"] for one in node.status("a")["conditions"]} == {"True"}:
            overwritten += 1
            node.server.change("Pod", "a", overwrite)
        return turns > 300 or overwritten > 20

    node.run_until(is_enough)
    assert 2 < overwritten < 10


def test_a_pod_in_a_final_phase_is_never_admitted(node: ClusterNode) -> None:
    over = {**a_pod("over", 4), "status": {"phase": "Failed"}}
    node.server.create({**over, "spec": {**over["spec"], "nodeName": NODE}})
    bound(node, a_pod("a", 4), over="Failed", a="Running")


def test_a_pod_recreated_under_its_name_is_a_different_pod(node: ClusterNode, caplog: pytest.LogCaptureFixture) -> None:
    bound(node, a_pod("a", 4), a="Running")
    node.server.inject(Answer(500, {"message": "away"}), verb="watch", times=None)
    node.server.cut_watches()
    node.run_until(lambda: node.watch.problem)
    node.server.delete("Pod", "a", grace=0)
    node.bind(a_pod("a", 3))
    uid = node.server.get("Pod", "a")["metadata"]["uid"]
    assert isinstance(node.plugin, SimulatedPlugin)
    node.plugin.set_health("gpu-1", Health.UNHEALTHY)  # a second report about the earlier pod
    node.run_until(lambda: [one.verb for one in node.server.requests].count("patch") > 2)
    node.server.clear_faults()
    node.run_until(lambda: node.held().keys() == {uid} and node.phases() == {"a": "Running"})
    assert not [one for one in caplog.records if one.name.endswith("writer")], "the writer reports no problem"


class SlowPlugin(SimulatedPlugin):
    """A plugin that answers Allocate once `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__(GPU, simulated_devices("gpu", 4, numa_nodes=[0]))
        self.is_asked, self.goes_on = threading.Event(), threading.Event()

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        self.is_asked.set()
        self.goes_on.wait(10.0)
        return super().allocate(devices)


def test_a_pod_deleted_while_it_is_admitted_leaks_nothing(server: LocalApiServer, tmp_path: Path) -> None:
    plugin = SlowPlugin()
    with ClusterNode(server, tmp_path, plugin=plugin) as node:
        node.bind(a_pod("a", 4))
        node.run_until(plugin.is_asked.is_set)
        server.delete("Pod", "a")
        node.run_until(lambda: not node.pods.active_pods())
        plugin.goes_on.set()
        node.run_until(is_shown(node))
        bound(node, a_pod("b", 4), b="Running")


class SilentOnce(SimulatedPlugin):
    """A plugin that does not answer the first PreStartContainer in time."""

    calls = 0

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        self.calls += 1
        if self.calls == 1:
            message = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
            raise RuntimeError(message)


def test_a_pod_whose_start_is_not_answered_waits_and_runs_later(
    server: LocalApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devicecore_tools.node.attempts.SILENCE", 0.5)
    monkeypatch.setattr("devicecore_tools.node.engine.SILENCE", 0.5)
    with ClusterNode(server, tmp_path, plugin=SilentOnce(GPU, simulated_devices("gpu", 4, numa_nodes=[0]))) as node:
        node.bind(a_pod("a", 4))
        phases = set()

        def runs() -> bool:
            phases.add(node.phases()["a"])
            return bool(node.events("a")) and phases >= {"Running"}

        node.run_until(lambda: runs() or "Failed" in phases)
        assert phases == {"Pending", "Running"}
        ((reason, message),) = node.events("a")
        assert (reason, "DeadlineExceeded" in message) == ("Failed", True)


class FullStore(MemoryStore):
    """A store that has no space left for some saves."""

    fails = 0

    def save(self, blob: bytes) -> None:
        if self.fails:
            self.fails -= 1
            raise StoreError("checkpoint", "write", "No space left on device")
        super().save(blob)


def test_after_a_full_disk_the_pods_that_waited_run_although_nothing_else_changes(
    server: LocalApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devicecore_tools.node.attempts.SILENCE", 0.5)
    store = FullStore()
    with ClusterNode(server, tmp_path, store) as node:
        store.fails = 1
        node.bind(a_pod("a", 1), a_pod("b", 1), a_pod("c", 1))
        node.run_until(lambda: sorted(node.phases().values()) == ["Failed", "Running", "Running"])


def test_a_pod_that_is_active_for_too_long_fails_as_on_a_kubelet(node: ClusterNode) -> None:
    bound(
        node,
        asking("late", 1, activeDeadlineSeconds=1),
        asking("refused", 9, activeDeadlineSeconds=1),
        late="Running",
        refused="Failed",
    )
    node.run_until(is_shown(node, late="Failed", refused="Failed"))
    said = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
    assert (node.status("late")["reason"], node.status("late")["message"]) == said
    assert node.status("late")["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert node.status("refused")["reason"] == "UnexpectedAdmissionError"
    node.run_until(lambda: node.events("late") == [said, ("Killing", "Stopping container main")])
    assert node.held() == {}


# --- a kubelet's checks other than devices --------------------------------------------------------------------------


def asking(name: str, gpus: int = 0, **spec: object) -> Json:
    pod = a_pod(name, gpus)
    sizes = spec.pop("requests", {})
    assert isinstance(sizes, dict)
    (container,) = pod["spec"]["containers"]
    container["resources"].setdefault("requests", {}).update(sizes)
    if "port" in spec:
        container["ports"] = [{"containerPort": 80, "hostPort": spec.pop("port"), "hostIP": spec.pop("ip", "")}]
    pod["spec"].update(spec)
    return pod


AFFINITY = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}
REQUIRED = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": AFFINITY}}


def test_containers_do_what_an_annotation_says(node: ClusterNode) -> None:
    """Containers exit with a code and free their devices, crash repeatedly, wait for an image, or are never ready."""
    crashing, odd = a_pod("crashing", 0, containers="exit 1"), a_pod("odd", 0, containers="exit soon")
    crashing["spec"]["restartPolicy"] = "Always"
    node.bind(a_pod("failing", 1, containers="main: exit 3"), crashing, odd)
    node.bind(a_pod("unready", 0, containers="not-ready"), a_pod("no-image", 0, containers="no-image"))
    ended = {"failing": "Failed", "crashing": "Running", "odd": "Running", "unready": "Running", "no-image": "Pending"}
    node.run_until(lambda: node.phases() == ended)
    node.run_until(lambda: "waiting" in _main(node, "crashing")["state"])
    node.run_until(lambda: _main(node, "no-image")["state"]["waiting"]["reason"] == "ImagePullBackOff")
    assert not node.held()
    assert _main(node, "failing")["state"]["terminated"]["exitCode"] == 3
    crashed = _main(node, "crashing")
    assert crashed["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert (crashed["lastState"]["terminated"]["exitCode"], crashed["restartCount"], crashed["ready"]) == (1, 1, False)
    (ready,) = (one for one in node.status("unready")["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["message"]) == ("False", "containers with unready status: [main]")
    node.run_until(lambda: len(node.events("no-image")) == 4 and node.events("crashing") and node.events("unready"))
    assert {reason for reason, _ in node.events("no-image")} == {"Failed", "BackOff"}
    assert [reason for reason, _ in node.events("crashing")] == ["BackOff"]
    assert node.events("unready") == [("Unhealthy", "Readiness probe failed: ")]
    ((reason, message),) = node.events("odd")
    assert reason == "NotUnderstood"
    assert "expected a time such as `after 5s`" in message or "expected `exit CODE" in message


RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}


@pytest.mark.parametrize(
    ("policy", "container", "code", "restarts"),
    [
        ("Never", {}, 1, False),
        ("OnFailure", {}, 0, False),
        ("OnFailure", {}, 1, True),
        ("Always", {"restartPolicy": "Never"}, 1, False),
        ("Never", {"restartPolicy": "OnFailure"}, 1, True),
        ("Always", {"restartPolicy": "Never", "restartPolicyRules": [RULE]}, 42, True),
        ("Always", {"restartPolicy": "Never", "restartPolicyRules": [RULE]}, 41, False),
        ("Never", {"restartPolicy": "Always", "restartPolicyRules": [RULE]}, 41, True),
    ],
)
def test_a_container_is_started_again_as_its_own_rules_and_policies_say(
    node: ClusterNode, policy: str, container: Json, code: int, *, restarts: bool
) -> None:
    pod = a_pod("crashing", 0, containers=f"exit {code}")
    pod["spec"]["restartPolicy"] = policy
    pod["spec"]["containers"][0].update(container)
    node.bind(pod)
    ended = "Succeeded" if code == 0 else "Failed"
    node.run_until(lambda: node.phases() == {"crashing": "Running" if restarts else ended})
    node.run_until(lambda: "running" not in _main(node, "crashing")["state"])


def test_a_container_whose_probe_fails_is_stopped_and_perhaps_started_again(node: ClusterNode) -> None:
    restarted = a_pod("restarted", 1, containers="not-live after 100ms")
    restarted["spec"]["restartPolicy"] = "Always"
    node.bind(restarted, a_pod("ended", 1, containers="not-live after 100ms"))
    node.bind(a_pod("starting", 0, containers="not-started after 1h"))
    node.run_until(lambda: node.phases() == {"restarted": "Running", "ended": "Failed", "starting": "Running"})
    node.run_until(lambda: "waiting" in _main(node, "restarted")["state"])
    crashed, failed = _main(node, "restarted"), _main(node, "ended")
    assert crashed["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert (crashed["restartCount"], crashed["lastState"]["terminated"]["exitCode"]) == (2, 143)
    assert failed["state"]["terminated"]["exitCode"] == 143
    node.run_until(lambda: len(node.events("ended")) == 2 and len({*node.events("restarted")}) == 3)
    unhealthy = ("Unhealthy", "Liveness probe failed: ")
    assert node.events("ended") == [unhealthy, ("Killing", "Stopping container main")]
    killing = ("Killing", "Container main failed liveness probe, will be restarted")
    assert {*node.events("restarted")} > {unhealthy, killing}
    starting = _main(node, "starting")
    assert (starting["started"], starting["ready"], "running" in starting["state"]) == (False, False, True)


def _main(node: ClusterNode, pod: str) -> Json:
    (main,) = node.status(pod)["containerStatuses"]
    return dict(main)


def test_a_pod_that_does_not_fit_is_refused_as_a_kubelet_refuses_it(server: LocalApiServer, tmp_path: Path) -> None:
    """The messages about CPUs and memory are a kubelet's. test_words.py contains a recorded message about a device."""
    capacity = {"cpu": "4", "memory": "1Gi", "pods": "3"}
    with ClusterNode(server, tmp_path, capacity=capacity) as node:
        bound(node, asking("a", 2, requests={"cpu": "2500m", "memory": "500Mi"}, port=80, ip="10.0.0.1"), a="Running")
        node.bind(
            asking("cpu", 1, requests={"cpu": "1501m"}),
            asking("memory", requests={"memory": "600Mi"}, nodeSelector={"disk": "ssd"}),
            asking("gpu", 3, requests={"cpu": "9"}),
            asking("selector", 1, nodeSelector={"disk": "ssd"}),
            asking("affinity", affinity=REQUIRED),
            asking("overhead", overhead={"cpu": "2"}),
            asking("port", port=80),
            asking("os", requests={"cpu": "9"}, os={"name": "windows"}),
        )
        failed = dict.fromkeys(("cpu", "memory", "gpu", "selector", "affinity", "overhead", "port", "os"), "Failed")
        node.run_until(is_shown(node, a="Running", **failed))
        numbers = "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}".format
        unselected = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        expected = {
            "cpu": ("OutOfcpu", numbers("cpu", 1501, 2500, 4000)),
            "memory": ("OutOfmemory", numbers("memory", 600 << 20, 500 << 20, 1 << 30)),
            "gpu": ("UnexpectedAdmissionError", REFUSED),
            "selector": ("NodeAffinity", unselected),
            "affinity": ("NodeAffinity", unselected),
            "overhead": ("OutOfcpu", numbers("cpu", 2000, 2500, 4000)),
            "port": (
                "NodePorts",
                "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
            ),
            "os": ("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"),
        }
        for name, (reason, message) in expected.items():
            status = node.status(name)
            assert (status["reason"], status["message"]) == (reason, f"Pod was rejected: {message}")
        node.run_until(lambda: all(node.events(name) == [said] for name, said in expected.items()))

        node.server.change("Node", NODE, lambda found: found["metadata"]["labels"].update(disk="ssd"))
        # The pod `later` can be admitted only if the Node is read again.
        node.bind(asking("later", 2, affinity=REQUIRED, nodeSelector={"disk": "ssd"}, port=80, ip="10.0.0.2"))
        node.run_until(is_shown(node, a="Running", later="Running", **failed))
        taint = {"key": "k", "effect": "NoExecute"}
        node.server.change("Node", NODE, lambda found: found["spec"].update(taints=[taint]))

        def reason_of(pod: Json) -> str:
            name = pod["metadata"]["name"]
            node.bind(pod)
            node.run_until(lambda: node.phases()[name] != "Pending")
            return str(node.status(name).get("reason"))

        assert reason_of(asking("seen", nodeSelector={"x": "y"})) == "NodeAffinity"  # this check reads the Node again
        assert reason_of(asking("intolerant")) == "TaintToleration"
        assert reason_of(asking("third", tolerations=[{"operator": "Exists"}])) == "None"
        assert reason_of(asking("fourth")) == "OutOfpods"


def test_a_pod_that_was_resized_leaves_the_room_that_it_does_not_need(
    server: LocalApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_rules, "_fixed", lambda _: None)  # the server for tests has no subresource `resize`
    with ClusterNode(server, tmp_path, capacity={"cpu": "4", "pods": "9"}) as node:
        bound(node, asking("a", requests={"cpu": "4"}), a="Running")

        def resize(pod: Json) -> None:
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"

        server.change("Pod", "a", resize)
        bound(node, asking("b", requests={"cpu": "3"}), a="Running", b="Running")
        node.run_until(lambda: node.status("a")["allocatedResources"] == {"cpu": "1"})


def test_pods_that_ran_before_a_restart_are_not_refused_and_count(server: LocalApiServer, tmp_path: Path) -> None:
    store = MemoryStore()
    with ClusterNode(server, tmp_path, store, capacity={"cpu": "4", "pods": "9"}) as node:
        bound(node, asking("a", 1, requests={"cpu": "3"}), a="Running")
    with ClusterNode(server, tmp_path, store, capacity={"cpu": "2", "pods": "9"}) as again:
        bound(again, asking("b", 1, requests={"cpu": "1"}), a="Running", b="Failed")
        assert again.status("b")["message"].endswith("requested: 1000, used: 3000, capacity: 2000")
        again.server.delete("Pod", "a")
        bound(again, asking("c", 1, requests={"cpu": "2"}), b="Failed", c="Running")


def test_a_pod_that_gets_the_devices_of_another_one_finds_its_room_too(server: LocalApiServer, tmp_path: Path) -> None:
    with ClusterNode(server, tmp_path, capacity={"pods": "1"}) as node:
        bound(node, asking("a", 4), a="Running")
        server.delete("Pod", "a")
        node.bind(asking("b", 4))
        end = time.monotonic() + PATIENCE
        while not (len(node.pods.objects) == 2 and node.pods.objects[0]["metadata"].get("deletionTimestamp")):
            assert node.woken.wait(end - time.monotonic())
            node.woken.clear()
        changes = node.pods.poll()  # the engine has not released the first pod yet
        assert [pod.name for pod in (*changes.removed, *changes.added)] == ["a", "b"]
        assert node.pods.refusal(changes.added[0], {GPU: 4}) is None


# --- faults of the server ---------------------------------------------------------------------------------------------

HTML = Answer(404, "404 page not found")
GONE = Answer(410, {"kind": "Status"})
BUSY = Answer(429, {"kind": "Status", "reason": "TooManyRequests", "message": "busy"}, {"Retry-After": "0"})
LATE = Answer(403, {"kind": "Status", "reason": "Forbidden", "message": "no relationship found"})
NAMELESS = Chunks([b'{"metadata":{},"items":[{}]}'])
HALF = Chunks([b'{"type":"ADDED","object":{"kind":"Pod","metadata":{"na'])


FAULTS = {
    "patch": (BUSY, LATE, HTML, Answer(500), Drop(), Drop(after=True)),
    "watch": (BUSY, HALF, HTML, GONE, Chunks([b"[]\n"]), Drop()),
    "list": (BUSY, LATE, Drop(), Chunks([b"{}"]), NAMELESS),
    "delete": (BUSY, Drop(), Drop(after=True)),
}


@pytest.mark.parametrize(("verb", "fault"), [(verb, fault) for verb, faults in FAULTS.items() for fault in faults])
def test_after_a_fault_every_status_is_true(server: LocalApiServer, tmp_path: Path, verb: str, fault: Fault) -> None:
    server.inject(fault, verb=verb, times=2)
    with ClusterNode(server, tmp_path) as node:
        bound(node, a_pod("a", 2), a_pod("b", 3), a="Running", b="Failed")
        node.server.cut_watches()
        node.server.delete("Pod", "a")
        node.run_until(is_shown(node, b="Failed"))


def test_many_pods_at_once_get_true_statuses_from_a_server_with_faults(server: LocalApiServer, tmp_path: Path) -> None:
    """The server is slow or busy, loses answers, reports conflicts and cuts off watches, while pods are deleted.

    In `make storm` there are a thousand pods.
    """
    pods, devices = (1000, 200) if os.environ.get("STORM") else (60, 40)
    conflict = Answer(409, {"kind": "Status", "reason": "Conflict", "message": "the object has been modified"})
    for fault, every in ((BUSY, 5), (conflict, 13), (Drop(after=True), 11), (Answer(500), 7), (Delay(0.05), 3)):
        server.inject(fault, verb="patch", resource="pods/status", times=None, every=every)
    plugin, turns = SimulatedPlugin(GPU, simulated_devices("gpu", devices)), 0
    with ClusterNode(server, tmp_path, plugin=plugin) as node:
        node.bind(*(a_pod(f"p{number}", 1) for number in range(pods)))

        def is_over() -> bool:
            nonlocal turns
            turns += 1
            if turns <= 20:
                server.cut_watches(within_line=True)
                server.delete("Pod", f"p{turns}", grace=turns % 2)
            held, phases = node.held(), set(node.phases().values())
            is_true = "Pending" not in phases and node.shown_devices() == held
            return turns > 20 and len(node.phases()) == pods - 20 and is_true

        node.run_until(is_over, 15 * PATIENCE)
        taken = [device for ids in node.held().values() for device in ids]
        assert len(taken) == len(set(taken)) == list(node.phases().values()).count("Running") >= devices - 20


def test_a_line_separator_in_a_text_does_not_end_an_event(node: ClusterNode) -> None:
    bound(node, a_pod("a", 1), a="Running")
    pod = node.server.get("Pod", "a")
    pod["metadata"] |= {"name": "b", "uid": "u", "annotations": {"text": "one\x85two"}}
    event = json.dumps({"type": "ADDED", "object": pod}, ensure_ascii=False).encode()
    node.server.inject(Chunks([event[:-9], event[-9:] + b"\n"]), verb="watch")
    node.server.cut_watches()
    node.run_until(lambda: [one for one in node.pods.objects if one["metadata"]["uid"] == "u"])


def test_after_an_unreadable_event_the_pods_are_listed_again(node: ClusterNode) -> None:
    bound(node, a_pod("a", 1), a="Running")
    asked = len(node.server.requests)
    node.server.inject(Chunks([b'{"type": "ADDED"\n']), verb="watch")
    node.server.inject(Chunks([b" " * (9 << 20)]), verb="list")
    node.server.cut_watches()

    def limits() -> list[str]:
        return [one.query["limit"] for one in node.server.requests[asked:] if one.verb == "list"]

    node.run_until(lambda: len(limits()) >= 2)
    assert limits() == ["500", "250"]  # the first page was too large


def test_while_the_server_is_down_nothing_is_released(node: ClusterNode, tmp_path: Path) -> None:
    node.bind(a_pod("a", 2), a_pod("ends", 1, run_for="0.5s"))
    node.run_until(lambda: node.phases() == {"a": "Running", "ends": "Running"})
    node.server.stop()
    node.run_until(lambda: node.watch.problem and len(node.held()) == 1)  # the device of the ended pod is free
    node.server.users = {"new": f"system:node:{NODE}"}
    node.server.start()
    node.server.kubeconfig(tmp_path / "kubeconfig", {"token": "new"})  # the old token is no longer valid
    bound(node, a_pod("later", 1), a="Running", ends="Succeeded", later="Running")
    assert node.watch.problem is node.writer.problem is None


def test_a_list_that_is_not_whole_releases_nothing(node: ClusterNode) -> None:
    bound(node, a_pod("a", 1), a_pod("b", 1), a="Running", b="Running")
    held = node.held()
    first = [node.server.get("Pod", "a")]
    metadata = {"resourceVersion": "9", "continue": "x"}
    page = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": first}
    asked = len(node.server.requests)
    node.server.inject(*[Answer(200, page), Answer(410, {"kind": "Status"})] * 3, verb="list", resource="pods")
    node.server.inject(Answer(410, {"kind": "Status"}), verb="watch")
    node.server.cut_watches()

    def lists() -> int:
        return [request.verb for request in node.server.requests[asked:]].count("list")

    node.run_until(lambda: node.held() != held or lists() > 6)
    assert node.held() == held


# --- a node that is killed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", range(1, 24, 3))
def test_a_kill_at_any_request_doubles_or_leaks_nothing(server: LocalApiServer, tmp_path: Path, answered: int) -> None:
    """The node ends after `answered` answers from the server, or when all pods are done.

    A new node takes its checkpoint.
    """
    store = MemoryStore()
    with ClusterNode(server, tmp_path, store) as node:
        start = len(server.requests)
        node.bind(a_pod("a", 2), a_pod("b", 3), a_pod("ends", 1, run_for="0.05s"), a_pod("gone", 1))

        is_over = is_shown(node, a="Running", b="Failed", ends="Succeeded")

        left = ["gone"]  # deleted once, because the node may remove the Pod just before it is deleted again

        def act() -> bool:
            if left and node.phases().get("gone") == "Running":
                server.delete("Pod", left.pop())
            return len(server.requests) - start >= answered or is_over()

        node.run_until(act)
    devices = node.held()
    with ClusterNode(server, tmp_path, store) as again:
        if "gone" in again.phases():
            server.delete("Pod", "gone")
        again.run_until(lambda: "gone" not in again.phases() and "Pending" not in again.phases().values())
        again.run_until(lambda: again.shown_devices() == again.held() and again.phases()["ends"] == "Succeeded")
        phases = again.phases()
        assert phases["a"] == "Running" or phases["b"] == "Running"  # the pod that was admitted first
        kept = {uid: ids for uid, ids in devices.items() if uid in again.held()}
        assert again.held() == {**again.held(), **kept}
        taken = [device for ids in again.held().values() for device in ids]
        assert len(taken) == len(set(taken))


def test_after_a_kill_a_deleted_pod_that_goes_on_keeps_its_devices(server: LocalApiServer, tmp_path: Path) -> None:
    store = MemoryStore()
    with ClusterNode(server, tmp_path, store) as node:
        bound(node, a_pod("slow", 4, stop_after="100s"), slow="Running")
        node.server.delete("Pod", "slow", grace=200)
        node.run_until(lambda: node.pods.objects[0]["metadata"].get("deletionTimestamp"))
    with ClusterNode(server, tmp_path, store) as again:
        bound(again, a_pod("other", 1), slow="Running", other="Failed")
        again.server.delete("Pod", "slow", grace=0)
        again.run_until(lambda: not again.held())


def test_after_a_kill_a_pod_keeps_its_devices_before_its_plugin_is_back(server: LocalApiServer, tmp_path: Path) -> None:
    store = MemoryStore()
    with ClusterNode(server, tmp_path, store) as node:
        bound(node, a_pod("a", 2), a_pod("ends", 1, run_for="0.5s"), a="Running", ends="Running")
        held = node.held()
    again = ClusterNode(server, tmp_path, store)
    again.engine.start()
    with again.writer, again.watch:
        again.run_until(again.pods.sources_ready)
        assert again.held() == held
        again.run_until(is_shown(again, a="Running", ends="Succeeded"))
    again.engine.stop()


def test_a_watch_that_keeps_being_refused_lists_again(node: ClusterNode) -> None:
    """A server, or a proxy in front of it, may refuse the version that the watch requests, with any status."""

    def asked() -> str:
        return " ".join(one.verb for one in node.server.requests if one.verb in ("list", "watch"))

    node.run_until(lambda: asked() == "list watch")
    node.server.inject(Answer(405, {"message": "no"}), verb="watch", times=2)
    node.server.cut_watches()  # cutting off the first watch counts as a failure
    node.run_until(lambda: asked().endswith("list watch watch watch list watch"))
    node.bind(a_pod("a"))
    node.run_until(lambda: node.phases() == {"a": "Running"})


@pytest.mark.parametrize(
    ("part", "odd"),
    [
        ("spec", {"activeDeadlineSeconds": "soon"}),
        ("spec", {"initContainers": [{"name": 1, "resources": []}]}),
        ("metadata", {"annotations": ["a"]}),
        ("metadata", {"deletionTimestamp": "9999-12-31T23:59:59-14:00", "deletionGracePeriodSeconds": "x"}),
        ("status", {"startTime": "0001-01-01T00:00:00+14:00", "containerStatuses": [{"state": []}]}),
    ],
)
def test_a_pod_that_cannot_be_understood_is_skipped_with_a_sentence(
    node: ClusterNode, caplog: pytest.LogCaptureFixture, part: str, odd: Json
) -> None:
    """The first invalid pod arrives in a list, the second in a watch. Other pods still run."""
    odd_pods = []
    for name in ("listed", "watched"):
        pod = {**a_pod(name), "status": {"phase": "Pending"}}
        pod["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "5", "namespace": "default"}
        pod["spec"]["nodeName"] = "node-1"
        pod[part] |= odd
        odd_pods.append(pod)
    listed, watched = odd_pods
    node.pods.listed([listed])
    node.watch._see("ADDED", watched)  # noqa: SLF001 - no server sends such a pod
    for _ in range(3):
        node.engine.poll()
        node.engine.advance()
    node.bind(a_pod("a"))
    node.run_until(lambda: node.phases() == {"a": "Running"})
    assert "Traceback" not in caplog.text


def test_a_watch_that_a_busy_server_ends_after_an_event_goes_on_at_once(tmp_path: Path) -> None:
    """If the client waited before the next watch, the wait of 600 s would exceed the time limit of this test."""
    names: list[str] = []

    class Names(ObjectHandler):
        def wants(self, found: Json) -> bool:
            return bool(found)

        def listed(self, objects: Sequence[Json]) -> None:
            assert not objects

        def seen(self, _kind: str, found: Json) -> None:
            names.append(found["metadata"]["name"])

    with LocalApiServer() as server:
        for number in range(3):
            metadata = {"name": f"pod-{number}", "uid": f"uid-{number}", "resourceVersion": "9"}
            event = {"type": "ADDED", "object": {"metadata": metadata, "spec": {"containers": []}}}
            server.inject(Answer(200, json.dumps(event) + "\n"), verb="watch")
        access = Access(server.kubeconfig(tmp_path / "kubeconfig"))
        with KubeApiWatch(PODS, Names(), access, {}, Backoff(600.0, 600.0)):
            server.wait_for(lambda: [one.verb for one in server.requests].count("watch") == 4)
    assert names == ["pod-0", "pod-1", "pod-2"]


def test_what_the_pods_of_a_controller_have_alike_is_kept_once() -> None:
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    first, second = (
        reduced({**a_pod(name), "status": {"phase": "Running", "conditions": [condition]}}) for name in ("a", "b")
    )
    assert first["spec"]["containers"] is second["spec"]["containers"]
    assert first["status"]["conditions"] is second["status"]["conditions"]
    assert first["metadata"]["name"] != second["metadata"]["name"]


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        ({"uid": "a", "name": "a", "namespace": "train"}, {}),
        ({"uid": "b", "name": "b"}, {}),
        (
            {"uid": "c", "name": "c", "namespace": "train"},
            {"resourceClaimStatuses": [{"name": "nic", "resourceClaimName": "nic-1"}]},
        ),
        ({"uid": "", "name": "d", "namespace": "train"}, {}),
    ],
)
def test_a_pod_is_parsed_the_same_if_another_has_its_spec(metadata: Json, status: Json) -> None:
    spec = {
        "containers": [{"name": "main", "resources": {"limits": {GPU: "2", "cpu": "500m"}}}],
        "initContainers": [{"name": "first"}, {"name": "side", "restartPolicy": "Always"}],
        "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}],
    }
    pod = reduced({"metadata": metadata, "spec": spec, "status": status})
    try:
        alone, problem = pod_of(pod), None
    except DocumentError as error:
        alone, problem = None, error.problem
    for _ in range(2):
        record = PodRecord(reduced({"metadata": metadata, "spec": spec, "status": status}))
        record.next_step(0.0, datetime.now(UTC))
        assert record.pod == alone
        assert (record.problem and record.problem.problem) == problem
