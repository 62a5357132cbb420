"""The laws of `domain/node_state.py`.

"A `NodeState` never changes; a new one replaces it. A reader therefore sees the inventory and the ledger as of the same
moment."

The laws of `domain/checkpoint/`: a restart keeps what was saved, and a writer writes what `encode` writes.
"""

from collections.abc import Iterable

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore.domain.checkpoint import CheckpointData, CheckpointWriter, checkpoint_of, decode, encode, restore
from devicecore.domain.checks import received
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import UnencodableCheckpointError
from devicecore.domain.events import DevicesReported, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.inventory import GRACE_PERIOD
from devicecore.domain.ledger import Allocation, Ledger
from devicecore.domain.model import (
    ContainerKey,
    Device,
    DeviceId,
    ExtendedClaim,
    Health,
    NumaNode,
    PluginId,
    PluginOptions,
    Pod,
    PodUid,
    Receipt,
    RequestMapping,
    ResourceName,
)
from devicecore.domain.node_state import NodeState
from devicecore.testing.strategies import (
    PODS,
    RESOURCES,
    device_ids,
    device_lists,
    ledgers,
    node_states,
    plugin_events,
    pods,
)

GPU, RDMA = RESOURCES
PLUGIN = PluginId(GPU, "plugin.sock", 1)
KEY = ContainerKey(PODS[0], "app")
ONE = Allocation(KEY, GPU, {DeviceId("a"): ()}, Receipt(b"1"))
OTHER = Allocation(ContainerKey(PODS[1], "app"), GPU, {DeviceId("b"): (NumaNode(1),)}, Receipt(b"2"))

awkward_lists = device_lists(min_size=1, max_size=6)


def restarted(node: NodeState, format: int = 2) -> NodeState:  # noqa: A002 - as `encode` calls it
    """Return the state after a restart that restores the node's checkpoint."""
    return restore(decode(encode(checkpoint_of(node), format)).verified(), now=0.0)


Held = tuple[dict[DeviceId, tuple[NumaNode, ...]], Receipt]


def holdings(ledger: Ledger) -> dict[tuple[ContainerKey, ResourceName], Held]:
    """Return the allocations by container and resource, in no particular order."""
    return {(held.key, held.resource): (dict(held.numa_nodes), held.receipt) for held in ledger}


# --- checkpoints -----------------------------------------------------------------------------------------------------


@given(node_states(lists=awkward_lists, all_confirmed=True))
def test_a_restart_loses_nothing(node: NodeState) -> None:
    """Every allocation is restored: container, devices, receipt, and the NUMA nodes of each device."""
    restored = restarted(node)
    assert holdings(restored.ledger) == holdings(node.ledger)
    assert list(restored.ledger.allocations) == list(node.ledger.allocations)
    for resource in RESOURCES:
        assert restored.ledger.in_use(resource) == node.ledger.in_use(resource)


@given(ledgers(shared_by_error=True))
def test_a_restart_restores_a_ledger_of_any_file(ledger: Ledger) -> None:
    """This includes a file in which two pods have the same device. Devices that were only reserved are then free."""
    restored = restarted(NodeState(ledger=ledger)).ledger
    confirmed = Ledger.of(ledger)
    assert holdings(restored) == holdings(confirmed)
    for resource in RESOURCES:
        assert restored.in_use(resource) == confirmed.in_use(resource)
        assert restored.shared_by_error(resource) == confirmed.shared_by_error(resource)


@given(ledgers(shared_by_error=True))
def test_format_1_keeps_everything_but_the_numa_nodes(ledger: Ledger) -> None:
    """A file from before kubelet 1.20 loses only the topology: all devices are on NUMA node 0."""
    restored = restarted(NodeState(ledger=ledger), format=1).ledger
    on_node_0 = {key: (dict.fromkeys(held, (NumaNode(0),)), got) for key, (held, got) in holdings(ledger).items()}
    assert holdings(restored) == on_node_0


@given(ledgers(shared_by_error=True))
@example(
    Ledger.of(
        [Allocation(KEY, GPU, {DeviceId("a"): (NumaNode(1),), DeviceId("b"): (NumaNode(0), NumaNode(1))}, Receipt(b""))]
    )
)
def test_a_restart_alone_changes_no_byte(ledger: Ledger) -> None:
    """Restoring a checkpoint and writing it again gives the same entries."""
    data = checkpoint_of(NodeState(ledger=Ledger.of(ledger)))
    assert checkpoint_of(restore(data, now=0.0)).entries == data.entries


@given(node_states(lists=awkward_lists))
def test_a_checkpoint_names_the_healthy_devices_of_registered_resources(node: NodeState) -> None:
    """When it is read, only the names count: no device is healthy until its plugin reports again."""
    data = checkpoint_of(node)
    assert data.registered_devices is not None
    for resource in node.inventory.resources.values():
        assert resource.report is not None
        assert set(data.registered_devices[resource.name] or ()) == set(resource.report.healthy)
    inventory = restarted(node).inventory
    assert inventory.resources.keys() == node.inventory.resources.keys()
    assert all(resource.awaited and not resource.plugins for resource in inventory.resources.values())
    assert set(inventory.status().capacity.values()) <= {0}
    removed, left = inventory.expire(GRACE_PERIOD + 1)
    assert list(removed) == sorted(node.inventory.resources)
    assert not left.resources


@given(node_states(lists=awkward_lists))
def test_reservations_are_not_in_a_checkpoint(node: NodeState) -> None:
    """A restart forgets what no plugin has confirmed."""
    entries = checkpoint_of(node).entries or ()
    allocated = {(held.key.pod, held.key.container, held.resource) for held in node.ledger}
    assert {(entry.pod_uid, entry.container_name, entry.resource_name) for entry in entries} == allocated


@given(plugin_events(lists=awkward_lists), ledgers(shared_by_error=True))
def test_a_writer_writes_what_encode_writes_after_each_event(events: Iterable[object], ledger: Ledger) -> None:
    """`CheckpointWriter().file(state) == encode(checkpoint_of(state))`, for one writer and a node's history."""
    writer = CheckpointWriter()
    node = NodeState(ledger=ledger)
    assert writer.file(node) == encode(checkpoint_of(node))
    for event in events:
        assert isinstance(event, PluginRegistered | DevicesReported | PluginLost)
        node = node.apply(event, now=0.0)
        node = NodeState(node.inventory, node.ledger.evict(PODS[:1]))
        assert writer.file(node) == encode(checkpoint_of(node))


@given(st.lists(node_states(lists=awkward_lists), max_size=4))
@example([NodeState(ledger=Ledger.of([ONE, OTHER])), NodeState(ledger=Ledger.of([OTHER, ONE]))])
@example([NodeState(ledger=Ledger.of([ONE, OTHER])), NodeState(ledger=Ledger.of([OTHER])), NodeState()])
@example([NodeState(ledger=Ledger.of([ONE, OTHER])), NodeState(ledger=Ledger.of([evolve(ONE), OTHER]))])
def test_a_writer_writes_what_encode_writes_for_any_states(states: list[NodeState]) -> None:
    """This also holds for unrelated states, and for the same pods in another order."""
    writer = CheckpointWriter()
    for state in (*states, *states[::-1]):
        assert writer.file(state) == encode(checkpoint_of(state))


@given(node_states(lists=awkward_lists))
def test_a_writer_goes_on_after_a_state_that_has_no_file(node: NodeState) -> None:
    """A lone surrogate in a pod's uid is refused, and does not appear in any later file."""
    writer = CheckpointWriter()
    writer.file(node)
    strange = Allocation(ContainerKey(PodUid("\ud800"), "app"), GPU, {}, Receipt(b""))
    with pytest.raises(UnencodableCheckpointError):
        writer.file(NodeState(node.inventory, Ledger.of([*node.ledger, strange])))
    assert writer.file(node) == encode(checkpoint_of(node))


def test_a_node_without_anything_writes_what_a_kubelet_writes() -> None:
    """No pods are written as null, and no resources as an empty map. The file is read as an empty node."""
    assert checkpoint_of(NodeState()) == CheckpointData(None, {})
    assert restarted(NodeState()) == NodeState()


# --- events ----------------------------------------------------------------------------------------------------------


@given(plugin_events(lists=awkward_lists), ledgers())
def test_no_event_changes_who_holds_what(events: Iterable[object], ledger: Ledger) -> None:
    """Plugins come and go; containers keep their devices until their pods are evicted."""
    node = NodeState(ledger=ledger)
    for event in events:
        assert isinstance(event, PluginRegistered | DevicesReported | PluginLost)
        node = node.apply(event, now=0.0)
        assert node.ledger == ledger


@given(node_states(), awkward_lists)
def test_a_report_and_what_is_held_share_an_index(node: NodeState, devices: tuple[Device, ...]) -> None:
    """The most frequently combined sets are on one index, which makes them fast, for any earlier lists and holders."""
    plugin = PluginId(GPU, "other.sock", 9)
    node = node.apply(PluginRegistered(plugin, PluginOptions()), now=2.0)
    node = node.apply(DevicesReported(plugin, devices), now=2.0)
    report = node.inventory.current_report(GPU)
    assert report is not None
    assert not node.ledger.in_use(GPU) or node.ledger.in_use(GPU).index is report.index
    assert report.devices == {device.id: device for device in devices}
    assert len(report.index.ids) <= 2 * len(devices) + len(node.ledger.in_use(GPU))


@given(st.text())
def test_a_mere_request_to_register_changes_nothing(name: str) -> None:
    """The transport counts it."""
    node = NodeState()
    assert node.apply(RegistrationRequested(name), now=0.0) is node


# --- what a pod requests ---------------------------------------------------------------------------------------------


@given(node_states(resources=[GPU]), pods(resources=[GPU, RDMA, "cpu", "kubernetes.io/x"]), st.booleans())
def test_an_extended_resource_is_either_handled_or_named_as_not(node: NodeState, pod: Pod, claimed: bool) -> None:
    """Each requested resource is reported, unless it is native to Kubernetes, zero, or claimed."""
    if claimed:
        mappings = [RequestMapping(container.name, GPU) for container in pod.in_start_order]
        pod = evolve(pod, extended_claim=ExtendedClaim("extended", mappings))
    handled = {(one.name, name) for one in pod.in_start_order for name, _ in node.requests(pod, one)}
    unhandled = set(node.unhandled(pod))
    assert not handled & unhandled
    for container in pod.in_start_order:
        for resource in (GPU, RDMA):
            if container.limits.get(resource) and (container.name, resource) not in pod.claimed:
                assert ((container.name, resource) in handled) == node.knows(resource)
                assert ((container.name, resource) in unhandled) != node.knows(resource)
    assert {resource for _, resource in handled | unhandled} <= {GPU, RDMA}


@given(node_states(), st.sampled_from(PODS), st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 9)))
def test_allocatable_is_sanitized_for_pods_that_hold_something(
    node: NodeState, pod: PodUid, allocatable: dict[ResourceName, int]
) -> None:
    """For a pod that has devices, allocatable is at least the number in use; for others it is unchanged."""
    sanitized = node.sanitize_allocatable(pod, allocatable)
    if pod in node.ledger.allocations:
        for resource in RESOURCES:
            at_least = max(allocatable.get(resource, 0), len(node.ledger.in_use(resource)))
            assert sanitized.get(resource, 0) == at_least
    else:
        assert sanitized == allocatable


@given(device_ids(), st.lists(st.integers(-1, 5).map(NumaNode), max_size=3, unique=True).map(tuple))
def test_a_device_that_is_no_longer_listed_has_no_topology(device: DeviceId, nodes: tuple[NumaNode, ...]) -> None:
    """A plugin may drop a device while it prepares it. The device is allocated as one without NUMA nodes."""
    node = NodeState().apply(PluginRegistered(PLUGIN, PluginOptions()), now=0.0)
    node = node.apply(DevicesReported(PLUGIN, (received(Device, device, Health.HEALTHY, nodes),)), now=0.0)
    reserved = NodeState(node.inventory, node.ledger.reserve(KEY, GPU, DeviceSet.of([device])))
    confirmed = reserved.confirm(KEY, GPU, Receipt(b""))
    kept = confirmed.ledger.allocation(KEY, GPU)
    dropped = reserved.apply(DevicesReported(PLUGIN, ()), now=0.0).confirm(KEY, GPU, Receipt(b""))
    forgotten = dropped.ledger.allocation(KEY, GPU)
    assert kept is not None
    assert forgotten is not None
    assert {*kept.numa_nodes[device], -1} == {*nodes, -1}
    assert forgotten.numa_nodes == {device: ()}
    assert kept == restarted(confirmed).ledger.allocation(KEY, GPU)  # for any list of the plugin, in any order
