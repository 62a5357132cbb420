"""Nodes of a fleet whose kubelets pin CPUs and memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devicecore_fleet.fleet.reading import FleetFileError, parse_fleet
from devicecore_tools.testing.api_server import LocalApiServer
from tests.fleet.world import World

DEFINITION = {
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "noderesourcetopologies.topology.node.k8s.io"},
    "spec": {
        "group": "topology.node.k8s.io",
        "scope": "Cluster",
        "names": {"kind": "NodeResourceTopology", "plural": "noderesourcetopologies"},
        "versions": [{"name": "v1alpha2", "served": True, "storage": True}],
    },
}
FILE = """
nodes:
- name: n-{number}
  machine: {sockets: 2, coresPerNumaNode: 4, threadsPerCore: 2, memoryPerNumaNode: 8Gi, distances: [[10, 21], [21, 10]]}
  kubelet:
    cpuManagerPolicy: static
    cpuManagerPolicyOptions: {full-pcpus-only: "true"}
    reservedSystemCPUs: "0,8"
    memoryManagerPolicy: Static
    systemReserved: {memory: 412Mi}
    reservedMemory: [{numaNode: 0, limits: {memory: 512Mi}}]
  topologyManager: {policy: single-numa-node}
  topologyObjects: true
  plugins:
  - {resource: example.com/gpu, devices: 4}
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with LocalApiServer() as server:
        server.create(DEFINITION)
        made = World(server, tmp_path)
        made.start(file=FILE)
        try:
            made.until(lambda: server.objects("Node") and made.allocatable() == "4")
            yield made
        finally:
            made.close()


def run(world: World, name: str, **limits: str) -> dict[str, Any]:
    """Create a pod, and return its status once it runs or has failed."""
    spec = {"nodeName": "n-0", "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}
    world.server.create({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec})
    world.until(lambda: world.phase(name) in ("Running", "Failed"))
    status: dict[str, Any] = world.server.get("Pod", name)["status"]
    return status


def test_pods_are_refused_with_the_reasons_of_a_kubelet(world: World) -> None:
    assert run(world, "odd", cpu="3", memory="1Gi")["reason"] == "SMTAlignmentError"
    assert run(world, "wide", cpu="10", memory="1Gi")["reason"] == "TopologyAffinityError"
    assert run(world, "first", cpu="6", memory="6Gi", **{"example.com/gpu": "1"})["phase"] == "Running"
    large = run(world, "large", cpu="2", memory="9Gi")
    assert (large["phase"], large["reason"]) == ("Failed", "UnexpectedAdmissionError")


def test_the_node_and_its_topology_show_cpus_and_memory(world: World) -> None:
    (node,) = world.server.objects("Node")
    assert node["status"]["capacity"]["cpu"] == "16"
    assert node["status"]["allocatable"]["cpu"] == "14"
    assert node["status"]["allocatable"]["memory"] == "15872Mi"
    run(world, "first", cpu="6", memory="6Gi")

    def zones() -> list[dict[str, Any]]:
        found = world.server.objects("NodeResourceTopology")
        return list(found[0]["zones"]) if found else []

    def cpus() -> list[str]:
        return [one["available"] for zone in zones() for one in zone["resources"] if one["name"] == "cpu"]

    world.until(lambda: cpus() == ["0", "8"])
    assert [cost["value"] for cost in zones()[0]["costs"]] == [10, 21]
    assert [one for one in zones()[1]["resources"] if one["name"] == "memory"] == [
        {"name": "memory", "capacity": "8Gi", "allocatable": "8Gi", "available": "8Gi"}
    ]


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        ("kubelet: {cpuManagerPolicy: static}", "expected `machine` as well"),
        ("machine: {sockets: 2}\n  cpu: 8", "expected no value, because `machine` determines it"),
        ("machine: {cores: 2}", "expected one of sockets"),
        ("machine: {sockets: 2}\n  numaNodes: 3", "expected the machine's number of NUMA nodes: 2"),
        (
            "machine: {sockets: 2}\n  kubelet: {cpuManagerPolicy: static}",
            "].kubelet: [cpumanager] unable to determine reserved CPU",
        ),
        ("machine: {sockets: 2}\n  kubelet: {maxPods: 3}", "there is no such field"),
    ],
)
def test_a_machine_that_no_kubelet_starts_on_is_refused(group: str, problem: str) -> None:
    with pytest.raises(FleetFileError) as raised:
        parse_fleet(f"nodes:\n- name: n-0\n  {group}\n", "fleet.yaml")
    assert problem in str(raised.value)
