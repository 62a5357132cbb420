"""The kubelet's cases for topology hints."""

import re
from collections.abc import Mapping, Sequence

import pytest

from devicecore.domain import topology
from devicecore.domain.inventory import DeviceReport
from devicecore.domain.ledger import Allocation, Ledger
from devicecore.domain.model import ContainerKey, DeviceId, NumaNode, PodUid, Receipt, ResourceName
from tests import recorded
from tests.recorded import Json

ROWS = recorded.cases("topology_hints")
FILTERING = recorded.cases("topology_hints_filtering")
GENERATED = FILTERING["generate_device_topology_hints"]
NODES = FILTERING["device_numa_nodes"]
MERGED = FILTERING["merge_with_other_providers"]


def numa(nodes: Sequence[int]) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes of a case."""
    return tuple(map(NumaNode, nodes))


def hint(row: Json) -> topology.TopologyHint:
    """Return a hint from a case."""
    return topology.TopologyHint(topology.NumaMask.of(numa(row["mask"])), row["preferred"])


def as_sets(hints: Mapping[str, Sequence[topology.TopologyHint] | None]) -> Json:
    """Return each resource's hints as a set. None, which means no preference, stays None."""
    return {name: None if listed is None else set(listed) for name, listed in hints.items()}


def ledger_of(row: Json) -> Ledger:
    """Return a ledger with the holders in a case. An init container of the pod holds the reusable devices."""
    held = recorded.ledger(row["allocated"])
    reusable = [
        Allocation(
            ContainerKey(PodUid(row["pod"]["uid"]), "lender"),
            ResourceName(name),
            {DeviceId(id_): () for id_ in devices},
            Receipt(b""),
        )
        for name, devices in row.get("reusable", {}).items()
    ]
    return Ledger.of((*held, *reusable))


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_hints_match_a_kubelets(row: Json) -> None:
    """Each resource has the same masks as in a kubelet, and the same masks are preferred."""
    inventory = recorded.inventory(*(recorded.resource(name, devices) for name, devices in row["devices"].items()))
    lender = [{"name": "lender", "limits": {}}] if row.get("reusable") else []
    pod = recorded.pod({**row["pod"], "init_containers": lender + row["pod"].get("init_containers", [])})
    ledger, machine = ledger_of(row), numa(row["numa_nodes"])
    if row["scope"] == "pod":
        hints = topology.device_hints(pod, None, inventory, ledger, machine)
    else:
        container = pod.containers[row.get("container_index", 0)]
        hints = topology.device_hints(pod, container, inventory, ledger, machine)
    expected = {name: listed and tuple(map(hint, listed)) for name, listed in row["expected"].items()}
    assert as_sets({name: hints[name] for name in expected}) == as_sets(expected)


@pytest.mark.parametrize("row", GENERATED, ids=[row["id"] for row in GENERATED])
def test_hints_are_generated_as_a_kubelet_generates_them(row: Json) -> None:
    """Only nodes with devices are combined, and every combination that fits is listed once."""
    report = DeviceReport.of(map(recorded.device, row["devices"]))
    available = report.index.select(map(DeviceId, row["available"]))
    reusable = report.index.select(map(DeviceId, row["reusable"]))
    hints = topology.generate_hints(report, available, reusable, row["request"], numa(row["numa_nodes"]))
    assert len(set(hints)) == len(hints)
    assert set(hints) == set(map(hint, row["expected"]))


@pytest.mark.parametrize("row", NODES, ids=[row["id"] for row in NODES])
def test_the_nodes_to_combine_are_those_with_devices_that_the_machine_has(row: Json) -> None:
    """A request for nothing fits everywhere, so its hints show which nodes are combined."""
    report = DeviceReport.of(map(recorded.device, row["devices"]))
    hints = topology.generate_hints(report, report.healthy, report.healthy - report.healthy, 0, numa(row["numa_nodes"]))
    combined = {node for listed in hints if listed.mask for node in listed.mask}
    assert sorted(combined) == (row["expected"] or row["numa_nodes"])


@pytest.mark.parametrize("row", MERGED, ids=[row["id"] for row in MERGED])
@pytest.mark.parametrize("policy", ["best-effort", "restricted"])
def test_device_hints_merge_with_those_of_other_providers(row: Json, policy: str) -> None:
    """The pod is admitted, aligned with CPUs and memory."""
    machine = numa(row["numa_nodes"])
    inventory = recorded.inventory(recorded.resource("gpu", [row["device"]]))
    pod = recorded.pod({"containers": [{"limits": {"gpu": row["request"]}}]})
    ours = topology.device_hints(pod, pod.containers[0], inventory, Ledger(), machine)
    others = [{name: tuple(map(hint, hints))} for name, hints in row["other_providers"].items()]
    best, admitted = topology.merge(topology.Topology(machine, topology.Policy(policy)), [ours, *others])
    expected = row["expected"]
    assert (admitted, best) == (expected["admit"], hint({**expected, "preferred": True}))


@pytest.mark.parametrize("nodes", [(), (0, 0), (-1,)])
def test_a_machine_without_numa_nodes_or_with_odd_ones_is_none(nodes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one or more different NUMA nodes"):
        topology.Topology(numa(nodes))


def test_a_policy_may_be_given_by_its_name() -> None:
    assert topology.Topology(policy="restricted").policy is topology.Policy.RESTRICTED
    with pytest.raises(ValueError, match="bogus"):
        topology.Topology(policy="bogus")


def test_the_closest_of_several_equally_wide_masks_is_chosen() -> None:
    """Without distances, (0, 1) is chosen, and with them (0, 2), because NUMA node 2 is closer to 0 than 1 is."""
    rows, masks = ((10, 21, 11), (21, 10, 20), (11, 20, 10)), ((0, 1), (0, 2))
    hints = {"x": [topology.TopologyHint(topology.NumaMask.of(numa(mask)), preferred=True) for mask in masks]}
    for distances, best in (((), masks[0]), (rows, masks[1])):
        machine = topology.Topology((0, 1, 2), "best-effort", distances=distances)
        assert tuple(topology.merge(machine, [hints])[0].mask or ()) == best


def test_the_options_match_a_kubelets() -> None:
    of = topology.PolicyOptions.of
    assert of({}) == topology.PolicyOptions()
    assert of({"prefer-closest-numa-nodes": "T", "max-allowable-numa-nodes": "+16"}) == topology.PolicyOptions(
        prefer_closest_numa_nodes=True, max_allowable_numa_nodes=16
    )
    for name, value, sentence in (
        ("prefer-closest-numa-nodes", "yes", "expected true or false, got 'yes'"),
        ("max-allowable-numa-nodes", "0x9", "expected a whole number, got '0x9'"),
        ("max-allowable-numa-nodes", "7", "expected max-allowable-numa-nodes of at least 8, got 7"),
        ("closest", "true", "expected one of the options prefer-closest-numa-nodes, max-allowable-numa-nodes, got 'cl"),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            of({name: value})


def test_a_policy_has_at_most_as_many_numa_nodes_as_its_option_allows() -> None:
    nine = range(9)
    assert topology.Topology(nine, "none", max_numa_nodes=8).max_numa_nodes == 8
    assert topology.Topology(nine, "restricted", max_numa_nodes=9).max_numa_nodes == 9
    with pytest.raises(ValueError, match=r"expected at most 8 NUMA nodes \(max-allowable-numa-nodes\), got 9"):
        topology.Topology(nine, "restricted", max_numa_nodes=8)


@pytest.mark.parametrize("rows", [((10,),), ((10, 20), (20,)), ((10, 20), (-1, 10))])
def test_distances_match_the_machine(rows: Sequence[Sequence[int]]) -> None:
    with pytest.raises(ValueError, match="expected 2 rows of 2 distances, one for each NUMA node and none below 0"):
        topology.Topology((0, 1), distances=rows)
