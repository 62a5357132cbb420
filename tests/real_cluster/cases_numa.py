"""Nodes with pinned CPUs and memory, and the pods that arrive on them one after another.

A container whose name starts with `init-` exits at once, and one whose name starts with `side-` is a sidecar.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from tests.real_cluster.node import GPU

Json = Any

MACHINE = {
    "sockets": 2,
    "numaNodesPerSocket": 2,
    "coresPerNumaNode": 4,
    "threadsPerCore": 2,
    "coresPerUncoreCache": 2,
    "memoryPerNumaNode": "4Gi",
    "hugePagesPerNumaNode": {"2Mi": 256},
}
"""32 CPUs, 8 per NUMA node: the first NUMA node has the CPUs 0 to 3 and 16 to 19."""

_RESERVED: Json = {
    "reservedSystemCPUs": "0,16",
    "systemReserved": {"memory": "412Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "512Mi"}}],
    "cpuManagerPolicy": "static",
    "cpuManagerReconcilePeriod": "1s",
    "memoryManagerPolicy": "Static",
}
_FLAGS = (
    *("--reserved-cpus=0,16", "--system-reserved=memory=412Mi", "--eviction-hard=memory.available<100Mi"),
    *("--reserved-memory=0:memory=512Mi", "--cpu-manager-policy=static", "--memory-manager-policy=Static"),
)


@frozen
class Step:
    """A pod that arrives at a node.

    Attributes:
        pod: the pod's name.
        spec: the pod's spec.
        after: the pods that are deleted before this pod arrives.
        restarts: whether the kubelet restarts before this pod arrives.
        refused: part of the kubelet's rejection message; empty if the pod runs.
    """

    pod: str
    spec: Json
    after: tuple[str, ...] = ()
    restarts: bool = False
    refused: str = ""


@frozen
class Setting:
    """A node's configuration, and its pods.

    Attributes:
        prefix: the beginning of the nodes' names.
        configuration: the kubelet's configuration.
        flags: flags with which `devicecore kubelet` has the same configuration.
        steps: the pods.
    """

    prefix: str
    configuration: Mapping[str, Json]
    flags: tuple[str, ...]
    steps: tuple[Step, ...]


def _container(name: str, cpu: str, memory: str, **limits: str) -> Json:
    more = {GPU if key == "gpu" else "hugepages-2Mi": text for key, text in limits.items()}
    always = {"restartPolicy": "Always"} if name.startswith("side-") else {}
    return {"name": name, "image": "x", **always, "resources": {"limits": {"cpu": cpu, "memory": memory, **more}}}


def _pod(*containers: Json) -> Json:
    before = [one for one in containers if one["name"].startswith(("init-", "side-"))]
    return {"initContainers": before, "containers": [one for one in containers if one not in before]}


def _one(cpu: str, memory: str, **limits: str) -> Json:
    return _pod(_container("main", cpu, memory, **limits))


_BURSTABLE = {"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "500m"}}}]}
_LOCALITY = "Resources cannot be allocated with Topology locality"
_WIDER = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"

_ONE_NODE = (
    Step("whole-cores", _one("4", "1Gi")),
    Step("half-a-core", _one("3", "256Mi"), refused="requested 3 cpus not multiple cpus per core = 2"),
    Step("burstable", _BURSTABLE),
    Step("without-resources", {"containers": [{"name": "main", "image": "x"}]}),
    Step("guaranteed-fraction", _one("1500m", "512Mi")),
    Step("wider-than-a-node", _one("10", "256Mi"), refused=_LOCALITY),
    Step("init-reused", _pod(_container("init-a", "4", "1Gi"), _container("main", "2", "512Mi"))),
    Step("sidecar", _pod(_container("side-a", "2", "256Mi"), _container("main", "2", "256Mi"))),
    Step("huge-pages", _one("2", "512Mi", pages="256Mi")),
    Step("too-many-huge-pages", _one("2", "256Mi", pages="768Mi"), refused=_LOCALITY),
    Step("too-much-memory", _one("2", "5Gi"), refused=_LOCALITY),
    Step("two-containers", _pod(_container("main", "2", "256Mi"), _container("second", "2", "256Mi"))),
    Step("with-a-device", _one("2", "256Mi", gpu="1")),
    Step("devices-apart", _one("2", "256Mi", gpu="2"), refused=_LOCALITY),
    Step("fills-a-node", _one("6", "1Gi"), restarts=True),
    Step("nowhere-whole", _one("6", "256Mi"), refused=_LOCALITY),
    Step("after-others", _one("6", "1Gi"), after=("whole-cores", "sidecar")),
    Step("init-and-sidecar", _pod(_container("init-a", "2", "1Gi"), _container("side-b", "2", "256Mi"),
         _container("main", "2", "256Mi")), after=("init-reused",)),
    Step("device-of-another", _one("2", "256Mi", gpu="1"), after=("with-a-device",)),
    Step("fraction-again", _one("500m", "1Gi"), restarts=True),
)  # fmt: skip

_WHOLE_POD = (
    Step("across-nodes", _one("12", "2Gi")),
    Step("much-memory", _one("2", "6Gi")),
    Step("beside-the-group", _one("2", "512Mi")),
    Step("pod-as-a-whole", _pod(_container("main", "3", "512Mi"), _container("second", "1", "256Mi"))),
    Step("odd", _one("3", "256Mi")),
    Step("init-of-more", _pod(_container("init-a", "5", "1Gi"), _container("main", "1", "256Mi"))),
    Step("restarted", _one("1", "256Mi", pages="64Mi"), restarts=True),
    Step("more-memory-than-is-left", _one("1", "7Gi"), refused="[memorymanager]"),
    Step("after-the-group", _one("4", "5Gi"), after=("much-memory",), refused="requested=1, available=0"),
    Step("last", _one("2", "128Mi", gpu="2"), after=("across-nodes",)),
)

SETTINGS = {
    "one-numa-node": Setting(
        "one",
        {
            **_RESERVED,
            "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
            "topologyManagerPolicy": "single-numa-node",
        },
        (*_FLAGS, "--cpu-manager-policy-options=full-pcpus-only=true", "--topology-manager-policy=single-numa-node"),
        _ONE_NODE,
    ),
    "whole-pod": Setting(
        "whole",
        {
            **_RESERVED,
            "cpuManagerPolicyOptions": {"distribute-cpus-across-numa": "true", "strict-cpu-reservation": "true"},
            "topologyManagerPolicy": "best-effort",
            "topologyManagerScope": "pod",
        },
        (
            *_FLAGS,
            "--cpu-manager-policy-options=distribute-cpus-across-numa=true,strict-cpu-reservation=true",
            "--topology-manager-policy=best-effort",
            "--topology-manager-scope=pod",
        ),
        _WHOLE_POD,
    ),
}
