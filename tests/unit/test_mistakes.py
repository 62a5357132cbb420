"""Mistakes by authors of programs, plugins and drivers: each one is reported in one sentence, where it is made."""

import errno
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.testing.api_server import LocalApiServer
from devicecore_tools.testing.dra_kubelet import MemoryDraKubelet
from devicecore_tools.testing.kubelet import MemoryKubelet
from devicecore_tools.testing.process import CannotRunError, PluginProcess
from devicecore_tools.testing.temporary import short_directory

import devicecore
from devicecore import (
    _ELSEWHERE,
    Admitted,
    Container,
    ContainerAllocateResponse,
    ContainerClaim,
    DeviceManager,
    DevicePlugin,
    Health,
    Mount,
    NodeStatus,
    Pod,
    PodClaim,
    PodUid,
    Refused,
    Topology,
    allocated_resources_status,
    resource_name,
)
from devicecore.adapters.cel import CelSelectors
from devicecore.adapters.file import FileStore, JsonFileSink
from devicecore.adapters.grpc_unix import GrpcUnixTransport, PluginLimits
from devicecore.adapters.grpc_unix.dra import serve_driver
from devicecore.adapters.kube_api import Access, KubeApiSink, Pace
from devicecore.adapters.kube_api.dra import KubeApiClaims
from devicecore.adapters.memory import MemoryMetrics, MemoryPods, MemorySink, MemoryStore, MemoryTransport
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDriverTransport
from devicecore.adapters.pod_resources import PodResourcesClient, PodResourcesError
from devicecore.adapters.prometheus import PrometheusMetrics
from devicecore.domain.admission import Verdict
from devicecore.domain.allocation import TargetNode, allocate, claim_of, reading
from devicecore.domain.checkpoint import decode
from devicecore.domain.device_list import DeviceList
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.dra.errors import ClaimInfoError, DriverCallError
from devicecore.domain.dra.model import DriverConfig
from devicecore.domain.dra.slices import DevicePool
from devicecore.domain.errors import (
    DeviceCoreError,
    DirectoryError,
    DocumentError,
    NotStartedError,
    PluginStoppedError,
    SetUpError,
    SinkError,
)
from devicecore.domain.objects import pod_of
from devicecore.dra import DraManager, PreparedDevice, PrepareResult, ReportedHealth, resource_claim_of
from devicecore.plugins import responses
from devicecore.plugins.cdi_driver import AlreadyRunningError, CdiDriver
from devicecore.plugins.directory import DirectoryPlugin
from devicecore.plugins.polling import PollingPlugin
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.plugins.simulated_driver import SimulatedDriver
from devicecore.system.sockets import check_socket_path
from devicecore.testing import faults
from devicecore.testing.faults import ManualClock, NeverAnswers, Script, Tears
from devicecore.wire import conversion, deviceplugin

GPU = resource_name("example.com/gpu")
API: Any = devicecore
"""The library, used by a caller without a type checker."""
RESPONSES: Any = responses
SIMULATED: Any = SimulatedPlugin
DRA: Any = DraManager
TRANSPORT: Any = MemoryDriverTransport
SERVE: Any = serve_driver
API_SET: Any = DeviceSet
DEVICES: Any = simulated_devices
STATUS: Any = allocated_resources_status
ANY_PODS: Any = MemoryPods
ANY_METRICS: Any = PrometheusMetrics
ANY_SINK: Any = KubeApiSink
ANY_ACCESS: Any = Access
ANY_PACE: Any = Pace
ANY_CLIENT: Any = PodResourcesClient
ANY_FAULTS: Any = faults
ANY_HEALTH: Any = ReportedHealth
ANY_PROCESS: Any = PluginProcess
ANY_TEXT: Any = "60"
ANY_NUMBER: Any = 7
ANY_FILE: Any = FileStore
ANY_LIMITS: Any = PluginLimits
ANY_GRPC: Any = GrpcUnixTransport
ANY_FOLDER: Any = DirectoryPlugin
ANY_DRIVER: Any = SimulatedDriver
POD: Any = Pod(PodUid("p"), containers=(Container("main", {GPU: 1}),))

DRA_GROUP = "resource.k8s.io"

Try = Callable[[], object]


@contextmanager
def running(plugin: object = None) -> Iterator[Any]:
    transport: Any = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(plugin or SimulatedPlugin(GPU))
        yield manager


class Polled(PollingPlugin):
    resource = GPU
    poll_interval: Any = "5s"

    def devices(self) -> tuple[()]:
        return ()

    def allocate(self, devices: object) -> ContainerAllocateResponse:
        del devices
        return ContainerAllocateResponse()


class Loads:
    """A store without two of its three methods."""

    def __repr__(self) -> str:
        return "<Loads>"

    def load(self) -> None:
        return None


def answer(**arguments: object) -> object:
    return API.ContainerAllocateResponse(**arguments)


def manager(*adapters: object, **arguments: object) -> object:
    return API.DeviceManager(*(adapters or (MemoryTransport(), MemoryStore(), MemorySink())), **arguments)


def dra_manager(*adapters: object, **arguments: object) -> Any:  # noqa: ANN401 - as `API`
    return DRA(*(adapters or (MemoryDriverTransport(), MemoryClaims(), MemoryStore())), **arguments)


PREPARE_RESULT: Any = PrepareResult
PREPARED: Any = PreparedDevice
CONFIG: Any = DriverConfig
POOL: Any = DevicePool
DEVICE = PREPARED("pool", "gpu-0")


class Driver:
    name = "gpu.example.com"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def prepare(self, claims: object) -> Any:  # noqa: ANN401 - as `API`
        return self.answer

    unprepare = prepare


async def asynchronous() -> None: ...


def ask_driver(answer: object) -> object:
    driver: Any = Driver(answer)
    transport = MemoryDriverTransport()
    transport.start(lambda _: None)
    try:
        return transport.prepare(transport.register(driver).id, ())
    except DriverCallError as error:
        raise TypeError(error.message) from error


def test_no_sentence_is_long_or_has_what_a_terminal_would_obey() -> None:
    with pytest.raises(TypeError) as refused:
        answer(envs={"A\x1b[31m" * 200: 1})
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 250


VALUES: list[tuple[Try, str]] = [
    (lambda: API.Device(7), "Device.id: expected str, got 7"),
    (lambda: API.Device(""), "Device.id: expected a non-empty string, got ''"),
    (lambda: API.Device("x", 1), "Device.health: expected Health, got 1"),
    (lambda: API.Device("x", None), "Device.health: expected Health, got None"),
    (lambda: API.Device("x", topology=0), "Device.topology: expected several values, such as a tuple, got 0"),
    (lambda: API.Device("x", topology="01"), "Device.topology: expected several values, such as a tuple, got '01'"),
    (lambda: API.Device("x", topology=("0",)), "Device.topology: expected int, got '0'"),
    (lambda: API.Container(None), "Container.name: expected str, got None"),
    (lambda: API.Container(""), "Container.name: expected a non-empty string, got ''"),
    (lambda: API.Container("c", [GPU]), "Container.limits: expected a mapping of resource names to counts, got ['exa"),
    (lambda: API.Container("c", {1: 1}), "Container.limits: expected str, got 1"),
    (lambda: API.Container("c", {GPU: True}), "limit of example.com/gpu: expected a whole number of at least 0, got T"),
    (lambda: API.Container("c", {GPU: 1.5}), "limit of example.com/gpu: expected a whole number of at least 0, got 1"),
    (lambda: API.Container("c", {GPU: -3}), "limit of example.com/gpu: expected a whole number of at least 0, got -3"),
    (lambda: API.Container("c", {GPU: "1"}), "limit of example.com/gpu: expected a whole number of at least 0, got"),
    (lambda: API.Container("c", {}, "Always"), "Container.restartable: expected bool, got 'Always'"),
    (lambda: API.Container("c", claims="gpu"), "Container.claims: expected several values, such as a tuple, got 'gpu'"),
    (lambda: API.Pod(7), "Pod.uid: expected str, got 7"),
    (lambda: API.Pod(""), "Pod.uid: expected a non-empty string, got ''"),
    (lambda: API.Pod("p", name=None), "Pod.name: expected str, got None"),
    (lambda: API.Pod("p", (Container("c"),)), "takes 2 positional arguments but 3 were given"),
    (lambda: API.Pod("p", containers=Container("c")), "Pod.containers: expected several values, such as a tuple, got "),
    (lambda: API.Pod("p", containers=["c"]), "Pod.containers: expected Container, got 'c'"),
    (
        lambda: Pod(PodUid("p"), containers=[Container("a")], init_containers=[Container("a")]),
        "Pod.containers: expected different names, got 'a' twice",
    ),
    (lambda: API.Pod("p", claims="gpu"), "Pod.claims: expected several values, such as a tuple, got 'gpu'"),
    (lambda: API.Pod("p", extended_claim="c"), "Pod.extended_claim: expected ExtendedClaim, got 'c'"),
    (lambda: API.Pod("p", generated_claims=["c"]), "Pod.generated_claims: expected Mapping, got ['c']"),
    (
        lambda: pod_of({"metadata": {"name": "n", "uid": "u"}, "spec": {"containers": [{"name": "a"}, {"name": "a"}]}}),
        "Pod: spec.containers: expected containers with different names, got a twice",
    ),
    (lambda: API.Topology(2), "Topology.numa_nodes: expected several values, such as a tuple, got 2"),
    (lambda: API.Topology(("0",)), "Topology.numa_nodes: expected int, got '0'"),
    (lambda: Topology(policy="restrict"), "Topology.policy: expected 'none' or 'best-effort' or 'restricted' or 'sing"),
    (lambda: Topology(scope="pods"), "Topology.scope: expected 'container' or 'pod', got 'pods'"),
    (lambda: resource_name("gpu"), 'the ResourceName "gpu" is invalid: expected a name such as example.com/gpu'),
    (lambda: API.resource_name(7), "resource_name: expected str, got 7"),
    (lambda: DeviceList.of(["gpu-0"]), "devices: expected Device, got 'gpu-0'"),  # type: ignore[list-item]  # the mistake
]

ANSWERS: list[tuple[Try, str]] = [
    (lambda: answer(envs={"A": 1}), "ContainerAllocateResponse.envs['A']: expected str, got 1"),
    (lambda: answer(envs={1: "A"}), "ContainerAllocateResponse.envs: expected names that are str, got 1"),
    (lambda: answer(envs=["A"]), "ContainerAllocateResponse.envs: expected a mapping of names to strings, got ['A']"),
    (lambda: answer(annotations={"A": None}), "ContainerAllocateResponse.annotations['A']: expected str, got None"),
    (lambda: answer(mounts=["/a"]), "ContainerAllocateResponse.mounts: expected Mount, got '/a'"),
    (lambda: answer(mounts=Mount("/a", "/b")), "ContainerAllocateResponse.mounts: expected several values, such as a "),
    (lambda: answer(devices=["/dev/a"]), "ContainerAllocateResponse.devices: expected DeviceSpec, got '/dev/a'"),
    (lambda: answer(cdi_devices="a.com/b=c"), "ContainerAllocateResponse.cdi_devices: expected several values, such a"),
    (lambda: API.DeviceSpec(1, 2), "DeviceSpec.container_path: expected str, got 1"),
    (lambda: API.DeviceSpec("/dev/a", 2), "DeviceSpec.host_path: expected str, got 2"),
    (lambda: API.DeviceSpec("dev/a", "/b"), "DeviceSpec.container_path: expected an absolute path, such as /dev/gpu0,"),
    (lambda: API.DeviceSpec("/dev/a", "dev/b"), "DeviceSpec.host_path: expected an absolute path, such as /dev/gpu0, "),
    (
        lambda: API.DeviceSpec("/a", "/b", "xyz"),
        "DeviceSpec.permissions: expected letters from r, w and m, got 'xyz'",
    ),
    (lambda: API.DeviceSpec("/a", "/b", ""), "DeviceSpec.permissions: expected letters from r, w and m, got ''"),
    (lambda: API.Mount("a", "/b"), "Mount.container_path: expected an absolute path, such as /dev/gpu0, got 'a'"),
    (lambda: API.Mount("/a", "b"), "Mount.host_path: expected an absolute path, such as /dev/gpu0, got 'b'"),
    (lambda: API.Mount("/a", "/b", "ro"), "Mount.read_only: expected bool, got 'ro'"),
    (lambda: API.PluginOptions("no"), "PluginOptions.pre_start_required: expected bool, got 'no'"),
    (
        lambda: API.PluginOptions(get_preferred_allocation_available="no"),
        "PluginOptions.get_preferred_allocation_available: expected bool, got 'no'",
    ),
    (lambda: RESPONSES.device_nodes(["a"], "dev"), "device_nodes: expected an absolute directory, such as /dev, got '"),
    (lambda: RESPONSES.device_nodes([], "/dev", "dev"), "device_nodes: expected an absolute directory, such as /dev, "),
    (
        lambda: RESPONSES.device_nodes("ttyUSB0"),
        "device_nodes: devices: expected several values, such as a tuple,",
    ),
    (lambda: RESPONSES.mounts(["a"], "/a", "b"), "mounts: expected an absolute directory, such as /dev, got 'b'"),
    (
        lambda: RESPONSES.environment_list("gpu-0"),
        "environment_list: devices: expected several values, such as a ",
    ),
    (
        lambda: RESPONSES.cdi_names("gpu-0", "a.com/b"),
        "cdi_names: devices: expected several values, such as a tuple",
    ),
    (lambda: RESPONSES.together([]), "together: expected ContainerAllocateResponse, got []"),
    (lambda: SIMULATED(GPU).set_health("gpu-0", "Bogus"), "SimulatedPlugin.set_health: expected Health, got 'Bogus'"),
    (lambda: SIMULATED(GPU, 4), "SimulatedPlugin.devices: expected several values, such as a tuple, got 4"),
    (
        lambda: DEVICES("gpu", 4, numa_nodes=2),
        "simulated_devices: numa_nodes: expected several values, such as a tuple",
    ),
    (lambda: DEVICES("gpu", 4, numa_nodes=["0"]), "simulated_devices: numa_nodes: expected int, got '0'"),
    (lambda: DEVICES("gpu", 4, unhealthy=3), "simulated_devices: unhealthy: expected several values, such as a tuple,"),
    (
        lambda: DEVICES("gpu", 4, numa_nodes=[0, -1]),
        "simulated_devices: numa_nodes: expected numbers of at least 0, got ",
    ),
    (lambda: DEVICES("gpu", 4, unhealthy=[4]), "simulated_devices: unhealthy: expected numbers from 0 to 3, got [4]"),
    (lambda: DEVICES("gpu", 4, unhealthy=["gpu-3"]), "simulated_devices: unhealthy: expected int, got 'gpu-3'"),
    (lambda: SIMULATED(GPU, ["gpu-0"]), "SimulatedPlugin.devices: expected Device, got 'gpu-0'"),
    (lambda: SimulatedPlugin("a/b/c"), 'the ResourceName "a/b/c" is invalid: expected a name such as example.com/gpu'),
]

MANAGERS: list[tuple[Try, str]] = [
    (lambda: manager(MemoryStore(), MemoryTransport(), MemorySink()), "DeviceManager: transport: expected a PluginTra"),
    (lambda: manager(MemoryTransport(), MemorySink(), MemoryStore()), "DeviceManager: store: expected a CheckpointSto"),
    (lambda: manager(MemoryTransport(), MemoryStore(), None), "DeviceManager: sink: expected a NodeStatusSink, got No"),
    (lambda: manager(MemoryTransport(), MemoryStore, MemorySink()), "DeviceManager: store: expected an instance of Me"),
    (
        lambda: manager(MemoryTransport(), Loads(), MemorySink()),
        "DeviceManager: store: expected a CheckpointStore, got <Loads>, which lacks the methods save, set_aside",
    ),
    (lambda: manager(pods=["p"]), "DeviceManager: pods: expected a PodSource, got ['p']"),
    (lambda: manager(metrics=MemoryMetrics), "DeviceManager: metrics: expected an instance of MemoryMetrics, not the "),
    (lambda: manager(topology="restricted"), "DeviceManager: topology: expected Topology, got 'restricted'"),
    (lambda: manager(hint_providers=[7]), "DeviceManager: hint_providers: expected a HintProvider, got 7"),
    (lambda: manager(observers=print), "observers: expected several values, such as a tuple, got <built-in function p"),
    (lambda: manager(observers=[Driver]), "observers: expected an instance of Driver, not the class, got <class"),
    (lambda: manager(observers=[lambda: None]), "observers: expected a function of one argument, the notification, g"),
    (lambda: manager(policy=lambda: None), "DeviceManager: policy: expected a function of one argument, the choice, "),
    (lambda: ANY_PODS(active=[POD]), "MemoryPods.active: expected str, got Pod("),
    (lambda: ANY_PODS(active="p"), "MemoryPods.active: expected several values, such as a tuple, got 'p'"),
    (lambda: ANY_PODS(running={"main"}), "MemoryPods.running: expected ContainerKey, got 'main'"),
    (lambda: ANY_METRICS().measured("file", MemoryStore()), "measured(store, file): store: expected a CheckpointStore"),
    (lambda: ANY_METRICS().measured(MemoryStore(), 5), "measured(store, file): file: expected str, got 5"),
    (lambda: ANY_SINK("n", Access(), strategy="put"), "KubeApiSink: strategy: expected 'strategic-merge' or 'apply', "),
    (lambda: ANY_ACCESS(timeout="10"), "Access.timeout: expected a number of seconds, got '10'"),
    (lambda: ANY_PACE(resync="300"), "Pace.resync: expected a number of seconds, got '300'"),
    (lambda: ANY_CLIENT("s", timeout="1"), "PodResourcesClient: timeout: expected a number of seconds, got '1'"),
    (lambda: ANY_FAULTS.Script().on("save", NeverAnswers), "Script: fault: expected an instance of NeverAnswers, not "),
    (lambda: ANY_FAULTS.Script().always("save", "no"), "Script: fault: expected a function, got 'no'"),
    (lambda: ANY_FAULTS.Script().on("save", nth="2"), "Script.on: nth: expected int, got '2'"),
    (lambda: ANY_FAULTS.FaultyStore(MemoryStore, Script()), "FaultyStore: the first argument: expected an instance o"),
    (lambda: ANY_FAULTS.FaultyStore(Script(), MemoryStore()), "FaultyStore: script: expected Script, got MemoryStore("),
    (lambda: ANY_FAULTS.TakesTime("5"), "TakesTime.seconds: expected a number of seconds, got '5'"),
    (lambda: ANY_HEALTH("n", "d", "Healthy"), "ReportedHealth.health: expected DraHealth, got 'Healthy'"),
    (lambda: Polled().subscribe(print), "Polled.poll_interval: expected a number of seconds, got '5s'"),
    (lambda: MemoryKubelet(timeout=ANY_TEXT), "MemoryKubelet: timeout: expected a number of seconds, got '60'"),
    (lambda: ANY_PROCESS(["sleep", 5], "/"), "command: expected a program and its arguments, each a string, got 5"),
    (lambda: ANY_PROCESS("sleep 5", "/"), "command: expected several values, such as a tuple, got 'sleep 5'"),
    (
        lambda: resource_claim_of({"kind": "ResourceClaimTemplate"}),
        "ResourceClaim: kind: expected a ResourceClaim, got 'ResourceClaimTemplate'",
    ),
    (lambda: ANY_FAULTS.FaultyStore(Script(), Script()), "FaultyStore: the first argument: expected a CheckpointStore"),
    (lambda: ANY_FAULTS.Gate(timeout="5"), "Gate: timeout: expected a number of seconds, got '5'"),
    (lambda: ANY_FILE(42), "FileStore: path: expected a path, such as a string, got 42"),
    (lambda: ANY_FILE("f", max_bytes="1MB"), "FileStore: max_bytes: expected int, got '1MB'"),
    (lambda: ANY_LIMITS(dial="5s"), "PluginLimits.dial: expected a number of seconds, got '5s'"),
    (lambda: ANY_GRPC("d", limits={"dial": 5}), "GrpcUnixTransport: limits: expected PluginLimits, got {'dial': 5}"),
    (lambda: ANY_FOLDER(GPU, "d", answer={}), "DirectoryPlugin: answer: expected a function, got {}"),
    (
        lambda: ANY_DRIVER("a.com", "n", "gpu-0", None, state_directory="s"),
        "SimulatedDriver: devices: expected several",
    ),
    (lambda: ANY_DRIVER("a.com", "n", [], 7, state_directory="s"), "SimulatedDriver: claims: expected a ClaimSource"),
    (lambda: LocalApiServer().get("Pod", ANY_NUMBER), "LocalApiServer.get: name: expected str, got 7"),
    (lambda: LocalApiServer(users=ANY_TEXT), "LocalApiServer: users: expected a mapping, such as a dict, got '60'"),
    (lambda: MemoryDraKubelet(api_server=ANY_TEXT), "MemoryDraKubelet: api_server: expected LocalApiServer, got '60'"),
    (lambda: MemoryKubelet(topology=ANY_TEXT), "MemoryKubelet: topology: expected Topology, got '60'"),
    (lambda: dra_manager().claim_devices("p", "main"), "DraManager.claim_devices: expected Pod, got 'p'"),
    (lambda: dra_manager(saver=7), "DraManager: saver: expected SaverThread, got 7"),
    (lambda: dra_manager(wall_clock=7), "DraManager: wall_clock: expected a function, got 7"),
    (lambda: manager(saver=7), "DeviceManager: saver: expected SaverThread, got 7"),
    (lambda: manager(observers=[None]), "observers: expected a function, got None"),
    (lambda: manager(admission_budget="60"), "DeviceManager: admission_budget: expected a number of seconds, got '60'"),
    (
        lambda: manager(admission_budget=-1),
        "DeviceManager: admission_budget: expected a non-negative number of seconds",
    ),
    (lambda: manager(clock=0.0), "DeviceManager: clock: expected a function, got 0.0"),
    (lambda: dra_manager(MemoryClaims(), MemoryDriverTransport(), MemoryStore()), "DraManager: transport: expected a "),
    (lambda: dra_manager().prepare("x"), "DraManager.prepare: expected Pod, got 'x'"),
    (lambda: PREPARE_RESULT(DEVICE), "PrepareResult.devices: expected several values, such as a tuple, got Prep"),
    (lambda: PREPARE_RESULT(["gpu-0"]), "PrepareResult.devices: expected PreparedDevice, got 'gpu-0'"),
    (lambda: PREPARED("p", "d", None, "gpu"), "PreparedDevice.requests: expected several values, such as a tuple, got"),
    (
        lambda: PREPARED("p", "d", cdi_ids="a.com/b=c"),
        "PreparedDevice.cdi_ids: expected several values, such as a tuple",
    ),
    (lambda: CONFIG("gpu.example.com", "gpu"), "DriverConfig.requests: expected several values, such as a tuple, got"),
    (
        lambda: POOL("gpu.example.com", "n", "n", "gpu-0"),
        "DevicePool.devices: expected several values, such as a tuple",
    ),
    (lambda: POOL("gpu.example.com", "n", "n", None), "DevicePool.devices: expected several values, such as a tuple,"),
    (lambda: POOL("gpu.example.com", "n", "n", ["gpu-0"]), "DevicePool.devices: expected PublishedDevice, got 'gpu-0'"),
    (lambda: TRANSPORT().register(Driver), "register: expected an instance of Driver, not the class, got"),
    (lambda: TRANSPORT().register(API), "register: expected a DraDriver, got <module 'devicecore'"),
    (lambda: SERVE(API), "serve_driver: expected a DraDriver, got <module 'devicecore'"),
    (lambda: ask_driver({"u": DEVICE}), "Driver.prepare: expected PrepareResult, got PreparedDevice("),
    (lambda: ask_driver(asynchronous()), "Driver.prepare: expected a method defined with `def`, got 'async def'"),
    (lambda: ask_driver([DEVICE]), "Driver.prepare: expected a PrepareResult by the UID of each claim, got [Prepared"),
    (lambda: dra_manager().unprepare(POD), "DraManager.unprepare: the uid of a pod: expected str, got Pod("),
]

CALLS: list[tuple[Callable[[Any], object], str]] = [
    (lambda manager: manager.admit({"uid": "p"}), "DeviceManager.admit: expected Pod, got {'uid': 'p'}"),
    (lambda manager: manager.admit(POD, affinity=1), "DeviceManager.admit: affinity: expected several values, such as"),
    (lambda manager: manager.allocate({}, "main"), "DeviceManager.allocate: expected Pod, got {}"),
    (lambda manager: manager.start_container("p", "main"), "DeviceManager.start_container: expected Pod, got 'p'"),
    (lambda manager: manager.start_container(POD, POD.containers[0]), "Pod.container: expected str, got Container("),
    (lambda manager: manager.options({}, "main"), "DeviceManager.options: expected Pod, got {}"),
    (lambda manager: manager.topology_hints("p"), "DeviceManager.topology_hints: expected Pod, got 'p'"),
    (
        lambda manager: manager.evict(7),
        "DeviceManager.evict: the uids of pods, such as [pod.uid]: expected several values",
    ),
    (
        lambda manager: manager.sanitize_allocatable(POD, {}),
        "sanitize_allocatable: the uid of a pod: expected str, got",
    ),
    (
        lambda manager: manager.sanitize_allocatable("p", []),
        "allocatable: expected a mapping of resource names to coun",
    ),
    (lambda manager: manager.state.ledger.of_pod(POD), "Ledger.of_pod: expected the UID of a pod, such as pod.uid, go"),
    (lambda manager: manager.state.ledger.of_container("main"), "Ledger.of_container: expected a ContainerKey, such a"),
    (lambda manager: manager.state.ledger.in_use(POD), "Ledger.in_use: expected the name of a resource, such as exam"),
    (lambda manager: manager.state.inventory.last_report(None), "Inventory.last_report: expected the name of a resour"),
    (lambda manager: STATUS(manager, POD), "allocated_resources_status: state: expected NodeState, got <DeviceManager"),
    (lambda manager: STATUS(manager.state, "p"), "allocated_resources_status: pod: expected Pod, got 'p'"),
    (lambda manager: manager.wait_for(lambda: True, 0), "wait_for: condition: expected a function of one argument, th"),
    (lambda manager: manager.wait_for(7, 0), "wait_for: condition: expected a function, got 7"),
    (lambda manager: manager.wait_for(bool, "1"), "wait_for: timeout: expected a number of seconds, got '1'"),
]


@pytest.mark.parametrize(("make", "message"), [*VALUES, *ANSWERS, *MANAGERS])
def test_a_mistake_is_reported_where_it_is_made(make: Try, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        make()
    assert message in str(refused.value)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_a_wrong_argument_of_a_call_is_named(call: Callable[[Any], object], message: str) -> None:
    with running() as manager:
        before = manager.state
        with pytest.raises(TypeError) as refused:
            call(manager)
        assert manager.state is before
    assert message in str(refused.value)


# --- plugins ----------------------------------------------------------------------------------------------------------


class Gpus(DevicePlugin):
    """A plugin whose answers are chosen by a test."""

    resource = GPU

    def __init__(self, **answers: object) -> None:
        self.answers: Any = {
            "devices": [API.Device("a"), API.Device("b")],
            "allocate": ContainerAllocateResponse(),
            **answers,
        }
        self.options = API.PluginOptions(get_preferred_allocation_available="preferred" in answers)

    def devices(self) -> Any:  # noqa: ANN401 - as `API`
        return self.answers["devices"]

    def allocate(self, devices: object) -> Any:  # noqa: ANN401 - as `API`
        return self.answers["allocate"]

    def get_preferred_allocation(self, available: object, must_include: object, size: int) -> Any:  # noqa: ANN401 - as `API`
        return self.answers["preferred"]


class WithoutResource(Gpus):
    resource = None  # type: ignore[assignment]  # this is the mistake being tested


class WithoutUnsubscribe(Gpus):
    def subscribe(self, changed: Callable[[], None]) -> Any:  # noqa: ANN401 - as `API`
        return None


class ListOfDevices(Gpus):
    devices: Any = ()


class NoList(Polled):
    poll_interval = 1.0

    def devices(self) -> Any:  # noqa: ANN401 - as `API`
        return None


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (Gpus, "connect: expected a plugin, such as Gpus(...), got <class"),
        ("gpu", "connect: expected a DevicePlugin with `resource`, `devices`, `allocate`, got 'gpu'"),
        (WithoutResource(), "resource_name: expected str, got None"),
        (Gpus(devices=None), "Gpus.devices: expected several values, such as a tuple, got None"),
        (Gpus(devices=["a"]), "Gpus.devices: expected Device, got 'a'"),
        (Gpus(devices=asynchronous()), "Gpus.devices: expected a method defined with `def`, got 'async def'"),
        (ListOfDevices(), "ListOfDevices.devices: expected a method, got ()"),
        (NoList(), "NoList.devices: expected several values, such as a tuple, got None"),
        (WithoutUnsubscribe(), "WithoutUnsubscribe.subscribe: the function that unsubscribes: expected a function, go"),
    ],
)
def test_an_object_that_is_not_a_plugin_is_not_connected(plugin: object, message: str) -> None:
    with pytest.raises(TypeError) as refused, running(plugin):
        pass
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["prestart_container", "PreStartContainer", "GetPreferredAllocation"])
def test_an_optional_method_with_another_name_is_refused(name: str) -> None:
    """No kubelet would ever call this method. A class that also has the right method may have it, too."""
    with pytest.raises(TypeError, match=f"P.{name}: a DevicePlugin has no such method; expected [a-z_]*$"):
        type("P", (Polled,), {name: lambda *_: None})
    both = {"prestart_container": lambda *_: None, "pre_start_container": lambda *_: None}
    both_named: Any = type("P", (Polled,), both)
    assert both_named.options.pre_start_required


def test_a_poll_interval_of_0_is_refused() -> None:
    plugin = NoList()
    plugin.poll_interval = 0
    with pytest.raises(ValueError, match=r"NoList.poll_interval: expected a number of seconds above 0"):
        plugin.subscribe(print)


def test_a_public_name_of_another_module_is_found() -> None:
    for name, place in _ELSEWHERE.items():
        assert hasattr(import_module(place), name)
        with pytest.raises(ImportError, match=f"^{name} is in {place}: from {place} import {name}$"):
            getattr(devicecore, name)
    assert not hasattr(devicecore, "nothing")


def test_a_generator_is_read_once_and_its_own_error_is_kept() -> None:
    with running(Gpus(devices=(API.Device(name) for name in "ab"), preferred=iter("b"))) as manager:
        assert [*manager.admit(POD).devices("main")[GPU]] == ["b"]
    with pytest.raises(ZeroDivisionError), running(Gpus(devices=(1 // divisor for divisor in (0,)))):
        pass


def test_an_id_that_is_listed_twice_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A kubelet counts the device once, and does not log this."""
    plugin = Gpus(devices=[API.Device("a"), API.Device("a")])
    transport: Any = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()):
        connection = transport.connect(plugin)
        connection.report()
        (said,) = caplog.messages
        assert said.startswith("example.com/gpu lists device a twice, so it counts once")
        plugin.answers["devices"] = [API.Device("a"), API.Device("b")]
        connection.report()
    assert caplog.messages == [said]


def test_a_sink_in_a_missing_directory_causes_a_warning(tmp_path: Path) -> None:
    """The manager only logs that it could not publish."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), JsonFileSink(tmp_path / "missing" / "node.json")):
        with pytest.warns(
            RuntimeWarning, match=f"no directory {tmp_path}/missing, so node.json cannot be written: cre"
        ):
            transport.connect(SimulatedPlugin(GPU))
        transport.stop()


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (Gpus(allocate={"envs": {}}), "Gpus.allocate: expected ContainerAllocateResponse, got {'envs': {}}"),
        (Gpus(allocate=None), "Gpus.allocate: expected ContainerAllocateResponse, got None"),
        (Gpus(preferred="a"), "Gpus.get_preferred_allocation: expected several values, such as a tuple, got 'a'"),
        (Gpus(preferred=[7]), "Gpus.get_preferred_allocation: expected str, got 7"),
    ],
)
def test_a_wrong_answer_of_a_plugin_refuses_the_pod_with_a_sentence(plugin: object, message: str) -> None:
    """The sentence names the plugin's class and method, and says what to return."""
    with running(plugin) as manager:
        verdict = manager.admit(POD)
        assert isinstance(verdict, Refused)
        assert message in str(verdict.error)
        assert not manager.state.ledger.allocations


def test_a_plugin_is_connected_to_a_transport_that_runs() -> None:
    with pytest.raises(PluginStoppedError, match=r"example\.com/gpu cannot register, because the transport is not"):
        MemoryTransport().connect(SimulatedPlugin(GPU))


def test_what_a_plugin_in_another_language_sends_is_kept_as_a_kubelet_keeps_it() -> None:
    """Only plugins written in Python are checked. A kubelet accepts relative paths, odd permissions and empty ids."""
    sent = deviceplugin.ContainerAllocateResponse(
        mounts=[deviceplugin.Mount(container_path="a", host_path="b")],
        devices=[deviceplugin.DeviceSpec(container_path="c", host_path="", permissions="xyz")],
    )
    answered = conversion.read_receipt(conversion.to_receipt(sent))
    assert conversion.from_response(answered) == sent
    listed = DeviceList.of(conversion.to_devices(deviceplugin.ListAndWatchResponse(devices=[deviceplugin.Device()])))
    assert [(device.id, device.health) for device in (*listed, *listed.by_id.values())] == [("", Health.UNHEALTHY)] * 2


# --- the last observed state ----------------------------------------------------------------------------------------


def test_a_failed_wait_reports_the_last_observed_state() -> None:
    with running() as manager, pytest.raises(TimeoutError) as ended:
        manager.wait_for(lambda _: False, timeout=0)
    assert str(ended.value) == (
        "condition not met within 0 s; the last state was <NodeState: <Inventory: 10 devices of 1 resource>, "
        "<Ledger: 0 devices in use by 0 pods, 0 allocations, 0 reservations>>"
    )


def test_a_misspelled_resource_is_seen_in_the_verdict() -> None:
    """A name that no plugin could register is shown, too. Kubernetes' own resources are not named."""
    limits = {"gpu": 1, "Example/GPU/x": 1, "example.com/gpus": 2, "cpu": 1, "hugepages-2Mi": 1, "memory": 5, GPU: 1}
    warned = "pod p gets no 'Example/GPU/x', 'gpu': a device's resource name has a domain, such as example.com/gpu"
    with running() as manager, pytest.warns(RuntimeWarning, match=warned):
        verdict: Verdict = manager.admit(Pod(PodUid("p"), containers=(Container("main", limits),)))
    assert isinstance(verdict, Admitted)
    assert verdict.unhandled == (("main", "Example/GPU/x"), ("main", "example.com/gpus"), ("main", "gpu"))
    shown = "<Admitted: pod p with 1 device, unhandled: Example/GPU/x of main, example.com/gpus of main, gpu of main>"
    assert repr(verdict) == shown


def test_the_help_of_admit_says_what_it_returns() -> None:
    returned = (inspect.getdoc(DeviceManager.admit) or "").partition("Returns:")[2].partition("Raises:")[0]
    assert all(verdict in returned for verdict in ("`Admitted`", "`Refused`", "`NotReady`"))


# --- extras -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("devicecore.adapters.cel", "cel_expr_python", "cel"),
        ("devicecore.adapters.kube_api", "httpcore2", "kubernetes"),
        ("devicecore.adapters.kube_api.slices", "httpx2", "kubernetes"),
        ("devicecore.adapters.manifests", "yaml", "manifests"),
        ("devicecore.adapters.prometheus", "prometheus_client", "prometheus"),
        ("devicecore.testing.strategies", "hypothesis", "testing"),
    ],
)
def test_a_missing_extra_is_named_with_the_commands_that_install_it(module: str, missing: str, extra: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None\nimport {module}"
    run = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    said = run.stderr.splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: ")
    assert said.endswith(
        f": in a clone of the repository, run pip install '.[{extra}]'; "
        f"elsewhere, install the extra `{extra}`: pip install 'devicecore[{extra}]'"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: API_SET(["a"]), "DeviceSet (DeviceSet.of creates one from ids): expected a DeviceIndex, got ['a']"),
        (lambda: API_SET.of("abc"), "device ids: expected several values, such as a tuple, got 'abc'"),
        (lambda: DEVICES(4, "gpu"), "simulated_devices(prefix, count): prefix: expected str, got 4"),
        (lambda: DEVICES("gpu", "4"), "simulated_devices(prefix, count): count: expected int, got '4'"),
        (
            lambda: DEVICES("gpu", -1),
            "simulated_devices(prefix, count): count: expected a number of at least 0, got -1",
        ),
        (
            lambda: SimulatedPlugin(GPU, simulated_devices("gpu", 2)).set_health("gpu-2", Health.UNHEALTHY),
            "example.com/gpu has no device gpu-2; its devices: gpu-0, gpu-1",
        ),
        (
            lambda: SimulatedPlugin(GPU).set_health("mig", Health.UNHEALTHY),
            f"example.com/gpu has no device mig; its devices: {', '.join(f'gpu-{n}' for n in range(8))} and 2 more",
        ),
        (lambda: reading.claim_of({"kind": "Pod"}), "ResourceClaim: kind: expected a ResourceClaim, got 'Pod'"),
        (lambda: reading.class_of({"kind": "Pod"}), "DeviceClass: kind: expected a DeviceClass, got 'Pod'"),
        (lambda: reading.slice_of({"kind": "Pod"}), "ResourceSlice: kind: expected a ResourceSlice, got 'Pod'"),
        (
            lambda: reading.claim_of({"apiVersion": "resource.k8s.io/v1alpha2"}),
            (
                f"ResourceClaim: apiVersion: expected {DRA_GROUP}/v1, {DRA_GROUP}/v1beta2, {DRA_GROUP}/v1beta1, "
                f"got {DRA_GROUP}/v1alpha2: its fields differ, so write it as {DRA_GROUP}/v1"
            ),
        ),
    ],
)
def test_a_slip_at_the_values_of_devices_and_claims_is_one_sentence(make: Try, message: str) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)) as raised:
        make()
    assert str(raised.value) == message


@pytest.mark.parametrize("transport", [MemoryTransport, MemoryDriverTransport])
def test_one_transport_serves_one_manager_at_a_time(transport: Callable[[], Any]) -> None:
    """A second manager would take the first manager's events. After a stop, another manager may start."""
    shared = transport()
    shared.start(print)
    shared.start(print)
    name = type(shared).__name__
    with pytest.raises(SetUpError, match=f"a running manager uses this {name}: stop that manager, or pass each"):
        shared.start(repr)
    shared.stop()
    shared.start(repr)


def test_a_container_that_starts_without_its_devices_is_warned_of() -> None:
    """A kubelet starts such a container, but a caller that forgot `admit` would see only None."""
    with running() as manager, pytest.warns(RuntimeWarning, match=r"pod p holds no example.com/gpu: call admit\(pod\)"):
        assert manager.start_container(POD, "main") is None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: KubeApiSink("node-1", "config"),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "access: expected an Access, such as Access('/root/.kube/config'), got 'config'",
        ),
        (
            lambda: KubeApiClaims("claims"),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "access: expected an Access, such as Access('/root/.kube/config'), got 'claims'",
        ),
        (
            lambda: PodResourcesClient("http://localhost:10250"),
            ValueError,
            "PodResourcesClient: expected the path of a unix socket, got 'http://localhost:10250'",
        ),
        (
            lambda: decode("kubelet_internal_checkpoint"),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "the checkpoint's content: expected bytes, got 'kubelet_internal_checkpoint'",
        ),
        (
            lambda: LocalApiServer().create("kind: Pod"),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "create: the object, as parsed JSON: expected dict, got 'kind: Pod'",
        ),
        (
            lambda: MemoryKubelet().serve(SimulatedPlugin),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "serve: expected a plugin, such as SimulatedPlugin(...), got <class 'devicecore.plugins.simulated.",
        ),
        (
            lambda: MemoryClaims().put({"metadata": {"name": "a"}}),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "MemoryClaims.put: resource_claim_of reads a manifest: expected ResourceClaim, got {'metadata'",
        ),
        (
            lambda: allocate([{"metadata": {}}], TargetNode("n"), [], [], []),  # type: ignore[list-item]  # the mistake
            TypeError,
            "allocate: claims (claim_of reads a manifest): expected UnallocatedClaim, got {'metadata': {}}",
        ),
        (
            lambda: claim_of(
                {
                    "metadata": {"name": "a"},
                    "spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClass": "gpu"}}]}},
                }
            ),
            DocumentError,
            "requests[0].exactly.deviceClass: there is no such field; expected 'deviceClassName'",
        ),
        (
            lambda: allocate([], TargetNode("n"), [], [], ["gpu"]),  # type: ignore[list-item]  # the mistake
            TypeError,
            "allocate: classes (class_of reads a manifest): expected DeviceClass, got 'gpu'",
        ),
        (
            lambda: PrometheusMetrics().serve(port="9090"),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "PrometheusMetrics.serve: port: expected int, got '9090'",
        ),
        (
            lambda: PrometheusMetrics().watch(plugins={}),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "PrometheusMetrics.watch: plugins: expected a function, got {}",
        ),
        (
            lambda: MemoryDraKubelet().claim("gpu.example.com", count="1"),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "claim: count: expected int, got '1'",
        ),
        (
            lambda: ManualClock().advance(-5),
            ValueError,
            "ManualClock.advance: expected a non-negative number of seconds",
        ),
        (lambda: Tears(2), ValueError, "Tears.fraction: expected a number from 0 to 1, got 2"),
        (
            lambda: Script().on("allocate", NeverAnswers()),
            ValueError,
            "Script: expected the name of a call, such as 'Allocate', got 'allocate'",
        ),
        (
            lambda: Script().always("plugin_lost", NeverAnswers()),
            ValueError,
            "Script: expected the name of a call, such as 'PluginLost', got 'plugin_lost'",
        ),
        (
            lambda: CelSelectors()("device.driver == 'x'", "gpu-0"),  # type: ignore[arg-type]  # the mistake
            TypeError,
            "CelSelectors: device: expected PoolDevice, got 'gpu-0'",
        ),
    ],
)
def test_another_value_than_the_expected_one_is_refused_where_it_is_given(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_the_devices_of_a_pod_that_was_not_admitted_are_missing_for_a_reason() -> None:
    with running() as manager:
        refused = manager.admit(Pod(PodUid("p"), containers=(Container("main", {GPU: 99}),)))
    with pytest.raises(
        AttributeError, match=r"the pod was refused, so it has no devices: .*Requested: 99, Available: "
    ):
        refused.devices("main")


def test_a_socket_that_does_not_exist_is_named_as_the_reason() -> None:
    with (
        PodResourcesClient("/nosuch/kubelet.sock", timeout=0.1) as client,
        pytest.raises(PodResourcesError, match="there is no such socket"),
    ):
        client.list()


def test_a_command_that_is_one_string_with_spaces_gets_a_hint() -> None:
    process = PluginProcess(["sleep 5"], "/")
    with pytest.raises(CannotRunError, match="It is a single word that contains spaces: pass each word as a separate"):
        process.start()
    process.stop()


def test_a_test_kubelet_refuses_strings_for_numbers_and_states() -> None:
    wrong: Any = "2"
    with MemoryKubelet() as kubelet:
        for call, what in (
            (lambda: kubelet.wait_for_counts(GPU, wrong), "wait_for_counts: capacity"),
            (lambda: kubelet.wait_for_registration(GPU, wrong), "wait_for_registration: number"),
            (lambda: kubelet.wait_for_device(GPU, "gpu-0", wrong), "wait_for_device: health"),
            (lambda: kubelet.wait_for_counts(GPU, 2, timeout=wrong), "timeout"),
            (lambda: kubelet.advance(wrong), "advance"),
        ):
            with pytest.raises(TypeError, match=f"^{what}: expected .*, got '2'$"):
                call()


def test_a_kubeconfig_is_written_to_a_name_once_the_port_is_known(tmp_path: Path) -> None:
    server, name = LocalApiServer(), str(tmp_path / "kubeconfig")
    with pytest.raises(NotStartedError, match="the API server is not started"):
        server.kubeconfig(name)
    with server:
        assert server.url in server.kubeconfig(name).read_text()


# --- drivers ----------------------------------------------------------------------------------------------------------


CLAIM = {
    "metadata": {"name": "c", "uid": "c-1"},
    "status": {
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}],
        "allocation": {
            "devices": {"results": [{"request": "g", "driver": "gpu.example.com", "pool": "n", "device": "d"}]}
        },
    },
}
CLAIMING = Pod(
    PodUid("p"),
    name="p",
    containers=[Container("main", claims=[ContainerClaim("g")])],
    claims=[PodClaim("g", "c")],
)


class Edits(CdiDriver):
    answer: Any = None

    def edits(self, claim: object, device: object) -> Any:  # noqa: ANN401 - as `API`
        return self.answer


@contextmanager
def driven(driver: Callable[[MemoryClaims], Any]) -> Iterator[Any]:
    transport, claims = MemoryDriverTransport(), MemoryClaims()
    claims.put(resource_claim_of(CLAIM))
    with DraManager(transport, claims, MemoryStore()) as manager:
        transport.register(driver(claims)).connect()
        yield manager


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        (None, "containerEdits: expected a mapping, such as a dict, got None"),
        ({}, "containerEdits: expected at least one of env, deviceNodes, "),
        ({"envs": ["A=b"]}, "containerEdits: expected env or deviceNodes or "),
        ({"env": {"A": "b"}}, "containerEdits.env: expected a list, got {'A': 'b'}"),
        ({"env": ["A"]}, "containerEdits: the variable 'A' is not NAME=value"),
        ({"env": []}, "containerEdits: expected a field that is not empty"),
        ({"deviceNodes": ["/dev/a"]}, "containerEdits: expected an object, got '/dev/a' @ $.deviceNodes[0]"),
        ({"deviceNodes": [{"hostPath": "/a"}]}, "containerEdits: required field missing @ $.deviceNodes[0].path"),
        (
            {"deviceNodes": [{"path": "/a", "tpye": "c"}]},
            "containerEdits: extra fields found (tpye) @ $.deviceNodes[0]",
        ),
        ({"intelRdt": []}, "containerEdits.intelRdt: expected a mapping, got []"),
        (
            {"env": [b"A=b"]},
            "containerEdits: expected values that JSON can represent: Object of type bytes is not JSON serializable",
        ),
    ],
)
def test_edits_that_no_container_runtime_accepts_are_refused(tmp_path: Path, edits: object, problem: str) -> None:
    def driver(claims: MemoryClaims) -> CdiDriver:
        made = Edits("gpu.example.com", claims, tmp_path / "claims", tmp_path / "cdi")
        made.answer = edits
        return made

    with driven(driver) as manager, pytest.raises(DeviceCoreError, match=re.escape(f"Edits.edits: {problem}")):
        manager.prepare(CLAIMING)
    assert not list((tmp_path / "cdi").iterdir())


def test_a_device_may_have_lists_of_names() -> None:
    listed = PREPARED("n", "d", requests=["g"], cdi_ids=["example.com/gpu=d"])
    with driven(lambda _: Driver({"c-1": PrepareResult([listed])})) as manager:
        with pytest.raises(ClaimInfoError) as unknown:
            manager.claim_devices(CLAIMING, "main")
        assert unknown.value.__notes__ == ["The claim is not prepared for this pod: call prepare(pod) first."]
        manager.prepare(CLAIMING)
        assert manager.claim_devices(CLAIMING, "main") == ("example.com/gpu=d",)


def test_an_instance_that_runs_twice_in_one_process_is_refused_at_once(tmp_path: Path) -> None:
    driver = Edits("gpu.example.com", MemoryClaims(), tmp_path / "claims", tmp_path / "cdi")
    with driver.running(), pytest.raises(AlreadyRunningError), driver.running():
        pass
    with driver.running("a"), driver.running("b"):
        pass


@pytest.mark.parametrize("version", ["0.3.0", "v0.6.0", "", "1.x"])
def test_an_invalid_or_old_cdi_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"^Edits: cdi_version: expected 0\.5\.0 or newer, got "):
        Edits("gpu.example.com", MemoryClaims(), "claims", "cdi", cdi_version=version)


def test_a_driver_in_the_wrong_directory_is_told_where_a_kubelet_looks(tmp_path: Path) -> None:
    driver: Any = Driver({})
    with pytest.raises(SetUpError, match="there is no such directory: create it, or use wait_for_registry=True"):
        serve_driver(driver, tmp_path / "missing")
    with short_directory() as root:
        (Path(root) / "plugins_registry").mkdir()
        with (
            serve_driver(driver, root) as served,
            pytest.raises(
                SetUpError, match=f"a kubelet usually watches {root}/plugins_registry, so use that directory"
            ),
        ):
            served.wait_registered(0)


class FullDisk:
    """A store and a sink whose author did not translate the errors of the operating system."""

    def load(self) -> bytes | None:
        return None

    def save(self, blob: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def set_aside(self) -> str | None:
        return None

    def publish(self, status: NodeStatus) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_an_error_of_the_operating_system_counts_as_one_of_the_store_or_sink(caplog: pytest.LogCaptureFixture) -> None:
    transport, disk = MemoryTransport(), FullDisk()
    with DeviceManager(transport, disk, disk) as manager:
        transport.connect(SimulatedPlugin(GPU))
        verdict = manager.admit(POD)
    assert isinstance(verdict, Refused)
    assert 'failed to write checkpoint file "FullDisk": [Errno 28] No space left on device' in verdict.message
    assert str(SinkError("FullDisk", "[Errno 28] No space left on device")) in caplog.text


def test_a_socket_whose_path_has_a_comma_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    with pytest.raises(DirectoryError, match="choose a path without a comma"):
        check_socket_path(str(tmp_path / "a,b" / "p.sock"))
