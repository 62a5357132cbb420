"""The outcome of an admission, and which changes may lead to another outcome."""

import pytest
from devicecore_tools.node.outcome import FactsKeeper, Outcome, OutcomeKind, may_differ, outcome_of, resources_of

from devicecore.domain.admission import Admitted, NotReady, Refused, Verdict
from devicecore.domain.errors import (
    AdmissionTimeoutError,
    DeviceCoreError,
    NoHealthyDevicesError,
    NotEnoughDevicesError,
    PluginCallError,
    StoreError,
)
from devicecore.domain.events import DevicesReported, PluginLost, PluginRegistered
from devicecore.domain.model import Container, DeviceId, PluginId, PluginOptions, Pod, PodUid, Receipt, resource_name
from devicecore.domain.node_state import NodeState
from devicecore.domain.selection import AskPlugin, ResourceRequest
from devicecore.plugins.simulated import simulated_devices

GPU, NIC = resource_name("acme.io/gpu"), resource_name("acme.io/nic")
PLUGIN = PluginId(GPU, "/p.sock", 1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotEnoughDevicesError(GPU, 2, 1), OutcomeKind.TOO_FEW),
        (NoHealthyDevicesError(GPU), OutcomeKind.REFUSED),
        (PluginCallError(GPU, "Allocate", "rpc error: code = Unknown desc = no"), OutcomeKind.REFUSED),
        (PluginCallError(GPU, "Allocate", "rpc error: code = DeadlineExceeded desc = x"), OutcomeKind.NO_ANSWER),
        (AdmissionTimeoutError("u", 60), OutcomeKind.NO_ANSWER),
        (StoreError("file", "write", "No space left on device"), OutcomeKind.NO_ANSWER),
    ],
)
def test_the_kind_of_an_outcome_says_who_has_answered(error: DeviceCoreError, kind: OutcomeKind) -> None:
    assert outcome_of(Refused(error)).kind is kind


@pytest.mark.parametrize(
    ("verdict", "waits"),
    [
        (Admitted(Pod(PodUid("u"))), False),
        (NotReady(NoHealthyDevicesError(GPU), GPU), True),
        (Refused(NoHealthyDevicesError(GPU)), False),
        (Refused(AdmissionTimeoutError("u", 60)), True),
    ],
)
def test_an_outcome_waits_if_it_may_change_without_a_change_of_devices(verdict: Verdict, waits: bool) -> None:
    assert outcome_of(verdict).waits is waits


def registered(count: int) -> NodeState:
    state = NodeState().apply(PluginRegistered(PLUGIN, PluginOptions()), 0.0)
    return state.apply(DevicesReported(PLUGIN, simulated_devices("gpu", count)), 0.0)


def reserved(state: NodeState, pod: Pod, count: int) -> NodeState:
    request = ResourceRequest(pod.key(pod.containers[0]), GPU, count)
    decision = state.devices_to_allocate(pod, request)
    assert not isinstance(decision, AskPlugin)
    return state.reserve(pod, request, decision)


def confirmed(state: NodeState, pod: Pod) -> NodeState:
    return state.confirm(pod.key(pod.containers[0]), GPU, Receipt(b""))


def pod(uid: str) -> Pod:
    return Pod(PodUid(uid), containers=(Container("main", {GPU: 2, "cpu": 1}),))


REFUSED = Outcome(OutcomeKind.REFUSED)


def differs(outcome: Outcome, before: NodeState, now: NodeState) -> bool:
    keeper = FactsKeeper()
    keeper.look(before)
    facts = keeper.of([GPU])
    keeper.look(now)
    return may_differ(outcome, facts, keeper.of([GPU]))


def test_nothing_differs_while_nothing_changes() -> None:
    state = registered(4)
    assert not differs(REFUSED, state, state)
    assert not differs(REFUSED, state, state.apply(DevicesReported(PLUGIN, simulated_devices("gpu", 4)), 1.0))


def test_a_reservation_is_no_change_and_an_allocation_is_one() -> None:
    """If reservations counted, two refused pods would make each other retry forever."""
    state = registered(4)
    in_flight = reserved(state, pod("a"), 2)
    assert not differs(REFUSED, state, in_flight)
    assert differs(REFUSED, state, confirmed(in_flight, pod("a")))


def test_a_new_list_a_new_instance_or_a_first_plugin_may_change_the_answer() -> None:
    state = registered(4)
    assert differs(REFUSED, state, state.apply(DevicesReported(PLUGIN, simulated_devices("gpu", 5)), 1.0))
    assert differs(REFUSED, state, state.apply(PluginLost(PLUGIN), 1.0))
    assert differs(REFUSED, NodeState(), state)


def test_a_pod_for_which_too_few_were_free_waits_until_enough_are() -> None:
    full = confirmed(reserved(registered(4), pod("a"), 2), pod("a"))
    full = confirmed(reserved(full, pod("b"), 2), pod("b"))
    lacks = outcome_of(Refused(NotEnoughDevicesError(GPU, 4, 0)))
    freed = full.evict([PodUid("a")])
    assert not differs(lacks, full, freed)
    assert differs(lacks, full, freed.evict([PodUid("b")]))


def test_a_pods_resources_are_those_it_has_limits_for() -> None:
    assert resources_of(pod("a")) == {GPU, "cpu"}
    assert resources_of(Pod(PodUid("u"), containers=(Container("main", {NIC: 0}),))) == frozenset()


def test_a_device_that_a_pod_holds_is_not_free() -> None:
    state = confirmed(reserved(registered(4), pod("a"), 2), pod("a"))
    keeper = FactsKeeper()
    keeper.look(state)
    facts = keeper.of([GPU])[GPU]
    assert (facts.free, list(facts.allocated)) == (2, [DeviceId("gpu-0"), DeviceId("gpu-1")])
