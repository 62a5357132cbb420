"""The laws of `domain/ledger.py`.

"A device is held by at most one pod. Inside a pod, containers share a device only if an init container that has ended
held it before. Every method of `Ledger` keeps this law. Only a restored checkpoint can contain a device with two
owners, because kubelets have written such files: both owners keep the device, which is free once both are gone."
"""

from collections.abc import Set as AbstractSet

import pytest
from attrs import frozen
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore.domain.device_set import DeviceIndex, DeviceSet
from devicecore.domain.errors import DeviceHeldError
from devicecore.domain.ledger import Allocation, Ledger
from devicecore.domain.model import ContainerKey, DeviceId, NumaNode, PodUid, Receipt, ResourceName
from devicecore.testing.strategies import PODS, RESOURCES, ledgers

GPU, RDMA = RESOURCES
NOBODY = PodUid("nobody")
IDS = tuple(DeviceId(f"gpu-{number}") for number in range(6))
RECEIPT = Receipt(b"receipt")

keys = st.builds(ContainerKey, st.sampled_from((*PODS, NOBODY)), st.sampled_from("abcd"))
resources = st.sampled_from(RESOURCES)
id_sets = st.frozensets(st.sampled_from(IDS), max_size=4)


def owners(ledger: Ledger, resource: ResourceName) -> dict[DeviceId, set[PodUid]]:
    """Return the pods that hold each device of a resource, counted from all allocations and reservations."""
    counted: dict[DeviceId, set[PodUid]] = {}
    for holding in (*ledger, *ledger.reservations):
        if holding.resource == resource:
            for device in holding.devices:
                counted.setdefault(device, set()).add(holding.key.pod)
    return counted


def on_node(node: int) -> tuple[NumaNode, ...]:
    return (NumaNode(node),)


@frozen
class Request:
    """A container's request to reserve devices in a ledger."""

    ledger: Ledger
    key: ContainerKey
    resource: ResourceName
    devices: DeviceSet
    reusable: DeviceSet

    def reserve(self) -> Ledger:
        return self.ledger.reserve(self.key, self.resource, self.devices, self.reusable)

    @property
    def may_have_them(self) -> bool:
        """Whether `reserve` must succeed, judging only from allocations and reservations."""
        held_by = owners(self.ledger, self.resource)
        mine = self.ledger.held_by(self.key.pod, self.resource)
        reusable = {device for device in self.reusable if held_by.get(device) == {self.key.pod}}
        return self.key.container not in mine and not (set(self.devices) & held_by.keys()) - reusable


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Requests for devices that may be free, reusable or held. Some must succeed and some must fail."""
    ledger = draw(ledgers(shared_by_error=True))
    return Request(ledger, draw(keys), draw(resources), DeviceSet.of(draw(id_sets)), DeviceSet.of(draw(id_sets)))


@st.composite
def granted(draw: st.DrawFn) -> Request:
    """Requests that must succeed, some of them for reusable devices of their own pod."""
    ledger, pod, resource = draw(ledgers(shared_by_error=True)), draw(st.sampled_from(PODS)), draw(resources)
    counted = owners(ledger, resource)
    offered = [device for device in IDS if counted.get(device, {pod}) == {pod}]
    wanted = DeviceSet.of(draw(st.sets(st.sampled_from(offered), max_size=4)) if offered else ())
    return Request(ledger, ContainerKey(pod, "newcomer"), resource, wanted, wanted & ledger.in_use(resource))


@given(requests())
def test_a_reservation_succeeds_if_and_only_if_the_devices_are_free(request: Request) -> None:
    """`reserve` refuses a device of another pod, one that is not reusable, and a second reservation; nothing else."""
    if request.may_have_them:
        request.reserve()
    else:
        with pytest.raises(DeviceHeldError) as refusal:
            request.reserve()
        assert refusal.value.resource == request.resource


@given(granted())
def test_reserve_then_release_is_identity(request: Request) -> None:
    """An admission that fails leaves the ledger as it was."""
    assert request.reserve().release(request.key, request.resource) == request.ledger


@given(granted())
def test_confirming_changes_who_knows_not_who_holds(request: Request) -> None:
    """A confirmed reservation holds the same devices, with their NUMA nodes and the receipt."""
    reserved = request.reserve()
    confirmed = reserved.confirm(request.key, request.resource, RECEIPT, lambda _: on_node(3))
    allocation = confirmed.allocation(request.key, request.resource)
    assert allocation == Allocation(request.key, request.resource, dict.fromkeys(request.devices, on_node(3)), RECEIPT)
    assert confirmed.allocations[request.key.pod][-1] is allocation
    assert confirmed.in_use(request.resource) == reserved.in_use(request.resource)
    assert confirmed.reservations == request.ledger.reservations


@given(granted())
def test_reserve_confirm_and_evict_give_everything_back(request: Request) -> None:
    """After a pod is evicted, all its devices are free and nothing else has changed."""
    ledger = request.reserve().confirm(request.key, request.resource, RECEIPT, lambda _: ())
    assert ledger.evict([request.key.pod]) == request.ledger.evict([request.key.pod])


@given(ledgers())
def test_no_device_is_held_by_two_pods(ledger: Ledger) -> None:
    """After any sequence of its methods, each device has at most one pod."""
    for resource in RESOURCES:
        assert all(len(pods) == 1 for pods in owners(ledger, resource).values())
        assert not ledger.shared_by_error(resource)


@given(ledgers(shared_by_error=True))
def test_in_use_is_the_union_of_the_holdings(ledger: Ledger) -> None:
    """What the ledger keeps for speed equals what can be counted from its allocations and reservations."""
    for resource in RESOURCES:
        counted = owners(ledger, resource)
        assert ledger.in_use(resource) == counted.keys()
        assert ledger.shared_by_error(resource) == {device for device, pods in counted.items() if len(pods) > 1}
        assert (resource in ledger.resources) == bool(counted)
    for pod in PODS:
        for resource in RESOURCES:
            holdings = [held for held in (*ledger, *ledger.reservations) if held.key.pod == pod]
            assert ledger.held_by(pod, resource) == {
                held.key.container: held.devices for held in holdings if held.resource == resource
            }


@given(ledgers(shared_by_error=True), st.sets(st.sampled_from((*PODS, NOBODY))))
def test_reservations_survive_evict(ledger: Ledger, pods: AbstractSet[PodUid]) -> None:
    """A reservation ends only with its own admission, and its devices are in use until then."""
    left = ledger.evict(pods)
    assert left.reservations == ledger.reservations
    for reservation in left.reservations:
        assert reservation.devices <= left.in_use(reservation.resource)
    for reservation in ledger.reservations:
        left = left.release(reservation.key, reservation.resource)
    assert not left.reservations
    assert all(left.in_use(resource) == owners(left, resource).keys() for resource in RESOURCES)


@given(ledgers(shared_by_error=True), st.sets(st.sampled_from((*PODS, NOBODY))))
def test_evict_forgets_these_pods_and_no_others(ledger: Ledger, pods: AbstractSet[PodUid]) -> None:
    """The other pods' allocations stay, in order; evicting a pod twice, or one that has nothing, changes nothing."""
    left = ledger.evict(pods)
    assert list(left) == [held for held in ledger if held.key.pod not in pods]
    assert left.evict([*pods, NOBODY]) is left


def test_a_pod_that_holds_no_device_can_go_too() -> None:
    """A file may contain an entry without devices."""
    key = ContainerKey(NOBODY, "a")
    assert Ledger.of([Allocation(key, GPU, {}, RECEIPT)]).evict([NOBODY]) == Ledger()


@given(ledgers(shared_by_error=True), st.permutations(PODS))
def test_a_device_is_free_when_its_last_pod_has_gone(ledger: Ledger, order: list[PodUid]) -> None:
    """A device that several pods hold is in use until the last of them is evicted, in any order."""
    for pod in order:
        ledger = ledger.evict([pod])
        for resource in RESOURCES:
            counted = owners(ledger, resource)
            assert ledger.in_use(resource) == counted.keys()
            assert ledger.shared_by_error(resource) == {device for device, pods in counted.items() if len(pods) > 1}


@given(
    st.lists(
        st.builds(
            Allocation,
            keys,
            resources,
            st.dictionaries(st.sampled_from(IDS), st.just(())),
            st.binary(max_size=2).map(Receipt),
        ),
        max_size=6,
    )
)
@example(
    [
        Allocation(ContainerKey(PODS[0], "a"), GPU, {IDS[0]: ()}, RECEIPT),
        Allocation(ContainerKey(PODS[1], "a"), GPU, {IDS[0]: ()}, RECEIPT),
    ]
)
def test_a_restored_file_is_kept_as_it_stands(allocations: list[Allocation]) -> None:
    """All entries of a file are restored; of two for one container and resource, the later one.

    A device may have two pods.
    """
    ledger = Ledger.of(allocations)
    latest = {(held.key, held.resource): held for held in allocations}
    assert sorted(map(repr, ledger)) == sorted(map(repr, latest.values()))
    for resource in RESOURCES:
        counted = owners(ledger, resource)
        assert ledger.in_use(resource) == counted.keys()
        assert ledger.shared_by_error(resource) == {device for device, pods in counted.items() if len(pods) > 1}


@given(ledgers(), keys, resources)
def test_what_was_never_reserved_is_neither_confirmed_nor_released(
    ledger: Ledger, key: ContainerKey, resource: ResourceName
) -> None:
    """An allocation needs a reservation."""
    if all((held.key, held.resource) != (key, resource) for held in ledger.reservations):
        with pytest.raises(KeyError):
            ledger.confirm(key, resource, RECEIPT, lambda _: ())
        with pytest.raises(KeyError):
            ledger.release(key, resource)


@given(ledgers(shared_by_error=True), st.lists(st.sampled_from(IDS)))
def test_the_index_does_not_matter(ledger: Ledger, ids: list[DeviceId]) -> None:
    """On an index of a plugin's list, the same devices are in use."""
    index = DeviceIndex.of(ids)
    for resource in RESOURCES:
        assert ledger.indexed(resource, index) == ledger


@given(granted())
def test_no_method_changes_a_ledger(request: Request) -> None:
    """An operation does not change the ledger on which it is called."""
    before = repr(request.ledger)
    request.reserve().confirm(request.key, request.resource, RECEIPT, lambda _: ()).evict(PODS)
    request.ledger.evict(PODS)
    assert repr(request.ledger) == before


@given(ledgers(shared_by_error=True))
def test_what_a_pod_holds_is_what_its_containers_hold(ledger: Ledger) -> None:
    """`of_pod` and `of_container` split the ledger and keep its order. A pod without devices has no allocations."""
    assert [allocation for pod in ledger.allocations for allocation in ledger.of_pod(pod)] == list(ledger)
    for allocation in ledger:
        of_container = ledger.of_container(allocation.key)
        assert ledger.allocation(allocation.key, allocation.resource) in of_container
        of_pod = ledger.of_pod(allocation.key.pod)
        assert list(of_container) == [other for other in of_pod if other.key == allocation.key]
    assert ledger.of_pod(NOBODY) == ledger.of_container(ContainerKey(NOBODY, "app")) == ()
