"""Every shipped policy meets the contract and serves its purpose, and broken ones are caught."""

from collections.abc import Callable, Collection
from itertools import count
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given

from devicecore import (
    Admitted,
    Container,
    Device,
    DeviceId,
    NumaNode,
    Pod,
    PodUid,
    Refused,
    ResourceName,
    resource_name,
)
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import PolicyError
from devicecore.domain.policies import POLICIES, Choice, aligned, answer, distributed, kubelet_order, packed, spread
from devicecore.domain.topology import Topology
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.ports.policy import AllocationPolicy
from devicecore.testing.contracts import ALLOCATION_POLICY, MakePolicy
from devicecore.testing.contracts import policy as contract
from devicecore.testing.strategies import choices
from tests.memory_manager import MemoryManager

Check = Callable[[MakePolicy], None]
GPU, NIC = resource_name("example.com/gpu"), resource_name("example.com/nic")


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("check", ALLOCATION_POLICY)
def test_a_policy_keeps_the_contract(check: Check, policy: AllocationPolicy) -> None:
    """Each shipped policy meets every sentence of the port."""
    check(lambda: policy)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(choices())
def test_a_policy_answers_any_question(policy: AllocationPolicy, choice: Choice) -> None:
    """`answer` raises nothing for a valid answer, and the answer depends only on the question."""
    assert answer(policy, choice) == answer(policy, evolve(choice))


# --- what each policy is for ------------------------------------------------------------------------------------------


def ids(*names: str) -> DeviceSet:
    return DeviceSet.of(map(DeviceId, names))


def admitted(
    policy: AllocationPolicy,
    plugins: Collection[SimulatedPlugin],
    *pods: dict[str, int],
    topology: Topology = Topology(),
) -> dict[ResourceName, DeviceSet]:
    """Admit several pods, and return the devices of the last pod by resource."""
    with MemoryManager(*plugins, policy=policy, topology=topology) as manager:
        for number, limits in enumerate(pods):
            verdict = manager.admit(Pod(PodUid(f"p{number}"), containers=(Container("main", limits),)))
            assert isinstance(verdict, Admitted), verdict
            devices = verdict.devices("main")
        return devices


def gpus(amount: int = 8) -> SimulatedPlugin:
    """Return a plugin with GPUs: even numbers are on NUMA node 0, and odd numbers are on NUMA node 1."""
    return SimulatedPlugin(GPU, simulated_devices("gpu", amount, numa_nodes=[0, 1]))


@pytest.mark.parametrize(
    ("policy", "second"),
    [
        (kubelet_order, ids("gpu-3", "gpu-4")),  # the first free devices in natural order
        (packed, ids("gpu-1", "gpu-3")),  # only one device is left on NUMA node 0
        (spread, ids("gpu-3", "gpu-5")),  # the previous pod has two devices on NUMA node 0 and one on 1
        (aligned, ids("gpu-1", "gpu-3")),
    ],
)
def test_where_the_second_pod_goes(policy: AllocationPolicy, second: DeviceSet) -> None:
    assert admitted(policy, [gpus()], {GPU: 3}, {GPU: 2}) == {GPU: second}


def test_packed_keeps_a_numa_node_free() -> None:
    """The third pod fits next to the first pod, so the third NUMA node stays free."""
    plugin = SimulatedPlugin(GPU, simulated_devices("gpu", 12, numa_nodes=[0, 1, 2]))
    assert admitted(packed, [plugin], {GPU: 2}, {GPU: 3}, {GPU: 2}) == {GPU: ids("gpu-6", "gpu-9")}
    assert admitted(kubelet_order, [plugin], {GPU: 2}, {GPU: 3}, {GPU: 2}) == {GPU: ids("gpu-5", "gpu-6")}


def test_distributed_takes_the_card_with_the_fewest_replicas_in_use() -> None:
    replicas = [Device(DeviceId(f"{card}::{number}")) for card in ("A", "B", "C") for number in range(3)]
    plugin = SimulatedPlugin(GPU, replicas)
    assert admitted(distributed, [plugin], {GPU: 2}, {GPU: 2}) == {GPU: ids("A::1", "C::0")}
    assert admitted(distributed, [plugin], {GPU: 4}) == {GPU: ids("A::0", "A::1", "B::0", "C::0")}


def test_aligned_follows_the_devices_that_the_pod_has_already() -> None:
    """The container's GPU is on NUMA node 1, so its NIC is taken from there, even in the same admission."""
    on_one = SimulatedPlugin(GPU, [Device(DeviceId("gpu"), topology=[NumaNode(1)])])
    nics = SimulatedPlugin(NIC, simulated_devices("nic", 4, numa_nodes=[0, 1]))
    assert admitted(aligned, [on_one, nics], {GPU: 1, NIC: 1}) == {GPU: ids("gpu"), NIC: ids("nic-1")}
    assert admitted(packed, [on_one, nics], {GPU: 1, NIC: 1}) == {GPU: ids("gpu"), NIC: ids("nic-0")}


def test_a_policy_chooses_only_on_the_numa_nodes_of_the_topology_manager() -> None:
    """A policy cannot choose devices on NUMA nodes that the topology manager has ruled out."""
    topology = Topology([NumaNode(0), NumaNode(1)], "single-numa-node")
    assert admitted(spread, [gpus()], {GPU: 2}, topology=topology) == {GPU: ids("gpu-0", "gpu-2")}
    assert admitted(spread, [gpus()], {GPU: 2}) == {GPU: ids("gpu-0", "gpu-1")}


def test_a_policy_learns_what_the_plugin_prefers() -> None:
    class Preferring(SimulatedPlugin):
        def get_preferred_allocation(
            self, available: Collection[DeviceId], must_include: object, size: int
        ) -> tuple[DeviceId, ...]:
            return tuple(reversed(list(available)))[:size]

    asked: list[Choice] = []

    def noting(choice: Choice) -> DeviceSet:
        asked.append(choice)
        return packed(choice)

    assert admitted(noting, [Preferring(GPU)], {GPU: 2}) == {GPU: ids("gpu-0", "gpu-1")}
    assert admitted(kubelet_order, [Preferring(GPU)], {GPU: 2}) == {GPU: ids("gpu-8", "gpu-9")}
    assert [choice.preferred for choice in asked] == [("gpu-9", "gpu-8")]


def test_a_policy_may_use_the_manager_and_is_called_again_if_devices_vanish() -> None:
    """The policy is called without a lock, and its answer counts only if all devices in the answer are still free."""
    asked: list[Choice] = []

    def slow(choice: Choice) -> DeviceSet:
        asked.append(choice)
        if len(asked) == 1:
            assert manager.admit(Pod(PodUid("fast"), containers=(Container("main", {GPU: 1}),)))
        return packed(choice)

    with MemoryManager(SimulatedPlugin(GPU, simulated_devices("gpu", 3)), policy=slow) as manager:
        verdict = manager.admit(Pod(PodUid("slow"), containers=(Container("main", {GPU: 2}),)))
        assert isinstance(verdict, Admitted)
        assert verdict.devices("main") == {GPU: ids("gpu-1", "gpu-2")}
    assert [(one.container.pod, len(one.available)) for one in asked] == [("slow", 3), ("fast", 3), ("slow", 2)]


# --- the contract can fail --------------------------------------------------------------------------------------------


def takes_all(choice: Choice) -> Collection[DeviceId]:
    return choice.available


def takes_one_twice(choice: Choice) -> Collection[DeviceId]:
    return [*packed(choice)][:1] * choice.size


def takes_what_others_hold(choice: Choice) -> Collection[DeviceId]:
    return [*choice.in_use, *choice.available][: choice.size]


def forgets_what_must_be_included(choice: Choice) -> Collection[DeviceId]:
    return [*choice.free][: choice.size]


class TakesTurns:
    """Starts with a different device each time it is called."""

    def __init__(self) -> None:
        self.turns = count()

    def __call__(self, choice: Choice) -> Collection[DeviceId]:
        free = [*choice.free]
        turn = next(self.turns) % max(len(free), 1)
        return choice.with_chosen(free[turn:] + free[:turn])


BROKEN: dict[Check, MakePolicy] = {
    contract.answers_as_many_as_are_asked_for: lambda: takes_all,
    contract.answers_different_devices: lambda: takes_one_twice,
    contract.answers_what_is_available: lambda: takes_what_others_hold,
    contract.includes_what_must_be_included: lambda: forgets_what_must_be_included,
    contract.answers_the_same_question_the_same: TakesTurns,
}


@pytest.mark.parametrize("check", ALLOCATION_POLICY)
def test_each_check_catches_a_policy_that_breaks_its_sentence(check: Check) -> None:
    """A check that cannot fail tests nothing."""
    with pytest.raises(AssertionError):
        check(BROKEN[check])


def fails(choice: Choice) -> Collection[DeviceId]:
    raise KeyError(choice.resource)


def returns_a_text(_: Choice) -> Any:  # noqa: ANN401 - that is the mistake
    return "gpu-0"


@pytest.mark.parametrize(
    ("policy", "cause"),
    [
        (takes_all, "expected 2 devices, got gpu-0, gpu-1, gpu-2"),
        (takes_one_twice, "expected different devices, but gpu-0 appears twice, got gpu-0, gpu-0"),
        (lambda _: ["gpu-0", "x\n"], "expected available devices, but x\\n is not available, got gpu-0, x\\n"),
        (fails, "KeyError: 'example.com/gpu'"),
        (returns_a_text, "TypeError: answer: expected several values, such as a tuple, got 'gpu-0'"),
        (lambda _: None, "TypeError: answer: expected several values, such as a tuple, got None"),
    ],
)
def test_a_bad_answer_refuses_the_pod_with_a_sentence_that_names_the_policy(policy: Any, cause: str) -> None:  # noqa: ANN401 - mistakes
    with MemoryManager(SimulatedPlugin(GPU, simulated_devices("gpu", 3)), policy=policy) as manager:
        verdict = manager.admit(Pod(PodUid("p"), containers=(Container("main", {GPU: 2}),)))
        assert isinstance(verdict, Refused)
        assert isinstance(verdict.error, PolicyError)
        assert verdict.error.policy == policy.__qualname__[:100]
        assert str(verdict.error) == f"the policy {verdict.error.policy} for example.com/gpu: {cause}"
        assert not manager.state.ledger.in_use(GPU)


def test_a_policy_has_to_include_what_must_be_included() -> None:
    """The app container must reuse the init container's device, so a policy's answer has to include the device."""
    plugin = SimulatedPlugin(GPU, simulated_devices("gpu", 4))
    with MemoryManager(plugin, policy=forgets_what_must_be_included) as manager:
        init, app = (Container(name, {GPU: size}) for name, size in (("init", 1), ("app", 2)))
        verdict = manager.admit(Pod(PodUid("p"), containers=[app], init_containers=[init]))
    assert isinstance(verdict, Refused)
    assert "expected the devices that must be included, but gpu-0 is missing" in str(verdict.error)
