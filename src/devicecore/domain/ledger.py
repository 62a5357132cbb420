"""The record of which container holds which device.

Law: a device is held by at most one pod. Inside a pod, containers share a device only if an init container that has
ended held it before. Every method of `Ledger` keeps this law. Only a restored checkpoint can contain a device with two
owners, because kubelets have written such files: both owners keep the device, which is free once both are gone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from itertools import chain
from operator import or_

from attrs import evolve, frozen

from devicecore.domain.checks import expected
from devicecore.domain.device_set import DeviceIndex, DeviceSet
from devicecore.domain.errors import DeviceHeldError
from devicecore.domain.model import NO_TOPOLOGY, ContainerKey, DeviceId, NumaNode, PodUid, Receipt, ResourceName
from devicecore.domain.text import counted, foreign_text

_NONE = DeviceSet()


@frozen(repr=False)
class Reservation:
    """Devices taken for a container whose admission is in progress. The plugin has not confirmed these devices yet."""

    key: ContainerKey
    resource: ResourceName
    devices: DeviceSet

    def __repr__(self) -> str:
        return _short(self)

    @property
    def device_ids(self) -> Collection[DeviceId]:
        """The devices, in no particular order."""
        return self.devices


@frozen(repr=False)
class Allocation:
    """The devices that a container holds, with their NUMA nodes at the time of allocation, and the plugin's receipt."""

    key: ContainerKey
    resource: ResourceName
    numa_nodes: Mapping[DeviceId, tuple[NumaNode, ...]]
    receipt: Receipt

    def __repr__(self) -> str:
        return _short(self)

    @property
    def devices(self) -> DeviceSet:
        """The devices as a set."""
        return DeviceSet.of(self.numa_nodes)

    @property
    def device_ids(self) -> Collection[DeviceId]:
        """The devices, in no particular order."""
        return self.numa_nodes.keys()


Holding = Reservation | Allocation


def _short(holding: Holding) -> str:
    """Describe a holding in one line: the container, the resource, and the number of devices."""
    resource, container, pod = (
        foreign_text(text, 100) for text in (holding.resource, holding.key.container, holding.key.pod)
    )
    devices = counted(len(holding.device_ids), "device")
    return f"<{type(holding).__name__}: {devices} of {resource}, container {container} of pod {pod}>"


_NO_ALLOCATIONS: Mapping[PodUid, tuple[Allocation, ...]] = {}
_NO_DEVICES: Mapping[ResourceName, DeviceSet] = {}


@frozen(repr=False)
class Ledger:
    """All reservations and allocations of a node.

    `allocations` lists pods, and within each pod its allocations (at least one), in the order in which they were
    confirmed.
    """

    allocations: Mapping[PodUid, tuple[Allocation, ...]] = _NO_ALLOCATIONS
    reservations: tuple[Reservation, ...] = ()
    _in_use: Mapping[ResourceName, DeviceSet] = _NO_DEVICES
    _shared_by_error: Mapping[ResourceName, DeviceSet] = _NO_DEVICES

    @classmethod
    def of(cls, allocations: Iterable[Allocation]) -> "Ledger":
        """Return a ledger of `allocations`.

        If two allocations are for the same container and resource, the later one counts.
        """
        by_pod: dict[PodUid, dict[tuple[ContainerKey, ResourceName], Allocation]] = {}
        for allocation in allocations:
            by_pod.setdefault(allocation.key.pod, {})[allocation.key, allocation.resource] = allocation
        return _counted(cls({pod: tuple(of_pod.values()) for pod, of_pod in by_pod.items()}))

    def __repr__(self) -> str:
        allocations, devices = sum(map(len, self.allocations.values())), sum(map(len, self._in_use.values()))
        in_use = f"{counted(devices, 'device')} in use by {counted(len(self.allocations), 'pod')}"
        reservations = counted(len(self.reservations), "reservation")
        return f"<Ledger: {in_use}, {counted(allocations, 'allocation')}, {reservations}>"

    def __iter__(self) -> Iterator[Allocation]:
        for of_pod in self.allocations.values():
            yield from of_pod

    @property
    def resources(self) -> Collection[ResourceName]:
        """The resources for which a container holds devices."""
        return self._in_use.keys()

    def in_use(self, resource: ResourceName) -> DeviceSet:
        """Return the devices of a resource that containers hold, reserved or allocated.

        Raises TypeError if `resource` is not a string.
        """
        if not isinstance(resource, str):
            raise TypeError(expected("Ledger.in_use", "the name of a resource, such as example.com/gpu", resource))
        return self._in_use.get(resource, _NONE)

    def shared_by_error(self, resource: ResourceName) -> DeviceSet:
        """Return the devices of a resource that a restored checkpoint gave to more than one pod."""
        return self._shared_by_error.get(resource, _NONE)

    def allocation(self, key: ContainerKey, resource: ResourceName) -> Allocation | None:
        """Return a container's allocation of a resource, or None. An allocation may have no devices."""
        for allocation in self.allocations.get(key.pod, ()):
            if allocation.resource == resource and allocation.key == key:
                return allocation
        return None

    def of_pod(self, pod: PodUid) -> tuple[Allocation, ...]:
        """Return a pod's allocations, in the order in which they were confirmed.

        Raises TypeError if `pod` is not a string but, for example, a Pod.
        """
        if not isinstance(pod, str):
            raise TypeError(expected("Ledger.of_pod", "the UID of a pod, such as pod.uid", pod))
        return self.allocations.get(pod, ())

    def of_container(self, key: ContainerKey) -> tuple[Allocation, ...]:
        """Return the allocations of a container, one for each resource, in the order in which they were confirmed.

        Raises TypeError if `key` is not a ContainerKey but, for example, a container's name.
        """
        if not isinstance(key, ContainerKey):
            raise TypeError(expected("Ledger.of_container", "a ContainerKey, such as pod.key(container)", key))
        return tuple([allocation for allocation in self.allocations.get(key.pod, ()) if allocation.key == key])

    def held_by(self, pod: PodUid, resource: ResourceName) -> dict[str, DeviceSet]:
        """Return a pod's devices of a resource by container, reserved or allocated."""
        if pod not in self.allocations and not self.reservations:
            return {}
        reserved = (holding for holding in self.reservations if holding.key.pod == pod)
        holdings: tuple[Holding, ...] = (*self.allocations.get(pod, ()), *reserved)
        return {holding.key.container: holding.devices for holding in holdings if holding.resource == resource}

    def reserve(
        self, key: ContainerKey, resource: ResourceName, devices: DeviceSet, reusable: DeviceSet = _NONE
    ) -> "Ledger":
        """Take `devices` for a container, before the plugin prepares them. The pod may share the devices in `reusable`.

        Raises DeviceHeldError if another pod holds one of the devices, if this pod holds one that is not reusable, or
        if the container already holds devices of the resource.
        """
        taken = in_use = self.in_use(resource)
        if of_pod := self.held_by(key.pod, resource):
            taken -= (reusable & _union(of_pod.values())) - self.shared_by_error(resource)
        if devices.common(taken) or key.container in of_pod:
            raise DeviceHeldError(resource, tuple(devices & taken or of_pod[key.container]))
        return Ledger(
            self.allocations,
            (*self.reservations, Reservation(key, resource, devices)),
            {**self._in_use, resource: in_use | devices},
            self._shared_by_error,
        )

    def confirm(
        self,
        key: ContainerKey,
        resource: ResourceName,
        receipt: Receipt,
        numa_nodes_of: Callable[[DeviceId], tuple[NumaNode, ...]],
    ) -> "Ledger":
        """Turn a reservation into an allocation, because the plugin has prepared its devices.

        Raises KeyError if the reservation does not exist.
        """
        reservation, others = self._reservation(key, resource)
        nodes = {device: sorted_numa_nodes(numa_nodes_of(device)) for device in reservation.devices}
        allocation = Allocation(key, resource, nodes, receipt)
        allocations = _copied(self.allocations)
        allocations[key.pod] = (*allocations.get(key.pod, ()), allocation)
        return Ledger(allocations, others, self._in_use, self._shared_by_error)

    def release(self, key: ContainerKey, resource: ResourceName) -> "Ledger":
        """Remove a reservation, because its admission has failed. Raises KeyError if the reservation does not exist."""
        reservation, others = self._reservation(key, resource)
        return self._freed((reservation,), evolve(self, reservations=others))

    def evict(self, pods: Iterable[PodUid]) -> "Ledger":
        """Remove the allocations of `pods`. Reservations stay, because the admission that made them releases them."""
        gone = dict.fromkeys(pod for pod in pods if pod in self.allocations)
        if not gone:
            return self
        allocations = _copied(self.allocations)
        freed = [allocation for pod in gone for allocation in allocations.pop(pod)]
        return self._freed(freed, Ledger(allocations, self.reservations, self._in_use, self._shared_by_error))

    def indexed(self, resource: ResourceName, index: DeviceIndex) -> "Ledger":
        """Return the same ledger with a resource's used devices on `index`, which other sets may share."""
        in_use = self.in_use(resource)
        if in_use.index is index or resource not in self._in_use:
            return self
        return evolve(self, in_use={**self._in_use, resource: in_use.on(index.covering(in_use))})

    def _reservation(self, key: ContainerKey, resource: ResourceName) -> tuple[Reservation, tuple[Reservation, ...]]:
        """Return a container's reservation of a resource, and all other reservations."""
        for place, reservation in enumerate(self.reservations):
            if (reservation.key, reservation.resource) == (key, resource):
                return reservation, self.reservations[:place] + self.reservations[place + 1 :]
        raise KeyError(key, resource)

    def _freed(self, gone: Iterable[Holding], left: "Ledger") -> "Ledger":
        """Return `left` (this ledger without the holdings `gone`), with the devices in `gone` counted as free."""
        in_use = dict(self._in_use)
        for holding in gone:
            resource = holding.resource
            if resource in self._shared_by_error and holding.devices & self._shared_by_error[resource]:
                return _counted(left)
            still_held = _union(left.held_by(holding.key.pod, resource).values())
            # Select on the index of the devices in use, because creating an index costs more than a small set.
            before = in_use.get(resource, _NONE)
            in_use[resource] = before - (before.index.select(holding.device_ids) - still_held)
        in_use = {resource: devices for resource, devices in in_use.items() if devices}
        return Ledger(left.allocations, left.reservations, in_use, self._shared_by_error)


def _copied(
    allocations: Mapping[PodUid, tuple[Allocation, ...]],
) -> dict[PodUid, tuple[Allocation, ...]]:
    """Return a copy. If entries were removed from the old dict, `dict()` takes seven times as long as `copy()`."""
    return allocations.copy() if isinstance(allocations, dict) else dict(allocations)


def sorted_numa_nodes(nodes: Iterable[NumaNode]) -> tuple[NumaNode, ...]:
    """Return the sorted NUMA nodes of a device; `NO_TOPOLOGY` alone, as in a restored checkpoint, means none."""
    ordered = tuple(sorted(nodes))
    return () if ordered == (NO_TOPOLOGY,) else ordered


def _counted(ledger: Ledger) -> Ledger:
    """Return the ledger with its used devices, and its devices with several owners, computed from its holdings."""
    of_pods: dict[ResourceName, dict[PodUid, set[DeviceId]]] = {}
    holdings: tuple[Holding, ...] = (*ledger, *ledger.reservations)
    for holding in holdings:
        of_pods.setdefault(holding.resource, {}).setdefault(holding.key.pod, set()).update(holding.devices)
    in_use: dict[ResourceName, DeviceSet] = {}
    shared: dict[ResourceName, DeviceSet] = {}
    for resource, pods in of_pods.items():
        holders = Counter(chain.from_iterable(pods.values()))
        in_use[resource] = DeviceSet.of(holders)
        shared[resource] = in_use[resource].index.select(device for device in holders if holders[device] > 1)
    return evolve(
        ledger,
        in_use={resource: devices for resource, devices in in_use.items() if devices},
        shared_by_error={resource: devices for resource, devices in shared.items() if devices},
    )


def _union(sets: Iterable[DeviceSet]) -> DeviceSet:
    return reduce(or_, sets, _NONE)
