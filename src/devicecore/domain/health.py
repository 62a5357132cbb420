"""The health of the devices that containers hold (kubelet: KEP-4680, kubelet.md 10.4).

Law: a device that nobody reports counts as healthy, for nobody has said otherwise; so does one whose plugin has gone,
which says nothing new of its devices. Only what a plugin reported makes a device unhealthy here.
"""

from collections.abc import Mapping

from attrs import frozen

from devicecore.domain.inventory import DeviceReport
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import DeviceId, Health, Pod, PodUid, ResourceName
from devicecore.domain.node_state import NodeState


@frozen
class ResourceHealth:
    """What a container holds of one resource, device by device (API: `allocatedResourcesStatus[]`)."""

    resource: ResourceName
    devices: Mapping[DeviceId, Health]


def allocated_resources_status(node: NodeState, pod: Pod) -> dict[str, tuple[ResourceHealth, ...]]:
    """The health of what each container of a pod holds, but for init containers.

    Kubelet: `UpdateAllocatedResourcesStatus`.
    """
    return {
        container.name: tuple(
            ResourceHealth(held.resource, {device: _health(node, held.resource, device) for device in held.devices})
            for held in node.ledger.of_container(pod.key(container))
        )
        for container in pod.containers
    }


def pods_with_news(
    resource: ResourceName, before: DeviceReport | None, after: DeviceReport | None, ledger: Ledger
) -> tuple[PodUid, ...]:
    """The pods with a device of which a plugin's list says something else than the one before, or for the first time.

    A device that has vanished from the list is no news. A kubelet looks for the owner by the device's id alone, and
    may name the owner of another resource's device; here the resource counts too.
    """
    if after is None or after is before:
        return ()
    old = before.devices if before else {}
    new = after.devices
    holders = (
        held.key.pod
        for held in ledger
        if held.resource == resource
        and any(
            device in new and (device not in old or old[device].health is not new[device].health)
            for device in held.numa_nodes
        )
    )
    return tuple(dict.fromkeys(holders))


def _health(node: NodeState, resource: ResourceName, device: DeviceId) -> Health:
    report = node.inventory.last_report(resource)
    reported = report.devices.get(device) if report else None
    return reported.health if reported else Health.HEALTHY
