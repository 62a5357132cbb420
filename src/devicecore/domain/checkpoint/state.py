"""Turns the state of a node into checkpoint data, and back.

Law: restoring `checkpoint_of(state)` gives back the allocations of `state`, with their devices, NUMA nodes and
receipts, and with the pods in the same order. Reservations are not in a checkpoint, because no plugin has confirmed
them.
"""

from devicecore.domain.checkpoint.entries import CheckpointData, PodDevicesEntry
from devicecore.domain.device_set import in_natural_order
from devicecore.domain.inventory import Inventory
from devicecore.domain.ledger import Allocation, Ledger, sorted_numa_nodes
from devicecore.domain.model import NO_TOPOLOGY, ContainerKey, DeviceId, NumaNode, PodUid, Receipt, ResourceName
from devicecore.domain.node_state import NodeState


def checkpoint_of(state: NodeState) -> CheckpointData:
    """Return the data that must survive a restart: the allocations, and each registered resource's healthy devices."""
    entries = tuple(map(entry_of, state.ledger))
    reports = {name: resource.report for name, resource in sorted(state.inventory.resources.items())}
    registered = {str(name): report.healthy_ids for name, report in reports.items() if report is not None}
    return CheckpointData(entries or None, registered)  # a kubelet without pods writes null, not []


def restore(data: CheckpointData, now: float) -> NodeState:
    """Return the state of a manager after a restart: all allocations, and the resources to expect (kubelet.md 4.4).

    No device is healthy until its plugin reports again. `now` is the monotonic time in seconds.
    """
    # A kubelet checked each name before writing it.
    registered = [ResourceName(name) for name in data.registered_devices or ()]
    return NodeState(Inventory().expect(registered, now), Ledger.of(map(allocation_of, data.entries or ())))


def entry_of(allocation: Allocation) -> PodDevicesEntry:
    """Return the checkpoint entry for an allocation."""
    per_numa: dict[int, list[str]] = {}
    for device in in_natural_order(allocation.numa_nodes):
        for numa_node in allocation.numa_nodes[device] or (NO_TOPOLOGY,):
            per_numa.setdefault(numa_node, []).append(device)
    device_ids = {numa_node: tuple(devices) for numa_node, devices in per_numa.items()}
    key = allocation.key
    return PodDevicesEntry(key.pod, key.container, allocation.resource, device_ids, allocation.receipt)


def allocation_of(entry: PodDevicesEntry) -> Allocation:
    """Return the allocation that a checkpoint entry describes."""
    listed: dict[DeviceId, list[NumaNode]] = {}
    for numa_node, devices in (entry.device_ids or {}).items():
        for device in map(DeviceId, devices or ()):
            listed.setdefault(device, []).append(NumaNode(numa_node))
    nodes = {device: sorted_numa_nodes(of_device) for device, of_device in listed.items()}
    key = ContainerKey(PodUid(entry.pod_uid), entry.container_name)
    return Allocation(key, ResourceName(entry.resource_name), nodes, Receipt(entry.alloc_resp or b""))
