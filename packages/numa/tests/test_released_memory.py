"""The memory of init containers that have ended and of refused pods becomes free."""

from devicecore_numa.adapters.described import DescribedMachine, machine_in
from devicecore_numa.domain.machine import CpuLayout
from devicecore_numa.domain.memory_policy import StaticMemoryPolicy
from devicecore_numa.domain.requests import PodRequest, read_pod
from devicecore_numa.managers import MemoryManager

from devicecore.adapters.memory import MemoryStore
from devicecore.domain.documents import Value
from devicecore.domain.model import NumaNode
from devicecore.domain.topology import NumaMask, TopologyHint
from tests.oracle.asking import Json

_GI = 2**30
ANYWHERE = TopologyHint(None, preferred=False)


def manager() -> MemoryManager:
    machine = DescribedMachine(sockets=2, memory=4 * _GI).machine()
    found = MemoryManager(StaticMemoryPolicy(machine, {}), MemoryStore(), lambda pod: PodRequest(str(pod.uid)))
    found.start()
    return found


def container(name: str, memory: str, **more: str) -> Json:
    return {"name": name, "resources": {"limits": {"cpu": "1", "memory": memory}}, **more}


def pod(uid: str, *containers: Json, init: tuple[Json, ...] = ()) -> Json:
    return {"metadata": {"uid": uid}, "spec": {"initContainers": init, "containers": list(containers)}}


def test_an_init_container_keeps_its_memory_until_a_later_container_starts() -> None:
    memory = manager()
    init = (container("init", "2Gi"), container("side", "1Gi", restartPolicy="Always"))
    given = read_pod(pod("a", container("main", "1Gi"), init=init))
    for name in ("init", "side", "main"):
        memory.allocate(given, name, ANYWHERE)
    memory.start_container(given, "init")
    assert set(memory.state.assignments["a"]) == {"init", "side", "main"}
    memory.start_container(given, "main")
    assert set(memory.state.assignments["a"]) == {"side", "main"}


def test_a_refused_pod_leaves_the_nodes_of_a_group_as_a_kubelet_does() -> None:
    """Memory is returned to the group's first node first, whichever node it was taken from."""
    memory = manager()
    both = TopologyHint(NumaMask.of([NumaNode(0), NumaNode(1)]), preferred=True)
    memory.allocate(read_pod(pod("a", container("main", "3Gi"))), "main", both)
    before = memory.state
    assert [before.nodes[node].tables["memory"].free // _GI for node in (0, 1)] == [1, 4]
    memory.allocate(read_pod(pod("b", container("main", "3Gi"))), "main", both)
    memory.take_back(before, "b")
    assert set(memory.state.assignments) == {"a"}
    assert [memory.state.nodes[node].tables["memory"].free // _GI for node in (0, 1)] == [3, 2]


def test_a_refused_pod_that_got_nothing_changes_nothing() -> None:
    memory = manager()
    before = memory.state
    memory.take_back(before, "b")
    assert memory.state.nodes == before.nodes


def test_a_pod_that_is_refused_when_it_is_admitted_again_has_what_it_had() -> None:
    memory = manager()
    given = read_pod(pod("a", container("main", "1Gi"), container("side", "1Gi")))
    memory.allocate(given, "main", ANYWHERE)
    before = memory.state
    memory.allocate(given, "side", ANYWHERE)
    memory.take_back(before, "a")
    assert (memory.state.assignments, memory.state.nodes) == (before.assignments, before.nodes)


def test_numa_nodes_are_numbered_by_socket() -> None:
    layout = CpuLayout.of(DescribedMachine(sockets=2, numa_nodes_per_socket=2, cores_per_numa_node=1).machine())
    assert layout.by_socket == {0: 0b0011, 1: 0b1100}


def test_what_cadvisor_leaves_out_is_0() -> None:
    (cell,) = machine_in(Value({"topology": [{"node_id": 0, "cores": [{"thread_ids": [0]}]}]}, "a machine")).cells
    assert (cell.memory, cell.cores[0].socket) == (0, 0)
