"""Chooses the devices that a container gets.

Law: these functions call no port. A function that needs the plugin's preference returns the question to ask. Whatever
the plugin answers, the container gets exactly as many devices as it requests, each of them free or reusable inside its
pod. Ties are broken by the natural order of the ids.
"""

from collections.abc import Collection, Iterable

from attrs import frozen

from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import (
    ChangedRequestError,
    DevicesNoLongerHealthyError,
    EndpointNotFoundError,
    NoHealthyDevicesError,
    NotEnoughDevicesError,
    UnregisteredDeviceError,
)
from devicecore.domain.inventory import DeviceReport, Inventory
from devicecore.domain.ledger import Holding, Ledger
from devicecore.domain.model import ContainerKey, DeviceId, NumaNode, Pod, ResourceName
from devicecore.domain.policies import Choice

_NONE = DeviceSet()


@frozen
class ResourceRequest:
    """The request of one container for one resource.

    `affinity` contains the NUMA nodes that the topology policy chose, or is None if the policy has no preference.
    `already_running` means that the container has been running since before a restart, and that not all pods are known
    yet. Such a container keeps the devices that it holds (kubelet.md 4.5).
    """

    key: ContainerKey
    resource: ResourceName
    size: int
    affinity: Collection[NumaNode] | None = None
    already_running: bool = False


@frozen
class AskPlugin:
    """A question for the plugin: which `size` of `candidates`, including all of `must_include`, would it allocate?

    `eligible` are the candidates that the answer may choose. If the answer contains too few devices, the rest is taken
    from `fallbacks` in turn.
    """

    candidates: DeviceSet
    must_include: DeviceSet
    size: int
    eligible: DeviceSet
    fallbacks: tuple[DeviceSet, ...]

    def answer(self, preferred: Iterable[DeviceId]) -> DeviceSet:
        """Choose the eligible devices that the plugin prefers, in its order, and then devices from `fallbacks`."""
        missing = self.size - len(self.must_include)
        usable = dict.fromkeys(device for device in preferred if device in self.eligible)
        chosen = self.eligible.index.select(list(usable)[:missing])
        return _fill(self.must_include | chosen, self.size, *self.fallbacks)


Decision = DeviceSet | AskPlugin
"""The devices to reserve (possibly none), or a question for the plugin."""


def devices_to_allocate(
    request: ResourceRequest,
    inventory: Inventory,
    ledger: Ledger,
    reusable: DeviceSet = _NONE,
    *,
    always_asks: bool = False,
) -> Decision:
    """Choose devices for a container (kubelet: `devicesToAllocate`, kubelet.md 5.4).

    `reusable` are devices of the same pod that the container may share (see `reusable_devices`). With `always_asks`,
    the question is returned even if the plugin offers no preference, because a policy answers it.

    Raises:
        ChangedRequestError: the container holds a different number of devices than it requests now.
        UnregisteredDeviceError: no plugin has sent a list for the resource, or the resource has expired.
        NoHealthyDevicesError: none of the resource's devices is healthy.
        DevicesNoLongerHealthyError: a device that the container holds is no longer healthy.
        NotEnoughDevicesError: too few healthy devices are free.
        EndpointNotFoundError: the resource has no plugin instance to consult.
    """
    allocation = ledger.allocation(request.key, request.resource)
    if allocation and len(allocation.numa_nodes) != request.size:
        key, count = request.key, len(allocation.numa_nodes)
        raise ChangedRequestError(key.pod, key.container, request.resource, held=count, requested=request.size)
    if request.already_running:
        return _NONE
    # Health is checked before the number of devices, because after a reboot a pod must not start without its plugin
    # (#109595).
    report = inventory.current_report(request.resource)
    if report is None:
        raise UnregisteredDeviceError(request.resource)
    if not report.healthy.bits:
        raise NoHealthyDevicesError(request.resource)
    if allocation and not allocation.devices <= report.healthy:
        raise DevicesNoLongerHealthyError(request.resource)
    if allocation or not request.size:
        return _NONE
    available = report.healthy - ledger.in_use(request.resource)
    return _choose(request, inventory, report, reusable, available, always_asks=always_asks)


def _choose(
    request: ResourceRequest,
    inventory: Inventory,
    report: DeviceReport,
    taken: DeviceSet,
    available: DeviceSet,
    *,
    always_asks: bool,
) -> Decision:
    """Choose the missing devices from `available`: aligned devices first, then those that the plugin prefers."""
    needed = request.size - len(taken)
    if needed <= 0:
        return taken.take(request.size)
    if len(available) < needed:
        raise NotEnoughDevicesError(request.resource, requested=needed, available=len(available))
    aligned, unaligned, no_affinity = filter_by_affinity(report, request.affinity, available)
    if needed == len(aligned):
        return taken | aligned
    plugin = inventory.resources[request.resource].plugin
    if plugin is None:
        raise EndpointNotFoundError(request.resource)
    if not (plugin.options.get_preferred_allocation_available or always_asks):
        return _fill(taken, request.size, aligned, unaligned, no_affinity)
    if needed < len(aligned):
        return AskPlugin(aligned | taken, taken, request.size, eligible=aligned, fallbacks=(aligned,))
    taken |= aligned
    rest = available - aligned
    return AskPlugin(available | taken, taken, request.size, eligible=rest, fallbacks=(unaligned, no_affinity))


def choice_of(request: ResourceRequest, question: AskPlugin, inventory: Inventory, ledger: Ledger) -> Choice:
    """Return the question for a policy: the question for the plugin, plus what a policy may also need.

    These are the devices' NUMA nodes, the devices in use, all devices of the pod, and the affinity.
    """
    report = inventory.last_report(request.resource)
    states = report.devices.states if report else {}
    of_pod: dict[ResourceName, dict[DeviceId, tuple[NumaNode, ...]]] = {}
    holdings: tuple[Holding, ...] = (*ledger.of_pod(request.key.pod), *ledger.reservations)
    for held in holdings:
        if held.key.pod == request.key.pod:
            listed = inventory.last_report(held.resource)
            nodes = {device: listed.devices.numa_nodes(device) if listed else () for device in held.device_ids}
            of_pod.setdefault(held.resource, {}).update(nodes)
    return Choice(
        request.resource,
        request.key,
        available=question.must_include | question.eligible,
        must_include=question.must_include,
        size=request.size,
        numa_nodes={device: topology or () for device, (_, topology) in states.items()},
        in_use=ledger.in_use(request.resource),
        of_pod=of_pod,
        affinity=None if request.affinity is None else tuple(request.affinity),
    )


def filter_by_affinity(
    report: DeviceReport, affinity: Collection[NumaNode] | None, available: DeviceSet
) -> tuple[DeviceSet, DeviceSet, DeviceSet]:
    """Return the available devices in three sets: aligned, unaligned, and without affinity.

    Kubelet: `filterByAffinity`, kubelet.md 5.6.
    """
    if affinity is None or not report.has_topology:
        return _NONE, _NONE, available
    aligned = available & report.touching(affinity)
    attached = available & report.touching(node for node in report.by_numa_node if node >= 0)
    return aligned, attached - aligned, available - attached


def reusable_devices(pod: Pod, key: ContainerKey, resource: ResourceName, ledger: Ledger) -> DeviceSet:
    """Return the devices of earlier containers that a container of the pod may reuse (kubelet: `devicesToReuse`).

    These are the devices of init containers that run to completion, except devices that a sidecar or an app container
    also holds (kubelet.md 5.2).
    """
    if not pod.init_containers:
        return _NONE
    by_container = ledger.held_by(key.pod, resource)
    reusable = kept = _NONE
    is_before = True
    for container in pod.in_start_order:
        if container.name == key.container:
            is_before = False
        elif not pod.is_reusable(container):
            kept |= by_container.get(container.name, _NONE)
        elif is_before:
            reusable |= by_container.get(container.name, _NONE)
    return reusable - kept - ledger.shared_by_error(resource)


def _fill(taken: DeviceSet, size: int, *tiers: DeviceSet) -> DeviceSet:
    for tier in tiers:
        if tier.bits and (missing := size - len(taken)) > 0:
            taken |= (tier - taken).take(missing)
    return taken
