"""All that is known of a node's devices, as one value.

Law: a `NodeState` is only ever replaced, so a reader of one has a consistent picture.
"""

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, field, frozen

from devicecore.domain.capacity import sanitize_allocatable
from devicecore.domain.device_set import DeviceIndex, DeviceSet
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.inventory import Inventory
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import (
    Container,
    ContainerKey,
    DeviceId,
    NumaNode,
    Pod,
    PodUid,
    Receipt,
    ResourceName,
    is_extended_resource,
)
from devicecore.domain.selection import Decision, ResourceRequest, devices_to_allocate, reusable_devices


@frozen
class NodeState:
    """What plugins report and who holds what."""

    inventory: Inventory = field(factory=Inventory)
    ledger: Ledger = field(factory=Ledger)

    def apply(self, event: Event, now: float) -> "NodeState":
        """The node after a plugin's event. `now` is monotonic seconds.

        Raises:
            PluginAlreadyConnectedError: the resource is already served over the socket that is to be connected.
        """
        match event:
            case RegistrationRequested():
                return self
            case PluginRegistered(plugin, options):
                return evolve(self, inventory=self.inventory.connect(plugin, options))
            case DevicesReported(plugin, devices):
                if self.inventory.is_repeated(plugin, devices):
                    return self
                index = self._index(plugin.resource, devices.ids)
                inventory = self.inventory.report(plugin, devices, index)
                return NodeState(inventory, self.ledger.indexed(plugin.resource, index))
            case PluginLost(plugin):
                return evolve(self, inventory=self.inventory.disconnect(plugin, now))

    def knows(self, resource: str) -> bool:
        """Whether the resource is a device plugin's: one has registered it, or somebody holds it (kubelet.md 4.1).

        A kubelet waits for the first list, and until then lets a pod pass without its devices.
        """
        name = ResourceName(resource)
        return name in self.inventory.resources or name in self.ledger.resources

    def requests(self, pod: Pod, container: Container) -> tuple[tuple[ResourceName, int], ...]:
        """The device resources a container asks for, and how many of each, by name (kubelet.md 5.3)."""
        return tuple(
            [
                (ResourceName(resource), size)
                for resource, size in sorted(container.limits.items())
                if self.knows(resource) and (container.name, resource) not in pod.claimed
            ]
        )

    def unhandled(self, pod: Pod) -> tuple[tuple[str, ResourceName], ...]:
        """The extended resources, by container, that a pod asks for and nobody here has ever heard of."""
        return tuple(
            [
                (container.name, ResourceName(resource))
                for container in pod.in_start_order
                for resource, size in sorted(container.limits.items())
                if size and not self.knows(resource)
                if (container.name, resource) not in pod.claimed and is_extended_resource(resource)
            ]
        )

    def devices_to_allocate(self, pod: Pod, request: ResourceRequest) -> Decision:
        """Choose devices for one container of `pod`; see `selection.devices_to_allocate` for what it raises."""
        reusable = reusable_devices(pod, request.key, request.resource, self.ledger)
        return devices_to_allocate(request, self.inventory, self.ledger, reusable)

    def reserve(self, pod: Pod, request: ResourceRequest, devices: DeviceSet) -> "NodeState":
        """Take `devices` for a container of `pod`; see `Ledger.reserve` for what it raises."""
        reusable = reusable_devices(pod, request.key, request.resource, self.ledger)
        return NodeState(self.inventory, self.ledger.reserve(request.key, request.resource, devices, reusable))

    def confirm(self, key: ContainerKey, resource: ResourceName, receipt: Receipt) -> "NodeState":
        """The plugin has prepared what was reserved. A device it no longer lists is taken to have no topology."""
        report = self.inventory.last_report(resource)
        nodes_of = report.devices.numa_nodes if report else _nowhere
        return NodeState(self.inventory, self.ledger.confirm(key, resource, receipt, nodes_of))

    def evict(self, pods: Iterable[PodUid]) -> "NodeState":
        """Without what `pods` were given; see `Ledger.evict`."""
        return NodeState(self.inventory, self.ledger.evict(pods))

    def expire(self, now: float) -> tuple[tuple[ResourceName, ...], "NodeState"]:
        """The resources whose grace period is over at `now`, and the node without them."""
        removed, inventory = self.inventory.expire(now)
        if inventory is self.inventory:
            return removed, self
        held = {name: report for name, report in inventory.former.items() if name in self.ledger.resources}
        return removed, evolve(self, inventory=evolve(inventory, former=held))

    def sanitize_allocatable(self, pod: PodUid, allocatable: Mapping[ResourceName, int]) -> dict[ResourceName, int]:
        """`allocatable` raised to what is in use, if `pod` holds devices at all (kubelet: `UpdatePluginResources`)."""
        if pod not in self.ledger.allocations:
            return dict(allocatable)
        return sanitize_allocatable(
            allocatable, {name: len(self.ledger.in_use(name)) for name in self.ledger.resources}
        )

    def _index(self, resource: ResourceName, ids: Sequence[DeviceId]) -> DeviceIndex:
        """The index for a new report: the one in use if it fits, else one of what is listed or held now."""
        report = self.inventory.current_report(resource)
        if report and len(report.index.ids) <= 2 * len(ids) and report.index.knows(ids):
            return report.index
        return DeviceIndex.of((*ids, *self.ledger.in_use(resource)))


def _nowhere(_: DeviceId) -> tuple[NumaNode, ...]:
    return ()
