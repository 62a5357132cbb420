"""`devicecore kubelet` as a node of a cluster: a process that is killed and started again, its Node and its Lease."""

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from devicecore_fleet.cluster.process import Process
from devicecore_fleet.cluster.registration import RegisteredNode
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.topology import TOPOLOGIES
from devicecore_fleet.cluster.words.nodes import NodeDescription, node_object
from devicecore_fleet.cluster.writer import ApiWriter
from devicecore_tools.node.settings import TAINT
from devicecore_tools.testing.api_server import LocalApiServer
from devicecore_tools.testing.api_server.faults import Answer
from tests.cluster.cluster_node import GPU, NODE, PATIENCE, SOON, Json, a_pod
from tests.cluster.jobs import Jobs
from tests.forks import Fork

from devicecore import NodeStatus, ResourceName
from devicecore.adapters.file import CHECKPOINT_NAME
from devicecore.adapters.grpc_unix import serve_plugin
from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.http import MAX_ANSWER
from devicecore.adapters.kube_api.requests import LEASES, NODES, SLICES
from devicecore.domain.checkpoint import decode
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices


@pytest.fixture
def server() -> Iterator[LocalApiServer]:
    with LocalApiServer(users={"token": f"system:node:{NODE}"}) as server:
        yield server


class Command:
    """A `devicecore kubelet` process. `kill` ends it at once, as the kernel does when memory runs out."""

    def __init__(self, server: LocalApiServer, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir(exist_ok=True)
        kubeconfig = server.kubeconfig(directory / "kubeconfig", {"token": "token"})
        options = ["--root", self.root, "--kubeconfig", kubeconfig, "--node-name", NODE, "--register-node"]
        with (directory / "log").open("a") as log:
            self.process = Fork(("kubelet", *map(str, options)), stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def held(self) -> dict[str, list[str]]:
        """Return each pod's devices in the checkpoint, by pod UID."""
        data = decode((self.root / "device-plugins" / CHECKPOINT_NAME).read_bytes()).verified()
        held = {one.pod_uid: (one.device_ids or {}).values() for one in data.entries or ()}
        return {pod: sorted(id_ for ids in by_numa for id_ in ids or ()) for pod, by_numa in held.items()}


def test_a_node_killed_twice_doubles_no_device(server: LocalApiServer, directory: Path) -> None:
    """After the first kill, a pod is bound; after the second, a pod is deleted. Every status is correct in the end."""

    def phases() -> dict[str, str]:
        return {one["metadata"]["name"]: one["status"]["phase"] for one in server.objects("Pod")}

    def bind(*pods: Json) -> None:
        for pod in pods:
            server.create(pod)
            server.bind(pod["metadata"]["name"], NODE)

    def capacity() -> bool:
        nodes = server.objects("Node")
        return bool(nodes) and nodes[0]["status"]["capacity"].get(GPU) == "4"

    command = Command(server, directory)
    server.wait_for(lambda: server.objects("Node"))
    plugin = SimulatedPlugin(GPU, simulated_devices("gpu", 4, numa_nodes=[0]))
    with serve_plugin(plugin, command.root / "device-plugins"):
        server.wait_for(capacity)
        bind(a_pod("a", 1), a_pod("c", 1), a_pod("d", 1), a_pod("ends", 1, run_for="1s"))
        server.wait_for(lambda: set(phases().values()) == {"Running"})
        command.kill()
        bind(a_pod("too-large", 5))
        command = Command(server, directory)
        server.wait_for(lambda: "ends" in phases() and phases()["ends"] == "Succeeded")
        command.kill()
        server.delete("Pod", "c")
        command = Command(server, directory)
        expected = {"a": "Running", "d": "Running", "ends": "Succeeded", "too-large": "Failed"}
        server.wait_for(lambda: phases() == expected)
        shown = {
            pod["metadata"]["uid"]: [one["resourceID"] for one in status["allocatedResourcesStatus"][0]["resources"]]
            for pod in server.objects("Pod")
            if pod["status"]["phase"] == "Running"
            for status in pod["status"]["containerStatuses"]
        }
        assert len({device for devices in shown.values() for device in devices}) == len(shown) == 2
        command.process.terminate()
        assert command.process.wait(10) == 0
    assert command.held() == shown
    (lease,) = server.objects("Lease")
    assert lease["spec"]["leaseDurationSeconds"] == 40
    assert lease["metadata"]["ownerReferences"][0]["uid"] == server.get("Node", NODE)["metadata"]["uid"]
    keys = [taint["key"] for taint in server.get("Node", NODE)["spec"]["taints"]]
    assert "devicecore.io/virtual" in keys


def test_the_node_of_a_machine_is_refused_and_left_as_it_is(server: LocalApiServer, directory: Path) -> None:
    """The API server has a Node with this name that devicecore did not create, and a pod is bound to it."""
    server.create({"kind": "Node", "metadata": {"name": NODE}, "status": {"capacity": {GPU: "4"}}})
    server.create(a_pod("database"))
    server.bind("database", NODE)
    before = server.objects("Node") + server.objects("Pod")
    command = Command(server, directory)
    assert command.process.wait(60) == 2
    said = f"devicecore kubelet: node {NODE} is refused: it exists and devicecore did not create it"
    assert said in (directory / "log").read_text()
    assert server.objects("Node") + server.objects("Pod") == before
    assert not server.objects("Lease")


def wait_for_end(writer: ApiWriter) -> None:
    """Wait until every job is done."""
    end = time.monotonic() + PATIENCE
    while writer.waiting and time.monotonic() < end:
        time.sleep(0.005)
    assert not writer.waiting, writer.problem


def test_a_node_is_registered_renewed_and_not_made_again(server: LocalApiServer, tmp_path: Path) -> None:
    resource = ResourceName(GPU)
    times = [datetime(2026, 1, 1, tzinfo=UTC)]
    requests = KubeApiRequests(Access(server.kubeconfig(tmp_path / "kubeconfig", {"token": "token"})))
    description = NodeDescription(NODE, {"cpu": "2", "memory": "1Gi", "pods": "110"})
    server.inject(Answer(500), verb="create", resource="nodes", times=2)
    server.inject(Answer(500), verb="create", resource="leases", times=2)
    with ApiWriter(requests, backoff=SOON) as writer:
        node = RegisteredNode(description, writer, lambda: times[-1])
        node.tick()
        server.wait_for(lambda: server.objects("Lease"))
        wait_for_end(writer)

        def tick(seconds: float) -> list[str]:
            begun = len(server.requests)
            times.append(times[-1] + timedelta(seconds=seconds))
            node.tick()
            wait_for_end(writer)
            return [f"{request.verb} {request.resource}" for request in server.requests[begun:]]

        assert tick(10) == ["update leases"]
        node.publish(NodeStatus({resource: 4}, {resource: 3}))
        wait_for_end(writer)
        assert server.get("Node", NODE)["status"]["allocatable"][GPU] == "3"
        node.publish(NodeStatus({}, {}, (resource,)))
        server.wait_for(lambda: server.get("Node", NODE)["status"]["capacity"][GPU] == "0")
        server.change(
            "Node", NODE, lambda node: node["status"]["capacity"].update(cpu="1")
        )  # the node does not watch its Node, so only a read shows this change
        asked = [request for _ in range(30) for request in tick(10)]
        assert sorted(asked) == ["get nodes", "patch nodes/status", *["update leases"] * 30]
        assert server.get("Node", NODE)["status"]["capacity"]["cpu"] == "2"
        server.change("Lease", NODE, lambda lease: lease["spec"].update(leaseDurationSeconds=1), "kube-node-lease")
        assert tick(10) == ["update leases", "get leases", "update leases"]

        def lose(node: Json) -> None:  # as the node lifecycle controller does
            for one in node["status"]["conditions"]:
                one["status"] = "Unknown"

        assert tick(61) == ["update leases"], "a late Lease costs no further requests"
        for sent in ("at once", "at the next tick"):
            server.change("Node", NODE, lose)
            node.seen(server.get("Node", NODE))
            wait_for_end(writer)
            (ready,) = (one for one in server.get("Node", NODE)["status"]["conditions"] if one["type"] == "Ready")
            assert ready["status"] == ("True" if sent == "at once" else "Unknown")
        assert sorted(tick(10)) == ["patch nodes/status", "update leases"]
        assert tick(10) == ["update leases"]

        server.delete("Node", NODE)
        server.delete("Lease", NODE, "kube-node-lease")
        assert tick(10) == ["update leases", "get leases", "get nodes"]
        assert str(node.problem).endswith(': there is no such object (nodes "node-1" not found)')
        assert [tick(seconds) for seconds in (10, 10, 10, 40)] == [["get nodes"], [], [], ["get nodes"]]
        assert not server.objects("Node") + server.objects("Lease")
        server.create(node_object(description, times[-1]))
        tick(60)
        tick(10)
        assert node.problem is None
        assert server.get("Lease", NODE, "kube-node-lease")["metadata"]["ownerReferences"][0]["uid"] == node.uid


@pytest.mark.parametrize(
    ("status", "lines"),
    [(401, ["cannot write to the API server: unauthorized"]), (403, ["permission to 'get nodes'"])],
)
def test_what_every_request_meets_is_logged_at_most_once_a_minute(
    server: LocalApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int, lines: list[str]
) -> None:
    server.inject(Answer(status, {"message": "no"}), times=None)
    requests = KubeApiRequests(Access(server.kubeconfig(tmp_path / "kubeconfig", {"token": "token"})))
    passed = [0.0]
    with ApiWriter(requests, threads=1, backoff=SOON, clock=lambda: time.monotonic() + sum(passed)) as writer:
        for name in ("node-0", "node-1", "node-2"):  # 40 seconds apart
            RegisteredNode(NodeDescription(name, {"cpu": "2"}), writer).tick()
            server.wait_for(lambda: sum(one.path.endswith(name) for one in server.requests) > 2)  # noqa: B023 - called now
            passed.append(40.0)
        # The permission may be granted at any time, so its absence is reported only after ten seconds. A message that
        # the clock is 40 s ahead may also be logged.
        server.wait_for(lambda: errors(caplog))
    for line, said in zip(lines, errors(caplog), strict=True):
        assert line in said


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]


def test_only_an_api_server_can_say_that_there_is_no_node(tmp_path: Path) -> None:
    with LocalApiServer() as server, KubeApiRequests(Access(server.kubeconfig(tmp_path / "kubeconfig"))) as requests:
        assert requests.find(NODES, NODE) is requests.find(LEASES, NODE, "kube-node-lease") is None
        page = Answer(404, "404 page not found")
        server.inject(Answer(404, {"reason": "NoRoute"}), page, page)
        for _ in range(2):
            with pytest.raises(RequestError):
                requests.find(NODES, NODE)
        assert requests.find(TOPOLOGIES, NODE) is None


def test_the_objects_of_a_large_cluster_are_listed_in_smaller_pages(tmp_path: Path) -> None:
    def page(token: str, *names: str) -> Answer:
        metadata = {"resourceVersion": "7", "continue": token}
        return Answer(200, {"metadata": metadata, "items": [{"n": one} for one in names]})

    with LocalApiServer() as server, KubeApiRequests(Access(server.kubeconfig(tmp_path / "kubeconfig"))) as requests:
        server.inject(page("x", "a"), Answer(200, " " * (MAX_ANSWER + 1)), page("y", "b"), page("", "c"))
        assert [one["n"] for one in requests.list(SLICES)] == ["a", "b", "c"]
        asked = [(one.query["limit"], one.query.get("continue")) for one in server.requests]
    assert asked == [("500", None), ("500", "x"), ("250", "x"), ("250", "y")]


class Two:
    """One or two processes, each with a node of the same name, and a clock that they share."""

    def __init__(
        self, server: LocalApiServer, stack: ExitStack, directory: Path, *processes: Process, adopts: bool = False
    ) -> None:
        self.server = server
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        access = Access(server.kubeconfig(directory / "kubeconfig", {"token": "token"}))
        self.requests = stack.enter_context(KubeApiRequests(access))
        self.jobs = [Jobs() for _ in processes]
        self.nodes = [
            RegisteredNode(NodeDescription(NODE, {"cpu": "2"}, adopts=adopts), jobs, lambda: self.now, process=process)
            for jobs, process in zip(self.jobs, processes, strict=True)
        ]

    def tick(self, number: int) -> RegisteredNode:
        """Make one of the nodes tick, and send the requests that it has queued."""
        self.nodes[number].tick()
        self.jobs[number].run(self.requests)
        return self.nodes[number]

    def holder(self) -> str:
        (lease,) = self.server.objects("Lease")
        return str(lease["spec"].get("holderIdentity"))


def test_a_second_process_of_one_name_is_refused_when_the_first_renews_its_lease(
    server: LocalApiServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        two = Two(server, stack, tmp_path, Process("a"), Process("b"))
        assert two.tick(0).is_ours
        before = server.objects("Node") + server.objects("Lease")
        second = two.tick(1)
        assert not second.is_ours
        assert second.refusal is None
        assert f"its Lease is held by devicecore/{NODE}/a, another devicecore process" in str(second.problem)
        assert server.objects("Node") + server.objects("Lease") == before
        two.now += timedelta(seconds=10)
        two.tick(0)
        assert two.tick(1).refusal
        assert two.holder() == f"devicecore/{NODE}/a"
        two.now += timedelta(seconds=60)
        two.tick(1)
        assert not second.is_ours, "a refused node stays refused until it restarts"
        assert two.tick(0).is_ours


def test_a_second_process_takes_over_an_expired_lease_and_the_first_gives_way(
    server: LocalApiServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        two = Two(server, stack, tmp_path, Process("a"), Process("b"))
        two.tick(0)
        second = two.tick(1)
        two.now += timedelta(seconds=39)
        assert two.tick(1).node
        assert second.uid is None
        two.now += timedelta(seconds=2)
        assert two.tick(1).is_ours
        assert two.holder() == f"devicecore/{NODE}/b"
        assert "is held by devicecore/node-1/b, another devicecore process" in str(two.tick(0).refusal)
        assert two.holder() == f"devicecore/{NODE}/b"


def test_a_node_that_was_adopted_is_left_alone_when_its_kubelet_lives(server: LocalApiServer, tmp_path: Path) -> None:
    server.create({"kind": "Node", "metadata": {"name": NODE}})
    spec = {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}
    metadata = {"name": NODE, "namespace": "kube-node-lease"}
    server.create({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": spec})
    with ExitStack() as stack:
        node = Two(server, stack, tmp_path, Process("a"), adopts=True)
        assert node.tick(0).is_ours
        assert node.holder() == f"devicecore/{NODE}/a"
        server.change("Lease", NODE, lambda lease: lease["spec"].update(spec), "kube-node-lease")
        assert "its Lease is held by node-1, as if by a kubelet" in str(node.tick(0).refusal)
        assert node.holder() == NODE


def test_a_process_knows_at_once_whether_the_one_before_it_has_ended(server: LocalApiServer, tmp_path: Path) -> None:
    """A process on this machine is checked by its id. On any machine, a process has ended if we now hold its lock."""
    machine, _, started = Process().identity.split(".")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        stat = Path(f"/proc/{other.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        lives, reused = (f"{machine}.{other.pid}.{time}" for time in (stat[19], started))
        known = [Process().has_ended(one) for one in (lives, reused, "elsewhere", "elsewhere.1.2")]
        assert known == [False, True, None, None]
        with ExitStack() as stack:
            assert Two(server, stack, tmp_path, Process(lives)).tick(0).is_ours
            second = Two(server, stack, tmp_path, Process("b")).tick(0)
            assert "another devicecore process" in str(second.refusal)
        other.communicate()
    for process in (Process("c"), Process("d", frozenset("c"))):
        with ExitStack() as stack:
            assert Two(server, stack, tmp_path, process).tick(0).is_ours


def test_a_node_that_was_there_keeps_what_others_have_changed(
    server: LocalApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = [{"type": "InternalIP", "address": address} for address in ("10.0.0.1", "fd00::1")]
    labels = {"a": "theirs", "kubernetes.io/os": "other"}
    server.create({"kind": "Node", "metadata": {"name": NODE, "labels": labels}, "status": {"addresses": addresses}})
    description = NodeDescription(NODE, {"cpu": "2"}, labels={"a": "ours", "b": "ours"}, taints=(TAINT,), adopts=True)
    requests = KubeApiRequests(Access(server.kubeconfig(tmp_path / "kubeconfig", {"token": "token"})))
    with ApiWriter(requests, backoff=SOON) as writer:
        RegisteredNode(description, writer).tick()
        wait_for_end(writer)
    node = server.get("Node", NODE)
    assert node["metadata"]["labels"].items() >= {"a": "theirs", "b": "ours", "kubernetes.io/os": "linux"}.items()
    assert node["status"]["addresses"] == [{"type": "Hostname", "address": NODE}, *addresses]
    assert "already existed without the taint devicecore.io/virtual" in caplog.text
