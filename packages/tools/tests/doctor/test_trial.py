"""A pod is tried on a node that exists only in memory."""

import pytest
from attrs import evolve
from devicecore_tools.doctor.pod import trial
from devicecore_tools.doctor.pod.trial import TrialNode, fit, requests_of
from tests.doctor.test_report_growth import work

from devicecore import Container, Device, DeviceId, Health, NumaNode, Pod, PodUid, Policy, Refused, Topology
from devicecore.domain.admission import NotReady, Verdict
from devicecore.domain.ledger import Allocation
from devicecore.domain.model import ContainerKey, Receipt, ResourceName
from devicecore.plugins.simulated import simulated_devices

GPU = ResourceName("example.com/gpu")
NIC = ResourceName("example.com/nic")


def pod(count: int, resource: str = GPU) -> Pod:
    return Pod(PodUid("new"), name="new", containers=(Container("app", {resource: count}),))


def allocation(uid: str, *devices: str, resource: ResourceName = GPU) -> Allocation:
    held = {DeviceId(device): () for device in devices}
    return Allocation(ContainerKey(PodUid(uid), "app"), resource, held, Receipt(b"another kubelet's receipt"))


def sentences(node: TrialNode, new: Pod) -> list[str]:
    return [change.sentence for change in fit(node, new).changes]


def test_the_smallest_changes_are_found_by_trial() -> None:
    devices = simulated_devices("gpu", 4, unhealthy=[3])
    held = [allocation("one", "gpu-0"), allocation("two", "gpu-1", "gpu-2")]
    node = TrialNode("n", {GPU: devices}, held, pod_names={PodUid("two"): "default/train"})
    more = "the node gets 2 more healthy devices of example.com/gpu"
    assert sentences(node, pod(2)) == ["pod default/train ends", more]
    assert sentences(node, pod(1)) == [
        "device gpu-3 of example.com/gpu becomes healthy",
        "pod one ends",
        "the node gets one more healthy device of example.com/gpu",
    ]


def test_changes_that_cannot_suffice_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial on a large node is slow, and hundreds of changes could be tried."""
    tried: list[TrialNode] = []
    admit = TrialNode.admit

    def admitting(self: TrialNode, pod: Pod) -> Verdict:
        tried.append(self)
        return admit(self, pod)

    monkeypatch.setattr(TrialNode, "admit", admitting)
    devices = simulated_devices("gpu", 40, unhealthy=[3, 4])
    node = TrialNode("n", {GPU: devices}, [allocation(f"p{number}", f"gpu-{number}") for number in range(40)])
    release, addition = sentences(node, pod(20))
    assert release.startswith("these 20 pods end: p39, p38, ")
    assert addition == "the node gets 20 more healthy devices of example.com/gpu"
    assert len(tried) == 3


@pytest.mark.parametrize(
    ("limits", "init_limits", "holder"),
    [([2], [], "none"), ([1, 1], [2, 1], "none"), ([0], [], "other"), ([2], [], "new"), ([1, 1], [2], "new")],
)
def test_no_pod_that_fits_is_mistaken_for_one_that_does_not(
    limits: list[int], init_limits: list[int], holder: str
) -> None:
    """Containers reuse the devices of init containers, and a pod keeps the devices that it already holds."""
    held = [allocation(holder, "gpu-0", "gpu-1")] if holder != "none" else []
    node = TrialNode("n", {GPU: simulated_devices("gpu", 2)}, held)
    containers = [Container(name, {GPU: limit}) for name, limit in zip(("app", "other"), limits, strict=False)]
    inits = [Container(f"i{number}", {GPU: limit}) for number, limit in enumerate(init_limits)]
    assert trial._has_enough(node, Pod(PodUid("new"), containers=containers, init_containers=inits))  # noqa: SLF001 - what a search is allowed to skip


def test_several_pods_end_if_one_is_not_enough() -> None:
    held = [allocation("a", "gpu-0"), allocation("b", "gpu-1"), allocation("c", "gpu-2", "gpu-3")]
    node = TrialNode("n", {GPU: simulated_devices("gpu", 4)}, held)
    assert "these 2 pods end: c, b" in sentences(node, pod(3))


def test_a_topology_refusal_names_a_laxer_policy_and_the_numa_node() -> None:
    devices = simulated_devices("gpu", 4, numa_nodes=[0, 1])
    topology = Topology((NumaNode(0), NumaNode(1)), Policy.SINGLE_NUMA_NODE)
    node = TrialNode("n", {GPU: devices}, topology=topology)
    found = fit(node, pod(3))
    assert isinstance(found.verdict, Refused)
    assert found.verdict.reason == "TopologyAffinityError"
    assert "the kubelet's topology policy is restricted" in sentences(node, pod(3))
    assert "the node gets one more healthy device of example.com/gpu on NUMA node 0" in sentences(node, pod(3))
    assert "container app requests 2 of example.com/gpu instead of 3" in sentences(node, pod(3))


def test_a_sidecar_does_not_count_beside_an_init_container_before_it() -> None:
    first, sidecar = Container("first", {GPU: 2}), Container("sidecar", {GPU: 1}, restartable=True)
    one = evolve(pod(1), init_containers=(first, sidecar))
    assert requests_of(one) == {GPU: 2}
    assert requests_of(evolve(one, init_containers=(sidecar, first))) == {GPU: 3}


def test_a_resource_without_a_list_is_waited_for() -> None:
    node = TrialNode("n", {}, awaited=[GPU])
    assert isinstance(fit(node, pod(1)).verdict, NotReady)


def test_other_resources_of_the_node_do_not_matter() -> None:
    node = TrialNode("n", {NIC: simulated_devices("nic", 1)}, [allocation("old", "nic-0", resource=NIC)])
    assert fit(node, Pod(PodUid("new"), containers=(Container("app"),))).fits


def test_a_device_with_two_owners_is_free_only_when_both_have_gone() -> None:
    held = [allocation("a", "gpu-0"), allocation("b", "gpu-0")]
    node = TrialNode("n", {GPU: simulated_devices("gpu", 1)}, held)
    assert "these 2 pods end: b, a" in sentences(node, pod(1))
    assert "pod a ends" not in sentences(node, pod(1))


@pytest.mark.parametrize("count", [1, 3])
def test_unhealthy_devices_are_not_given(count: int) -> None:
    devices = [Device(DeviceId(f"gpu-{number}"), Health.UNHEALTHY) for number in range(count)]
    found = fit(TrialNode("n", {GPU: devices}), pod(1))
    assert "no healthy devices present" in str(found.verdict)
    assert "device gpu-0 of example.com/gpu becomes healthy" in [change.sentence for change in found.changes]


def test_a_trial_costs_little_for_each_pod_of_the_node() -> None:
    held = [allocation(f"old-{number}", f"gpu-{number}") for number in range(400)]
    node = TrialNode("n", {GPU: simulated_devices("gpu", 401)}, held)
    node.admit(pod(2))  # imports during the first trial do not count
    # with a separate entry for each pod, there would be 1,600 instructions per pod
    assert work(lambda: node.admit(pod(2))) < 400 * 800


def test_fewer_changes_are_tried_on_a_large_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying all changes on a node with 100,000 devices would take a minute."""
    wanted = trial.MIN_ATTEMPTS + 1
    node = TrialNode("n", {GPU: simulated_devices("gpu", wanted, unhealthy=range(wanted))})
    assert any("become healthy" in sentence for sentence in sentences(node, pod(wanted)))
    monkeypatch.setattr(trial, "MAX_WORK", 0)
    assert not any("become healthy" in sentence for sentence in sentences(node, pod(wanted)))
