"""The kubelet's cases for whole pods, restarts, plugin instances and container settings."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

import pytest
from attrs import asdict, evolve

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
from devicecore.domain import checkpoint
from devicecore.domain.checks import received
from devicecore.domain.container_options import merge
from devicecore.domain.errors import DeviceCoreError, EmptyAllocateResponseError, PluginAlreadyConnectedError
from devicecore.domain.inventory import Inventory
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import ContainerKey, ExtendedClaim, PluginId, RequestMapping, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.wire.conversion import write_receipt
from tests import recorded
from tests.memory_manager import MemoryManager
from tests.recorded import Json

FLOWS = {case["id"]: case for case in recorded.cases("allocate_flows")["cases"]}
PARTS = recorded.cases("allocate_flows")["plugin_stub"]["parts"]
OPTIONS = recorded.cases("run_container_options")
STORES = recorded.cases("endpoint_store_1_37")["cases"]
CLIENTS = recorded.cases("endpoint_store_1_37")["server_client_table"]
DEVICES = recorded.cases("pod_devices")
REGISTERED_AGAIN = recorded.cases("registration")["re_registration"][0]
RUNNING = recorded.cases("restart_scenarios")[0]["rows"]


class StubPlugin(DevicePlugin):
    """The cases' plugin, whose answer for a container combines the answers for its devices."""

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
    """Return the answer to Allocate that a case describes.

    Some cases have relative paths, which a kubelet accepts.
    """
    return ContainerAllocateResponse(
        row.get("envs", {}),
        tuple(
            received(Mount, mount["container_path"], mount["host_path"], mount.get("read_only", False))
            for mount in row.get("mounts", ())
        ),
        tuple(
            received(DeviceSpec, spec["container_path"], spec["host_path"], spec.get("permissions", "rw"))
            for spec in row.get("devices", ())
        ),
        row.get("annotations", {}),
        tuple(row.get("cdi_devices", ())),
    )


class Flow:
    """A manager with the plugins of a case."""

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

    def admit(self, pod: Pod, step: Json) -> None:
        """Execute a step that admits a pod, and check its outcome."""
        plugin = next(self.plugins[name] for name in step["limits"] if name in self.plugins)
        answer = step.get("plugin_allocate", {})
        if "error" in answer:
            plugin.failure = RuntimeError(answer["error"])
        elif "container_responses" in answer:
            plugin.failure = EmptyAllocateResponseError(plugin.resource)
        self.pods.active.add(pod.uid)
        verdict = self.manager.admit(pod)
        if step["allocate"] == "ok":
            assert isinstance(verdict, Admitted)
        else:
            assert str(verdict).startswith(step["allocate"].get("error") or step["allocate"]["error_prefix"])
        for key in step.keys() & {"options", "get_options"}:
            if step["allocate"] == "ok":
                assert self.options(pod) == (None if step[key] == "ok" else step[key])
            else:  # `options` tries to allocate once more
                with pytest.raises(DeviceCoreError, match=step["allocate"]["error"]):
                    self.options(pod)
        if "pre_start_called_with" in step:
            told = step["pre_start_called_with"]
            assert plugin.started == ([told] if told else [])
            plugin.started.clear()
        if "allocated" in step:  # a kubelet leaks a device that no container received, but we do not
            assert self.in_use() == ({} if "container_responses" in answer else step["allocated"])

    def in_use(self) -> dict[str, int]:
        ledger = self.manager.state.ledger
        return {name: len(ledger.in_use(name)) for name in ledger.resources}

    def options(self, pod: Pod) -> dict[str, int] | None:
        merged = self.manager.start_container(pod, pod.containers[0].name)
        counts = merged and {name: len(getattr(merged, name)) for name in ("devices", "mounts", "envs")}
        return counts if counts and any(counts.values()) else None


def simple_pod(name: str, limits: dict[str, int]) -> Pod:
    """Return a pod with one container."""
    return recorded.pod({"uid": name, "containers": [{"name": "c", "limits": limits}]})


def of_shape(key: str) -> list[str]:
    """Return the names of the cases that have `key`."""
    return [name for name, case in FLOWS.items() if key in case]


def test_no_case_is_left_out() -> None:
    """A test in this directory knows the form of each case, except for one whose outcome is given only in words."""
    shapes = [of_shape(key) for key in ("steps", "expect", "registered", "node_allocatable_before")]
    in_words = {"second resource fails: the first one's allocation stays stored"}  # see the next test
    assert sorted([*in_words, *(name for shape in shapes for name in shape)]) == sorted(FLOWS)


def test_a_second_resource_that_fails_takes_the_first_ones_allocation_with_it() -> None:
    """A kubelet keeps the first allocation until the next sweep. Here, a failed admission changes nothing."""
    case = FLOWS["PodContainerDeviceAllocation"]
    for failing in case["devices"]:
        flow = Flow(case)
        with flow.manager:
            flow.plugins[failing].failure = RuntimeError("boom")
            before = flow.manager.state
            assert str(flow.manager.admit(simple_pod("p", dict.fromkeys(case["devices"], 1)))) == "boom"
            assert flow.manager.state == before


@pytest.mark.filterwarnings("ignore:pod .* holds no:RuntimeWarning")  # a case starts a pod that was never admitted
@pytest.mark.parametrize("name", of_shape("steps"))
def test_pods_start_and_end_as_on_a_kubelet(name: str) -> None:
    """Each step that admits a pod or requests its settings has the recorded outcome."""
    flow = Flow(FLOWS[name])
    pods = {step["pod"]: simple_pod(step["pod"], step["limits"]) for step in FLOWS[name]["steps"] if "pod" in step}
    with flow.manager:
        for step in FLOWS[name]["steps"]:
            if "pod" in step:
                flow.admit(pods[step["pod"]], step)
            elif "active_pods" in step:
                flow.pods.active.intersection_update(step["active_pods"])
                flow.manager.update_allocated_devices()
            else:
                assert flow.options(pods[step["get_options"]]) == step["expect"]


@pytest.mark.parametrize("name", of_shape("expect"))
def test_devices_of_init_containers_are_reusable_those_of_sidecars_are_not(name: str) -> None:
    """The number of each container's devices, and which devices containers share, are as recorded."""
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


@pytest.mark.parametrize("name", of_shape("registered"))
def test_what_dynamic_resource_allocation_serves_is_left_alone(name: str) -> None:
    """A claimed resource needs no plugin, but the same request without a claim is refused."""
    case = FLOWS[name]
    held = NodeState(ledger=recorded.ledger({"another pod": {"c": case["allocated"]}}))
    flow = Flow(case, checkpoint.encode(checkpoint.checkpoint_of(held)))
    pod = recorded.pod(case["pod"])
    with flow.manager:
        flow.pods.active.add(PodUid("another pod"))
        if case["feature_gates"]["DRAExtendedResource"]:
            claims = case["pod"]["extended_resource_claim_mappings"]
            mappings = [RequestMapping(claim["container"], claim["resource"]) for claim in claims]
            pod = evolve(pod, extended_claim=ExtendedClaim("extended", mappings))
        verdict = flow.manager.admit(pod)
        outcome = "ok" if isinstance(verdict, Admitted) else {"error": str(verdict)}
        assert outcome == case["allocate"]


@pytest.mark.parametrize("row", OPTIONS, ids=[row["id"] for row in OPTIONS])
def test_answers_merge_into_the_settings_of_a_container(row: Json) -> None:
    """For each name or container path, the first value wins.

    The order of several resources differs from the kubelet's.
    """
    in_order: Callable[[list[Json]], list[Json]] = list if row["compare"] == "exact" else partial(sorted, key=str)
    merged = merge({ResourceName(name): options_response(answer) for name, answer in row["responses"].items()})
    expected = row["expected"]
    said: dict[str, list[Json]] = {
        "envs": [{"name": name, "value": value} for name, value in merged.envs.items()],
        "mounts": [
            {
                "name": mount.container_path,
                "container_path": mount.container_path,
                "host_path": mount.host_path,
                "read_only": mount.read_only,
                "selinux_relabel": False,
            }
            for mount in merged.mounts
        ],
        "devices": list(map(asdict, merged.devices)),
        "annotations": [{"name": name, "value": value} for name, value in merged.annotations.items()],
        "cdi_devices": list(merged.cdi_devices),
    }
    for env in expected["envs"]:  # "1 or 2": we visit resources in the order of their names
        env["value"] = env["value"].split(" or ")[0]
    assert {key: in_order(listed) for key, listed in said.items()} == {
        key: in_order(listed) for key, listed in expected.items()
    }


def options_response(row: Json) -> ContainerAllocateResponse:
    """Return the answer to Allocate that an options case describes."""
    return response(row)


@pytest.mark.parametrize("case", STORES, ids=[case["id"] for case in STORES])
def test_plugin_instances_live_side_by_side(case: Json) -> None:
    """The latest instance is used, a surviving one takes over, and a socket has only one instance.

    In a kubelet, a late disconnect removes a newer instance on the same socket. Here, it changes nothing.
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
            case "set_primary":  # in this case, the surviving instance is the later one, so the outcome is the same
                assert inventory.resources[name].plugin
            case "disconnect":  # the oldest instance on this socket that has not disconnected yet
                gone = by_socket.get(slot, [])
                before = inventory
                late = len(gone) == 0 or (case["id"].startswith("late disconnect") and "p2" in ids)
                inventory = inventory.disconnect(ids[gone.pop(0)] if gone and not late else PluginId(*slot, 0), 0.0)
                assert not late or inventory is before
            case "allocate":  # the current instance is the one that is called
                current = inventory.resources[name].plugin
                asked = {plugin: int(current is not None and ids.get(plugin) == current.id) for plugin in ("p1", "p2")}
                assert asked == step["expect"]["calls"]
            case op:
                assert op == "assert"
                if not (case["id"].startswith("late disconnect") and "healthy_size" in step):
                    assert_store(inventory, ids, step)


def assert_store(inventory: Inventory, ids: dict[str, PluginId], step: Json) -> None:
    """Check an `assert` step of the endpoint store's cases."""
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
        report = inventory.current_report(ResourceName(name))
        assert len(report.healthy if report else ()) == size
    for name, size in step.get("unhealthy_size", {}).items():
        report = inventory.current_report(ResourceName(name))
        assert len(report.unhealthy if report else ()) == size


@pytest.mark.parametrize("row", CLIENTS, ids=[row["id"] for row in CLIENTS])
def test_each_socket_of_a_resource_is_one_client(row: Json) -> None:
    """Instances are registered and deregistered for a resource and a socket.

    A connection that fails does not affect a working one on the same socket, which a kubelet forgets (#124716).
    """
    inventory = Inventory()
    clients: dict[str, PluginId] = {}
    names: dict[PluginId, str] = {}
    for step in row["steps"]:
        action, place, *client = step.split()
        name, socket = place.split("/")
        id_ = PluginId(ResourceName(name), socket, len(names) + 1)
        match action:
            case "register":
                inventory = inventory.connect(id_, PluginOptions())
                clients[place], names[id_] = id_, client[0]
            case "connect":
                with pytest.raises(PluginAlreadyConnectedError):
                    inventory.connect(id_, PluginOptions())
            case _:
                assert action == "deregister"
                inventory = inventory.disconnect(clients.get(place, id_), 0.0)
    live = {name: known.plugins for name, known in inventory.resources.items() if known.plugins}
    if "expect" in row:
        left = {"n": ["A:c1"]} if row["id"].startswith("failed connect") else row["expect"]
        assert {name: [f"{it.id.socket}:{names[it.id]}" for it in of] for name, of in live.items()} == left
    for place, client in row.get("get", {}).items():
        name, socket = place.split("/")
        found = [names[it.id] for it in live.get(ResourceName(name), ()) if it.id.socket == socket]
        assert found == ([client] if client else [])


def test_the_latest_of_several_registrations_is_what_a_node_has() -> None:
    """If a resource registers again with another socket, its devices replace the earlier ones."""
    with MemoryManager() as manager:
        for step in REGISTERED_AGAIN["steps"]:
            name = REGISTERED_AGAIN["resource"]
            plugin = StubPlugin(name, [Device(DeviceId(id_)) for id_ in step["devices"]])
            manager.transport.connect(plugin, step["socket"])
            status = manager.tick()
            shown = {"capacity": status.capacity[name], "allocatable": status.allocatable[name]}
            assert shown == step["after_update"]


@pytest.mark.parametrize("row", DEVICES["get_container_devices"], ids=str)
def test_a_stored_device_has_the_nodes_it_is_stored_under(row: Json) -> None:
    """A device stored under -1 has no NUMA node, and an entry stored without devices has no devices."""
    entry = checkpoint.PodDevicesEntry(
        "p", "c", "r", {int(node): tuple(ids) for node, ids in row["stored"].items()}, b""
    )
    expected = {} if isinstance(row["expected"], str) else row["expected"]
    assert {id_: set(nodes) for id_, nodes in checkpoint.allocation_of(entry).numa_nodes.items()} == {
        id_: set(shown.get("nodes_as_set", ())) for id_, shown in expected.items()
    }


def test_a_checkpoint_says_who_holds_what_and_which_resources_to_expect() -> None:
    """What was written is read again, including receipts. But no device is healthy, and no plugin is known."""
    case = recorded.cases("checkpoint")["round_trip"]
    held = [
        checkpoint.allocation_of(
            checkpoint.PodDevicesEntry(
                row["pod"],
                row["container"],
                row["resource"],
                {int(node): tuple(ids) for node, ids in row["devices"].items()},
                write_receipt(response(row["response"])),
            )
        )
        for row in case["entries"]
    ]
    healthy = {name: [{"id": id_} for id_ in ids] for name, ids in case["healthy"].items()}
    resources = (recorded.resource(name, ids) for name, ids in healthy.items())
    before = NodeState(recorded.inventory(*resources), Ledger.of(held))
    after = checkpoint.restore(checkpoint.decode(checkpoint.CheckpointWriter().file(before)).verified(), 0.0)
    assert after.ledger.allocations == before.ledger.allocations
    in_use = {name: sorted(after.ledger.in_use(name)) for name in after.ledger.resources}
    assert in_use == case["expected_after_read"]["allocated"]
    assert after.inventory.resources.keys() == healthy.keys()
    for known in after.inventory.resources.values():
        assert known.report is not None
        assert (known.plugin, len(known.report.healthy)) == (None, 0)


@pytest.mark.parametrize("row", RUNNING, ids=range(len(RUNNING)))
def test_a_container_that_runs_on_is_left_alone_until_all_pods_are_known(row: Json) -> None:
    """While sources are not ready, a running container needs no plugin to be admitted, but any other container does."""
    mapped = row["container_map"].items()
    running = {ContainerKey(PodUid(pod), name) for id_, (pod, name) in mapped if id_ in row["running"]}
    pods = MemoryPods(ready=False, running=running)
    uid, name = row["query"]
    pod = recorded.pod({"uid": uid, "containers": [{"name": name, "limits": {"a.com/x": 1}}]})
    store = MemoryStore(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"a.com/x":[]}},"Checksum":1156686402}')
    with MemoryManager(store=store, pods=pods) as manager:
        assert isinstance(manager.admit(pod), Admitted) is row["running_expected"]
        pods.ready = True
        assert not isinstance(manager.admit(pod), Admitted)
