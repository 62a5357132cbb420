"""The demo: two nodes, two resources, three pods; then what can go wrong, and how it ends.

Each step is a function of the stage that does one thing, shows it, and says what should have come of it. Read from top
to bottom; what a node and a plugin are made of is in `cluster`.
"""

import json
import signal
import threading
from collections.abc import Mapping, Sequence

from attrs import asdict

from devicecore.cli.cluster import ClusterNode, NodeJson, schedule
from devicecore.cli.stage import Stage, Step
from devicecore.domain.admission import Admitted
from devicecore.domain.checkpoint import judge
from devicecore.domain.model import Container, Pod, PodUid, ResourceName, resource_name

_LONGEST_JSON_LINE = 60

GPU = resource_name("nicktming.com/gpu")
RDMA = resource_name("nicktming.com/rdma")

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
"""What the two nodes have that is no device plugin's."""


def pod(name: str, uid: str, container: str, limits: Mapping[str, int]) -> Pod:
    """A pod with one container."""
    return Pod(PodUid(uid), name=name, containers=(Container(container, limits),))


TEST_GPU_8 = pod("test-gpu-8", "94c13838-fbba-11e9-ba9e-525400d54f7e", "podtest-8", {GPU: 8})
TEST_GPU_3 = pod("test-gpu-3", "b1b2ce7e-fbbb-11e9-ba9e-525400d54f7e", "podtest-3", {GPU: 3})
TEST_GPU2_RDMA10 = pod(
    "test-gpu2-rdma10", "4d589c87-fbc7-11e9-ba9e-525400d54f7e", "testpod-gpu2-rdma10", {GPU: 2, RDMA: 10}
)


# --- devices come, and pods take them ---------------------------------------------------------------------------------


def two_nodes(stage: Stage) -> None:
    """Two nodes, each with a device manager, and no devices yet."""
    first, second = stage.cluster.kubelets
    first.start()
    second.start()
    stage.show_both(describe(first), describe(second))
    stage.tell(nodes={first.name: first.status(), second.name: second.status()})
    stage.check("the first node has no device resource", first.status(), NATIVE[first.name])
    stage.check("the second node has none either", second.status(), NATIVE[second.name])


def a_plugin_registers(stage: Stage) -> None:
    """A plugin with 10 gpu starts on the first node."""
    first, second = stage.cluster.kubelets
    start_plugin(stage, first, GPU)
    stage.wait(f"{first.name} has 10 gpu, all allocatable", lambda: first.counts(GPU), (10, 10))
    stage.check(f"{second.name} has none", second.counts(GPU), (None, None))
    stage.show(describe(first))
    stage.tell(nodes={first.name: first.status(), second.name: second.status()})


def a_pod_runs(stage: Stage) -> None:
    """A pod asks for 8 gpu."""
    first, _ = stage.cluster.kubelets
    run(stage, TEST_GPU_8, first, {GPU: ids(GPU, range(8))})


def a_pod_is_pending(stage: Stage) -> None:
    """A pod asks for 3 gpu."""
    answer = schedule(TEST_GPU_3, stage.cluster.kubelets)
    message = answer.name if isinstance(answer, ClusterNode) else answer
    stage.show(f"{TEST_GPU_3.name}  Pending\n{message}")
    stage.tell(pod=TEST_GPU_3.name, message=message)
    stage.check("it is pending, for no node has 3 gpu left", message, f"0/2 nodes are available: 2 Insufficient {GPU}.")


def the_second_node_joins(stage: Stage) -> None:
    """The same plugin starts on the second node."""
    _, second = stage.cluster.kubelets
    start_plugin(stage, second, GPU)
    stage.wait(f"{second.name} has 10 gpu, all allocatable", lambda: second.counts(GPU), (10, 10))
    stage.show(describe(second))
    stage.tell(nodes={second.name: second.status()})


def the_pending_pod_lands(stage: Stage) -> None:
    """The scheduler tries the pending pod again."""
    _, second = stage.cluster.kubelets
    run(stage, TEST_GPU_3, second, {GPU: ids(GPU, range(3))})


def rdma_joins(stage: Stage) -> None:
    """A plugin with 10 rdma starts on the first node."""
    first, _ = stage.cluster.kubelets
    start_plugin(stage, first, RDMA)
    stage.wait(f"{first.name} has 10 rdma, all allocatable", lambda: first.counts(RDMA), (10, 10))
    stage.check("and 10 gpu, as before", first.counts(GPU), (10, 10))
    stage.show(describe(first))
    stage.tell(nodes={first.name: first.status()})


def a_pod_takes_both(stage: Stage) -> None:
    """A pod asks for 2 gpu and 10 rdma."""
    first, _ = stage.cluster.kubelets
    run(stage, TEST_GPU2_RDMA10, first, {GPU: ids(GPU, range(8, 10)), RDMA: ids(RDMA, range(10))})


# --- what lasts -------------------------------------------------------------------------------------------------------


def the_checkpoint(stage: Stage) -> None:
    """The first node's checkpoint knows all that."""
    first, _ = stage.cluster.kubelets
    blob = first.checkpoint.read_bytes()
    found = judge(blob)
    stage.show(pretty(abridged(json.loads(blob))))
    stage.tell(**{**asdict(found), "verdict": found.verdict.value})
    stage.check("it is a file of format 2", found.format, 2)
    stage.check("it has 3 entries, of 2 resources", (found.entries, found.resources), (3, 2))
    stage.check(f"the checksum of its data is {found.computed}, as it says", found.stored, found.computed)


def the_kubelet_restarts(stage: Stage) -> None:
    """The kubelet of the first node restarts."""
    first, _ = stage.cluster.kubelets
    before = first.containers()
    first.restart()
    stage.check("it has read 3 allocations", first.manager.restored.allocations, 3)
    stage.wait("the gpu plugin has registered again, by itself", lambda: first.counts(GPU), (10, 10))
    stage.wait("the rdma plugin as well", lambda: first.counts(RDMA), (10, 10))
    for known in tuple(first.pods):
        stage.check(f"{known.name} is admitted again", outcome(first, known), "Running")
    stage.check("every container has the devices and the environment it had", first.containers(), before)
    stage.tell(nodes={first.name: first.status()}, containers=first.containers())


def a_plugin_dies(stage: Stage) -> None:
    """The gpu plugin of the first node is killed."""
    first, _ = stage.cluster.kubelets
    before = first.containers()
    plugin = stage.cluster.plugin(first, GPU)
    stage.show(f"$ kill -9 {plugin.pid}", style="cyan")
    plugin.kill()
    stage.wait("capacity stays 10, allocatable drops to 0", lambda: first.counts(GPU), (10, 0))
    stage.check("the containers keep what they have", first.containers(), before)
    stage.tell(pid=plugin.pid, nodes={first.name: first.status()})


def it_comes_back(stage: Stage) -> None:
    """It is started again."""
    first, _ = stage.cluster.kubelets
    start_plugin(stage, first, GPU)
    stage.wait("10 of 10 gpu are allocatable again", lambda: first.counts(GPU), (10, 10))
    stage.tell(nodes={first.name: first.status()})


def a_device_turns_unhealthy(stage: Stage) -> None:
    """It is told on its standard input that a device is broken."""
    first, _ = stage.cluster.kubelets
    command = f"unhealthy {GPU}-9"
    stage.show(command, style="cyan")
    stage.cluster.plugin(first, GPU).tell(command)
    stage.wait("capacity stays 10, allocatable is one less", lambda: first.counts(GPU), (10, 9))
    stage.tell(nodes={first.name: first.status()})


def nothing_is_left(stage: Stage) -> None:
    """Everything is stopped, and nothing is left behind."""
    cluster = stage.cluster
    cluster.stop()
    ends = [plugin.status for plugin in cluster.plugins]
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("devicecore")]
    sockets = cluster.sockets()
    cluster.clear()
    directories = [str(cluster.root)] if cluster.root.exists() else []
    stage.tell(plugins=ends, threads=threads, sockets=sockets, directories=directories)
    stage.check("no process: but for the one that was killed, all plugins ended well", ends, [-signal.SIGKILL, 0, 0, 0])
    stage.check("no thread", threads, [])
    stage.check("no socket", sockets, [])
    stage.check(f"no file: {cluster.root} is gone", directories, [])


STORY: Sequence[Step] = (
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
    nothing_is_left,
)


# --- what the steps have in common ------------------------------------------------------------------------------------


def start_plugin(stage: Stage, kubelet: ClusterNode, resource: ResourceName) -> None:
    """Start a plugin process on a node, and say how."""
    plugin = stage.cluster.start_plugin(kubelet, resource)
    stage.show(f"$ devicecore {' '.join(plugin.arguments)} &", style="cyan")
    stage.tell(pid=plugin.pid)


def run(stage: Stage, pod: Pod, kubelet: ClusterNode, devices: Mapping[str, tuple[str, ...]]) -> None:
    """Schedule a pod, which should come to this node, and run it, when its one container should have these devices."""
    answer = schedule(pod, stage.cluster.kubelets)
    node = answer.name if isinstance(answer, ClusterNode) else answer
    stage.check(f"{pod.name} comes to {kubelet.name}", node, kubelet.name)
    stage.check("it is admitted", outcome(kubelet, pod), "Running")
    (container,) = pod.containers
    given = kubelet.containers()[container.name]
    stage.show(f"{pod.name}  Running  {node}")
    stage.show("\n".join(f"{name}={value}" for name, value in given["environment"].items()))
    stage.tell(pod=pod.name, node=node, containers={container.name: given})
    for resource, expected in devices.items():
        named = given["environment"].get(f"NVIDIA_VISIBLE_DEVICES/{resource}")
        what = f"{container.name} has {len(expected)} {resource}, named in its environment"
        stage.check(what, (given["devices"].get(resource), named), (expected, ",".join(expected)))


def outcome(kubelet: ClusterNode, pod: Pod) -> str:
    """What becomes of a pod on a node: `Running`, or why not."""
    verdict = kubelet.run(pod)
    return "Running" if isinstance(verdict, Admitted) else str(verdict)


def ids(resource: ResourceName, numbers: range) -> tuple[str, ...]:
    """Devices of a simulated plugin."""
    return tuple(f"{resource}-{number}" for number in numbers)


def describe(kubelet: ClusterNode) -> str:
    """A node's resources as `kubectl describe node` shows them."""
    lines = [f"Name: {kubelet.name}"]
    for heading, quantities in kubelet.status().items():
        lines.append(f"{heading.capitalize()}:")
        width = max(map(len, quantities)) + 2
        lines += [f"  {name + ':':{width}} {quantity}" for name, quantity in sorted(quantities.items())]
    return "\n".join(lines)


def abridged(value: object) -> object:
    """JSON with long lists and texts cut."""
    match value:
        case [str(first), _, *_]:
            return [first, f"... and {len(value) - 1} more"]
        case list():
            return [abridged(item) for item in value]
        case dict():
            return {name: abridged(item) for name, item in value.items()}
        case str() if len(value) > len("an object's UID, such as all pods have"):
            return f"{value[:24]}... and {len(value) - 24} more"
        case _:
            return value


def pretty(value: object, indent: str = "") -> str:
    """JSON over several lines, where it would not fit on one."""
    line = json.dumps(value)
    if len(line) <= _LONGEST_JSON_LINE:
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
