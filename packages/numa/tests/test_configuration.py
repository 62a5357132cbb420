"""How a kubelet's configuration sets up the managers, and the messages with which a kubelet refuses to start."""

import json
from typing import Any

import pytest
from attrs import evolve
from devicecore_numa.adapters.described import DescribedMachine, machine_document, machine_in
from devicecore_numa.domain.configuration import Policies
from devicecore_numa.domain.cpu_policy import CpuOptions, StaticCpuPolicy
from devicecore_numa.domain.cpus import cpu_list
from devicecore_numa.domain.errors import NumaConfigError
from devicecore_numa.domain.machine import CpuLayout, Machine, NumaCell

from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError
from devicecore.domain.topology import Policy

TWO_SOCKETS = DescribedMachine(
    sockets=2, cores_per_numa_node=4, threads_per_core=2, memory=8 * 2**30, huge_pages=((2048, 512),)
).machine()
STATIC: dict[str, Any] = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0,8"}
STATIC_MEMORY: dict[str, Any] = {
    "memoryManagerPolicy": "Static",
    "kubeReserved": {"memory": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "150Mi"}}, {"numaNode": 1, "limits": {"memory": "50Mi"}}],
}


def read(configuration: dict[str, Any]) -> Policies:
    return Policies.read(Value(configuration, "config.yaml"), TWO_SOCKETS)


def test_without_a_field_no_manager_has_a_policy() -> None:
    policies = read({})
    assert (policies.cpus, policies.memory, policies.topology.policy.value) == (None, None, "none")
    assert {name: str(amount) for name, amount in policies.reserved.items()} == {"memory": "100Mi"}


def test_a_list_of_reserved_cpus_replaces_the_numbers() -> None:
    by_list = read({**STATIC, "kubeReserved": {"cpu": "3"}, "systemReserved": {"cpu": "500m"}}).cpus
    by_number = read({**STATIC, "reservedSystemCPUs": "", "kubeReserved": {"cpu": "1500m"}}).cpus
    assert by_list is not None
    assert by_number is not None
    assert (cpu_list(by_list.reserved), cpu_list(by_number.reserved)) == ("0,8", "0,8")


def test_a_reservation_of_0_reserves_nothing() -> None:
    assert set(read({"kubeReserved": {"cpu": "0"}}).reserved) == {"memory"}


def test_a_topology_manager_accepts_eight_numa_nodes() -> None:
    machine = DescribedMachine(sockets=8, cores_per_numa_node=1).machine()
    found = Policies.read(Value({"topologyManagerPolicy": "restricted"}, "config.yaml"), machine)
    assert found.topology.numa_nodes == tuple(range(8))


def test_the_eviction_threshold_is_reserved_memory() -> None:
    assert read(STATIC_MEMORY).memory is not None
    percent = {**STATIC_MEMORY, "evictionHard": {"memory.available": "1%"}, "kubeReserved": {}}
    with pytest.raises(NumaConfigError, match=r'is not equal to the value "171798688" determined'):
        read(percent)
    none = {**STATIC_MEMORY, "evictionHard": {"nodefs.available": "10%"}, "kubeReserved": {"memory": "200Mi"}}
    assert read(none).memory is not None
    merged = {**STATIC_MEMORY, "evictionHard": {"nodefs.available": "10%"}, "mergeDefaultEvictionSettings": True}
    assert read(merged).memory is not None


def test_distances_count_only_with_the_option() -> None:
    given = {"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}
    assert read(given).topology.distances == ()
    options = {"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "9"}
    assert read({**given, "topologyManagerPolicyOptions": options}).topology.distances == ((10, 20), (20, 10))


def test_a_machine_without_distances_has_no_closest_nodes() -> None:
    options = {"prefer-closest-numa-nodes": "true"}
    given = {"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": options}
    machine = Machine([evolve(cell, distances=()) for cell in TWO_SOCKETS.cells])
    with pytest.raises(NumaConfigError, match="cannot discover NUMA topology"):
        Policies.read(Value(given, "config.yaml"), machine)


def test_beta_options_need_no_feature_gate() -> None:
    cpus = read({**STATIC, "cpuManagerPolicyOptions": {"distribute-cpus-across-numa": "true"}}).cpus
    assert cpus is not None
    assert cpus.options.distribute_cpus_across_numa


def test_each_socket_may_be_a_numa_node() -> None:
    options = {"align-by-socket": "true"}
    given = {**STATIC, "cpuManagerPolicyOptions": options, "featureGates": {"CPUManagerPolicyAlphaOptions": True}}
    assert read(given).cpus is not None


def test_more_cpus_than_exist_cannot_be_reserved() -> None:
    layout = CpuLayout.of(TWO_SOCKETS)
    with pytest.raises(NumaConfigError, match=r"\(size of  did not equal 17\)"):
        StaticCpuPolicy.of(layout, CpuOptions(), count=17, reserved=0, topology=Policy.NONE)


def test_a_reserved_cpu_that_does_not_exist_is_named() -> None:
    layout = CpuLayout.of(TWO_SOCKETS)
    with pytest.raises(NumaConfigError, match="unknown CPU ID: 99"):
        StaticCpuPolicy.of(layout, CpuOptions(), count=1, reserved=1 << 99, topology=Policy.NONE)


@pytest.mark.parametrize("cells", [(), (NumaCell(0), NumaCell(0))], ids=["none", "one-number-twice"])
def test_numa_nodes_have_different_numbers(cells: tuple[NumaCell, ...]) -> None:
    with pytest.raises(NumaConfigError, match="expected one or more NUMA nodes with different numbers"):
        Machine(cells)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"cpuManagerPolicy": "dynamic"}, 'unknown policy: "dynamic"'),
        ({"cpuManagerPolicy": "static"}, "[cpumanager] unable to determine reserved CPU resources for static policy"),
        ({"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}, "None policy: received unsupported options=map["),
        ({**STATIC, "cpuManagerPolicyOptions": {"fast": "true"}}, 'unknown CPU Manager Policy option: "fast"'),
        ({**STATIC, "cpuManagerPolicyOptions": {"align-by-socket": "true"}}, "Alpha-level Options not enabled"),
        (
            {
                **STATIC,
                "cpuManagerPolicyOptions": {"distribute-cpus-across-numa": "1"},
                "featureGates": {"AllBeta": False},
            },
            "Beta-level Options not enabled",
        ),
        ({**STATIC, "reservedSystemCPUs": "0-99"}, "reserved-cpus: 0-99 is not a subset of online-cpus: 0-15"),
        ({**STATIC, "reservedSystemCPUs": "0-"}, "unable to parse reservedSystemCPUs (--reserved-cpus) 0-"),
        ({"kubeReserved": {"cpu": "17"}}, 'Resource "cpu" has a reservation of 17 but capacity of 16.'),
        ({"kubeReserved": {"gpu": "1"}}, 'cannot reserve "gpu" resource'),
        ({"kubeReserved": {"cpu": "-1"}}, 'resource quantity for "cpu" cannot be negative: -1'),
        ({"evictionHard": {"memory.available": "101%"}}, "must be <= 100%: 101%"),
        ({"evictionHard": {"memory.available": "x%"}}, "expected a percentage in evictionHard, got x%"),
        ({"evictionHard": {"memory.available": "-5Mi"}}, "must be positive: -5Mi"),
        ({"evictionHard": {"memory.available": "0"}}, "must be positive: 0"),
        ({"memoryManagerPolicy": "Dynamic"}, 'unknown policy: "Dynamic"'),
        ({"memoryManagerPolicy": "BestEffort"}, 'policy "BestEffort" is not available for platform "linux"'),
        ({"memoryManagerPolicy": "Static"}, 'of type "memory" is not equal to the value "100Mi"'),
        (
            {**STATIC_MEMORY, "reservedMemory": [{"numaNode": 7, "limits": {"memory": "200Mi"}}]},
            "references a NUMA node 7 that does not exist on this machine",
        ),
        (
            {"reservedMemory": [{"numaNode": 0, "limits": {"cpu": "1"}}]},
            'the limit type "cpu" for NUMA node 0 is not supported',
        ),
        ({"reservedMemory": [{"limits": {"memory": "0"}}]}, "reserved memory may not be zero for NUMA node 0"),
        ({"reservedMemory": [{"limits": {"memory": "1"}}] * 2}, "the reserved memory has a duplicate value"),
        ({"topologyManagerPolicy": "strict"}, 'unknown policy: "strict"'),
        ({"topologyManagerPolicy": "restricted", "topologyManagerScope": "node"}, 'unknown scope: "node"'),
        (
            {"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "7"}},
            "expected max-allowable-numa-nodes of at least 8, got 7",
        ),
    ],
)
def test_a_configuration_that_no_kubelet_starts_with_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(NumaConfigError) as raised:
        read(given)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("given", [{"reservedMemory": {}}, {"kubeReserved": []}, {"featureGates": 3, **STATIC}])
def test_a_value_of_the_wrong_kind_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match=next(iter(given))):
        read(given)


def test_a_machine_is_read_as_it_was_written() -> None:
    written = json.loads(json.dumps(machine_document(TWO_SOCKETS)))
    assert machine_in(Value(written, "machine.json")) == TWO_SOCKETS
    described = {
        "sockets": 2,
        "coresPerNumaNode": 4,
        "threadsPerCore": 2,
        "memoryPerNumaNode": "8Gi",
        "hugePagesPerNumaNode": {"2Mi": 512},
    }
    assert machine_in(Value(described, "machine.yaml")) == TWO_SOCKETS


def test_each_core_may_have_its_own_cache() -> None:
    (cell,) = machine_in(Value({"coresPerNumaNode": 2, "coresPerUncoreCache": 1}, "machine.yaml")).cells
    assert [core.cache for core in cell.cores] == [0, 1]


@pytest.mark.parametrize(
    "given",
    [
        {"cores": 4},
        {"sockets": 0},
        {"sockets": 10**6},
        {"distances": [[10]], "sockets": 2},
        {"hugePagesPerNumaNode": {"3": 1}},
        {"hugePagesPerNumaNode": {"0": 1}},
        {"topology": []},
        {"topology": [{"node_id": 0, "cores": [{"thread_ids": [10**9]}]}]},
        {"topology": [{"node_id": 0}, {"node_id": 0}]},
        {"memoryPerNumaNode": "-1"},
        {"sockets": 40, "numaNodesPerSocket": 1},
    ],
)
def test_an_invalid_machine_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises((NumaConfigError, DocumentError)):
        Policies.read(Value(STATIC | {"reservedSystemCPUs": "0"}, "c"), machine_in(Value(given, "machine.yaml")))
