"""The steps of the demo: two nodes, two resources, three pods, failures and recoveries, and then a claim.

Law: each step is a function that does one thing and checks the result. Read from top to bottom.
"""

import json
import signal
import threading
from collections.abc import Mapping, Sequence

from attrs import asdict

from devicecore.adapters.manifests.pods import read_manifest
from devicecore.domain.admission import Admitted
from devicecore.domain.allocation import DeviceAllocation, NoAllocation, TargetNode, allocate, claim_of, class_of
from devicecore.domain.checkpoint import judge
from devicecore.domain.model import Container, Pod, PodUid, ResourceName, resource_name
from devicecore_tools.command.demo.cluster import ClusterNode, NodeJson, schedule
from devicecore_tools.command.demo.steps import Step, StepRun
from devicecore_tools.command.signals import THREAD as SIGNALS_THREAD
from devicecore_tools.expressions import Expressions

_MAX_JSON_LINE = 60

GPU = resource_name("example.com/gpu")
RDMA = resource_name("example.com/rdma")

_BOTH = {"cpu": "2", "hugepages-1Gi": "0", "hugepages-2Mi": "0", "pods": "110"}
NATIVE: Mapping[str, NodeJson] = {
    "172.21.0.16": {
        "capacity": {**_BOTH, "ephemeral-storage": "51473888Ki", "memory": "8009720Ki"},
        "allocatable": {**_BOTH, "ephemeral-storage": "47438335103", "memory": "7907320Ki"},
    },
    "172.21.0.12": {
        "capacity": {**_BOTH, "ephemeral-storage": "51473888Ki", "memory": "3880944Ki"},
        "allocatable": {**_BOTH, "ephemeral-storage": "47438335103", "memory": "3778544Ki"},
    },
}
"""The resources of each node, not including devices."""


def pod(name: str, uid: str, container: str, limits: Mapping[str, int]) -> Pod:
    """Return a pod with one container."""
    return Pod(PodUid(uid), name=name, containers=(Container(container, limits),))


TEST_GPU_8 = pod("test-gpu-8", "94c13838-fbba-11e9-ba9e-525400d54f7e", "podtest-8", {GPU: 8})
TEST_GPU_3 = pod("test-gpu-3", "b1b2ce7e-fbbb-11e9-ba9e-525400d54f7e", "podtest-3", {GPU: 3})
TEST_GPU2_RDMA10 = pod(
    "test-gpu2-rdma10", "4d589c87-fbc7-11e9-ba9e-525400d54f7e", "testpod-gpu2-rdma10", {GPU: 2, RDMA: 10}
)

DRIVER = "chip.example.com"
CHIP_CLASS = {
    "metadata": {"name": "chip"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
TEST_CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "one-chip", "uid": "7f0c1a52-6c1b-4d43-9d0e-2b8f6f1f7c11"},
    "spec": {"devices": {"requests": [{"name": "chip", "exactly": {"deviceClassName": "chip"}}]}},
}
CLAIM_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "test-claim", "uid": "c5b3b4a0-4a53-4f0e-8a32-5d2f6a0b9e21"},
    "spec": {
        "resourceClaims": [{"name": "chip", "resourceClaimName": "one-chip"}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": "chip"}]}}],
    },
}


# --- devices appear, and pods take them -------------------------------------------------------------------------------


def two_nodes(step: StepRun) -> None:
    """Two nodes, each with a device manager, and no devices yet."""
    first, second = step.cluster.nodes
    first.start()
    second.start()
    step.show_both(describe(first), describe(second))
    step.record(nodes={first.name: first.status(), second.name: second.status()})
    step.check("the first node has no device resources", first.status(), NATIVE[first.name])
    step.check("the second node has no device resources either", second.status(), NATIVE[second.name])


def a_plugin_registers(step: StepRun) -> None:
    """A plugin with 10 gpu starts on the first node."""
    first, second = step.cluster.nodes
    start_plugin(step, first, GPU)
    step.wait(f"{first.name} has 10 gpu, all allocatable", lambda: first.counts(GPU), (10, 10))
    step.check(f"{second.name} has no gpu", second.counts(GPU), (None, None))
    step.show(describe(first))
    step.record(nodes={first.name: first.status(), second.name: second.status()})


def a_pod_runs(step: StepRun) -> None:
    """A pod requests 8 gpu."""
    first, _ = step.cluster.nodes
    run(step, TEST_GPU_8, first, {GPU: ids(GPU, range(8))})


def a_pod_is_pending(step: StepRun) -> None:
    """A pod requests 3 gpu."""
    answer = schedule(TEST_GPU_3, step.cluster.nodes)
    message = answer.name if isinstance(answer, ClusterNode) else answer
    step.show(f"{TEST_GPU_3.name}  Pending\n{message}")
    step.record(pod=TEST_GPU_3.name, message=message)
    step.check(
        "the pod is pending because no node has 3 gpu left", message, f"0/2 nodes are available: 2 Insufficient {GPU}."
    )


def the_second_node_joins(step: StepRun) -> None:
    """The same plugin starts on the second node."""
    _, second = step.cluster.nodes
    start_plugin(step, second, GPU)
    step.wait(f"{second.name} has 10 gpu, all allocatable", lambda: second.counts(GPU), (10, 10))
    step.show(describe(second))
    step.record(nodes={second.name: second.status()})


def the_pending_pod_lands(step: StepRun) -> None:
    """The scheduler tries the pending pod again."""
    _, second = step.cluster.nodes
    run(step, TEST_GPU_3, second, {GPU: ids(GPU, range(3))})


def rdma_joins(step: StepRun) -> None:
    """A plugin with 10 rdma starts on the first node."""
    first, _ = step.cluster.nodes
    start_plugin(step, first, RDMA)
    step.wait(f"{first.name} has 10 rdma, all allocatable", lambda: first.counts(RDMA), (10, 10))
    step.check(f"{first.name} still has 10 gpu", first.counts(GPU), (10, 10))
    step.show(describe(first))
    step.record(nodes={first.name: first.status()})


def a_pod_takes_both(step: StepRun) -> None:
    """A pod requests 2 gpu and 10 rdma."""
    first, _ = step.cluster.nodes
    run(step, TEST_GPU2_RDMA10, first, {GPU: ids(GPU, range(8, 10)), RDMA: ids(RDMA, range(10))})


# --- what lasts -------------------------------------------------------------------------------------------------------


def the_checkpoint(step: StepRun) -> None:
    """The checkpoint of the first node records these allocations."""
    first, _ = step.cluster.nodes
    blob = first.checkpoint.read_bytes()
    found = judge(blob)
    step.show(pretty(abridged(json.loads(blob))))
    step.record(**{**asdict(found), "verdict": found.verdict.value})
    step.check("the file has format 2", found.format, 2)
    step.check("it has 3 entries for 2 resources", (found.entries, found.resources), (3, 2))
    step.check(f"the checksum in the file matches its data, {found.computed}", found.stored, found.computed)


def the_kubelet_restarts(step: StepRun) -> None:
    """The kubelet of the first node restarts."""
    first, _ = step.cluster.nodes
    before = first.containers()
    first.restart()
    step.check("3 allocations are restored", first.manager.restored.allocations, 3)
    step.wait("the gpu plugin has registered again on its own", lambda: first.counts(GPU), (10, 10))
    step.wait("the rdma plugin has registered again, too", lambda: first.counts(RDMA), (10, 10))
    for known in tuple(first.pods):
        step.check(f"{known.name} is admitted again", outcome(first, known), "Running")
    step.check("every container has the devices and the environment it had", first.containers(), before)
    step.record(nodes={first.name: first.status()}, containers=first.containers())


def a_plugin_dies(step: StepRun) -> None:
    """The gpu plugin of the first node is killed."""
    first, _ = step.cluster.nodes
    before = first.containers()
    plugin = step.cluster.plugin(first, GPU)
    step.show(f"$ kill -9 {plugin.pid}", style="cyan")
    plugin.kill()
    step.wait("capacity stays 10, allocatable drops to 0", lambda: first.counts(GPU), (10, 0))
    step.check("the containers keep their devices", first.containers(), before)
    step.record(pid=plugin.pid, nodes={first.name: first.status()})


def it_comes_back(step: StepRun) -> None:
    """The gpu plugin is started again."""
    first, _ = step.cluster.nodes
    start_plugin(step, first, GPU)
    step.wait("10 of 10 gpu are allocatable again", lambda: first.counts(GPU), (10, 10))
    step.record(nodes={first.name: first.status()})


def a_device_turns_unhealthy(step: StepRun) -> None:
    """A line on the standard input of the plugin makes a device unhealthy."""
    first, _ = step.cluster.nodes
    command = f"unhealthy {GPU}-9"
    step.show(command, style="cyan")
    step.cluster.plugin(first, GPU).obey(command)
    step.wait("capacity stays 10, allocatable drops to 9", lambda: first.counts(GPU), (10, 9))
    step.record(nodes={first.name: first.status()})


# --- a claim ----------------------------------------------------------------------------------------------------------


def a_driver_registers(step: StepRun) -> None:
    """A DRA driver with 8 devices starts on the first node."""
    first, _ = step.cluster.nodes
    driver = step.cluster.start_driver(first, DRIVER)
    step.show(f"$ devicecore {' '.join(driver.arguments)} &", style="cyan")
    step.record(pid=driver.pid)
    step.wait(
        "the node is connected to the driver", lambda: [one.driver for one in first.claims.drivers.connected], [DRIVER]
    )


def a_claim_is_prepared(step: StepRun) -> None:
    """A pod with a ResourceClaim arrives, and the claim is allocated a device."""
    first, _ = step.cluster.nodes
    answer = allocate(
        [claim_of(TEST_CLAIM)],
        TargetNode(first.name),
        step.cluster.driver_slices(first, DRIVER),
        (),
        [class_of(CHIP_CLASS)],
        matches=Expressions(),
    )
    step.check("a device is found for the claim", str(answer) if isinstance(answer, NoAllocation) else "", "")
    assert isinstance(answer, DeviceAllocation)  # noqa: S101 - for mypy: the check has just said so
    (taken,) = answer.devices()
    pod = claim_pod()
    reserved = [{"resource": "pods", "name": pod.name, "uid": pod.uid}]
    claim = {**TEST_CLAIM, "status": {"allocation": answer.results()[0], "reservedFor": reserved}}
    manifest = f"{json.dumps(claim)}\n---\n{json.dumps(CLAIM_POD)}\n"
    (first.manifests / "test-claim.yaml").write_text(manifest)
    step.show(pretty(claim))
    first.claims.prepare(pod)
    names = first.claims.claim_devices(pod, "main")
    environment = cdi_environment(first)
    step.show("\n".join((*names, *environment)))
    step.record(allocated=str(taken.key), cdi_devices=names, environment=environment)
    step.check("its container gets one CDI device", len(names), 1)
    device = taken.key.device
    variable = f"SIMULATED_DEVICE_{device.upper().replace('-', '_')}={first.name}/{device}"
    step.check("the CDI file of the allocated device sets a variable", environment, [variable])


def the_claim_outlives_a_restart(step: StepRun) -> None:
    """The kubelet of the first node restarts, and then the pod ends."""
    first, _ = step.cluster.nodes
    before = first.claims.claim_devices(claim_pod(), "main")
    first.restart()
    step.check("the container still gets the same CDI device", first.claims.claim_devices(claim_pod(), "main"), before)
    step.wait("the driver is found again", lambda: [one.driver for one in first.claims.drivers.connected], [DRIVER])
    first.claims.unprepare(claim_pod().uid)
    step.check("the driver has released the claim: its CDI file is gone", cdi_environment(first), [])


def nothing_is_left(step: StepRun) -> None:
    """Everything is stopped, and nothing is left behind."""
    cluster = step.cluster
    cluster.stop()
    ends = [process.status for process in cluster.processes]
    sockets = cluster.sockets()
    cluster.clear()
    directories = [str(cluster.root)] if cluster.root.exists() else []
    step.record(processes=ends, sockets=sockets, directories=directories)
    step.check("no process is left, and all but the killed one exited cleanly", ends, [-signal.SIGKILL, 0, 0, 0, 0])
    step.wait("no thread is left", own_threads, [])
    step.check("no socket is left", sockets, [])
    step.check(f"no file is left: {cluster.root} is deleted", directories, [])


STEPS: Sequence[Step] = (
    two_nodes,
    a_plugin_registers,
    a_pod_runs,
    a_pod_is_pending,
    the_second_node_joins,
    the_pending_pod_lands,
    rdma_joins,
    a_pod_takes_both,
    the_checkpoint,
    the_kubelet_restarts,
    a_plugin_dies,
    it_comes_back,
    a_device_turns_unhealthy,
    a_driver_registers,
    a_claim_is_prepared,
    the_claim_outlives_a_restart,
    nothing_is_left,
)


# --- shared by the steps ------------------------------------------------------------------------------------


def start_plugin(step: StepRun, node: ClusterNode, resource: ResourceName) -> None:
    """Start a plugin process on a node, and show its command."""
    plugin = step.cluster.start_plugin(node, resource)
    step.show(f"$ devicecore {' '.join(plugin.arguments)} &", style="cyan")
    step.record(pid=plugin.pid)


def run(step: StepRun, pod: Pod, target: ClusterNode, devices: Mapping[str, tuple[str, ...]]) -> None:
    """Schedule and run a pod with one container, and check that the pod runs on this node with these devices."""
    answer = schedule(pod, step.cluster.nodes)
    node = answer.name if isinstance(answer, ClusterNode) else answer
    step.check(f"{pod.name} is scheduled to {target.name}", node, target.name)
    step.check("the node admits it", outcome(target, pod), "Running")
    (container,) = pod.containers
    given = target.containers()[container.name]
    step.show(f"{pod.name}  Running  {node}")
    step.show("\n".join(f"{name}={value}" for name, value in given["environment"].items()))
    step.record(pod=pod.name, node=node, containers={container.name: given})
    for resource, expected in devices.items():
        named = given["environment"].get(f"NVIDIA_VISIBLE_DEVICES/{resource}")
        what = f"{container.name} has {len(expected)} {resource}, as its environment says"
        step.check(what, (given["devices"].get(resource), named), (expected, ",".join(expected)))


def claim_pod() -> Pod:
    """Return the pod that has the claim."""
    (pod,) = read_manifest(json.dumps(CLAIM_POD), "test-claim.yaml").pods
    return pod


def cdi_environment(node: ClusterNode) -> list[str]:
    """Return the variables set by a node's CDI files."""
    files = [json.loads(path.read_bytes()) for path in node.cdi.glob("*.json")]
    return [variable for file in files for device in file["devices"] for variable in device["containerEdits"]["env"]]


def own_threads() -> list[str]:
    """Return devicecore's threads in this process, except the one that waits for signals."""
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("devicecore") and name != SIGNALS_THREAD]


def outcome(node: ClusterNode, pod: Pod) -> str:
    """Run a pod on a node. Return `Running`, or why the node refuses the pod."""
    verdict = node.run(pod)
    return "Running" if isinstance(verdict, Admitted) else str(verdict)


def ids(resource: ResourceName, numbers: range) -> tuple[str, ...]:
    """Return the ids of a simulated plugin's devices with these numbers."""
    return tuple(f"{resource}-{number}" for number in numbers)


def describe(node: ClusterNode) -> str:
    """Return a node's resources as `kubectl describe node` shows them."""
    lines = [f"Name: {node.name}"]
    for heading, quantities in node.status().items():
        lines.append(f"{heading.capitalize()}:")
        width = max(map(len, quantities)) + 2
        lines += [f"  {name + ':':{width}} {quantity}" for name, quantity in sorted(quantities.items())]
    return "\n".join(lines)


def abridged(value: object) -> object:
    """Return JSON in which each list of strings is cut after its first string, and other long strings are shortened."""
    match value:
        case [str(first), _, *_]:
            return [first, f"... and {len(value) - 1} more"]
        case list():
            return [abridged(item) for item in value]
        case dict():
            return {name: abridged(item) for name, item in value.items()}
        case str() if len(value) > len("94c13838-fbba-11e9-ba9e-525400d54f7e+++"):
            return f"{value[:24]}... and {len(value) - 24} more"
        case _:
            return value


def pretty(value: object, indent: str = "") -> str:
    """Return JSON on several lines if it does not fit on one."""
    line = json.dumps(value)
    if len(line) <= _MAX_JSON_LINE:
        return line
    deeper = f"{indent}  "
    match value:
        case dict():
            items = [f"{deeper}{json.dumps(name)}: {pretty(item, deeper)}" for name, item in value.items()]
            return "\n".join(("{", ",\n".join(items), f"{indent}}}"))
        case list():
            items = [deeper + pretty(item, deeper) for item in value]
            return "\n".join(("[", ",\n".join(items), f"{indent}]"))
        case _:
            return line
