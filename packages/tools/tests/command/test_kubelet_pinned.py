"""`devicecore kubelet` with static policies for CPUs and memory."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from devicecore_tools.command.kubelet.options import cluster_settings, kubelet_options
from devicecore_tools.node.settings import ClusterSettings
from devicecore_tools.numa import CPU_FILE, NodeManagers, fields_of_flags
from tests.command.conftest import Run
from tests.numa_node import CONFIGURATION, MACHINE, pod

from devicecore import Admitted, DeviceManager, Pod, PodUid
from devicecore.adapters.file import FileStore
from devicecore.adapters.manifests import read_pods
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.adapters.pod_resources import MemoryBlock, Snapshot, allocatable_resources, list_pods

OPTIONS = (
    *("--cpu-manager-policy", "static", "--cpu-manager-policy-options", "full-pcpus-only=true"),
    *("--reserved-cpus", "0,8", "--memory-manager-policy", "Static", "--system-reserved", "memory=412Mi"),
    *("--reserved-memory", "0:memory=512Mi", "--topology-manager-policy", "single-numa-node"),
)


class Pods:
    """The pods of a node. Until the source is ready, any pod may reappear."""

    def __init__(self, *objects: dict[str, Any], is_ready: bool = True) -> None:
        self.objects = {PodUid(one["metadata"]["uid"]): one for one in objects}
        self.is_ready = is_ready

    def active_pods(self) -> set[PodUid]:
        return set(self.objects)

    def sources_ready(self) -> bool:
        return self.is_ready

    def object_of(self, pod: PodUid) -> dict[str, object]:
        return self.objects[pod]

    def add(self, given: dict[str, Any]) -> Pod:
        self.objects[PodUid(given["metadata"]["uid"])] = given
        (made,) = read_pods(json.dumps(given), "pod.json")
        return made


def started(root: Path, pods: Pods) -> tuple[NodeManagers, DeviceManager]:
    stores = (FileStore(root / name) for name in ("cpu_manager_state", "memory_manager_state"))
    managers = NodeManagers(CONFIGURATION, MACHINE, *stores)
    devices = DeviceManager(MemoryTransport(), MemoryStore(), MemorySink(), topology=managers.device_topology)
    devices.start()
    managers.start(devices, pods)
    return managers, devices


def shared(root: Path) -> str:
    return str(json.loads((root / CPU_FILE).read_text())["defaultCpuSet"])


def test_a_pods_resources_are_free_again_when_it_is_gone(tmp_path: Path) -> None:
    pods = Pods()
    managers, devices = started(tmp_path, pods)
    with devices:
        first = pods.add(pod("a", "4", "2Gi"))
        assert isinstance(managers.admit(first), Admitted)
        assert shared(tmp_path) == "0,3-8,11-15"
        del pods.objects[first.uid]
        managers.release([first.uid])
        assert shared(tmp_path) == "0-15"


def test_a_restart_keeps_what_pods_have_until_all_pods_are_known(tmp_path: Path) -> None:
    pods = Pods()
    managers, devices = started(tmp_path, pods)
    with devices:
        assert isinstance(managers.admit(pods.add(pod("a", "4", "2Gi"))), Admitted)
    later = Pods(is_ready=False)
    managers, devices = started(tmp_path, later)
    with devices:
        assert isinstance(managers.admit(later.add(pod("b", "2", "1Gi"))), Admitted)
        assert shared(tmp_path) == "0,4-8,12-15"
        later.is_ready = True
        managers.release()
        assert shared(tmp_path) == "0-2,4-10,12-15"


def test_the_pod_resources_api_lists_cpus_and_memory(tmp_path: Path) -> None:
    pods = Pods()
    managers, devices = started(tmp_path, pods)
    with devices:
        given = pods.add(pod("a", "4", "2Gi"))
        managers.admit(given)
        snapshot = Snapshot(devices.state, [given], pinned=managers)
    (container,) = list_pods(snapshot).pod_resources[0].containers
    assert list(container.cpu_ids) == [1, 2, 9, 10]
    assert [(one.memory_type, one.size, one.topology.nodes[0].ID) for one in container.memory] == [
        ("memory", 2 * 2**30, 0)
    ]
    all_of_it = allocatable_resources(snapshot)
    assert list(all_of_it.cpu_ids) == [*range(1, 8), *range(9, 16)]
    assert list(managers.allocatable_memory) == [
        MemoryBlock("memory", 8 * 2**30 - 512 * 2**20, (0,)),
        MemoryBlock("memory", 8 * 2**30, (1,)),
    ]
    assert len(all_of_it.memory) == 2


def test_pods_are_refused_and_admitted_in_a_directory_of_manifests(
    tmp_path: Path, directory: Path, devicecore: Run
) -> None:
    manifests, machine = tmp_path / "pods", tmp_path / "machine.yaml"
    manifests.mkdir()
    machine.write_text(json.dumps(MACHINE))
    for given in (pod("odd", "3", "1Gi"), pod("whole", "4", "2Gi")):
        (manifests / f"{given['metadata']['name']}.json").write_text(json.dumps(given))
    place = ("--root", str(directory), "--manifests", str(manifests), "--machine", str(machine))
    # with --wait 0, the pods would have one second, which is too short on a busy machine
    run = devicecore("kubelet", *place, *OPTIONS, "--once", "--json", "--wait", "5")
    found = {one["name"]: (one["phase"], one["reason"]) for one in json.loads(run.stdout)["pods"]}
    assert found["whole"][0] == "Running"
    assert found["odd"] == ("Pending", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2")
    assert shared(directory) == "0,3-8,11-15"
    fits = devicecore("fits", str(manifests / "odd.json"), "--node", str(directory), "--json")
    assert "SMT Alignment Error" in fits.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cpu-manager-policy", "static"), "resources for static policy. Add --reserved-cpus, or cpu to --kube-res"),
        (("--cpu-manager-policy", "Static"), 'unknown policy: "Static". Write none or static for --cpu-manager-policy'),
        (("--cpu-manager-policy-options", "full-pcpus-only=true"), "Add --cpu-manager-policy static"),
        (("--memory-manager-policy", "Static"), "feature. Change --reserved-memory: the amounts of all NUMA"),
        (("--machine", __file__), "--machine"),
        (("--cpu-manager-policy-options", "full-pcpus-only"), "malformed pair, expect string=string"),
        (("--reserved-memory", "memory=1Gi"), "expected numaNodeID:type=quantity"),
        (("--machine", "/dev/null/x"), "--machine"),
        ((*OPTIONS, "--numa-nodes", "0-7"), "--numa-nodes: the machine has the NUMA nodes 0"),
    ],
)
def test_options_with_which_no_kubelet_starts_are_refused(
    directory: Path, devicecore: Run, options: tuple[str, ...], message: str
) -> None:
    described = directory / "machine.json"
    described.write_text(json.dumps(MACHINE))
    machine = () if "--machine" in options else ("--machine", str(described))
    run = devicecore("kubelet", "--root", str(directory), *machine, *options)
    assert run.returncode == 2
    assert message in run.stderr


@pytest.mark.parametrize(("more", "problem"), [((), ""), (("--cpu", "4"), "--cpu: this follows from the machine")])
def test_a_registered_node_has_what_the_machine_has(
    tmp_path: Path, directory: Path, more: tuple[str, ...], problem: str
) -> None:
    found = list[ClusterSettings | None]()

    @click.command()
    @kubelet_options
    def command(**options: Any) -> None:  # noqa: ANN401 - click has checked each option's value
        found.append(cluster_settings(**options))

    machine = tmp_path / "machine.yaml"
    machine.write_text(json.dumps(MACHINE))
    server = ("--register-node", "--kubeconfig", str(machine), "--node-name", "n")
    words = ("--root", str(directory), "--machine", str(machine), *OPTIONS, *server, *more)
    answer = CliRunner().invoke(command, words)
    assert problem in answer.output
    if not problem:
        (settings,) = found
        assert settings is not None
        assert settings.registered is not None
        assert settings.registered.capacity == {"cpu": "16", "memory": "16Gi", "pods": "110"}
        assert settings.registered.allocatable == {"cpu": "14", "memory": "15872Mi"}


def test_flags_are_the_fields_of_a_configuration() -> None:
    flags = {
        "cpu-manager-policy": "static",
        "cpu-manager-policy-options": "full-pcpus-only=true,align-by-socket=true",
        "reserved-memory": "0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=2Gi",
        "eviction-hard": "memory.available<5%,nodefs.available<10%",
        "feature-gates": "CPUManagerPolicyAlphaOptions=true",
        "v": "4",
    }
    assert fields_of_flags(flags) == {
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true", "align-by-socket": "true"},
        "reservedMemory": [
            {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "64Mi"}},
            {"numaNode": 1, "limits": {"memory": "2Gi"}},
        ],
        "evictionHard": {"memory.available": "5%", "nodefs.available": "10%"},
        "featureGates": {"CPUManagerPolicyAlphaOptions": True},
    }
