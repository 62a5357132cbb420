"""Everything that is known about a node's devices, in one value.

Law: a `NodeState` never changes; a new one replaces it. A reader therefore sees the inventory and the ledger as of the
same moment.
"""

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, frozen

from devicecore.domain.capacity import sanitize_allocatable
from devicecore.domain.device_set import DeviceIndex, DeviceSet
from devicecore.domain.errors import PluginAnswersTooLargeError
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.inventory import Inventory
from devicecore.domain.json_size import MAX_OF_OWNER, near_limit
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
    is_native_resource,
)
from devicecore.domain.selection import Decision, ResourceRequest, devices_to_allocate, reusable_devices

SMALL_ANSWER = 4096
"""Answers to Allocate of up to this many bytes do not count toward the limit.

A plugin has at most one response per container.
"""

_NOTHING_REPORTED, _NOTHING_HELD = Inventory(), Ledger()


@frozen(repr=False)
class NodeState:
    """What plugins report (`inventory`), and which containers hold which devices (`ledger`)."""

    inventory: Inventory = _NOTHING_REPORTED
    ledger: Ledger = _NOTHING_HELD

    def __repr__(self) -> str:
        return f"<NodeState: {self.inventory!r}, {self.ledger!r}>"

    def apply(self, event: Event, now: float) -> "NodeState":
        """Return the state after a plugin's event. `now` is the monotonic time in seconds.

        Raises:
            PluginAlreadyConnectedError: another instance is connected over the same socket.
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
        """Return whether a plugin has registered the resource, or a container holds devices of it (kubelet.md 4.1).

        A kubelet does not know a resource before the first list, and until then admits a pod without its devices.
        """
        return resource in self.inventory.resources or resource in self.ledger.resources

    def requests(self, pod: Pod, container: Container) -> tuple[tuple[ResourceName, int], ...]:
        """Return how many devices of each device resource a container requests (kubelet.md 5.3)."""
        return tuple(
            [
                (ResourceName(resource), size)
                for resource, size in sorted(container.limits.items())
                if self.knows(resource) and (container.name, resource) not in pod.claimed
            ]
        )

    def unhandled(self, pod: Pod) -> tuple[tuple[str, str], ...]:
        """Return, by container, the resources that a pod requests but no device plugin has registered.

        The result contains extended resources, and names that no resource can have, such as `gpu`. A name of either
        kind may be a misspelling.
        """
        return tuple(
            [
                (container.name, resource)
                for container in pod.in_start_order
                if not container.limits.keys() <= self.inventory.resources.keys()  # almost never the case
                for resource, size in sorted(container.limits.items())
                if size and not self.knows(resource)
                if (container.name, resource) not in pod.claimed and not is_native_resource(resource)
            ]
        )

    def devices_to_allocate(self, pod: Pod, request: ResourceRequest, *, always_asks: bool = False) -> Decision:
        """Choose devices for one container of `pod`. The errors are the same as for `selection.devices_to_allocate`."""
        reusable = reusable_devices(pod, request.key, request.resource, self.ledger)
        return devices_to_allocate(request, self.inventory, self.ledger, reusable, always_asks=always_asks)

    def reserve(self, pod: Pod, request: ResourceRequest, devices: DeviceSet) -> "NodeState":
        """Take `devices` for a container of `pod`. The errors are the same as for `Ledger.reserve`."""
        reusable = reusable_devices(pod, request.key, request.resource, self.ledger)
        return NodeState(self.inventory, self.ledger.reserve(request.key, request.resource, devices, reusable))

    def confirm(self, key: ContainerKey, resource: ResourceName, receipt: Receipt) -> "NodeState":
        """Confirm a reservation. A device that the plugin no longer lists counts as a device without topology.

        Raises KeyError if there is no reservation, and PluginAnswersTooLargeError if the plugin's answers have become
        too large in total.
        """
        if len(receipt) > SMALL_ANSWER:
            size = _large_answers(self.ledger, resource) + _size_in_file(receipt)
            if size > MAX_OF_OWNER:
                raise PluginAnswersTooLargeError(resource, size, MAX_OF_OWNER)
        report = self.inventory.last_report(resource)
        numa_nodes_of = report.devices.numa_nodes if report else _no_numa_nodes
        return NodeState(self.inventory, self.ledger.confirm(key, resource, receipt, numa_nodes_of))

    def evict(self, pods: Iterable[PodUid]) -> "NodeState":
        """Return the state without the allocations of `pods`; see `Ledger.evict`."""
        return NodeState(self.inventory, self.ledger.evict(pods))

    def expire(self, now: float) -> tuple[tuple[ResourceName, ...], "NodeState"]:
        """Remove the resources whose grace period is over at `now`, in monotonic seconds.

        Return the sorted names of the removed resources that had a report, and the new state. The new state
        keeps the reports of those expired resources whose devices containers still hold.
        """
        removed, inventory = self.inventory.expire(now)
        if inventory is self.inventory:
            return removed, self
        former = {name: report for name, report in inventory.former.items() if name in self.ledger.resources}
        return removed, evolve(self, inventory=evolve(inventory, former=former))

    def sanitize_allocatable(self, pod: PodUid, allocatable: Mapping[ResourceName, int]) -> dict[ResourceName, int]:
        """Return `allocatable`, raised to the number of devices in use unless `pod` holds no devices.

        Kubelet: `UpdatePluginResources`.
        """
        if pod not in self.ledger.allocations:
            return dict(allocatable)
        return sanitize_allocatable(
            allocatable, {name: len(self.ledger.in_use(name)) for name in self.ledger.resources}
        )

    def _index(self, resource: ResourceName, ids: Sequence[DeviceId]) -> DeviceIndex:
        """Return the index for a new report.

        The result is the current index if it contains the listed devices and few others, or otherwise an index of all
        devices that are listed or in use.
        """
        report = self.inventory.current_report(resource)
        if report and len(report.index.ids) <= 2 * len(ids) and report.index.knows(ids):
            return report.index
        return DeviceIndex.of((*ids, *self.ledger.in_use(resource)))


def answers_warning(ledger: Ledger, resource: ResourceName, receipt: Receipt) -> str:
    """Return a warning if `receipt` has brought a plugin's answers above half of their limit."""
    if len(receipt) <= SMALL_ANSWER:
        return ""
    size = _large_answers(ledger, resource)
    what = f"answers from the device plugin for {resource}"
    return near_limit(what, size - _size_in_file(receipt), size, "the checkpoint")


def _large_answers(ledger: Ledger, resource: ResourceName) -> int:
    """Return the bytes that the large answers of a plugin take up in the checkpoint."""
    receipts = (one.receipt for one in ledger if one.resource == resource)
    return sum(_size_in_file(receipt) for receipt in receipts if len(receipt) > SMALL_ANSWER)


def _size_in_file(receipt: Receipt) -> int:
    return len(receipt) * 4 // 3  # in base64


def _no_numa_nodes(_: DeviceId) -> tuple[NumaNode, ...]:
    return ()
