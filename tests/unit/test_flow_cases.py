"""The rows of the kubelet's cases about whole pods, restarts, plugin instances and container settings."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from attrs import evolve

from devicecore import (
    Admitted,
    ContainerAllocateResponse,
    Device,
    DeviceId,
    DeviceManager,
    DevicePlugin,
    DeviceSpec,
    Mount,
    PluginOptions,
    Pod,
    PodUid,
    resource_name,
)
from devicecore.adapters.memory import MemoryPods, MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.checkpoint import encode
from devicecore.domain.container_options import merge
from devicecore.domain.errors import DeviceCoreError, EmptyAllocateResponseError, PluginAlreadyConnectedError
from devicecore.domain.inventory import Inventory
from devicecore.domain.model import ContainerKey, PluginId, ResourceName
from devicecore.domain.node import Node
from tests import recorded
from tests.recorded import Json

FLOWS = {case["id"]: case for case in recorded.cases("allocate_flows")["cases"]}
PARTS = recorded.cases("allocate_flows")["plugin_stub"]["parts"]
OPTIONS = recorded.cases("run_container_options")
STORES = recorded.cases("endpoint_store_1_37")["cases"]
RUNNING = recorded.cases("restart_scenarios")[0]["rows"]


class StubPlugin(DevicePlugin):
    """The plugin of the flows: a container's answer is the union of its devices' parts."""

    def __init__(self, resource: str, devices: Sequence[Device], options: PluginOptions = PluginOptions()) -> None:
        self.resource = resource_name(resource)
        self.options = options
        self.listed = devices
        self.started: list[list[str]] = []
        self.failure: Exception | None = None

    def devices(self) -> Sequence[Device]:
        return self.listed

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        if self.failure:
            raise self.failure
        answer = ContainerAllocateResponse()
        for device in devices:
            part = response(PARTS[self.resource].get(device, {}))
            answer = ContainerAllocateResponse(
                {**answer.envs, **part.envs}, answer.mounts + part.mounts, answer.devices + part.devices
            )
        return answer

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        self.started.append(sorted(devices))


def response(row: Json) -> ContainerAllocateResponse:
    """An answer to Allocate as the cases write it."""
    return ContainerAllocateResponse(
        row.get("envs", {}),
        tuple(Mount(**mount) for mount in row.get("mounts", ())),
        tuple(DeviceSpec(**spec) for spec in row.get("devices", ())),
        row.get("annotations", {}),
        tuple(row.get("cdi_devices", ())),
    )


class Flow:
    """A manager with the plugins of one case."""

    def __init__(self, case: Json, checkpoint: bytes | None = None) -> None:
        self.pods = MemoryPods()
        self.store = MemoryStore(checkpoint)
        self.transport = MemoryTransport()
        self.manager = DeviceManager(self.transport, self.store, MemorySink(), pods=self.pods)
        self.manager.start()
        self.plugins = {
            name: StubPlugin(
                name,
                [recorded.device({"id": id_, "numa": numa}) for id_, numa in devices.items()],
                PluginOptions(**case.get("options", {})),
            )
            for name, devices in case.get("devices", {}).items()
        }
        for plugin in self.plugins.values():
            self.transport.connect(plugin)

    def in_use(self) -> dict[str, int]:
        ledger = self.manager.node.ledger
        return {name: len(ledger.in_use(name)) for name in ledger.resources}

    def options(self, pod: Pod) -> dict[str, int] | None:
        merged = self.manager.container_options(pod, pod.containers[0].name)
        counts = merged and {name: len(getattr(merged, name)) for name in ("devices", "mounts", "envs")}
        return counts if counts and any(counts.values()) else None


def simple_pod(name: str, limits: dict[str, int]) -> Pod:
    """A pod of one container."""
    return recorded.pod({"uid": name, "containers": [{"name": "c", "limits": limits}]})


@pytest.fixture
def flow(request: pytest.FixtureRequest) -> Iterator[Flow]:
    """The flow of the case that the test names."""
    started = Flow(FLOWS[request.param])
    with started.manager:
        yield started


@pytest.mark.parametrize("flow", ["PodContainerDeviceAllocation"], indirect=True)
def test_pods_get_devices_until_there_are_none_left(flow: Flow) -> None:
    """Each step admits or refuses its pod, with the recorded settings and the recorded devices in use."""
    for step in FLOWS["PodContainerDeviceAllocation"]["steps"]:
        pod = simple_pod(step["pod"], step["limits"])
        flow.pods.active.add(pod.uid)
        verdict = flow.manager.admit(pod)
        if step["allocate"] == "ok":
            assert isinstance(verdict, Admitted)
            assert flow.options(pod) == step["options"]
        else:
            assert str(verdict) == step["allocate"]["error"]
            with pytest.raises(DeviceCoreError, match="Requested: 1, Available: 0"):
                flow.options(pod)
        assert flow.in_use() == step["allocated"]


@pytest.mark.parametrize("flow", ["GetDeviceRunContainerOptions"], indirect=True)
def test_a_pod_that_has_gone_has_no_settings(flow: Flow) -> None:
    """A vanished pod is swept, and asking for its settings allocates nothing anew."""
    first, second, asked, *_ = FLOWS["GetDeviceRunContainerOptions"]["steps"]
    pods = [simple_pod(step["pod"], step["limits"]) for step in (first, second)]
    flow.pods.active.update(pod.uid for pod in pods)
    assert all(isinstance(flow.manager.admit(pod), Admitted) for pod in pods)
    assert flow.options(pods[0]) == asked["expect"]
    flow.pods.active.discard(pods[0].uid)
    flow.manager.update_allocated_devices()
    assert flow.options(pods[0]) is None


@pytest.mark.parametrize("name", ["InitContainerDeviceAllocation", "RestartableInitContainerDeviceAllocation"])
def test_init_containers_lend_and_sidecars_keep(name: str) -> None:
    """Sizes, shared devices and disjoint devices of a pod's containers are the recorded ones."""
    case = FLOWS[name]
    expect, resource = case["expect"], case["expect"]["resource"]
    flow = Flow(case)
    with flow.manager:
        verdict = flow.manager.admit(recorded.pod(case["pod"]))
        assert isinstance(verdict, Admitted)
        for container, sizes in expect["sizes"].items():
            held = verdict.devices(container)
            assert {listed: len(held[listed]) for listed in sizes} == sizes
        of = {container: verdict.devices(container)[resource] for container in expect["sizes"]}
        assert all(of[small] <= of[large] for large, small in expect.get("superset", ()))
        assert all(of[one].isdisjoint(of[other]) for one, other in expect.get("disjoint", ()))
        assert all(of[a].isdisjoint(of[b]) for a, b in combinations(expect.get("pairwise_disjoint", ()), 2))


@pytest.mark.parametrize("flow", ["DevicePreStartContainer"], indirect=True)
def test_a_plugin_that_wants_to_hears_of_a_start(flow: Flow) -> None:
    """It is told all devices of the container, and nothing of a container without devices."""
    with_devices, without = FLOWS["DevicePreStartContainer"]["steps"]
    plugin = flow.plugins["domain1.com/resource1"]
    pod = simple_pod(with_devices["pod"], with_devices["limits"])
    assert isinstance(flow.manager.admit(pod), Admitted)
    assert flow.options(pod) == with_devices["get_options"]
    assert plugin.started == [with_devices["pre_start_called_with"]]
    pod = simple_pod(without["pod"], without["limits"])
    assert isinstance(flow.manager.admit(pod), Admitted)
    assert flow.options(pod) is None
    assert len(plugin.started) == 1


@pytest.mark.parametrize("gate", ["on", "off"])
def test_what_dynamic_resource_allocation_serves_is_left_alone(gate: str) -> None:
    """A claimed resource needs no plugin; the same request without its claim is refused."""
    case = FLOWS[f"AdmitPodWithDRAResources, gate {gate}"]
    held = Node(ledger=recorded.ledger({"another pod": {"c": case["allocated"]}}))
    flow = Flow(case, encode(held.checkpoint()))
    pod = recorded.pod(case["pod"])
    with flow.manager:
        flow.pods.active.add(PodUid("another pod"))
        if gate == "on":
            claims = case["pod"]["extended_resource_claim_mappings"]
            pod = evolve(pod, claimed=frozenset((claim["container"], claim["resource"]) for claim in claims))
        verdict = flow.manager.admit(pod)
        outcome = "ok" if isinstance(verdict, Admitted) else {"error": str(verdict)}
        assert outcome == case["allocate"]


@pytest.mark.parametrize("flow", ["allocation rpc fails: reserved devices are given back"], indirect=True)
def test_a_failed_allocate_gives_its_devices_back(flow: Flow) -> None:
    """The plugin's error is the verdict, and nothing is in use."""
    flow.plugins["domain1.com/resource1"].failure = RuntimeError("boom")
    verdict = flow.manager.admit(simple_pod("p", {"domain1.com/resource1": 1}))
    assert str(verdict) == "boom"
    assert flow.in_use() == {}


@pytest.mark.parametrize(
    "flow", ["empty allocation response: error, reserved devices are NOT given back"], indirect=True
)
def test_an_empty_answer_gives_its_devices_back_which_a_kubelet_does_not(flow: Flow) -> None:
    """The sentence begins as the kubelet's does; that the kubelet leaks the device is its bug."""
    flow.plugins["domain1.com/resource1"].failure = EmptyAllocateResponseError("domain1.com/resource1")
    verdict = flow.manager.admit(simple_pod("p", {"domain1.com/resource1": 1}))
    assert str(verdict).startswith("no containers return in allocation response")
    assert flow.in_use() == {}


@pytest.mark.parametrize("row", OPTIONS, ids=[row["id"] for row in OPTIONS])
def test_answers_merge_into_the_settings_of_a_container(row: Json) -> None:
    """First wins, by name or container path, and resources are visited in the order of their names."""
    merged = merge({ResourceName(name): options_response(answer) for name, answer in row["responses"].items()})
    expected = row["expected"]
    assert [{"name": name, "value": value} for name, value in merged.envs.items()] == [
        {**env, "value": env["value"].split(" or ")[0]} for env in expected["envs"]
    ]
    assert [
        {
            "name": mount.container_path,
            "container_path": mount.container_path,
            "host_path": mount.host_path,
            "read_only": mount.read_only,
            "selinux_relabel": False,
        }
        for mount in merged.mounts
    ] == expected["mounts"]
    assert merged.devices == tuple(DeviceSpec(**spec) for spec in expected["devices"])
    assert [{"name": name, "value": value} for name, value in merged.annotations.items()] == expected["annotations"]
    assert list(merged.cdi_devices) == expected["cdi_devices"]


def options_response(row: Json) -> ContainerAllocateResponse:
    """An answer of the options cases."""
    return response(row)


@pytest.mark.parametrize("case", STORES, ids=[case["id"] for case in STORES])
def test_plugin_instances_live_side_by_side(case: Json) -> None:
    """The latest serves, a survivor takes over, a socket is served once.

    Where the kubelet lets a late goodbye evict a newer instance on the same socket, here it changes nothing.
    """
    inventory = Inventory()
    ids: dict[str, PluginId] = {}
    by_socket: dict[tuple[str, str], list[str]] = {}
    for step in case["steps"]:
        name = ResourceName(step.get("resource", ""))
        slot = (step.get("resource", ""), step.get("socket", ""))
        match step["op"]:
            case "connect" | "install":
                id_ = PluginId(name, step["socket"], len(ids) + 1)
                if isinstance(step.get("expect"), dict):
                    with pytest.raises(PluginAlreadyConnectedError) as refused:
                        inventory.connect(id_, PluginOptions())
                    assert all(part in str(refused.value) for part in step["expect"]["error_contains"])
                    continue
                inventory = inventory.connect(id_, PluginOptions())
                ids[step["plugin"]] = id_
                by_socket.setdefault(slot, []).append(step["plugin"])
                if "healthy" in step:
                    inventory = inventory.report(id_, [Device(DeviceId(device)) for device in step["healthy"]])
            case "set_healthy":
                primary = inventory.resources[name].plugin
                assert primary
                inventory = inventory.report(primary.id, [Device(DeviceId(device)) for device in step["devices"]])
            case "set_primary":  # the survivor of this row is then the later one, with the same outcome
                assert inventory.resources[name].plugin
            case "disconnect":  # a goodbye is the oldest instance's that has not said it yet, on that socket
                gone = by_socket.get(slot, [])
                before = inventory
                late = len(gone) == 0 or (case["id"].startswith("late disconnect") and "p2" in ids)
                inventory = inventory.disconnect(ids[gone.pop(0)] if gone and not late else PluginId(*slot, 0), 0.0)
                assert not late or inventory is before
            case "assert" if not (case["id"].startswith("late disconnect") and "healthy_size" in step):
                assert_store(inventory, ids, step)


def assert_store(inventory: Inventory, ids: dict[str, PluginId], step: Json) -> None:
    """An `assert` step of the endpoint store's cases."""
    live = {plugin.id for known in inventory.resources.values() for plugin in known.plugins}
    for name, sockets in step.get("store", {}).items():
        listed = {plugin.id.socket: plugin.id for plugin in inventory.resources[ResourceName(name)].plugins}
        assert listed == {socket: ids[plugin] for socket, plugin in sockets.items()}
    assert "store" not in step or step["store"] or not live
    for name, plugin in step.get("primary", {}).items():
        primary = inventory.resources[ResourceName(name)].plugin
        assert primary is not None
        assert primary.id == ids[plugin]
    for plugin, stopped in step.get("stopped", {}).items():
        assert (ids[plugin] not in live) is stopped
    for name, size in step.get("healthy_size", {}).items():
        report = inventory.registered(ResourceName(name))
        assert len(report.healthy if report else ()) == size
    for name, size in step.get("unhealthy_size", {}).items():
        report = inventory.registered(ResourceName(name))
        assert len(report.unhealthy if report else ()) == size


@pytest.mark.parametrize("row", RUNNING, ids=range(len(RUNNING)))
def test_a_container_that_runs_on_is_left_alone_until_all_pods_are_known(row: Json) -> None:
    """While sources are not ready, a running container passes without its plugin; any other needs it."""
    mapped = row["container_map"].items()
    running = {ContainerKey(PodUid(pod), name) for id_, (pod, name) in mapped if id_ in row["running"]}
    pods = MemoryPods(ready=False, running=running)
    uid, name = row["query"]
    pod = recorded.pod({"uid": uid, "containers": [{"name": name, "limits": {"a.com/x": 1}}]})
    store = MemoryStore(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"a.com/x":[]}},"Checksum":1156686402}')
    with DeviceManager(MemoryTransport(), store, MemorySink(), pods=pods) as manager:
        assert isinstance(manager.admit(pod), Admitted) is row["running_expected"]
        pods.ready = True
        assert not isinstance(manager.admit(pod), Admitted)
