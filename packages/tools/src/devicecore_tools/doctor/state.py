"""From what sources say to the `NodeState` that the device manager decides with.

Law: on a node at rest of which all sources were read, the result has the same devices, health, NUMA nodes and holders
as the state of the manager itself, so the domain's functions decide the same.
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
from devicecore_tools.doctor.facts import Facts, OwnerState


def state_of(facts: Facts) -> NodeState:
    """What a kubelet on this node would decide with.

    A holder that is stale is left out, because a kubelet releases its devices before it admits a pod. A holder that is
    unknown is kept. A pod of which no source names the UID is known by its namespace and name.
    """
    inventory = Inventory()
    for resource in facts.resources:
        if resource in facts.registered or resource in facts.allocatable or resource in facts.listed:
            plugin = PluginId(ResourceName(resource), "", 1)
            devices = [_device(facts, resource, device) for device in facts.devices(resource)]
            inventory = inventory.connect(plugin, PluginOptions()).report(plugin, [one for one in devices if one])
    return NodeState(inventory, Ledger.of(_allocations(facts)))


def _allocations(facts: Facts) -> list[Allocation]:
    """What each container holds; parts of it that different sources name are put together."""
    found: dict[tuple[ContainerKey, ResourceName], dict[DeviceId, tuple[NumaNode, ...]]] = {}
    for allocation in facts.allocations:
        if allocation.owner.state is not OwnerState.STALE:
            key = ContainerKey(PodUid(allocation.owner.uid or allocation.owner.identity), allocation.owner.container)
            devices = found.setdefault((key, ResourceName(allocation.resource)), {})
            for device, numa_nodes in allocation.devices.items():
                devices[DeviceId(device)] = tuple(map(NumaNode, numa_nodes))
    return [Allocation(key, resource, devices, Receipt(b"")) for (key, resource), devices in found.items()]


def _device(facts: Facts, resource: str, device: DeviceId) -> Device | None:
    """A device as its plugin reports it; None if it is only held."""
    listed = facts.listed.get(resource)
    is_healthy = device in facts.healthy.get(resource, ())
    if listed is not None and device not in listed:
        return None
    if listed is None and not is_healthy:
        return None
    numa_nodes = facts.numa_nodes.get((resource, device))
    topology = tuple(map(NumaNode, numa_nodes)) if numa_nodes else None
    return Device(device, Health.HEALTHY if is_healthy else Health.UNHEALTHY, topology)
