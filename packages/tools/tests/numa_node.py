"""The directory of a kubelet 1.37 that has static policies for CPUs and memory."""

import json
from pathlib import Path
from typing import Any

from devicecore_numa.adapters.described import machine_document, machine_in
from devicecore_numa.domain.configuration import Policies
from devicecore_numa.domain.requests import PodRequest, read_pod
from devicecore_numa.managers import CpuManager, MemoryManager

from devicecore.adapters.file import FileStore
from devicecore.domain.checkpoint import CheckpointData, encode
from devicecore.domain.documents import Value
from devicecore.domain.model import NumaNode, Pod
from devicecore.domain.topology import NumaMask, TopologyHint

CONFIGURATION = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "reservedSystemCPUs": "0,8",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "412Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "512Mi"}}],
    "topologyManagerPolicy": "single-numa-node",
}
MACHINE = {"sockets": 2, "coresPerNumaNode": 4, "threadsPerCore": 2, "memoryPerNumaNode": "8Gi"}


def pod(name: str, cpu: str, memory: str, **limits: str) -> dict[str, Any]:
    """Return a pod with one container that has these limits."""
    container = {"name": "app", "image": "x", "resources": {"limits": {"cpu": cpu, "memory": memory, **limits}}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-of-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def make_directory(root: Path, *running: tuple[dict[str, Any], int]) -> Path:
    """Write the files of a kubelet that has given each pod CPUs and memory on the NUMA node paired with the pod."""
    machine = machine_in(Value(MACHINE, "a machine"))
    (root / "config.yaml").write_text(json.dumps(CONFIGURATION))
    (root / "machine.json").write_text(json.dumps(machine_document(machine)))
    (root / "device-plugins").mkdir()
    (root / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(encode(CheckpointData(None, {})))
    policies = Policies.read(Value(dict(CONFIGURATION), "a configuration"), machine)

    def nothing(asked: Pod) -> PodRequest:
        raise AssertionError(asked)

    cpus = CpuManager(policies.cpus, FileStore(root / "cpu_manager_state"), nothing)
    memory = MemoryManager(policies.memory, FileStore(root / "memory_manager_state"), nothing)
    cpus.start()
    memory.start()
    for given, numa_node in running:
        hint = TopologyHint(NumaMask.of([NumaNode(numa_node)]), preferred=True)
        cpus.allocate(read_pod(given), "app", hint)
        memory.allocate(read_pod(given), "app", hint)
    cpus.save()
    memory.save()
    return root
