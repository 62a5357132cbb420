"""The health of devices held by containers (kubelet: KEP-4680, kubelet.md 10.4).

Law: only a plugin's report makes a device unhealthy here. A device that no plugin reports counts as healthy. If a
plugin disconnects, its devices keep the health that the plugin last reported.
"""

from collections.abc import Mapping

from attrs import frozen

from devicecore.domain.checks import checked
from devicecore.domain.inventory import DeviceReport
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import DeviceId, Health, Pod, PodUid, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.notifications import HealthChanged


@frozen
class ResourceHealth:
    """The health of a container's devices of one resource (API: `allocatedResourcesStatus[]`)."""

    resource: ResourceName
    devices: Mapping[DeviceId, Health]


def allocated_resources_status(state: NodeState, pod: Pod) -> dict[str, tuple[ResourceHealth, ...]]:
    """Return the health of the devices that each container of a pod holds (kubelet.md 10.4).

    Init containers are left out. Kubelet: `UpdateAllocatedResourcesStatus`. Raises TypeError if an argument has the
    wrong type, such as a manager instead of its state.
    """
    checked(state, NodeState, "allocated_resources_status: state")
    checked(pod, Pod, "allocated_resources_status: pod")
    return {
        container.name: tuple(
            ResourceHealth(one.resource, {device: _health(state, one.resource, device) for device in one.devices})
            for one in state.ledger.of_container(pod.key(container))
        )
        for container in pod.containers
    }


def changed_health(
    resource: ResourceName, before: DeviceReport | None, after: DeviceReport | None, ledger: Ledger
) -> tuple[HealthChanged, ...]:
    """Return the held devices that are new in a plugin's list or whose health has changed, in ledger order.

    A device that is no longer listed is left out. A kubelet before 1.37 looks up the holder by the device's id alone,
    so it may name the holder of a different resource's device with this id.
    """
    if after is None or after is before:
        return ()
    old = before.devices if before else {}
    new = after.devices
    holders: dict[DeviceId, dict[PodUid, None]] = {}
    for allocation in ledger:
        if allocation.resource == resource:
            for device in allocation.devices:
                if device in new and (device not in old or old[device].health is not new[device].health):
                    holders.setdefault(device, {})[allocation.key.pod] = None
    return tuple([HealthChanged(resource, device, new[device].health, tuple(pods)) for device, pods in holders.items()])


def _health(state: NodeState, resource: ResourceName, device: DeviceId) -> Health:
    report = state.inventory.last_report(resource)
    reported = report.devices.get(device) if report else None
    return reported.health if reported else Health.HEALTHY
