"""The pod-resources API over a real socket, against the kubelet's rules (kubelet.md 10)."""

import os
import socket
import stat
import threading
from pathlib import Path

import grpc
import pytest

from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.adapters.pod_resources import (
    PodResourcesClient,
    PodResourcesError,
    PodResourcesServer,
    Snapshot,
    server,
)
from devicecore.domain.admission import Admitted
from devicecore.domain.errors import DirectoryError, DirectoryInUseError, SocketPathTooLongError
from devicecore.domain.model import Container, Device, DeviceId, Health, NumaNode, Pod, PodUid
from devicecore.manager import DeviceManager
from devicecore.plugins.simulated import SimulatedPlugin
from devicecore.wire import podresources, podresources_v1alpha1
from tests.adapters.peers import flood_of_pings

GPU, NIC = "acme.io/gpu", "acme.io/nic"
BURST = 10
PATIENCE = 60.0
"""Seconds after which a test stops waiting for something that should happen at once."""

Element = tuple[str, str, int | None]


def device(id_: str, *nodes: int, topology: bool = True, health: Health = Health.HEALTHY) -> Device:
    return Device(DeviceId(id_), health, tuple(map(NumaNode, nodes)) if topology else None)


def pod(name: str, *containers: Container, init: tuple[Container, ...] = (), namespace: str = "default") -> Pod:
    return Pod(PodUid(f"uid-{name}"), name=name, namespace=namespace, containers=containers, init_containers=init)


def elements(devices: "list[podresources.ContainerDevices]") -> list[Element]:
    """Return the resource, device and NUMA node (if any) of each element."""
    found: list[Element] = []
    for one in devices:
        (id_,) = one.device_ids
        nodes = [node.ID for node in one.topology.nodes]
        assert one.HasField("topology") == (len(nodes) == 1)
        found.append((one.resource_name, id_, nodes[0] if nodes else None))
    return found


class Stage:
    """A manager in memory, and a server of the API with the manager's state."""

    def __init__(self, directory: Path) -> None:
        self.transport = MemoryTransport()
        self.manager = DeviceManager(self.transport, MemoryStore(), MemorySink())
        self.manager.start()
        self.pods: list[Pod] = []
        self.swept = 0
        self.calls: list[tuple[str, str, bool]] = []
        self.now = 0.0
        self.server = PodResourcesServer(
            directory / "pod-resources" / "kubelet.sock",
            lambda: Snapshot(self.manager.state, tuple(self.pods)),
            sweep=self.sweep,
            observe=lambda *call: self.calls.append(call),
            clock=lambda: self.now,
        )

    def sweep(self) -> None:
        self.swept += 1

    def admit(self, pod: Pod) -> None:
        assert isinstance(self.manager.admit(pod), Admitted)
        self.pods.append(pod)


@pytest.fixture
def stage(directory: Path) -> Stage:
    return Stage(directory)


@pytest.fixture
def client(stage: Stage) -> PodResourcesClient:
    return PodResourcesClient(stage.server.socket, timeout=PATIENCE)


def test_every_device_is_listed_once_for_each_numa_node(stage: Stage, client: PodResourcesClient) -> None:
    gpus = [device("gpu-0", 0), device("gpu-1", 0, 1), device("gpu-2", topology=False), device("gpu-3")]
    stage.transport.connect(SimulatedPlugin(GPU, gpus))
    stage.transport.connect(SimulatedPlugin(NIC, [device("nic-0", 7)]))
    stage.admit(pod("train", Container("main", {GPU: 4, NIC: 1}), Container("idle")))
    with stage.server, client:
        (listed,) = client.list().pod_resources
        assert (listed.name, listed.namespace) == ("train", "default")
        main, idle = listed.containers
        assert elements(list(main.devices)) == [
            (GPU, "gpu-0", 0),
            (GPU, "gpu-1", 0),
            (GPU, "gpu-1", 1),
            (GPU, "gpu-2", None),
            (GPU, "gpu-3", None),  # the manager stores no node, as for a device without topology
            (NIC, "nic-0", 7),
        ]
        assert (idle.name, list(idle.devices)) == ("idle", [])
        allocatable = client.get_allocatable_resources()
        assert elements(list(allocatable.devices)) == [
            (GPU, "gpu-0", 0),
            (GPU, "gpu-1", 0),
            (GPU, "gpu-1", 1),
            (GPU, "gpu-2", None),  # gpu-3, whose topology has no nodes, is left out
            (NIC, "nic-0", 7),
        ]


def test_sidecars_are_listed_and_init_containers_that_end_are_not(stage: Stage, client: PodResourcesClient) -> None:
    stage.transport.connect(SimulatedPlugin(GPU, [device(f"gpu-{n}") for n in range(4)]))
    init = (Container("setup", {GPU: 1}), Container("proxy", {GPU: 1}, restartable=True))
    stage.admit(pod("train", Container("main", {GPU: 1}), init=init))
    with stage.server, client:
        containers = client.list().pod_resources[0].containers
        assert [container.name for container in containers] == ["proxy", "main"]
        assert client.get("train").pod_resources.containers == containers


def test_held_devices_are_listed_in_any_health_and_allocatable_ones_are_healthy(
    stage: Stage, client: PodResourcesClient
) -> None:
    plugin = SimulatedPlugin(GPU, [device("gpu-0"), device("gpu-1"), device("gpu-2", health=Health.UNHEALTHY)])
    connection = stage.transport.connect(plugin)
    stage.admit(pod("train", Container("main", {GPU: 1})))
    with stage.server, client:
        plugin.set_devices([device("gpu-0", 1, health=Health.UNHEALTHY), device("gpu-1", 1)])
        held = client.list().pod_resources[0].containers[0].devices
        assert elements(list(held)) == [(GPU, "gpu-0", None)]  # the topology at the time of the allocation
        assert elements(list(client.get_allocatable_resources().devices)) == [(GPU, "gpu-1", 1)]
        connection.disconnect()
        assert list(client.get_allocatable_resources().devices) == []
        assert client.list().pod_resources[0].containers[0].devices == held


def test_a_list_does_not_wait_for_a_sweep_that_hangs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_SWEEP", 0.01)
    stage, end = Stage(directory), threading.Event()
    monkeypatch.setattr(stage.server, "_sweep", end.wait)
    with stage.server, PodResourcesClient(stage.server.socket, timeout=PATIENCE) as client:
        assert not client.list().pod_resources
        assert not client.list_v1alpha1().pod_resources
    end.set()
    stage.manager.stop()


def test_pods_are_swept_before_a_list_and_not_before_a_get(stage: Stage, client: PodResourcesClient) -> None:
    stage.admit(pod("train", Container("main")))
    with stage.server, client:
        assert client.get("train").pod_resources.name == "train"
        assert stage.swept == 0
        client.list()
        assert stage.swept == 1


def test_a_missing_pod_is_an_error_with_the_kubelets_message(stage: Stage, client: PodResourcesClient) -> None:
    stage.admit(pod("train", Container("main"), namespace="prod"))
    with stage.server, client:
        for name, namespace in [("train", "default"), ("other", "prod")]:
            with pytest.raises(PodResourcesError) as failed:
                client.get(name, namespace)
            error = failed.value
            assert (error.code, error.cause) == ("UNKNOWN", f"pod {name} in namespace {namespace} not found")
        assert client.get("train", "prod").pod_resources.namespace == "prod"
    assert stage.calls == [("Get", "v1", True), ("Get", "v1", True), ("Get", "v1", False)]


def test_the_older_api_is_served_too(stage: Stage) -> None:
    stage.transport.connect(SimulatedPlugin(GPU, [device("gpu-0"), device("gpu-1", 0, 1)]))
    sidecar = Container("proxy", {GPU: 1}, restartable=True)  # v1alpha1 does not list sidecars
    stage.admit(pod("train", Container("main", {GPU: 1}), init=(sidecar,)))
    with stage.server, grpc.insecure_channel(f"unix:{stage.server.socket}") as channel:
        call = channel.unary_unary(
            "/v1alpha1.PodResourcesLister/List",
            podresources_v1alpha1.ListPodResourcesRequest.SerializeToString,
            podresources_v1alpha1.ListPodResourcesResponse.FromString,
        )
        (listed,) = call(podresources_v1alpha1.ListPodResourcesRequest(), timeout=PATIENCE).pod_resources
    (main,) = listed.containers
    assert [(held.resource_name, list(held.device_ids)) for held in main.devices] == 2 * [(GPU, ["gpu-1"])]
    assert stage.calls == [("List", "v1alpha1", False)]


def test_more_calls_than_the_burst_are_rejected_until_the_clock_goes_on(stage: Stage) -> None:
    with stage.server, PodResourcesClient(stage.server.socket, timeout=0) as impatient:
        with PodResourcesClient(stage.server.socket) as client:
            for _ in range(BURST):
                client.list()
        with grpc.insecure_channel(f"unix:{stage.server.socket}") as channel:
            call = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                podresources.ListPodResourcesRequest.SerializeToString,
                podresources.ListPodResourcesResponse.FromString,
            )
            with pytest.raises(grpc.RpcError) as rejected:
                call(podresources.ListPodResourcesRequest(), timeout=PATIENCE)
            assert rejected.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert rejected.value.details() == "rejected by rate limit"
            stage.now += 0.0101  # enough time for one more call
            call(podresources.ListPodResourcesRequest(), timeout=PATIENCE)
        with pytest.raises(PodResourcesError):
            impatient.list()
    assert len(stage.calls) == BURST + 1  # a rejected call is not counted


def test_the_client_tries_again_when_it_is_rejected(stage: Stage, client: PodResourcesClient) -> None:
    with stage.server, client:
        for _ in range(BURST):
            client.list()
        timer = threading.Timer(0.1, lambda: setattr(stage, "now", 1.0))
        timer.start()
        client.list()
        timer.join()


def test_the_client_waits_for_the_socket_and_survives_a_restart(stage: Stage, client: PodResourcesClient) -> None:
    answers: list[podresources.ListPodResourcesResponse] = []
    with client:
        waiting = threading.Thread(target=lambda: answers.append(client.list()))
        waiting.start()
        with stage.server:
            waiting.join()
        assert not stage.server.socket.exists()
        with stage.server:
            answers.append(client.list())
    assert len(answers) == 2


def test_a_server_that_sends_ping_without_end_holds_up_neither_a_call_nor_the_end(directory: Path) -> None:
    with flood_of_pings(directory / "s"):
        with PodResourcesClient(directory / "s", timeout=0.3) as client, pytest.raises(PodResourcesError) as late:
            client.list()
        assert late.value.code == "DEADLINE_EXCEEDED"


def test_the_client_gives_up_when_its_time_is_over(directory: Path) -> None:
    with PodResourcesClient(directory / "nobody.sock", timeout=0.1) as client, pytest.raises(PodResourcesError) as late:
        client.list()
    assert late.value.code in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
    assert late.value.socket == str(directory / "nobody.sock")


def test_a_call_that_fails_does_not_affect_the_next_one(directory: Path) -> None:
    attempts: list[int] = []

    def look() -> Snapshot:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("not now")
        return Snapshot(DeviceManager(MemoryTransport(), MemoryStore(), MemorySink()).state, ())

    server = PodResourcesServer(directory / "kubelet.sock", look)
    with server, PodResourcesClient(server.socket) as client:
        with pytest.raises(PodResourcesError, match="not now"):
            client.list()
        assert list(client.list().pod_resources) == []


def left_by_a_dead_server(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_a_socket_is_replaced_only_if_no_process_serves_it(stage: Stage, directory: Path) -> None:
    (directory / "pod-resources").mkdir()
    left_by_a_dead_server(stage.server.socket)
    with stage.server, pytest.raises(DirectoryInUseError):
        Stage(directory).server.start()
    stage.server.stop()  # calling it twice is not an error


def test_a_directory_may_have_any_name(directory: Path) -> None:
    """The directory's name does not have to be UTF-8."""
    stage = Stage(directory / os.fsdecode(b"\xff %\xe9"))
    stage.server.socket.parent.parent.mkdir()
    with stage.server, PodResourcesClient(stage.server.socket, timeout=PATIENCE) as client:
        assert list(client.list().pod_resources) == []


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("x" * 100 + "/kubelet.sock", SocketPathTooLongError),
        ("missing/pod-resources/kubelet.sock", DirectoryError),
        ("file/kubelet.sock", DirectoryError),
        ("file", DirectoryError),
    ],
)
def test_a_path_that_cannot_be_served_is_refused(directory: Path, place: str, error: type[Exception]) -> None:
    (directory / "file").touch()
    with pytest.raises(error):
        PodResourcesServer(directory / place, lambda: pytest.fail("nobody asks")).start()
    assert stat.S_ISREG((directory / "file").stat().st_mode)


def test_a_start_that_gets_no_thread_fails_and_works_later(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gRPC server without its thread never says that it has stopped."""

    def refuse(_: object) -> None:
        problem = "can't start new thread"
        raise RuntimeError(problem)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(DirectoryError, match="can't start new thread"):
            stage.server.start()
    stage.server.start()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    stage.server.stop()
