"""Builds the `NodeState` that the device manager's decisions depend on, from a node's sources.

Law: on an idle node whose sources were all read, the result has the same devices, health, NUMA nodes and holders
as the manager's own state, so the domain's functions reach the same decisions.
"""

from devicecore.domain.inventory import Inventory
from devicecore.domain.ledger import Allocation, Ledger
from devicecore.domain.model import (
    ContainerKey,
    Device,
    DeviceId,
    Health,
    NumaNode,
    PluginId,
    PluginOptions,
    PodUid,
    Receipt,
    ResourceName,
)
from devicecore.domain.node_state import NodeState
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.account.precedence import Lists, OwnerState


def state_of(facts: Facts) -> NodeState:
    """Return the state that a kubelet on this node would have.

    A stale holder is omitted because a kubelet releases its devices before it admits a pod. An unknown holder is
    kept. A pod whose UID is unknown is identified by its namespace and name.
    """
    lists, numa_nodes = facts.lists, facts.numa_nodes
    inventory = Inventory()
    for resource in lists.resources:
        if resource in lists.registered or resource in (lists.allocatable or {}) or resource in lists.listed:
            plugin = PluginId(ResourceName(resource), "", 1)
            devices = [
                _device(lists, resource, device, numa_nodes.get(resource, {}).get(device))
                for device in lists.devices[resource]
            ]
            inventory = inventory.connect(plugin, PluginOptions()).report(plugin, [one for one in devices if one])
    return NodeState(inventory, Ledger.of(_allocations(facts)))


def _allocations(facts: Facts) -> list[Allocation]:
    """Return the devices that each container holds, combined from all sources."""
    found: dict[tuple[ContainerKey, ResourceName], dict[DeviceId, tuple[NumaNode, ...]]] = {}
    for allocation in facts.holders.allocations:
        if allocation.owner.state is not OwnerState.STALE:
            key = ContainerKey(PodUid(allocation.owner.uid or allocation.owner.identity), allocation.owner.container)
            devices = found.setdefault((key, ResourceName(allocation.resource)), {})
            for device, numa_nodes in allocation.devices.items():
                devices[DeviceId(device)] = tuple(map(NumaNode, numa_nodes))
    return [Allocation(key, resource, devices, Receipt(b"")) for (key, resource), devices in found.items()]


def _device(lists: Lists, resource: str, device: str, numa_nodes: tuple[int, ...] | None) -> Device | None:
    """Return a device as its plugin reports it, or None if only its holder is known."""
    listed = lists.listed.get(resource)
    is_healthy = device in lists.healthy.get(resource, ())
    if listed is not None and device not in listed:
        return None
    if listed is None and not is_healthy:
        return None
    topology = tuple(map(NumaNode, numa_nodes)) if numa_nodes else None
    return Device(DeviceId(device), Health.HEALTHY if is_healthy else Health.UNHEALTHY, topology)
