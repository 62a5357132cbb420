"""The same pods on a real kubelet that pins CPUs and memory, on `devicecore kubelet`, and on a fleet's node.

The machine is simulated from a description. After each pod, the three nodes' reports and state files are compared.
`fits` must have predicted the real kubelet's result, and `why` must explain a rejection.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from devicecore_tools.numa import CPU_FILE, MEMORY_FILE, described_machine

from devicecore.adapters.pod_resources import PodResourcesClient, PodResourcesError
from devicecore.domain.quantity import Quantity
from tests.real_cluster.cases_numa import MACHINE, SETTINGS, Setting, Step
from tests.real_cluster.checks_pods import asked
from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.differences import differences
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import GPU, ClusterNode, FleetNode, OurNode
from tests.real_cluster.programs import wait_for

Json = Any

_GPUS = 4
_NUMA_NODES = 4
_SETTLED = 3.0  # seconds for which the nodes' state files may differ after a container has started
_REFUSED = 1
_OF_UIDS = ("checksum", "data", "dataChecksum")
"""Fields of a state file that differ between nodes only because pod UIDs differ."""
_MANAGED = ("cpu", "memory", "hugepages-2Mi", GPU)


@define
class Nodes:
    """The real kubelet and the devicecore nodes, each with its pods in a separate namespace."""

    plane: ControlPlane
    real: RealKubelet
    ours: Mapping[str, ClusterNode]
    problems: list[str] = field(factory=list)

    @property
    def all(self) -> tuple[ClusterNode, ...]:
        """All nodes, the real kubelet first."""
        return self.real, *self.ours.values()


@pytest.fixture(scope="module", params=[*SETTINGS])
def setting(request: pytest.FixtureRequest) -> Setting:
    return SETTINGS[request.param]


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane, setting: Setting) -> Iterator[Nodes]:
    configuration = dict(setting.configuration)
    topology = {
        name: configuration[key]
        for name, key in (("policy", "topologyManagerPolicy"), ("scope", "topologyManagerScope"))
        if key in configuration
    }
    pinning = {
        name: value
        for name, value in configuration.items()
        if not name.startswith("topologyManager") and name != "cpuManagerReconcilePeriod"
    }
    with ExitStack() as last_to_first:
        real = RealKubelet(plane, f"{setting.prefix}-real", configuration, machine=_as_cadvisor_says_it())
        file = plane.directory / "machine.json"
        file.write_text(json.dumps(MACHINE), encoding="utf-8")
        ours = OurNode(plane, f"{setting.prefix}-ours", (f"--machine={file}", *setting.flags))
        group = {"machine": MACHINE, "kubelet": pinning, "topologyManager": topology}
        fleet = FleetNode(plane, f"{setting.prefix}-fleet", group, _GPUS)
        fleet.capacity = {**group, "directory": str(fleet.directory)}
        found = Nodes(plane, real, {"devicecore kubelet": ours, "fleet": fleet})
        for node in found.all:
            last_to_first.enter_context(node)
            last_to_first.callback(plane.admin.delete, "Node", node.name)
            plane.admin.create({"kind": "Namespace", "metadata": {"name": node.name}})
            last_to_first.callback(plane.admin.delete, "Namespace", node.name)
            node.plugin(GPU, _GPUS, f"--numa-nodes=0-{_NUMA_NODES - 1}")
            plane.admin.wait("ServiceAccount", "default", "to exist", lambda one: one, node.name)
            plane.admin.wait("ConfigMap", "kube-root-ca.crt", "to exist", lambda one: one, node.name)
        yield found
        for node in found.all:
            for pod in plane.admin.list("Pod", node.name):
                plane.admin.delete("Pod", pod["metadata"]["name"], node.name, grace=0)


def test_pods_get_the_same_cpus_and_memory(nodes: Nodes, setting: Setting, tmp_path: Path) -> None:
    """Check `fits` before each pod, the state files and pod-resources API after it, and `why` after each rejection."""
    problems = list(_of_node_objects(nodes))
    for step in setting.steps:
        found = list(_of_step(nodes, step, tmp_path))
        say("\n  ".join([f"{step.pod}: {step.refused or 'runs'}", *found]))
        problems += [f"{step.pod}: {one}" for one in found]
    assert not problems, "\n".join(problems)


def test_thirty_pods_arrive_under_both_settings() -> None:
    assert sum(len(one.steps) for one in SETTINGS.values()) >= 30


def _as_cadvisor_says_it() -> Json:
    """Return the machine in cAdvisor's format, with the totals that a kubelet expects."""
    described: Json = described_machine(MACHINE)
    pages: dict[int, int] = {}
    for node in described["topology"]:
        for one in node["hugepages"]:
            pages[one["page_size"]] = pages.get(one["page_size"], 0) + one["num_pages"]
    whole = [{"page_size": size, "num_pages": count} for size, count in pages.items()]
    memory = sum(node["memory"] for node in described["topology"])
    return {**described, "memory_capacity": memory, "hugepages": whole}


def _of_node_objects(nodes: Nodes) -> Iterator[str]:
    """Yield the differences between the Nodes' CPUs, memory and devices."""

    def sizes(node: ClusterNode) -> Json:
        status = nodes.plane.admin.get("Node", node.name)["status"]
        return {
            key: {name: status[key].get(name) for name in _MANAGED if name in status[key]}
            for key in ("capacity", "allocatable")
        }

    real = sizes(nodes.real)
    for name, node in nodes.ours.items():
        yield from (f"Node of {name}: {one}" for one in differences(sizes(node), real))


def _of_step(nodes: Nodes, step: Step, where: Path) -> Iterator[str]:
    """Create a pod on each node, and yield how the nodes differ, and where `fits` or `why` is wrong."""
    _prepare(nodes, step)
    said = _fits(nodes, step, where)
    for node in nodes.all:
        metadata = {"name": step.pod, "namespace": node.name}
        nodes.plane.admin.create({"kind": "Pod", "metadata": metadata, "spec": {**step.spec, "nodeName": node.name}})
    ends = {node.name: _end(nodes, node, step.pod) for node in nodes.all}
    real = ends[nodes.real.name]
    if (real["phase"] == "Failed") != bool(step.refused) or step.refused not in real["message"]:
        yield f"expected from the kubelet: {step.refused or 'it runs'}, got {real}"
    for name, node in nodes.ours.items():
        yield from (f"{name}: status.{one}" for one in differences(ends[node.name], real))
        yield from (f"{name}: {one}" for one in _settled_differences(nodes, node))
    yield from _judged_fits(nodes, step, said, real)
    if real["phase"] == "Failed":
        yield from _judged_why(nodes, step, where, real)
    else:
        yield from _given_to_the_runtime(nodes, step)


def _prepare(nodes: Nodes, step: Step) -> None:
    """Delete the pods that must be gone before this step, and restart the kubelets if the step says so."""
    for node in nodes.all:
        for name in step.after:
            nodes.plane.admin.delete("Pod", name, node.name, grace=0)
    for node in nodes.all:
        if step.after:
            _wait_until_gone(nodes, node, step.after)
        if step.restarts:
            with node.without_kubelet():
                pass
            node.wait_for_resource(GPU, _GPUS)
            _wait_until_listed(nodes, node)


def _end(nodes: Nodes, node: ClusterNode, pod: str) -> Json:
    """Wait until a pod runs or has failed, and return its phase, reason and message."""

    def has_come(one: Json) -> bool:
        status = one["status"]
        ready = [each["ready"] for each in status.get("containerStatuses") or ()]
        return status.get("phase") == "Failed" or (status.get("phase") == "Running" and all(ready))

    status = nodes.plane.admin.wait("Pod", pod, "to run or to fail", has_come, node.name)["status"]
    return {name: status.get(name, "") for name in ("phase", "reason", "message")}


def _names(nodes: Nodes, node: ClusterNode) -> dict[str, str]:
    return {one["metadata"]["uid"]: one["metadata"]["name"] for one in nodes.plane.admin.list("Pod", node.name)}


def _states(nodes: Nodes, node: ClusterNode) -> Json:
    """Return what a node has stored and reports about its pods, with pod names instead of UIDs."""
    names = _names(nodes, node)
    found = {}
    for file in (CPU_FILE, MEMORY_FILE):
        state = json.loads((node.directory / file).read_text("utf-8"))
        state = {"is_repeated": _is_repeated(state), **{key: state[key] for key in state if key not in _OF_UIDS}}
        entries = state.get("entries") or {}
        found[file] = {**state, "entries": {names.get(uid, uid): entries[uid] for uid in sorted(entries)}}
    with PodResourcesClient(node.directory / "pod-resources" / "kubelet.sock") as client:
        listed, allocatable = client.list().pod_resources, client.get_allocatable_resources()
    found["List"] = {
        one.name: {each.name: _resources(each) for each in one.containers}
        for one in sorted(listed, key=lambda one: one.name)
        if one.namespace == node.name
    }
    found["GetAllocatableResources"] = _resources(allocatable)
    return found


def _is_repeated(state: Json) -> bool:
    """Return whether the field `data` of a state file, if any, repeats the file's other fields, as in kubelet 1.37."""
    return "data" not in state or json.loads(state["data"]) == {key: state[key] for key in state if key not in _OF_UIDS}


def _resources(of: Json) -> Json:
    """Return a response's CPUs, memory and devices, without ids, because any device of a NUMA node may be chosen."""
    devices = [
        (one.resource_name, tuple(node.ID for node in one.topology.nodes)) for one in of.devices for _ in one.device_ids
    ]
    memory = [(one.memory_type, one.size, tuple(node.ID for node in one.topology.nodes)) for one in of.memory]
    return {"cpu_ids": sorted(of.cpu_ids), "memory": sorted(map(str, memory)), "devices": sorted(map(str, devices))}


def _settled_differences(nodes: Nodes, node: ClusterNode) -> list[str]:
    """Wait a while until a devicecore node and the kubelet no longer differ, and return the remaining differences."""
    end = time.monotonic() + _SETTLED
    while True:
        found = [str(one) for one in differences(_states(nodes, node), _states(nodes, nodes.real))]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.3)


def _wait_until_gone(nodes: Nodes, node: ClusterNode, pods: tuple[str, ...]) -> None:
    """Wait until the node has released the CPUs of deleted pods, so that the next pod can have these CPUs."""

    def is_gone() -> bool:
        names = _names(nodes, node)
        held = json.loads((node.directory / CPU_FILE).read_text("utf-8")).get("entries") or {}
        return not set(names.values()) & set(pods) and set(held) <= set(names)

    wait_for(f"{', '.join(pods)} to be gone from {node.name}", is_gone, 60.0)


def _wait_until_listed(nodes: Nodes, node: ClusterNode) -> None:
    """Wait until a restarted node lists all its running pods. Until then, `fits` could not give a definite answer."""

    def is_listed() -> bool:
        running = {
            one["metadata"]["name"]
            for one in nodes.plane.admin.list("Pod", node.name)
            if one["status"].get("phase") == "Running"
        }
        with (
            suppress(PodResourcesError),  # a node that is still starting may not answer
            PodResourcesClient(node.directory / "pod-resources" / "kubelet.sock") as client,
        ):
            return running <= {one.name for one in client.list().pod_resources}
        return False

    wait_for(f"{node.name} to list its pods", is_listed, 60.0)


# --- the tools' answers -----------------------------------------------------------------------------------------------


def _fits(nodes: Nodes, step: Step, where: Path) -> tuple[int, Json]:
    """Run `fits` for the pod on the real kubelet's node, and return its exit status and its result for the node."""
    file, pods = where / f"{step.pod}.json", where / "pods.json"
    metadata = {"name": step.pod, "namespace": nodes.real.name}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": step.spec}))
    listed = nodes.plane.admin.list("Pod", nodes.real.name)
    pods.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": listed}))
    status, text = asked("fits", str(file), "--node", str(nodes.real.directory), "--pods", str(pods), "--json")
    document = json.loads(text[text.index("{") :]) if "{" in text else {"nodes": [{"fits": None, "reason": text}]}
    return status, document["nodes"][0]


def _judged_fits(nodes: Nodes, step: Step, said: tuple[int, Json], real: Json) -> Iterator[str]:
    """Yield the differences between what `fits` predicted and what the kubelet then did."""
    status, node = said
    if real["phase"] == "Failed":
        if status != _REFUSED or node["reason"] not in real["message"]:
            yield f"fits: exit status {status}, {node}, but the kubelet refuses it: {real}"
        return
    ended = {one["name"] for one in step.spec.get("initContainers", ()) if one["name"].startswith("init-")}
    expected = sorted(tuple(one) for one in _pinned(nodes, step) if one[0] not in ended)
    pinned = [(one["container"], one["resource"], one["what"]) for one in node.get("pinned") or ()]
    if status or sorted(one for one in pinned if one[0] not in ended) != expected:
        node = {key: node.get(key) for key in ("fits", "reason", "pinned", "warnings", "doubts")}
        yield f"fits: exit status {status}, {node}, but the kubelet gives {expected}"


def _pinned(nodes: Nodes, step: Step) -> Iterator[tuple[str, str, str]]:
    """Yield what each of a pod's containers holds according to the kubelet's state files, in the wording of `fits`."""
    uid = nodes.plane.admin.get("Pod", step.pod, nodes.real.name)["metadata"]["uid"]
    cpus, memory = (
        (json.loads((nodes.real.directory / file).read_text("utf-8")).get("entries") or {}).get(uid, {})
        for file in (CPU_FILE, MEMORY_FILE)
    )
    for container, held in cpus.items():
        yield container, "cpu", held
    for container, blocks in memory.items():
        for block in blocks:
            on = block["numaAffinity"]
            noun = "NUMA node" if len(on) == 1 else "NUMA nodes"
            size = Quantity.of(block["size"], binary=True)
            yield container, block["type"], f"{size} on {noun} {', '.join(map(str, on))}"


def _judged_why(nodes: Nodes, step: Step, where: Path, real: Json) -> Iterator[str]:
    """Yield what is wrong in the output of `why` about a pod that the kubelet has rejected."""
    file = where / f"refused-{step.pod}.json"
    pod = {"apiVersion": "v1", "kind": "Pod", **nodes.plane.admin.get("Pod", step.pod, nodes.real.name)}
    file.write_text(json.dumps(pod))
    status, text = asked("why", str(file), "--root", str(nodes.real.directory), "--json")
    document = json.loads(text[text.index("{") :]) if "{" in text else {}
    trial = document.get("trial") or {}
    if status or not document.get("explanations") or trial.get("fits") is not False:
        yield f"why: exit status {status}, {text[:600]}, but the kubelet refuses it: {real}"
    elif trial["refusal"] not in real["message"]:
        yield f"why: {trial['refusal']}, but the kubelet refuses it: {real}"


def _given_to_the_runtime(nodes: Nodes, step: Step) -> Iterator[str]:
    """Yield the containers for which the runtime got other CPUs or NUMA nodes than `devicecore kubelet` recorded."""
    state = _states(nodes, nodes.ours["devicecore kubelet"])
    cpus = state[CPU_FILE]["entries"].get(step.pod, {})
    memory = state[MEMORY_FILE]["entries"].get(step.pod, {})
    for one in step.spec["containers"]:
        linux = nodes.real.container(step.pod, one["name"])["linux"]["resources"]
        blocks = [node for block in memory.get(one["name"], ()) for node in block["numaAffinity"]]
        expected = cpus.get(one["name"], state[CPU_FILE]["defaultCpuSet"]), ",".join(map(str, sorted({*blocks})))
        given = linux.get("cpuset_cpus", ""), linux.get("cpuset_mems", "")
        if given != expected:
            yield f"{one['name']}: the runtime got the CPUs and NUMA nodes {given}, but {expected} were recorded"
